package arch

import (
	"encoding/binary"
	"fmt"
)

// AMD64 is x86-64 (System V ABI, AMD64 supplement, figure 3.36).
var AMD64 = finish(&Machine{
	Name: "x86_64", GoArch: "amd64", ELF: EM_X86_64, Compat: EM_386, Triplet: "x86_64-linux-gnu",
	SP: 7, FP: 6, PC: 16, RA: 16, RAName: "ra",
	CalleeSaved: []Reg{3, 6, 12, 13, 14, 15},
	CallPush:    8,
	Record:      Record{RA: 8, Size: 16},
	Signal:      &amd64Signal,
	PLT:         &amd64PLT,
	afterCall:   amd64AfterCall,
	edge:        amd64Edge,
	EdgeBytes:   32, // the ways to a return that it knows are short
	target:      amd64Target,
	RedZone:     128,
	Syscall: Syscall{ // A.2.1
		Code: []byte("\x0f\x05"), Number: 0, Result: 0, Args: [6]Slot{5, 4, 1, 10, 8, 9}, // syscall; rax; rdi rsi rdx r10 r8 r9
		Starts: []int{58, 56, 435}, // vfork, clone, clone3
		Maps:   [2]int{9, 10}, Restart: -2,
	},
	Args: []Reg{5, 4, 1, 2, 8, 9}, // rdi rsi rdx rcx r8 r9 (3.2.3)
	Perf: []Slot{0, 3, 2, 1, 4, 5, 6, 7, 16, NoSlot, NoSlot, NoSlot, // ax bx cx dx si di bp sp ip flags cs ss
		NoSlot, NoSlot, NoSlot, NoSlot, 8, 9, 10, 11, 12, 13, 14, 15}, // ds es fs gs r8 to r15
	UserRegs: UserRegs{ // struct user_regs_struct (asm/user_64.h)
		Words: 27,
		Slots: []Slot{15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, // r15 to r12, rbp, rbx, r11 to r8, rax, rcx, rdx, rsi, rdi
			NoSlot, 16, NoSlot, NoSlot, 7}, // orig_rax, rip, cs, eflags, rsp
		TLS:  21,               // fs_base
		Mode: 17, Mode32: 0x23, // cs, __USER32_CS
	},
	Trap:         Trap{Code: []byte("\xcc"), Behind: 1, Codes: []int32{0x80}}, // int3; SI_KERNEL
	Context:      &amd64Context,
	CompactSaves: []Reg{3, 12, 13, 14, 15, 6}, // rbx r12 r13 r14 r15 rbp
	VSyscall:     0xffffffffff600000,
	GoMove:       GoMove{Code: []byte("\x49\x89\xe4"), To: 12}, // mov %rsp,%r12
	Return:       []byte("\xc3"),                               // ret
	StepKnown:    true,
	names:        amd64Names(),
}, 17, nil)

// amd64Signal: struct rt_sigframe (arch/x86/include/asm/sigframe.h), of which the handler's return has taken the first
// word: struct ucontext is at the stack pointer, and in it struct sigcontext at 40.
var amd64Signal = Signal{
	Returns: [][]byte{
		[]byte("\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05"), // mov $15,%rax; syscall
		[]byte("\xb8\x0f\x00\x00\x00\x0f\x05"),         // mov $15,%eax; syscall
	},
	Call: 2,
	Saved: []uint16{
		0: 144, 1: 136, 2: 152, 3: 128, 4: 112, 5: 104, 6: 120, 7: 160, // rax rdx rcx rbx rsi rdi rbp rsp
		8: 40, 9: 48, 10: 56, 11: 64, 12: 72, 13: 80, 14: 88, 15: 96, 16: 168, // r8 to r15, rip
	},
}

// amd64PLT: AMD64 psABI, figure 5.2. Stubs push their index in 5 bytes, behind a jump of 6 or, with IBT, behind endbr64; the first entry
// begins with that and pushes 8 bytes more.
var amd64PLT = PLT{
	First: Stub{Size: 16, Entered: 8, Push: []Push{{At: 0, Size: 6, Bytes: 8, Code: "\xff\x35"}}}, // push disp32(%rip)
	Entry: Stub{Size: 16, Push: []Push{
		{At: 6, Size: 5, Bytes: 8, Code: "\x68"}, // push imm32
		{At: 4, Size: 5, Bytes: 8, Code: "\x68"},
	}},
	Jumps: amd64Jumps,
}

// amd64Jumps finds jmp *disp(%rip) in entries of 16 bytes, or 8 where the section says so (AMD64 supplement, section 5.2; with
// IBT, endbr64 comes first). Of static programs, GNU's ld does not say that entries have 8 bytes: a jump, and xchg %ax,%ax.
func amd64Jumps(b []byte, addr, entsize uint64) []Jump {
	if short := len(b) >= 8 && string(b[:2]) == "\xff\x25" && string(b[6:8]) == "\x66\x90"; entsize != 8 && !short {
		entsize = 16
	} else {
		entsize = 8
	}
	var out []Jump
	for at := uint64(0); at+entsize <= uint64(len(b)); at += entsize {
		e := b[at : at+entsize]
		for i := 0; i+6 <= len(e); i++ {
			if e[i] == 0xff && e[i+1] == 0x25 {
				disp := int64(int32(binary.LittleEndian.Uint32(e[i+2:])))
				out = append(out, Jump{addr + at, addr + at + entsize, addr + at + uint64(i) + 6 + uint64(disp)})
				break
			}
		}
	}
	return out
}

// amd64AfterCall knows CALL rel32 (e8) and CALL r/m64 (ff /2), whose length depends on its operand (Intel SDM, volume 2,
// section 2.1).
func amd64AfterCall(code []byte) bool {
	if n := len(code); n >= 5 && code[n-5] == 0xe8 {
		return true
	}
	for n := 2; n <= 7 && n <= len(code); n++ {
		c := code[len(code)-n:]
		if c[0] != 0xff || c[1]>>3&7 != 2 {
			continue
		}
		size, mod, rm := 2, c[1]>>6, c[1]&7
		if mod != 3 && rm == 4 { // SIB
			size++
			if n > 2 && mod == 0 && c[2]&7 == 5 {
				size += 4
			}
		}
		switch {
		case mod == 1:
			size++
		case mod == 2, mod == 0 && rm == 5:
			size += 4
		}
		if size == n {
			return true
		}
	}
	return false
}

func amd64Names() []string {
	n := []string{"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"}
	for i := 8; i < 16; i++ {
		n = append(n, fmt.Sprintf("r%d", i))
	}
	n = append(n, "rip")
	for i := range 16 {
		n = append(n, fmt.Sprintf("xmm%d", i))
	}
	for i := range 8 {
		n = append(n, fmt.Sprintf("st%d", i))
	}
	for i := range 8 {
		n = append(n, fmt.Sprintf("mm%d", i))
	}
	return n
}
