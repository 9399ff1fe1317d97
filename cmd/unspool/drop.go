package main

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/source"
)

// A capability is one of capabilities(7).
type capability struct {
	bit  int
	name string
}

// ours are the capabilities that a recording that runs makes use of: to feed the kernel's program, to open events, and to read
// what other users' processes map and the files of that.
var ours = []capability{
	{unix.CAP_BPF, "cap_bpf"}, {unix.CAP_PERFMON, "cap_perfmon"}, {unix.CAP_SYS_PTRACE, "cap_sys_ptrace"}, {unix.CAP_DAC_READ_SEARCH, "cap_dac_read_search"},
}

// recording are ours as a set.
const recording = caps(1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_DAC_READ_SEARCH)

// parsing are those that a verb keeps that reads other people's bytes: to read its inputs and the files that they name, also those of other
// users and, by way of their processes, in containers; to read a process's registers and stacks; and the names of the kernel's functions.
const parsing = caps(1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_SYS_PTRACE | 1<<unix.CAP_SYSLOG)

// parsers are the verbs that give up all else before they begin. verify --run and run start programs; doctor tries everything.
var parsers = map[string]caps{
	"report": parsing, "diff": parsing, "unwind": parsing, "serve": parsing | 1<<unix.CAP_NET_BIND_SERVICE, "stack": parsing,
	"dump": parsing, "compile": parsing, "verify": parsing, "stats": parsing,
}

// forOutputs are those that put an output into its place in another user's directory. They are kept for that, and not in effect until then.
const forOutputs = caps(1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER)

// A caps is a set of capabilities, a bit each (include/uapi/linux/capability.h).
type caps uint64

func (c caps) has(bit int) bool { return c>>bit&1 != 0 }

// ownCaps returns the capabilities of this thread: those in effect, and those that it may take into effect.
func ownCaps() (effective, permitted caps) {
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var d [2]unix.CapUserData
	if unix.Capget(&h, &d[0]) != nil {
		return 0, 0
	}
	return caps(d[0].Effective) | caps(d[1].Effective)<<32, caps(d[0].Permitted) | caps(d[1].Permitted)<<32
}

// lacks names those of ours that are missing. CAP_SYS_ADMIN stands for some.
func (c caps) lacks() (names []string) {
	for _, o := range ours {
		if !c.has(o.bit) && !(c.has(unix.CAP_SYS_ADMIN) && (o.bit == unix.CAP_BPF || o.bit == unix.CAP_PERFMON)) {
			names = append(names, o.name)
		}
	}
	return names
}

// drop gives up all capabilities but keep, and later, which are not in effect until they are raised; in all threads: what follows reads
// other people's bytes. What this process starts later has what its user has: a program that root starts gets all capabilities again. An
// errors.ErrUnsupported says that this program was built with cgo, whose threads cannot be reached.
func drop(keep, later caps) error {
	effective, permitted := ownCaps()
	if effective&^keep == 0 && permitted&^(keep|later) == 0 {
		return nil
	}
	h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	d := capData(effective&keep, permitted&(keep|later))
	_, _, errno := syscall.AllThreadsSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&h)), uintptr(unsafe.Pointer(&d[0])), 0)
	switch {
	case errno == syscall.ENOTSUP:
		return fmt.Errorf("giving up capabilities: %w by a program that was built with cgo", errors.ErrUnsupported)
	case errno != 0:
		return fmt.Errorf("giving up capabilities: %w", errno)
	}
	return nil
}

func capData(effective, permitted caps) [2]unix.CapUserData {
	return [2]unix.CapUserData{
		{Effective: uint32(effective), Permitted: uint32(permitted)},
		{Effective: uint32(effective >> 32), Permitted: uint32(permitted >> 32)},
	}
}

// raised calls f, in a thread that has the capabilities forOutputs if this process still may have them.
func raised(f func() error) error {
	effective, permitted := ownCaps()
	if permitted&forOutputs&^effective == 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		set := func(effective caps) {
			h := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			d := capData(effective, permitted)
			unix.Capset(&h, &d[0]) // if not, f says what it lacks
		}
		set(effective | permitted&forOutputs)
		err := f()
		set(effective)
		done <- err
	}()
	return <-done
}

// drop gives up the capabilities that a recording needs only to begin. The names of the kernel's functions, which may take
// CAP_SYSLOG, are read before.
func (l *live) drop(s *session) {
	if canDrop() != nil {
		return // doctor says so
	}
	if c, _ := ownCaps(); c.has(unix.CAP_SYSLOG) && !l.Decoder().Events()[0].Attr.Has(source.FlagExcludeKernel) && kernelHides() {
		s.names.LoadKernel()
	}
	later := caps(0)
	if outfile.Others() {
		later = forOutputs
	}
	if err := drop(recording, later); err != nil {
		fmt.Fprintf(stderr, "unspool: %v\n", err)
	}
}

// canDrop says whether drop can reach all threads.
func canDrop() error {
	if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_GETPID, 0, 0, 0); errno != 0 {
		return fmt.Errorf("giving up capabilities: %w", errno)
	}
	return nil
}

// kernelHides says whether it takes CAP_SYSLOG to read the addresses of the kernel's functions (kallsyms_show_value in
// kernel/ksyms_common.c).
func kernelHides() bool {
	restrict, ok := setting("kernel/kptr_restrict")
	level, known := setting("kernel/perf_event_paranoid")
	return !ok || !known || restrict > 0 || level > 1
}
