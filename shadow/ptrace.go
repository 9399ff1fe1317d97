package shadow

import (
	"encoding/binary"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What ptrace(2) and the psABI number: see linux/ptrace.h and asm/user_64.h.
const (
	ptraceGetRegs    = 12
	ptraceSingleStep = 9
	ptraceCont       = 7

	optExitKill = 1 << 20
	cloneThread = 0x10000

	userCode64 = 0x33 // CS of 64-bit code

	trapFlag = 1 << 8 // in EFLAGS
)

// Slots of arch.AMD64 that have a name here.
const (
	rax = iota
	rdx
	rcx
	rbx
	rsi
	rdi
	rbp
	rsp
	r8
	r9
	r10
	r11
	r12
	r13
	r14
	r15
	numGeneral
)

// saved are the registers that a call preserves.
var saved = [...]uint8{rbx, rbp, r12, r13, r14, r15}

// A regs is a thread's registers: the general ones by slot.
type regs struct {
	r       [numGeneral]uint64
	pc      uint64
	flags   uint64
	origRAX uint64
	cs      uint64
}

// userRegs is struct user_regs_struct.
type userRegs struct {
	R15, R14, R13, R12, RBP, RBX, R11, R10, R9, R8, RAX, RCX, RDX, RSI, RDI, OrigRAX, RIP, CS, EFLAGS, RSP, SS uint64
	FSBase, GSBase, DS, ES, FS, GS                                                                             uint64
}

// getRegs reads the registers of a stopped thread.
func getRegs(tid int, to *regs) error {
	var u userRegs
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, ptraceGetRegs, uintptr(tid), 0, uintptr(unsafe.Pointer(&u)), 0, 0); e != 0 {
		return e
	}
	to.r = [numGeneral]uint64{u.RAX, u.RDX, u.RCX, u.RBX, u.RSI, u.RDI, u.RBP, u.RSP, u.R8, u.R9, u.R10, u.R11, u.R12, u.R13, u.R14, u.R15}
	to.pc, to.flags, to.origRAX, to.cs = u.RIP, u.EFLAGS, u.OrigRAX, u.CS
	return nil
}

// setPC sets the program counter of a stopped thread.
func setPC(tid int, pc uint64) error {
	const rip = 16 * 8 // in struct user
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_POKEUSR, uintptr(tid), rip, uintptr(pc), 0, 0); e != 0 {
		return e
	}
	return nil
}

// resume lets a stopped thread go, by one instruction or on, and delivers a signal unless that is 0.
func resume(request uintptr, tid int, sig unix.Signal) error {
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), 0, uintptr(sig), 0, 0); e != 0 {
		return e
	}
	return nil
}

// wait waits for a child of this thread: another thread may have its own, traced or not. Where block says that this may take long, the scheduler is told; else the thread just sleeps,
// which is a microsecond less a step.
func wait(block bool) (tid int, ws unix.WaitStatus, err error) {
	var status int32
	for {
		var r uintptr
		var e unix.Errno
		if block {
			r, _, e = unix.Syscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&status)), unix.WALL|unix.WNOTHREAD, 0, 0, 0)
		} else {
			r, _, e = unix.RawSyscall6(unix.SYS_WAIT4, ^uintptr(0), uintptr(unsafe.Pointer(&status)), unix.WALL|unix.WNOTHREAD, 0, 0, 0)
		}
		switch e {
		case 0:
			return int(r), unix.WaitStatus(status), nil
		case unix.EINTR:
			continue
		}
		return 0, 0, e
	}
}

// stopCode returns si_code of the signal that a thread is stopped with. ok is false in a group stop.
func stopCode(tid int) (code int32, ok bool) {
	var info [128]byte
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)), 0, 0)
	return int32(binary.LittleEndian.Uint32(info[8:])), e == 0
}

// readMemory fills b from a process's memory and returns how much there was.
func readMemory(pid int, addr uint64, b []byte) int {
	local := unix.Iovec{Base: &b[0], Len: uint64(len(b))}
	remote := [2]uint64{addr, uint64(len(b))}
	n, _, e := unix.RawSyscall6(unix.SYS_PROCESS_VM_READV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// A reader reads a process's memory by words: it is the rows.Reader behind the window.
type reader int

func (r reader) Read8(addr uint64) (uint64, bool) {
	var b [8]byte
	if readMemory(int(r), addr, b[:]) < 8 {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b[:]), true
}

// clearTrapFlag takes the flag that a step sets out of the flags that a program has pushed: popped again, it would be the
// program's own.
func clearTrapFlag(pid int, addr uint64) {
	var b [8]byte
	if readMemory(pid, addr, b[:]) < 8 {
		return
	}
	v := binary.LittleEndian.Uint64(b[:])
	if v&trapFlag == 0 {
		return
	}
	binary.LittleEndian.PutUint64(b[:], v&^trapFlag)
	local := unix.Iovec{Base: &b[0], Len: 8}
	remote := [2]uint64{addr, 8}
	unix.RawSyscall6(unix.SYS_PROCESS_VM_WRITEV, uintptr(pid), uintptr(unsafe.Pointer(&local)), 1, uintptr(unsafe.Pointer(&remote)), 1, 0)
}
