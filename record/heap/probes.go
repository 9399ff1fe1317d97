package heap

import (
	"math"

	"github.com/unspool/unspool/profile"
)

// unit is how many parts an object is counted in: weights of samples are no whole numbers.
const unit = 1 << 16

// Weigh gives a sample of an allocation of x.Period bytes its weight: how many such allocations, in parts of an object, and bytes it stands for. That is
// 1 / (1 - exp(-n / period)) of each; period is how many bytes are allocated between samples, on average, and each allocation is a sample if it is
// at most 1.
func Weigh(x *profile.Sample, period uint64) {
	x.Count = unit
	if n := float64(x.Period); period > 1 && n > 0 {
		chance := -math.Expm1(-n / float64(period))
		x.Count, x.Period = uint64(unit/chance+0.5), uint64(n/chance+0.5)
	}
}

// Probed makes a heap profile of one that has allocations, weighed by Weigh, as event 0, and those that were freed as event 1. Stacks begin at what
// calls the allocator.
func Probed(p *profile.Profile) *profile.Profile {
	type key struct {
		first *uint32
		n     int
		comm  string
		pid   int32
		stop  uint8
	}
	q := *p
	q.Events = []profile.Event{profile.HeapEvent(profile.HeapAlloc), profile.HeapEvent(profile.HeapInUse)}
	q.Stacks = nil
	at := map[key]int{} // in use
	for _, s := range p.Stacks {
		k := key{n: len(s.Frames), comm: s.Comm, pid: s.PID, stop: uint8(s.Stop)}
		if k.n > 0 {
			k.first = &s.Frames[0]
		}
		i, ok := at[k]
		if !ok {
			i = len(q.Stacks) + 1
			at[k] = i
			one := profile.Stack{Frames: s.Frames, Comm: s.Comm, PID: s.PID, Stop: s.Stop}
			q.Stacks = append(q.Stacks, one, one)
			q.Stacks[i].Event = 1
		}
		alloc, use := &q.Stacks[i-1], &q.Stacks[i]
		if s.Event == 0 {
			alloc.Count, alloc.Period = alloc.Count+s.Count, alloc.Period+s.Period
			use.Count, use.Period = use.Count+s.Count, use.Period+s.Period
		}
	}
	for _, s := range p.Stacks {
		k := key{n: len(s.Frames), comm: s.Comm, pid: s.PID, stop: uint8(s.Stop)}
		if k.n > 0 {
			k.first = &s.Frames[0]
		}
		if use := &q.Stacks[at[k]]; s.Event == 1 {
			use.Count, use.Period = use.Count-min(s.Count, use.Count), use.Period-min(s.Period, use.Period)
		}
	}
	for i := range q.Stacks {
		s := &q.Stacks[i]
		s.Count = (s.Count + unit/2) / unit
		if len(s.Frames) > 1 {
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
