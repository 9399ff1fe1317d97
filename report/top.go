package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// ranked returns the functions in falling order of their own weight or their total, without those of no weight.
func ranked(p *profile.Profile, s *profile.Sums, byTotal bool) []int32 {
	var fns []int32
	for i := range p.Funcs {
		if s.Total[i] > 0 {
			fns = append(fns, int32(i))
		}
	}
	slices.SortFunc(fns, func(a, b int32) int {
		if byTotal && s.Total[a] != s.Total[b] {
			return cmp.Compare(s.Total[b], s.Total[a])
		}
		return cmp.Or(cmp.Compare(s.Self[b], s.Self[a]), cmp.Compare(s.Total[b], s.Total[a]), compareFuncs(p, a, b))
	})
	return fns
}

// leastName is how many columns names of functions have at least before other columns go.
const leastName = 20

// Top writes a table of functions: the weight of their own code, that of all stacks which they are in,
// module and name. The name is last so that no line is longer than it has to be.
func Top(w io.Writer, p *profile.Profile, o Options) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(bw, "%s\n\n", p.Headline())
	all := o.total(p)
	s := p.Sums(o.By, nil)
	fns := ranked(p, &s, o.Total)
	var left []int32
	if limit := o.limit(6); limit > 0 && len(fns) > limit { // headline, header, the last line, a prompt
		fns, left = fns[:limit], fns[limit:]
	}
	unit := o.unit(p)
	number := func(n uint64) string { return profile.Number(n, unit) }
	column := unit
	if unit == "ns" {
		column = "time"
	}
	digits, module := len(column), len("module")
	for _, f := range fns {
		digits = max(digits, printable.Width(number(s.Total[f])), printable.Width(number(s.Self[f])))
		module = max(module, printable.Width(printable.String(p.Modules[p.Funcs[f].Module].Base())))
	}
	module = min(module, 28)
	if o.Width > 0 {
		module = max(min(module, o.Width/5), len("module"))
	}
	before := func(cols ...string) string {
		return fmt.Sprintf("%7s %*s  %7s %*s  %s  ", cols[0], digits, cols[1], cols[2], digits, cols[3], printable.Pad(printable.Clip(cols[4], module), module))
	}
	// In a narrow terminal, names matter more than modules, and shares more than numbers.
	narrow := func() bool { return o.Width > 0 && o.Width-printable.Width(before("", "", "", "", "")) < leastName }
	if narrow() {
		before = func(cols ...string) string {
			return fmt.Sprintf("%7s %*s  %7s %*s  ", cols[0], digits, cols[1], cols[2], digits, cols[3])
		}
	}
	if narrow() {
		before = func(cols ...string) string { return fmt.Sprintf("%7s %7s  ", cols[0], cols[2]) }
	}
	line := func(cols ...string) {
		b := before(cols...)
		if o.Width > 0 {
			cols[5] = fit(cols[5], max(o.Width-printable.Width(b), 1))
		}
		fmt.Fprintln(bw, printable.Clip(b+cols[5], o.Width))
	}
	line("self", column, "total", column, "module", "function")
	for _, f := range fns {
		fn := &p.Funcs[f]
		line(profile.Percent(s.Self[f], all), number(s.Self[f]), profile.Percent(s.Total[f], all), number(s.Total[f]),
			printable.String(p.Modules[fn.Module].Base()), printable.String(fn.Name))
	}
	if len(left) > 0 {
		var rest uint64
		for _, f := range left {
			rest += s.Self[f]
		}
		fmt.Fprintf(bw, "%7s %*s  in %s\n", profile.Percent(rest, all), digits, number(rest), profile.Quantity(uint64(len(left)), "more functions"))
	}
	return bw.Flush()
}
