package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// A Change has the weights of one function or stack in two profiles.
type Change struct {
	Before, After       uint64
	AllBefore, AllAfter uint64    // of all that was recorded
	Samples, AllSamples [2]uint64 // before and after: the numbers of samples behind the weights
	Unit                string    // of weights, as profile.Number takes it
	Absolute            bool      // weights are compared, not parts of all
	Spread              float64   // how much further numbers lie apart than those of independent samples; 0 is 1
	Least               float64   // distance (Z) from which on the change is news
}

// Share is the change of the part of all: 0.1 for what took 20 % and takes 30 %. Of absolute weights, it is the change as a
// part of all before.
func (c *Change) Share() float64 {
	if c.Absolute {
		return (float64(c.After) - float64(c.Before)) / float64(max(c.AllBefore, 1))
	}
	return float64(c.After)/float64(max(c.AllAfter, 1)) - float64(c.Before)/float64(max(c.AllBefore, 1))
}

// Z is how many standard deviations lie between the two numbers of samples: of parts of all, by the test of two binomial
// proportions with a pooled estimate; of weights, by that of two Poisson counts; both divided by Spread. 0 where nothing is
// known.
func (c *Change) Z() float64 {
	if c.Spread > 1 {
		return c.plainZ() / c.Spread
	}
	return c.plainZ()
}

func (c *Change) plainZ() float64 {
	a, b := float64(c.Samples[0]), float64(c.Samples[1])
	if c.Absolute {
		if a+b == 0 {
			return 0
		}
		return (b - a) / math.Sqrt(a+b)
	}
	n, m := float64(c.AllSamples[0]), float64(c.AllSamples[1])
	if n == 0 || m == 0 {
		return 0
	}
	p := (a + b) / (n + m)
	if v := p * (1 - p) * (1/n + 1/m); v > 0 {
		return (b/m - a/n) / math.Sqrt(v)
	}
	return 0
}

// leastZ is the distance that chance alone reaches for any of n numbers in one comparison of a hundred (Bonferroni's bound).
func leastZ(n int) float64 { return math.Sqrt2 * math.Erfcinv(0.01/float64(max(n, 1))) }

// Significant says whether a change is unlikely to be chance.
func (c *Change) Significant() bool { return math.Abs(c.Z()) >= c.Least }

// A Compared is a function in two profiles.
type Compared struct {
	Func        *profile.Func
	Module      *profile.Module
	Self, Total Change
}

// Compare returns the functions of two profiles, those whose part of all has changed most certainly first: by the greater
// of the distances (Change.Z) of what is their own and of stacks that they are in. A heap profile has a sample each profile.Info.Every bytes; one
// of all allocations has one for each byte.
func Compare(before, after *profile.Profile, o Options) []Compared {
	p, split := profile.Join(after, before)
	side := func(from, to int, o Options) profile.Sums {
		q := *p
		q.Stacks = p.Stacks[from:to]
		return q.Sums(o.By, nil)
	}
	n := len(p.Stacks)
	count := Options{}
	now, old := side(0, split, o), side(split, n, o)
	oldCount, nowCount := old, now
	every := [2]uint64{1, 1} // what of count is one sample
	if before.Heap() && after.Heap() {
		count.By, every = Periods, [2]uint64{max(before.Every, 1), max(after.Every, 1)}
	}
	if o.By != count.By {
		nowCount, oldCount = side(0, split, count), side(split, n, count)
	}
	samples := func(a, b uint64) [2]uint64 { return [2]uint64{a / every[0], b / every[1]} }
	all := Change{
		AllBefore: o.total(before), AllAfter: o.total(after),
		AllSamples: samples(count.total(before), count.total(after)), Absolute: o.Absolute, Unit: o.unit(after),
	}
	change := func(a, b, ca, cb uint64) Change {
		c := all
		c.Before, c.After, c.Samples = a, b, samples(ca, cb)
		return c
	}
	var out []Compared
	for i := range p.Funcs {
		if old.Total[i]+now.Total[i] == 0 {
			continue
		}
		out = append(out, Compared{
			Func: &p.Funcs[i], Module: &p.Modules[p.Funcs[i].Module],
			Self:  change(old.Self[i], now.Self[i], oldCount.Self[i], nowCount.Self[i]),
			Total: change(old.Total[i], now.Total[i], oldCount.Total[i], nowCount.Total[i]),
		})
	}
	self := spread(out, func(c *Compared) *Change { return &c.Self })
	total := spread(out, func(c *Compared) *Change { return &c.Total })
	least := leastZ(2 * len(out))
	for i := range out {
		c := &out[i]
		c.Self.Spread, c.Total.Spread, c.Self.Least, c.Total.Least = self, total, least, least
	}
	slices.SortStableFunc(out, func(a, b Compared) int {
		return cmp.Or(cmp.Compare(b.z(), a.z()), cmp.Compare(math.Abs(b.Self.Share()), math.Abs(a.Self.Share())),
			cmp.Compare(a.Func.Name, b.Func.Name), cmp.Compare(a.Module.Path, b.Module.Path))
	})
	return out
}

// spread estimates how much further the bulk of functions have moved than independent samples would make them: samples of a
// phase of a program, or of a time in which the machine did something else, come together. It is the median distance as a
// multiple of a normal distribution's (an empirical null: Efron, Large-Scale Simultaneous Hypothesis Testing, 2004), at least 1.
func spread(list []Compared, of func(*Compared) *Change) float64 {
	var z []float64
	for i := range list {
		if c := of(&list[i]); c.Samples[0]+c.Samples[1] >= 20 { // else hardly normal
			z = append(z, math.Abs(c.plainZ()))
		}
	}
	if len(z) < 30 {
		return 1
	}
	slices.Sort(z)
	return max(z[len(z)/2]/0.6745, 1)
}

func (c *Compared) z() float64 { return max(math.Abs(c.Self.Z()), math.Abs(c.Total.Z())) }

// Diff writes a table of the functions that have changed: before, after and by how much, of their own and in total, the most
// certain changes first. What can be chance is counted only, unless Options.MinShare is negative.
func Diff(w io.Writer, before, after *profile.Profile, o Options) error {
	list := Compare(before, after, o)
	bw := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(bw, "before  %s\nafter   %s\n\n", before.Headline(), after.Headline())
	news := 0
	for news < len(list) && (list[news].Self.Significant() || list[news].Total.Significant()) {
		news++
	}
	shown := list[:news]
	if o.MinShare < 0 {
		shown = list
	}
	cut := 0
	if limit := o.limit(10); limit > 0 && len(shown) > limit {
		cut = len(shown) - limit
		shown = shown[:limit]
	}
	module, number, delta := len("module"), len("before"), len("change")
	for i := range shown {
		c := &shown[i]
		module = max(module, printable.Width(printable.String(c.Module.Base())))
		number = max(number, printable.Width(c.Total.before()), printable.Width(c.Total.after()), printable.Width(c.Self.before()), printable.Width(c.Self.after()))
		delta = max(delta, printable.Width(c.Self.delta()), printable.Width(c.Total.delta()))
	}
	module = min(module, 28)
	if o.Width > 0 {
		module = max(min(module, o.Width/6), len("module"))
	}
	row := func(c ...string) {
		b := fmt.Sprintf("%*s %*s %*s  %*s %*s %*s %6s  %s  ",
			number, c[0], number, c[1], delta, c[2], number, c[3], number, c[4], delta, c[5], c[6], printable.Pad(printable.Clip(c[7], module), module))
		if o.Width > 0 {
			c[8] = fit(c[8], max(o.Width-printable.Width(b), 1))
		}
		fmt.Fprintln(bw, printable.Clip(b+c[8], o.Width))
	}
	if len(shown) > 0 {
		row("self", "", "", "total", "", "", "", "", "")
		row("before", "after", "change", "before", "after", "change", "sigma", "module", "function")
	}
	for i := range shown {
		c := &shown[i]
		row(c.Self.before(), c.Self.after(), c.Self.delta(), c.Total.before(), c.Total.after(), c.Total.delta(),
			strconv.FormatFloat(c.z(), 'f', 1, 64), printable.String(c.Module.Base()), printable.String(c.Func.Name))
	}
	if cut > 0 {
		fmt.Fprintf(bw, "and %s more\n", profile.Comma(uint64(cut)))
	}
	if n := len(list) - news; n > 0 && o.MinShare >= 0 {
		if news > 0 {
			fmt.Fprintln(bw)
		}
		what := "functions differ no more than by chance"
		if n == 1 {
			what = "function differs no more than by chance"
		}
		fmt.Fprintf(bw, "%s %s (less than %.1f sigma)\n", profile.Comma(uint64(n)), what, list[0].Self.Least)
	}
	return bw.Flush()
}

func (c *Change) before() string { return c.weight(c.Before, c.AllBefore) }
func (c *Change) after() string  { return c.weight(c.After, c.AllAfter) }

func (c *Change) weight(n, all uint64) string {
	if c.Absolute {
		return profile.Number(n, c.Unit)
	}
	return profile.Percent(n, all)
}

// delta is the change with its sign: "+1.3 pp", in points of a percent, or "+1,234".
func (c *Change) delta() string {
	if c.Absolute {
		if c.After < c.Before {
			return "-" + profile.Number(c.Before-c.After, c.Unit)
		}
		return "+" + profile.Number(c.After-c.Before, c.Unit)
	}
	return fmt.Sprintf("%+.2f pp", 100*c.Share())
}

// DiffFolded writes a line for each distinct stack of either profile, as Folded does, with two weights: before and after. It
// is the input of flamegraph.pl for a differential flame graph.
func DiffFolded(w io.Writer, before, after *profile.Profile, o Options) error {
	p, split := profile.Join(after, before)
	stacks, names := foldStacks(p, &o)
	for i := range stacks {
		stacks[i].after = i < split
	}
	sortFolded(stacks, 0)
	bw := bufio.NewWriterSize(w, 1<<18)
	var line []byte
	for len(stacks) > 0 {
		line = line[:0]
		for i, n := range stacks[0].names {
			if i > 0 {
				line = append(line, ';')
			}
			line = append(line, names[n]...)
		}
		var sums [2]uint64
		for same := stacks[0].names; len(stacks) > 0 && slices.Equal(stacks[0].names, same); stacks = stacks[1:] {
			if stacks[0].after {
				sums[1] += stacks[0].weight
			} else {
				sums[0] += stacks[0].weight
			}
		}
		if sums[0]+sums[1] > 0 {
			bw.Write(fmt.Appendf(line, " %d %d\n", sums[0], sums[1]))
		}
	}
	fmt.Fprintf(bw, "# before: %s 0 0\n# after: %s 0 0\n", foldName(before.Headline()), foldName(after.Headline()))
	return bw.Flush()
}

// DiffJSON writes one object: the counts of both profiles, and the functions as Compare has them:
//
//	{"before":{"samples":104000,"weight":104000,"whole":103000,…},"after":{…},"unit":"samples",
//	 "functions":[{"function":"main","module":"/bin/ls","self":[1,2],"total":[10,20],"sigma":[0.5,4.2]},…]}
//
// Pairs are before and after; those of sigma self and total (Change.Z).
func DiffJSON(w io.Writer, before, after *profile.Profile, o Options) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	side := func(b []byte, p *profile.Profile) []byte {
		t := &p.Totals
		b = fmt.Appendf(b, `{"samples":%d,"weight":%d,`, t.Samples, o.total(p))
		if !t.NoStops {
			b = fmt.Appendf(b, `"whole":%d,"truncated":%d,"broken":%d,"no-user-stack":%d,`, t.Whole(), t.Truncated(), t.Broken(), t.NoUser())
		}
		return fmt.Appendf(b, `"lost":%d}`, p.Loss.Samples)
	}
	b := side([]byte(`{"before":`), before)
	b = side(append(b, `,"after":`...), after)
	b = appendQuoted(append(b, `,"unit":`...), o.unit(after))
	bw.Write(append(b, ",\n\"functions\":["...))
	for i, c := range Compare(before, after, o) {
		b = appendQuoted(append(comma(b[:0], i), `{"function":`...), c.Func.Name)
		b = appendQuoted(append(b, `,"module":`...), c.Module.Path)
		b = fmt.Appendf(b, `,"self":[%d,%d],"total":[%d,%d],"sigma":[%.2f,%.2f]}`,
			c.Self.Before, c.Self.After, c.Total.Before, c.Total.After, c.Self.Z(), c.Total.Z())
		bw.Write(b)
	}
	bw.WriteString("]}\n")
	return bw.Flush()
}
