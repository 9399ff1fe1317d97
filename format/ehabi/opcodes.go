package ehabi

import (
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Numbers of registers (DWARF for the Arm Architecture, section 4.1).
const (
	regSP = 13
	regLR = 14
	regPC = 15
	regD0 = 256 // to D31
	numD  = 32
)

// A value is the value of a register, or an address, before the first opcode: r + offs[0] and, for each further number, what lies there plus
// that number.
type value struct {
	reg  arch.Reg
	n    int // of offs
	offs [maxLoads]int64
}

// maxLoads bounds how many stack pointers one entry may load, one from where the other points. Code has one, and glibc's signal frames.
const maxLoads = 8

func of(reg arch.Reg) value { return value{reg: reg, n: 1} }

// add returns v plus a number.
func (v value) add(n int64) value {
	v.offs[v.n-1] += n
	return v
}

// base says whether v and o differ by a number only.
func (v *value) base(o *value) bool {
	return v.reg == o.reg && v.n == o.n && slices.Equal(v.offs[:v.n-1], o.offs[:o.n-1])
}

// A frame is what opcodes do to the virtual registers (section 10).
type frame struct {
	vsp   value
	saved [16]value // where core registers are; n is 0 for those that are where they were
	d     [numD]value
}

// get returns the value of a core register.
func (f *frame) get(r int) (value, error) {
	v := f.saved[r]
	switch {
	case r == regSP:
		return f.vsp, nil
	case v.n == 0:
		return of(arch.Reg(r)), nil
	case v.n == maxLoads:
		return v, fmt.Errorf("more than %d loads, one from where the other leads: %w", maxLoads-1, ErrMalformed)
	}
	v.n++
	v.offs[v.n-1] = 0
	return v, nil
}

// pop pops the core registers of a mask, the lowest first. A popped stack pointer counts behind all of them.
func (f *frame) pop(mask int) (err error) {
	for r := range 16 {
		if mask>>r&1 != 0 {
			f.saved[r] = f.vsp
			f.vsp = f.vsp.add(4)
		}
	}
	if at := f.saved[regSP]; at.n > 0 {
		if at.n == maxLoads {
			return fmt.Errorf("more than %d stack pointers, one from where the other points: %w", maxLoads-1, ErrMalformed)
		}
		at.n++
		at.offs[at.n-1] = 0
		f.vsp, f.saved[regSP] = at, value{}
	}
	return nil
}

// popD pops n double registers from number r on. FSTMX leaves one word above them.
func (f *frame) popD(r, n int, fstmx bool) error {
	if r+n > numD || fstmx && r+n > 16 {
		return fmt.Errorf("d%d to d%d: %w", r, r+n-1, ErrMalformed)
	}
	for i := range n {
		f.d[r+i] = f.vsp
		f.vsp = f.vsp.add(8)
	}
	if fstmx {
		f.vsp = f.vsp.add(4)
	}
	return nil
}

// Decode returns what opcodes say; the gap where they refuse to unwind.
func Decode(code []byte) (rows.Set, error) {
	f := frame{vsp: of(regSP)}
	for at := 0; at < len(code); {
		op := code[at]
		at++
		second := func() (int, error) { // the opcode's second byte
			if at >= len(code) {
				return 0, fmt.Errorf("opcode %#02x lacks its second byte: %w", op, ErrTruncated)
			}
			at++
			return int(code[at-1]), nil
		}
		var err error
		var x int
		switch low := int(op & 7); {
		case op < 0x40:
			f.vsp = f.vsp.add(int64(op)*4 + 4)
		case op < 0x80:
			f.vsp = f.vsp.add(-(int64(op&0x3f)*4 + 4))
		case op < 0x90:
			if x, err = second(); err == nil {
				mask := (int(op&15)<<8 | x) << 4
				if mask == 0 {
					return rows.Set{}, nil // refuse to unwind
				}
				err = f.pop(mask)
			}
		case op < 0xa0:
			if op == 0x9d || op == 0x9f {
				return rows.Set{}, fmt.Errorf("%w, %#02x", ErrSpare, op)
			}
			f.vsp, err = f.get(int(op & 15))
		case op < 0xa8:
			err = f.pop((2<<low - 1) << 4)
		case op < 0xb0:
			err = f.pop((2<<low-1)<<4 | 1<<regLR)
		case op == 0xb0:
			return f.set(), nil
		case op == 0xb1:
			if x, err = second(); err == nil && (x == 0 || x > 15) {
				err = fmt.Errorf("%w, b1 %02x", ErrSpare, x)
			}
			if err == nil {
				err = f.pop(x)
			}
		case op == 0xb2:
			var u uint64
			if u, err = uleb(code, &at); err == nil {
				f.vsp = f.vsp.add(0x204 + int64(u)*4)
			}
		case op == 0xb3:
			if x, err = second(); err == nil {
				err = f.popD(x>>4, x&15+1, true)
			}
		case op == 0xb4: // the code that authenticates the return address, which itself has none in it
			f.vsp = f.vsp.add(4)
		case op == 0xb5: // that code's modifier is vsp
		case op >= 0xb8 && op < 0xc0:
			err = f.popD(8, low+1, true)
		case op >= 0xc0 && op < 0xc6: // wR10 to wR(10+n) of Wireless MMX
			f.vsp = f.vsp.add(int64(low+1) * 8)
		case op == 0xc6:
			if x, err = second(); err == nil {
				f.vsp = f.vsp.add(int64(x&15+1) * 8)
			}
		case op == 0xc7:
			if x, err = second(); err == nil && (x == 0 || x > 15) {
				err = fmt.Errorf("%w, c7 %02x", ErrSpare, x)
			}
			for ; err == nil && x > 0; x &= x - 1 {
				f.vsp = f.vsp.add(4)
			}
		case op == 0xc8, op == 0xc9:
			if x, err = second(); err == nil {
				err = f.popD(x>>4+16*int(1-op&1), x&15+1, false)
			}
		case op >= 0xd0 && op < 0xd8:
			err = f.popD(8, low+1, false)
		default:
			err = fmt.Errorf("%w, %#02x", ErrSpare, op)
		}
		if err != nil {
			return rows.Set{}, err
		}
	}
	return f.set(), nil
}

// maxULEB bounds what is added to the stack pointer: addresses have 32 bits.
const maxULEB = 1 << 30

func uleb(code []byte, at *int) (u uint64, err error) {
	for shift := 0; *at < len(code); shift += 7 {
		c := code[*at]
		*at++
		if shift < 32 {
			u |= uint64(c&0x7f) << shift
		}
		if u >= maxULEB || shift >= 32 && c&0x7f != 0 {
			return 0, fmt.Errorf("a number of more than 30 bits: %w", ErrMalformed)
		}
		if c < 0x80 {
			return u, nil
		}
	}
	return 0, fmt.Errorf("opcode 0xb2 lacks its number: %w", ErrTruncated)
}

// set returns what has been done, as a row says it: the stack pointer at the end is the CFA.
func (f *frame) set() rows.Set {
	s := rows.Set{RA: regLR, Flags: rows.SyncOnly}
	cfa := &f.vsp
	switch cfa.n {
	case 1:
		s.CFA = rows.CFA{Kind: rows.CFAReg, Reg: cfa.reg, Off: cfa.offs[0]}
	case 2:
		s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: cfa.reg, Off: cfa.offs[0], Off2: cfa.offs[1]}
	default:
		s.CFA = rows.CFA{Kind: rows.CFAExpr, Expr: cfa.expr()}
	}
	if f.saved[regPC].n > 0 {
		f.saved[regLR] = f.saved[regPC]
	}
	rule := func(r arch.Reg, at *value) {
		switch {
		case at.n == 0:
		case at.base(cfa):
			s.Rules = append(s.Rules, rows.Rule{Of: r, Kind: rows.Offset, Off: at.offs[at.n-1] - cfa.offs[cfa.n-1]})
		case at.n == 1:
			s.Rules = append(s.Rules, rows.Rule{Of: r, Kind: rows.RegDeref, Reg: at.reg, Off: at.offs[0]})
		default:
			s.Rules = append(s.Rules, rows.Rule{Of: r, Kind: rows.Expr, Expr: at.expr()})
		}
	}
	for r := range arch.Reg(regPC) {
		rule(r, &f.saved[r])
	}
	for r := range arch.Reg(numD) {
		rule(regD0+r, &f.d[r])
	}
	return s
}

// expr returns v as an expression of DWARF.
func (v *value) expr() string {
	e := sleb([]byte{rows.DW_OP_breg0 + byte(v.reg)}, v.offs[0])
	for _, n := range v.offs[1:v.n] {
		e = append(e, rows.DW_OP_deref)
		if n != 0 {
			e = append(sleb(append(e, rows.DW_OP_consts), n), rows.DW_OP_plus)
		}
	}
	return string(e)
}

func sleb(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
