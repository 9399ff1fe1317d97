package native

import (
	"math"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"

	. "github.com/unspool/unspool/emit/native/amd64"
)

// Bounds of an expression, as rows has them.
const (
	maxExprStack = 64
	maxExprSteps = 4096
)

// An exprKey is an expression: each is code once, a routine that evaluates it into rax. The carry says that it
// failed, with the outcome in edx. It is called from the frame of a wide rule.
type exprKey struct {
	e       string
	pushCFA bool
}

// An expression runs on the processor's own stack. One without jumps has a depth that is known at each
// operation; one with jumps counts its operations and checks its depth as it runs, and has code for each offset
// that can be reached, be it within an operation.
type expression struct {
	g    *generator
	e    string
	fail Label // outcome in edx, stack as it may be
	bad  Label // ill-formed, or too long
	end  Label
	at   map[int]*spot // code by offset
	todo []int
}

// A spot is the code of an offset in an expression with jumps.
type spot struct {
	label   Label
	written bool
}

// expr evaluates e into rax, or goes to failed with an outcome in edx.
func (g *generator) expr(e string, pushCFA bool, failed Label) {
	k := exprKey{e, pushCFA}
	l, ok := g.exprs[k]
	if !ok {
		l = g.Label()
		g.exprs[k] = l
		g.exprOrder = append(g.exprOrder, k)
		g.size += len(e)
	}
	g.Call(l)
	g.Jcc(B, failed)
}

// evaluator writes the routine of an expression.
func (g *generator) evaluator(k exprKey) {
	x := expression{g: g, e: k.e, fail: g.Label(), bad: g.Label(), end: g.Label(), at: map[int]*spot{}}
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

// straight writes operations one after the other as long as none of them jumps.
func (x *expression) straight(depth int) {
	for at, steps := 0, 1; at < len(x.e); steps++ {
		op, err := rows.DecodeOp(x.e, at)
		if err == nil && (op.Code == rows.DW_OP_bra || op.Code == rows.DW_OP_skip) {
			x.withJumps(at, steps)
			return
		}
		need, gives := rows.StackUse(op)
		if err != nil || steps > maxExprSteps || depth < need || depth-need+gives > maxExprStack ||
			op.Code == rows.DW_OP_pick && int(op.Arg) >= depth {
			x.g.Jmp(x.bad)
			return
		}
		depth += gives - need
		at = op.Next
		x.op(op)
	}
	if depth == 0 {
		x.g.Jmp(x.bad)
	} else {
		x.g.Jmp(x.end)
	}
}

// withJumps writes what follows from an offset on, when so many operations have begun.
func (x *expression) withJumps(at, steps int) {
	g := x.g
	g.StoreImm(At(RBP, wideSteps), int32(maxExprSteps-steps+1))
	g.Jmp(x.spot(at).label)
	for len(x.todo) > 0 {
		at := x.todo[len(x.todo)-1]
		x.todo = x.todo[:len(x.todo)-1]
		if !x.at[at].written {
			x.chain(at)
		}
	}
}

// spot returns the code of an offset, which is written later if it was not yet.
func (x *expression) spot(at int) *spot {
	p := x.at[at]
	if p == nil {
		p = &spot{label: x.g.Label()}
		x.at[at] = p
		x.todo = append(x.todo, at)
	}
	return p
}

// chain writes operations from an offset on until one has been written before.
func (x *expression) chain(at int) {
	g := x.g
	for {
		p := x.spot(at)
		if p.written {
			g.Jmp(p.label)
			return
		}
		p.written = true
		g.Set(p.label)
		if at == len(x.e) {
			x.depthBelow(1)
			g.Jmp(x.end)
			return
		}
		g.MI(SUB, At(RBP, wideSteps), 1)
		g.Jcc(B, x.bad)
		op, err := rows.DecodeOp(x.e, at)
		if err != nil {
			g.Jmp(x.bad)
			return
		}
		need, gives := rows.StackUse(op)
		x.depthBelow(need)
		if gives > need {
			x.depthAbove(maxExprStack - (gives - need))
		}
		to := op.Next + int(op.Arg)
		out := to < 0 || to > len(x.e)
		switch op.Code {
		case rows.DW_OP_skip:
			if out {
				g.Jmp(x.bad)
			} else {
				g.Jmp(x.spot(to).label)
			}
			return
		case rows.DW_OP_bra:
			g.Pop(RAX)
			g.Test(RAX)
			if out {
				g.Jcc(NE, x.bad)
			} else {
				g.Jcc(NE, x.spot(to).label)
			}
		case rows.DW_OP_pick:
			x.depthBelow(int(op.Arg) + 1)
			x.op(op)
		default:
			x.op(op)
		}
		at = op.Next
	}
}

// depthBelow and depthAbove end the expression where its stack has fewer than n values, or more.
func (x *expression) depthBelow(n int) {
	if n > 0 {
		x.depth()
		x.g.RI(CMP, RAX, int32(8*n))
		x.g.Jcc(B, x.bad)
	}
}

func (x *expression) depthAbove(n int) {
	x.depth()
	x.g.RI(CMP, RAX, int32(8*n))
	x.g.Jcc(A, x.bad)
}

// depth puts the size of the stack into rax, in bytes.
func (x *expression) depth() {
	x.g.Load(RAX, At(RBP, wideStack))
	x.g.RR(SUB, RAX, RSP)
}

// op writes one operation that does not jump, on a stack that is deep enough.
func (x *expression) op(op rows.Op) {
	g := x.g
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
		x.derefSize(uint64(op.Arg))
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
		x.divide(true)
	case c == rows.DW_OP_mod:
		x.divide(false)
	case c == rows.DW_OP_shl:
		x.shift(SHL)
	case c == rows.DW_OP_shr:
		x.shift(SHR)
	case c == rows.DW_OP_shra:
		x.shift(SAR)
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
func (x *expression) divide(signed bool) {
	g := x.g
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
func (x *expression) shift(s Shift) {
	g := x.g
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
func (x *expression) derefSize(n uint64) {
	g := x.g
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
