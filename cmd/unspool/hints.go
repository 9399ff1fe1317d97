package main

import (
	"cmp"
	"fmt"
	"path"
	"slices"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/unwind"
)

// maxHints bounds how many modules are said to lack names; minHint is the part of all that one must have, in 1/minHint.
const (
	maxHints = 3
	minHint  = 50
)

// hints says on standard error which modules' code took time and has no names, how much, and what can be done.
func (s *session) hints(p *profile.Profile) {
	if p == nil {
		return
	}
	say(s.names.hints(p, s.info.Waits()))
}

// hintsOf is hints of what was streamed.
func (s *session) hintsOf(st *report.Stream) {
	var mods []profile.Module
	var nameless []uint64
	at := map[profile.Module]int{}
	st.Nameless(func(m *profile.Module, weight uint64) {
		i, ok := at[*m]
		if !ok {
			i = len(mods)
			at[*m], mods, nameless = i, append(mods, *m), append(nameless, 0)
		}
		nameless[i] += weight
	})
	total := st.Totals()
	say(s.names.advice(mods, nameless, total.Period))
}

func say(hints []string) {
	for _, h := range hints {
		fmt.Fprintf(stderr, "unspool: %s\n", h)
	}
}

// hints returns a line for each module that took much of the time in functions without names: by its own time, and in a profile of waits by
// that of the innermost function outside of the kernel.
func (n *namer) hints(p *profile.Profile, waits bool) []string {
	nameless := make([]uint64, len(p.Modules))
	total := uint64(0)
	for i := range p.Stacks {
		st := &p.Stacks[i]
		w := st.Period
		if total += w; len(st.Frames) == 0 {
			continue
		}
		at := 0
		for waits && at+1 < len(st.Frames) && p.Modules[p.Locs[st.Frames[at]].Module].Kernel {
			at++
		}
		if l := &p.Locs[st.Frames[at]]; !p.Funcs[l.Func].Named {
			nameless[l.Module] += w
		}
	}
	return n.advice(p.Modules, nameless, total)
}

// advice returns the lines of hints, from what functions without names took in each module.
func (n *namer) advice(mods []profile.Module, nameless []uint64, total uint64) (out []string) {
	var order []int
	for i, w := range nameless {
		if w > 0 && w >= total/minHint {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(nameless[b], nameless[a]), cmp.Compare(mods[a].Path, mods[b].Path))
	})
	for _, i := range order {
		m := &mods[i]
		if m.Kernel || m.Path == "" || len(out) == maxHints {
			continue
		}
		t, share := n.table(&unwind.Module{Path: m.Path, BuildID: m.BuildID}), profile.Percent(nameless[i], total)
		switch base := path.Base(m.Path); {
		case t.Replaced():
			out = append(out, fmt.Sprintf("%s has been rebuilt since this recording: %s of the time has no names", base, share))
		case t.Lacks():
			out = append(out, fmt.Sprintf("no symbols for %s (%s): install its -dbgsym package or set DEBUGINFOD_URLS", base, share))
		}
	}
	return out
}
