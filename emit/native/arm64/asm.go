// Package arm64 encodes A64 instructions: those that compiled unwind tables are made of, and no others (Arm Architecture Reference Manual for
// A-profile, section C6.2). A conditional branch that does not reach becomes its opposite over an unconditional one.
package arm64

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A Reg is a general register, by its number in instructions.
type Reg uint8

// The general registers. Number 31 is the stack pointer as a base and in additions of numbers, and zero elsewhere.
const (
	X0 Reg = iota
	X1
	X2
	X3
	X4
	X5
	X6
	X7
	X8
	X9
	X10
	X11
	X12
	X13
	X14
	X15
	X16
	X17
	X29 Reg = 29
	X30 Reg = 30
	SP  Reg = 31
	XZR Reg = 31
)

// A Vec is a vector register.
type Vec uint8

// A Mem is an operand in memory: Base + Disp, with Disp a multiple of the operand's size below 4,096 of them, or from -256 to 255.
type Mem struct {
	Base Reg
	Disp int32
}

// At is the memory at base + disp.
func At(base Reg, disp int32) Mem { return Mem{base, disp} }

// A Size is that of an operand in memory, as an exponent of two in bytes.
type Size uint8

// The sizes. Where less than 64 bits are loaded, the others become zero.
const (
	Byte Size = iota
	Half
	Word
	Double
)

// A Cond is a condition.
type Cond uint8

// The conditions. An odd one is the opposite of the one before it.
const (
	EQ Cond = 0
	NE Cond = 1
	HS Cond = 2
	LO Cond = 3
	HI Cond = 8
	LS Cond = 9
	GE Cond = 10
	LT Cond = 11
	GT Cond = 12
	LE Cond = 13
)

// An Op is an operation on two registers of 64 bits.
type Op uint32

// The operations, as their instructions with no registers.
const (
	ADD  Op = 0x8b000000
	SUB  Op = 0xcb000000
	AND  Op = 0x8a000000
	BIC  Op = 0x8a200000
	ORR  Op = 0xaa000000
	ORN  Op = 0xaa200000
	EOR  Op = 0xca000000
	LSL  Op = 0x9ac02000
	LSR  Op = 0x9ac02400
	ASR  Op = 0x9ac02800
	UDIV Op = 0x9ac00800
	SDIV Op = 0x9ac00c00
	MUL  Op = 0x9b007c00
)

// Label is a place in the code. It may be used before it is set.
type Label = int32

// An Asm is code that is being written. The zero Asm is empty.
type Asm struct {
	code   []uint32
	fixes  []fix
	labels []place
}

// A place is where a label is: an instruction as if all branches were short, and the branches before it.
type place struct{ at, fixes int32 }

// A fix is a distance that is filled in at the end.
type fix struct {
	at    int32 // of the instruction
	label Label
	kind  fixKind
	long  bool
	page  int64 // of fixPage: a page, less the one where the code starts
}

type fixKind uint8

const (
	fixBranch fixKind = iota // 26 bits of distance, at bit 0
	fixCond                  // 19 at bit 5
	fixTest                  // 14 at bit 5
	fixPage                  // of adrp
)

// reach returns how many bits a distance may have, in instructions; 0 where there is no longer form.
func (k fixKind) reach() uint {
	switch k {
	case fixCond:
		return 19
	case fixTest:
		return 14
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

// Size is the size of the code so far if all its branches are short, in bytes.
func (a *Asm) Size() int { return 4 * len(a.code) }

// MaxSize bounds the code: an unconditional branch reaches 128 MiB.
const MaxSize = 64 << 20

// Bytes returns the code, with all distances, and the offset of each label. offset is that of the code in its page. It panics on a label that
// was used and not set.
func (a *Asm) Bytes(offset int64) (code []byte, at []uint32) {
	// Branches start short; one that does not reach grows, which may take others out of reach.
	grown := make([]int32, len(a.fixes)+1) // by the branches before each one
	where := func(p place) int32 { return p.at + grown[p.fixes] }
	for changed := true; changed; {
		changed = false
		for i := range a.fixes {
			grown[i+1] = grown[i]
			if a.fixes[i].long {
				grown[i+1]++
			}
		}
		for i := range a.fixes {
			f := &a.fixes[i]
			n := f.kind.reach()
			if f.long || n == 0 {
				continue
			}
			d := where(a.target(f)) - (f.at + grown[i])
			if d>>(n-1) != d>>31 {
				f.long, changed = true, true
			}
		}
	}
	code = make([]byte, 0, 4*(len(a.code)+int(grown[len(a.fixes)])))
	put := func(w uint32) { code = binary.LittleEndian.AppendUint32(code, w) }
	from := int32(0)
	for i := range a.fixes {
		f := &a.fixes[i]
		for _, w := range a.code[from:f.at] {
			put(w)
		}
		from = f.at + 1
		w := a.code[f.at]
		if f.kind == fixPage {
			d := uint32(f.page - (offset+int64(len(code)))>>12)
			put(w | d&3<<29 | d>>2&0x7ffff<<5)
			continue
		}
		d := where(a.target(f)) - int32(len(code)/4)
		if f.long {
			put(opposite(w) | 2<<5)
			w, d = b, d-1
		}
		switch {
		case w == b || w == bl:
			if d>>25 != d>>31 {
				panic(fmt.Sprintf("arm64: distance %#x", d))
			}
			put(w | uint32(d)&(1<<26-1))
		case f.kind == fixTest:
			put(w | uint32(d)&(1<<14-1)<<5)
		default:
			put(w | uint32(d)&(1<<19-1)<<5)
		}
	}
	for _, w := range a.code[from:] {
		put(w)
	}
	at = make([]uint32, len(a.labels))
	for i, p := range a.labels {
		if p.at >= 0 {
			at[i] = uint32(4 * where(p))
		}
	}
	return code, at
}

func (a *Asm) target(f *fix) place {
	p := a.labels[f.label]
	if p.at < 0 {
		panic("arm64: branch to a label that was not set")
	}
	return p
}

// opposite returns a conditional branch for when w is not taken.
func opposite(w uint32) uint32 {
	if w>>24 == 0x54 {
		return w ^ 1 // the lowest bit of a condition
	}
	return w ^ 1<<24 // cbz or cbnz, tbz or tbnz
}

// Branches without their distance.
const (
	b  = 0x14000000
	bl = 0x94000000
)

func (a *Asm) put(w uint32) { a.code = append(a.code, w) }

func (a *Asm) branch(w uint32, l Label, k fixKind) {
	a.fixes = append(a.fixes, fix{at: int32(len(a.code)), label: l, kind: k})
	a.put(w)
}

// Jmp is b l, Call is bl l.
func (a *Asm) Jmp(l Label)  { a.branch(b, l, fixBranch) }
func (a *Asm) Call(l Label) { a.branch(bl, l, fixBranch) }

// Jcc is b.c l.
func (a *Asm) Jcc(c Cond, l Label) { a.branch(0x54000000|uint32(c), l, fixCond) }

// Cbz and Cbnz branch where all 64 bits of r are zero, or not.
func (a *Asm) Cbz(r Reg, l Label)  { a.branch(0xb4000000|uint32(r), l, fixCond) }
func (a *Asm) Cbnz(r Reg, l Label) { a.branch(0xb5000000|uint32(r), l, fixCond) }

// Tbz and Tbnz branch where a bit of r is zero, or not.
func (a *Asm) Tbz(r Reg, bit uint8, l Label)  { a.test(0x36000000, r, bit, l) }
func (a *Asm) Tbnz(r Reg, bit uint8, l Label) { a.test(0x37000000, r, bit, l) }

func (a *Asm) test(w uint32, r Reg, bit uint8, l Label) {
	a.branch(w|uint32(bit)>>5<<31|uint32(bit)&31<<19|uint32(r), l, fixTest)
}

// JmpReg is br r, CallReg is blr r, Ret is ret r.
func (a *Asm) JmpReg(r Reg)  { a.put(0xd61f0000 | uint32(r)<<5) }
func (a *Asm) CallReg(r Reg) { a.put(0xd63f0000 | uint32(r)<<5) }
func (a *Asm) Ret(r Reg)     { a.put(0xd65f0000 | uint32(r)<<5) }

// Strip is xpaclri: x30 without a signature. Processors that cannot sign do nothing.
func (a *Asm) Strip() { a.put(0xd50320ff) }

// Mov is mov dst, src; neither may be the stack pointer.
func (a *Asm) Mov(dst, src Reg) { a.RR(ORR, dst, XZR, src) }

// Mov32 is mov dst, src of 32 bits; the upper half becomes zero.
func (a *Asm) Mov32(dst, src Reg) { a.put(0x2a0003e0 | uint32(src)<<16 | uint32(dst)) }

// RR is op dst, x, y. None may be the stack pointer.
func (a *Asm) RR(op Op, dst, x, y Reg) {
	a.put(uint32(op) | uint32(y)<<16 | uint32(x)<<5 | uint32(dst))
}

// Shifted is op dst, x, y, lsl n; op is ADD to EOR.
func (a *Asm) Shifted(op Op, dst, x, y Reg, n uint8) {
	a.put(uint32(op) | uint32(y)<<16 | uint32(n)<<10 | uint32(x)<<5 | uint32(dst))
}

// RR32 is op dst, x, y of 32 bits: ADD or SUB. The upper half becomes zero.
func (a *Asm) RR32(op Op, dst, x, y Reg) {
	a.put(uint32(op)&^(1<<31) | uint32(y)<<16 | uint32(x)<<5 | uint32(dst))
}

// Msub is msub dst, x, y, from: from - x*y.
func (a *Asm) Msub(dst, x, y, from Reg) {
	a.put(0x9b008000 | uint32(y)<<16 | uint32(from)<<10 | uint32(x)<<5 | uint32(dst))
}

// Cmp compares two registers, neither the stack pointer.
func (a *Asm) Cmp(x, y Reg) { a.put(0xeb00001f | uint32(y)<<16 | uint32(x)<<5) }

// Arith says whether a number fits an addition, a subtraction or a comparison: 12 bits, or 12 bits above 12 zeros.
func Arith(v uint64) bool { return v < 1<<12 || v < 1<<24 && v&0xfff == 0 }

func arith(w uint32, v uint64) uint32 {
	switch {
	case v < 1<<12:
		return w | uint32(v)<<10
	case Arith(v):
		return w | 1<<22 | uint32(v)>>12<<10
	}
	panic(fmt.Sprintf("arm64: number %#x in an addition", v))
}

// AddImm is add dst, x, v, and SubImm is sub. dst and x may be the stack pointer.
func (a *Asm) AddImm(dst, x Reg, v uint64) { a.put(arith(0x91000000, v) | uint32(x)<<5 | uint32(dst)) }
func (a *Asm) SubImm(dst, x Reg, v uint64) { a.put(arith(0xd1000000, v) | uint32(x)<<5 | uint32(dst)) }

// SubsImm is subs dst, x, v. dst is not the stack pointer.
func (a *Asm) SubsImm(dst, x Reg, v uint64) { a.put(arith(0xf1000000, v) | uint32(x)<<5 | uint32(dst)) }

// CmpImm is cmp x, v.
func (a *Asm) CmpImm(x Reg, v uint64) { a.SubsImm(XZR, x, v) }

// Logical says whether a number fits a logical operation: the same field of 2 to 64 bits again and again, that is a rotated run of ones. It
// returns the fields N, immr and imms.
func Logical(v uint64) (enc uint32, ok bool) {
	if v == 0 || v == ^uint64(0) {
		return 0, false
	}
	size := 64
	for size > 2 && v == bits.RotateLeft64(v, size/2) {
		size /= 2
	}
	field := v & (^uint64(0) >> (64 - size))
	for rot := range size {
		x := field>>rot | field<<(size-rot)
		x &= ^uint64(0) >> (64 - size)
		if x&(x+1) != 0 {
			continue
		}
		ones := bits.OnesCount64(x)
		imms := uint32(-2*size)&0x3f | uint32(ones-1)
		n := uint32(0)
		if size == 64 {
			n, imms = 1, uint32(ones-1)
		}
		return n<<12 | uint32((size-rot)%size)<<6 | imms, true
	}
	return 0, false
}

// AndImm is and dst, x, v; OrrImm is orr. dst is not zero: 31 is the stack pointer.
func (a *Asm) AndImm(dst, x Reg, v uint64) { a.logical(0x92000000, dst, x, v) }
func (a *Asm) OrrImm(dst, x Reg, v uint64) { a.logical(0xb2000000, dst, x, v) }

func (a *Asm) logical(w uint32, dst, x Reg, v uint64) {
	enc, ok := Logical(v)
	if !ok {
		panic(fmt.Sprintf("arm64: number %#x in a logical operation", v))
	}
	a.put(w | enc<<10 | uint32(x)<<5 | uint32(dst))
}

// Imm is mov dst, v in as few instructions as it takes: movz or movn and movk, or orr.
func (a *Asm) Imm(dst Reg, v uint64) {
	parts := func(v uint64) (n int) {
		for i := range 4 {
			if v>>(16*i)&0xffff != 0 {
				n++
			}
		}
		return max(n, 1)
	}
	w, x := uint32(0xd2800000), v // movz
	if parts(^v) < parts(v) {
		w, x = 0x92800000, ^v // movn
	}
	if parts(x) > 1 {
		if _, ok := Logical(v); ok {
			a.OrrImm(dst, XZR, v)
			return
		}
	}
	first := true
	for i := range uint32(4) {
		switch part := uint32(x >> (16 * i) & 0xffff); {
		case part == 0 && (i < 3 || !first):
		case part == 0:
			a.put(w | uint32(dst))
		case first:
			a.put(w | i<<21 | part<<5 | uint32(dst))
			first = false
		default:
			a.put(0xf2800000 | i<<21 | uint32(v>>(16*i)&0xffff)<<5 | uint32(dst))
		}
	}
}

// LslImm, LsrImm and AsrImm shift by 1 to 63 bits.
func (a *Asm) LslImm(dst, x Reg, n uint8) { a.bitfield(0xd3400000, dst, x, 64-n, 63-n) }
func (a *Asm) LsrImm(dst, x Reg, n uint8) { a.bitfield(0xd3400000, dst, x, n, 63) }
func (a *Asm) AsrImm(dst, x Reg, n uint8) { a.bitfield(0x93400000, dst, x, n, 63) }

// Zext16 is uxth dst, x.
func (a *Asm) Zext16(dst, x Reg) { a.put(0x53003c00 | uint32(x)<<5 | uint32(dst)) }

func (a *Asm) bitfield(w uint32, dst, x Reg, immr, imms uint8) {
	a.put(w | uint32(immr)<<16 | uint32(imms)<<10 | uint32(x)<<5 | uint32(dst))
}

// Csel is csel dst, x, y, c.
func (a *Asm) Csel(dst, x, y Reg, c Cond) {
	a.put(0x9a800000 | uint32(y)<<16 | uint32(c)<<12 | uint32(x)<<5 | uint32(dst))
}

// Cset is cset dst, c.
func (a *Asm) Cset(dst Reg, c Cond) {
	a.put(0x9a9f07e0 | uint32(c^1)<<12 | uint32(dst))
}

// Rbit reverses the bits of x, Clz counts its leading zeros.
func (a *Asm) Rbit(dst, x Reg) { a.put(0xdac00000 | uint32(x)<<5 | uint32(dst)) }
func (a *Asm) Clz(dst, x Reg)  { a.put(0xdac01000 | uint32(x)<<5 | uint32(dst)) }

// Load and Store move 64 bits.
func (a *Asm) Load(dst Reg, m Mem)  { a.LoadSize(Double, dst, m) }
func (a *Asm) Store(m Mem, src Reg) { a.memory(Double, 0, uint32(src), m) }

// LoadSize loads an operand of a size.
func (a *Asm) LoadSize(s Size, dst Reg, m Mem) { a.memory(s, 1<<22, uint32(dst), m) }

func (a *Asm) memory(s Size, op, reg uint32, m Mem) {
	w := uint32(s)<<30 | op | uint32(m.Base)<<5 | reg
	switch {
	case m.Disp >= 0 && m.Disp&(1<<s-1) == 0 && m.Disp>>s < 1<<12:
		a.put(0x39000000 | w | uint32(m.Disp)>>s<<10)
	case m.Disp >= -256 && m.Disp < 256:
		a.put(0x38000000 | w | uint32(m.Disp)&0x1ff<<12)
	default:
		panic(fmt.Sprintf("arm64: offset %d", m.Disp))
	}
}

// LoadIndexed loads an operand of a size at base + index * size.
func (a *Asm) LoadIndexed(s Size, dst, base, index Reg) {
	w := uint32(0x38606800)
	if s != Byte {
		w |= 1 << 12
	}
	a.put(w | uint32(s)<<30 | uint32(index)<<16 | uint32(base)<<5 | uint32(dst))
}

// StorePair and LoadPair move two registers; the offset is a multiple of 8 from -512 to 504.
func (a *Asm) StorePair(x, y Reg, m Mem) { a.pair(0xa9000000, x, y, m) }
func (a *Asm) LoadPair(x, y Reg, m Mem)  { a.pair(0xa9400000, x, y, m) }

// PushPair is stp x, y, [sp, -size]!, and PopPair is ldp x, y, [sp], size.
func (a *Asm) PushPair(x, y Reg, size int32) { a.pair(0xa9800000, x, y, At(SP, -size)) }
func (a *Asm) PopPair(x, y Reg, size int32)  { a.pair(0xa8c00000, x, y, At(SP, size)) }

func (a *Asm) pair(w uint32, x, y Reg, m Mem) {
	if m.Disp&7 != 0 || m.Disp < -512 || m.Disp > 504 {
		panic(fmt.Sprintf("arm64: offset %d of a pair", m.Disp))
	}
	a.put(w | uint32(m.Disp)>>3&0x7f<<15 | uint32(y)<<10 | uint32(m.Base)<<5 | uint32(x))
}

// Page is adrp dst of a page of the file; 0 is the file's first.
func (a *Asm) Page(dst Reg, page int64) {
	a.fixes = append(a.fixes, fix{at: int32(len(a.code)), kind: fixPage, page: page})
	a.put(0x90000000 | uint32(dst))
}

// Self is adr dst of this instruction itself.
func (a *Asm) Self(dst Reg) { a.put(0x10000000 | uint32(dst)) }

// LoadVec is ldr q, [base, index].
func (a *Asm) LoadVec(dst Vec, base, index Reg) {
	a.put(0x3ce06800 | uint32(index)<<16 | uint32(base)<<5 | uint32(dst))
}

// Dup is dup dst.16b, src.
func (a *Asm) Dup(dst Vec, src Reg) { a.put(0x4e010c00 | uint32(src)<<5 | uint32(dst)) }

// NotBelow is cmhs dst.16b, x.16b, y.16b: ones in each byte of x that is not below that of y.
func (a *Asm) NotBelow(dst, x, y Vec) {
	a.put(0x6e203c00 | uint32(y)<<16 | uint32(x)<<5 | uint32(dst))
}

// Nibbles is shrn dst.8b, x.8h, 4: of sixteen bytes that are zeros or ones, four bits each.
func (a *Asm) Nibbles(dst, x Vec) { a.put(0x0f0c8400 | uint32(x)<<5 | uint32(dst)) }

// Low is fmov dst, d: the low 64 bits of a vector.
func (a *Asm) Low(dst Reg, src Vec) { a.put(0x9e660000 | uint32(src)<<5 | uint32(dst)) }
