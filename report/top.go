package report

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

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

// ranked returns the functions in falling order of their own weight, without those of no weight.
func (s *sums) ranked(p *profile.Profile) []int32 {
	var fns []int32
	for i := range p.Funcs {
		if s.total[i] > 0 {
			fns = append(fns, int32(i))
		}
	}
	slices.SortFunc(fns, func(a, b int32) int {
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
	fns := s.ranked(p)
	var left []int32
	if o.Limit > 0 && len(fns) > o.Limit {
		fns, left = fns[:o.Limit], fns[o.Limit:]
	}
	digits, module := len(o.unit(p)), len("module")
	for _, f := range fns {
		digits = max(digits, len(profile.Comma(s.total[f])))
		module = max(module, width(p.Modules[p.Funcs[f].Module].Base()))
	}
	module = min(module, 28)
	if o.Width > 0 {
		module = max(min(module, o.Width/5), len("module"))
	}
	line := func(cols ...string) {
		b := fmt.Sprintf("%7s %*s  %7s %*s  %s  %s", cols[0], digits, cols[1], cols[2], digits, cols[3],
			pad(clip(cols[4], module), module), cols[5])
		fmt.Fprintln(bw, clip(b, o.Width))
	}
	unit := o.unit(p)
	line("self", unit, "total", unit, "module", "function")
	for _, f := range fns {
		fn := &p.Funcs[f]
		line(profile.Percent(s.self[f], all), profile.Comma(s.self[f]), profile.Percent(s.total[f], all), profile.Comma(s.total[f]),
			printable(p.Modules[fn.Module].Base()), printable(fn.Name))
	}
	if len(left) > 0 {
		var rest uint64
		for _, f := range left {
			rest += s.self[f]
		}
		fmt.Fprintf(bw, "%7s %*s  in %s more functions\n", profile.Percent(rest, all), digits, profile.Comma(rest), profile.Comma(uint64(len(left))))
	}
	return bw.Flush()
}

// Callers writes, for each function that o.Func matches, the tree of its callers: who called it, who
// called them, and in what part of its samples. Direct recursion counts as one caller, and a caller
// that is the only one stays on its callee's level.
func Callers(w io.Writer, p *profile.Profile, o Options) error {
	re, err := regexp.Compile(o.Func)
	if err != nil {
		return err
	}
	bw := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(bw, "%s\n", headline(p))
	s := sum(p, &o)
	shown, limit := 0, o.Limit
	if limit == 0 && o.Func == "" {
		limit = 10
	}
	min := minShare(o.MinShare, 0.005)
	for _, f := range s.ranked(p) {
		if limit > 0 && shown == limit {
			break
		}
		if !re.MatchString(p.Funcs[f].Name) || o.Func == "" && s.self[f] == 0 {
			continue
		}
		shown++
		callers(bw, p, &o, f, &s, min)
	}
	if shown == 0 {
		fmt.Fprintf(bw, "\nno function matches %q\n", o.Func)
	}
	return bw.Flush()
}

func minShare(given, usual float64) float64 {
	switch {
	case given == 0:
		return usual
	case given < 0:
		return 0
	}
	return given
}

// callers writes the callers of one function.
func callers(w io.Writer, p *profile.Profile, o *Options, fn int32, s *sums, least float64) {
	t := newTree()
	for i := range p.Stacks {
		st := &p.Stacks[i]
		n := o.weight(st)
		at, last := int32(-1), fn
		for _, f := range st.Frames {
			l := &p.Locs[f]
			if at < 0 {
				if l.Func == fn {
					at = 0
					t.nodes[0].total += n
				}
				continue
			}
			if l.Func != last {
				at, last = t.down(at, l.Func, l.How, n), l.Func
			}
		}
		if at >= 0 {
			t.nodes[at].self += n // the stack ends here
		}
	}
	all := o.total(p)
	f := &p.Funcs[fn]
	fmt.Fprintln(w)
	fmt.Fprintln(w, clip(fmt.Sprintf("%s  %s (%s %s, %s of its own)", printable(f.Name), profile.Percent(s.total[fn], all),
		profile.Comma(s.total[fn]), o.unit(p), profile.Percent(s.self[fn], all)), o.Width))
	kids := t.order(heavier(p))
	floor := uint64(least * float64(all))
	var walk func(at int32, indent string)
	walk = func(at int32, indent string) {
		for {
			k := kids[at]
			if len(k) == 1 && t.nodes[k[0]].total == t.nodes[at].total && at != 0 {
				at = k[0]
				fmt.Fprintln(w, clip(indent+"        "+printable(p.Funcs[t.nodes[at].fn].Name), o.Width))
				continue
			}
			break
		}
		k := kids[at]
		shown := 0
		for shown < len(k) && t.nodes[k[shown]].total >= floor && t.nodes[k[shown]].total > 0 {
			shown++
		}
		var rest uint64
		for _, c := range k[shown:] {
			rest += t.nodes[c].total
		}
		for i, c := range k[:shown] {
			branch, below := "├─", "│ "
			if i == shown-1 && rest == 0 {
				branch, below = "└─", "  "
			}
			n := &t.nodes[c]
			fmt.Fprintln(w, clip(fmt.Sprintf("%s%s%7s %s", indent, branch, profile.Percent(n.total, all), printable(p.Funcs[n.fn].Name)), o.Width))
			walk(c, indent+below)
		}
		if rest > 0 {
			what := "callers"
			if len(k)-shown == 1 {
				what = what[:len(what)-1]
			}
			fmt.Fprintln(w, clip(fmt.Sprintf("%s└─%7s in %d more %s", indent, profile.Percent(rest, all), len(k)-shown, what), o.Width))
		}
	}
	walk(0, "")
}

// width counts the columns of s.
func width(s string) int { return utf8.RuneCountInString(s) }

func pad(s string, n int) string {
	if k := n - width(s); k > 0 {
		return s + strings.Repeat(" ", k)
	}
	return s
}

// clip cuts s to n columns, or not at all if n is 0.
func clip(s string, n int) string {
	if n <= 0 || width(s) <= n {
		return s
	}
	r := []rune(s)
	return string(r[:n-1]) + "…"
}
