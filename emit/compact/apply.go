package compact

import (
	"math/bits"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// What Apply has as constants, because fields would be slower: the shape of x86-64's rules. Other shapes take the loop of applySlots.
const (
	sixSlots = "\x03\x06\x0c\x0d\x0e\x0f\x10" // rbx, rbp, r12 to r15, the return address
	sixSP    = 7
	sixRA    = 16
)

// Signal implements rows.Stepper.
func (t *Table) Signal(id uint32) bool {
	return id-1 < t.nrules-1 && rows.Flags(t.rules[int(id-1)<<t.ruleBits+ruleFlags])&rows.Signal != 0
}

// SyncOnly implements rows.Stepper.
func (t *Table) SyncOnly(id uint32) bool {
	return id-1 < t.nrules-1 && rows.Flags(t.rules[int(id-1)<<t.ruleBits+ruleFlags])&rows.SyncOnly != 0
}

// kept is the set of slots that keep their values where a rule with these flags does not name them.
func (t *Table) kept(flags rows.Flags) uint64 {
	s := rows.Set{Flags: flags}
	return s.Kept(t.machine)
}

// Apply implements rows.Stepper: it equals rows.Step. It does not allocate.
func (t *Table) Apply(id uint32, s *rows.State, m *rows.Memory) rows.Outcome {
	if id-1 >= t.nrules-1 { // a gap has no bytes
		return rows.NoRule
	}
	r := t.rules[int(id-1)<<t.ruleBits:]
	if len(r) < 16 {
		return rows.NoRule
	}
	head := le.Uint64(r)
	kind := uint8(head) & kindMask
	if kind-kindReg > kindPLT-kindReg {
		return t.applyOther(id, s, m)
	}

	// The CFA.
	slot := uint8(head) >> slotShift
	if s.Known>>slot&1 == 0 {
		return rows.LostRegister
	}
	cfa := s.Val[slot]
	if s.InMem>>slot&1 != 0 {
		x, ok := m.Load(cfa)
		if !ok {
			s.Fault = cfa
			return rows.Unreadable
		}
		cfa = x
	} else if s.InReg>>slot&1 != 0 {
		cfa = s.Snap[cfa&(arch.NumSlots-1)]
	}
	if t.sh.run == 0 {
		cfa += uint64(int64(head) >> 32)
	} else {
		cfa += uint64(int64(head)>>48) * uint64(t.sh.scale) // of a packed rule
	}
	flags, aux := uint16(head>>16), uint8(head>>8)
	base := cfa
	if kind == kindPLT {
		if uint8(s.PC&15) >= aux {
			cfa += 8
		}
		base = cfa
	} else {
		base -= uint64(aux) * baseUnit // of a packed rule, applySlots knows it
	}
	if flags&outermostFlag != 0 {
		return rows.Outermost
	}
	keep := t.saved
	if flags&uint16(rows.Signal|rows.Partial) != 0 {
		keep = t.kept(rows.Flags(flags))
	}
	if !t.six {
		return t.applySlots(r, s, m, keep, flags, cfa, base)
	}

	// The return address, then the registers. Nothing can fail after it.
	saves := le.Uint64(r[ruleHead:])
	at := base + saveOff(saves, 6)
	ra, ok := m.Load(at)
	if !ok {
		s.Fault = at
		return rows.Unreadable
	}
	// Six selections are faster than a loop over those present, whose end the processor guesses wrong.
	mask := uint8(saves>>56) & 0x3f
	rbx, rbp, r12, r13, r14, r15 := s.Val[3], s.Val[6], s.Val[12], s.Val[13], s.Val[14], s.Val[15]
	if x := base + saveOff(saves, 0); mask&1 != 0 {
		rbx = x
	}
	if x := base + saveOff(saves, 1); mask&2 != 0 {
		rbp = x
	}
	if x := base + saveOff(saves, 2); mask&4 != 0 {
		r12 = x
	}
	if x := base + saveOff(saves, 3); mask&8 != 0 {
		r13 = x
	}
	if x := base + saveOff(saves, 4); mask&16 != 0 {
		r14 = x
	}
	if x := base + saveOff(saves, 5); mask&32 != 0 {
		r15 = x
	}
	s.Val[3], s.Val[6], s.Val[12], s.Val[13], s.Val[14], s.Val[15] = rbx, rbp, r12, r13, r14, r15
	set := uint64(mask)
	set = set&1<<3 | set&2<<5 | set&0x3c<<10
	s.Known = s.Known&keep | set | 1<<sixSP | 1<<sixRA
	s.InMem = s.InMem&^(1<<sixSP|1<<sixRA) | set
	s.InReg &^= set | 1<<sixSP | 1<<sixRA
	s.Val[sixSP], s.Val[sixRA] = cfa, ra
	s.PC, s.CFA = ra, cfa
	return rows.OK
}

// saveOff returns save i of a rule, in bytes.
func saveOff(saves uint64, i uint) uint64 { return uint64(int64(saves<<(56-8*(i&7)))>>56) << 3 }

// applySlots finishes a fixed rule of any shape.
func (t *Table) applySlots(r []byte, s *rows.State, m *rows.Memory, keep uint64, flags uint16, cfa, base uint64) rows.Outcome {
	slots := t.sh.slots
	n := len(slots)
	if n == 0 || len(r) < t.sh.size {
		return rows.NoRule
	}
	r = r[:t.sh.size]
	mask := t.sh.present(r) & (1<<n - 1)
	if t.sh.run > 0 {
		base = cfa + uint64(t.sh.base(r))
	}

	// The return address stays in its register if it was not saved.
	var ra uint64
	if mask>>(n-1) != 0 {
		at := base + uint64(t.sh.save(r, n-1))
		v, ok := m.Load(at)
		if !ok {
			s.Fault = at
			return rows.Unreadable
		}
		ra = v
	} else {
		v, o := s.Get(arch.Slot(t.ra), m)
		if o != rows.OK {
			return o
		}
		ra = v
	}
	if rows.Flags(flags)&(rows.RASigned|rows.RASignPC) != 0 {
		ra = m.Unsigned(ra)
	}
	set := uint64(0)
	for k := mask; k != 0; k &= k - 1 {
		i := bits.TrailingZeros64(k)
		slot := slots[i] & (arch.NumSlots - 1)
		s.Val[slot] = base + uint64(t.sh.save(r, i))
		set |= 1 << slot
	}
	value := uint64(1) << (t.sp & (arch.NumSlots - 1))
	s.Val[t.sp&(arch.NumSlots-1)] = cfa - t.machine.SPBelow
	if !t.inReg {
		// The column is the program counter itself, whose value in the caller is now known.
		value |= 1 << (t.ra & (arch.NumSlots - 1))
		s.Val[t.ra&(arch.NumSlots-1)] = ra
	}
	s.Known = s.Known&keep | set | value
	s.InMem = (s.InMem | set) &^ value
	s.InReg &^= set | value
	s.PC, s.CFA = ra, cfa
	return rows.OK
}

// applyOther is Apply for rules without a CFA, and wide ones.
func (t *Table) applyOther(id uint32, s *rows.State, m *rows.Memory) rows.Outcome {
	r := t.rule(id)
	if kind, _, flags := parts(r); kind != kindWide {
		if flags&outermostFlag != 0 {
			return rows.Outermost
		}
		return rows.NoRule
	}
	w, ok := t.wide(le.Uint32(r[ruleOff:]))
	if !ok || !t.machine.StepKnown {
		return rows.NoRule
	}
	return t.applyWide(&w, s, m)
}
