package serve

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/unspool/unspool/profile"
)

// A Recording is a profile and, where they are known, the times of its samples.
type Recording struct {
	Profile *profile.Profile
	Times   *Times // nil: not recorded

	// Local says that the profile's modules, and so the source files that they name, are those of this machine as far
	// as they are there. Only then is source shown.
	Local bool

	// Periods makes periods the weight, not numbers of samples: times that threads were blocked for.
	Periods bool

	// Of the profiles of an agent: the place of each stack, and the length of an interval, in which it is not known when a sample was taken.
	Places   []profile.Place
	Interval time.Duration
}

// Times holds when each sample of a profile was taken, in 16 bytes a sample, or the snapshots of a heap profile. The zero value has none.
type Times struct {
	// Waits says that a sample is a wait, which ends at its time and lasted for its period (profile.OffCPU). Set it before the first Add.
	Waits bool

	chunks []*chunk
	n      int
	lo, hi uint64           // of all samples
	large  map[int32]uint64 // periods that need more than 32 bits, by index in all samples
	shots  *snapshots       // nil: it has samples
}

const (
	chunkSize   = 1 << 15
	maxSamples  = math.MaxInt32
	largePeriod = math.MaxUint32
)

// A chunk has samples as columns.
type chunk struct {
	n      int
	lo, hi uint64
	time   [chunkSize]uint64
	stack  [chunkSize]int32
	period [chunkSize]uint32
}

// Add enters a sample that is counted in the profile's Stack of that index. Samples after the first 2^31 are left out.
func (t *Times) Add(time uint64, stack int, period uint64) {
	if t.n == maxSamples {
		return
	}
	if t.n%chunkSize == 0 {
		t.chunks = append(t.chunks, &chunk{lo: time, hi: time})
	}
	if t.n == 0 {
		t.lo, t.hi = time, time
	}
	begin := time
	if t.Waits {
		begin -= min(period, time)
	}
	c := t.chunks[len(t.chunks)-1]
	c.time[c.n], c.stack[c.n], c.period[c.n] = time, int32(stack), uint32(min(period, largePeriod))
	if period >= largePeriod {
		if t.large == nil {
			t.large = map[int32]uint64{}
		}
		t.large[int32(t.n)] = period
	}
	c.lo, c.hi = min(c.lo, begin), max(c.hi, time)
	t.lo, t.hi = min(t.lo, begin), max(t.hi, time)
	c.n++
	t.n++
}

// Spread enters the samples of a profile of an interval, evenly over its time: when they were taken is not known. stacks has the index of each of
// its stacks in the profile that is shown. Waits are left out.
func (t *Times) Spread(p *profile.Profile, stacks []int32) {
	if p.Start.IsZero() || p.Duration <= 0 || p.Waits() {
		return
	}
	begin, at := uint64(max(p.Start.UnixNano(), 0)), 0.5
	for i := range p.Stacks {
		s := &p.Stacks[i]
		if s.Event >= 0 && int(s.Event) < len(p.Events) && p.Events[s.Event].Name == profile.OffCPU {
			continue
		}
		for range s.Count {
			_, at = math.Modf(at + 1/math.Phi) // any number of these in a row lie evenly
			t.Add(begin+uint64(at*float64(p.Duration)), int(stacks[i]), s.Period/s.Count)
		}
	}
}

// each calls f with the chunks that have samples in a half-open range of time; all says that the whole chunk lies in it. It ends early if
// stop says so.
func (t *Times) each(lo, hi uint64, stop func() bool, f func(c *chunk, first int, all bool)) {
	for i, c := range t.chunks {
		if i%16 == 0 && stop() {
			return
		}
		if c.n > 0 && c.lo < hi && c.hi >= lo {
			f(c, i*chunkSize, lo <= c.lo && c.hi < hi)
		}
	}
}

// periodAt returns the period of sample i of c, whose first sample has the index first.
func (t *Times) periodAt(c *chunk, first, i int) uint64 {
	if p := c.period[i]; p != largePeriod {
		return uint64(p)
	}
	return t.large[int32(first+i)]
}

// span returns when sample i of c began and ended: at once, if it is no wait.
func (t *Times) span(c *chunk, first, i int) (begin, end uint64) {
	begin, end = c.time[i], c.time[i]
	if t.Waits {
		begin -= min(t.periodAt(c, first, i), begin)
	}
	return begin, end
}

// data is what views are computed from: one profile, or two in one. It does not change.
type data struct {
	p     *profile.Profile // its Stacks from base on are those of the baseline
	base  int
	locs  int    // so many of its Locs are not the baseline's
	times *Times // nil if not recorded; of the profile, not the baseline

	summary  [2]string
	totals   [2]profile.Totals
	local    bool
	periods  bool
	places   []profile.Place // by stack of the profile; nil: they are not known
	interval time.Duration
	threads  []thread
	threadOf []int32 // by stack
	rank     []int32 // by module: its place by weight, for its hue
}

// A thread is one that samples were taken of. In comparisons it is one of the profile's, not of the baseline's.
type thread struct {
	PID     int32  `json:"pid"`
	TID     int32  `json:"tid"`
	Comm    string `json:"comm"`
	Samples uint64 `json:"samples"`
	Base    bool   `json:"-"`
}

func newData(a, b *Recording) *data {
	d := &data{p: a.Profile, base: len(a.Profile.Stacks), locs: len(a.Profile.Locs), times: a.Times, local: a.Local, periods: a.Periods, places: a.Places, interval: a.Interval}
	d.totals[0], d.summary[0] = a.Profile.Totals, a.Profile.Summary()
	if d.times != nil && d.times.n == 0 {
		d.times = nil
	}
	if b != nil {
		d.p, _ = profile.Join(a.Profile, b.Profile)
		d.totals[1], d.summary[1] = b.Profile.Totals, b.Profile.Summary()
		if d.places != nil || b.Places != nil {
			d.places = make([]profile.Place, len(d.p.Stacks))
			copy(d.places, a.Places)
			copy(d.places[d.base:], b.Places)
		}
	}
	d.findThreads()
	d.rankModules()
	return d
}

// place returns the place that a stack is of; nothing is in it if it is not known.
func (d *data) place(stack int) (at profile.Place) {
	if stack < len(d.places) {
		at = d.places[stack]
	}
	return at
}

// pods says whether some stack is of a pod.
func (d *data) pods() bool {
	return slices.ContainsFunc(d.places, func(at profile.Place) bool { return at.Pod != "" })
}

// grouping is what stacks are grouped by, if a page does not say.
func (d *data) grouping() string {
	if d.places != nil {
		return "service"
	}
	return "comm"
}

func (d *data) two() bool { return d.base < len(d.p.Stacks) }

// side is 1 for stacks of the baseline.
func (d *data) side(stack int) int {
	if stack >= d.base {
		return 1
	}
	return 0
}

func (d *data) findThreads() {
	type key struct {
		pid, tid int32
		base     bool
	}
	ids := map[key]int32{}
	most := map[key]uint64{} // samples under the name that is shown
	d.threadOf = make([]int32, len(d.p.Stacks))
	for i := range d.p.Stacks {
		s := &d.p.Stacks[i]
		k := key{s.PID, s.TID, i >= d.base}
		id, ok := ids[k]
		if !ok {
			id = int32(len(d.threads))
			ids[k] = id
			d.threads = append(d.threads, thread{PID: s.PID, TID: s.TID, Base: k.base})
		}
		d.threadOf[i] = id
		t := &d.threads[id]
		t.Samples += s.Count
		if s.Count > most[k] || t.Comm == "" {
			t.Comm, most[k] = s.Comm, s.Count
		}
	}
}

// heaviest returns at most n threads, those with the most samples first, and how many there are.
func (d *data) heaviest(n int) ([]thread, int) {
	ts := slices.DeleteFunc(slices.Clone(d.threads), func(t thread) bool { return t.Base })
	slices.SortStableFunc(ts, func(a, b thread) int { return cmp.Compare(b.Samples, a.Samples) })
	return ts[:min(n, len(ts))], len(ts)
}

func (d *data) rankModules() {
	weight := make([]uint64, len(d.p.Modules))
	for i := range d.p.Stacks {
		if s := &d.p.Stacks[i]; len(s.Frames) > 0 {
			weight[d.p.Locs[s.Frames[0]].Module] += s.Count
		}
	}
	order := make([]int32, len(weight))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(weight[b], weight[a]) })
	d.rank = make([]int32, len(weight))
	n := int32(0)
	for _, m := range order {
		if !d.p.Modules[m].Kernel && d.p.Modules[m].Path != "" {
			d.rank[m] = n
			n++
		}
	}
}
