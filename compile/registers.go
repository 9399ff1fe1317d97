package compile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// registersOf reads names of registers of a machine. The stack pointer and the return address are among them.
func registersOf(m *arch.Machine, names []string) (set uint64, err error) {
	for _, name := range names {
		r, ok := m.RegByName(name)
		slot := arch.NoSlot
		if ok {
			slot = m.Slot(r)
		}
		if slot == arch.NoSlot {
			return 0, fmt.Errorf("--registers: no register of %s that frames recover is called %q", m.Name, name)
		}
		set |= 1 << slot
	}
	for _, r := range []arch.Reg{m.SP, m.RA} {
		if set>>m.Slot(r)&1 == 0 {
			return 0, fmt.Errorf("--registers: without %s, there is no way to the caller", m.RegName(r))
		}
	}
	return set, nil
}

// only returns t with rules for some registers, given by their slots. All others are lost in callers. A rule that needs one of the others is an
// error if calls preserve that register: it would be right in the first frame only. If calls do not, it is right in the first frame only, whatever is kept.
func only(t *rows.Table, keep uint64) (*rows.Table, error) {
	m := t.Machine
	b := rows.NewBuilder(m)
	ids := make([]rows.SetID, len(t.Sets))
	for i, s := range t.Sets {
		if s.Gap() {
			ids[i] = rows.GapID
			continue
		}
		rules := slices.DeleteFunc(slices.Clone(s.Rules), func(r rows.Rule) bool {
			slot := m.Slot(r.Of)
			return r.Of != s.RA && (slot == arch.NoSlot || keep>>slot&1 == 0)
		})
		lost := s.Kept(m) &^ keep
		if s.Outermost() {
			lost = 0
		}
		for reg := range m.Regs() {
			if slot := m.Slot(reg); slot != arch.NoSlot && reg != s.RA && lost>>slot&1 != 0 {
				rules = append(rules, rows.Rule{Of: reg, Kind: rows.Undefined})
			}
		}
		slices.SortFunc(rules, func(a, b rows.Rule) int { return cmp.Compare(a.Of, b.Of) })
		s.Rules = rules
		for _, r := range needs(&s) {
			if slot := m.Slot(r); slot != arch.NoSlot && m.SavedSlots()&^keep>>slot&1 != 0 {
				return nil, fmt.Errorf("--registers lacks %s, which is needed at %#x: %s", m.RegName(r), first(t, rows.SetID(i)), t.Sets[i].Text(m))
			}
		}
		ids[i] = b.Intern(s)
	}
	if len(t.Rows) == 0 {
		return t, nil
	}
	b.Begin(t.Rows[0].Lo, t.Rows[len(t.Rows)-1].Lo)
	for _, r := range t.Rows[:len(t.Rows)-1] {
		b.Row(r.Lo, ids[r.Set])
	}
	return rows.Build(b), nil
}

// first is the first address of a set.
func first(t *rows.Table, id rows.SetID) arch.Vaddr {
	i := slices.IndexFunc(t.Rows, func(r rows.Row) bool { return r.Set == id })
	return t.Rows[max(i, 0)].Lo
}

// needs returns the registers that a set's rules read.
func needs(s *rows.Set) (out []arch.Reg) {
	expr := func(e string) {
		for at := 0; at < len(e); {
			op, err := rows.DecodeOp(e, at)
			if err != nil {
				return
			}
			if op.Code >= rows.DW_OP_breg0 && op.Code <= rows.DW_OP_breg31 || op.Code == rows.DW_OP_bregx {
				out = append(out, op.Reg)
			}
			at = op.Next
		}
	}
	switch s.CFA.Kind {
	case rows.CFAReg, rows.CFARegDeref, rows.CFAPLT:
		out = append(out, s.CFA.Reg)
	case rows.CFAExpr:
		expr(s.CFA.Expr)
	}
	for _, r := range s.Rules {
		switch r.Kind {
		case rows.Register, rows.RegOffset, rows.RegDeref:
			out = append(out, r.Reg)
		case rows.Expr, rows.ValExpr:
			expr(r.Expr)
		}
	}
	return out
}
