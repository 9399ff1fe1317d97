package arch

// I386 is 32-bit x86 (System V ABI, Intel386 supplement; figure 2.14 of its version 1.1).
var I386 = finish(&Machine{
	Name: "i386", Triplet: "i386-linux-gnu", ELF: EM_386, Word: 4, SaveScale: 4,
	SP: 4, FP: 5, PC: 8, RA: 8, RAName: "ra",
	CalleeSaved: []Reg{3, 5, 6, 7},
	CallPush:    4,
	PLT:         &i386PLT,
	Record:      Record{RA: 4, Size: 8},
	Signal:      &i386Signal,
	afterCall:   amd64AfterCall, // the same encodings
	edge:        i386Edge,
	EdgeBytes:   32, // as on x86-64
	UserRegs: UserRegs{ // struct user_regs_struct (asm/user_32.h)
		Slots: []Slot{3, 1, 2, 6, 7, 5, 0, NoSlot, NoSlot, NoSlot, NoSlot, NoSlot, 8, NoSlot, NoSlot, 4}, // ebx ecx edx esi edi ebp eax, ds es fs gs, orig_eax, eip, cs, eflags, esp
	},
	Context:      &i386Context,
	CompactSaves: []Reg{3, 1, 2, 7, 6, 5}, // ebx ecx edx edi esi ebp
	// eax ebx ecx edx esi edi ebp esp eip
	Perf:      []Slot{0, 3, 1, 2, 6, 7, 5, 4, 8},
	Unames:    []string{"i386", "i486", "i586", "i686"},
	StepKnown: true,
	names:     []string{"eax", "ecx", "edx", "ebx", "esp", "ebp", "esi", "edi", "eip"},
}, 9, nil)

// i386PLT: Intel386 supplement, figures 5.3 and 5.4. As on x86-64, a stub pushes its index behind a jump or endbr32, and the first entry 4 bytes more.
var i386PLT = PLT{
	First: Stub{Size: 16, Entered: 4, Push: []Push{
		{At: 0, Size: 6, Bytes: 4, Code: "\xff\xb3"}, // push disp32(%ebx)
		{At: 0, Size: 6, Bytes: 4, Code: "\xff\x35"}, // push abs32
	}},
	Entry: Stub{Size: 16, Push: []Push{
		{At: 6, Size: 5, Bytes: 4, Code: "\x68"}, // push imm32
		{At: 4, Size: 5, Bytes: 4, Code: "\x68"},
	}},
}

// i386Signal: arch/x86/include/asm/sigframe.h. The handler's return has taken the first word. A handler with SA_SIGINFO has struct rt_sigframe_ia32:
// three words, struct siginfo of 128 bytes, struct ucontext, and in it struct sigcontext at 20. Others have struct sigframe_ia32: a word, and the
// sigcontext.
var i386Signal = Signal{
	Returns: [][]byte{[]byte("\xb8\xad\x00\x00\x00\xcd\x80")}, // mov $173,%eax; int $0x80
	Call:    2,
	Context: 140,
	Saved:   i386Saved(160),
	Plain: &Signal{
		Returns: [][]byte{[]byte("\x58\xb8\x77\x00\x00\x00\xcd\x80")}, // pop %eax; mov $119,%eax; int $0x80
		Call:    2,
		Same:    [2]uint16{4 + 28, 4 + 68}, // esp, and esp at the signal
		Saved:   i386Saved(4),
	},
}

// i386Saved is where registers are behind the beginning of a struct sigcontext.
func i386Saved(at uint16) []uint16 {
	return []uint16{0: at + 44, 1: at + 40, 2: at + 36, 3: at + 32, 4: at + 28, 5: at + 24, 6: at + 20, 7: at + 16, 8: at + 56}
}
