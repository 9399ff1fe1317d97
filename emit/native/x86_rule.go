package native

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/amd64"
)

// A getKey is a routine that reads a register: jumps in simple rules rely on it to return the outcome for them, others
// look at the carry.
type getKey struct {
	slot   arch.Slot
	simple bool
}

// A tailKey is what a simple rule says but for the offset of the CFA.
type tailKey struct {
	reg    arch.Slot // of the CFA
	mask   uint32    // slots that were saved
	ra     int32
	signal bool
	offs   [16]int32 // by slot
}

// rule writes the code of a rule. It is entered by a jump, and returns an outcome to who called the entry point.
func (g *x86) rule(s *rows.Set) {
	switch {
	case s.CFA.Kind == rows.CFANone && s.Outermost():
		g.Imm(RAX, uint64(rows.Outermost))
		g.Ret()
		return
	case s.CFA.Kind == rows.CFANone:
		g.Jmp(g.noRule)
		return
	}
	k, ok := g.simple(s)
	if !ok {
		g.wide(s)
		return
	}
	g.Call(g.get(k.reg, true))
	if s.CFA.Off != 0 {
		g.RI(ADD, RAX, int32(s.CFA.Off))
	}
	if s.CFA.Kind == rows.CFAPLT {
		g.plt(s.CFA.Off2)
	}
	if s.Outermost() {
		g.Imm(RAX, uint64(rows.Outermost))
		g.Ret()
		return
	}
	g.tail(k)
}

// tailRules writes simple rules that only differ in the offset of the CFA, and their common end.
func (g *x86) tailRules(shape any, ids []uint32) {
	k := shape.(tailKey)
	end := g.Label()
	for i, id := range ids {
		g.Set(g.rules[id])
		s := g.t.Set(id)
		g.Imm(R8, uint64(s.CFA.Off))
		if i+1 < len(ids) {
			g.Jmp(end)
		}
	}
	g.Set(end)
	g.Call(g.get(k.reg, true))
	g.RR(ADD, RAX, R8)
	g.tail(k)
}

// shape is simple for the generator.
func (g *x86) shape(s *rows.Set) (any, bool) { return g.simple(s) }

// simple returns what is behind the CFA of a rule that has only saved registers at offsets from it.
func (g *x86) simple(s *rows.Set) (k tailKey, ok bool) {
	m := arch.AMD64
	c := &s.CFA
	if c.Kind != rows.CFAReg && c.Kind != rows.CFAPLT || m.Slot(c.Reg) == arch.NoSlot || s.RA != m.RA || c.Off != int64(int32(c.Off)) {
		return k, false
	}
	if s.Flags&(rows.RASigned|rows.RASignPC|rows.Partial) != 0 {
		return k, false
	}
	k.reg, k.signal = m.Slot(c.Reg), s.Flags&rows.Signal != 0
	if s.Outermost() {
		return k, true
	}
	for _, r := range s.Rules {
		slot := m.Slot(r.Of)
		switch {
		case r.Kind == rows.Undefined && !k.signal && slot != arch.NoSlot && g.lost>>slot&1 != 0: // as in all rules
		case r.Kind != rows.Offset || slot == arch.NoSlot || slot == slotSP || r.Off != int64(int32(r.Off)):
			return k, false
		case r.Of == m.RA:
			k.ra, ok = int32(r.Off), true
		default:
			k.mask |= 1 << slot
			k.offs[slot] = int32(r.Off)
		}
	}
	return k, ok
}

// plt adds 8 to rax where the four lowest bits of the program counter are not below limit.
func (g *x86) plt(limit int64) {
	if limit > 15 {
		return
	}
	g.Load(RCX, field(offPC))
	g.RI32(AND, RCX, 15)
	g.RI32(CMP, RCX, int32(max(limit, 0)))
	below := g.Label()
	g.Jcc(B, below)
	g.RI(ADD, RAX, 8)
	g.Set(below)
}

// tail reads the return address and locates the saved registers, with the CFA in rax.
func (g *x86) tail(k tailKey) {
	switch {
	case g.o.Deref == Self:
		g.Load(RCX, At(RAX, k.ra))
	case k.ra == -8:
		g.Call(g.loadRA)
	default:
		g.Lea(RCX, At(RAX, k.ra))
		g.Call(g.load)
		g.Jcc(B, g.fail)
	}
	for slot := range arch.Slot(16) {
		if k.mask>>slot&1 == 0 {
			continue
		}
		if k.offs[slot] == 0 {
			g.Store(val(slot), RAX)
			continue
		}
		g.Lea(RDX, At(RAX, k.offs[slot]))
		g.Store(val(slot), RDX)
	}
	g.Imm(RDX, uint64(k.mask))
	i := 0
	if k.signal {
		i = 1
	}
	if g.commit[i] == 0 {
		g.commit[i] = g.Label()
	}
	g.Jmp(g.commit[i])
}

// commits makes the state that of the caller: rax is the CFA, rcx the return address, edx the slots that were saved.
func (g *x86) commits() {
	const both = 1<<slotSP | 1<<slotRA
	for i, l := range g.commit {
		if l == 0 {
			continue
		}
		g.Set(l)
		g.Load(R8, field(offKnown))
		if i == 0 {
			g.RI32(AND, R8, int32(arch.AMD64.SavedSlots()&^g.lost))
		}
		g.RR(OR, R8, RDX)
		g.RI(OR, R8, both)
		g.Store(field(offKnown), R8)
		g.Load(R8, field(offInMem))
		g.RI(AND, R8, ^both)
		g.RR(OR, R8, RDX)
		g.Store(field(offInMem), R8)
		g.RI32(OR, RDX, both)
		g.Not(RDX)
		g.MR(AND, field(offInReg), RDX)
		g.Store(val(slotSP), RAX)
		g.Store(val(slotRA), RCX)
		g.Store(field(offPC), RCX)
		g.Store(field(offCFA), RAX)
		if i == 0 {
			g.RR32(XOR, RAX, RAX)
		} else {
			g.Imm(RAX, signalBit)
		}
		g.Ret()
	}
}

// get returns the routine that reads a register into rax. It keeps all but rcx, rdx and r11. A register without a value
// is an outcome: in edx with the carry set, or returned for the simple rule that called.
func (g *x86) get(slot arch.Slot, simple bool) Label {
	k := getKey{slot, simple}
	l, ok := g.gets[k]
	if !ok {
		l = g.Label()
		g.gets[k] = l
		g.getOrder = append(g.getOrder, k)
	}
	return l
}

func (g *x86) getters() {
	for i := 0; i < len(g.getOrder); i++ {
		g.getter(g.getOrder[i])
	}
}

func (g *x86) getter(k getKey) {
	g.Set(g.gets[k])
	lost, inMem, done := g.Label(), g.Label(), g.Label()
	failed := func(o rows.Outcome) {
		if k.simple {
			g.Pop(RCX)
			g.Imm(RAX, uint64(o))
		} else {
			g.Imm(RDX, uint64(o))
			g.Stc()
		}
		g.Ret()
	}
	if k.slot == arch.NoSlot {
		failed(rows.LostRegister)
		return
	}
	g.TestByte(bit(offKnown, k.slot))
	g.Jcc(E, lost)
	g.Load(RAX, val(k.slot))
	g.TestByte(bit(offInMem, k.slot))
	g.Jcc(NE, inMem)
	g.TestByte(bit(offInReg, k.slot)) // clears the carry
	g.Jcc(E, done)
	g.RI32(AND, RAX, arch.NumSlots-1) // clears it, too
	g.Load(RAX, Indexed(rState, RAX, 8, offSnap))
	g.Set(done)
	g.Ret()

	g.Set(inMem)
	if g.o.Deref == Self {
		g.Load(RAX, At(RAX, 0))
		if !k.simple {
			g.Clc()
		}
		g.Ret()
	} else {
		g.Mov(RCX, RAX)
		g.Call(g.load)
		g.Mov(RAX, RCX)
		if k.simple {
			bad := g.Label()
			g.Jcc(B, bad)
			g.Ret()
			g.Set(bad)
			g.Pop(RCX)
			g.Mov32(RAX, RDX)
		}
		g.Ret()
	}

	g.Set(lost)
	failed(rows.LostRegister)
}

// loader writes the routine that reads the eight bytes at rcx into rcx. It keeps all but rdx and r11. Where they cannot be
// read it sets the carry, the state's fault, and the outcome in edx. Behind it, loadRA reads the eight bytes below the CFA,
// or returns the outcome for the simple rule that called.
func (g *x86) loader() {
	switch g.o.Deref {
	case Slice:
		g.Set(g.load)
		other, miss, unreadable := g.Label(), g.Label(), g.Label()
		g.window(other)
		g.Clc()
		g.Ret()
		g.Set(other)
		g.Load(RDX, At(rMem, sliceWords))
		g.Load(R11, At(rMem, sliceN))
		next, hit := g.Here(), g.Label()
		g.RI(SUB, R11, 1)
		g.Jcc(B, miss)
		g.RM(CMP, RCX, At(RDX, wordAddr))
		g.Jcc(E, hit)
		g.RI(ADD, RDX, wordSize)
		g.Jmp(next)
		g.Set(hit)
		g.MI(CMP, At(RDX, wordOK), 0)
		g.Jcc(E, unreadable)
		g.Load(RCX, At(RDX, wordValue))
		g.Clc()
		g.Ret()
		g.Set(miss)
		g.MI(CMP, At(rMem, sliceMore), 0)
		g.Jcc(E, unreadable)
		g.Store(field(offFault), RCX)
		g.Imm(RDX, uint64(needWord))
		g.Stc()
		g.Ret()
		g.Set(unreadable)
		g.Store(field(offFault), RCX)
		g.Imm(RDX, uint64(rows.Unreadable))
		g.Stc()
		g.Ret()
	case Callback:
		from := g.Here()
		g.Set(g.load)
		g.Push(RBP)
		pushed := g.Here()
		g.Mov(RBP, RSP)
		framed := g.Here()
		kept := []Reg{RAX, RDI, RSI, R8, R9, R10, RCX}
		for _, r := range kept {
			g.Push(r)
		}
		g.RI(SUB, RSP, 16)
		g.RI(AND, RSP, -16)
		g.Mov(RDX, RSP)
		g.Load(RAX, At(rMem, 0))
		g.Load(RDI, At(rMem, 8))
		g.Mov(RSI, RCX)
		g.CallReg(RAX)
		g.Load(RCX, At(RSP, 0))
		g.RI32(CMP, RAX, 1) // the carry says that nothing was read; what follows keeps it
		for i, r := range kept[:len(kept)-1] {
			g.Load(r, At(RBP, int32(-8*(i+1))))
		}
		bad := g.Label()
		g.Jcc(B, bad)
		g.Leave()
		left := g.Here()
		g.Ret()
		g.Set(bad)
		again := g.Here()
		g.Load(RCX, At(RBP, int32(-8*len(kept))))
		g.Store(field(offFault), RCX)
		g.Imm(RDX, uint64(rows.Unreadable))
		g.Leave()
		gone := g.Here()
		g.Ret()
		g.frames = append(g.frames, region{from, frameNone}, region{pushed, framePushed}, region{framed, frameBP},
			region{left, frameNone}, region{again, frameBP}, region{gone, frameNone})
	}

	bad := g.Label()
	g.Set(g.loadRA)
	g.Lea(RCX, At(RAX, -8))
	if g.o.Deref == Slice {
		other := g.Label()
		g.window(other)
		g.Ret()
		g.Set(other)
	}
	g.Call(g.load)
	g.Jcc(B, bad)
	g.Ret()
	g.Set(bad)
	g.Pop(RCX)
	g.Mov32(RAX, RDX)
	g.Ret()
}

// window reads the eight bytes at rcx into rcx if they are in the captured stack, else goes to other.
func (g *x86) window(other Label) {
	g.Mov(RDX, RCX)
	g.RM(SUB, RDX, At(rMem, sliceLo))
	g.Load(R11, At(rMem, sliceSize))
	g.RR(SUB, R11, RDX)
	g.Jcc(B, other)
	g.RI(CMP, R11, 8)
	g.Jcc(B, other)
	g.RM(ADD, RDX, At(rMem, sliceBytes))
	g.Load(RCX, At(RDX, 0))
}
