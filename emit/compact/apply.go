package compact

import (
	"math/bits"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Slots of x86-64 that rules name, and the set of the saves' slots. Tests hold them against arch.
const (
	amd64SP    = 7
	amd64RA    = 16
	arm64SP    = 31
	arm64RA    = 30
	arm64Saves = 20
)

// Signal implements rows.Stepper.
func (t *Table) Signal(id uint32) bool {
	return id < t.nrules && rows.Flags(t.rules[int(id)<<t.ruleBits+ruleFlags])&rows.Signal != 0
}

// Apply implements rows.Stepper: it equals rows.Step. It does not allocate.
func (t *Table) Apply(id uint32, s *rows.State, m *rows.Memory) rows.Outcome {
	if id >= t.nrules {
		return rows.NoRule
	}
	r := t.rules[int(id)<<t.ruleBits:]
	if len(r) < 16 {
		return rows.NoRule
	}
	head := le.Uint64(r)
	kind := uint8(head)
	if kind-kindReg > kindPLT-kindReg {
		return t.applyOther(id, s, m)
	}

	// The CFA.
	slot := uint8(head>>8) & (arch.NumSlots - 1)
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
	cfa += uint64(int64(head) >> 32)
	flags, aux := uint8(head>>16), uint8(head>>24)
	base := cfa
	if kind == kindPLT {
		if uint8(s.PC&15) >= aux {
			cfa += 8
		}
		base = cfa
	} else {
		base -= uint64(aux) * baseUnit
	}
	if flags&outermostFlag != 0 {
		return rows.Outermost
	}
	keep := t.saved
	if flags&uint8(rows.Signal) != 0 {
		keep = ^uint64(0)
	}
	if t.arm {
		return applyARM64(r, s, m, keep, flags, cfa, base)
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
	s.Known = s.Known&keep | set | 1<<amd64SP | 1<<amd64RA
	s.InMem = s.InMem&^(1<<amd64SP|1<<amd64RA) | set
	s.InReg &^= set | 1<<amd64SP | 1<<amd64RA
	s.Val[amd64SP], s.Val[amd64RA] = cfa, ra
	s.PC, s.CFA = ra, cfa
	return rows.OK
}

// saveOff returns save i of a rule, in bytes.
func saveOff(saves uint64, i uint) uint64 { return uint64(int64(saves<<(56-8*(i&7)))>>56) << 3 }

// applyARM64 finishes a fixed rule on AArch64.
func applyARM64(r []byte, s *rows.State, m *rows.Memory, keep uint64, flags uint8, cfa, base uint64) rows.Outcome {
	if len(r) < 32 {
		return rows.NoRule
	}
	saves := r[ruleHead : ruleHead+arm64Saves]
	mask := le.Uint32(r[ruleHead+arm64Saves:]) & (1<<arm64Saves - 1)

	// The return address is in x30 if it was not saved.
	var ra uint64
	if mask>>(arm64Saves-1) != 0 {
		at := base + uint64(int64(int8(saves[arm64Saves-1])))<<3
		v, ok := m.Load(at)
		if !ok {
			s.Fault = at
			return rows.Unreadable
		}
		ra = v
	} else {
		v, o := s.Get(arm64RA, m)
		if o != rows.OK {
			return o
		}
		ra = v
	}
	if rows.Flags(flags)&(rows.RASigned|rows.RASignPC) != 0 {
		ra &= arch.AddressMask
	}
	for k := mask; k != 0; k &= k - 1 {
		i := bits.TrailingZeros32(k)
		s.Val[arm64Slots[i&31]&(arch.NumSlots-1)] = base + uint64(int64(int8(saves[i])))<<3
	}
	set := uint64(mask)
	set = set&0x7ff<<19 | set>>11&0xff<<35 | set>>19<<arm64RA
	s.Known = s.Known&keep | set | 1<<arm64SP
	s.InMem = s.InMem&^(1<<arm64SP) | set
	s.InReg &^= set | 1<<arm64SP
	s.Val[arm64SP] = cfa
	s.PC, s.CFA = ra, cfa
	return rows.OK
}

var arm64Slots = [32]uint8{19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 35, 36, 37, 38, 39, 40, 41, 42, arm64RA}

// applyOther is Apply for rules without a CFA, and wide ones.
func (t *Table) applyOther(id uint32, s *rows.State, m *rows.Memory) rows.Outcome {
	r := t.rule(id)
	if r[ruleKind] != kindWide {
		if r[ruleFlags]&outermostFlag != 0 {
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
