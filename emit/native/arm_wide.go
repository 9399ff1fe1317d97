package native

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/arm64"
)

// A wide rule has a frame, where the results wait until all rules have seen the registers as they were. Offsets are from sp; the stack of
// expressions comes first.
const (
	armStack   = 8 * maxExprStack // its end
	armCFA     = armStack
	armReturn  = armStack + 8  // the return address
	armFrom    = armStack + 16 // the outcome of its rule
	armBack    = armStack + 24 // the link of an expression's routine
	armSteps   = armStack + 32 // operations that an expression with jumps may still do
	armResults = armStack + 40
)

// wide writes any rule: in the order of rows.Step, so that the same memory is at fault. x2 has the slots that are to be forgotten, lost ones
// among them, and x3 those that get a value, until all that can fail is done.
func (g *arm) wide(s *rows.Set) {
	b := g.bodyOf(s)
	c := &s.CFA
	if c.Kind == rows.CFAExpr {
		g.enterFrame(len(s.Rules))
		g.expr(c.Expr, false, g.wideExit)
		g.Jmp(b.inFrame)
		g.region(frameNone)
		return
	}
	g.register(c.Reg, g.fail)
	g.addTo(armValue, armValue, c.Off)
	switch c.Kind {
	case rows.CFARegDeref:
		g.read(g.fail)
		g.addTo(armValue, armValue, c.Off2)
	case rows.CFAPLT:
		g.plt(c.Off2)
	}
	g.Jmp(b.start)
}

// plt adds 8 to x9 where the four lowest bits of the program counter are not below limit.
func (g *arm) plt(limit int64) {
	if limit > 15 {
		return
	}
	below := g.Label()
	g.Load(X10, armField(offPC))
	g.AndImm(X10, X10, 15)
	g.CmpImm(X10, uint64(max(limit, 0)))
	g.Jcc(LO, below)
	g.AddImm(armValue, armValue, 8)
	g.Set(below)
}

// enterFrame makes a frame with room for the results of n rules.
func (g *arm) enterFrame(n int) {
	g.region(frameNone)
	g.PushPair(X29, armLink, 16)
	g.region(framePushed)
	g.AddImm(X29, SP, 0)
	g.region(frameBP)
	size := uint64(armResults+8*n+15) &^ 15
	if size >= 1<<12 {
		g.SubImm(SP, SP, size>>12<<12)
	}
	g.SubImm(SP, SP, size&0xfff)
	g.Self(armLink) // routines that are called from here unwind to this frame
}

func (g *arm) wideBody(b *body) {
	m := g.mach
	s := &b.rules
	g.Set(b.start)
	g.enterFrame(len(s.Rules))
	g.Set(b.inFrame)
	g.Store(At(SP, armCFA), armValue)
	p := g.planOf(s)
	g.Imm(X2, p.forget)
	g.Imm(X3, p.values)
	if _, ok := s.Rule(s.RA); !ok {
		g.wideReturn(&rows.Rule{Of: s.RA, Kind: rows.SameValue}, 0)
	}
	results := p.copies
	for i := range s.Rules {
		r := &s.Rules[i]
		slot := m.Slot(r.Of)
		switch {
		case r.Of == s.RA && r.Kind == rows.Undefined:
			g.Imm(armWhy, uint64(rows.Outermost))
			g.Jmp(g.wideExit)
			return
		case r.Of == s.RA:
			at := int32(0)
			if slot != arch.NoSlot && r.Kind >= rows.RegOffset {
				at = armResults + 8*int32(i)
				results = append(results, result{slot, arch.NoSlot, 8 * int32(i), 0})
			}
			g.wideReturn(r, at)
		case slot != arch.NoSlot && r.Kind >= rows.RegOffset:
			got := g.sharing(s, i, false)[0]
			results = append(results, got)
			g.wideRule(r, got, p.values)
		}
	}
	g.Load(armWhy, At(SP, armFrom))
	g.Cbnz(armWhy, g.wideExit)

	// Nothing fails any more. Copies see the registers as they were.
	if len(p.copies) > 0 {
		g.Imm(X4, 0)
		g.Imm(X5, 0)
	}
	for _, r := range p.copies {
		g.copyLocation(r)
	}
	for i, r := range results {
		if i == 0 || results[i-1].at != r.at {
			g.Load(armValue, At(SP, armResults+r.at))
		}
		g.storeSum(r.slot, int64(r.off))
	}
	g.Load(armValue, At(SP, armCFA))
	for _, r := range p.later {
		g.storeSum(m.Slot(r.Of), r.Off)
	}
	g.Load(armRead, At(SP, armReturn))
	if s.Flags&(rows.RASigned|rows.RASignPC) != 0 {
		g.strip()
	}
	g.Imm(X13, p.inMem)
	_, spRule := s.Rule(m.SP)
	g.Jmp(g.end(wideKey{copies: len(p.copies) > 0, signal: s.Flags&rows.Signal != 0, partial: s.Flags&rows.Partial != 0, ra: arch.NoSlot, sp: !spRule}))
}

// wideReturn finds the return address, or the reason why there is none, and keeps it for later. Where at is not 0, what the register's rule
// says waits there, too.
func (g *arm) wideReturn(r *rows.Rule, at int32) {
	bad, done := g.Label(), g.Label()
	isAddr := g.value(r, bad)
	if at != 0 {
		g.Store(At(SP, at), armValue)
	}
	if isAddr {
		g.read(bad)
	}
	g.Store(At(SP, armReturn), armValue)
	g.Store(At(SP, armFrom), XZR)
	g.Jmp(done)
	g.Set(bad)
	g.needsWord(g.wideExit)
	g.Store(At(SP, armFrom), armWhy)
	g.Set(done)
}

// wideRule computes what r says, and puts it where it waits; or forgets its slot.
func (g *arm) wideRule(r *rows.Rule, got result, values uint64) {
	found, lost := g.Label(), g.Label()
	if got.off != 0 {
		g.register(r.Reg, lost)
	} else {
		g.value(r, lost)
	}
	g.Store(At(SP, armResults+got.at), armValue)
	g.Jmp(found)
	g.Set(lost)
	g.OrrImm(X2, X2, 1<<got.slot)
	if values>>got.slot&1 != 0 {
		g.AndImm(X3, X3, ^(uint64(1) << got.slot))
	}
	g.needsWord(g.wideExit)
	g.Set(found)
}

// storeSum writes x9 + off as what is known of a slot.
func (g *arm) storeSum(slot arch.Slot, off int64) {
	if off == 0 {
		g.Store(armVal(slot), armValue)
		return
	}
	g.addTo(X10, armValue, off)
	g.Store(armVal(slot), X10)
}

// copyLocation puts a copy's value where results wait, and its location into x3 (known), x4 (in memory) and x5 (in a register).
func (g *arm) copyLocation(r result) {
	g.Load(X10, armVal(r.from))
	g.Store(At(SP, armResults+r.at), X10)
	for _, x := range [...]struct {
		mask Reg
		off  int32
	}{{X3, offKnown}, {X4, offInMem}, {X5, offInReg}} {
		g.Load(X10, armField(x.off))
		if r.from > 0 {
			g.LsrImm(X10, X10, uint8(r.from))
		}
		g.AndImm(X10, X10, 1)
		g.Shifted(ORR, x.mask, x.mask, X10, uint8(r.slot))
	}
}

// wideCommit makes the state that of the caller: x9 is the CFA, x11 the return address; x2 has the slots that are forgotten, x3 those that
// are known nonetheless, x13 those that are in memory.
func (g *arm) wideCommit(k wideKey) {
	g.Set(g.wides[k])
	if !k.copies {
		g.Imm(X4, 0)
		g.Imm(X5, 0)
	}
	g.StorePair(armRead, armValue, armField(offPC))
	if k.sp {
		g.Store(armVal(armSP), armValue)
		g.OrrImm(X3, X3, 1<<armSP)
		g.OrrImm(X2, X2, 1<<armSP)
	}
	g.Load(X12, armField(offInReg))
	g.RR(ORR, X10, X2, X13)
	g.RR(BIC, X12, X12, X10)
	g.RR(ORR, X12, X12, X5)
	g.Store(armField(offInReg), X12)
	g.LoadPair(X10, X12, armField(offKnown))
	g.RR(ORR, X12, X12, X13)
	g.RR(BIC, X12, X12, X2)
	g.RR(ORR, X12, X12, X4)
	switch {
	case k.partial:
		g.AndImm(X10, X10, 1<<armRA)
	case !k.signal:
		g.Imm(X15, g.mach.SavedSlots())
		g.RR(AND, X10, X10, X15)
	}
	g.RR(ORR, X10, X10, X13)
	g.RR(BIC, X10, X10, X2)
	g.RR(ORR, X10, X10, X3)
	g.StorePair(X10, X12, armField(offKnown))
	g.Imm(armWhy, 0)
	if k.signal {
		g.Imm(armWhy, signalBit)
	}
	g.Jmp(g.wideExit)
}

// read reads the eight bytes at x9 into x9. Where they cannot be read it goes to bad.
func (g *arm) read(bad Label) {
	if g.o.Deref == Self {
		g.Load(armValue, At(armValue, 0))
		return
	}
	g.Mov(armRead, armValue)
	g.Call(g.load)
	g.Cbnz(armWhy, bad)
	g.Mov(armValue, armRead)
}

// register reads a register into x9, or goes to bad.
func (g *arm) register(r arch.Reg, bad Label) {
	g.Call(g.get(g.mach.Slot(r)))
	g.Cbnz(armWhy, bad)
}

// value computes what a rule says into x9; isAddr says that it is where the value lies.
func (g *arm) value(r *rows.Rule, bad Label) (isAddr bool) {
	switch r.Kind {
	case rows.Offset, rows.ValOffset:
		g.Load(armValue, At(SP, armCFA))
		g.addTo(armValue, armValue, r.Off)
	case rows.RegOffset, rows.RegDeref:
		g.register(r.Reg, bad)
		g.addTo(armValue, armValue, r.Off)
	case rows.Expr, rows.ValExpr:
		g.expr(r.Expr, true, bad)
	case rows.SameValue:
		g.register(r.Of, bad)
	case rows.Register:
		g.register(r.Reg, bad)
	}
	return r.Kind == rows.Offset || r.Kind == rows.RegDeref || r.Kind == rows.Expr
}

// needsWord leaves where the outcome only says that a word is missing.
func (g *arm) needsWord(to Label) {
	if g.o.Deref == Slice {
		g.CmpImm(armWhy, uint64(needWord))
		g.Jcc(EQ, to)
	}
}
