package shadow

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A step clears the processor's exclusive monitor, so a store that follows an exclusive load one step at a time never succeeds, and its loop
// never ends. Therefore a thread runs from the load to the exit of the sequence by itself, up to breakpoints of the hardware: they
// are the thread's own, where a trap in memory would be met by all threads, and copied by fork. The instructions between are not compared.

// pass lets a thread that is at an exclusive load run to where the sequence is left. It is false where there is no such sequence.
func (th *thread) pass() (bool, error) {
	var code [4 * maxSequence]byte
	n := readMemory(th.proc.pid, th.regs.pc, code[:])
	exits := sequenceARM64(code[:n], th.regs.pc)
	if exits == nil {
		return false, nil
	}
	if err := th.setBreaks(exits); err != nil {
		return false, fmt.Errorf("an exclusive load at %#x cannot be passed: %w", th.regs.pc, err)
	}
	return true, nil
}

// setBreaks makes exits a thread's hardware breakpoints, and its only ones. A breakpoint that is named to the kernel is taken from all, even
// where it is not enabled, so no more than needed are named.
func (th *thread) setBreaks(exits []uint64) error {
	// struct user_hwdebug_state: the low byte of the first word is how many there are; each has an address and a control word.
	const most = 16
	set := uintptr(host.UserRegs.BreakSet)
	var w [1 + 2*most]uint64
	n, err := registers(unix.PTRACE_GETREGSET, th.tid, set, w[:])
	if err != nil {
		return fmt.Errorf("hardware breakpoints: %w", err)
	}
	if have := int(w[0] & 0xff); have < len(exits) || n < 1+2*len(exits) {
		return fmt.Errorf("%d hardware breakpoints, not %d", have, len(exits))
	}
	clear(w[1:])
	const enabled, user, wholeInstruction = 1, 2 << 1, 0xf << 5 // DBGBCR_EL1
	for i, a := range exits {
		w[1+2*i], w[2+2*i] = a, enabled|user|wholeInstruction
	}
	if _, err := registers(unix.PTRACE_SETREGSET, th.tid, set, w[:1+2*max(len(exits), th.breaks)]); err != nil {
		return fmt.Errorf("hardware breakpoints: %w", err)
	}
	th.breaks = len(exits)
	return nil
}
