package report

import (
	"cmp"
	"slices"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// A node is a function in a context: below it in the slice of all nodes are those that it leads to.
// Node 0 is the root. Parents come before children.
type node struct {
	fn     int32 // index in a list of functions; -1 for the root
	parent int32
	hows   uint16 // bit set of profile.How
	called bool   // at least once, and not inlined
	total  uint64
	self   uint64
}

// A tree merges lists of functions that begin alike.
type tree struct {
	nodes []node
	child map[uint64]int32 // parent<<32 | function
}

func newTree() *tree {
	return &tree{nodes: []node{{fn: -1, parent: -1}}, child: map[uint64]int32{}}
}

// down returns the child of node at for a location's function, after adding n to it.
func (t *tree) down(at int32, l *profile.Loc, n uint64) int32 {
	c := t.add(at, l.Func, n)
	t.nodes[c].hows |= 1 << l.How
	t.nodes[c].called = t.nodes[c].called || !l.Inlined
	return c
}

func (t *tree) add(at, fn int32, n uint64) int32 {
	k := uint64(at)<<32 | uint64(uint32(fn))
	c, ok := t.child[k]
	if !ok {
		c = int32(len(t.nodes))
		t.child[k] = c
		t.nodes = append(t.nodes, node{fn: fn, parent: at})
	}
	t.nodes[c].total += n
	return c
}

// label is the name of a node's function, fit for a line of text.
func (t *tree) label(p *profile.Profile, at int32) string {
	n := &t.nodes[at]
	s := printable.String(p.Funcs[n.fn].Name)
	if !n.called {
		s += " (inlined)"
	}
	return s
}

// order returns the children of every node, sorted by less.
func (t *tree) order(less func(a, b *node) int) [][]int32 {
	kids := make([][]int32, len(t.nodes))
	for i := 1; i < len(t.nodes); i++ {
		kids[t.nodes[i].parent] = append(kids[t.nodes[i].parent], int32(i))
	}
	for _, k := range kids {
		slices.SortFunc(k, func(a, b int32) int { return less(&t.nodes[a], &t.nodes[b]) })
	}
	return kids
}

// heavier orders by falling total, then by name.
func heavier(p *profile.Profile) func(a, b *node) int {
	return func(a, b *node) int {
		return cmp.Or(cmp.Compare(b.total, a.total), compareFuncs(p, a.fn, b.fn))
	}
}

func compareFuncs(p *profile.Profile, a, b int32) int {
	x, y := &p.Funcs[a], &p.Funcs[b]
	return cmp.Or(cmp.Compare(x.Name, y.Name), cmp.Compare(p.Modules[x.Module].Path, p.Modules[y.Module].Path), cmp.Compare(a, b))
}
