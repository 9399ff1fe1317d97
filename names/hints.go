package names

import (
	"cmp"
	"fmt"
	"path"
	"slices"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// maxHints bounds how many modules are said to lack names; minHint is the part of all that one must have, in 1/minHint.
const (
	maxHints = 3
	minHint  = 50
)

// Hints returns at most three lines: each names a module whose nameless functions took much of the time, and the remedy. The time is the
// functions' own; in a profile of waits, it is the time of the innermost function outside of the kernel. p may be nil.
func (n *Namer) Hints(p *profile.Profile, waits bool) []string {
	if p == nil {
		return nil
	}
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
	return n.HintsOf(p.Modules, nameless, total)
}

// HintsOf is Hints without a profile. nameless has the time of nameless functions in each of mods, total the time of all functions, in the
// same unit.
func (n *Namer) HintsOf(mods []profile.Module, nameless []uint64, total uint64) (out []string) {
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
		t, share := n.table(&unwind.Module{Path: m.Path, BuildID: m.Key()}), profile.Percent(nameless[i], total)
		switch base := path.Base(m.Path); {
		case t.Foreign() != "":
			out = append(out, fmt.Sprintf("%s: %s of the time has no names", t.Foreign(), share))
		case t.Replaced():
			out = append(out, fmt.Sprintf("%s has been rebuilt since this recording: %s of the time has no names", base, share))
		case t.Lacks():
			out = append(out, fmt.Sprintf("no symbols for %s (%s): install its -dbgsym package or set DEBUGINFOD_URLS", base, share))
		}
	}
	return out
}
