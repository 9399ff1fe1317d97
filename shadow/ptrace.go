package shadow

import (
	"encoding/binary"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
)

// Of ptrace(2) and clone(2).
const (
	ptraceSingleStep = 9
	ptraceCont       = 7

	optExitKill = 1 << 20
	cloneThread = 0x10000

	ntPRSTATUS = 1

	trapFlag = 1 << 8 // in EFLAGS
)

// A regs is a thread's registers: the general ones by slot.
type regs struct {
	r       [maxGeneral]uint64
	pc      uint64
	foreign bool // those of 32-bit code, which are not read
}

// sp is the stack pointer.
func (r *regs) sp() uint64 { return r.r[stackPointer] }

// call is the number of the system call that comes next.
func (r *regs) call() uint64 { return r.r[host.Syscall.Number] }

// words is room for a thread's registers in the kernel's order; the longest is x86-64's.
type words [40]uint64

// registers reads or writes a set of a stopped thread's registers, and returns how many words it has.
func registers(request uintptr, tid int, set uintptr, b []uint64) (int, error) {
	io := unix.Iovec{Base: (*byte)(unsafe.Pointer(&b[0])), Len: uint64(8 * len(b))}
	if _, _, e := unix.RawSyscall6(unix.SYS_PTRACE, request, uintptr(tid), set, uintptr(unsafe.Pointer(&io)), 0, 0); e != 0 {
		return 0, e
	}
	return int(io.Len / 8), nil
}

// getRegs reads the registers of a stopped thread.
func getRegs(tid int, to *regs) error {
	var w words
	u := &host.UserRegs
	n, err := registers(unix.PTRACE_GETREGSET, tid, ntPRSTATUS, w[:u.Words])
	if err != nil {
		return err
	}
	if to.foreign = n < u.Words || u.Mode != 0 && w[u.Mode] == u.Mode32; to.foreign {
		return nil
	}
	for i, s := range u.Slots {
		switch {
		case int(s) < general:
			to.r[s] = w[i]
		case int(s) == general:
			to.pc = w[i]
		}
	}
	return nil
}

// setPC sets the program counter of a stopped thread.
func setPC(tid int, pc uint64) error {
	var w words
	n, err := registers(unix.PTRACE_GETREGSET, tid, ntPRSTATUS, w[:host.UserRegs.Words])
	if err != nil {
		return err
	}
	w[slices.Index(host.UserRegs.Slots, arch.Slot(general))] = pc
	_, err = registers(unix.PTRACE_SETREGSET, tid, ntPRSTATUS, w[:n])
	return err
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

// stopCode returns si_code of the signal that a thread is stopped with, and the process that sent it, 0 if it is the kernel's. ok is false in
// a group stop.
func stopCode(tid int) (code int32, from uint32, ok bool) {
	var info [128]byte
	_, _, e := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_GETSIGINFO, uintptr(tid), 0, uintptr(unsafe.Pointer(&info)), 0, 0)
	return int32(binary.LittleEndian.Uint32(info[8:])), binary.LittleEndian.Uint32(info[16:]), e == 0
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
