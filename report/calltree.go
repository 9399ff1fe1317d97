package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// Tree writes the call tree as text: threads by name, what they called, and so on, each with the part of all that it is in
// and the part of its own, the heaviest first. For a stack that is not whole, "[truncated]" or "[broken]" stands for the
// callers that are not known. A function that is all that another calls stays on its level; what is less than
// Options.MinShare (by default half a percent) is taken together.
func Tree(w io.Writer, p *profile.Profile, o Options) error {
	bw := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(bw, "%s\n\n", p.Headline())
	p, t := callTree(p, &o)
	kids := t.order(heavier(p))
	all := t.nodes[0].total
	least := uint64(minShare(o.MinShare, 0.005) * float64(all))
	line := func(total, self, rest string) {
		fmt.Fprintln(bw, printable.Clip(fmt.Sprintf("%7s %7s  %s", total, self, rest), o.Width))
	}
	row := func(at int32, indent string) {
		n := &t.nodes[at]
		line(profile.Percent(n.total, all), profile.Percent(n.self, all), indent+t.label(p, at))
	}
	var below func(at int32, indent string)
	below = func(at int32, indent string) {
		for at > 0 && t.nodes[at].parent > 0 && len(kids[at]) == 1 && t.nodes[kids[at][0]].total == t.nodes[at].total {
			at = kids[at][0]
			row(at, indent)
		}
		k := kids[at]
		shown := 0
		for shown < len(k) && t.nodes[k[shown]].total >= max(least, 1) {
			shown++
		}
		rest := uint64(0)
		for _, c := range k[shown:] {
			rest += t.nodes[c].total
		}
		for i, c := range k[:shown] {
			branch, next := "├─ ", "│  "
			if i == shown-1 && rest == 0 {
				branch, next = "└─ ", "   "
			}
			if at == 0 {
				branch, next = "", ""
			}
			row(c, indent+branch)
			below(c, indent+next)
		}
		if rest > 0 {
			branch := "└─ "
			if at == 0 {
				branch = ""
			}
			line(profile.Percent(rest, all), "", fmt.Sprintf("%s%s%s more", indent, branch, profile.Comma(uint64(len(k)-shown))))
		}
	}
	line("total", "self", "function")
	below(0, "")
	return bw.Flush()
}

// callTree merges all stacks, from the outside in. Threads and marks are functions in it, which the profile that it returns
// has besides those of p.
func callTree(p *profile.Profile, o *Options) (*profile.Profile, *tree) {
	q := *p
	q.Funcs, q.Modules = slices.Clone(p.Funcs), append(slices.Clone(p.Modules), profile.Module{})
	labels := map[string]int32{}
	label := func(s string) int32 {
		f, ok := labels[s]
		if !ok {
			f = int32(len(q.Funcs))
			labels[s] = f
			q.Funcs = append(q.Funcs, profile.Func{Name: s, Module: int32(len(p.Modules))})
		}
		return f
	}
	t := newTree()
	for i := range p.Stacks {
		s := &p.Stacks[i]
		n := o.weight(s)
		if n == 0 {
			continue
		}
		t.nodes[0].total += n
		comm := s.Comm
		if comm == "" {
			comm = profile.Unknown
		}
		at := t.add(0, label(comm), n)
		t.nodes[at].called = true
		if m := profile.Mark(s.Stop); m != "" && !p.Totals.NoStops {
			at = t.add(at, label(m), n)
			t.nodes[at].called = true
		}
		for _, f := range slices.Backward(s.Frames) {
			at = t.down(at, &p.Locs[f], n)
		}
		t.nodes[at].self += n
	}
	return &q, t
}
