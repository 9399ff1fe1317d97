package rows

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
)

// An operandKind says what follows an operation's byte.
type operandKind uint8

const (
	opNone operandKind = iota
	opAddr             // a target address, eight bytes
	opU8
	opS8
	opU16
	opS16
	opU32
	opS32
	opU64
	opS64
	opULEB
	opSLEB
	opReg // ULEB register number, SLEB offset
)

// DW_OP codes that are legal in call frame information (DWARF 5, sections 2.5 and 6.4.2).
const (
	DW_OP_addr        = 0x03
	DW_OP_deref       = 0x06
	DW_OP_const1u     = 0x08
	DW_OP_const1s     = 0x09
	DW_OP_const2u     = 0x0a
	DW_OP_const2s     = 0x0b
	DW_OP_const4u     = 0x0c
	DW_OP_const4s     = 0x0d
	DW_OP_const8u     = 0x0e
	DW_OP_const8s     = 0x0f
	DW_OP_constu      = 0x10
	DW_OP_consts      = 0x11
	DW_OP_dup         = 0x12
	DW_OP_drop        = 0x13
	DW_OP_over        = 0x14
	DW_OP_pick        = 0x15
	DW_OP_swap        = 0x16
	DW_OP_rot         = 0x17
	DW_OP_abs         = 0x19
	DW_OP_and         = 0x1a
	DW_OP_div         = 0x1b
	DW_OP_minus       = 0x1c
	DW_OP_mod         = 0x1d
	DW_OP_mul         = 0x1e
	DW_OP_neg         = 0x1f
	DW_OP_not         = 0x20
	DW_OP_or          = 0x21
	DW_OP_plus        = 0x22
	DW_OP_plus_uconst = 0x23
	DW_OP_shl         = 0x24
	DW_OP_shr         = 0x25
	DW_OP_shra        = 0x26
	DW_OP_xor         = 0x27
	DW_OP_bra         = 0x28
	DW_OP_eq          = 0x29
	DW_OP_ge          = 0x2a
	DW_OP_gt          = 0x2b
	DW_OP_le          = 0x2c
	DW_OP_lt          = 0x2d
	DW_OP_ne          = 0x2e
	DW_OP_skip        = 0x2f
	DW_OP_lit0        = 0x30
	DW_OP_lit31       = 0x4f
	DW_OP_breg0       = 0x70
	DW_OP_breg31      = 0x8f
	DW_OP_bregx       = 0x92
	DW_OP_deref_size  = 0x94
	DW_OP_nop         = 0x96
)

var opTable = map[byte]struct {
	name string
	arg  operandKind
}{
	DW_OP_addr: {"addr", opAddr}, DW_OP_deref: {"deref", opNone},
	DW_OP_const1u: {"const1u", opU8}, DW_OP_const1s: {"const1s", opS8},
	DW_OP_const2u: {"const2u", opU16}, DW_OP_const2s: {"const2s", opS16},
	DW_OP_const4u: {"const4u", opU32}, DW_OP_const4s: {"const4s", opS32},
	DW_OP_const8u: {"const8u", opU64}, DW_OP_const8s: {"const8s", opS64},
	DW_OP_constu: {"constu", opULEB}, DW_OP_consts: {"consts", opSLEB},
	DW_OP_dup: {"dup", opNone}, DW_OP_drop: {"drop", opNone}, DW_OP_over: {"over", opNone},
	DW_OP_pick: {"pick", opU8}, DW_OP_swap: {"swap", opNone}, DW_OP_rot: {"rot", opNone},
	DW_OP_abs: {"abs", opNone}, DW_OP_and: {"and", opNone}, DW_OP_div: {"div", opNone},
	DW_OP_minus: {"minus", opNone}, DW_OP_mod: {"mod", opNone}, DW_OP_mul: {"mul", opNone},
	DW_OP_neg: {"neg", opNone}, DW_OP_not: {"not", opNone}, DW_OP_or: {"or", opNone},
	DW_OP_plus: {"plus", opNone}, DW_OP_plus_uconst: {"plus_uconst", opULEB},
	DW_OP_shl: {"shl", opNone}, DW_OP_shr: {"shr", opNone}, DW_OP_shra: {"shra", opNone},
	DW_OP_xor: {"xor", opNone}, DW_OP_bra: {"bra", opS16}, DW_OP_eq: {"eq", opNone},
	DW_OP_ge: {"ge", opNone}, DW_OP_gt: {"gt", opNone}, DW_OP_le: {"le", opNone},
	DW_OP_lt: {"lt", opNone}, DW_OP_ne: {"ne", opNone}, DW_OP_skip: {"skip", opS16},
	DW_OP_bregx: {"bregx", opReg}, DW_OP_deref_size: {"deref_size", opU8}, DW_OP_nop: {"nop", opNone},
}

// An Op is one operation of an expression.
type Op struct {
	Code byte
	At   int      // offset of the operation in the expression
	Next int      // offset of the one after it
	Reg  arch.Reg // for breg and bregx
	Arg  int64    // its operand; unsigned ones as their bits
}

var (
	errOpTruncated = errors.New("truncated operation")
)

// DecodeOp decodes the operation at offset at of e. Integers are little-endian.
func DecodeOp(e string, at int) (Op, error) {
	if at < 0 || at >= len(e) {
		return Op{}, errOpTruncated
	}
	op := Op{Code: e[at], At: at}
	b := e[at+1:]
	fixed := func(n int) (uint64, bool) {
		if len(b) < n {
			return 0, false
		}
		var buf [8]byte
		copy(buf[:], b[:n])
		op.Next = at + 1 + n
		return binary.LittleEndian.Uint64(buf[:]), true
	}
	switch c := op.Code; {
	case c >= DW_OP_lit0 && c <= DW_OP_lit31:
		op.Arg, op.Next = int64(c-DW_OP_lit0), at+1
		return op, nil
	case c >= DW_OP_breg0 && c <= DW_OP_breg31:
		v, n := sleb(b)
		if n == 0 {
			return op, errOpTruncated
		}
		op.Reg, op.Arg, op.Next = arch.Reg(c-DW_OP_breg0), v, at+1+n
		return op, nil
	}
	d, ok := opTable[op.Code]
	if !ok {
		return op, fmt.Errorf("operation %#02x is not allowed in call frame information", op.Code)
	}
	var v uint64
	ok = true
	switch d.arg {
	case opNone:
		op.Next = at + 1
	case opU8:
		v, ok = fixed(1)
	case opS8:
		v, ok = fixed(1)
		v = uint64(int8(v))
	case opU16:
		v, ok = fixed(2)
	case opS16:
		v, ok = fixed(2)
		v = uint64(int16(v))
	case opU32:
		v, ok = fixed(4)
	case opS32:
		v, ok = fixed(4)
		v = uint64(int32(v))
	case opU64, opS64, opAddr:
		v, ok = fixed(8)
	case opULEB:
		u, n := uleb(b)
		v, ok, op.Next = u, n > 0, at+1+n
	case opSLEB:
		s, n := sleb(b)
		v, ok, op.Next = uint64(s), n > 0, at+1+n
	case opReg:
		r, n := uleb(b)
		if n == 0 || r > 0xffff {
			return op, errOpTruncated
		}
		s, k := sleb(b[n:])
		op.Reg = arch.Reg(r)
		v, ok, op.Next = uint64(s), k > 0, at+1+n+k
	}
	if !ok {
		return op, errOpTruncated
	}
	op.Arg = int64(v)
	return op, nil
}

// uleb decodes an unsigned LEB128; n is 0 if it is truncated or does not fit 64 bits.
func uleb(b string) (v uint64, n int) {
	for shift := uint(0); n < len(b); shift += 7 {
		c := b[n]
		n++
		if shift >= 64 || shift == 63 && c&0x7f > 1 {
			if c&0x7f != 0 {
				return 0, 0
			}
		} else {
			v |= uint64(c&0x7f) << shift
		}
		if c < 0x80 {
			return v, n
		}
	}
	return 0, 0
}

// sleb decodes a signed LEB128; n is 0 if it is truncated. Bits beyond 64 are dropped.
func sleb(b string) (v int64, n int) {
	for shift := uint(0); n < len(b); {
		c := b[n]
		n++
		if shift < 64 {
			v |= int64(c&0x7f) << shift
		}
		shift += 7
		if c < 0x80 {
			if shift < 64 && c&0x40 != 0 {
				v |= -1 << shift
			}
			return v, n
		}
	}
	return 0, 0
}

const (
	maxExprStack = 64
	maxExprSteps = 4096
)

// eval runs expression e over the registers of s. With pushCFA, the stack starts with cfa.
func eval(mach *arch.Machine, e string, s *State, m *Memory, cfa uint64, pushCFA bool) (uint64, Outcome) {
	var st [maxExprStack]uint64
	n := 0
	if pushCFA {
		st[0], n = cfa, 1
	}
	steps := 0
	for at := 0; at < len(e); {
		if steps++; steps > maxExprSteps {
			return 0, BadExpr
		}
		op, err := DecodeOp(e, at)
		if err != nil {
			return 0, BadExpr
		}
		at = op.Next
		need, gives := StackUse(op)
		if n < need || n-need+gives > maxExprStack {
			return 0, BadExpr
		}
		a, b := uint64(0), uint64(0) // top, and the one below it
		if n > 0 {
			a = st[n-1]
		}
		if n > 1 {
			b = st[n-2]
		}
		var r uint64
		switch c := op.Code; {
		case c >= DW_OP_breg0 && c <= DW_OP_breg31, c == DW_OP_bregx:
			if op.Reg == mach.PC {
				r = s.PC
			} else {
				v, o := s.Get(mach.Slot(op.Reg), m)
				if o != OK {
					return 0, o
				}
				r = v
			}
			r += uint64(op.Arg)
		case c >= DW_OP_lit0 && c <= DW_OP_lit31, c >= DW_OP_const1u && c <= DW_OP_consts, c == DW_OP_addr:
			r = uint64(op.Arg)
		case c == DW_OP_deref:
			v, ok := m.Load(a)
			if !ok {
				s.Fault = a
				return 0, Unreadable
			}
			r = v
		case c == DW_OP_deref_size:
			v, o := loadSize(mach, s, m, a, uint64(op.Arg))
			if o != OK {
				return 0, o
			}
			r = v
		case c == DW_OP_dup:
			st[n], n = a, n+1
			continue
		case c == DW_OP_drop:
			n--
			continue
		case c == DW_OP_over:
			st[n], n = b, n+1
			continue
		case c == DW_OP_pick:
			if int(op.Arg) >= n {
				return 0, BadExpr
			}
			st[n], n = st[n-1-int(op.Arg)], n+1
			continue
		case c == DW_OP_swap:
			st[n-1], st[n-2] = b, a
			continue
		case c == DW_OP_rot:
			st[n-1], st[n-2], st[n-3] = b, st[n-3], a
			continue
		case c == DW_OP_skip:
			at += int(op.Arg)
			if at < 0 || at > len(e) {
				return 0, BadExpr
			}
			continue
		case c == DW_OP_bra:
			n--
			if a != 0 {
				at += int(op.Arg)
				if at < 0 || at > len(e) {
					return 0, BadExpr
				}
			}
			continue
		case c == DW_OP_nop:
			continue
		default:
			if mach.Word == 4 {
				a, b = uint64(int64(int32(a))), uint64(int64(int32(b)))
				if c == DW_OP_mod || c == DW_OP_shl || c == DW_OP_shr || c == DW_OP_shra {
					a = uint64(uint32(a))
				}
				if c == DW_OP_mod || c == DW_OP_shr {
					b = uint64(uint32(b))
				}
			}
			v, ok := arith(c, a, b, uint64(op.Arg))
			if !ok {
				return 0, BadExpr
			}
			r = v
		}
		if mach.Word == 4 {
			r = uint64(uint32(r))
		}
		n -= need
		st[n], n = r, n+1
	}
	if n == 0 {
		return 0, BadExpr
	}
	return st[n-1], OK
}

// arith is the operations that take one or two values and give one: a is the top of the stack.
func arith(c byte, a, b, arg uint64) (r uint64, ok bool) {
	truth := func(t bool) uint64 {
		if t {
			return 1
		}
		return 0
	}
	switch c {
	case DW_OP_abs:
		if int64(a) < 0 {
			a = -a
		}
		return a, true
	case DW_OP_and:
		return b & a, true
	case DW_OP_div:
		if a == 0 {
			return 0, false
		}
		if int64(a) == -1 {
			return -b, true // the one quotient that overflows wraps
		}
		return uint64(int64(b) / int64(a)), true
	case DW_OP_minus:
		return b - a, true
	case DW_OP_mod:
		if a == 0 {
			return 0, false
		}
		return b % a, true
	case DW_OP_mul:
		return b * a, true
	case DW_OP_neg:
		return -a, true
	case DW_OP_not:
		return ^a, true
	case DW_OP_or:
		return b | a, true
	case DW_OP_plus:
		return b + a, true
	case DW_OP_plus_uconst:
		return a + arg, true
	case DW_OP_shl:
		return b << a, true
	case DW_OP_shr:
		return b >> a, true
	case DW_OP_shra:
		return uint64(int64(b) >> a), true
	case DW_OP_xor:
		return b ^ a, true
	case DW_OP_eq:
		return truth(b == a), true
	case DW_OP_ne:
		return truth(b != a), true
	case DW_OP_ge:
		return truth(int64(b) >= int64(a)), true
	case DW_OP_gt:
		return truth(int64(b) > int64(a)), true
	case DW_OP_le:
		return truth(int64(b) <= int64(a)), true
	case DW_OP_lt:
		return truth(int64(b) < int64(a)), true
	}
	return 0, false
}

// loadSize reads n bytes, 1 to the size of a word, at addr and extends them with zeros. Where the word at addr
// is not all readable, the one that ends with the value is tried.
func loadSize(mach *arch.Machine, s *State, m *Memory, addr, n uint64) (uint64, Outcome) {
	word := mach.WordSize()
	if n == 0 || n > word {
		return 0, BadExpr
	}
	mask := ^uint64(0) >> (64 - 8*n)
	rest := 8 * (word - n)
	first, last := uint64(0), rest // how far the value is above the low end of the word that begins, or ends, with it
	if mach.BigEndian {
		first, last = last, first
	}
	if v, ok := m.Load(addr); ok {
		return v >> first & mask, OK
	}
	if v, ok := m.Load(addr - (word - n)); ok && n < word {
		return v >> last & mask, OK
	}
	s.Fault = addr
	return 0, Unreadable
}

// StackUse returns the number of values that op needs on the stack, and the number that it leaves in their place.
func StackUse(op Op) (need, gives int) {
	switch c := op.Code; {
	case c >= DW_OP_breg0 && c <= DW_OP_breg31, c == DW_OP_bregx, c == DW_OP_addr,
		c >= DW_OP_lit0 && c <= DW_OP_lit31, c >= DW_OP_const1u && c <= DW_OP_consts:
		return 0, 1
	case c == DW_OP_dup, c == DW_OP_pick:
		return 1, 2
	case c == DW_OP_over:
		return 2, 3
	case c == DW_OP_drop, c == DW_OP_bra:
		return 1, 0
	case c == DW_OP_deref, c == DW_OP_deref_size, c == DW_OP_abs, c == DW_OP_neg, c == DW_OP_not, c == DW_OP_plus_uconst:
		return 1, 1
	case c == DW_OP_swap:
		return 2, 2
	case c == DW_OP_rot:
		return 3, 3
	case c == DW_OP_skip, c == DW_OP_nop:
		return 0, 0
	}
	return 2, 1
}

// CheckExpr reports whether every operation of e decodes, in the order of the bytes, and where it does
// not. It says nothing of what e computes.
func CheckExpr(e string) error {
	for at := 0; at < len(e); {
		op, err := DecodeOp(e, at)
		if err != nil {
			return fmt.Errorf("expression+%#x: %w", at, err)
		}
		at = op.Next
	}
	return nil
}

// LowerCFA returns the plain rule that CFA expression e equals, where there is one: *(reg+N)+M, and a
// lazy PLT's rule. Other expressions stay expressions.
func LowerCFA(e string, mach *arch.Machine) CFA {
	keep := CFA{Kind: CFAExpr, Expr: e}
	var ops [10]Op
	n := 0
	for at := 0; at < len(e); n++ {
		op, err := DecodeOp(e, at)
		if err != nil || n == len(ops) {
			return keep
		}
		ops[n] = op
		at = op.Next
	}
	breg := func(i int) bool { return ops[i].Code >= DW_OP_breg0 && ops[i].Code <= DW_OP_breg31 }
	var c CFA
	switch {
	case n == 1 && breg(0):
		c = CFA{Kind: CFAReg, Reg: ops[0].Reg, Off: ops[0].Arg}
	case n == 2 && breg(0) && ops[1].Code == DW_OP_deref:
		c = CFA{Kind: CFARegDeref, Reg: ops[0].Reg, Off: ops[0].Arg}
	case n == 3 && breg(0) && ops[1].Code == DW_OP_deref && ops[2].Code == DW_OP_plus_uconst && ops[2].Arg != 0:
		c = CFA{Kind: CFARegDeref, Reg: ops[0].Reg, Off: ops[0].Arg, Off2: ops[2].Arg}
	case n == 9 && breg(0) && breg(1):
		c = CFA{Kind: CFAPLT, Reg: ops[0].Reg, Off: ops[0].Arg, Off2: ops[4].Arg}
	default:
		return keep
	}
	if c.Kind != CFAReg && !(c.Kind == CFAPLT && c.Off2 < 0) && c.Expression(mach) == e {
		return c
	}
	return keep
}

// LowerRule returns the plain rule equal to expression rule r, if there is one.
func LowerRule(r Rule) Rule {
	op, err := DecodeOp(r.Expr, 0)
	if err != nil || op.Next != len(r.Expr) || op.Code < DW_OP_breg0 || op.Code > DW_OP_breg31 {
		return r
	}
	k := RegDeref
	if r.Kind == ValExpr {
		k = RegOffset
	}
	low := Rule{Of: r.Of, Kind: k, Reg: op.Reg, Off: op.Arg}
	if low.Expression() != r.Expr {
		return r // a padded number: keep the bytes
	}
	return low
}

// Expression returns the expression of a rule that is one, or that LowerRule returns.
func (r *Rule) Expression() string {
	switch r.Kind {
	case RegOffset, RegDeref:
		return string(appendBreg(nil, r.Reg, r.Off))
	}
	return r.Expr
}

// Expression returns the expression of a CFA that is one, or that LowerCFA returns.
func (c *CFA) Expression(mach *arch.Machine) string {
	switch c.Kind {
	case CFARegDeref:
		b := append(appendBreg(nil, c.Reg, c.Off), DW_OP_deref)
		if c.Off2 != 0 {
			b = appendULEB(append(b, DW_OP_plus_uconst), uint64(c.Off2))
		}
		return string(b)
	case CFAPLT:
		b := appendBreg(appendBreg(nil, c.Reg, c.Off), mach.PC, 0)
		return string(append(b, DW_OP_lit0+15, DW_OP_and, DW_OP_lit0+byte(c.Off2&31), DW_OP_ge, DW_OP_lit0+3, DW_OP_shl, DW_OP_plus))
	}
	return c.Expr
}

func appendBreg(b []byte, r arch.Reg, off int64) []byte {
	if r < 32 {
		b = append(b, DW_OP_breg0+byte(r))
	} else {
		b = appendULEB(append(b, DW_OP_bregx), uint64(r))
	}
	return appendSLEB(b, off)
}

func appendULEB(b []byte, v uint64) []byte {
	for v >= 0x80 {
		b = append(b, byte(v)|0x80)
		v >>= 7
	}
	return append(b, byte(v))
}

func appendSLEB(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

// ExprString prints e as llvm-dwarfdump does: "DW_OP_breg6 RBP-40, DW_OP_deref".
func ExprString(e string, mach *arch.Machine) string {
	var out []string
	for at := 0; at < len(e); {
		op, err := DecodeOp(e, at)
		if err != nil {
			return strings.Join(append(out, fmt.Sprintf("<%v at %#x>", err, at)), ", ")
		}
		at = op.Next
		out = append(out, op.String(mach))
	}
	return strings.Join(out, ", ")
}

// String prints an operation as llvm-dwarfdump does.
func (op Op) String(mach *arch.Machine) string {
	switch c := op.Code; {
	case c >= DW_OP_lit0 && c <= DW_OP_lit31:
		return "DW_OP_lit" + strconv.Itoa(int(op.Arg))
	case c >= DW_OP_breg0 && c <= DW_OP_breg31:
		return fmt.Sprintf("DW_OP_breg%d %s%+d", op.Reg, strings.ToUpper(mach.RegName(op.Reg)), op.Arg)
	}
	d := opTable[op.Code]
	switch d.arg {
	case opNone:
		return "DW_OP_" + d.name
	case opReg:
		return fmt.Sprintf("DW_OP_bregx %s%+d", strings.ToUpper(mach.RegName(op.Reg)), op.Arg)
	case opS8, opS16, opS32, opS64, opSLEB:
		return fmt.Sprintf("DW_OP_%s %+d", d.name, op.Arg)
	}
	return fmt.Sprintf("DW_OP_%s 0x%x", d.name, uint64(op.Arg))
}
