package perfevent

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

// TestReplug: an event that the kernel no longer counts is replaced, and a processor without a ring gets one. Here a disabled event and a removed
// ring stand for processors that go offline and come online; on the virtual machines of lab/shapes they do.
func TestReplug(t *testing.T) {
	canRecord(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to record the whole machine")
	}
	var rec atomic.Pointer[Recorder]
	var at atomic.Uint64 // when the two were gone
	lost := -1           // the processor without a ring
	o := Options{All: true, Event: "cpu-clock", Frequency: 199, StackSize: 64, Duration: 20 * time.Second, round: func() {
		r := rec.Load()
		if r == nil || at.Load() > 0 || r.plug.target.enabled == nil {
			return
		}
		if err := unix.IoctlSetInt(r.plug.target.fds[0], unix.PERF_EVENT_IOC_DISABLE, 0); err != nil {
			t.Error(err)
		}
		if last := len(r.cpus) - 1; last > 0 {
			lost = r.cpus[last]
			unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, r.rings[last].fd, nil)
			r.plug.target.replace(last, -1)
			if r.code != nil {
				unix.Close(r.code[last])
				r.code = r.code[:last]
			}
			p := r.plug.target
			p.fds, p.enabled, p.stopped = p.fds[:last], p.enabled[:last], p.stopped[:last]
			r.rings[last].close()
			r.rings, r.cpus = r.rings[:last], r.cpus[:last]
		}
		for range maxCounted { // as if so many threads' ends were waited for
			r.targets = append(r.targets, &target{fds: []int{-1}})
		}
		at.Store(monotonic())
	}}
	r := open(t, o)
	first, all := r.cpus[0], len(r.cpus)
	rec.Store(r)
	var stop atomic.Bool
	defer stop.Store(true)
	for range 2 * all {
		go func() {
			for !stop.Load() {
			}
		}()
	}
	after := map[uint32]int{} // samples by processor
	enough := func() bool { return after[uint32(first)] > 10 && (lost < 0 || after[uint32(lost)] > 10) }
	_, err := source.Run(context.Background(), r, source.Options{Sample: func(s *source.Sample) error {
		if since := at.Load(); since > 0 && s.Time > since+uint64(100*time.Millisecond) {
			if after[s.CPU]++; enough() {
				r.Stop()
			}
		}
		return nil
	}})
	if err != nil || !enough() {
		t.Errorf("%v; samples of processors %d and %d, after they were lost: %v", err, first, lost, after)
	}
}

// TestUnplugged: where threads have events, a processor that comes online is counted, however many threads have gone.
func TestUnplugged(t *testing.T) {
	cpus, err := onlineCPUs()
	if err != nil {
		t.Fatal(err)
	}
	for _, lacks := range []int{0, 1} {
		r := &Recorder{cpus: cpus[lacks:]}
		for range 2 * maxCounted {
			r.targets = append(r.targets, &target{fds: slices.Repeat([]int{-1}, len(r.cpus))})
		}
		if r.countMissed(time.Now()); r.Stats().Unplugged != lacks {
			t.Errorf("of processors %v, %v are recorded, and %d count as not recorded", cpus, r.cpus, r.Stats().Unplugged)
		}
	}
}
