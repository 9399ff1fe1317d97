package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
)

// Machine is what this process runs on; nil where threads cannot be read.
var Machine = arch.AMD64

// words are the slots of struct user_regs_struct (sys/user.h), word by word.
var words = [27]arch.Slot{
	15, 14, 13, 12, 6 /* rbp */, 3 /* rbx */, 11, 10, 9, 8, 0 /* rax */, 2 /* rcx */, 1 /* rdx */, 4 /* rsi */, 5, /* rdi */
	arch.NoSlot /* orig_rax */, 16 /* rip */, arch.NoSlot /* cs */, arch.NoSlot /* eflags */, 7 /* rsp */, arch.NoSlot, /* ss */
	arch.NoSlot, arch.NoSlot, arch.NoSlot, arch.NoSlot, arch.NoSlot, arch.NoSlot,
}

const (
	wordCS = 17
	wordFS = 21   // fs_base
	user32 = 0x23 // __USER32_CS
)

// Get reads the registers of a thread that has stopped.
func Get(tid int) (r Registers, err error) {
	var b [8 * len(words)]byte
	n, err := getRegs(tid, b[:])
	if err != nil {
		return r, err
	}
	if n < len(b) || binary.LittleEndian.Uint64(b[8*wordCS:]) == user32 {
		return r, fmt.Errorf("32-bit code: %w", errors.ErrUnsupported)
	}
	for i, s := range words {
		if s != arch.NoSlot {
			r.set(s, binary.LittleEndian.Uint64(b[8*i:]))
		}
	}
	r.PC, r.SP, r.TLS = r.Regs[16], r.Regs[7], binary.LittleEndian.Uint64(b[8*wordFS:])
	return r, nil
}

// arguments are the slots of a system call's arguments, in their order (AMD64 psABI, A.2.1).
var arguments = [6]arch.Slot{5, 4, 1, 10, 8, 9}

// starters are the system calls in which a thread can wait for its child's execve, as vfork does.
var starters = [...]int{unix.SYS_VFORK, unix.SYS_CLONE, unix.SYS_CLONE3}
