package arch

import "encoding/binary"

// Loong64 is LoongArch with 64-bit addresses (LoongArch ELF psABI, sections 2.1 and 8). fs0 to fs7 survive a call.
var Loong64 = finish(&Machine{
	Name: "loongarch", ELF: EM_LOONG,
	SP: 3, FP: 22, PC: 64, RA: 1, RAName: "ra",
	CalleeSaved: []Reg{22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 56, 57, 58, 59, 60, 61, 62, 63},
	RAInReg:     true,
	Record:      Record{At: -16, RA: 8, Size: 16},
	Signal:      &loongSignal,
	afterCall:   loongAfterCall,
	UserRegs:    UserRegs{Slots: append(slots(0, 32), NoSlot, 32+8)}, // struct user_pt_regs (asm/ptrace.h): r0 to r31, orig_a0, csr_era
	Perf:        append([]Slot{32 + 8}, slots(1, 31)...),             // pc, r1 to r31
	Unames:      []string{"loongarch64"},
	StepKnown:   true,
}, 32, []Reg{56, 57, 58, 59, 60, 61, 62, 63, 64})

// loongSignal: struct rt_sigframe (arch/loongarch/kernel/signal.c): struct siginfo of 128 bytes, struct ucontext, and in it struct sigcontext at 176, which begins
// with pc, r0 to r31.
var loongSignal = Signal{
	Returns: [][]byte{[]byte("\x0b\x2c\x82\x03\x00\x00\x2b\x00")}, // ori a7,zero,139; syscall 0
	Call:    4,
	Context: 128,
	Saved: func() []uint16 {
		s := make([]uint16, 65)
		for i := 1; i < 32; i++ {
			s[i] = uint16(128 + 176 + 8 + 8*i)
		}
		s[64] = 128 + 176
		return s
	}(),
}

// loongAfterCall knows BL, and JIRL to ra (LoongArch reference manual, volume 1, section 2.2.5).
func loongAfterCall(code []byte) bool {
	if len(code) < 4 {
		return false
	}
	w := binary.LittleEndian.Uint32(code[len(code)-4:])
	return w>>26 == 0x15 || w>>26 == 0x13 && w&31 == 1
}
