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

// MaxEdge is the number of bytes that Edge reads from the place on; before the place, MaxCall.
const MaxEdge = 32

// Edge says whether the code at a place is such an edge. before is the code that ends there, as much of it as is known.
func (m *Machine) Edge(before, at []byte) (Edge, bool) {
	if m.edge == nil {
		return Edge{}, false
	}
	return m.edge(before, at)
}

// amd64Edge knows the first two instructions of functions that keep frame pointers (push %rbp; mov %rsp,%rbp), also with another
// instruction between them; a jump behind pop %rbp or leave; and what leads straight to a return, of instructions that _init and
// _fini have, too (crti.o and crtn.o of glibc and musl). Encodings: Intel SDM, volume 2.
func amd64Edge(before, at []byte) (Edge, bool) {
	no := Edge{FP: -1}
	last := byte(0)
	if n := len(before); n > 0 {
		last = before[n-1]
	}
	code := bytes.TrimPrefix(at, []byte("\xf3\x0f\x1e\xfa")) // endbr64
	if len(code) == 0 {
		return no, false
	}
	if code[0] == 0x55 { // push %rbp
		return no, true
	}
	if last == 0x55 {
		for i := 0; i < 8 && i+3 <= len(at); i++ {
			if c := string(at[i : i+3]); c == "\x48\x89\xe5" || c == "\x48\x8b\xec" { // mov %rsp,%rbp
				return Edge{Off: 8}, true
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
		switch {
		case code[0] == 0xc3, code[0] == 0xc2, starts("\xf3\xc3"), starts("\xf2\xc3"): // ret
			e.Off = uint64(off)
			return e, off >= 0 && e.FP < off
		case starts("\x5d") && off >= 0: // pop %rbp
			e.FP = off
			off += 8
		case starts("\x58"), starts("\x59"): // pop %rax, pop %rcx
			off += 8
		case starts("\x50"): // push %rax
			off -= 8
		case starts("\x48\x83\xc4") && len(code) > 3: // add $n,%rsp
			off += int64(int8(code[3]))
			size = 4
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
// ra. Machines with a link register do not tell.
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

// arm64Edge knows the first instructions of functions that keep frame records, up to the one that sets the frame pointer, and
// returns and jumps behind the load of the record, all of which leave the return address in the link register. Encodings:
// Arm ARM, section C6.2.
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
	switch {
	case first&0xffffff3f == 0xd503241f && second&imm7 == stpPre, // bti
		first&0xffffffbf == 0xd503233f, first&0xffffffbf == 0xd50323bf, // paciasp, pacibsp; autiasp, autibsp
		first&imm7 == stpPre,
		first&imm12 == subSP && second&imm7 == stp,
		first == 0xd65f03c0, first&0xfffffbff == 0xd65f0bff, // ret; retaa, retab
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
	return Edge{FP: -1}, false
}
