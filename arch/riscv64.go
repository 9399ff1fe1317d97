package arch

import "encoding/binary"

// RISCV64 is RISC-V with 64-bit addresses (RISC-V ELF psABI, sections 1.1 and 8). fs0 to fs11 survive a call.
var RISCV64 = finish(&Machine{
	Name: "riscv", ELF: EM_RISCV,
	SP: 2, FP: 8, PC: 64, RA: 1, RAName: "ra",
	CalleeSaved: []Reg{8, 9, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 40, 41, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59},
	RAInReg:     true,
	Record:      Record{At: -16, RA: 8, Size: 16},
	Signal:      &riscvSignal,
	afterCall:   riscvAfterCall,
	UserRegs:    UserRegs{Slots: append([]Slot{32 + 12}, slots(1, 31)...)}, // struct user_regs_struct (asm/ptrace.h): pc, x1 to x31
	Perf:        append([]Slot{32 + 12}, slots(1, 31)...),                  // the same
	Unames:      []string{"riscv64"},
	StepKnown:   true,
}, 32, []Reg{40, 41, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 64})

// riscvSignal: struct rt_sigframe (arch/riscv/kernel/signal.c): struct siginfo of 128 bytes, struct ucontext, and in it struct sigcontext at 176, which begins
// with pc, x1 to x31.
var riscvSignal = Signal{
	Returns: [][]byte{[]byte("\x93\x08\xb0\x08\x73\x00\x00\x00")}, // li a7,139; ecall
	Call:    4,
	Context: 128,
	Saved: func() []uint16 {
		s := make([]uint16, 65)
		for i := 1; i < 32; i++ {
			s[i] = uint16(128 + 176 + 8*i)
		}
		s[64] = 128 + 176
		return s
	}(),
}

// riscvAfterCall knows JAL and JALR to ra or t0, and C.JALR (RISC-V ISA, volume I, sections 2.5 and 26.5).
func riscvAfterCall(code []byte) bool {
	n := len(code)
	if n >= 2 {
		if h := binary.LittleEndian.Uint16(code[n-2:]); h&0xf07f == 0x9002 && h>>7&31 != 0 {
			return true
		}
	}
	if n < 4 {
		return false
	}
	w := binary.LittleEndian.Uint32(code[n-4:])
	to, op := w>>7&31, w&0x7f
	return (to == 1 || to == 5) && (op == 0x6f || op == 0x67 && w>>12&7 == 0)
}
