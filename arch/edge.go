package arch

import (
	"bytes"
	"encoding/binary"
)

// An Edge is a place at the beginning or the end of a function at which its code says where the return address is: the frame pointer
// is its caller's, still or again.
type Edge struct {
	Off uint64 // of the return address from the stack pointer; on a machine with a link register, of the caller's stack pointer
	FP  int64  // where the caller's frame pointer is, from the stack pointer; less than 0: in its register
}

// MaxEdge is the number of bytes that Edge reads from the place on, on any machine; before the place, MaxCall.
const MaxEdge = 256

// Edge says whether the code at a place is such an edge. before is the code that ends there, as much of it as is known.
func (m *Machine) Edge(before, at []byte) (Edge, bool) {
	if m.edge == nil {
		return Edge{}, false
	}
	return m.edge(before, at[:min(len(at), m.EdgeBytes)])
}

// amd64Edge and i386Edge know the first two instructions of functions that keep frame pointers (push %rbp; mov %rsp,%rbp), also with another
// instruction between them; a jump behind pop %rbp or leave; and what leads straight to a return, of instructions that _init and
// _fini have, too (crti.o and crtn.o of glibc and musl). In 32-bit code, functions of Windows begin with mov %edi,%edi, and a return may take arguments
// away: rules of the caller count them as there. Encodings: Intel SDM, volume 2.
func amd64Edge(before, at []byte) (Edge, bool) { return x86Edge(before, at, 8) }
func i386Edge(before, at []byte) (Edge, bool)  { return x86Edge(before, at, 4) }

func x86Edge(before, at []byte, word int64) (Edge, bool) {
	no := Edge{FP: -1}
	last := byte(0)
	if n := len(before); n > 0 {
		last = before[n-1]
	}
	wide, begin, rex := word == 8, "\xf3\x0f\x1e\xfa", "\x48" // endbr64; the prefix of instructions of 64 bits
	if !wide {
		begin, rex = "\xf3\x0f\x1e\xfb", "" // endbr32
	}
	code := bytes.TrimPrefix(at, []byte(begin))
	if len(code) == 0 {
		return no, false
	}
	if code[0] == 0x55 || !wide && bytes.HasPrefix(code, []byte("\x8b\xff\x55")) { // push %rbp; mov %edi,%edi; push %ebp
		return no, true
	}
	if last == 0x55 {
		reach := 8 // bytes in which another instruction fits
		if !wide {
			reach = 1
		}
		for i := 0; i < reach && i < len(at); i++ {
			if c := at[i:]; bytes.HasPrefix(c, []byte(rex+"\x89\xe5")) || bytes.HasPrefix(c, []byte(rex+"\x8b\xec")) { // mov %rsp,%rbp
				return Edge{Off: uint64(word)}, true
			}
		}
	}
	if last == 0x5d || last == 0xc9 { // pop %rbp, leave
		if c := code[0]; c == 0xe9 || c == 0xeb || len(code) > 1 && c == 0xff && code[1]>>3&7 == 4 { // jmp
			return no, true
		}
	}
	off, e := int64(0), no
	for len(code) > 0 {
		size := 0
		starts := func(s string) bool { size = len(s); return len(code) >= len(s) && string(code[:len(s)]) == s }
		number := func(s string) (n int64, ok bool) { // behind s
			if ok = starts(s) && len(code) > size; ok {
				n = int64(int8(code[size]))
				size++
			}
			return n, ok
		}
		switch n, added := number(rex + "\x83\xc4"); { // add $n,%rsp
		case added:
			off += n
		case code[0] == 0xc3, code[0] == 0xc2, starts("\xf3\xc3"), starts("\xf2\xc3"): // ret
			e.Off = uint64(off)
			return e, off >= 0 && e.FP < off
		case starts("\x5d") && off >= 0: // pop %rbp
			e.FP = off
			off += word
		case starts("\x58"), starts("\x59"), !wide && starts("\x5a"): // pop %rax, pop %rcx, pop %edx
			off += word
		case !wide:
			return no, false
		case starts("\x50"): // push %rax
			off -= word
		case starts("\x48\x83\xec") && len(code) > 3: // sub $n,%rsp
			off -= int64(int8(code[3]))
			size = 4
		case starts("\x48\x8b\x05"), starts("\x48\xc7\xc0"): // mov x(%rip),%rax; mov $x,%rax
			size = 7
		case starts("\x48\x85\xc0"), starts("\x74\x02\xff\xd0"), starts("\xff\xd0"): // test %rax,%rax; je .+4; call *%rax
		case starts("\xe8"): // call
			size = 5
		default:
			return no, false
		}
		if size > len(code) {
			break
		}
		code = code[size:]
	}
	return no, false
}

// Target returns the function that the call before return address ra has called, if that is in the call: before is the code that ends at
// ra. Of machines with a link register Arm tells; there ra has the bit that says which instruction set the call is in.
func (m *Machine) Target(before []byte, ra uint64) (uint64, bool) {
	if m.target == nil {
		return 0, false
	}
	return m.target(before, ra)
}

// amd64Target knows CALL rel32.
func amd64Target(before []byte, ra uint64) (uint64, bool) {
	n := len(before)
	if n < 5 || before[n-5] != 0xe8 {
		return 0, false
	}
	return ra + uint64(int64(int32(binary.LittleEndian.Uint32(before[n-4:])))), true
}

// arm64Edge knows the first instructions of functions that keep frame records, up to the one that sets the frame pointer; jumps behind the load of
// the record; and what leads straight to a return, such as all of a function without a frame: the kernel's vDSO has such ones, and no rows. All of them
// leave the return address in the link register. Encodings: Arm ARM, section C6.2.
func arm64Edge(before, at []byte) (Edge, bool) {
	word := func(b []byte, i int) uint32 {
		if i < 0 || i+4 > len(b) {
			return 0
		}
		return binary.LittleEndian.Uint32(b[i:])
	}
	const (
		imm7  = 0xffc07fff // masks all but the offset of a pair
		imm12 = 0xff8003ff // and all but the number that is added to the stack pointer
	)
	frame := func(w uint32) uint64 { // what sub sp,sp,#n takes
		n := uint64(w >> 10 & 0xfff)
		if w>>22&1 != 0 {
			n <<= 12
		}
		return n
	}
	first, second := word(at, 0), word(at, 4)
	last, prior := word(before, len(before)-4), word(before, len(before)-8)
	const subSP, stp, stpPre, ldpPost = 0xd10003ff, 0xa9007bfd, 0xa9807bfd, 0xa8c07bfd // of x29 and x30
	opens := func(w, next uint32) bool {                                               // a function: paciasp, pacibsp; the record
		return w&0xffffffbf == 0xd503233f || w&imm7 == stpPre || w&imm12 == subSP && next&imm7 == stp
	}
	switch {
	case opens(first, second),
		(first == 0xd503201f || first&0xffffff3f == 0xd503241f) && opens(second, word(at, 8)), // nop, as _init has it; bti
		first&0xffffffbf == 0xd50323bf, first&0xfffffbff == 0xd65f0bff, // autiasp, autibsp; retaa, retab
		last&imm7 == ldpPost && (first>>26 == 5 || first&0xfffffc1f == 0xd61f0000): // b, br
		return Edge{FP: -1}, true
	case first == 0x910003fd && last&imm7 == stpPre: // mov x29,sp
		if n := int64(int32(last<<10)>>25) * -8; n > 0 {
			return Edge{Off: uint64(n), FP: -1}, true
		}
	case first&imm7 == stp && last&imm12 == subSP:
		return Edge{Off: frame(last), FP: -1}, true
	case first&0xffc003ff == 0x910003fd && last&imm7 == stp && prior&imm12 == subSP: // add x29,sp,#n
		return Edge{Off: frame(prior), FP: -1}, true
	}
	for i := 0; i+4 <= len(at); i += 4 {
		w := word(at, i)
		if w == 0xd65f03c0 { // ret
			return Edge{FP: -1}, true
		}
		if !arm64Passes(w) {
			break
		}
	}
	return Edge{FP: -1}, false
}

// arm64Passes says whether an instruction leaves the link register and the stack pointer alone, and goes on to the next, or may. Where it is in doubt,
// it does not. Encodings: Arm ARM, section C4.1.
func arm64Passes(w uint32) bool {
	const link, sp = 30, 31 // 31 is the zero register, too
	to, base := w&31, w>>5&31
	class := w >> 25 & 15
	switch {
	case class&14 == 10: // branches, exceptions, system
		switch {
		case w&0xff000010 == 0x54000000, w&0x7c000000 == 0x34000000, w == 0xd4000001: // b.cond; cbz, cbnz, tbz, tbnz; svc #0
			return true
		case w == 0xd503201f, w == 0xd503203f, w&0xffffff3f == 0xd503241f: // nop, yield, bti
			return true
		case w&0xffffffbf == 0xd50323bf: // autiasp, autibsp: until then, the return address is signed
			return true
		case w&0xfffff01f == 0xd503301f, w&0xfff00000 == 0xd5300000: // barriers; mrs
			return to != link
		}
		return false
	case to == link:
		return false
	case class&14 == 8: // immediates
		adds, logical := w&0x3f000000 == 0x11000000, w&0x1f800000 == 0x12000000 && w&0x60000000 != 0x60000000
		return to != sp || !adds && !logical
	case class&7 == 5: // registers
		return to != sp || w&0x3fe00000 != 0x0b200000 // add, sub of an extended register
	case class&5 == 4: // loads, stores
		switch {
		case w&0x3b000000 == 0x39000000, w&0x3b000000 == 0x18000000: // an offset without a sign; from here
			return true
		case w&0x3b000000 == 0x38000000: // from sp, and with a change of the base, other forms than the plain one
			return base < link || w&0x00200c00 == 0
		case w&0x3a000000 == 0x28000000: // pairs, and with a change of the base
			return w>>10&31 != link && (base < link || w&0x00800000 == 0)
		}
		return false
	}
	return class&7 == 7 // vectors
}
