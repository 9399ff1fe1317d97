package ptrace

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
)

// Refused explains why a process cannot be traced or read, and names the remedy.
func Refused(pid int, err error) error {
	status := func(key string) string { return procfs.Status(pid, key) }
	state := status("State")
	switch {
	case state == "":
		return fmt.Errorf("process %d: no such process", pid)
	case strings.HasPrefix(state, "Z"), strings.HasPrefix(state, "X"):
		return fmt.Errorf("process %d: it has exited, and its parent has not asked for its status", pid)
	case procfs.KernelThread(pid):
		return fmt.Errorf("process %d: a kernel thread has no user stack", pid)
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("process %d: it is ending", pid)
	case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES):
		return fmt.Errorf("process %d: %w", pid, err)
	}
	what := "the system refuses ptrace here: a container's seccomp filter or security module, or a missing CAP_SYS_PTRACE"
	uid, _, _ := strings.Cut(status("Uid"), "\t")
	scope, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	level, _ := strconv.Atoi(string(bytes.TrimSpace(scope)))
	tracer := status("TracerPid")
	switch {
	case tracer != "" && tracer != "0":
		tid, _ := strconv.Atoi(tracer)
		comm, _ := os.ReadFile("/proc/" + tracer + "/comm")
		what = fmt.Sprintf("process %d (%s) traces it already, and there can be one only", procfs.Leader(tid), bytes.TrimSpace(comm))
	case os.Geteuid() != 0 && uid != strconv.Itoa(os.Geteuid()):
		what = fmt.Sprintf("it belongs to another user (%s): run unspool as that user or as root", uid)
	case level == 3:
		what = "kernel.yama.ptrace_scope is 3: nobody may trace processes until the next boot"
	case level == 2:
		what = "kernel.yama.ptrace_scope is 2: run unspool as root, or give it CAP_SYS_PTRACE"
	case level == 1:
		what = "kernel.yama.ptrace_scope is 1: run unspool as root, or as root, sysctl kernel.yama.ptrace_scope=0"
	case os.Geteuid() != 0:
		what = "it has or had other rights than its user, or may not be traced: run unspool as root"
	}
	return fmt.Errorf("process %d: %w (%s)", pid, err, what)
}
