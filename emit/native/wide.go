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
	wideSteps = -32 // operations that an expression with jumps may still do
	wideFirst = -40 // results by rule
)

// A wideRule is what a generator knows of the rule it is writing.
type wideRule struct {
	base int32 // of the expressions' stack, from rbp
	lost Label // where the step ends without the CFA
}

// wide writes any rule: in the order of rows.Step, so that the same memory is at fault. The new masks are in r8
// (known), r9 (in memory) and r10 (in a register).
func (g *generator) wide(s *rows.Set) {
	m := arch.AMD64
	g.frames = append(g.frames, region{g.Here(), frameNone})
	g.Push(RBP)
	g.frames = append(g.frames, region{g.Here(), framePushed})
	g.Mov(RBP, RSP)
	g.frames = append(g.frames, region{g.Here(), frameBP})
	w := wideRule{base: wideFirst - 8*int32(len(s.Rules)-1)}
	g.Lea(RSP, At(RBP, w.base))

	g.wideCFA(&w, &s.CFA)
	g.Store(At(RBP, wideCFA), RAX)
	g.Load(R8, field(offKnown))
	if s.Flags&rows.Signal == 0 {
		g.RI32(AND, R8, int32(m.SavedSlots()))
	}
	g.Load(R9, field(offInMem))
	g.Load(R10, field(offInReg))
	g.located(slotSP, false)
	g.StoreImm(At(RBP, wideFrom), int32(rows.LostRegister))

	type result struct {
		slot arch.Slot
		at   int32
	}
	results := []result{{slotSP, wideCFA}}
	for i := range s.Rules {
		r := &s.Rules[i]
		slot := m.Slot(r.Of)
		if r.Of == s.RA {
			if r.Kind == rows.Undefined {
				g.Imm(RDX, uint64(rows.Outermost))
				g.Jmp(g.wideExit)
				return
			}
			g.wideReturn(&w, r)
			if slot == slotRA {
				continue // it becomes the return address itself
			}
		}
		if slot == arch.NoSlot {
			continue
		}
		at := wideFirst - 8*int32(i)
		g.locate(&w, r, slot, at)
		results = append(results, result{slot, at})
	}

	g.Load(RDX, At(RBP, wideFrom))
	g.Test32(RDX)
	g.Jcc(NE, g.wideExit)
	for _, r := range results {
		g.Load(RAX, At(RBP, r.at))
		g.Store(val(r.slot), RAX)
	}
	g.Load(RAX, At(RBP, wideCFA))
	g.Load(RCX, At(RBP, wideRA))
	if s.Flags&(rows.RASigned|rows.RASignPC) != 0 {
		g.Shift(SHL, RCX, 16)
		g.Shift(SHR, RCX, 16)
	}
	if slot := m.Slot(s.RA); slot != arch.NoSlot {
		g.located(slot, false)
		g.Store(val(slot), RCX)
	}
	g.Store(field(offKnown), R8)
	g.Store(field(offInMem), R9)
	g.Store(field(offInReg), R10)
	g.Store(field(offPC), RCX)
	g.Store(field(offCFA), RAX)
	g.Imm(RDX, 0)
	if s.Flags&rows.Signal != 0 {
		g.Imm(RDX, signalBit)
	}
	g.Jmp(g.wideExit)
}

// exits writes what wide rules and simple ones share.
func (g *generator) exits() {
	g.Set(g.noRule)
	g.Imm(RAX, uint64(rows.NoRule))
	g.Ret()
	g.Set(g.fail)
	g.Mov32(RAX, RDX)
	g.Ret()
	g.Set(g.wideExit)
	g.frames = append(g.frames, region{g.Here(), frameBP})
	g.Mov32(RAX, RDX)
	g.Leave()
	g.frames = append(g.frames, region{g.Here(), frameNone})
	g.Ret()
}

// located marks a slot as known: at an address, or as a value.
func (g *generator) located(slot arch.Slot, inMem bool) {
	g.Bts(R8, byte(slot))
	if inMem {
		g.Bts(R9, byte(slot))
	} else {
		g.Btr(R9, byte(slot))
	}
	g.Btr(R10, byte(slot))
}

// add adds a number of any size to rax.
func (g *generator) add(v int64) {
	switch {
	case v == 0:
	case v == int64(int32(v)):
		g.RI(ADD, RAX, int32(v))
	default:
		g.Imm(RCX, uint64(v))
		g.RR(ADD, RAX, RCX)
	}
}

// read reads the eight bytes at rax into rax. Where they cannot be read it goes to bad with an outcome in edx.
func (g *generator) read(bad Label) {
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
func (g *generator) register(r arch.Reg, bad Label) {
	g.Call(g.get(arch.AMD64.Slot(r), false))
	g.Jcc(B, bad)
}

func (g *generator) wideCFA(w *wideRule, c *rows.CFA) {
	if c.Kind == rows.CFAExpr {
		g.expr(w, c.Expr, false, g.wideExit)
		return
	}
	g.register(c.Reg, g.wideExit)
	g.add(c.Off)
	switch c.Kind {
	case rows.CFARegDeref:
		g.read(g.wideExit)
		g.add(c.Off2)
	case rows.CFAPLT:
		g.plt(c.Off2)
	}
}

// value computes what a rule says into rax; isAddr says that it is where the value lies.
func (g *generator) value(w *wideRule, r *rows.Rule, bad Label) (isAddr bool) {
	switch r.Kind {
	case rows.Offset, rows.ValOffset:
		g.Load(RAX, At(RBP, wideCFA))
		g.add(r.Off)
	case rows.RegOffset, rows.RegDeref:
		g.register(r.Reg, bad)
		g.add(r.Off)
	case rows.Expr, rows.ValExpr:
		g.expr(w, r.Expr, true, bad)
	case rows.SameValue:
		g.register(r.Of, bad)
	case rows.Register:
		g.register(r.Reg, bad)
	}
	return r.Kind == rows.Offset || r.Kind == rows.RegDeref || r.Kind == rows.Expr
}

// wideReturn reads the return address, or keeps the reason why there is none.
func (g *generator) wideReturn(w *wideRule, r *rows.Rule) {
	bad, done := g.Label(), g.Label()
	if g.value(w, r, bad) {
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
func (g *generator) needsWord() {
	if g.o.Deref == Slice {
		g.RI32(CMP, RDX, int32(needWord))
		g.Jcc(E, g.wideExit)
	}
}

// locate puts where a register lies into the frame, at an offset from rbp, and into the masks.
func (g *generator) locate(w *wideRule, r *rows.Rule, slot arch.Slot, at int32) {
	from := slot
	switch r.Kind {
	case rows.Undefined:
		g.Btr(R8, byte(slot))
		return
	case rows.Register:
		if from = arch.AMD64.Slot(r.Reg); from == arch.NoSlot {
			g.Btr(R8, byte(slot))
			return
		}
		fallthrough
	case rows.SameValue:
		g.Load(RAX, val(from))
		g.Store(At(RBP, at), RAX)
		for _, x := range [...]struct {
			mask Reg
			off  int32
		}{{R8, offKnown}, {R9, offInMem}, {R10, offInReg}} {
			off := g.Label()
			g.Btr(x.mask, byte(slot))
			g.TestByte(bit(x.off, from))
			g.Jcc(E, off)
			g.Bts(x.mask, byte(slot))
			g.Set(off)
		}
		return
	case rows.Offset, rows.ValOffset: // cannot fail
		inMem := g.value(w, r, 0)
		g.Store(At(RBP, at), RAX)
		g.located(slot, inMem)
		return
	}
	bad, done := g.Label(), g.Label()
	inMem := g.value(w, r, bad)
	g.Store(At(RBP, at), RAX)
	g.located(slot, inMem)
	g.Jmp(done)
	g.Set(bad)
	g.needsWord()
	g.Btr(R8, byte(slot))
	g.Set(done)
}
