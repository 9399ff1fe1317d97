package perfevent

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/source"
)

// A plug has what is opened for each processor, where all that runs on processors is recorded: those that come online are recorded, too. Where threads
// have events, of each thread and each processor, they are not, but counted: another event would leave out what a thread has started before.
type plug struct {
	ring, code, sampling source.Attr
	target               *target // one event for each of Recorder.cpus; nil: threads have events
}

// replug opens what is missing on processors. When one goes offline, if only for a moment or while the machine is suspended, the kernel takes its
// events out of what it counts, for good, and tells nobody (perf_event_exit_cpu_context in kernel/events/core.c): the time for which they are
// enabled no longer grows. What cannot be opened is tried again the next time. It counts the processors that are not recorded.
func (r *Recorder) replug() {
	online, err := onlineCPUs()
	if err != nil {
		return
	}
	t := r.plug.target
	unheard := 0
	defer func() { r.unplugged.Store(int64(unheard)) }()
	for _, cpu := range online {
		i := slices.Index(r.cpus, cpu)
		if t == nil {
			if i < 0 {
				unheard++
			}
			continue
		}
		if i < 0 {
			if i = r.addCPU(cpu); i < 0 {
				unheard++
				continue
			}
		}
		if t.fds[i] >= 0 && !t.stopped[i] {
			continue
		}
		fd, err := r.openSampling(&r.plug.sampling, -1, i)
		if err != nil {
			unheard++
			continue
		}
		r.missed += t.replace(i, fd)
		if r.code != nil {
			if fd, err := r.openEverywhere(&r.plug.code, i); err == nil {
				r.missed += (&target{fds: r.code}).replace(i, fd)
			}
		}
	}
}

// addCPU opens a ring for a processor that was offline when the recording began, and returns its place; -1: it cannot be opened. The right to lock
// much memory is given up by then: what kernel.perf_event_mlock_kb allows for the processor is 512 KiB.
func (r *Recorder) addCPU(cpu int) (i int) {
	a, size := r.plug.ring, r.shape.RingSize
	g, err := openRing(&a, cpu, size)
	for errors.Is(err, errMap) && size > minRing {
		size /= 2
		a.WakeupEvents = min(a.WakeupEvents, uint32(size/4))
		g, err = openRing(&a, cpu, size)
	}
	if err != nil {
		return -1
	}
	if r.pollFor(g.fd) != nil {
		g.close()
		return -1
	}
	g.early, g.trailer = &r.reading, r.trailer
	r.rings, r.cpus = append(r.rings, g), append(r.cpus, cpu)
	t := r.plug.target
	t.fds, t.enabled, t.stopped = append(t.fds, -1), append(t.enabled, 0), append(t.stopped, false)
	if r.code != nil {
		r.code = append(r.code, -1)
	}
	return len(r.cpus) - 1
}

// replace closes the i-th event, if there is one, and puts another in its place. It returns what the old one has missed.
func (t *target) replace(i, fd int) (missed uint64) {
	if old := t.fds[i]; old >= 0 {
		missed = (&target{fds: []int{old}}).missed()
		unix.Close(old)
	}
	t.fds[i] = fd
	if t.enabled != nil {
		t.enabled[i], t.stopped[i] = 0, false
	}
	return missed
}
