package arch

import "bytes"

// A Signal is what Linux leaves on the stack of a signal handler, and how the code that the handler returns to is known:
// it does nothing but call rt_sigreturn, and often has no unwind information.
type Signal struct {
	// Returns are the instructions of that code, as C libraries and Go's runtime have it. Each begins with moving
	// the system call's number into its register; Call is how many bytes the last instruction has, the system call.
	Returns [][]byte
	Call    int

	// Saved says where the kernel has saved each register, the program counter included, by DWARF number: offsets from
	// the stack pointer that the handler returns with. 0 stands for a register that is not looked for there.
	Saved []uint16
}

// At says whether code begins with the code that signal handlers return to, and how many bytes that has.
func (s *Signal) At(code []byte) (n int, ok bool) {
	for _, r := range s.Returns {
		if bytes.HasPrefix(code, r) {
			return len(r), true
		}
	}
	return 0, false
}

// MaxReturn is the greatest length of what Returns holds.
const MaxReturn = 9

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

// arm64Signal: struct rt_sigframe (arch/arm64/kernel/signal.c): struct siginfo has 128 bytes, struct ucontext follows, and
// in it struct sigcontext at 176, whose registers are at 8.
var arm64Signal = Signal{
	Returns: [][]byte{[]byte("\x68\x11\x80\xd2\x01\x00\x00\xd4")}, // mov x8,#139; svc #0
	Call:    4,
	Saved: func() []uint16 {
		s := make([]uint16, 33)
		for i := range s { // x0 to x30, sp, pc
			s[i] = uint16(128 + 176 + 8 + 8*i)
		}
		return s
	}(),
}

// AfterCall says whether code, which lies before a return address, ends with a call, as far as its last bytes tell.
func (m *Machine) AfterCall(code []byte) bool {
	switch m {
	case AMD64:
		return amd64AfterCall(code)
	case ARM64:
		return arm64AfterCall(code)
	}
	return false
}

// MaxCall is how many bytes AfterCall looks at.
const MaxCall = 8

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

// arm64AfterCall knows BL, BLR and the forms of BLR that authenticate (Arm ARM, section C6.2).
func arm64AfterCall(code []byte) bool {
	if len(code) < 4 {
		return false
	}
	c := code[len(code)-4:]
	w := uint32(c[0]) | uint32(c[1])<<8 | uint32(c[2])<<16 | uint32(c[3])<<24
	return w>>26 == 0x25 || w&0xfffffc1f == 0xd63f0000 || w&0xfefff800 == 0xd63f0800
}
