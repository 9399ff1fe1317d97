package ptrace

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
)

// Machine is what this process runs on; nil where threads cannot be read.
var Machine = arch.ARM64

// Get reads the registers of a thread that has stopped: struct user_pt_regs (asm/ptrace.h).
func Get(tid int) (r Registers, err error) {
	var b [8 * 34]byte // x0 to x30, sp, pc, pstate
	n, err := getRegs(tid, b[:])
	if err != nil {
		return r, err
	}
	if n < len(b) {
		return r, fmt.Errorf("32-bit code: %w", errors.ErrUnsupported)
	}
	for i := range arch.Slot(33) {
		r.set(i, binary.LittleEndian.Uint64(b[8*i:]))
	}
	r.PC, r.SP = r.Regs[32], r.Regs[31]
	const ntARMTLS = 0x401 // NT_ARM_TLS
	var tls [16]byte       // TPIDR_EL0, and TPIDR2_EL0 where there is one
	if n, err := getSet(tid, ntARMTLS, tls[:]); err == nil && n >= 8 {
		r.TLS = binary.LittleEndian.Uint64(tls[:])
	}
	return r, nil
}

// arguments are the slots of a system call's arguments, in their order.
var arguments = [6]arch.Slot{0, 1, 2, 3, 4, 5}

// starters are the system calls in which a thread can wait for its child's execve, as vfork does.
var starters = [...]int{unix.SYS_CLONE, unix.SYS_CLONE3}
