package heap

import (
	"context"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
)

// probe records processes that run. A snapshot has what came before the moment at which it was due. It is written when something comes after that: where
// nothing is allocated and freed, there is none.
func probe(ctx context.Context, p Plan, o Options) (*Result, error) {
	asked, stop := askedFor()
	defer stop()
	t := p.Target
	t.Event, t.Source, t.Only = perfevent.Allocations, record.EBPF, "--heap -p"
	t.InKernel.Heap = &ebpf.Heap{Period: p.Period, PIDs: t.PIDs}
	live, err := t.Open(ctx, o.Mods)
	if err != nil {
		return nil, err
	}
	defer live.Close()
	for _, note := range publisherNotes(live.Heap()) {
		o.Notify(note)
	}
	for _, path := range live.Heap().Allocators {
		o.Notify(fmt.Sprintf("probes at %s: each allocation stops the process twice, each free once, for 1 to 3 µs each time", path))
	}
	for _, path := range live.Heap().Unseen {
		o.Notify(fmt.Sprintf("%s has an operator new that does not call malloc: it is not recorded, because a probe would end the program where it throws; without -p it is", path))
	}
	s := live.Session(record.Options{Mods: o.Mods, Names: o.Names})
	if err := live.Drop(o.Names); err != nil {
		o.Notify(err.Error())
	}
	b := profile.NewBuilder()
	var first, due uint64 // of the samples; the next snapshot's time
	// Not ctx: when it is done, the recording ends, and what has been recorded is still to be read.
	if err := s.Run(context.Background(), func(x *profile.Sample) error {
		if first == 0 {
			first, due = x.Time, x.Time+uint64(p.Every)
		}
		wanted := p.Every > 0 && x.Time >= due
		if wanted {
			due += (x.Time - due + uint64(p.Every)) / uint64(p.Every) * uint64(p.Every)
		}
		if at := asked.Load(); at != 0 && x.Time >= at && asked.CompareAndSwap(at, 0) {
			wanted = true
		}
		if wanted {
			info := s.Info
			info.Every, info.Duration = p.Period, time.Duration(x.Time-first)
			if err := o.Snapshot(probed(b.Profile(o.Names, info), live.Heap().Tellers)); err != nil {
				o.Notify(fmt.Sprintf("a snapshot: %v", err))
			}
		}
		weigh(x, p.Period)
		x.TID = 0
		b.Add(x)
		return nil
	}); err != nil {
		return nil, err
	}
	s.Info.Every = p.Period
	n := live.Heap()
	out := &Result{Profile: probed(b.Profile(o.Names, s.Info), n.Tellers), EndNotes: append(live.EndNotes(), s.Notes()...)}
	if len(n.Allocators) > 0 {
		out.EndNotes = append(out.EndNotes, fmt.Sprintf("the processes allocated %s times and freed %s times: %s stops", profile.Comma(n.Allocations), profile.Comma(n.Frees),
			profile.Comma(n.Allocations+n.Returns+n.Frees)))
	}
	if len(n.Publishers) > 0 {
		out.EndNotes = append(out.EndNotes, fmt.Sprintf("the processes' own probes reported %s and %s of these freed: %s stops", profile.Count(n.Published, "sample", "samples"),
			profile.Comma(n.PublishedFrees), profile.Comma(n.Published+n.PublishedFrees)))
	}
	return out, nil
}

// askedFor keeps when the last SIGUSR2 came, by the clock of samples, until stop is called.
func askedFor() (at *atomic.Uint64, stop func()) {
	at = new(atomic.Uint64)
	signals, done := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGUSR2)
	go func() {
		for {
			select {
			case <-signals:
				var now unix.Timespec
				if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) == nil {
					at.Store(uint64(now.Nano()))
				}
			case <-done:
				return
			}
		}
	}()
	return at, func() { signal.Stop(signals); close(done) }
}

// publisherNotes says what comes from the probes that processes have themselves.
func publisherNotes(n ebpf.HeapStats) (out []string) {
	for _, p := range n.Publishers {
		note := p.Path + " reports its own samples by otel_memory probes (USDT): these are recorded, in place of its allocators' calls, and --heap-period changes nothing"
		if !p.Frees {
			note += "; it does not report what is freed: all counts as in use until something else is at its address"
		}
		out = append(out, note)
	}
	for _, err := range n.Unread {
		out = append(out, fmt.Sprintf("the otel_memory probes (USDT) cannot be read: %v", err))
	}
	return out
}

// unit is how many parts an object is counted in: weights of samples are no whole numbers.
const unit = 1 << 16

// weigh gives a sample of an allocation of x.Period bytes its weight: how many such allocations, in parts of an object, and bytes it stands for. That is
// 1 / (1 - exp(-n / period)) of each; period is how many bytes are allocated between samples, on average, and each allocation is a sample if it is
// at most 1. A sample that has a Size has its weight.
func weigh(x *profile.Sample, period uint64) {
	x.Count = unit
	if x.Size > 0 {
		if x.Period > 0 {
			x.Count = max(uint64(float64(x.Period)/float64(x.Size)*unit+0.5), 1)
		}
		return
	}
	if n := float64(x.Period); period > 1 && n > 0 {
		chance := -math.Expm1(-n / float64(period))
		x.Count, x.Period = uint64(unit/chance+0.5), uint64(n/chance+0.5)
	}
}

// probed makes a heap profile of one that has allocations, weighed by weigh, as event 0, and those that were freed as event 1. Stacks begin at what
// calls the allocator: tellers are the processes that have reported it themselves. An object is freed under the name that its thread has then: where no such thread has allocated it, one of another name has.
func probed(p *profile.Profile, tellers []int32) *profile.Profile {
	type key struct {
		first *uint32
		n     int
		pid   int32
		stop  uint8
	}
	keyOf := func(s *profile.Stack) key {
		k := key{n: len(s.Frames), pid: s.PID, stop: uint8(s.Stop)}
		if k.n > 0 {
			k.first = &s.Frames[0]
		}
		return k
	}
	q := *p
	q.Events = []profile.Event{profile.HeapEvent(profile.HeapAlloc), profile.HeapEvent(profile.HeapInUse)}
	q.Stacks = nil
	type named struct {
		key
		comm string
	}
	use := map[named]int{} // what is in use
	all := map[key][]int{} // the same, of all names
	var freed []profile.Stack
	for i := range p.Stacks {
		s := &p.Stacks[i]
		if s.Event != 0 {
			freed = append(freed, *s)
			continue
		}
		k := keyOf(s)
		j, ok := use[named{k, s.Comm}]
		if !ok {
			j = len(q.Stacks) + 1
			use[named{k, s.Comm}], all[k] = j, append(all[k], j)
			one := profile.Stack{Frames: s.Frames, Comm: s.Comm, PID: s.PID, Stop: s.Stop}
			q.Stacks = append(q.Stacks, one, one)
			q.Stacks[j].Event = 1
		}
		for k := j - 1; k <= j; k++ {
			x := &q.Stacks[k]
			x.Count, x.Period = x.Count+s.Count, x.Period+s.Period
		}
	}
	free := func(s *profile.Stack, j int) {
		x := &q.Stacks[j]
		count, period := min(s.Count, x.Count), min(s.Period, x.Period)
		x.Count, x.Period = x.Count-count, x.Period-period
		s.Count, s.Period = s.Count-count, s.Period-period
	}
	for i := range freed {
		if j, ok := use[named{keyOf(&freed[i]), freed[i].Comm}]; ok {
			free(&freed[i], j)
		}
	}
	for i := range freed {
		s := &freed[i]
		for k := keyOf(s); s.Count > 0 && len(all[k]) > 0; {
			if free(s, all[k][0]); s.Count > 0 {
				all[k] = all[k][1:] // nothing is left of it
			}
		}
	}
	for i := range q.Stacks {
		s := &q.Stacks[i]
		s.Count = (s.Count + unit/2) / unit
		switch {
		case len(s.Frames) < 2:
		case slices.Contains(tellers, s.PID):
			s.Frames = beyond(p, s.Frames)
		default:
			s.Frames = outside(p, s.Frames)
		}
	}
	r := q.Filter(func(s *profile.Stack) bool { return s.Count > 0 || s.Period > 0 })
	begin(r)
	return r
}

// outside leaves out the allocator's function, which was called, and calls that were inlined in it.
func outside(p *profile.Profile, frames []uint32) []uint32 {
	i := 0
	for i < len(frames)-1 && p.Locs[frames[i]].Inlined {
		i++
	}
	return frames[min(i+1, len(frames)-1):]
}

// allocates has the functions that people call to allocate.
var allocates = []string{"malloc", "calloc", "realloc", "reallocarray", "memalign", "aligned_alloc", "posix_memalign", "valloc", "pvalloc"}

// beyond leaves out the frames of the module that has reported an allocation, up to the last function that people call to allocate. Where it has no such
// function, it allocates by one of its own: nothing is left out.
func beyond(p *profile.Profile, frames []uint32) []uint32 {
	first, n := p.Locs[frames[0]].Module, 0
	for i, f := range frames[:len(frames)-1] {
		l := &p.Locs[f]
		if l.Module != first || first < 0 {
			break
		}
		if name := p.Funcs[l.Func].Name; slices.Contains(allocates, name) || strings.HasPrefix(name, "operator new") {
			n = i + 1
		}
	}
	return frames[n:]
}
