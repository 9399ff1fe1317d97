package report

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// Callers writes, for each function that o.Func matches, the tree of its callers: who called it, who
// called them, and in what part of its samples. Direct recursion counts as one caller, and a caller
// that is the only one stays on its callee's level.
func Callers(w io.Writer, p *profile.Profile, o Options) error { return around(w, p, &o, callersOf) }

// Callees writes, for each function that o.Func matches, the tree of its callees. Of a function that is in a stack several times, the
// outermost counts; all else is as for Callers.
func Callees(w io.Writer, p *profile.Profile, o Options) error { return around(w, p, &o, calleesOf) }

// A relation is one of callersOf and calleesOf.
type relation struct {
	one, many string
	path      func(p *profile.Profile, frames []uint32, fn int32) []uint32 // the locations that lead away from fn
}

var (
	callersOf = relation{"caller", "callers", func(p *profile.Profile, frames []uint32, fn int32) []uint32 {
		for i, f := range frames {
			if p.Locs[f].Func == fn {
				return frames[i:]
			}
		}
		return nil
	}}
	calleesOf = relation{"callee", "callees", func(p *profile.Profile, frames []uint32, fn int32) []uint32 {
		for i := len(frames) - 1; i >= 0; i-- {
			if p.Locs[frames[i]].Func == fn {
				out := slices.Clone(frames[:i+1])
				slices.Reverse(out)
				return out
			}
		}
		return nil
	}}
)

// NoFunction is the error of a report about functions that are not there.
func NoFunction(re string) error { return fmt.Errorf("no function matches %q", re) }

func around(w io.Writer, p *profile.Profile, o *Options, r relation) error {
	re, err := regexp.Compile(o.Func)
	if err != nil {
		return err
	}
	bw := bufio.NewWriterSize(w, 1<<16)
	fmt.Fprintf(bw, "%s\n", p.Headline())
	s := p.Sums(o.By, nil)
	shown, limit := 0, o.Limit
	if limit == 0 && o.Func == "" {
		limit = 10
	}
	min := minShare(o.MinShare, 0.005)
	for _, f := range ranked(p, &s, o.Total) {
		if limit > 0 && shown == limit {
			break
		}
		if !re.MatchString(p.Funcs[f].Name) || o.Func == "" && s.Self[f] == 0 {
			continue
		}
		shown++
		r.write(bw, p, o, f, &s, min)
	}
	if shown == 0 && o.Func != "" {
		return NoFunction(o.Func)
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

// tree merges the paths that lead away from fn, each stack once.
func (r *relation) tree(p *profile.Profile, o *Options, fn int32) *tree {
	t := newTree()
	for i := range p.Stacks {
		st := &p.Stacks[i]
		n := o.weight(st)
		path := r.path(p, st.Frames, fn)
		if path == nil {
			continue
		}
		t.nodes[0].total += n
		at, last := int32(0), fn
		for _, f := range path {
			if l := &p.Locs[f]; l.Func != last {
				at, last = t.down(at, l, n), l.Func
			}
		}
		t.nodes[at].self += n
	}
	return t
}

// write writes the tree of one function.
func (r *relation) write(w io.Writer, p *profile.Profile, o *Options, fn int32, s *profile.Sums, least float64) {
	t := r.tree(p, o, fn)
	all := o.total(p)
	f := &p.Funcs[fn]
	fmt.Fprintln(w)
	fmt.Fprintln(w, printable.Clip(fmt.Sprintf("%s  %s (%s, %s of its own)", printable.String(f.Name), profile.Percent(s.Total[fn], all),
		profile.Quantity(s.Total[fn], o.unit(p)), profile.Percent(s.Self[fn], all)), o.Width))
	kids := t.order(heavier(p))
	floor := uint64(least * float64(all))
	var walk func(at int32, indent string)
	walk = func(at int32, indent string) {
		for {
			k := kids[at]
			if len(k) == 1 && t.nodes[k[0]].total == t.nodes[at].total && at != 0 {
				at = k[0]
				fmt.Fprintln(w, printable.Clip(indent+"        "+t.label(p, at), o.Width))
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
			fmt.Fprintln(w, printable.Clip(fmt.Sprintf("%s%s%7s %s", indent, branch, profile.Percent(n.total, all), t.label(p, c)), o.Width))
			walk(c, indent+below)
		}
		if rest > 0 {
			more := profile.Count(uint64(len(k)-shown), "more "+r.one, "more "+r.many)
			fmt.Fprintln(w, printable.Clip(fmt.Sprintf("%s└─%7s in %s", indent, profile.Percent(rest, all), more), o.Width))
		}
	}
	walk(0, "")
}
