package arch

import (
	"encoding/binary"
	"fmt"
)

// PPC64LE is 64-bit Power, little-endian (OpenPOWER ELF V2 ABI, sections 2.2 and 2.4). The word at the stack pointer is the caller's stack pointer, in each
// function with a frame; there the function that it calls keeps its return address 16 bytes above.
var PPC64LE = finish(&Machine{
	Name: "ppc64", ELF: EM_PPC64,
	SP: 1, FP: 31, PC: 67, RA: 65, RAName: "ra",
	CalleeSaved: []Reg{14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 70},
	RAInReg:     true,
	ZeroEnds:    true,
	Record:      Record{Chain: true, RA: 16},
	Signal:      &ppc64Signal,
	afterCall:   ppc64AfterCall,
	UserRegs:    UserRegs{Slots: append(slots(0, 32), ppc64PC, NoSlot, NoSlot, NoSlot, ppc64LR)}, // struct pt_regs (asm/ptrace.h): gpr, nip, msr, orig_gpr3, ctr, link
	Perf:        append(slots(0, 32), ppc64PC, NoSlot, NoSlot, NoSlot, ppc64LR),                  // r0 to r31, nip, msr, orig_r3, ctr, link
	Unames:      []string{"ppc64le"},
	StepKnown:   true,
	names:       ppc64Names(),
}, 32, []Reg{65, 67, 70, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63})

// The slots of the link register and of the program counter.
const ppc64LR, ppc64PC = 32, 33

// ppc64Signal: struct rt_sigframe (arch/powerpc/kernel/signal_64.c), above the 128 bytes of a stack frame: struct ucontext, and in it struct sigcontext
// at 168, whose registers are at 64, in the order of ptrace.
var ppc64Signal = Signal{
	Returns: [][]byte{[]byte("\xac\x00\x00\x38\x02\x00\x00\x44")}, // li r0,172; sc
	Call:    4,
	Context: 128,
	Saved: func() []uint16 {
		const regs = 128 + 168 + 64
		s := make([]uint16, 68)
		for i := range 32 {
			s[i] = uint16(regs + 8*i)
		}
		s[65], s[67] = regs+8*36, regs+8*32
		return s
	}(),
}

// ppc64AfterCall knows branches that set the link register: b, bc, bclr and bcctr (Power ISA, book I, section 2.4).
func ppc64AfterCall(code []byte) bool {
	if len(code) < 4 {
		return false
	}
	w := binary.LittleEndian.Uint32(code[len(code)-4:])
	if w&1 == 0 {
		return false
	}
	op, ext := w>>26, w>>1&0x3ff
	return op == 18 || op == 16 || op == 19 && (ext == 16 || ext == 528)
}

func ppc64Names() []string {
	n := make([]string, 68)
	for i := range 32 {
		n[32+i] = fmt.Sprintf("f%d", i)
	}
	n[65], n[67] = "lr", "pc"
	return n
}
