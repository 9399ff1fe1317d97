package csource

import (
	"bytes"
	"fmt"

	"github.com/unspool/unspool/rows"
)

// The evaluator's limits (docs/SEMANTICS.md, section 3).
const (
	maxStack = 64
	maxSteps = 4096
)

// An expression becomes one C function, however many rules have it.
type expression struct {
	bytes   string
	pushCFA bool // the stack starts with the CFA
}

// A node is one operation of an expression, by its offset.
type node struct {
	op    rows.Op
	bad   bool // does not decode, or always fails for want of values or of room for them
	ends  bool // fails whatever the values are
	depth int  // values on the stack before it, where all ways to it agree
}

// A flow is what can happen in an expression: all operations that can be reached. The stack's depth is a
// constant at each of them, as compilers write expressions; if it is not, the C code counts.
type flow struct {
	e        expression
	nodes    []*node // by offset, up to the end; nil where nothing leads
	g        *gen
	order    []int  // their offsets, ascending
	target   []bool // by offset: is jumped to
	dynamic  bool   // the depth depends on the way
	counted  bool   // the number of steps may exceed the limit
	maxDepth int
}

// analyse follows an expression. Its work is linear in the expression's length.
func (g *gen) analyse(e expression) *flow {
	f := &flow{e: e, g: g}
	if !f.follow() {
		f.dynamic = true
		f.follow()
	}
	for at, n := range f.nodes {
		if n != nil {
			f.order = append(f.order, at)
		}
	}
	for k, at := range f.order[:len(f.order)-1] {
		if n := f.nodes[at]; !n.bad && !n.ends && n.op.Code != rows.DW_OP_skip && n.op.Next != f.order[k+1] {
			f.target[n.op.Next] = true // operations that overlap: the next one is elsewhere
		}
	}
	return f
}

// follow finds all nodes. It returns false where depths disagree and f is not dynamic.
func (f *flow) follow() bool {
	size, count := len(f.e.bytes)+1, 0
	f.nodes, f.target, f.counted, f.maxDepth = make([]*node, size), make([]bool, size), false, 1
	type visit struct{ at, depth, steps int }
	start := visit{}
	if f.e.pushCFA {
		start.depth = 1
	}
	end, endSeen := -1, false
	branches := false
	for todo := []visit{start}; len(todo) > 0; {
		v := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if v.at == len(f.e.bytes) {
			if endSeen && end != v.depth && !f.dynamic {
				return false
			}
			end, endSeen = v.depth, true
			continue
		}
		if n := f.nodes[v.at]; n != nil {
			if n.depth != v.depth && !f.dynamic {
				return false
			}
			continue
		}
		n := &node{depth: v.depth}
		f.nodes[v.at] = n
		count++
		op, err := rows.DecodeOp(f.e.bytes, v.at)
		if n.op = op; err != nil || !branches && v.steps >= maxSteps {
			n.bad = true
			continue
		}
		need, gives := rows.StackUse(op)
		after := v.depth - need + gives
		if op.Code == rows.DW_OP_pick {
			need = max(need, int(op.Arg)+1)
		}
		if !f.dynamic && (v.depth < need || after > maxStack) {
			n.bad = true
			continue
		}
		if n.ends = f.g.ends(op); n.ends {
			continue
		}
		f.maxDepth = max(f.maxDepth, after)
		if op.Code != rows.DW_OP_skip {
			todo = append(todo, visit{op.Next, after, v.steps + 1})
		}
		if op.Code == rows.DW_OP_skip || op.Code == rows.DW_OP_bra {
			branches = branches || op.Code == rows.DW_OP_bra
			to := op.Next + int(op.Arg)
			if to < 0 || to > len(f.e.bytes) {
				continue
			}
			f.target[to] = true
			f.counted = f.counted || to <= v.at
			todo = append(todo, visit{to, after, v.steps + 1})
		}
	}
	if endSeen {
		f.nodes[len(f.e.bytes)] = &node{depth: end}
	}
	f.counted = f.counted || branches && count > maxSteps
	return true
}

// pushes says whether op puts a constant or a register's value on the stack.
func pushes(op rows.Op) bool {
	c := op.Code
	return isReg(op) || c == rows.DW_OP_addr || c >= rows.DW_OP_lit0 && c <= rows.DW_OP_lit31 ||
		c >= rows.DW_OP_const1u && c <= rows.DW_OP_consts
}

func isReg(op rows.Op) bool {
	return op.Code >= rows.DW_OP_breg0 && op.Code <= rows.DW_OP_breg31 || op.Code == rows.DW_OP_bregx
}

// ends says whether op fails whatever the values are.
func (g *gen) ends(op rows.Op) bool {
	if isReg(op) {
		_, ok := g.slot(op.Reg)
		return !ok && op.Reg != g.mach.PC
	}
	return op.Code == rows.DW_OP_deref_size && (op.Arg < 1 || op.Arg > 8)
}

// An exprWriter writes the function of one expression.
type exprWriter struct {
	*gen
	*flow
	w *bytes.Buffer
	n *node // the current one
}

// expr writes the i-th expression's function. It gives an outcome, and with OK the value.
func (g *gen) expr(w *bytes.Buffer, i int, e expression) {
	x := &exprWriter{g, g.analyse(e), w, nil}
	text := ""
	if len(e.bytes) <= 100 {
		text = "/* " + clean(rows.ExprString(e.bytes, g.mach)) + " */\n"
	}
	param := ""
	if e.pushCFA {
		param = "uint64_t cfa, "
	}
	fmt.Fprintf(w, "%sstatic int expr_%d(struct unspool_state *s, const void *mem, %suint64_t *to)\n{\n", text, i, param)
	if x.dynamic {
		fmt.Fprintf(w, "\tuint64_t v[%d] = {0};\n\tunsigned n = 0; /* values on the stack */\n", maxStack)
	} else {
		fmt.Fprintf(w, "\tuint64_t v[%d] = {0}; /* the stack */\n", x.maxDepth)
	}
	if x.counted {
		fmt.Fprintf(w, "\tunsigned steps = 0;\n")
	}
	if x.fails() {
		fmt.Fprintf(w, "\tint o;\n")
	}
	fmt.Fprintf(w, "\n\t(void)s, (void)mem;\n\t*to = 0;\n")
	if e.pushCFA && x.dynamic {
		fmt.Fprintf(w, "\tv[n++] = cfa;\n")
	} else if e.pushCFA {
		fmt.Fprintf(w, "\tv[0] = cfa;\n")
	}
	if end := x.nodes[len(e.bytes)]; end == nil || end.depth == 0 {
		fmt.Fprintf(w, "\t(void)v;\n")
	}
	for k, at := range x.order {
		next := -1
		if k+1 < len(x.order) {
			next = x.order[k+1]
		}
		x.node(at, next)
	}
	fmt.Fprintf(w, "}\n\n")
}

// fails says whether an operation is a call that can fail.
func (x *exprWriter) fails() bool {
	for at, n := range x.nodes {
		if at < len(x.e.bytes) && n != nil && !n.bad && !n.ends && x.call(n.op) {
			return true
		}
	}
	return false
}

// call says whether op becomes a call that can fail.
func (x *exprWriter) call(op rows.Op) bool {
	switch op.Code {
	case rows.DW_OP_deref, rows.DW_OP_deref_size, rows.DW_OP_div, rows.DW_OP_mod:
		return true
	}
	return isReg(op) && op.Reg != x.mach.PC
}

func (x *exprWriter) line(format string, args ...any) {
	fmt.Fprintf(x.w, "\t"+format+"\n", args...)
}

// top names the i-th value from the top of the stack; -1 is the place above it.
func (x *exprWriter) top(i int) string {
	switch k := x.n.depth - 1 - i; {
	case !x.dynamic:
		return fmt.Sprintf("v[%d]", k)
	case i < 0:
		return "v[n]"
	default:
		return fmt.Sprintf("v[n - %d]", i+1)
	}
}

// opaque spells a value that may become an address of the own memory. Where it is a constant, compilers would
// have an opinion on what lies there.
func (x *exprWriter) opaque(v string) string {
	if x.opt.Deref != Self {
		return v
	}
	return x.use("opaque") + "(" + v + ")"
}

// node writes the operation at an offset; next is the offset of what is written after it.
func (x *exprWriter) node(at, next int) {
	x.n = x.nodes[at]
	op := x.n.op
	if x.target[at] {
		fmt.Fprintf(x.w, "at_%d:\n", at)
	}
	if at == len(x.e.bytes) {
		switch {
		case x.dynamic:
			x.line("if (n == 0)\n\t\treturn BAD_EXPR;")
		case x.n.depth == 0:
			x.line("return BAD_EXPR;")
			return
		}
		x.line("*to = %s;\n\treturn OK;", x.opaque(x.top(0)))
		return
	}
	if x.counted {
		x.line("if (++steps > %d)\n\t\treturn BAD_EXPR;", maxSteps)
	}
	if x.n.bad {
		x.line("return BAD_EXPR;")
		return
	}
	need, gives := rows.StackUse(op)
	if x.dynamic {
		if need > 0 {
			x.line("if (n < %d)\n\t\treturn BAD_EXPR;", need)
		}
		if gives > need {
			x.line("if (n > %d)\n\t\treturn BAD_EXPR;", maxStack+need-gives)
		}
	}
	if !x.operation(op) {
		return // it always fails
	}
	if d := gives - need; x.dynamic && d != 0 && op.Code != rows.DW_OP_bra {
		x.line("n %s;", map[int]string{1: "+= 1", -1: "-= 1", -2: "-= 2"}[d])
	}
	jump := "return BAD_EXPR;"
	if to := op.Next + int(op.Arg); to >= 0 && to <= len(x.e.bytes) {
		jump = fmt.Sprintf("goto at_%d;", to)
	}
	switch op.Code {
	case rows.DW_OP_skip:
		x.line("%s", jump)
		return
	case rows.DW_OP_bra:
		cond := x.top(0)
		if x.dynamic {
			x.line("n -= 1;")
			cond = "v[n]"
		}
		x.line("if (%s != 0)\n\t\t%s", cond, jump)
	}
	if op.Next != next {
		x.line("goto at_%d;", op.Next)
	}
}

// infix are the operations that are an operator of C, on unsigned values.
var infix = map[byte]string{
	rows.DW_OP_and: "&", rows.DW_OP_minus: "-", rows.DW_OP_mul: "*", rows.DW_OP_or: "|", rows.DW_OP_plus: "+",
	rows.DW_OP_xor: "^", rows.DW_OP_eq: "==", rows.DW_OP_ne: "!=",
}

// compare are those on signed values; shift and divide are helpers.
var (
	compare = map[byte]string{rows.DW_OP_ge: ">=", rows.DW_OP_gt: ">", rows.DW_OP_le: "<=", rows.DW_OP_lt: "<"}
	shift   = map[byte]string{rows.DW_OP_shl: "shl", rows.DW_OP_shr: "shr", rows.DW_OP_shra: "shra"}
	divide  = map[byte]string{rows.DW_OP_div: "divide", rows.DW_OP_mod: "modulo"}
)

// operation writes what op does to the values. It returns false if op always fails.
func (x *exprWriter) operation(op rows.Op) bool {
	a, b, c, above := x.top(0), x.top(1), x.top(2), x.top(-1)
	try := func(format string, args ...any) {
		x.line("if ((o = "+format+") != OK)\n\t\treturn o;", args...)
	}
	switch code := op.Code; {
	case isReg(op) && op.Reg == x.mach.PC:
		x.line("%s = %s;", above, plus("s->pc", op.Arg))
	case isReg(op):
		slot, ok := x.slot(op.Reg)
		if !ok {
			x.line("return LOST;")
			return false
		}
		try("%s(s, mem, %s, &%s)", x.use("get"), slot, above)
		if op.Arg != 0 {
			x.line("%s = %s;", above, plus(above, op.Arg))
		}
	case pushes(op):
		x.line("%s = %#x;", above, uint64(op.Arg))
	case code == rows.DW_OP_deref:
		try("%s(s, mem, %s, &%s)", x.use("load"), x.opaque(a), a)
	case code == rows.DW_OP_deref_size:
		if x.n.ends {
			x.line("return BAD_EXPR;")
			return false
		}
		try("%s(s, mem, %s, %d, &%s)", x.use("load_size"), x.opaque(a), op.Arg, a)
	case code == rows.DW_OP_dup:
		x.line("%s = %s;", above, a)
	case code == rows.DW_OP_over:
		x.line("%s = %s;", above, b)
	case code == rows.DW_OP_pick:
		if x.dynamic {
			x.line("if (n < %d)\n\t\treturn BAD_EXPR;", op.Arg+1)
		}
		if op.Arg < maxStack {
			x.line("%s = %s;", above, x.top(int(op.Arg)))
		}
	case code == rows.DW_OP_swap:
		x.line("{ const uint64_t a = %s; %s = %s; %s = a; }", a, a, b, b)
	case code == rows.DW_OP_rot:
		x.line("{ const uint64_t a = %s; %s = %s; %s = %s; %s = a; }", a, a, b, b, c, c)
	case code == rows.DW_OP_drop, code == rows.DW_OP_skip, code == rows.DW_OP_bra, code == rows.DW_OP_nop:
	case code == rows.DW_OP_abs:
		x.line("if (%s >> 63)\n\t\t%s = 0 - %s;", a, a, a)
	case code == rows.DW_OP_neg:
		x.line("%s = 0 - %s;", a, a)
	case code == rows.DW_OP_not:
		x.line("%s = ~%s;", a, a)
	case code == rows.DW_OP_plus_uconst:
		x.line("%s = %s + %#x;", a, a, uint64(op.Arg))
	case infix[code] != "":
		x.line("%s = %s %s %s;", b, b, infix[code], a)
	case compare[code] != "":
		x.line("%s = (int64_t)%s %s (int64_t)%s;", b, b, compare[code], a)
	case shift[code] != "":
		x.line("%s = %s(%s, %s);", b, x.use(shift[code]), b, a)
	case divide[code] != "":
		try("%s(%s, %s, &%s)", x.use(divide[code]), b, a, b)
	default:
		x.line("return BAD_EXPR;")
		return false
	}
	return true
}
