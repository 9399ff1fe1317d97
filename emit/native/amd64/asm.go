// Package amd64 encodes x86-64 instructions: those that compiled unwind tables are made of, and no others (Intel 64
// and IA-32 Architectures Software Developer's Manual, volume 2). Jumps are as short as their distance allows.
package amd64

import (
	"encoding/binary"
	"fmt"
	"math"
)

// A Reg is a general register, by its number in instructions.
type Reg uint8

// The general registers.
const (
	RAX Reg = iota
	RCX
	RDX
	RBX
	RSP
	RBP
	RSI
	RDI
	R8
	R9
	R10
	R11
	R12
	R13
	R14
	R15
	NoReg Reg = 255
)

// An Xmm is a vector register.
type Xmm uint8

// A Mem is an operand in memory: Base + Index*Scale + Disp.
type Mem struct {
	Base, Index Reg
	Scale       uint8 // 1, 2, 4, 8
	Disp        int32
}

// At is the memory at base + disp.
func At(base Reg, disp int32) Mem { return Mem{Base: base, Index: NoReg, Disp: disp} }

// Indexed is the memory at base + index*scale + disp.
func Indexed(base, index Reg, scale uint8, disp int32) Mem { return Mem{base, index, scale, disp} }

// An Op is an arithmetic or logical operation on two operands.
type Op uint8

// The operations, by their numbers in instructions.
const (
	ADD Op = iota
	OR
	ADC
	SBB
	AND
	SUB
	XOR
	CMP
)

// A Shift is a kind of shift.
type Shift uint8

// The shifts.
const (
	SHL Shift = 4
	SHR Shift = 5
	SAR Shift = 7
)

// A Cond is a condition.
type Cond uint8

// The conditions. B and AE also say whether the carry is set.
const (
	B  Cond = 2
	AE Cond = 3
	E  Cond = 4
	NE Cond = 5
	A  Cond = 7
	L  Cond = 12
	GE Cond = 13
	LE Cond = 14
	G  Cond = 15
)

// A Label is a place in the code. It may be used before it is set.
type Label = int32

// An Asm is code that is being written. The zero Asm is empty.
type Asm struct {
	code   []byte
	fixes  []fix
	labels []place
}

// A place is where a label is: an offset as if all jumps were short, and the jumps before it.
type place struct{ at, fixes int32 }

// A fix is a distance that is filled in at the end.
type fix struct {
	at    int32 // of the instruction for jumps, of the distance for others
	label Label // -1: abs
	kind  fixKind
	cond  Cond
	long  bool
	abs   int64 // a target outside of the code, as an offset from its start
}

type fixKind uint8

const (
	fixJmp fixKind = iota // 2 bytes, or 5
	fixJcc                // 2 bytes, or 6
	fixRel                // 4 bytes, and nothing of the instruction behind them
)

// growth is by how many bytes the long form of a jump is longer.
func (k fixKind) growth() int32 {
	switch k {
	case fixJmp:
		return 3
	case fixJcc:
		return 4
	}
	return 0
}

// Label returns a new label, to be set.
func (a *Asm) Label() Label {
	a.labels = append(a.labels, place{at: -1})
	return Label(len(a.labels) - 1)
}

// Set puts l here.
func (a *Asm) Set(l Label) { a.labels[l] = place{int32(len(a.code)), int32(len(a.fixes))} }

// Here returns a label for this place.
func (a *Asm) Here() Label {
	l := a.Label()
	a.Set(l)
	return l
}

// Size is the size of the code so far if all its jumps are short, in bytes.
func (a *Asm) Size() int { return len(a.code) }

// Bytes returns the code, with all distances, and the offset of each label. It panics on a label that was used and
// not set.
func (a *Asm) Bytes() (code []byte, at []uint32) {
	// Jumps start short; one that does not reach grows, which may take others out of reach.
	grown := make([]int32, len(a.fixes)+1) // by the jumps before each one
	where := func(p place) int32 { return p.at + grown[p.fixes] }
	for changed := true; changed; {
		changed = false
		for i := range a.fixes {
			f := &a.fixes[i]
			grown[i+1] = grown[i]
			if f.long {
				grown[i+1] += f.kind.growth()
			}
		}
		for i := range a.fixes {
			f := &a.fixes[i]
			if f.long || f.kind == fixRel {
				continue
			}
			p := a.labels[f.label]
			if p.at < 0 {
				panic("amd64: jump to a label that was not set")
			}
			if d := where(p) - (f.at + grown[i] + 2); d != int32(int8(d)) {
				f.long, changed = true, true
			}
		}
	}
	code = make([]byte, 0, len(a.code)+int(grown[len(a.fixes)]))
	from := int32(0)
	for i := range a.fixes {
		f := &a.fixes[i]
		code = append(code, a.code[from:f.at]...)
		target := f.abs
		if f.label >= 0 {
			p := a.labels[f.label]
			if p.at < 0 {
				panic("amd64: use of a label that was not set")
			}
			target = int64(where(p))
		}
		here := int64(len(code))
		switch {
		case f.kind == fixRel:
			code = rel32(code, target-here-4)
			from = f.at + 4
		case !f.long && f.kind == fixJmp:
			code = append(code, 0xeb, byte(target-here-2))
			from = f.at + 2
		case !f.long:
			code = append(code, 0x70|byte(f.cond), byte(target-here-2))
			from = f.at + 2
		case f.kind == fixJmp:
			code = rel32(append(code, 0xe9), target-here-5)
			from = f.at + 2
		default:
			code = rel32(append(code, 0x0f, 0x80|byte(f.cond)), target-here-6)
			from = f.at + 2
		}
	}
	code = append(code, a.code[from:]...)
	at = make([]uint32, len(a.labels))
	for i, p := range a.labels {
		if p.at >= 0 {
			at[i] = uint32(where(p))
		}
	}
	return code, at
}

func rel32(b []byte, d int64) []byte {
	if d != int64(int32(d)) {
		panic(fmt.Sprintf("amd64: distance %#x", d))
	}
	return binary.LittleEndian.AppendUint32(b, uint32(d))
}

// encode writes an instruction of one register field and one operand that is a register (m nil) or memory.
func (a *Asm) encode(prefix byte, wide bool, reg, rm uint8, m *Mem, op ...byte) {
	rex := byte(0)
	if wide {
		rex = 0x48
	}
	rex |= reg >> 3 << 2
	if m == nil {
		rex |= rm >> 3
	} else {
		rex |= byte(m.Base) >> 3
		if m.Index != NoReg {
			rex |= byte(m.Index) >> 3 << 1
		}
	}
	if prefix != 0 {
		a.code = append(a.code, prefix)
	}
	if rex != 0 {
		a.code = append(a.code, 0x40|rex)
	}
	a.code = append(a.code, op...)
	if m == nil {
		a.code = append(a.code, 0xc0|reg&7<<3|rm&7)
		return
	}
	mod := byte(0x80)
	switch {
	case m.Disp == 0 && m.Base&7 != RBP:
		mod = 0
	case m.Disp == int32(int8(m.Disp)):
		mod = 0x40
	}
	if m.Index != NoReg || m.Base&7 == RSP {
		index, scale := byte(4), byte(0)
		if m.Index != NoReg {
			if m.Index == RSP {
				panic("amd64: rsp is no index")
			}
			index = byte(m.Index) & 7
			for 1<<scale < m.Scale {
				scale++
			}
		}
		a.code = append(a.code, mod|reg&7<<3|4, scale<<6|index<<3|byte(m.Base)&7)
	} else {
		a.code = append(a.code, mod|reg&7<<3|byte(m.Base)&7)
	}
	switch mod {
	case 0x40:
		a.code = append(a.code, byte(m.Disp))
	case 0x80:
		a.imm32(m.Disp)
	}
}

func (a *Asm) imm32(v int32) { a.code = binary.LittleEndian.AppendUint32(a.code, uint32(v)) }

// Mov is mov dst, src.
func (a *Asm) Mov(dst, src Reg) { a.encode(0, true, uint8(src), uint8(dst), nil, 0x89) }

// Mov32 is mov dst, src of 32 bits; the upper half becomes zero.
func (a *Asm) Mov32(dst, src Reg) { a.encode(0, false, uint8(src), uint8(dst), nil, 0x89) }

// Load is mov dst, [m].
func (a *Asm) Load(dst Reg, m Mem) { a.encode(0, true, uint8(dst), 0, &m, 0x8b) }

// Load32 is mov dst, [m] of 32 bits; the upper half becomes zero.
func (a *Asm) Load32(dst Reg, m Mem) { a.encode(0, false, uint8(dst), 0, &m, 0x8b) }

// Load16 is movzx dst, word [m].
func (a *Asm) Load16(dst Reg, m Mem) { a.encode(0, false, uint8(dst), 0, &m, 0x0f, 0xb7) }

// Load8 is movzx dst, byte [m].
func (a *Asm) Load8(dst Reg, m Mem) { a.encode(0, false, uint8(dst), 0, &m, 0x0f, 0xb6) }

// Store is mov [m], src.
func (a *Asm) Store(m Mem, src Reg) { a.encode(0, true, uint8(src), 0, &m, 0x89) }

// StoreImm is mov qword [m], imm.
func (a *Asm) StoreImm(m Mem, v int32) { a.encode(0, true, 0, 0, &m, 0xc7); a.imm32(v) }

// Zext16 is movzx dst, src of 16 bits.
func (a *Asm) Zext16(dst, src Reg) { a.encode(0, false, uint8(dst), uint8(src), nil, 0x0f, 0xb7) }

// Zext8 is movzx dst, src of 8 bits. src is RAX, RCX, RDX or RBX, or R8 and up.
func (a *Asm) Zext8(dst, src Reg) { a.encode(0, false, uint8(dst), uint8(src), nil, 0x0f, 0xb6) }

// Imm is mov dst, v in its shortest form. It leaves the flags.
func (a *Asm) Imm(dst Reg, v uint64) {
	switch {
	case v <= math.MaxUint32:
		if dst >= R8 {
			a.code = append(a.code, 0x41)
		}
		a.code = append(a.code, 0xb8|byte(dst)&7)
		a.imm32(int32(uint32(v)))
	case int64(v) == int64(int32(v)):
		a.encode(0, true, 0, uint8(dst), nil, 0xc7)
		a.imm32(int32(v))
	default:
		a.code = append(a.code, 0x48|byte(dst)>>3, 0xb8|byte(dst)&7)
		a.code = binary.LittleEndian.AppendUint64(a.code, v)
	}
}

// Lea is lea dst, [m].
func (a *Asm) Lea(dst Reg, m Mem) { a.encode(0, true, uint8(dst), 0, &m, 0x8d) }

// LeaAbs is lea dst, [rip+…] of what lies abs bytes behind the start of the code (before it, where negative).
func (a *Asm) LeaAbs(dst Reg, abs int64) {
	a.code = append(a.code, 0x48|byte(dst)>>3<<2, 0x8d, byte(dst)&7<<3|5)
	a.fix(-1, abs)
}

func (a *Asm) fix(l Label, abs int64) {
	a.fixes = append(a.fixes, fix{at: int32(len(a.code)), label: l, kind: fixRel, abs: abs})
	a.imm32(0)
}

// RR is op dst, src.
func (a *Asm) RR(op Op, dst, src Reg) { a.encode(0, true, uint8(src), uint8(dst), nil, byte(op)<<3|1) }

// RR32 is op dst, src of 32 bits.
func (a *Asm) RR32(op Op, dst, src Reg) {
	a.encode(0, false, uint8(src), uint8(dst), nil, byte(op)<<3|1)
}

// RM is op dst, [m].
func (a *Asm) RM(op Op, dst Reg, m Mem) { a.encode(0, true, uint8(dst), 0, &m, byte(op)<<3|3) }

// MR is op [m], src.
func (a *Asm) MR(op Op, m Mem, src Reg) { a.encode(0, true, uint8(src), 0, &m, byte(op)<<3|1) }

// RI is op dst, v, which is extended with its sign.
func (a *Asm) RI(op Op, dst Reg, v int32) { a.regImm(true, op, dst, v) }

// RI32 is op dst, v of 32 bits.
func (a *Asm) RI32(op Op, dst Reg, v int32) { a.regImm(false, op, dst, v) }

func (a *Asm) regImm(wide bool, op Op, dst Reg, v int32) {
	switch {
	case v == int32(int8(v)):
		a.encode(0, wide, uint8(op), uint8(dst), nil, 0x83)
		a.code = append(a.code, byte(v))
		return
	case dst == RAX:
		if wide {
			a.code = append(a.code, 0x48)
		}
		a.code = append(a.code, byte(op)<<3|5)
	default:
		a.encode(0, wide, uint8(op), uint8(dst), nil, 0x81)
	}
	a.imm32(v)
}

// MI is op qword [m], v, which is extended with its sign.
func (a *Asm) MI(op Op, m Mem, v int32) {
	if v == int32(int8(v)) {
		a.encode(0, true, uint8(op), 0, &m, 0x83)
		a.code = append(a.code, byte(v))
		return
	}
	a.encode(0, true, uint8(op), 0, &m, 0x81)
	a.imm32(v)
}

// Test is test r, r.
func (a *Asm) Test(r Reg) { a.encode(0, true, uint8(r), uint8(r), nil, 0x85) }

// Test32 is test r, r of 32 bits.
func (a *Asm) Test32(r Reg) { a.encode(0, false, uint8(r), uint8(r), nil, 0x85) }

// TestByte is test byte [m], v.
func (a *Asm) TestByte(m Mem, v byte) {
	a.encode(0, false, 0, 0, &m, 0xf6)
	a.code = append(a.code, v)
}

// Shift is a shift of r by n bits.
func (a *Asm) Shift(s Shift, r Reg, n byte) {
	a.encode(0, true, uint8(s), uint8(r), nil, 0xc1)
	a.code = append(a.code, n)
}

// ShiftCL is a shift of r by cl bits.
func (a *Asm) ShiftCL(s Shift, r Reg) { a.encode(0, true, uint8(s), uint8(r), nil, 0xd3) }

// Not is not r.
func (a *Asm) Not(r Reg) { a.encode(0, true, 2, uint8(r), nil, 0xf7) }

// Neg is neg r.
func (a *Asm) Neg(r Reg) { a.encode(0, true, 3, uint8(r), nil, 0xf7) }

// Mul is imul dst, src.
func (a *Asm) Mul(dst, src Reg) { a.encode(0, true, uint8(dst), uint8(src), nil, 0x0f, 0xaf) }

// Div is div r: rdx:rax, unsigned, to rax and the rest in rdx.
func (a *Asm) Div(r Reg) { a.encode(0, true, 6, uint8(r), nil, 0xf7) }

// IDiv is idiv r: rdx:rax, signed, to rax and the rest in rdx.
func (a *Asm) IDiv(r Reg) { a.encode(0, true, 7, uint8(r), nil, 0xf7) }

// Cqo extends rax with its sign into rdx.
func (a *Asm) Cqo() { a.code = append(a.code, 0x48, 0x99) }

// Bts sets bit n of r.
func (a *Asm) Bts(r Reg, n byte) { a.bit(5, r, n) }

// Btr clears bit n of r.
func (a *Asm) Btr(r Reg, n byte) { a.bit(6, r, n) }

func (a *Asm) bit(ext uint8, r Reg, n byte) {
	a.encode(0, true, ext, uint8(r), nil, 0x0f, 0xba)
	a.code = append(a.code, n)
}

// Btr32 clears bit n of the lower half of r, and the upper half.
func (a *Asm) Btr32(r Reg, n byte) {
	a.encode(0, false, 6, uint8(r), nil, 0x0f, 0xba)
	a.code = append(a.code, n)
}

// Push is push r.
func (a *Asm) Push(r Reg) {
	if r >= R8 {
		a.code = append(a.code, 0x41)
	}
	a.code = append(a.code, 0x50|byte(r)&7)
}

// Pop is pop r.
func (a *Asm) Pop(r Reg) {
	if r >= R8 {
		a.code = append(a.code, 0x41)
	}
	a.code = append(a.code, 0x58|byte(r)&7)
}

// PushImm is push v, which is extended with its sign.
func (a *Asm) PushImm(v int32) {
	if v == int32(int8(v)) {
		a.code = append(a.code, 0x6a, byte(v))
		return
	}
	a.code = append(a.code, 0x68)
	a.imm32(v)
}

// PushMem is push qword [m].
func (a *Asm) PushMem(m Mem) { a.encode(0, false, 6, 0, &m, 0xff) }

// Jmp jumps to l.
func (a *Asm) Jmp(l Label) { a.jump(fixJmp, 0, l) }

// Jcc jumps to l if c holds.
func (a *Asm) Jcc(c Cond, l Label) { a.jump(fixJcc, c, l) }

func (a *Asm) jump(k fixKind, c Cond, l Label) {
	a.fixes = append(a.fixes, fix{at: int32(len(a.code)), label: l, kind: k, cond: c})
	a.code = append(a.code, 0, 0)
}

// Call calls l.
func (a *Asm) Call(l Label) {
	a.code = append(a.code, 0xe8)
	a.fix(l, 0)
}

// JmpReg jumps to the address in r.
func (a *Asm) JmpReg(r Reg) { a.encode(0, false, 4, uint8(r), nil, 0xff) }

// CallReg calls the address in r.
func (a *Asm) CallReg(r Reg) { a.encode(0, false, 2, uint8(r), nil, 0xff) }

// Ret is ret.
func (a *Asm) Ret() { a.code = append(a.code, 0xc3) }

// Leave is mov rsp, rbp and pop rbp.
func (a *Asm) Leave() { a.code = append(a.code, 0xc9) }

// Clc clears the carry.
func (a *Asm) Clc() { a.code = append(a.code, 0xf8) }

// Stc sets the carry.
func (a *Asm) Stc() { a.code = append(a.code, 0xf9) }

// Setcc makes the lowest byte of r one if c holds, else zero. r is RAX, RCX, RDX or RBX.
func (a *Asm) Setcc(c Cond, r Reg) { a.encode(0, false, 0, uint8(r), nil, 0x0f, 0x90|byte(c)) }

// Cmov is mov dst, src if c holds.
func (a *Asm) Cmov(c Cond, dst, src Reg) {
	a.encode(0, true, uint8(dst), uint8(src), nil, 0x0f, 0x40|byte(c))
}

// Tzcnt32 is tzcnt dst, src of 32 bits: the lowest bit that is set. Where the processor does not know it, it is bsf, which
// is the same as long as src is not zero.
func (a *Asm) Tzcnt32(dst, src Reg) { a.encode(0xf3, false, uint8(dst), uint8(src), nil, 0x0f, 0xbc) }

// MovdX is movd dst, src of 32 bits.
func (a *Asm) MovdX(dst Xmm, src Reg) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0x6e) }

// LoadX is movdqu dst, [m].
func (a *Asm) LoadX(dst Xmm, m Mem) { a.encode(0xf3, false, uint8(dst), 0, &m, 0x0f, 0x6f) }

// MovX is movdqa dst, src.
func (a *Asm) MovX(dst, src Xmm) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0x6f) }

// Unpack8 is punpcklbw dst, src: the lower bytes of both by turns.
func (a *Asm) Unpack8(dst, src Xmm) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0x60) }

// Unpack64 is punpcklqdq dst, src: the lower halves of both.
func (a *Asm) Unpack64(dst, src Xmm) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0x6c) }

// Shuffle16 is pshuflw dst, src, order.
func (a *Asm) Shuffle16(dst, src Xmm, order byte) {
	a.encode(0xf2, false, uint8(dst), uint8(src), nil, 0x0f, 0x70)
	a.code = append(a.code, order)
}

// Min8 is pminub dst, src: the smaller of each two bytes.
func (a *Asm) Min8(dst, src Xmm) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0xda) }

// Equal8 is pcmpeqb dst, src: all ones where two bytes are equal.
func (a *Asm) Equal8(dst, src Xmm) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0x74) }

// Mask8 is pmovmskb dst, src: the highest bit of each byte.
func (a *Asm) Mask8(dst Reg, src Xmm) { a.encode(0x66, false, uint8(dst), uint8(src), nil, 0x0f, 0xd7) }
