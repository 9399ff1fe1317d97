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

// sums holds each function's own weight and that of all stacks that contain it, once a stack.
type sums struct {
	self, total []uint64
}

func sum(p *profile.Profile, o *Options) sums {
	s := sums{make([]uint64, len(p.Funcs)), make([]uint64, len(p.Funcs))}
	seen := make([]int, len(p.Funcs)) // 1 + the last stack that had the function
	for i := range p.Stacks {
		st := &p.Stacks[i]
		n := o.weight(st)
		for j, f := range st.Frames {
			fn := p.Locs[f].Func
			if j == 0 {
				s.self[fn] += n
			}
			if seen[fn] != i+1 {
				seen[fn] = i + 1
				s.total[fn] += n
			}
		}
	}
	return s
}

// ranked returns the functions in falling order of their own weight or their total, without those of no weight.
func (s *sums) ranked(p *profile.Profile, byTotal bool) []int32 {
	var fns []int32
	for i := range p.Funcs {
		if s.total[i] > 0 {
			fns = append(fns, int32(i))
		}
	}
	slices.SortFunc(fns, func(a, b int32) int {
		if byTotal && s.total[a] != s.total[b] {
			return cmp.Compare(s.total[b], s.total[a])
		}
		return cmp.Or(cmp.Compare(s.self[b], s.self[a]), cmp.Compare(s.total[b], s.total[a]), compareFuncs(p, a, b))
	})
	return fns
}

// Top writes a table of functions: the weight of their own code, that of all stacks which they are in,
// module and name. The name is last so that no line is longer than it has to be.
func Top(w io.Writer, p *profile.Profile, o Options) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(bw, "%s\n\n", headline(p))
	all := o.total(p)
	s := sum(p, &o)
	fns := s.ranked(p, o.Total)
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
		digits = max(digits, printable.Width(number(s.total[f])), printable.Width(number(s.self[f])))
		module = max(module, printable.Width(printable.String(p.Modules[p.Funcs[f].Module].Base())))
	}
	module = min(module, 28)
	if o.Width > 0 {
		module = max(min(module, o.Width/5), len("module"))
	}
	line := func(cols ...string) {
		b := fmt.Sprintf("%7s %*s  %7s %*s  %s  ", cols[0], digits, cols[1], cols[2], digits, cols[3], printable.Pad(printable.Clip(cols[4], module), module))
		if o.Width > 0 {
			cols[5] = Fit(cols[5], max(o.Width-printable.Width(b), 1))
		}
		fmt.Fprintln(bw, printable.Clip(b+cols[5], o.Width))
	}
	line("self", column, "total", column, "module", "function")
	for _, f := range fns {
		fn := &p.Funcs[f]
		line(profile.Percent(s.self[f], all), number(s.self[f]), profile.Percent(s.total[f], all), number(s.total[f]),
			printable.String(p.Modules[fn.Module].Base()), printable.String(fn.Name))
	}
	if len(left) > 0 {
		var rest uint64
		for _, f := range left {
			rest += s.self[f]
		}
		fmt.Fprintf(bw, "%7s %*s  in %s more functions\n", profile.Percent(rest, all), digits, number(rest), profile.Comma(uint64(len(left))))
	}
	return bw.Flush()
}
