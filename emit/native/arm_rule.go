package native

import (
	"encoding/binary"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/arm64"
)

// An armHead says how a simple rule begins: what the CFA is relative to, and where the return address is.
type armHead struct {
	reg    arch.Slot
	saved  bool  // the return address is in memory, at ra from the register; else in x30
	ra     int32 // 0 where it is not
	signed bool
}

// An armShape is what a simple rule says but for the offset of the CFA. Frames of many sizes have their registers at the same offsets from the
// register that the CFA is relative to.
type armShape struct {
	head   armHead
	signal bool
	saves  string // a slot and an offset each
}

// An armSave is a register that was saved, at an offset from the register that the CFA is relative to.
type armSave struct {
	slot arch.Slot
	off  int32
}

const armSaveSize = 5

func (k *armShape) save(i int) armSave {
	b := k.saves[armSaveSize*i:]
	return armSave{arch.Slot(b[0]), int32(uint32(b[1]) | uint32(b[2])<<8 | uint32(b[3])<<16 | uint32(b[4])<<24)}
}

func (k *armShape) numSaves() int { return len(k.saves) / armSaveSize }

// rule writes the code of a rule. It is entered by a jump, and returns an outcome to who called the entry point.
func (g *arm) rule(s *rows.Set) {
	switch {
	case s.CFA.Kind == rows.CFANone && s.Outermost():
		g.Imm(X0, uint64(rows.Outermost))
		g.Ret(armLink)
		return
	case s.CFA.Kind == rows.CFANone:
		g.Jmp(g.noRule)
		return
	}
	k, ok := g.simple(s)
	switch {
	case !ok:
		g.wide(s)
	case s.Outermost():
		g.Call(g.get(k.head.reg))
		g.Cbnz(armWhy, g.fail)
		g.Imm(X0, uint64(rows.Outermost))
		g.Ret(armLink)
	default:
		g.Imm(armSize, uint64(s.CFA.Off))
		g.restore(k)
	}
}

// tailRules writes simple rules that only differ in the size of the frame, and their common end.
func (g *arm) tailRules(shape any, ids []uint32) {
	end := g.Label()
	for i, id := range ids {
		g.Set(g.rules[id])
		s := g.t.Set(id)
		g.Imm(armSize, uint64(s.CFA.Off))
		if i+1 < len(ids) {
			g.Jmp(end)
		}
	}
	g.Set(end)
	g.restore(shape.(armShape))
}

// shape is simple for the generator.
func (g *arm) shape(s *rows.Set) (any, bool) { return g.simple(s) }

// simple returns the shape of a rule that has only saved registers at offsets from the CFA.
func (g *arm) simple(s *rows.Set) (k armShape, ok bool) {
	m, c := g.mach, &s.CFA
	if c.Kind != rows.CFAReg || m.Slot(c.Reg) == arch.NoSlot || s.RA != m.RA || s.Flags&rows.Partial != 0 || c.Off != int64(int32(c.Off)) {
		return k, false
	}
	k.head = armHead{reg: m.Slot(c.Reg), signed: s.Flags&(rows.RASigned|rows.RASignPC) != 0}
	if s.Outermost() {
		return k, true
	}
	k.signal = s.Flags&rows.Signal != 0
	var saves []armSave
	for _, r := range s.Rules {
		slot, off := m.Slot(r.Of), r.Off+c.Off
		if r.Kind != rows.Offset || slot == arch.NoSlot || slot == armSP || off != int64(int32(off)) || r.Off != int64(int32(r.Off)) {
			return k, false
		}
		if r.Of == m.RA {
			k.head.saved, k.head.ra = true, int32(off)
		}
		saves = append(saves, armSave{slot, int32(off)})
	}
	// Compilers save x29 and x30 first, then pairs from x19 on: so what many shapes have in common comes first.
	slices.SortStableFunc(saves, func(a, b armSave) int {
		order := func(s armSave) int {
			if s.slot == 29 || s.slot == armRA {
				return int(s.slot) - 64
			}
			return int(s.slot)
		}
		return order(a) - order(b)
	})
	var b []byte
	for _, s := range saves {
		b = binary.LittleEndian.AppendUint32(append(b, byte(s.slot)), uint32(s.off))
	}
	k.saves = string(b)
	return k, true
}

// restore writes what rules of a shape do with the size of their frame in x8.
func (g *arm) restore(k armShape) {
	l, ok := g.heads[k.head]
	if !ok {
		l = g.Label()
		g.heads[k.head] = l
		g.headOrder = append(g.headOrder, k.head)
	}
	g.Call(l)
	mask := uint64(0)
	for i := range k.numSaves() {
		mask |= 1 << k.save(i).slot
	}
	g.Imm(X13, mask)

	// The last registers first: what lies behind them is shared.
	for i := k.numSaves(); i > 0; i-- {
		key := k.saves[:armSaveSize*i]
		if k.signal {
			key += "s"
		}
		if l, ok := g.chains[key]; ok {
			g.Jmp(l)
			return
		}
		g.chains[key] = g.Here()
		s := k.save(i - 1)
		if i > 1 {
			if t := k.save(i - 2); t.slot == s.slot-1 {
				// Two neighbours in one go; who has only the first of them has code of its own.
				g.addTo(X10, armValue, int64(t.off))
				g.addTo(X15, armValue, int64(s.off))
				g.StorePair(X10, X15, armVal(t.slot))
				i--
				continue
			}
		}
		if s.off == 0 {
			g.Store(armVal(s.slot), armValue)
			continue
		}
		g.addTo(X10, armValue, int64(s.off))
		g.Store(armVal(s.slot), X10)
	}
	i := 0
	if k.signal {
		i = 1
	}
	if g.commit[i] == 0 {
		g.commit[i] = g.Label()
	}
	g.Jmp(g.commit[i])
}

// headCode reads the register that the CFA is relative to into x9, and the return address into x11; or ends the step.
func (g *arm) headCode(k armHead) {
	g.Set(g.heads[k])
	g.Mov(X17, X30)
	g.Call(g.get(k.reg))
	g.Cbnz(armWhy, g.fail)
	switch {
	case k.saved && g.o.Deref == Self:
		g.addTo(X10, armValue, int64(k.ra))
		g.Load(armRead, At(X10, 0))
	case k.saved:
		g.addTo(armRead, armValue, int64(k.ra))
		g.Call(g.load)
		g.Cbnz(armWhy, g.fail)
	default:
		g.Mov(X7, armValue)
		g.Call(g.get(armRA))
		g.Cbnz(armWhy, g.fail)
		g.Mov(armRead, armValue)
		g.Mov(armValue, X7)
	}
	if k.signed {
		g.strip()
	}
	g.Ret(X17)
}

// strip removes the signature of the return address in x11. It may use x30.
func (g *arm) strip() {
	if g.o.Deref == Self {
		g.Mov(X30, armRead)
		g.Strip()
		g.Mov(armRead, X30)
		return
	}
	given := g.Label()
	at := int32(readerAddresses)
	if g.o.Deref == Slice {
		at = sliceAddresses
	}
	g.Load(X10, At(armMem, at))
	g.Cbnz(X10, given)
	g.Imm(X10, arch.AddressMask)
	g.Set(given)
	g.RR(AND, armRead, armRead, X10)
}

// commits makes the state that of the caller: x9 is what the CFA is relative to, x8 its offset, x11 the return address, x13 the slots that
// were saved.
func (g *arm) commits() {
	const sp = 1 << armSP
	for i, l := range g.commit {
		if l == 0 {
			continue
		}
		g.Set(l)
		g.RR(ADD, armValue, armValue, armSize)
		g.LoadPair(X10, X12, armField(offKnown))
		if i == 0 {
			g.Imm(X15, g.mach.SavedSlots())
			g.RR(AND, X10, X10, X15)
		}
		g.RR(ORR, X10, X10, X13)
		g.OrrImm(X10, X10, sp)
		g.AndImm(X12, X12, ^uint64(sp))
		g.RR(ORR, X12, X12, X13)
		g.StorePair(X10, X12, armField(offKnown))
		g.Load(X10, armField(offInReg))
		g.RR(BIC, X10, X10, X13)
		g.AndImm(X10, X10, ^uint64(sp))
		g.Store(armField(offInReg), X10)
		g.Store(armVal(armSP), armValue)
		g.StorePair(armRead, armValue, armField(offPC))
		if i == 0 {
			g.Imm(X0, 0)
		} else {
			g.Imm(X0, signalBit)
		}
		g.Ret(armLink)
	}
}

// get returns the routine that reads a register into x9, with the outcome in x14. It may use x10 to x12 and x15.
func (g *arm) get(slot arch.Slot) Label {
	l, ok := g.gets[slot]
	if !ok {
		l = g.Label()
		g.gets[slot] = l
		g.getOrder = append(g.getOrder, slot)
	}
	return l
}

func (g *arm) getters() {
	for _, k := range g.headOrder {
		g.headCode(k)
	}
	for i := 0; i < len(g.getOrder); i++ {
		g.getter(g.getOrder[i])
	}
}

func (g *arm) getter(slot arch.Slot) {
	g.Set(g.gets[slot])
	if slot == arch.NoSlot {
		g.Imm(armWhy, uint64(rows.LostRegister))
		g.Ret(X30)
		return
	}
	lost, inMem, done := g.Label(), g.Label(), g.Label()
	g.LoadPair(armValue, X10, armField(offKnown))
	g.Tbz(armValue, uint8(slot), lost)
	g.Load(armValue, armVal(slot))
	g.Tbnz(X10, uint8(slot), inMem)
	g.Load(X10, armField(offInReg))
	g.Imm(armWhy, 0)
	g.Tbz(X10, uint8(slot), done)
	g.AndImm(armValue, armValue, arch.NumSlots-1)
	g.AddImm(X10, armState, offSnap)
	g.LoadIndexed(Double, armValue, X10, armValue)
	g.Set(done)
	g.Ret(X30)

	g.Set(inMem)
	if g.o.Deref == Self {
		g.Load(armValue, At(armValue, 0))
		g.Imm(armWhy, 0)
		g.Ret(X30)
	} else {
		g.Mov(X12, X30)
		g.Mov(armRead, armValue)
		g.Call(g.load)
		g.Mov(armValue, armRead)
		g.Ret(X12)
	}

	g.Set(lost)
	g.Imm(armWhy, uint64(rows.LostRegister))
	g.Ret(X30)
}

// loader writes the routine that reads the eight bytes at x11 into x11. It keeps all but x10, x14 and x15. Where they cannot be read it sets the
// state's fault. The outcome is in x14.
func (g *arm) loader() {
	g.Set(g.load)
	switch g.o.Deref {
	case Slice:
		other, miss, unreadable := g.Label(), g.Label(), g.Label()
		g.LoadPair(X10, X15, At(armMem, sliceLo))
		g.RR(SUB, X10, armRead, X10)
		g.Cmp(X10, X15)
		g.Jcc(HS, other)
		g.RR(SUB, X15, X15, X10)
		g.CmpImm(X15, 8)
		g.Jcc(LO, other)
		g.Load(X15, At(armMem, sliceBytes))
		g.RR(ADD, X15, X15, X10)
		g.Load(armRead, At(X15, 0))
		g.Imm(armWhy, 0)
		g.Ret(X30)
		g.Set(other)
		g.LoadPair(X10, X15, At(armMem, sliceWords))
		next, hit := g.Here(), g.Label()
		g.Cbz(X15, miss)
		g.SubImm(X15, X15, 1)
		g.Load(armWhy, At(X10, wordAddr))
		g.Cmp(armWhy, armRead)
		g.Jcc(EQ, hit)
		g.AddImm(X10, X10, wordSize)
		g.Jmp(next)
		g.Set(hit)
		g.Load(armWhy, At(X10, wordOK))
		g.Cbz(armWhy, unreadable)
		g.Load(armRead, At(X10, wordValue))
		g.Imm(armWhy, 0)
		g.Ret(X30)
		g.Set(miss)
		g.Load(armWhy, At(armMem, sliceMore))
		g.Cbz(armWhy, unreadable)
		g.Store(armField(offFault), armRead)
		g.Imm(armWhy, uint64(needWord))
		g.Ret(X30)
		g.Set(unreadable)
		g.Store(armField(offFault), armRead)
		g.Imm(armWhy, uint64(rows.Unreadable))
		g.Ret(X30)
	case Callback:
		bad := g.Label()
		g.PushPair(X29, armLink, 16)
		g.region(framePushed)
		g.AddImm(X29, SP, 0)
		g.region(frameBP)
		g.SubImm(SP, SP, 128)
		kept := [...]Reg{X0, X1, X2, X3, X4, X5, X6, X7, X8, X9, X12, X13, X17, X30}
		for i := 0; i < len(kept); i += 2 {
			g.StorePair(kept[i], kept[i+1], At(SP, int32(16+8*i)))
		}
		g.Store(At(SP, 8), armRead)
		g.LoadPair(X9, X0, At(armMem, 0))
		g.Mov(X1, armRead)
		g.AddImm(X2, SP, 0)
		g.CallReg(X9)
		g.Mov32(armWhy, X0)
		g.LoadPair(armRead, X10, At(SP, 0))
		for i := 0; i < len(kept); i += 2 {
			g.LoadPair(kept[i], kept[i+1], At(SP, int32(16+8*i)))
		}
		g.AddImm(SP, X29, 0)
		g.PopPair(X29, armLink, 16)
		g.region(frameNone)
		g.Cbz(armWhy, bad)
		g.Imm(armWhy, 0)
		g.Ret(X30)
		g.Set(bad)
		g.Store(armField(offFault), X10)
		g.Imm(armWhy, uint64(rows.Unreadable))
		g.Ret(X30)
	}
}
