package native

import (
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/arm64"
)

// armTop points to the top of an expression's stack, which grows down from armStack.
const armTop = X6

// expr evaluates e into x9, or goes to failed.
func (g *arm) expr(e string, pushCFA bool, failed Label) {
	g.Call(g.evaluator(e, pushCFA))
	g.Cbnz(armWhy, failed)
}

// expression writes the routine of an expression.
func (g *arm) expression(k exprKey) {
	x := g.newExpression(k)
	g.Set(g.exprs[k])
	g.Store(At(SP, armBack), X30)
	g.AddImm(armTop, SP, armStack)
	depth := 0
	if k.pushCFA {
		g.Load(armValue, At(SP, armCFA))
		g.push(armValue)
		depth = 1
	}
	x.straight(depth)
	g.Set(x.bad)
	g.Imm(armWhy, uint64(rows.BadExpr))
	g.Set(x.fail)
	g.Load(X30, At(SP, armBack))
	g.Ret(X30)
	g.Set(x.end)
	g.pop(armValue)
	g.Imm(armWhy, 0)
	g.Load(X30, At(SP, armBack))
	g.Ret(X30)
}

func (g *arm) push(r Reg) {
	g.SubImm(armTop, armTop, 8)
	g.Store(At(armTop, 0), r)
}

func (g *arm) pop(r Reg) {
	g.Load(r, At(armTop, 0))
	g.AddImm(armTop, armTop, 8)
}

// depthBelow and depthAbove end the expression where its stack has fewer than n values, or more.
func (g *arm) depthBelow(n int, bad label) {
	if n > 0 {
		g.depth(n)
		g.Jcc(LO, bad)
	}
}

func (g *arm) depthAbove(n int, bad label) {
	g.depth(n)
	g.Jcc(HI, bad)
}

func (g *arm) depth(n int) {
	g.AddImm(X10, SP, armStack)
	g.RR(SUB, X10, X10, armTop)
	g.CmpImm(X10, uint64(8*n))
}

// count sets how many operations may follow, countDown counts one, and jumpIf is DW_OP_bra.
func (g *arm) count(n int) {
	g.Imm(X10, uint64(n))
	g.Store(At(SP, armSteps), X10)
}

func (g *arm) countDown(bad label) {
	g.Load(X10, At(SP, armSteps))
	g.Cbz(X10, bad)
	g.SubImm(X10, X10, 1)
	g.Store(At(SP, armSteps), X10)
}

func (g *arm) jumpIf(l label) {
	g.pop(armValue)
	g.Cbnz(armValue, l)
}

// op writes one operation that does not jump, on a stack that is deep enough.
func (g *arm) op(x *expression, op rows.Op) {
	binary := func(f func()) { // x9 is the top, x11 the one below it and the result
		g.LoadPair(X9, X11, At(armTop, 0))
		g.AddImm(armTop, armTop, 8)
		f()
		g.Store(At(armTop, 0), X11)
	}
	unary := func(f func()) {
		g.Load(X9, At(armTop, 0))
		f()
		g.Store(At(armTop, 0), X9)
	}
	alu := func(o Op) { binary(func() { g.RR(o, X11, X11, X9) }) }
	compare := func(c Cond) { binary(func() { g.Cmp(X11, X9); g.Cset(X11, c) }) }
	pick := func(n int32) { g.Load(X9, At(armTop, 8*n)); g.push(X9) }
	// Where nothing or all is shifted out.
	shift := func(o Op) {
		binary(func() {
			g.RR(o, X11, X11, X9)
			g.CmpImm(X9, 64)
			g.Csel(X11, X11, XZR, LO)
		})
	}
	switch c := op.Code; {
	case c >= rows.DW_OP_breg0 && c <= rows.DW_OP_breg31, c == rows.DW_OP_bregx:
		if op.Reg == g.mach.PC {
			g.Load(armValue, armField(offPC))
		} else {
			g.register(op.Reg, x.fail)
		}
		g.addTo(armValue, armValue, op.Arg)
		g.push(armValue)
	case c == rows.DW_OP_deref:
		unary(func() { g.read(x.fail) })
	case c == rows.DW_OP_deref_size:
		g.derefSize(x, uint64(op.Arg))
	case c == rows.DW_OP_dup:
		pick(0)
	case c == rows.DW_OP_drop:
		g.AddImm(armTop, armTop, 8)
	case c == rows.DW_OP_over:
		pick(1)
	case c == rows.DW_OP_pick:
		pick(int32(op.Arg))
	case c == rows.DW_OP_swap:
		g.LoadPair(X9, X10, At(armTop, 0))
		g.StorePair(X10, X9, At(armTop, 0))
	case c == rows.DW_OP_rot:
		g.LoadPair(X9, X10, At(armTop, 0))
		g.Load(X11, At(armTop, 16))
		g.StorePair(X10, X11, At(armTop, 0))
		g.Store(At(armTop, 16), X9)
	case c == rows.DW_OP_nop:
	case c == rows.DW_OP_abs:
		unary(func() {
			g.AsrImm(X10, X9, 63)
			g.RR(EOR, X9, X9, X10)
			g.RR(SUB, X9, X9, X10)
		})
	case c == rows.DW_OP_neg:
		unary(func() { g.RR(SUB, X9, XZR, X9) })
	case c == rows.DW_OP_not:
		unary(func() { g.RR(ORN, X9, XZR, X9) })
	case c == rows.DW_OP_plus_uconst:
		unary(func() { g.addTo(X9, X9, op.Arg) })
	case c == rows.DW_OP_and:
		alu(AND)
	case c == rows.DW_OP_or:
		alu(ORR)
	case c == rows.DW_OP_xor:
		alu(EOR)
	case c == rows.DW_OP_plus:
		alu(ADD)
	case c == rows.DW_OP_minus:
		alu(SUB)
	case c == rows.DW_OP_mul:
		alu(MUL)
	case c == rows.DW_OP_div: // the one quotient that overflows wraps
		binary(func() { g.Cbz(X9, x.bad); g.RR(SDIV, X11, X11, X9) })
	case c == rows.DW_OP_mod:
		binary(func() { g.Cbz(X9, x.bad); g.RR(UDIV, X10, X11, X9); g.Msub(X11, X10, X9, X11) })
	case c == rows.DW_OP_shl:
		shift(LSL)
	case c == rows.DW_OP_shr:
		shift(LSR)
	case c == rows.DW_OP_shra:
		binary(func() {
			g.Imm(X10, 63)
			g.Cmp(X9, X10)
			g.Csel(X9, X10, X9, HI)
			g.RR(ASR, X11, X11, X9)
		})
	case c == rows.DW_OP_eq:
		compare(EQ)
	case c == rows.DW_OP_ne:
		compare(NE)
	case c == rows.DW_OP_ge:
		compare(GE)
	case c == rows.DW_OP_gt:
		compare(GT)
	case c == rows.DW_OP_le:
		compare(LE)
	case c == rows.DW_OP_lt:
		compare(LT)
	default: // an address or a number
		g.Imm(X9, uint64(op.Arg))
		g.push(X9)
	}
}

// derefSize reads n bytes at the top of the stack. Behind Self lies a process's own memory, which is read to the byte;
// elsewhere eight bytes are read, those from the address on or those that end with the value.
func (g *arm) derefSize(x *expression, n uint64) {
	top := At(armTop, 0)
	switch {
	case n == 0 || n > 8:
		g.Jmp(x.bad)
		return
	case g.o.Deref == Self && n == 8:
		g.Load(X9, top)
		g.Load(X9, At(X9, 0))
		g.Store(top, X9)
		return
	case g.o.Deref == Self:
		g.Load(X9, top)
		g.LoadSize(Byte, X10, At(X9, int32(n)-1))
		for i := int32(n) - 2; i >= 0; i-- {
			g.LoadSize(Byte, X11, At(X9, i))
			g.Shifted(ORR, X10, X11, X10, 8)
		}
		g.Store(top, X10)
		return
	}
	g.Load(X7, armField(offFault)) // of a return address before, which stays if the second try succeeds
	g.Load(armRead, top)
	g.Call(g.load)
	if n == 8 {
		g.Cbnz(armWhy, x.fail)
		g.Store(top, armRead)
		return
	}
	bits := uint8(64 - 8*n)
	behind, ok, done := g.Label(), g.Label(), g.Label()
	g.Cbnz(armWhy, behind)
	g.LslImm(armRead, armRead, bits)
	g.LsrImm(armRead, armRead, bits)
	g.Jmp(done)
	g.Set(behind)
	g.needsWord(x.fail)
	g.Load(armRead, top)
	g.SubImm(armRead, armRead, 8-n)
	g.Call(g.load)
	g.Cbz(armWhy, ok)
	g.needsWord(x.fail)
	g.Load(X9, top)
	g.Store(armField(offFault), X9)
	g.Jmp(x.fail)
	g.Set(ok)
	g.Store(armField(offFault), X7)
	g.LsrImm(armRead, armRead, bits)
	g.Set(done)
	g.Store(top, armRead)
}
