package native

import (
	"github.com/unspool/unspool/emit/compact"

	. "github.com/unspool/unspool/emit/native/arm64"
)

// entryPoints writes what callers call, under the procedure call standard (AAPCS64).
func (g *arm) entryPoints() {
	g.find = g.Label()
	apply, found := g.Label(), g.Label()
	enter := func(entry int) {
		g.region(frameEntry)
		g.entries[entry] = g.Here()
		g.Mov(armLink, X30)
		g.region(frameNone)
	}
	if g.o.has(entryFind) {
		enter(entryFind)
		g.Mov(X2, X0)
		g.Call(g.find)
		g.Mov32(X0, armValue)
		g.Ret(armLink)
		g.ends[entryFind] = g.Here()
	}
	enter(entryStep)
	if g.o.Layout == Inline {
		g.Jmp(g.find)
		g.ends[entryStep] = g.Here()
		return
	}
	if g.o.Layout == Page && g.t.NumRows() >= inlineRows {
		// The search once more, in line: that saves a call and a return.
		g.after = found
		g.page()
		g.after = 0
	} else {
		g.Call(g.find)
		g.Jmp(apply)
	}
	g.ends[entryStep] = g.Here()
	enter(entryApply)
	g.Mov32(armValue, X2) // the upper half of an argument may be anything
	g.Imm(X10, uint64(len(g.rules)))
	g.Cmp(armValue, X10)
	g.Jcc(HS, g.noRule)
	g.Set(apply)
	g.Set(found)
	g.part(X15, partRules, 0)
	g.LoadIndexed(Word, X10, X15, armValue)
	g.AndImm(X10, X10, 1<<31-1)
	g.Page(X15, 0)
	g.RR(ADD, X10, X10, X15)
	g.JmpReg(X10)
	g.ends[entryApply] = g.Here()
}

// What a tree's search needs. The address, less the first one where that makes numbers smaller, is in x9.
func (g *arm) address()        { g.Mov(armValue, X2) }
func (g *arm) cmp32(v uint64)  { g.cmp(v) }
func (g *arm) below(l label)   { g.Jcc(LO, l) }
func (g *arm) atLeast(l label) { g.Jcc(HS, l) }

func (g *arm) sub(v uint64) {
	switch {
	case v == 0:
	case Arith(v):
		g.SubImm(armValue, armValue, v)
	default:
		g.Imm(X10, v)
		g.RR(SUB, armValue, armValue, X10)
	}
}

func (g *arm) cmp(v uint64) {
	if Arith(v) {
		g.CmpImm(armValue, v)
		return
	}
	g.Imm(X10, v)
	g.Cmp(armValue, X10)
}

func (g *arm) number(id uint32) {
	g.Imm(armValue, uint64(id))
	g.found()
}

// found ends a search: it returns, or goes on where the step does.
func (g *arm) found() {
	if g.after != 0 {
		g.Jmp(g.after)
	} else {
		g.Ret(X30)
	}
}

// page searches as docs/TABLE.md has it: x9 is the offset in the span in units, x11 its granule, x12 its region.
func (g *arm) page() {
	x := g.t.Index()
	none := g.Label()
	if x.NumSpans == 0 {
		g.number(0)
		return
	}
	g.Mov(armValue, X2)
	if x.NumSpans == 1 {
		s := x.First
		g.sub(s.Lo)
		g.cmp(s.Hi - s.Lo)
		g.Jcc(HS, none)
		g.addTo(armValue, armValue, int64(s.Lo-s.Base))
		if s.Shift != 0 {
			g.LsrImm(armValue, armValue, s.Shift)
		}
		g.LsrImm(X11, armValue, compact.GranuleBits)
		g.LsrImm(X12, armValue, compact.RegionBits)
	} else {
		g.spans(x, none)
	}
	g.part(X15, partRegions, 0)
	g.LoadIndexed(Word, X12, X15, X12)
	g.part(X15, partGranules, 0)
	g.Shifted(ADD, X15, X15, X11, 1)
	g.LoadSize(Half, X10, At(X15, 0))
	g.LoadSize(Half, X11, At(X15, 2))
	g.RR32(SUB, X13, X10, X12)
	g.Zext16(X13, X13)
	g.RR32(ADD, X13, X13, X12) // the granule's first row
	g.RR32(SUB, X11, X11, X10)
	g.Zext16(X11, X11) // its rows
	g.part(X15, partRows, 0)
	g.Shifted(ADD, X14, X15, X13, 1)

	// Count the low bytes that are not above: 16 at a time, which ascend; what lies behind them is cut off.
	g.Dup(0, armValue)
	g.Imm(X15, 0)
	more, counted := g.Here(), g.Label()
	g.LoadVec(1, X14, X15)
	g.NotBelow(1, 0, 1)
	g.Nibbles(1, 1)
	g.Low(X10, 1)
	g.RR(ORN, X10, XZR, X10)
	g.Rbit(X10, X10)
	g.Clz(X10, X10)
	g.LsrImm(X10, X10, 2)
	g.RR(ADD, X15, X15, X10)
	g.CmpImm(X10, 16)
	g.Jcc(NE, counted)
	g.Cmp(X15, X11)
	g.Jcc(LO, more)
	g.Set(counted)
	g.Cmp(X15, X11)
	g.Csel(X15, X11, X15, HI)
	if len(x.EscapeKeys) > 0 {
		g.RR(ADD, X13, X13, X15) // one more than the row
	}
	g.CmpImm(X15, 0)
	g.Csel(X11, X15, X11, EQ)
	g.RR(ADD, X11, X11, X15)
	g.RR(ADD, X11, X14, X11)
	g.LoadSize(Byte, armValue, At(X11, -1))
	if len(x.EscapeKeys) > 0 {
		escaped := g.Label()
		g.CmpImm(armValue, compact.EscapeID)
		g.Jcc(EQ, escaped)
		g.found()
		g.Set(escaped)
		g.escapes(x, none)
	} else {
		g.found()
	}
	g.Set(none)
	g.number(0)
}

// spans finds the span of the address in x9.
func (g *arm) spans(x *compact.Index, none Label) {
	above, done := g.Label(), g.Label()
	g.part(X15, partSpans, 0)
	g.Imm(X11, 0)
	g.Imm(X12, uint64(x.NumSpans))
	next := g.Here()
	g.Cmp(X11, X12)
	g.Jcc(HS, done)
	g.RR(ADD, X13, X11, X12)
	g.LsrImm(X13, X13, 1)
	g.Shifted(ADD, X10, X15, X13, 5)
	g.Load(X10, At(X10, 0))
	g.Cmp(armValue, X10)
	g.Jcc(LO, above)
	g.AddImm(X11, X13, 1)
	g.Jmp(next)
	g.Set(above)
	g.Mov(X12, X13)
	g.Jmp(next)
	g.Set(done)
	g.Cbz(X11, none)
	g.SubImm(X11, X11, 1)
	g.Shifted(ADD, X15, X15, X11, 5)
	g.LoadPair(X10, X11, At(X15, 0))
	g.Cmp(armValue, X11)
	g.Jcc(HS, none)
	g.Load(X13, At(X15, 24)) // the shift, in its low byte
	g.Imm(X12, 1<<compact.GranuleBits)
	g.RR(LSL, X12, X12, X13)
	g.RR(SUB, X12, XZR, X12)
	g.RR(AND, X12, X12, X10)
	g.RR(SUB, armValue, armValue, X12)
	g.RR(LSR, armValue, armValue, X13)
	g.LoadSize(Word, X11, At(X15, 16))
	g.LoadSize(Word, X12, At(X15, 20))
	g.LsrImm(X13, armValue, compact.GranuleBits)
	g.RR(ADD, X11, X11, X13)
	g.LsrImm(X13, armValue, compact.RegionBits)
	g.RR(ADD, X12, X12, X13)
}

// escapes looks up the row before x13 among those whose rule does not fit a byte.
func (g *arm) escapes(x *compact.Index, none Label) {
	below, hit := g.Label(), g.Label()
	g.SubImm(X13, X13, 1)
	g.LsrImm(X10, X13, compact.EscapeBits)
	g.part(X15, partEscDir, 0)
	g.Shifted(ADD, X15, X15, X10, 2)
	g.LoadSize(Word, X11, At(X15, 0))
	g.LoadSize(Word, X12, At(X15, 4))
	g.AndImm(X13, X13, 1<<compact.EscapeBits-1)
	g.part(X15, partEscKeys, 0)
	next := g.Here()
	g.Cmp(X11, X12)
	g.Jcc(HS, none)
	g.RR(ADD, X10, X11, X12)
	g.LsrImm(X10, X10, 1)
	g.LoadIndexed(Half, armValue, X15, X10)
	g.Cmp(armValue, X13)
	g.Jcc(EQ, hit)
	g.Jcc(LO, below)
	g.Mov(X12, X10)
	g.Jmp(next)
	g.Set(below)
	g.AddImm(X11, X10, 1)
	g.Jmp(next)
	g.Set(hit)
	g.part(X15, partEscRules, 0)
	if x.EscapeSize == 4 {
		g.LoadIndexed(Word, armValue, X15, X10)
	} else {
		g.LoadIndexed(Half, armValue, X15, X10)
	}
	g.found()
}
