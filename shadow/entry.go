package shadow

import (
	"encoding/binary"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// A breakpoint is a trap in a program, and the code that was there.
type breakpoint struct {
	addr uint64
	code []byte
}

// breakAtEntry makes a program that is at its first instruction run up to its entry point, unless that is there. The breakpoint is in
// the process's memory alone, which ends with it.
func (th *thread) breakAtEntry() error {
	entry, err := entryPoint(th.proc.pid)
	if err != nil || entry == th.regs.pc {
		return err
	}
	was := make([]byte, len(host.Trap.Code))
	if readMemory(th.proc.pid, entry, was) < len(was) {
		return fmt.Errorf("the entry point %#x cannot be read", entry)
	}
	th.brk = &breakpoint{entry, was}
	_, err = unix.PtracePokeText(th.tid, uintptr(entry), host.Trap.Code)
	return err
}

// atEntry handles a stop of a thread that runs to its entry point. Where it is there it takes the breakpoint out, and the thread is
// followed from now on; else it lets it go on.
func (th *thread) atEntry(sig unix.Signal) (begun bool, err error) {
	var now regs
	if err := getRegs(th.tid, &now); err != nil {
		return false, err
	}
	if sig != unix.SIGTRAP || now.pc != th.brk.addr+host.Trap.Behind {
		return false, th.resume(sig)
	}
	if _, err := unix.PtracePokeText(th.tid, uintptr(th.brk.addr), th.brk.code); err != nil {
		return false, err
	}
	if now.pc = th.brk.addr; host.Trap.Behind > 0 {
		if err := setPC(th.tid, now.pc); err != nil {
			return false, err
		}
	}
	th.brk = nil
	th.regs = now
	if err := th.proc.readMaps(); err != nil {
		return false, err
	}
	th.look()
	return true, nil
}

// entryPoint returns where a program begins, which the kernel has told it (getauxval(3)).
func entryPoint(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/auxv", pid))
	if err != nil {
		return 0, err
	}
	const atEntry = 9
	for ; len(b) >= 16; b = b[16:] {
		if binary.LittleEndian.Uint64(b) == atEntry {
			return binary.LittleEndian.Uint64(b[8:]), nil
		}
	}
	return 0, fmt.Errorf("process %d has no AT_ENTRY", pid)
}
