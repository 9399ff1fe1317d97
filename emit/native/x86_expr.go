package native

import (
	"math"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/amd64"
)

// expr evaluates e into rax, or goes to failed with an outcome in edx. Its routine sets the carry where it failed. An expression runs on the
// processor's own stack.
func (g *x86) expr(e string, pushCFA bool, failed Label) {
	g.Call(g.evaluator(e, pushCFA))
	g.Jcc(B, failed)
}

// expression writes the routine of an expression.
func (g *x86) expression(k exprKey) {
	x := g.newExpression(k)
	g.Set(g.exprs[k])
	g.Store(At(RBP, wideStack), RSP)
	depth := 0
	if k.pushCFA {
		g.PushMem(At(RBP, wideCFA))
		depth = 1
	}
	x.straight(depth)
	g.Set(x.bad)
	g.Imm(RDX, uint64(rows.BadExpr))
	g.Set(x.fail)
	g.Load(RSP, At(RBP, wideStack))
	g.Stc()
	g.Ret()
	g.Set(x.end)
	g.Pop(RAX)
	g.Load(RSP, At(RBP, wideStack))
	g.Clc()
	g.Ret()
}

// depthBelow and depthAbove end the expression where its stack has fewer than n values, or more.
func (g *x86) depthBelow(n int, bad label) {
	if n > 0 {
		g.depth()
		g.RI(CMP, RAX, int32(8*n))
		g.Jcc(B, bad)
	}
}

func (g *x86) depthAbove(n int, bad label) {
	g.depth()
	g.RI(CMP, RAX, int32(8*n))
	g.Jcc(A, bad)
}

// count sets how many operations may follow, countDown counts one, and jumpIf is DW_OP_bra.
func (g *x86) count(n int) { g.StoreImm(At(RBP, wideSteps), int32(n)) }

func (g *x86) countDown(bad label) {
	g.MI(SUB, At(RBP, wideSteps), 1)
	g.Jcc(B, bad)
}

func (g *x86) jumpIf(l label) {
	g.Pop(RAX)
	g.Test(RAX)
	g.Jcc(NE, l)
}

// depth puts the size of the stack into rax, in bytes.
func (g *x86) depth() {
	g.Load(RAX, At(RBP, wideStack))
	g.RR(SUB, RAX, RSP)
}

// op writes one operation that does not jump, on a stack that is deep enough.
func (g *x86) op(x *expression, op rows.Op) {
	binary := func(f func()) { // rax is the top, rcx the one below it and the result
		g.Pop(RAX)
		g.Pop(RCX)
		f()
		g.Push(RCX)
	}
	alu := func(o Op) { binary(func() { g.RR(o, RCX, RAX) }) }
	compare := func(c Cond) {
		binary(func() {
			g.RR(CMP, RCX, RAX)
			g.Setcc(c, RCX)
			g.Zext8(RCX, RCX)
		})
	}
	top := At(RSP, 0)
	switch c := op.Code; {
	case c >= rows.DW_OP_breg0 && c <= rows.DW_OP_breg31, c == rows.DW_OP_bregx:
		if op.Reg == arch.AMD64.PC {
			g.Load(RAX, field(offPC))
		} else {
			g.register(op.Reg, x.fail)
		}
		g.add(op.Arg)
		g.Push(RAX)
	case c == rows.DW_OP_deref:
		g.Pop(RAX)
		g.read(x.fail)
		g.Push(RAX)
	case c == rows.DW_OP_deref_size:
		g.derefSize(x, uint64(op.Arg))
	case c == rows.DW_OP_dup:
		g.PushMem(top)
	case c == rows.DW_OP_drop:
		g.Pop(RAX)
	case c == rows.DW_OP_over:
		g.PushMem(At(RSP, 8))
	case c == rows.DW_OP_pick:
		g.PushMem(At(RSP, int32(8*op.Arg)))
	case c == rows.DW_OP_swap:
		binary(func() { g.Push(RAX) })
	case c == rows.DW_OP_rot:
		g.Pop(RAX)
		g.Pop(RCX)
		g.Pop(RDX)
		g.Push(RAX)
		g.Push(RDX)
		g.Push(RCX)
	case c == rows.DW_OP_nop:
	case c == rows.DW_OP_abs:
		g.Pop(RAX)
		g.Mov(RCX, RAX)
		g.Shift(SAR, RCX, 63)
		g.RR(XOR, RAX, RCX)
		g.RR(SUB, RAX, RCX)
		g.Push(RAX)
	case c == rows.DW_OP_neg:
		g.Pop(RAX)
		g.Neg(RAX)
		g.Push(RAX)
	case c == rows.DW_OP_not:
		g.Pop(RAX)
		g.Not(RAX)
		g.Push(RAX)
	case c == rows.DW_OP_plus_uconst:
		g.Pop(RAX)
		g.add(op.Arg)
		g.Push(RAX)
	case c == rows.DW_OP_and:
		alu(AND)
	case c == rows.DW_OP_or:
		alu(OR)
	case c == rows.DW_OP_xor:
		alu(XOR)
	case c == rows.DW_OP_plus:
		alu(ADD)
	case c == rows.DW_OP_minus:
		alu(SUB)
	case c == rows.DW_OP_mul:
		binary(func() { g.Mul(RCX, RAX) })
	case c == rows.DW_OP_div:
		g.divide(x, true)
	case c == rows.DW_OP_mod:
		g.divide(x, false)
	case c == rows.DW_OP_shl:
		g.shift(SHL)
	case c == rows.DW_OP_shr:
		g.shift(SHR)
	case c == rows.DW_OP_shra:
		g.shift(SAR)
	case c == rows.DW_OP_eq:
		compare(E)
	case c == rows.DW_OP_ne:
		compare(NE)
	case c == rows.DW_OP_ge:
		compare(GE)
	case c == rows.DW_OP_gt:
		compare(G)
	case c == rows.DW_OP_le:
		compare(LE)
	case c == rows.DW_OP_lt:
		compare(L)
	default: // an address or a number
		if v := op.Arg; v >= math.MinInt32 && v <= math.MaxInt32 {
			g.PushImm(int32(v))
		} else {
			g.Imm(RAX, uint64(v))
			g.Push(RAX)
		}
	}
}

// divide is a signed quotient, or an unsigned remainder.
func (g *x86) divide(x *expression, signed bool) {
	minus, done := g.Label(), g.Label()
	g.Pop(RCX)
	g.Pop(RAX)
	g.Test(RCX)
	g.Jcc(E, x.bad)
	if !signed {
		g.RR32(XOR, RDX, RDX)
		g.Div(RCX)
		g.Push(RDX)
		return
	}
	g.RI(CMP, RCX, -1)
	g.Jcc(E, minus)
	g.Cqo()
	g.IDiv(RCX)
	g.Jmp(done)
	g.Set(minus) // the one quotient that overflows wraps
	g.Neg(RAX)
	g.Set(done)
	g.Push(RAX)
}

// shift shifts by any number of bits.
func (g *x86) shift(s Shift) {
	g.Pop(RCX)
	g.Pop(RAX)
	if s == SAR {
		g.Imm(RDX, 63)
		g.RR(CMP, RCX, RDX)
		g.Cmov(A, RCX, RDX)
		g.ShiftCL(SAR, RAX)
	} else {
		g.ShiftCL(s, RAX)
		g.RI(CMP, RCX, 64)
		g.RR(SBB, RDX, RDX) // ones if less
		g.RR(AND, RAX, RDX)
	}
	g.Push(RAX)
}

// derefSize reads n bytes at the top of the stack. Behind Self lies a process's own memory, which is read to the byte;
// elsewhere eight bytes are read, those from the address on or those that end with the value.
func (g *x86) derefSize(x *expression, n uint64) {
	switch {
	case n == 0 || n > 8:
		g.Jmp(x.bad)
		return
	case n == 8:
		g.Pop(RAX)
		g.read(x.fail)
		g.Push(RAX)
		return
	case g.o.Deref == Self:
		g.Pop(RCX)
		g.Imm(RAX, 0)
		for i := int32(n) - 1; i >= 0; i-- {
			g.Shift(SHL, RAX, 8)
			g.Load8(RDX, At(RCX, i))
			g.RR(OR, RAX, RDX)
		}
		g.Push(RAX)
		return
	}
	bits := byte(64 - 8*n)
	behind, done := g.Label(), g.Label()
	g.Load(RCX, At(RSP, 0))
	g.Call(g.load)
	g.Jcc(B, behind)
	g.Shift(SHL, RCX, bits)
	g.Shift(SHR, RCX, bits)
	g.Jmp(done)
	g.Set(behind)
	if g.o.Deref == Slice {
		g.RI32(CMP, RDX, int32(needWord))
		g.Jcc(E, x.fail)
	}
	g.Load(RCX, At(RSP, 0))
	g.RI(SUB, RCX, int32(8-n))
	ok := g.Label()
	g.Call(g.load)
	g.Jcc(AE, ok)
	if g.o.Deref == Slice {
		g.RI32(CMP, RDX, int32(needWord))
		g.Jcc(E, x.fail)
	}
	g.Pop(RAX)
	g.Store(field(offFault), RAX)
	g.Jmp(x.fail)
	g.Set(ok)
	g.Shift(SHR, RCX, bits)
	g.Set(done)
	g.Store(At(RSP, 0), RCX)
}
