package arch

import "bytes"

// A Signal describes the frame that Linux leaves on the stack of a signal handler, and how to recognise the code to which the handler
// returns: this code only calls rt_sigreturn, and often has no unwind information.
type Signal struct {
	// Returns are the instructions of that code, as C libraries and Go's runtime have it. Each begins with moving the system call's number
	// into its register; Call is the length in bytes of the last instruction, the system call.
	Returns [][]byte
	Call    int

	// Saved says where the kernel has saved each register, the program counter included, by DWARF number: offsets from
	// the stack pointer that the handler returns with. 0 stands for a register that is not looked for there.
	Saved []uint16

	// Context is where struct ucontext is, from that stack pointer. It begins with uc_flags (Linux has three) and uc_link, which is 0.
	Context uint16

	// Plain is the frame of a handler without SA_SIGINFO, on machines where that is another one; else nil. Where it has Flags, these are uc_flags of its
	// ucontext; where it has a Self, the word there leads to its registers, at To. Words that are the same in it are at Same.
	Plain    *Signal
	Flags    uint32
	Self, To uint16
	Same     [2]uint16
}

// At says whether code begins with the code to which signal handlers return, and that code's length in bytes.
func (s *Signal) At(code []byte) (n int, ok bool) {
	for _, r := range s.Returns {
		if bytes.HasPrefix(code, r) {
			return len(r), true
		}
	}
	return 0, false
}

// MaxReturn is the greatest length of an entry in Returns.
const MaxReturn = 9

// AfterCall says whether code, which lies before a return address, ends with a call, as far as its last bytes tell.
func (m *Machine) AfterCall(code []byte) bool { return m.afterCall != nil && m.afterCall(code) }

// MaxCall is the number of bytes that AfterCall reads.
const MaxCall = 8
