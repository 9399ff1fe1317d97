package serve

import (
	"context"
	"fmt"
	"math"
	"net/url"
	"regexp"
	"strconv"

	"github.com/unspool/unspool/unwind"
)

// maxRegexp bounds the length of regular expressions: the longest name fits, escaped. They are Go's, which take time linear in
// what they are matched against.
const maxRegexp = 2*maxText + 16

// A filter says which samples count, and what for. It can be compared.
type filter struct {
	group    string // of groupings
	pid, tid int32  // -1: all
	comm     string // a regular expression
	service  string // a regular expression
	pod      string // a regular expression
	with     string // a regular expression for a function that stacks must have
	without  string // or must not have
	event    int32  // -1: all
	lo, hi   uint64 // half open; ns since the first sample
	periods  bool   // weights are periods, not numbers of samples
}

// parseFilter reads a request's parameters. Those that are missing refuse nothing; group is the grouping then.
func parseFilter(q url.Values, group string) (filter, error) {
	f := filter{group: group, comm: q.Get("comm"), service: q.Get("service"), pod: q.Get("pod"), with: q.Get("with"), without: q.Get("without"), hi: math.MaxUint64, periods: q.Get("by") == "periods"}
	if g := q.Get("group"); g != "" {
		f.group = g
	}
	if _, ok := groupings[f.group]; !ok {
		return f, fmt.Errorf("group: there is no %q", f.group)
	}
	var err error
	number := func(name string, none uint64, bits int) uint64 {
		s := q.Get(name)
		if s == "" || err != nil {
			return none
		}
		n, perr := strconv.ParseUint(s, 10, bits)
		if perr != nil {
			err = fmt.Errorf("%s: %q is no number", name, s)
		}
		return n
	}
	none := uint64(math.MaxUint32)
	f.pid, f.tid, f.event = int32(number("pid", none, 31)), int32(number("tid", none, 31)), int32(number("event", none, 31))
	f.lo, f.hi = number("lo", 0, 64), number("hi", math.MaxUint64, 64)
	for _, s := range []string{f.comm, f.service, f.pod, f.with, f.without} {
		if _, rerr := compile(s); rerr != nil {
			err = rerr
		}
	}
	return f, err
}

// compile compiles a regular expression that a person typed: case matters only if there are capitals. That of "" is nil.
func compile(s string) (*regexp.Regexp, error) {
	if s == "" {
		return nil, nil
	}
	if len(s) > maxRegexp {
		return nil, fmt.Errorf("a regular expression may have %d bytes, not %d", maxRegexp, len(s))
	}
	if capitals.FindString(s) == "" {
		s = "(?i)" + s
	}
	return regexp.Compile(s)
}

var capitals = regexp.MustCompile(`(?:^|[^\\])[A-Z]`)

// weights are the sums of a filter over a tree, of the profile and of the baseline.
type weights struct {
	t        *tree
	total    [2][]uint64 // by node
	self     [2][]uint64
	all      [2]uint64
	samples  [2]uint64
	stops    [2][unwind.NumStops]uint64 // samples by how their stacks end
	stacks   []uint64                   // samples by stack
	perStack []uint64                   // weight by stack
	periods  bool                       // weights are periods
}

// sides is 2 in comparisons.
func (d *data) sides() int {
	if d.two() {
		return 2
	}
	return 1
}

// keep returns which stacks a filter wants, whatever the time. PID, TID and time are the profile's: they say nothing about
// the baseline.
func (d *data) keep(t *tree, f *filter) []bool {
	comm, service, pod := matcher(f.comm), matcher(f.service), matcher(f.pod)
	keep := make([]bool, len(d.p.Stacks))
	for i := range d.p.Stacks {
		s := &d.p.Stacks[i]
		ok := f.event < 0 || s.Event == f.event
		if i < d.base {
			ok = ok && (f.pid < 0 || s.PID == f.pid) && (f.tid < 0 || s.TID == f.tid)
		}
		at := d.place(i)
		keep[i] = ok && comm(s.Comm) && service(at.Service) && pod(at.Pod)
	}
	for _, x := range []struct {
		re   string
		want bool
	}{{f.with, true}, {f.without, false}} {
		re, _ := compile(x.re)
		if re == nil {
			continue
		}
		under := t.below(t.matching(re))
		for i := range keep {
			keep[i] = keep[i] && under[t.leaf[i]] == x.want
		}
	}
	return keep
}

// matcher returns what says of a name whether it matches a regular expression; each name is matched once.
func matcher(expr string) func(string) bool {
	re, _ := compile(expr)
	if re == nil {
		return func(string) bool { return true }
	}
	known := map[string]bool{}
	return func(name string) bool {
		m, ok := known[name]
		if !ok {
			m = re.MatchString(name)
			known[name] = m
		}
		return m
	}
}

// below returns which nodes have a label of is, or a caller with one.
func (t *tree) below(is []bool) []bool {
	under := make([]bool, len(t.label))
	for n := range under {
		under[n] = is[t.label[n]] || under[t.parent[n]]
	}
	return under
}

// weigh computes the sums of a filter. It returns nil if ctx ends before.
func (d *data) weigh(ctx context.Context, t *tree, f *filter) *weights {
	w := &weights{t: t, periods: f.periods, stacks: make([]uint64, len(d.p.Stacks))}
	keep := d.keep(t, f)
	periods := w.stacks
	if f.periods {
		periods = make([]uint64, len(w.stacks))
	}
	w.perStack = periods
	timed := d.times != nil && (f.lo > 0 || f.hi <= d.times.hi-d.times.lo)
	for i := range d.p.Stacks {
		if s := &d.p.Stacks[i]; keep[i] && (!timed || i >= d.base) {
			w.stacks[i] = s.Count
			if f.periods {
				periods[i] = s.Period
			}
		}
	}
	if timed {
		d.recount(ctx, f, keep, w.stacks, periods)
	}
	for side := range d.sides() {
		w.total[side], w.self[side] = make([]uint64, len(t.label)), make([]uint64, len(t.label))
	}
	for i, n := range periods {
		side := d.side(i)
		w.self[side][t.leaf[i]] += n
		w.all[side] += n
		w.samples[side] += w.stacks[i]
		w.stops[side][min(d.p.Stacks[i].Stop, unwind.NumStops-1)] += w.stacks[i]
	}
	for side := range d.sides() {
		total := w.total[side]
		copy(total, w.self[side])
		for n := len(total) - 1; n > 0; n-- {
			if n&0xfffff == 0 && ctx.Err() != nil {
				return nil
			}
			total[t.parent[n]] += total[n]
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return w
}

// recount counts the samples in f's range of time whose stacks are wanted.
func (d *data) recount(ctx context.Context, f *filter, keep []bool, counts, periods []uint64) {
	lo, hi := d.times.lo+f.lo, uint64(math.MaxUint64)
	if f.hi < hi-d.times.lo {
		hi = d.times.lo + f.hi
	}
	if d.times.shots != nil {
		d.times.shots.recount(f.lo, f.hi, keep, counts, periods)
		return
	}
	d.times.each(lo, hi, func() bool { return ctx.Err() != nil }, func(c *chunk, first int, all bool) {
		for i := range c.n {
			s := c.stack[i]
			begin, end := d.times.span(c, first, i)
			if !keep[s] || !all && (end < lo || begin >= hi) {
				continue
			}
			counts[s]++
			switch {
			case !f.periods:
			case d.times.Waits:
				periods[s] += min(end, hi) - max(begin, lo) // what of the wait lies in the range
			default:
				periods[s] += d.times.periodAt(c, first, i)
			}
		}
	})
}
