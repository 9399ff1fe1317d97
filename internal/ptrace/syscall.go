package ptrace

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// A Call is the content of /proc/PID/task/TID/syscall for a thread that does not run: its system call, if it is in one, and the registers
// known by that.
type Call struct {
	Number    int // -1: in none
	Registers Registers
}

// Blocked reads a thread's Call. It takes no more than the right to trace the thread. ok is false if the thread runs.
func Blocked(pid, tid int) (c Call, ok bool, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/syscall", pid, tid))
	if err != nil {
		return c, false, err
	}
	c, ok = parseCall(string(b))
	return c, ok, nil
}

// parseCall reads "running", "-1 SP PC" or "NUMBER ARGUMENT… SP PC".
func parseCall(s string) (c Call, ok bool) {
	if Machine == nil {
		return c, false
	}
	f := strings.Fields(s)
	if len(f) != 3 && len(f) != 9 {
		return c, false
	}
	n, err := strconv.Atoi(f[0])
	if err != nil {
		return c, false
	}
	c.Number = n
	var v [8]uint64
	for i, s := range f[1:] {
		if v[i], err = strconv.ParseUint(s, 0, 64); err != nil {
			return c, false
		}
	}
	r := &c.Registers
	if len(f) == 9 {
		for i, slot := range Machine.Syscall.Args {
			r.set(slot, v[i])
		}
	}
	r.SP, r.PC = v[len(f)-3], v[len(f)-2]
	r.set(Machine.Slot(Machine.SP), r.SP)
	r.set(Machine.Slot(Machine.PC), r.PC)
	return c, r.PC != 0
}

// Starting says whether the call is one that starts a process, and that may wait uninterruptibly until that has executed another
// program.
func (c *Call) Starting() bool { return slices.Contains(Machine.Syscall.Starts, c.Number) }
