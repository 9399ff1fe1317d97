package rows

import "github.com/unspool/unspool/arch"

// Step turns s, the state of a frame whose row says set, into
// the state of its caller. It is the meaning of a row; docs/SEMANTICS.md says it in prose.
//
// Memory is read for the CFA, the return address and expressions only; a saved register is merely
// located. A register whose rule cannot be followed is lost, which is no error unless the CFA or the
// return address needs it. After any outcome but OK, s is unchanged but for Fault.
func Step(mach *arch.Machine, set *Set, s *State, m *Memory) Outcome {
	if !mach.StepKnown {
		return NoRule
	}
	if set.CFA.Kind == CFANone {
		if set.Outermost() {
			return Outermost
		}
		return NoRule
	}
	cfa, o := stepCFA(mach, &set.CFA, s, m)
	if o != OK {
		return o
	}

	// All rules see the registers of this frame: locate the new ones beside the old.
	next := *s
	next.Known &= set.Kept(mach)
	setLoc(&next, mach.Slot(mach.SP), cfa-mach.SPBelow)
	ra, raFrom := uint64(0), LostRegister
	if mach.RAInReg {
		ra, raFrom = s.Get(mach.Slot(set.RA), m)
	}
	for i := range set.Rules {
		r := &set.Rules[i]
		slot := mach.Slot(r.Of)
		if r.Of == set.RA {
			if ra, raFrom = valueOf(mach, r, s, m, cfa); raFrom == Outermost {
				return Outermost
			}
		}
		if slot != arch.NoSlot {
			locate(mach, r, slot, s, &next, m, cfa)
		}
	}
	next.Fault = s.Fault
	if raFrom != OK {
		return raFrom
	}
	if set.Flags&(RASigned|RASignPC) != 0 {
		ra = m.Unsigned(ra)
	}
	next.PC, next.CFA = ra, cfa
	if slot := mach.Slot(set.RA); !mach.RAInReg && slot != arch.NoSlot {
		// The column is the program counter itself, whose value in the caller is now known.
		setLoc(&next, slot, ra)
	}
	*s = next
	return OK
}

func stepCFA(mach *arch.Machine, c *CFA, s *State, m *Memory) (uint64, Outcome) {
	if c.Kind == CFAExpr {
		return eval(mach, c.Expr, s, m, 0, false)
	}
	v, o := s.Get(mach.Slot(c.Reg), m)
	if o != OK {
		return 0, o
	}
	v += uint64(c.Off)
	switch c.Kind {
	case CFARegDeref:
		x, ok := m.Load(v)
		if !ok {
			s.Fault = v
			return 0, Unreadable
		}
		v = x + uint64(c.Off2)
	case CFAPLT:
		if int64(s.PC&15) >= c.Off2 {
			v += 8
		}
	}
	return v, OK
}

// valueOf reads what rule r says of the return address.
func valueOf(mach *arch.Machine, r *Rule, s *State, m *Memory, cfa uint64) (uint64, Outcome) {
	addr := uint64(0)
	switch r.Kind {
	case Undefined:
		return 0, Outermost
	case SameValue:
		return s.Get(mach.Slot(r.Of), m)
	case Register:
		return s.Get(mach.Slot(r.Reg), m)
	case ValOffset:
		return cfa + uint64(r.Off), OK
	case Offset:
		addr = cfa + uint64(r.Off)
	case RegOffset, RegDeref:
		v, o := s.Get(mach.Slot(r.Reg), m)
		if o != OK {
			return 0, o
		}
		if addr = v + uint64(r.Off); r.Kind == RegOffset {
			return addr, OK
		}
	case Expr, ValExpr:
		v, o := eval(mach, r.Expr, s, m, cfa, true)
		if o != OK || r.Kind == ValExpr {
			return v, o
		}
		addr = v
	}
	v, ok := m.Load(addr)
	if !ok {
		s.Fault = addr
		return 0, Unreadable
	}
	return v, OK
}

// locate writes where rule r says that register slot's value lies into next.
func locate(mach *arch.Machine, r *Rule, slot arch.Slot, s, next *State, m *Memory, cfa uint64) {
	lose := func() { next.Known &^= 1 << slot }
	switch r.Kind {
	case Undefined:
		lose()
	case SameValue:
		copyLoc(next, slot, s, slot)
	case Offset:
		setLocMem(next, slot, cfa+uint64(r.Off))
	case ValOffset:
		setLoc(next, slot, cfa+uint64(r.Off))
	case Register:
		if from := mach.Slot(r.Reg); from != arch.NoSlot {
			copyLoc(next, slot, s, from)
		} else {
			lose()
		}
	case RegOffset, RegDeref:
		v, o := s.Get(mach.Slot(r.Reg), m)
		switch {
		case o != OK:
			lose()
		case r.Kind == RegDeref:
			setLocMem(next, slot, v+uint64(r.Off))
		default:
			setLoc(next, slot, v+uint64(r.Off))
		}
	case Expr, ValExpr:
		v, o := eval(mach, r.Expr, s, m, cfa, true)
		switch {
		case o != OK:
			lose()
		case r.Kind == Expr:
			setLocMem(next, slot, v)
		default:
			setLoc(next, slot, v)
		}
	}
}

func setLoc(s *State, slot arch.Slot, v uint64) {
	s.Known |= 1 << slot
	s.InMem &^= 1 << slot
	s.InReg &^= 1 << slot
	s.Val[slot] = v
}

func setLocMem(s *State, slot arch.Slot, addr uint64) {
	s.Known |= 1 << slot
	s.InMem |= 1 << slot
	s.InReg &^= 1 << slot
	s.Val[slot] = addr
}

func copyLoc(to *State, t arch.Slot, from *State, f arch.Slot) {
	bit := func(set *uint64, x uint64) { *set = *set&^(1<<t) | x>>f&1<<t }
	bit(&to.Known, from.Known)
	bit(&to.InMem, from.InMem)
	bit(&to.InReg, from.InReg)
	to.Val[t] = from.Val[f]
}

// Equal says whether two states have the same PC, CFA, and locations of every register.
func (s *State) Equal(o *State) bool {
	if s.PC != o.PC || s.CFA != o.CFA || s.Known != o.Known ||
		(s.InMem^o.InMem)&s.Known != 0 || (s.InReg^o.InReg)&s.Known != 0 {
		return false
	}
	for i := range s.Val {
		if s.Known>>i&1 != 0 && s.Val[i] != o.Val[i] {
			return false
		}
	}
	return true
}

// Interp is the Stepper that interprets a Table with Step: the reference for all others.
type Interp struct{ Table *Table }

// Find implements Stepper.
func (x Interp) Find(pc arch.Vaddr) (uint32, bool) {
	i := x.Table.Find(pc)
	if i < 0 || x.Table.Rows[i].Set == GapID {
		return 0, false
	}
	return uint32(x.Table.Rows[i].Set), true
}

// Apply implements Stepper.
func (x Interp) Apply(id uint32, s *State, m *Memory) Outcome {
	return Step(x.Table.Machine, &x.Table.Sets[id], s, m)
}

// Signal implements Stepper.
func (x Interp) Signal(id uint32) bool { return x.Table.Sets[id].Flags&Signal != 0 }

// SyncOnly implements Stepper.
func (x Interp) SyncOnly(id uint32) bool { return x.Table.Sets[id].Flags&SyncOnly != 0 }

// Set returns the set of rule id.
func (x Interp) Set(id uint32) Set { return x.Table.Sets[id] }
