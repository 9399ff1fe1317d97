package arch

// S390X is z/Architecture, big-endian (s390x ELF ABI, sections 1.2 and 1.6). f8 to f15 survive a call. There are no frame pointers to follow: a caller's
// frame is found by tables alone.
var S390X = finish(&Machine{
	Name: "s390x", ELF: EM_S390, BigEndian: true,
	SP: 15, FP: 11, PC: 65, RA: 14, RAName: "ra",
	CalleeSaved: []Reg{6, 7, 8, 9, 10, 11, 12, 13, 24, 25, 26, 27, 28, 29, 30, 31},
	RAInReg:     true,
	SPBelow:     160,
	Signal:      &s390xSignal,
	afterCall:   s390xAfterCall,
	UserRegs:    UserRegs{Slots: append([]Slot{NoSlot, 32}, slots(0, 16)...)}, // struct user_regs_struct (asm/ptrace.h): psw mask, psw address, r0 to r15
	Perf: append(slots(0, 16), 16, 20, 17, 21, 18, 22, 19, 23, 24, 28, 25, 29, 26, 30, 27, 31, // r0 to r15, f0 to f15
		NoSlot, 32), // psw mask, psw address
	Unames:    []string{"s390x"},
	StepKnown: true,
}, 32, []Reg{65})

// s390xSignal: arch/s390/kernel/signal.c. The frame begins with the 160 bytes that a callee may use. A handler with SA_SIGINFO has struct rt_sigframe: behind
// them an instruction, at 168 struct siginfo of 128 bytes, struct ucontext, and in it the registers at 40: psw mask, psw address, r0 to r15. Others have
// struct sigframe: the mask of signals, and a pointer to the registers, which follow.
var s390xSignal = Signal{
	Returns: [][]byte{[]byte("\x0a\xad")}, // svc 173
	Call:    2,
	Context: 296,
	Saved:   s390xSaved(296 + 40),
	Plain: &Signal{
		Returns: [][]byte{[]byte("\x0a\x77")}, // svc 119
		Call:    2,
		Self:    168,
		To:      176,
		Saved:   s390xSaved(176),
	},
}

func s390xSaved(at uint16) []uint16 {
	s := make([]uint16, 66)
	for i := range uint16(16) {
		s[i] = at + 16 + 8*i
	}
	s[65] = at + 8
	return s
}

// s390xAfterCall knows BRASL, BRAS, BASR and BAS to r14 (z/Architecture Principles of Operation, chapter 7).
func s390xAfterCall(code []byte) bool {
	n := len(code)
	at := func(back int) (byte, byte) {
		if n < back {
			return 0, 0
		}
		return code[n-back], code[n-back+1]
	}
	if a, b := at(6); a == 0xc0 && b == 0xe5 {
		return true
	}
	if a, b := at(4); a == 0xa7 && b == 0xe5 || a == 0x4d && b>>4 == 14 {
		return true
	}
	a, b := at(2)
	return a == 0x0d && b>>4 == 14
}
