package native

import (
	"math"

	"github.com/unspool/unspool/arch"
)

// Parts of a compact table that a Page file has, in their order.
const (
	partSpans = iota
	partRegions
	partGranules
	partRows
	partEscDir
	partEscKeys
	partEscRules
	partRules // offsets of the rules' code
	numParts
)

// finder writes the routine find: from an address to the number of its rule.
func (g *generator) finder() {
	g.m.Set(g.find)
	if g.o.Layout == Page {
		g.m.page()
	} else {
		g.tree()
	}
}

// A leaf is a row of a tree: where it starts, and its rule.
type leaf struct {
	lo   uint64
	rule uint32
}

// tree searches by comparisons with numbers in the code, of the address less the first one where that makes the numbers smaller.
func (g *generator) tree() {
	m := g.m
	var rs []leaf
	g.t.Rows(func(lo arch.Vaddr, id uint32, _ bool) bool {
		rs = append(rs, leaf{uint64(lo), id})
		return true
	})
	if len(rs) == 0 {
		g.leaf(0)
		return
	}
	m.address()
	base, last := rs[0].lo, rs[len(rs)-1].lo
	if last-base > math.MaxInt32 {
		if base > 0 {
			rs = append([]leaf{{0, 0}}, rs...)
		}
		g.branch(rs, 0, m.cmp)
		return
	}
	outside := g.m.Label()
	m.sub(base)
	m.cmp(last - base)
	m.atLeast(outside)
	g.branch(rs[:len(rs)-1], base, m.cmp32)
	g.m.Set(outside)
	g.leaf(0)
}

// branch writes the search among rows.
func (g *generator) branch(rs []leaf, base uint64, compare func(uint64)) {
	if len(rs) == 1 {
		g.leaf(rs[0].rule)
		return
	}
	mid := len(rs) / 2
	compare(rs[mid].lo - base)
	if g.o.Layout == Tree && mid == 1 {
		g.m.below(g.numbers[rs[0].rule])
		g.branch(rs[1:], base, compare)
		return
	}
	right := g.m.Label()
	g.m.atLeast(right)
	g.branch(rs[:mid], base, compare)
	g.m.Set(right)
	g.branch(rs[mid:], base, compare)
}

// leaf ends a search.
func (g *generator) leaf(rule uint32) {
	switch {
	case g.o.Layout == Tree:
		g.m.Jmp(g.numbers[rule])
	case rule == 0:
		g.m.Jmp(g.noRule)
	default:
		s := g.t.Set(rule)
		if _, ok := g.m.shape(&s); ok {
			g.m.rule(&s)
		} else {
			g.m.Jmp(g.rules[rule])
		}
	}
}

// outlined writes the leaves of a Tree: each number once.
func (g *generator) outlined() {
	for id, l := range g.numbers {
		g.m.Set(l)
		g.m.number(uint32(id))
	}
}
