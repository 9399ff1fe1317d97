package native

import "github.com/unspool/unspool/rows"

// Bounds of an expression, as rows has them.
const (
	maxExprStack = 64
	maxExprSteps = 4096
)

// An exprKey is an expression: each is code once, a routine called from the frame of a wide rule.
type exprKey struct {
	e       string
	pushCFA bool
}

// An expression that is being written. One without jumps has a depth that is known at each
// operation; one with jumps counts its operations and checks its depth as it runs, and has code for each offset
// that can be reached, be it within an operation.
type expression struct {
	g    *generator
	e    string
	fail label // an operation failed: the stack is as it may be
	bad  label // ill-formed, or too long
	end  label
	at   map[int]*spot // code by offset
	todo []int
}

// A spot is the code of an offset in an expression with jumps.
type spot struct {
	label   label
	written bool
}

// newExpression returns the expression of a key.
func (g *generator) newExpression(k exprKey) *expression {
	return &expression{g: g, e: k.e, fail: g.m.Label(), bad: g.m.Label(), end: g.m.Label(), at: map[int]*spot{}}
}

// evaluator returns the routine of an expression, which is written later.
func (g *generator) evaluator(e string, pushCFA bool) label {
	k := exprKey{e, pushCFA}
	l, ok := g.exprs[k]
	if !ok {
		l = g.m.Label()
		g.exprs[k] = l
		g.exprOrder = append(g.exprOrder, k)
		g.size += len(e)
	}
	return l
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
			x.g.m.Jmp(x.bad)
			return
		}
		depth += gives - need
		at = op.Next
		x.g.m.op(x, op)
	}
	if depth == 0 {
		x.g.m.Jmp(x.bad)
	} else {
		x.g.m.Jmp(x.end)
	}
}

// withJumps writes what follows from an offset on, when so many operations have begun.
func (x *expression) withJumps(at, steps int) {
	m := x.g.m
	m.count(maxExprSteps - steps + 1)
	m.Jmp(x.spot(at).label)
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
		p = &spot{label: x.g.m.Label()}
		x.at[at] = p
		x.todo = append(x.todo, at)
	}
	return p
}

// chain writes operations from an offset on until one has been written before.
func (x *expression) chain(at int) {
	m := x.g.m
	for {
		p := x.spot(at)
		if p.written {
			m.Jmp(p.label)
			return
		}
		p.written = true
		m.Set(p.label)
		if at == len(x.e) {
			m.depthBelow(1, x.bad)
			m.Jmp(x.end)
			return
		}
		m.countDown(x.bad)
		op, err := rows.DecodeOp(x.e, at)
		if err != nil {
			m.Jmp(x.bad)
			return
		}
		need, gives := rows.StackUse(op)
		m.depthBelow(need, x.bad)
		if gives > need {
			m.depthAbove(maxExprStack-(gives-need), x.bad)
		}
		to := op.Next + int(op.Arg)
		out := to < 0 || to > len(x.e)
		switch op.Code {
		case rows.DW_OP_skip:
			if out {
				m.Jmp(x.bad)
			} else {
				m.Jmp(x.spot(to).label)
			}
			return
		case rows.DW_OP_bra:
			if out {
				m.jumpIf(x.bad)
			} else {
				m.jumpIf(x.spot(to).label)
			}
		case rows.DW_OP_pick:
			m.depthBelow(int(op.Arg)+1, x.bad)
			x.g.m.op(x, op)
		default:
			x.g.m.op(x, op)
		}
		at = op.Next
	}
}
