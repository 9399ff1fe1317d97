package compact

import (
	"math/bits"
	"unsafe"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A wide is a set of rules in full, as it lies in the table.
type wide struct {
	head  []byte
	rules []byte
	n     int
}

// wide returns the set at an offset of the wides; ok is false if it is cut off.
func (t *Table) wide(off uint32) (w wide, ok bool) {
	if uint64(off)+wideHead > uint64(len(t.wides)) {
		return w, false
	}
	b := t.wides[off:]
	w.n = int(b[wideNRules])
	if wideHead+w.n*wruleSize > len(b) {
		return w, false
	}
	w.head, w.rules = b[:wideHead], b[wideHead:wideHead+w.n*wruleSize]
	return w, true
}

// expr returns an expression by its offset and length. It aliases the table.
func (t *Table) expr(at uint64) (string, bool) {
	off, n := uint64(uint32(at)), at>>32
	if off+n > uint64(len(t.exprs)) {
		return "", false
	}
	b := t.exprs[off : off+n]
	return unsafe.String(unsafe.SliceData(b), len(b)), true
}

// set decodes w.
func (w *wide) set(t *Table) rows.Set {
	s := rows.Set{RA: arch.Reg(le.Uint16(w.head[wideRA:])), Flags: rows.Flags(le.Uint16(w.head[wideFlags:])), CFA: w.cfa(t)}
	for i := range w.n {
		s.Rules = append(s.Rules, w.rule(t, i))
	}
	return s
}

func (w *wide) cfa(t *Table) rows.CFA {
	c := rows.CFA{Kind: rows.CFAKind(w.head[wideCFAKind]), Reg: arch.Reg(le.Uint16(w.head[wideCFAReg:]))}
	if off := le.Uint64(w.head[wideOff:]); c.Kind == rows.CFAExpr {
		c.Expr, _ = t.expr(off)
	} else {
		c.Off, c.Off2 = int64(off), int64(le.Uint64(w.head[wideOff2:]))
	}
	return c
}

func (w *wide) rule(t *Table, i int) rows.Rule {
	b := w.rules[i*wruleSize:][:wruleSize]
	r := rows.Rule{Of: arch.Reg(le.Uint16(b[wruleOf:])), Kind: rows.Kind(b[wruleKind]), Reg: arch.Reg(le.Uint16(b[wruleReg:]))}
	if off := le.Uint64(b[wruleOff:]); r.Kind == rows.Expr || r.Kind == rows.ValExpr {
		r.Expr, _ = t.expr(off)
	} else {
		r.Off = int64(off)
	}
	return r
}

// A change is what the rules of a frame make of its registers. They all see the frame's own registers,
// so nothing is written before the last one was followed.
type change struct {
	known, inMem, inReg uint64
	set                 uint64 // slots that have a new location
	val                 [arch.NumSlots]uint64
}

func (c *change) lose(slot arch.Slot) { c.known &^= 1 << slot; c.set &^= 1 << slot }

func (c *change) value(slot arch.Slot, v uint64) {
	bit := uint64(1) << slot
	c.known, c.inMem, c.inReg, c.set = c.known|bit, c.inMem&^bit, c.inReg&^bit, c.set|bit
	c.val[slot&(arch.NumSlots-1)] = v
}

func (c *change) memory(slot arch.Slot, addr uint64) {
	c.value(slot, addr)
	c.inMem |= 1 << slot
}

func (c *change) copy(to arch.Slot, s *rows.State, from arch.Slot) {
	bit := func(set *uint64, x uint64) { *set = *set&^(1<<to) | x>>from&1<<to }
	bit(&c.known, s.Known)
	bit(&c.inMem, s.InMem)
	bit(&c.inReg, s.InReg)
	c.set |= 1 << to
	c.val[to&(arch.NumSlots-1)] = s.Val[from&(arch.NumSlots-1)]
}

// applyWide is rows.Step over the bytes of a set, without a copy of the state.
func (t *Table) applyWide(w *wide, s *rows.State, m *rows.Memory) rows.Outcome {
	mach := t.machine
	c := w.cfa(t)
	raCol := arch.Reg(le.Uint16(w.head[wideRA:]))
	flags := rows.Flags(le.Uint16(w.head[wideFlags:]))
	if c.Kind == rows.CFANone {
		return t.noCFA(w, raCol)
	}
	cfa, o := wideCFA(mach, &c, s, m)
	if o != rows.OK {
		return o
	}

	var ch change
	ch.known, ch.inMem, ch.inReg = s.Known, s.InMem, s.InReg
	ch.known &= t.kept(flags)
	ch.value(mach.Slot(mach.SP), cfa-mach.SPBelow)
	ra, raFrom := uint64(0), rows.LostRegister
	if mach.RAInReg {
		ra, raFrom = s.Get(mach.Slot(raCol), m)
	}
	for i := range w.n {
		// Nearly all rules are saves at offsets from the CFA, also where the CFA is not a register and a number.
		if b := w.rules[i*wruleSize:][:wruleSize]; rows.Kind(b[wruleKind]) == rows.Offset {
			of, at := arch.Reg(le.Uint16(b[wruleOf:])), cfa+le.Uint64(b[wruleOff:])
			if of == raCol {
				x, ok := m.Load(at)
				if ra, raFrom = x, rows.OK; !ok {
					s.Fault, raFrom = at, rows.Unreadable
				}
			}
			if slot := mach.Slot(of); slot != arch.NoSlot {
				ch.memory(slot, at)
			}
			continue
		}
		b := w.rules[i*wruleSize:][:wruleSize]
		of := arch.Reg(le.Uint16(b[wruleOf:]))
		slot := mach.Slot(of)
		loc, v, o := t.follow(b, s, m, cfa)
		if of == raCol {
			switch {
			case rows.Kind(b[wruleKind]) == rows.Undefined:
				return rows.Outermost
			case loc == locSlot:
				ra, raFrom = s.Get(arch.Slot(v), m)
			case loc == locLost:
				raFrom = o
			case loc == locValue:
				ra, raFrom = v, rows.OK
			default:
				if x, ok := m.Load(v); ok {
					ra, raFrom = x, rows.OK
				} else {
					s.Fault, raFrom = v, rows.Unreadable
				}
			}
		}
		if slot == arch.NoSlot {
			continue
		}
		switch loc {
		case locLost:
			ch.lose(slot)
		case locSlot:
			ch.copy(slot, s, arch.Slot(v))
		case locValue:
			ch.value(slot, v)
		case locMem:
			ch.memory(slot, v)
		}
	}
	if raFrom != rows.OK {
		return raFrom
	}
	if flags&(rows.RASigned|rows.RASignPC) != 0 {
		ra = m.Unsigned(ra)
	}
	if !mach.RAInReg {
		if slot := mach.Slot(raCol); slot != arch.NoSlot {
			ch.value(slot, ra)
		}
	}
	ch.commit(s)
	s.PC, s.CFA = ra, cfa
	return rows.OK
}

func (c *change) commit(s *rows.State) {
	s.Known, s.InMem, s.InReg = c.known, c.inMem, c.inReg
	for set := c.set; set != 0; set &= set - 1 {
		i := bits.TrailingZeros64(set)
		s.Val[i] = c.val[i]
	}
}

// noCFA is the outcome of a set that has no rule for the CFA.
func (t *Table) noCFA(w *wide, raCol arch.Reg) rows.Outcome {
	for i := range w.n {
		if r := w.rule(t, i); r.Of == raCol && r.Kind == rows.Undefined {
			return rows.Outermost
		}
	}
	return rows.NoRule
}

func wideCFA(mach *arch.Machine, c *rows.CFA, s *rows.State, m *rows.Memory) (uint64, rows.Outcome) {
	if c.Kind == rows.CFAExpr {
		return rows.Eval(mach, c.Expr, s, m, 0, false)
	}
	v, o := s.Get(mach.Slot(c.Reg), m)
	if o != rows.OK {
		return 0, o
	}
	v += uint64(c.Off)
	switch c.Kind {
	case rows.CFARegDeref:
		x, ok := m.Load(v)
		if !ok {
			s.Fault = v
			return 0, rows.Unreadable
		}
		v = x + uint64(c.Off2)
	case rows.CFAPLT:
		if int64(s.PC&15) >= c.Off2 {
			v += 8
		}
	}
	return v, rows.OK
}

// Where a rule says that a register's value lies: nowhere, where that of a slot lies, in memory at an
// address; or the value itself.
type location uint8

const (
	locLost location = iota
	locSlot
	locValue
	locMem
)

// follow returns where the register lies that the rule b is of; o says why it is lost. It reads the bytes: a rows.Rule would be written in
// small parts and copied in large ones, which the processor does slowly.
func (t *Table) follow(b []byte, s *rows.State, m *rows.Memory, cfa uint64) (loc location, v uint64, o rows.Outcome) {
	mach, kind, off := t.machine, rows.Kind(b[wruleKind]), le.Uint64(b[wruleOff:])
	switch kind {
	case rows.SameValue, rows.Register:
		from := arch.Reg(le.Uint16(b[wruleReg:]))
		if kind == rows.SameValue {
			from = arch.Reg(le.Uint16(b[wruleOf:]))
		}
		if slot := mach.Slot(from); slot != arch.NoSlot {
			return locSlot, uint64(slot), rows.OK
		}
	case rows.ValOffset:
		return locValue, cfa + off, rows.OK
	case rows.RegOffset, rows.RegDeref:
		v, o := s.Get(mach.Slot(arch.Reg(le.Uint16(b[wruleReg:]))), m)
		switch {
		case o != rows.OK:
			return locLost, 0, o
		case kind == rows.RegDeref:
			return locMem, v + off, rows.OK
		}
		return locValue, v + off, rows.OK
	case rows.Expr, rows.ValExpr:
		expr, _ := t.expr(off)
		v, o := rows.Eval(mach, expr, s, m, cfa, true)
		switch {
		case o != rows.OK:
			return locLost, 0, o
		case kind == rows.Expr:
			return locMem, v, rows.OK
		}
		return locValue, v, rows.OK
	}
	return locLost, 0, rows.LostRegister
}
