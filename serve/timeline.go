package serve

import (
	"cmp"
	"context"
	"math"
	"slices"
)

const (
	maxBins  = 2000
	maxLanes = 100
)

// A timelineQuery says which time is drawn in how many bins, and which threads. The filter's own range of time does not matter.
type timelineQuery struct {
	lo, hi        uint64 // half open; ns since the first sample; hi may be past the end
	bins          int
	offset, limit int // threads, those with the most samples first
}

// A timeline has a lane for all threads and one for each of some.
type timeline struct {
	Lo    uint64 `json:"lo"`
	Hi    uint64 `json:"hi"`
	Lanes []lane `json:"lanes"` // the first is all
	Count int    `json:"count"` // threads that there are
	Waits bool   `json:"waits"`

	// Of snapshots: the bytes or objects that one stands for in a lane, and whether lanes have what was added, not what there was. Unit 0: samples.
	Unit  uint64 `json:"unit"`
	Grows bool   `json:"grows"`
}

// A lane counts the samples of a thread in each bin, and of those the ones that the filter wants. Of waits it has how long they were in the
// bin, in thousandths of its length: a thread that waits all the time has 1000 in each. Of snapshots it has bytes or objects, in Unit.
type lane struct {
	Thread *thread  `json:"thread,omitempty"`
	All    []uint32 `json:"all"`
	Kept   []uint32 `json:"kept"`
}

// length is the time from the first sample to the last, which is in it.
func (t *Times) length() uint64 { return max(t.hi-t.lo, t.hi-t.lo+1) }

// newTimeline counts samples by time. It returns nil if ctx ends before.
func newTimeline(ctx context.Context, d *data, t *tree, f *filter, q *timelineQuery) *timeline {
	bins := min(max(q.bins, 1), maxBins)
	out := &timeline{Lo: min(q.lo, d.times.length()-1), Hi: min(q.hi, d.times.length())}
	if out.Hi <= out.Lo {
		out.Hi = out.Lo + 1
	}
	var order []int32
	for i := range d.threads {
		if !d.threads[i].Base {
			order = append(order, int32(i))
		}
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(d.threads[b].Samples, d.threads[a].Samples) })
	out.Count = len(order)
	first := min(max(q.offset, 0), len(order))
	order = order[first:min(first+min(max(q.limit, 0), maxLanes), len(order))]

	counts := func(th *thread) lane { return lane{th, make([]uint32, bins), make([]uint32, bins)} }
	out.Lanes = append(out.Lanes, counts(nil))
	at := make([]int32, len(d.threads)) // the lane; 0: none
	for _, id := range order {
		at[id] = int32(len(out.Lanes))
		out.Lanes = append(out.Lanes, counts(&d.threads[id]))
	}
	keep := d.keep(t, f)
	if d.times.shots != nil {
		out.Unit, out.Grows = d.times.shots.draw(out, at, d.threadOf, keep, f.periods), d.times.shots.grows
		return out
	}
	lo, hi := d.times.lo+out.Lo, d.times.lo+out.Hi
	if hi < lo {
		hi = math.MaxUint64
	}
	scale := float64(bins) / float64(hi-lo)
	stopped := func() bool { return ctx.Err() != nil }
	out.Waits = d.times.Waits
	var waits []spans // of waits, by lane
	if out.Waits {
		waits = make([]spans, len(out.Lanes))
		for i := range waits {
			waits[i] = newSpans(bins)
		}
	}
	d.times.each(lo, hi, stopped, func(c *chunk, first int, all bool) {
		for i := range c.n {
			x := c.time[i]
			s := c.stack[i]
			if out.Waits {
				from, to := d.times.span(c, first, i)
				from, to = max(from, lo), min(to, hi)
				if from >= to {
					continue
				}
				a, b := float64(from-lo)*scale, float64(to-lo)*scale
				waits[0].add(a, b, keep[s])
				if l := at[d.threadOf[s]]; l > 0 {
					waits[l].add(a, b, keep[s])
				}
				continue
			}
			if !all && (x < lo || x >= hi) {
				continue
			}
			bin := min(int(float64(x-lo)*scale), bins-1)
			one := &out.Lanes[at[d.threadOf[s]]]
			out.Lanes[0].All[bin]++
			if keep[s] {
				out.Lanes[0].Kept[bin]++
			}
			if one != &out.Lanes[0] {
				one.All[bin]++
				if keep[s] {
					one.Kept[bin]++
				}
			}
		}
	})
	if stopped() {
		return nil
	}
	for i := range waits {
		waits[i].write(&out.Lanes[i])
	}
	return out
}

// spans adds up waits: what they have of the bins at their ends, and where whole bins begin and end.
type spans struct{ part, whole [2][]float64 } // of all, and of those that are kept

func newSpans(bins int) (s spans) {
	for i := range s.part {
		s.part[i], s.whole[i] = make([]float64, bins), make([]float64, bins+1)
	}
	return s
}

// add adds a wait from bin a to bin b, where 1.5 is in the middle of the second.
func (s *spans) add(a, b float64, kept bool) {
	sides := 1
	if kept {
		sides = 2
	}
	last := len(s.part[0]) - 1
	i, j := min(int(a), last), min(int(b), last)
	for k := range sides {
		if i == j {
			s.part[k][i] += b - a
			continue
		}
		s.part[k][i] += float64(i+1) - a
		s.part[k][j] += b - float64(j)
		s.whole[k][i+1]++
		s.whole[k][j]--
	}
}

func (s *spans) write(l *lane) {
	for k, to := range [][]uint32{l.All, l.Kept} {
		n := 0.0
		for i := range to {
			n += s.whole[k][i]
			to[i] = uint32(math.Ceil(1000*(n+s.part[k][i]) - 1e-6)) // less than a thousandth is seen, too
		}
	}
}
