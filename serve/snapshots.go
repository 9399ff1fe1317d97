package serve

import (
	"math"
	"slices"
	"sort"

	"github.com/unspool/unspool/profile"
)

// snapshots are what a heap profile counted at some moments of a run. Of what only grows, such as allocations, a moment has what came since the
// one before.
type snapshots struct {
	grows bool
	ends  []uint64   // the moments, in order: ns since the beginning
	have  [][]amount // at each
	last  []amount   // by stack: all that was counted so far, of what grows
}

type amount struct {
	stack          int32
	count, periods uint64
}

// AddSnapshot enters what a heap profile of one event counted from its beginning to its end. The profiles of a run come in order of time; stacks
// has the index of each of its stacks in the profile that is shown.
func (t *Times) AddSnapshot(p *profile.Profile, stacks []int32) {
	if t.shots == nil {
		t.shots = &snapshots{grows: len(p.Events) == 1 && profile.HeapGrows(p.Events[0].Name)}
	}
	s := t.shots
	at := uint64(max(p.Duration, 1))
	if len(s.ends) > 0 {
		at = max(at, s.ends[len(s.ends)-1]+1)
	}
	sums := map[int32]amount{}
	for i := range p.Stacks {
		a := sums[stacks[i]]
		a.count += p.Stacks[i].Count
		a.periods += p.Stacks[i].Period
		sums[stacks[i]] = a
	}
	var have []amount
	for stack, a := range sums {
		a.stack = stack
		if s.grows {
			if n := int(stack) + 1 - len(s.last); n > 0 {
				s.last = append(s.last, make([]amount, n)...)
			}
			was := s.last[stack]
			s.last[stack] = a
			a.count -= min(was.count, a.count)
			a.periods -= min(was.periods, a.periods)
		}
		if a.count > 0 || a.periods > 0 {
			have = append(have, a)
		}
	}
	slices.SortFunc(have, func(a, b amount) int { return int(a.stack - b.stack) })
	s.ends, s.have = append(s.ends, at), append(s.have, have)
	t.n, t.lo, t.hi = len(s.ends), 0, at
}

// at returns the snapshot that shows what there was at a time: the first that is not before it, or the last.
func (s *snapshots) at(time uint64) int {
	return min(sort.Search(len(s.ends), func(i int) bool { return s.ends[i] >= time }), len(s.ends)-1)
}

// recount counts what there was at the end of a half-open range of time, or, of what grows, what came in the intervals that the range touches.
func (s *snapshots) recount(lo, hi uint64, keep []bool, counts, periods []uint64) {
	last := s.at(max(hi, 1) - 1)
	first := last
	if s.grows {
		first = min(sort.Search(len(s.ends), func(i int) bool { return s.ends[i] > lo }), last)
	}
	for _, have := range s.have[first : last+1] {
		for _, a := range have {
			if keep[a.stack] {
				counts[a.stack] += a.count
				if &counts[0] != &periods[0] {
					periods[a.stack] += a.periods
				}
			}
		}
	}
}

// draw writes what there was in each bin, or how much was added in it, into the lanes, and returns the unit. lanes has the lane of each thread.
func (s *snapshots) draw(out *timeline, lanes, threadOf []int32, keep []bool, bytes bool) (unit uint64) {
	bins := len(out.Lanes[0].All)
	sums := make([][2][]float64, len(out.Lanes)) // by lane: of all, and of what is wanted
	for i := range sums {
		sums[i] = [2][]float64{make([]float64, bins), make([]float64, bins)}
	}
	last, one := -1, make([][2]float64, len(out.Lanes)) // the snapshot that was added last, by lane
	add := func(snapshot, bin int, part float64) {
		if snapshot != last {
			last = snapshot
			clear(one)
			for _, a := range s.have[snapshot] {
				n := float64(a.count)
				if bytes {
					n = float64(a.periods)
				}
				count := func(lane int32) {
					one[lane][0] += n
					if keep[a.stack] {
						one[lane][1] += n
					}
				}
				count(0)
				if lane := lanes[threadOf[a.stack]]; lane > 0 {
					count(lane)
				}
			}
		}
		for lane := range one {
			sums[lane][0][bin] += part * one[lane][0]
			sums[lane][1][bin] += part * one[lane][1]
		}
	}
	width := float64(out.Hi-out.Lo) / float64(bins)
	for bin := range bins {
		from, to := float64(out.Lo)+float64(bin)*width, float64(out.Lo)+float64(bin+1)*width
		if !s.grows {
			add(s.at(uint64((from+to)/2)), bin, 1)
			continue
		}
		for i := s.at(uint64(from)); i < len(s.ends); i++ {
			begin, end := 0.0, float64(s.ends[i])
			if i > 0 {
				begin = float64(s.ends[i-1])
			}
			if begin >= to {
				break
			}
			if part := (min(end, to) - max(begin, from)) / (end - begin); part > 0 {
				add(i, bin, part)
			}
		}
	}
	for unit = 1; slices.Max(sums[0][0])/float64(unit) > math.MaxInt32; unit *= 2 {
	}
	for i := range sums {
		for bin := range bins {
			out.Lanes[i].All[bin] = uint32(math.Ceil(sums[i][0][bin]/float64(unit) - 1e-6))
			out.Lanes[i].Kept[bin] = uint32(math.Ceil(sums[i][1][bin]/float64(unit) - 1e-6))
		}
	}
	return unit
}
