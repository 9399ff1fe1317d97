package native

import (
	"math"

	"github.com/unspool/unspool/emit/compact"

	. "github.com/unspool/unspool/emit/native/amd64"
)

// entryPoints writes what callers call, under the System V ABI.
func (g *x86) entryPoints() {
	g.find = g.Label()
	apply, found := g.Label(), g.Label()
	if g.o.has(entryFind) {
		g.entries[entryFind] = g.Here()
		g.Mov(RDX, RDI)
		g.Jmp(g.find)
		g.ends[entryFind] = g.Here()
	}
	g.entries[entryStep] = g.Here()
	if g.o.Layout == Inline {
		g.Jmp(g.find)
		g.ends[entryStep] = g.Here()
		return
	}
	if g.o.Layout == Page && g.t.NumRows() >= inlineRows {
		// The search once more, in line: that saves a call and a return. It leaves the start of the file in r11.
		g.after = found
		g.page()
		g.after = 0
	} else {
		g.Call(g.find)
		g.Jmp(apply)
	}
	g.ends[entryStep] = g.Here()
	g.entries[entryApply] = g.Here()
	g.Mov32(RDX, RDX) // the upper half of an argument may be anything
	g.RI32(CMP, RDX, int32(len(g.rules)))
	g.Jcc(AE, g.noRule)
	g.Mov32(RAX, RDX)
	g.Set(apply)
	g.LeaAbs(R11, -g.start)
	g.Set(found)
	g.Load32(RDX, Indexed(R11, RAX, 4, g.parts[partRules]))
	g.Btr32(RDX, 31)
	g.RR(ADD, RDX, R11)
	g.JmpReg(RDX)
	g.ends[entryApply] = g.Here()
}

// sub subtracts a number of any size from rax; cmp compares rax with one. Both may use rcx.
func (g *x86) sub(v uint64) { g.with(SUB, v) }
func (g *x86) cmp(v uint64) { g.with(CMP, v) }

func (g *x86) with(op Op, v uint64) {
	switch {
	case v == 0 && op == SUB:
	case v <= math.MaxInt32:
		g.RI(op, RAX, int32(v))
	default:
		g.Imm(RCX, v)
		g.RR(op, RAX, RCX)
	}
}

// address, below and atLeast are what a tree's search needs beside sub and cmp.
func (g *x86) address()        { g.Mov(RAX, RDX) }
func (g *x86) cmp32(v uint64)  { g.RI32(CMP, RAX, int32(v)) }
func (g *x86) below(l label)   { g.Jcc(B, l) }
func (g *x86) atLeast(l label) { g.Jcc(AE, l) }
func (g *x86) number(id uint32) {
	if id == 0 {
		g.RR32(XOR, RAX, RAX)
	} else {
		g.Imm(RAX, uint64(id))
	}
	g.Ret()
}

// page searches as docs/TABLE.md has it: r11 is the start of the file, eax the offset in the span in units.
func (g *x86) page() {
	x := g.t.Index()
	none := g.Label()
	if x.NumSpans == 0 {
		g.RR32(XOR, RAX, RAX)
		g.found()
		return
	}
	part := func(r Reg, scale uint8, i int, add int32) Mem {
		return Indexed(R11, r, scale, g.parts[i]+add)
	}
	g.LeaAbs(R11, -g.start)
	g.Mov(RAX, RDX)
	if x.NumSpans == 1 {
		s := x.First
		g.sub(s.Lo)
		g.cmp(s.Hi - s.Lo)
		g.Jcc(AE, none)
		if d := s.Lo - s.Base; d != 0 {
			if d > math.MaxInt32 {
				g.Imm(RCX, d)
				g.RR(ADD, RAX, RCX)
			} else {
				g.RI(ADD, RAX, int32(d))
			}
		}
		if s.Shift != 0 {
			g.Shift(SHR, RAX, s.Shift)
		}
		g.Mov(RCX, RAX)
		g.Mov(R9, RAX)
		g.Shift(SHR, RCX, compact.GranuleBits)
		g.Shift(SHR, R9, compact.RegionBits)
	} else {
		g.spans(x, part, none)
	}
	g.Load32(R9, part(R9, 4, partRegions, 0))
	g.Load16(R10, part(RCX, 2, partGranules, 0))
	g.Load16(RCX, part(RCX, 2, partGranules, 2))
	g.Mov32(R8, R10)
	g.RR32(SUB, R8, R9)
	g.Zext16(R8, R8)
	g.RR32(ADD, R8, R9) // the granule's first row
	g.RR32(SUB, RCX, R10)
	g.Zext16(RCX, RCX) // its rows
	g.Lea(R10, part(R8, 2, partRows, 0))

	// Count the low bytes that are not above: 16 at a time, which ascend; what lies behind them is cut off.
	g.Zext8(RAX, RAX)
	g.MovdX(0, RAX)
	g.Unpack8(0, 0)
	g.Shuffle16(0, 0, 0)
	g.Unpack64(0, 0)
	g.RR32(XOR, RDX, RDX)
	more, counted := g.Here(), g.Label()
	g.LoadX(1, Indexed(R10, RDX, 1, 0))
	g.MovX(2, 1)
	g.Min8(2, 0)
	g.Equal8(2, 1)
	g.Mask8(RAX, 2)
	g.RI32(XOR, RAX, -1)
	g.Tzcnt32(RAX, RAX)
	g.RR32(ADD, RDX, RAX)
	g.RI32(CMP, RAX, 16)
	g.Jcc(NE, counted)
	g.RR32(CMP, RDX, RCX)
	g.Jcc(B, more)
	g.Set(counted)
	g.RR32(CMP, RDX, RCX)
	g.Cmov(A, RDX, RCX)
	if len(x.EscapeKeys) > 0 {
		g.RR32(ADD, R8, RDX) // one more than the row
	}
	g.Test32(RDX)
	g.Cmov(E, RCX, RDX)
	g.RR32(ADD, RCX, RDX)
	g.Load8(RAX, Indexed(R10, RCX, 1, -1))
	if len(x.EscapeKeys) > 0 {
		escaped := g.Label()
		g.RI32(CMP, RAX, compact.EscapeID)
		g.Jcc(E, escaped)
		g.found()
		g.Set(escaped)
		g.escapes(x, part, none)
	} else {
		g.found()
	}
	g.Set(none)
	g.RR32(XOR, RAX, RAX)
	g.found()
}

// spans finds the span of the address in rdx: rax becomes the offset in it, in units, rcx the granule, r9 the region.
func (g *x86) spans(x *compact.Index, part func(Reg, uint8, int, int32) Mem, none Label) {
	above, done := g.Label(), g.Label()
	g.RR32(XOR, RCX, RCX)
	g.Imm(R8, uint64(x.NumSpans))
	next := g.Here()
	g.RR(CMP, RCX, R8)
	g.Jcc(AE, done)
	g.Mov(R9, RCX)
	g.RR(ADD, R9, R8)
	g.Shift(SHR, R9, 1)
	g.Mov(R10, R9)
	g.Shift(SHL, R10, 5)
	g.RM(CMP, RAX, part(R10, 1, partSpans, 0))
	g.Jcc(B, above)
	g.Lea(RCX, At(R9, 1))
	g.Jmp(next)
	g.Set(above)
	g.Mov(R8, R9)
	g.Jmp(next)
	g.Set(done)
	g.RI(SUB, RCX, 1)
	g.Jcc(B, none)
	g.Shift(SHL, RCX, 5)
	g.Lea(R10, part(RCX, 1, partSpans, 0))
	g.RM(CMP, RAX, At(R10, 8))
	g.Jcc(AE, none)
	g.Load(RCX, At(R10, 24))
	g.Imm(R8, 1<<compact.GranuleBits)
	g.ShiftCL(SHL, R8)
	g.Neg(R8)
	g.RM(AND, R8, At(R10, 0))
	g.RR(SUB, RAX, R8)
	g.ShiftCL(SHR, RAX)
	g.Mov(RCX, RAX)
	g.Mov(R9, RAX)
	g.Shift(SHR, RCX, compact.GranuleBits)
	g.Shift(SHR, R9, compact.RegionBits)
	g.Load32(R8, At(R10, 16))
	g.RR(ADD, RCX, R8)
	g.Load32(R8, At(R10, 20))
	g.RR(ADD, R9, R8)
}

// escapes looks up the row before r8 among those whose rule does not fit a byte.
func (g *x86) escapes(x *compact.Index, part func(Reg, uint8, int, int32) Mem, none Label) {
	below, hit := g.Label(), g.Label()
	g.RI(SUB, R8, 1)
	g.Mov(RCX, R8)
	g.Shift(SHR, RCX, compact.EscapeBits)
	g.Load32(R9, part(RCX, 4, partEscDir, 0))
	g.Load32(R10, part(RCX, 4, partEscDir, 4))
	g.RI32(AND, R8, 1<<compact.EscapeBits-1)
	next := g.Here()
	g.RR(CMP, R9, R10)
	g.Jcc(AE, none)
	g.Lea(RCX, Indexed(R9, R10, 1, 0))
	g.Shift(SHR, RCX, 1)
	g.Load16(RAX, part(RCX, 2, partEscKeys, 0))
	g.RR32(CMP, RAX, R8)
	g.Jcc(E, hit)
	g.Jcc(B, below)
	g.Mov(R10, RCX)
	g.Jmp(next)
	g.Set(below)
	g.Lea(R9, At(RCX, 1))
	g.Jmp(next)
	g.Set(hit)
	if x.EscapeSize == 4 {
		g.Load32(RAX, part(RCX, 4, partEscRules, 0))
	} else {
		g.Load16(RAX, part(RCX, 2, partEscRules, 0))
	}
	g.found()
}

// found ends the search of a Page: it returns, or goes on where the step does.
func (g *x86) found() {
	if g.after != 0 {
		g.Jmp(g.after)
	} else {
		g.Ret()
	}
}
