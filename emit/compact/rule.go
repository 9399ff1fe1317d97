package compact

import (
	"encoding/binary"
	"math/bits"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

var le = binary.LittleEndian

// A shape is what the layout of rules takes from a machine.
type shape struct {
	mach  *arch.Machine
	size  int        // bytes of a rule
	mask  int        // of its mask; of a packed rule 2
	run   int        // saves in the run of a packed rule, those before the return address; 0 where rules are not packed
	scale int64      // bytes of a save's unit
	saves []arch.Reg // the callee-saved registers, and the return address
	slots []byte     // theirs
	regs  [arch.NumSlots]arch.Reg
}

const noReg = ^arch.Reg(0)

func shapeOf(m *arch.Machine) shape {
	sh := shape{mach: m, size: 16, scale: 8}
	if m.SaveScale != 0 {
		sh.scale = int64(m.SaveScale)
	}
	if !m.StepKnown {
		return sh
	}
	for i := range sh.regs {
		sh.regs[i] = noReg
	}
	for r := range m.Regs() {
		if slot := m.Slot(r); slot != arch.NoSlot {
			sh.regs[slot] = r
		}
	}
	sh.saves = append(slices.Clone(m.CalleeSaved), m.RA)
	for _, r := range sh.saves {
		sh.slots = append(sh.slots, byte(m.Slot(r)))
	}
	if n := len(sh.saves) - m.Vectors; m.Vectors > 0 && m.Vectors <= maxRun && n <= maxPacked && m.RAInReg {
		sh.run, sh.mask = m.Vectors, 2
		return sh
	}
	for sh.mask = 1; 8*sh.mask < len(sh.saves); sh.mask *= 2 {
	}
	for sh.size < ruleHead+len(sh.saves)+sh.mask {
		sh.size *= 2
	}
	return sh
}

// traits returns those of the machine.
func (sh *shape) traits() (t byte) {
	if sh.mach.RAInReg {
		t |= traitRAInReg
	}
	if sh.mach.BigEndian {
		t |= traitBigEndian
	}
	return t
}

// present returns the mask of a rule: which saves are present.
func (sh *shape) present(rule []byte) (mask uint64) {
	if sh.run > 0 {
		x := le.Uint64(rule[packedSaves:]) >> maskShift
		first := sh.firstRun()
		return x&(1<<first-1) | uint64(rule[packedRun])<<first | x>>first<<(len(sh.saves)-1)
	}
	for i, b := range rule[sh.size-sh.mask : sh.size] {
		mask |= uint64(b) << (8 * i)
	}
	return mask
}

func (sh *shape) setPresent(rule []byte, mask uint64) {
	for i := range sh.mask {
		rule[sh.size-sh.mask+i] = byte(mask >> (8 * i))
	}
}

// parts returns a rule's kind, the slot of its CFA and its flags.
func parts(rule []byte) (kind byte, slot arch.Slot, flags uint16) {
	return rule[ruleCFA] & kindMask, arch.Slot(rule[ruleCFA] >> slotShift), le.Uint16(rule[ruleFlags:])
}

// normal returns s without what Step does not look at: the set that a table holds in its place.
// Gone are the rules of registers without a slot, and those that only repeat the default; of an
// outermost frame all but the CFA and the return address. The rules are appended to buf.
func (sh *shape) normal(s *rows.Set, buf []rows.Rule) rows.Set {
	n := rows.Set{CFA: cleanCFA(s.CFA), RA: s.RA, Flags: s.Flags, Rules: buf[:0]}
	m := sh.mach
	if m.StepKnown && s.Outermost() {
		n.Rules = append(n.Rules, rows.Rule{Of: s.RA, Kind: rows.Undefined})
		return n
	}
	keep := s.Kept(m)
	for _, r := range s.Rules {
		slot := m.Slot(r.Of)
		switch {
		case !m.StepKnown:
		case r.Of == s.RA || r.Of == m.SP:
		case slot == arch.NoSlot,
			r.Kind == rows.SameValue && keep>>slot&1 != 0,
			r.Kind == rows.Undefined && keep>>slot&1 == 0:
			continue
		}
		n.Rules = append(n.Rules, cleanRule(r))
	}
	return n
}

// cleanCFA returns c with the fields that its kind does not use set to zero.
func cleanCFA(c rows.CFA) rows.CFA {
	switch c.Kind {
	case rows.CFANone:
		return rows.CFA{}
	case rows.CFAReg:
		return rows.CFA{Kind: c.Kind, Reg: c.Reg, Off: c.Off}
	case rows.CFAExpr:
		return rows.CFA{Kind: c.Kind, Expr: c.Expr}
	}
	c.Expr = ""
	return c
}

// cleanRule does the same for a register's rule.
func cleanRule(r rows.Rule) rows.Rule {
	switch r.Kind {
	case rows.Undefined, rows.SameValue:
		return rows.Rule{Of: r.Of, Kind: r.Kind}
	case rows.Offset, rows.ValOffset:
		return rows.Rule{Of: r.Of, Kind: r.Kind, Off: r.Off}
	case rows.Register:
		return rows.Rule{Of: r.Of, Kind: r.Kind, Reg: r.Reg}
	case rows.Expr, rows.ValExpr:
		return rows.Rule{Of: r.Of, Kind: r.Kind, Expr: r.Expr}
	}
	r.Expr = ""
	return r
}

// fixed encodes the normal set s into rule, and says whether it fits.
func (sh *shape) fixed(rule []byte, s *rows.Set) bool {
	m := sh.mach
	outermost := s.Outermost()
	flags := uint16(s.Flags)
	if outermost {
		flags |= outermostFlag
	}
	le.PutUint16(rule[ruleFlags:], flags)
	if s.RA != m.RA || !m.StepKnown {
		return false
	}
	if !m.RAInReg && s.Flags&(rows.RASigned|rows.RASignPC) != 0 {
		return false
	}
	switch s.CFA.Kind {
	case rows.CFANone:
		rule[ruleCFA] = kindNone
		return outermost || len(s.Rules) == 0
	case rows.CFAReg:
		rule[ruleCFA] = kindReg
	case rows.CFAPLT:
		rule[ruleCFA] = kindPLT
		if s.CFA.Off2 < 0 || s.CFA.Off2 > 255 {
			return false
		}
		rule[ruleAux] = byte(s.CFA.Off2)
	default:
		return false
	}
	slot := m.Slot(s.CFA.Reg)
	if slot == arch.NoSlot || s.CFA.Off != int64(int32(s.CFA.Off)) {
		return false
	}
	rule[ruleCFA] |= byte(slot) << slotShift
	if sh.run > 0 {
		return sh.pack(rule, s)
	}
	le.PutUint32(rule[ruleOff:], uint32(s.CFA.Off))
	if outermost {
		return true
	}
	base := int64(0)
	if s.CFA.Kind == rows.CFAReg {
		low := int64(0)
		for _, r := range s.Rules {
			low = min(low, r.Off)
		}
		if low < -128*sh.scale {
			n := (-low - 1) / baseUnit
			if n > 255 || !m.RAInReg {
				return false
			}
			rule[ruleAux] = byte(n)
			base = -n * baseUnit
		}
	}
	mask := uint64(0)
	for _, r := range s.Rules {
		i := slices.Index(sh.saves, r.Of)
		v := r.Off - base
		if i < 0 || r.Kind != rows.Offset || v%sh.scale != 0 || v < -128*sh.scale || v > 127*sh.scale {
			return false
		}
		rule[ruleHead+i] = byte(int8(v / sh.scale))
		mask |= 1 << i
	}
	if !m.RAInReg && mask>>(len(sh.saves)-1) == 0 {
		return false // the return address is lost
	}
	sh.setPresent(rule, mask)
	return true
}

// fixedSet decodes a rule that is not wide.
func (sh *shape) fixedSet(rule []byte) rows.Set {
	kind, slot, flags := parts(rule)
	s := rows.Set{RA: sh.mach.RA, Flags: rows.Flags(flags &^ outermostFlag)}
	outermost := flags&outermostFlag != 0
	base := int64(0)
	switch kind {
	case kindReg:
		s.CFA.Kind = rows.CFAReg
		base = sh.base(rule)
	case kindPLT:
		s.CFA.Kind = rows.CFAPLT
		s.CFA.Off2 = int64(rule[ruleAux])
	}
	if s.CFA.Kind != rows.CFANone {
		s.CFA.Reg = sh.reg(slot)
		s.CFA.Off = sh.cfaOff(rule)
	}
	if outermost {
		s.Rules = []rows.Rule{{Of: s.RA, Kind: rows.Undefined}}
		return s
	}
	for mask := sh.present(rule); mask != 0; mask &= mask - 1 {
		i := bits.TrailingZeros64(mask)
		if i >= len(sh.saves) {
			break
		}
		s.Rules = append(s.Rules, rows.Rule{Of: sh.saves[i], Kind: rows.Offset, Off: base + sh.save(rule, i)})
	}
	slices.SortFunc(s.Rules, func(a, b rows.Rule) int { return int(a.Of) - int(b.Of) })
	return s
}

// reg returns the register that has a slot, or noReg.
func (sh *shape) reg(slot arch.Slot) arch.Reg {
	if slot >= arch.NumSlots {
		return noReg
	}
	return sh.regs[slot]
}

// pools are the parts of a table that wide rules point into.
type pools struct {
	wides, exprs []byte
	index        map[string]uint64 // expressions
}

// wide appends the set s and returns its offset.
func (p *pools) wide(s *rows.Set) int {
	at := len(p.wides)
	w := append(p.wides, byte(s.CFA.Kind), byte(len(s.Rules)))
	w = le.AppendUint16(w, uint16(s.Flags))
	w = le.AppendUint16(le.AppendUint16(w, uint16(s.RA)), uint16(s.CFA.Reg))
	off := uint64(s.CFA.Off)
	if s.CFA.Kind == rows.CFAExpr {
		off = p.expr(s.CFA.Expr)
	}
	w = le.AppendUint64(le.AppendUint64(w, off), uint64(s.CFA.Off2))
	for i := range s.Rules {
		r := &s.Rules[i]
		off := uint64(r.Off)
		if r.Kind == rows.Expr || r.Kind == rows.ValExpr {
			off = p.expr(r.Expr)
		}
		w = append(le.AppendUint16(w, uint16(r.Of)), byte(r.Kind), 0)
		w = le.AppendUint16(le.AppendUint16(w, uint16(r.Reg)), 0)
		w = le.AppendUint64(w, off)
	}
	p.wides = w
	return at
}

// expr returns the offset of expression e and, in the upper half, its length.
func (p *pools) expr(e string) uint64 {
	at, ok := p.index[e]
	if !ok {
		at = uint64(len(p.exprs)) | uint64(len(e))<<32
		p.index[e] = at
		p.exprs = append(p.exprs, e...)
	}
	return at
}
