package browse

import (
	"cmp"
	"regexp"
	"slices"

	"github.com/unspool/unspool/profile"
)

// The views of a browser.
const (
	treeView = iota
	topView
	callersView
	numViews
)

var viewNames = [numViews]string{"tree", "top", "callers"}

// A browser is a profile as a person walks through it: trees that grow where he opens them. It knows nothing of terminals.
type browser struct {
	p      *profile.Profile
	by     profile.Weight
	all    uint64 // weight of the profile
	weight uint64 // of what the filter leaves

	kept    []uint32 // stacks that the filter leaves, by index
	sums    profile.Sums
	byTotal bool // top and callers are ordered by total, not self
	marks   []string

	view  int
	roots [numViews][]*branch
	rows  [numViews][]*branch // that can be seen, in order
	sel   [numViews]int
	off   [numViews]int

	filter, search *regexp.Regexp
}

// fnThread is the function of a thread's branch. Those below it stand for unknown callers: fnThread-1-i is named browser.marks[i].
const fnThread = -1

// A branch is a function in a context: what lies beyond it is found out when somebody looks.
type branch struct {
	fn          int32
	comm        string // of a thread
	inward      bool   // beyond it are callees, else callers
	inlined     bool   // wherever it was seen
	total, self uint64
	level       int // of indentation
	parent      *branch

	refs []ref // the stacks in it; of a function in the list of all, nil until it is opened
	kids []*branch
	open bool
}

// A ref is a place in a stack.
type ref struct {
	stack uint32
	pos   int32 // of the branch's frame in Stack.Frames; len(Frames) outside of all
}

func newBrowser(p *profile.Profile, by profile.Weight) *browser {
	b := &browser{p: p, by: by, all: by.All(&p.Totals)}
	b.setFilter(nil)
	return b
}

func (b *browser) weigh(s *profile.Stack) uint64 { return b.by.Of(s) }

// setFilter leaves only stacks with a function, or of a thread, that matches.
func (b *browser) setFilter(re *regexp.Regexp) {
	b.filter = re
	match := make([]bool, len(b.p.Funcs))
	for i := range match {
		match[i] = re != nil && re.MatchString(b.p.Funcs[i].Name)
	}
	comms := map[string]bool{}
	b.kept, b.weight = b.kept[:0], 0
	b.sums = b.p.Sums(b.by, func(i int) bool {
		s := &b.p.Stacks[i]
		if re != nil && !slices.ContainsFunc(s.Frames, func(f uint32) bool { return match[b.p.Locs[f].Func] }) {
			yes, ok := comms[s.Comm]
			if !ok {
				yes = re.MatchString(s.Comm)
				comms[s.Comm] = yes
			}
			if !yes {
				return false
			}
		}
		b.kept = append(b.kept, uint32(i))
		b.weight += b.weigh(s)
		return true
	})
	b.roots = [numViews][]*branch{}
	b.sel, b.off = [numViews]int{}, [numViews]int{}
	b.show(b.view)
}

// show switches to a view. What is selected is looked for in it.
func (b *browser) show(view int) {
	fn := int32(fnThread)
	if r := b.selected(); r != nil {
		fn = r.fn
	}
	was := b.view
	b.view = view
	if b.roots[view] == nil {
		if view == treeView {
			b.roots[view] = b.threads()
		} else {
			b.roots[view] = b.functions(view == callersView)
		}
		b.flatten()
		if view == treeView && len(b.rows[view]) == 1 {
			b.toggle(true)
		}
	}
	if was != view && view != treeView && fn >= 0 {
		b.choose(func(r *branch) bool { return r.parent == nil && r.fn == fn })
		if view == callersView {
			b.toggle(true)
		}
	}
}

// choose selects the first row that is the one.
func (b *browser) choose(is func(*branch) bool) bool {
	i := slices.IndexFunc(b.rows[b.view], is)
	if i >= 0 {
		b.sel[b.view] = i
	}
	return i >= 0
}

func (b *browser) selected() *branch {
	if i := b.sel[b.view]; i < len(b.rows[b.view]) {
		return b.rows[b.view][i]
	}
	return nil
}

// threads are the roots of the tree.
func (b *browser) threads() []*branch {
	byComm := map[string]*branch{}
	out := []*branch{}
	for _, i := range b.kept {
		s := &b.p.Stacks[i]
		t := byComm[s.Comm]
		if t == nil {
			t = &branch{fn: fnThread, comm: cmp.Or(s.Comm, profile.Unknown), inward: true}
			byComm[s.Comm] = t
			out = append(out, t)
		}
		t.total += b.weigh(s)
		t.refs = append(t.refs, ref{i, int32(len(s.Frames))})
	}
	b.sort(out)
	return out
}

// functions are the rows of a table, or the roots of trees of callers.
func (b *browser) functions(callers bool) []*branch {
	out := []*branch{}
	for fn, total := range b.sums.Total {
		if total > 0 {
			r := &branch{fn: int32(fn), total: total, self: b.sums.Self[fn]}
			if !callers {
				r.kids = []*branch{}
			}
			out = append(out, r)
		}
	}
	b.sort(out)
	if !b.byTotal {
		slices.SortStableFunc(out, func(x, y *branch) int { return cmp.Compare(y.self, x.self) })
	}
	return out
}

// order changes what tables are ordered by.
func (b *browser) order() {
	b.byTotal = !b.byTotal
	fn := int32(fnThread)
	if r := b.selected(); r != nil {
		fn = r.fn
	}
	b.roots[topView], b.roots[callersView] = nil, nil
	if b.view != treeView {
		b.show(b.view)
		b.choose(func(r *branch) bool { return r.parent == nil && r.fn == fn })
	}
}

func (b *browser) sort(list []*branch) {
	slices.SortFunc(list, func(x, y *branch) int {
		return cmp.Or(cmp.Compare(y.total, x.total), cmp.Compare(b.name(x), b.name(y)), cmp.Compare(x.fn, y.fn))
	})
}

// name is what a branch is called.
func (b *browser) name(r *branch) string {
	switch {
	case r.fn == fnThread:
		return r.comm
	case r.fn < fnThread:
		return b.marks[fnThread-1-r.fn]
	}
	return b.p.Funcs[r.fn].Name
}

// grow finds out what lies beyond a branch.
func (b *browser) grow(r *branch) {
	if r.kids != nil {
		return
	}
	if r.refs == nil {
		r.refs = b.places(r.fn)
	}
	byFn := map[int32]*branch{}
	r.kids = []*branch{}
	left := uint64(0)
	for _, at := range r.refs {
		s := &b.p.Stacks[at.stack]
		n := b.weigh(s)
		fn, to, loc := b.next(r, s, at.pos)
		if loc < 0 && fn == fnThread {
			left += n
			continue
		}
		k := byFn[fn]
		if k == nil {
			k = &branch{fn: fn, inward: r.inward, inlined: true, parent: r, level: r.level + 1}
			byFn[fn] = k
			r.kids = append(r.kids, k)
		}
		k.total += n
		k.inlined = k.inlined && loc >= 0 && b.p.Locs[loc].Inlined
		k.refs = append(k.refs, ref{at.stack, to})
	}
	if r.inward {
		r.self = left
		for _, k := range r.kids {
			k.self = b.leaves(k)
		}
	}
	b.sort(r.kids)
	// A function that is all that another calls stays on its level.
	if len(r.kids) == 1 && r.kids[0].total == r.total && r.level > 0 {
		r.kids[0].level = r.level
	}
}

// leaves adds up the stacks that end at a branch.
func (b *browser) leaves(r *branch) (n uint64) {
	for _, at := range r.refs {
		if s := &b.p.Stacks[at.stack]; at.pos == 0 || len(s.Frames) == 0 {
			n += b.weigh(s)
		}
	}
	return n
}

// next returns what lies beyond a place in a stack: a function, where, and the location; fnThread and -1 for nothing.
func (b *browser) next(r *branch, s *profile.Stack, pos int32) (fn, to, loc int32) {
	if r.fn == fnThread && !b.p.Totals.NoStops {
		if m := profile.Mark(s.Stop); m != "" {
			i := slices.Index(b.marks, m)
			if i < 0 {
				i, b.marks = len(b.marks), append(b.marks, m)
			}
			return fnThread - 1 - int32(i), pos, -1
		}
	}
	step := int32(1)
	if r.inward {
		step = -1
	}
	to = pos + step
	// Direct recursion is one caller.
	for !r.inward && int(to) < len(s.Frames) && b.p.Locs[s.Frames[to]].Func == r.fn {
		to++
	}
	if to < 0 || int(to) >= len(s.Frames) {
		return fnThread, to, -1
	}
	l := int32(s.Frames[to])
	return b.p.Locs[l].Func, to, l
}

// places returns the innermost places of a function.
func (b *browser) places(fn int32) []ref {
	var out []ref
	for _, i := range b.kept {
		if k := slices.IndexFunc(b.p.Stacks[i].Frames, func(f uint32) bool { return b.p.Locs[f].Func == fn }); k >= 0 {
			out = append(out, ref{i, int32(k)})
		}
	}
	return out
}

// leaf says that nothing lies beyond a branch, as far as is known.
func (r *branch) leaf() bool {
	return r.kids != nil && len(r.kids) == 0 || r.inward && r.fn != fnThread && r.self == r.total
}

// maxChain is how many branches are opened at once.
const maxChain = 1000

// toggle opens the selected branch, and those after it that have no choice, or closes it.
func (b *browser) toggle(open bool) {
	r := b.selected()
	if r == nil || r.leaf() {
		return
	}
	for at, n := r, 0; n < maxChain; n++ {
		b.grow(at)
		at.open = open
		if !open || len(at.kids) != 1 {
			break
		}
		at = at.kids[0]
	}
	b.flatten()
}

// out closes the selected branch, or goes to the one that it is in.
func (b *browser) out() {
	r := b.selected()
	switch {
	case r == nil:
	case r.open:
		r.open = false
		b.flatten()
	case r.parent != nil:
		b.choose(func(x *branch) bool { return x == r.parent })
	}
}

// flatten lists the rows that can be seen.
func (b *browser) flatten() {
	rows := b.rows[b.view][:0]
	todo := slices.Clone(b.roots[b.view])
	slices.Reverse(todo)
	for len(todo) > 0 {
		r := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		rows = append(rows, r)
		if r.open {
			for _, k := range slices.Backward(r.kids) {
				todo = append(todo, k)
			}
		}
	}
	b.rows[b.view] = rows
	b.sel[b.view] = max(0, min(b.sel[b.view], len(rows)-1))
}

// move selects the row so many further.
func (b *browser) move(by int) {
	b.sel[b.view] = max(0, min(b.sel[b.view]+by, len(b.rows[b.view])-1))
}

// again selects the next row that the search matches, or the one before. Where none can be seen in the tree, it is opened along
// the heaviest stack that has one. It returns false if there is none at all.
func (b *browser) again(step int) bool {
	if b.search == nil {
		return false
	}
	rows, sel := b.rows[b.view], b.sel[b.view]
	for i := 1; i <= len(rows); i++ {
		k := ((sel+step*i)%len(rows) + len(rows)) % len(rows)
		if b.search.MatchString(b.name(rows[k])) {
			b.sel[b.view] = k
			return k != sel || b.view != treeView || b.dig()
		}
	}
	return b.view == treeView && b.dig()
}

// dig opens the tree along the heaviest stack with a function that the search matches.
func (b *browser) dig() bool {
	match := make([]bool, len(b.p.Funcs))
	for i := range match {
		match[i] = b.search.MatchString(b.p.Funcs[i].Name)
	}
	best, weight, pos := uint32(0), uint64(0), 0
	for _, i := range b.kept {
		s := &b.p.Stacks[i]
		if n := b.weigh(s); n > weight {
			for k := len(s.Frames) - 1; k >= 0; k-- {
				if match[b.p.Locs[s.Frames[k]].Func] {
					best, weight, pos = i, n, k
					break
				}
			}
		}
	}
	if weight == 0 {
		return false
	}
	in := func(list []*branch) *branch {
		for _, r := range list {
			if i := slices.IndexFunc(r.refs, func(at ref) bool { return at.stack == best }); i >= 0 {
				return r
			}
		}
		return nil
	}
	at := in(b.roots[treeView])
	for at != nil {
		if i := slices.IndexFunc(at.refs, func(x ref) bool { return x.stack == best }); at.fn >= 0 && at.refs[i].pos == int32(pos) {
			break
		}
		b.grow(at)
		at.open = true
		at = in(at.kids)
	}
	b.flatten()
	return at != nil && b.choose(func(r *branch) bool { return r == at })
}
