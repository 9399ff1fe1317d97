package mips

import (
	"errors"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Numbers of registers, as GCC's DWARF has them.
const (
	regSP = 29
	regFP = 30
	regRA = 31
	regF0 = 32 // to f31
	numR  = 64
)

// The opcodes that are no ranges ("Frame unwind opcodes").
const (
	opLarge    = 0x58 // sp += (uleb + 129) units
	opPush     = 0x59 // general registers x to x+y
	opPushF    = 0x5a // floating-point registers x to x+y
	opSP       = 0x5b // back to the stack pointer
	opFinish   = 0x5c
	opNoUnwind = 0x5d
	opFP       = 0x5e // sp = r30
	opNop      = 0x5f
)

// The causes of an opcode's Error, besides ErrTruncated and ErrMalformed.
var (
	ErrReserved    = errors.New("a reserved opcode")
	ErrUnsupported = errors.New("unsupported")
)

// A layout is what a calling convention says of frames.
type layout struct {
	word  int64 // bytes of a register on the stack
	align int64 // of the stack pointer: the unit of its increments
}

var (
	o32 = layout{4, 8}
	n64 = layout{8, 16} // and n32
)

func layoutOf(m *arch.Machine) layout {
	if m.WordSize() == 4 {
		return o32
	}
	return n64
}

// maxOffset bounds what is added to the stack pointer, in bytes.
const maxOffset = 1 << 30

// A frame is what opcodes say: the CFA is base + off, and registers are below it.
//
// The first push puts a register at the word below the CFA, the next one below that. Where the CFA is moved up behind pushes, the saved registers stay where
// they are: above them is what a function with variable arguments keeps. Whether a push behind that goes on below the last register or below the new CFA, and
// what a new base means for registers that are saved, is not settled: such opcodes are refused.
type frame struct {
	layout
	base  arch.Reg
	off   int64 // of the CFA from the base
	next  int64 // of the lowest push from the base
	saved [numR]int64
	have  uint64 // saved registers
	moved bool   // behind a push
}

func (f *frame) move(n int64) error {
	if f.off += n; f.off > maxOffset {
		return fmt.Errorf("a frame of %d bytes: %w", f.off, ErrMalformed)
	}
	f.moved = f.have != 0
	return nil
}

func (f *frame) rebase(r arch.Reg) error {
	if f.have != 0 {
		return fmt.Errorf("the CFA's register is changed behind a push: %w", ErrUnsupported)
	}
	f.base, f.off = r, 0
	return nil
}

// push saves registers first to last, the last one first.
func (f *frame) push(first, last arch.Reg) error {
	if f.moved {
		return fmt.Errorf("a push behind a move of the CFA, behind a push: %w", ErrUnsupported)
	}
	if f.have == 0 {
		f.next = f.off
	}
	for n := last - first + 1; n > 0; n-- {
		r := first + n - 1
		f.next -= f.word
		f.saved[r] = f.next
		f.have |= 1 << r
	}
	return nil
}

// pushes makes several pushes, of ranges first to last.
func (f *frame) pushes(ranges ...[2]arch.Reg) (err error) {
	for _, r := range ranges {
		if err == nil {
			err = f.push(r[0], r[1])
		}
	}
	return err
}

// one is the range of one register.
func one(r arch.Reg) [2]arch.Reg { return [2]arch.Reg{r, r} }

// maxCode bounds the opcodes of an entry, in bytes. Two bytes save up to eight of 64 registers, so functions need far less.
const maxCode = 256

// decode returns what opcodes say, the gap where they refuse to unwind, and how many bytes they take. Behind the last byte of code is an implicit end if
// the opcodes are inline. The offset of an error is that of its opcode.
func decode(code []byte, l layout, inline bool) (set rows.Set, n int, err error) {
	f := frame{layout: l, base: regSP}
	for at := 0; ; {
		if at >= len(code) {
			if inline {
				return f.set(), at, nil
			}
			return rows.Set{}, at, fmt.Errorf("opcodes without an end: %w", ErrTruncated)
		}
		if at >= maxCode {
			return rows.Set{}, at, fmt.Errorf("more than %d bytes of opcodes: %w", maxCode, ErrMalformed)
		}
		start, op := at, code[at]
		at++
		x := arch.Reg(op & 7)
		switch {
		case op < 0x40:
			err = f.move((int64(op) + 1) * l.align)
		case op < 0x48:
			err = f.pushes(one(regRA), [2]arch.Reg{16, 16 + x})
		case op < 0x50:
			err = f.pushes(one(regRA), one(regFP), [2]arch.Reg{16, 16 + x})
		case op < 0x58:
			err = f.rebase(16 + x)
		case op == opLarge:
			var u int64
			if u, err = uleb(code, &at); err == nil {
				err = f.move((u + 129) * l.align)
			}
		case op == opPush, op == opPushF:
			if at >= len(code) {
				err = fmt.Errorf("opcode %#02x lacks its second byte: %w", op, ErrTruncated)
				break
			}
			first := arch.Reg(code[at] >> 3)
			last := first + arch.Reg(code[at]&7)
			at++
			switch {
			case last > 31:
				err = fmt.Errorf("registers %d to %d: %w", first, last, ErrMalformed)
			case op == opPushF:
				err = f.push(regF0+first, regF0+last)
			default:
				err = f.push(first, last)
			}
		case op == opSP:
			err = f.rebase(regSP)
		case op == opFinish:
			return f.set(), at, nil
		case op == opNoUnwind:
			return rows.Set{}, at, nil
		case op == opFP:
			err = f.rebase(regFP)
		case op == opNop:
		case op < 0x6c:
			err = f.push(regF0+20, regF0+20+arch.Reg(op&15))
		case op < 0x70: // MIPS16's SAVE: it leaves out r18 to r(17+x)
			err = f.pushes(one(regRA), [2]arch.Reg{18 + x&3, 23}, [2]arch.Reg{16, 17})
		case op < 0x78:
			err = f.pushes(one(regRA), one(28), [2]arch.Reg{16, 16 + x})
		case op < 0x80:
			err = f.pushes(one(regRA), one(regFP), one(28), [2]arch.Reg{16, 16 + x})
		default:
			err = fmt.Errorf("%w, %#02x", ErrReserved, op)
		}
		if err != nil {
			return rows.Set{}, start, err
		}
	}
}

// uleb reads a number. Addresses have no more than 30 bits of it.
func uleb(code []byte, at *int) (u int64, err error) {
	for shift := 0; *at < len(code); shift += 7 {
		c := code[*at]
		*at++
		if shift < 32 {
			u |= int64(c&0x7f) << shift
		}
		if u >= maxOffset || shift >= 32 && c&0x7f != 0 || shift > 70 {
			return 0, fmt.Errorf("a number of more than 30 bits: %w", ErrMalformed)
		}
		if c < 0x80 {
			return u, nil
		}
	}
	return 0, fmt.Errorf("opcode 0x58 lacks its number: %w", ErrTruncated)
}

// set returns what has been said, as a row says it.
func (f *frame) set() rows.Set {
	s := rows.Set{RA: regRA, Flags: rows.SyncOnly, CFA: rows.CFA{Kind: rows.CFAReg, Reg: f.base, Off: f.off}}
	for r := range arch.Reg(numR) {
		if f.have>>r&1 != 0 {
			s.Rules = append(s.Rules, rows.Rule{Of: r, Kind: rows.Offset, Off: f.saved[r] - f.off})
		}
	}
	return s
}
