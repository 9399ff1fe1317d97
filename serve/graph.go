package serve

import (
	"cmp"
	"context"
	"math"
	"slices"
)

// maxGraph bounds the nodes of an answer; what would be more is cut at a larger weight.
const maxGraph = 40_000

// A graphQuery says which graph is wanted and how wide it is drawn.
type graphQuery struct {
	view  string  // "calls", all from the outermost function inward; "inverted", all from the innermost outward; "callers", "callees" of fn
	fn    int32   // label
	path  []int32 // labels from the root to the node that fills the width
	width int     // in pixels
	heavy bool    // the heaviest first, not by name
	side  int     // whose weights are widths
}

// A graph is the answer. Numbers are in flat lists so that large graphs stay small.
type graph struct {
	Nodes  []uint64    `json:"nodes"`  // in preorder, nodeSize numbers each
	Labels []graphName `json:"labels"` // those that nodes have
	Path   int         `json:"path"`   // as many nodes of the path were found; the first nodes are these
	Hidden int         `json:"hidden"` // nodes that were too small
}

// nodeSize is the count of numbers of a node: depth, index in Labels, total, self, the baseline's total, marks. Where the label
// is the first, the node stands for callees that are too small to be drawn.
const nodeSize = 6

type graphName struct {
	ID     int32  `json:"id"`
	Text   string `json:"text"`
	Module int32  `json:"module"`
	Kind   kind   `json:"kind"`
	Note   string `json:"note,omitempty"`
}

// A part is a node of the tree with the weight that it brings into a node of a graph.
type part struct {
	node int32
	w    [2]uint64
}

// A group is a node of a graph: what is merged in it.
type group struct {
	label int32
	parts []part
	w     [2]uint64
}

// A grapher makes a graph from sums over a tree.
type grapher struct {
	w      *weights
	q      *graphQuery
	up     bool // from callees to callers
	ctx    context.Context
	cut    uint64
	hidden int
	out    []uint64
	ids    []int32 // of labels, in graph.Labels; 0: not there
	names  []int32

	slot []int32 // scratch of groups: by label, 1 + the group
	seen []int32 // scratch of merge: by node, 1 + the part
}

// newGraph computes a graph. It returns nil if ctx ends before.
func newGraph(ctx context.Context, w *weights, q *graphQuery) *graph {
	g := &grapher{w: w, q: q, ctx: ctx, up: q.view == "inverted" || q.view == "callers", slot: make([]int32, len(w.t.labels))}
	if g.up {
		g.seen = make([]int32, len(w.t.label))
	}
	root := g.root()
	path := []group{root}
	for _, label := range q.path {
		kids := g.kids(&path[len(path)-1])
		i := slices.IndexFunc(kids, func(k group) bool { return k.label == label })
		if i < 0 {
			break
		}
		path = append(path, kids[i])
	}
	top := &path[len(path)-1]
	for g.cut = max(1, uint64(math.Ceil(float64(top.w[q.side])/float64(4*max(q.width, 1))))); ; g.cut *= 2 {
		g.out, g.hidden, g.names, g.ids = nil, 0, nil, make([]int32, len(w.t.labels))
		for i := range path[:len(path)-1] {
			g.node(&path[i], i)
		}
		if again := *top; g.emit(&again, len(path)-1) { // it takes the parts away
			break
		}
		if ctx.Err() != nil {
			return nil
		}
	}
	out := &graph{Nodes: g.out, Path: len(path) - 1, Hidden: g.hidden, Labels: []graphName{{ID: -1, Module: -1, Kind: kindGroup}}}
	for _, l := range g.names {
		x := &w.t.labels[l]
		out.Labels = append(out.Labels, graphName{l, x.text, x.module, x.kind, x.note})
	}
	return out
}

// root is the whole graph: all, or all calls of a function.
func (g *grapher) root() group {
	w, t := g.w, g.w.t
	switch g.q.view {
	case "inverted":
		r := group{label: t.label[0]}
		for n := range t.label {
			if s, b := w.self[0][n], at(w.self[1], n); n > 0 && s+b > 0 {
				r.parts = append(r.parts, part{int32(n), [2]uint64{s, b}})
			}
		}
		return r.sum()
	case "callers", "callees":
		// Callees are those below the outermost calls, callers those around the innermost, so that each stack counts once.
		r := group{label: g.q.fn}
		inner := map[int32]int{} // by node: its part
		for n := range t.label {
			if t.label[n] != g.q.fn || g.q.view == "callees" && t.marks[n]&markInner != 0 {
				continue
			}
			x := part{int32(n), [2]uint64{w.total[0][n], at(w.total[1], n)}}
			inner[int32(n)] = len(r.parts)
			r.parts = append(r.parts, x)
			if t.marks[n]&markInner == 0 {
				continue
			}
			up := t.parent[n]
			for t.label[up] != g.q.fn {
				up = t.parent[up]
			}
			outer := &r.parts[inner[up]]
			outer.w[0] -= x.w[0]
			outer.w[1] -= x.w[1]
		}
		r.parts = slices.DeleteFunc(r.parts, func(p part) bool { return p.w == [2]uint64{} })
		return r.sum()
	}
	return group{t.label[0], []part{{0, w.all}}, w.all}
}

func at(s []uint64, i int) uint64 {
	if s == nil {
		return 0
	}
	return s[i]
}

func (r group) sum() group {
	for i := range r.parts {
		r.w[0] += r.parts[i].w[0]
		r.w[1] += r.parts[i].w[1]
	}
	return r
}

// kids returns what a node leads to, in no order.
func (g *grapher) kids(of *group) []group {
	w, t := g.w, g.w.t
	var out []group
	add := func(p part) {
		if p.w == [2]uint64{} {
			return
		}
		l := t.label[p.node]
		if g.slot[l] == 0 {
			out = append(out, group{label: l})
			g.slot[l] = int32(len(out))
		}
		k := &out[g.slot[l]-1]
		k.parts = append(k.parts, p)
		k.w[0] += p.w[0]
		k.w[1] += p.w[1]
	}
	whole := g.q.view == "inverted" && of.label == t.label[0]
	for _, p := range of.parts {
		switch {
		case whole:
			add(p)
		case g.up:
			if up := t.parent[p.node]; up != 0 {
				add(part{up, p.w})
			}
		default:
			for c := t.first[p.node]; c != 0; c = t.next[c] {
				add(part{c, [2]uint64{w.total[0][c], at(w.total[1], int(c))}})
			}
		}
	}
	for i := range out {
		g.slot[out[i].label] = 0
		if g.up && !whole {
			g.merge(&out[i])
		}
	}
	return out
}

// merge adds up the parts of the same node.
func (g *grapher) merge(x *group) {
	parts := x.parts[:0]
	for _, p := range x.parts {
		if i := g.seen[p.node]; i != 0 {
			parts[i-1].w[0] += p.w[0]
			parts[i-1].w[1] += p.w[1]
			continue
		}
		parts = append(parts, p)
		g.seen[p.node] = int32(len(parts))
	}
	for _, p := range parts {
		g.seen[p.node] = 0
	}
	x.parts = parts
}

// node writes one node.
func (g *grapher) node(x *group, depth int) {
	if g.ids[x.label] == 0 {
		g.names = append(g.names, x.label)
		g.ids[x.label] = int32(len(g.names))
	}
	var self uint64
	var marks uint16
	for _, p := range x.parts {
		if g.up {
			if x.label != g.w.t.label[0] && g.w.t.parent[p.node] == 0 {
				self += p.w[g.q.side] // the stack has no more callers
			}
		} else {
			self += g.w.self[g.q.side][p.node]
		}
		marks |= g.w.t.marks[p.node]
	}
	g.out = append(g.out, uint64(depth), uint64(g.ids[x.label]), x.w[g.q.side], self, x.w[1-g.q.side], uint64(marks&^markInner))
}

// emit writes a node and what it leads to. It returns false when there are too many.
func (g *grapher) emit(x *group, depth int) bool {
	g.node(x, depth)
	if len(g.out) > maxGraph*nodeSize || g.ctx.Err() != nil {
		return false
	}
	kids := g.kids(x)
	x.parts = nil
	var rest [2]uint64
	small := 0
	kids = slices.DeleteFunc(kids, func(k group) bool {
		if k.w[g.q.side] >= g.cut {
			return false
		}
		rest[0] += k.w[0]
		rest[1] += k.w[1]
		small++
		return true
	})
	labels := g.w.t.labels
	slices.SortFunc(kids, func(a, b group) int {
		c := 0
		if g.q.heavy {
			c = cmp.Compare(b.w[g.q.side], a.w[g.q.side])
		}
		return cmp.Or(c, cmp.Compare(labels[a.label].text, labels[b.label].text), cmp.Compare(a.label, b.label))
	})
	for i := range kids {
		if !g.emit(&kids[i], depth+1) {
			return false
		}
	}
	g.hidden += small
	if rest[g.q.side] > 0 {
		g.out = append(g.out, uint64(depth+1), 0, rest[g.q.side], 0, rest[1-g.q.side], 0)
	}
	return true
}
