// Package caps reads the capabilities of this process (capabilities(7)), and gives up those that a recording does not need.
package caps

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Set is a set of capabilities, a bit each (include/uapi/linux/capability.h).
type Set uint64

// Recording are those that a running recording makes use of: to feed the kernel's program, to open events, and to read what other users'
// processes map and the files of that.
const Recording = Set(1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_DAC_READ_SEARCH)

// MaxParanoid is the highest kernel.perf_event_paranoid at which CAP_PERFMON permits what it should. Debian's kernels begin with 3, which takes
// CAP_SYS_ADMIN instead (CONFIG_SECURITY_PERF_EVENTS_RESTRICT, in no kernel of kernel.org).
const MaxParanoid = 2

// A Right is a capability that an agent starts with, and why.
type Right struct {
	Name string `json:"name"` // as capabilities(7) has it
	Why  string `json:"why"`
	Kept bool   `json:"kept"` // by a running recording; the others are given up when it has begun
}

// Agent lists the capabilities that an agent of the whole machine starts with, as another user than root, on Linux 5.8 and later.
func Agent() []Right {
	return []Right{
		{"CAP_BPF", "load the program that walks stacks, and feed it with tables", true},
		{"CAP_PERFMON", "sample all processors", true},
		{"CAP_SYS_PTRACE", "read what other users' processes map, and publish of themselves", true},
		{"CAP_DAC_READ_SEARCH", "read other users' programs and debug files, and the names of containers", true},
		{"CAP_SYSLOG", "read the addresses of the kernel's functions, for their names", false},
	}
}

// Outputs are those that put an output into its place in another user's directory: see Raised.
const Outputs = Set(1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER)

// recording names the members of Recording.
var recording = []struct {
	bit  int
	name string
}{
	{unix.CAP_BPF, "cap_bpf"}, {unix.CAP_PERFMON, "cap_perfmon"}, {unix.CAP_SYS_PTRACE, "cap_sys_ptrace"}, {unix.CAP_DAC_READ_SEARCH, "cap_dac_read_search"},
}

// Has says whether the capability of that number is in the set.
func (s Set) Has(bit int) bool { return s>>bit&1 != 0 }

// Lacks names the members of Recording that are missing, as setcap(8) spells them. CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON.
func (s Set) Lacks() (names []string) {
	for _, r := range recording {
		if !s.Has(r.bit) && !(s.Has(unix.CAP_SYS_ADMIN) && (r.bit == unix.CAP_BPF || r.bit == unix.CAP_PERFMON)) {
			names = append(names, r.name)
		}
	}
	return names
}

// Own returns the capabilities of this thread: the effective ones, and the permitted ones.
func Own() (effective, permitted Set) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if unix.Capget(&h, &d[0]) != nil {
		return 0, 0
	}
	return Set(d[0].Effective) | Set(d[1].Effective)<<32, Set(d[0].Permitted) | Set(d[1].Permitted)<<32
}

// inheritable returns those of this thread's capabilities that a program it executes may have, too.
func inheritable() Set {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if unix.Capget(&h, &d[0]) != nil {
		return 0
	}
	return Set(d[0].Inheritable) | Set(d[1].Inheritable)<<32
}

// Drop gives up all capabilities but keep, and later, which are not in effect until they are raised; in all threads. A process started
// afterwards has its user's capabilities, and inherits none: a program that root starts gets all capabilities again. An errors.ErrUnsupported says that this
// program was built with cgo, whose threads cannot be reached.
func Drop(keep, later Set) error {
	effective, permitted := Own()
	if effective&^keep == 0 && permitted&^(keep|later) == 0 && inheritable() == 0 {
		return nil
	}
	// None is inheritable, and so none is ambient.
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := data(effective&keep, permitted&(keep|later))
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d[0])), 0)
	switch {
	case errno == syscall.ENOTSUP:
		return fmt.Errorf("giving up capabilities: %w by a program that was built with cgo", errors.ErrUnsupported)
	case errno != 0:
		return fmt.Errorf("giving up capabilities: %w", errno)
	}
	return nil
}

// CanDrop says whether Drop can reach all threads.
func CanDrop() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0); errno != 0 {
		return fmt.Errorf("giving up capabilities: %w", errno)
	}
	return nil
}

// Raised calls f, in a thread that has Outputs if this process still may have them.
func Raised(f func() error) error {
	effective, permitted := Own()
	if permitted&Outputs&^effective == 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		set := func(effective Set) {
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			d := data(effective, permitted)
			unix.Capset(&h, &d[0]) // if not, f says what it lacks
		}
		set(effective | permitted&Outputs)
		err := f()
		set(effective)
		done <- err
	}()
	return <-done
}

func data(effective, permitted Set) [2]unix.CapUserData {
	return [2]unix.CapUserData{
		{Effective: uint32(effective), Permitted: uint32(permitted)},
		{Effective: uint32(effective >> 32), Permitted: uint32(permitted >> 32)},
	}
}
