package native

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A body is the code of wide rules behind their CFA.
type body struct {
	start, inFrame label
	rules          rows.Set
}

// bodyOf returns the body of a rule: what it shares with the rules that differ in the CFA only.
func (g *generator) bodyOf(s *rows.Set) *body {
	rest := *s
	rest.CFA = rows.CFA{Kind: rows.CFAReg}
	k := rest.Text(g.mach)
	b, ok := g.bodies[k]
	if !ok {
		b = &body{g.m.Label(), g.m.Label(), rest}
		g.bodies[k] = b
		g.bodyOrder = append(g.bodyOrder, b)
	}
	return b
}

// end returns the code in which rules of a kind end, which is written later.
func (g *generator) end(k wideKey) label {
	if g.wides[k] == 0 {
		g.wides[k] = g.m.Label()
		g.wideOrder = append(g.wideOrder, k)
	}
	return g.wides[k]
}

// A plan is what the rules of a body come to, as far as it is known before the code runs.
type plan struct {
	forget uint64      // slots whose location in this frame says nothing of the caller's
	values uint64      // slots that get a value
	inMem  uint64      // slots that were saved
	later  []rows.Rule // neither read memory nor fail
	copies []result
}

func (g *generator) planOf(s *rows.Set) (p plan) {
	m := g.mach
	for i, r := range s.Rules {
		slot := m.Slot(r.Of)
		if slot == arch.NoSlot || r.Of == s.RA && !m.RAInReg {
			continue
		}
		from := slot
		if r.Kind == rows.Register {
			if from = m.Slot(r.Reg); from == arch.NoSlot {
				r.Kind = rows.Undefined
			}
		}
		if r.Kind == rows.Offset || r.Kind == rows.ValOffset {
			p.later = append(p.later, r)
		}
		switch r.Kind {
		case rows.Offset, rows.RegDeref, rows.Expr:
			p.inMem |= 1 << slot
			continue
		case rows.SameValue, rows.Register:
			p.copies = append(p.copies, result{slot, from, 8 * int32(i), 0})
		case rows.ValOffset, rows.RegOffset, rows.ValExpr:
			p.values |= 1 << slot
		}
		p.forget |= 1 << slot
	}
	return p
}

// sharing returns the result of rule i of s, and of the rules behind it that are relative to the same register: that is
// read once. Where others may be at fault after them, the order is kept.
func (g *generator) sharing(s *rows.Set, i int, raLast bool) []result {
	m := g.mach
	r := &s.Rules[i]
	near := func(o *rows.Rule) bool {
		return (o.Kind == rows.RegOffset || o.Kind == rows.RegDeref) && o.Reg == r.Reg && o.Off == int64(int32(o.Off))
	}
	out := []result{{m.Slot(r.Of), arch.NoSlot, 8 * int32(i), 0}}
	if !near(r) {
		return out
	}
	out[0].off = int32(r.Off)
	for k := i + 1; raLast && k < len(s.Rules); k++ {
		if o := &s.Rules[k]; near(o) && m.Slot(o.Of) != arch.NoSlot && o.Of != s.RA {
			out = append(out, result{m.Slot(o.Of), arch.NoSlot, 8 * int32(i), int32(o.Off)})
		}
	}
	return out
}

// A result is what a rule comes to: the slot gets what waits at an offset among the results, plus off; of a copy, with the location
// of from.
type result struct {
	slot, from arch.Slot
	at         int32
	off        int32
}

// A wideKey is how a wide rule ends.
type wideKey struct {
	copies  bool      // some slots get the locations of others
	signal  bool      // all registers are kept
	partial bool      // none is
	ra      arch.Slot // gets the return address; NoSlot: none
	sp      bool      // the stack pointer is the CFA
}
