package native

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/amd64"
)

// A wide rule has a frame, addressed by rbp, where the results wait until all rules have seen the registers as they
// were; below it lies the stack of expressions.
const (
	wideCFA   = -8
	wideRA    = -16
	wideFrom  = -24 // the outcome of the return address's rule
	wideStack = -32 // rsp at the start of an expression
	wideSteps = -40 // operations that an expression with jumps may still do
	wideFirst = -48 // results by rule
)

// wide writes any rule: in the order of rows.Step, so that the same memory is at fault. r8 has the slots that are to be
// forgotten, lost ones among them, and r9 those that get a value, until all that can fail is done.
func (g *x86) wide(s *rows.Set) {
	b := g.bodyOf(s)
	c := &s.CFA
	if c.Kind == rows.CFAExpr {
		g.enterFrame(len(s.Rules))
		g.expr(c.Expr, false, g.wideExit)
		g.Jmp(b.inFrame)
		g.region(frameNone)
		return
	}
	g.Call(g.get(arch.AMD64.Slot(c.Reg), true))
	g.add(c.Off)
	switch c.Kind {
	case rows.CFARegDeref:
		g.read(g.fail)
		g.add(c.Off2)
	case rows.CFAPLT:
		g.plt(c.Off2)
	}
	g.Jmp(b.start)
}

// enterFrame makes a frame with room for the results of n rules.
func (g *x86) enterFrame(n int) {
	g.region(frameNone)
	g.Push(RBP)
	g.region(framePushed)
	g.Mov(RBP, RSP)
	g.region(frameBP)
	g.Lea(RSP, At(RBP, resultAt(8*int32(n-1))))
}

// resultAt is where a result waits, from rbp.
func resultAt(at int32) int32 { return wideFirst - at }

func (g *x86) wideBody(b *body) {
	m := arch.AMD64
	s := &b.rules
	g.Set(b.start)
	g.enterFrame(len(s.Rules))
	g.Set(b.inFrame)
	g.Store(At(RBP, wideCFA), RAX)
	p := g.planOf(s)
	g.zeroOr(R8, p.forget)
	g.zeroOr(R9, p.values)

	// What can fail, in the order of the registers. Nearly always the return address is the last.
	raLast := s.RA == m.RA
	if !raLast {
		g.StoreImm(At(RBP, wideFrom), int32(rows.LostRegister))
	}
	hasRA, done := false, uint64(0)
	results := p.copies
	for i := range s.Rules {
		r := &s.Rules[i]
		switch slot := m.Slot(r.Of); {
		case r.Of == s.RA && r.Kind == rows.Undefined:
			g.Imm(RDX, uint64(rows.Outermost))
			g.Jmp(g.wideExit)
			return
		case r.Of == s.RA:
			hasRA = true
			g.wideReturn(r, raLast)
		case slot != arch.NoSlot && r.Kind >= rows.RegOffset && done>>slot&1 == 0:
			got := g.sharing(s, i, raLast)
			for _, x := range got {
				done |= 1 << x.slot
			}
			results = append(results, got...)
			g.wideRule(r, got, p.values)
		}
	}
	switch {
	case !hasRA && raLast:
		g.Imm(RDX, uint64(rows.LostRegister))
		g.Jmp(g.wideExit)
		return
	case !raLast:
		g.Load(RDX, At(RBP, wideFrom))
		g.Test32(RDX)
		g.Jcc(NE, g.wideExit)
	}

	// Nothing fails any more. Copies see the registers as they were.
	if len(p.copies) > 0 {
		g.RR32(XOR, R10, R10)
		g.RR32(XOR, R11, R11)
	}
	for _, r := range p.copies {
		g.copyLocation(r)
	}
	for i, r := range results {
		if i == 0 || results[i-1].at != r.at {
			g.Load(RAX, At(RBP, resultAt(r.at)))
		}
		g.storeSum(r.slot, int64(r.off))
	}
	g.Load(RAX, At(RBP, wideCFA))
	for _, r := range p.later {
		g.storeSum(m.Slot(r.Of), r.Off)
	}
	if !raLast {
		g.Load(RCX, At(RBP, wideRA))
	}
	if s.Flags&(rows.RASigned|rows.RASignPC) != 0 {
		g.Shift(SHL, RCX, 16)
		g.Shift(SHR, RCX, 16)
	}
	g.Imm(RDX, p.inMem)
	_, spRule := s.Rule(m.SP)
	end := wideKey{copies: len(p.copies) > 0, signal: s.Flags&rows.Signal != 0, partial: s.Flags&rows.Partial != 0, ra: m.Slot(s.RA), sp: !spRule || s.RA == m.SP}
	g.Jmp(g.end(end))
}

// wideRule computes what the results of r have in common, and puts it where they wait; or forgets their slots.
func (g *x86) wideRule(r *rows.Rule, got []result, values uint64) {
	mask := uint64(0)
	for _, x := range got {
		mask |= 1 << x.slot
	}
	found, lost := g.Label(), g.Label()
	if got[0].off != 0 {
		g.register(r.Reg, lost)
	} else {
		g.value(r, lost)
	}
	g.Store(At(RBP, resultAt(got[0].at)), RAX)
	g.Jmp(found)
	g.Set(lost)
	g.RI(OR, R8, int32(mask))
	if values&mask != 0 {
		g.RI(AND, R9, ^int32(mask))
	}
	g.needsWord()
	g.Set(found)
}

// storeSum writes rax + off as what is known of a slot. It may use rdx.
func (g *x86) storeSum(slot arch.Slot, off int64) {
	switch {
	case off == 0:
		g.Store(val(slot), RAX)
		return
	case off == int64(int32(off)):
		g.Lea(RDX, At(RAX, int32(off)))
	default:
		g.Imm(RDX, uint64(off))
		g.RR(ADD, RDX, RAX)
	}
	g.Store(val(slot), RDX)
}

// copyLocation puts a copy's value where results wait, and its location into r9 (known), r10 (in memory) and r11 (in a
// register).
func (g *x86) copyLocation(r result) {
	g.Load(RAX, val(r.from))
	g.Store(At(RBP, resultAt(r.at)), RAX)
	for _, x := range [...]struct {
		mask Reg
		off  int32
	}{{R9, offKnown}, {R10, offInMem}, {R11, offInReg}} {
		not := g.Label()
		g.TestByte(bit(x.off, r.from))
		g.Jcc(E, not)
		g.Bts(x.mask, byte(r.slot))
		g.Set(not)
	}
}

// wideCommit makes the state that of the caller: rax is the CFA, rcx the return address; r8 has the slots that are
// forgotten, r9 those that are known nonetheless, rdx those that are in memory.
func (g *x86) wideCommit(k wideKey) {
	g.Set(g.wides[k])
	if !k.copies {
		g.RR32(XOR, R10, R10)
		g.RR32(XOR, R11, R11)
	}
	var set uint64 // slots that get a value here; the return address goes before the CFA
	if k.sp {
		set |= 1 << slotSP
		g.Store(val(slotSP), RAX)
	}
	if k.ra != arch.NoSlot {
		set |= 1 << k.ra
		g.Store(val(k.ra), RCX)
	}
	g.Store(field(offPC), RCX)
	g.Store(field(offCFA), RAX)
	g.RI(OR, R9, int32(set))
	g.RI(OR, R8, int32(set))
	g.Load(RCX, field(offInReg))
	g.Mov(RAX, R8)
	g.RR(OR, RAX, RDX)
	g.Not(RAX)
	g.RR(AND, RCX, RAX)
	g.RR(OR, RCX, R11)
	g.Store(field(offInReg), RCX)
	g.Not(R8)
	g.Load(RCX, field(offInMem))
	g.RR(OR, RCX, RDX)
	g.RR(AND, RCX, R8)
	g.RR(OR, RCX, R10)
	g.Store(field(offInMem), RCX)
	if k.partial {
		g.Imm(RCX, 0)
	} else {
		g.Load(RCX, field(offKnown))
	}
	if !k.partial && !k.signal {
		g.RI32(AND, RCX, int32(arch.AMD64.SavedSlots()))
	}
	g.RR(OR, RCX, RDX)
	g.RR(AND, RCX, R8)
	g.RR(OR, RCX, R9)
	g.Store(field(offKnown), RCX)
	g.Imm(RDX, 0)
	if k.signal {
		g.Imm(RDX, signalBit)
	}
	g.Jmp(g.wideExit)
}

// exits writes what wide rules and simple ones share.
func (g *x86) exits() {
	g.Set(g.noRule)
	g.Imm(RAX, uint64(rows.NoRule))
	g.Ret()
	g.Set(g.fail)
	g.Mov32(RAX, RDX)
	g.Ret()
	g.Set(g.wideExit)
	g.region(frameBP)
	g.Mov32(RAX, RDX)
	g.Leave()
	g.region(frameNone)
	g.Ret()
}

// zeroOr puts a number into r.
func (g *x86) zeroOr(r Reg, v uint64) {
	if v == 0 {
		g.RR32(XOR, r, r)
	} else {
		g.Imm(r, v)
	}
}

// add adds a number of any size to rax. It may use rdx.
func (g *x86) add(v int64) {
	switch {
	case v == 0:
	case v == int64(int32(v)):
		g.RI(ADD, RAX, int32(v))
	default:
		g.Imm(RDX, uint64(v))
		g.RR(ADD, RAX, RDX)
	}
}

// read reads the eight bytes at rax into rax. Where they cannot be read it goes to bad with an outcome in edx.
func (g *x86) read(bad Label) {
	if g.o.Deref == Self {
		g.Load(RAX, At(RAX, 0))
		return
	}
	g.Mov(RCX, RAX)
	g.Call(g.load)
	g.Jcc(B, bad)
	g.Mov(RAX, RCX)
}

// register reads a register into rax, or goes to bad with an outcome in edx.
func (g *x86) register(r arch.Reg, bad Label) {
	g.Call(g.get(arch.AMD64.Slot(r), false))
	g.Jcc(B, bad)
}

// value computes what a rule says into rax; isAddr says that it is where the value lies.
func (g *x86) value(r *rows.Rule, bad Label) (isAddr bool) {
	switch r.Kind {
	case rows.Offset, rows.ValOffset:
		g.Load(RAX, At(RBP, wideCFA))
		g.add(r.Off)
	case rows.RegOffset, rows.RegDeref:
		g.register(r.Reg, bad)
		g.add(r.Off)
	case rows.Expr, rows.ValExpr:
		g.expr(r.Expr, true, bad)
	case rows.SameValue:
		g.register(r.Of, bad)
	case rows.Register:
		g.register(r.Reg, bad)
	}
	return r.Kind == rows.Offset || r.Kind == rows.RegDeref || r.Kind == rows.Expr
}

// wideReturn reads the return address into rcx, or ends the step; where other rules follow, it keeps it, or the reason why
// there is none, for later.
func (g *x86) wideReturn(r *rows.Rule, last bool) {
	if last {
		if g.o.Deref == Self && r.Kind == rows.Offset && r.Off == int64(int32(r.Off)) {
			g.Load(RAX, At(RBP, wideCFA))
			g.Load(RCX, At(RAX, int32(r.Off)))
			return
		}
		if g.value(r, g.wideExit) {
			g.read(g.wideExit)
		}
		g.Mov(RCX, RAX)
		return
	}
	bad, done := g.Label(), g.Label()
	if g.value(r, bad) {
		g.read(bad)
	}
	g.Store(At(RBP, wideRA), RAX)
	g.StoreImm(At(RBP, wideFrom), int32(rows.OK))
	g.Jmp(done)
	g.Set(bad)
	g.needsWord()
	g.Store(At(RBP, wideFrom), RDX)
	g.Set(done)
}

// needsWord ends the step where the outcome in edx only says that a word is missing.
func (g *x86) needsWord() {
	if g.o.Deref == Slice {
		g.RI32(CMP, RDX, int32(needWord))
		g.Jcc(E, g.wideExit)
	}
}
