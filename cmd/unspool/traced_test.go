package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// refusing, in the environment, is the error with which the kernel answers this process's perf_event_open and bpf, as in a container.
const refusing = "UNSPOOL_TEST_REFUSE"

// refuseEvents installs a seccomp filter as refusing says (seccomp(2), Documentation/userspace-api/seccomp_filter.rst).
func refuseEvents() {
	errno, err := strconv.Atoi(os.Getenv(refusing))
	if err != nil {
		return
	}
	refuse := uint32(unix.SECCOMP_RET_ERRNO | errno)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // seccomp_data.nr
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jt: 1, K: unix.SYS_PERF_EVENT_OPEN},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: unix.SYS_BPF},
		{Code: unix.BPF_RET | unix.BPF_K, K: refuse},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	if err == nil {
		if _, _, e := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC, uintptr(unsafe.Pointer(&prog))); e != 0 {
			err = e
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "seccomp:", err)
		os.Exit(99)
	}
}

// refused returns a command that runs the program where perf events are refused with an error.
func refusedWith(c *exec.Cmd, errno unix.Errno) *exec.Cmd {
	c.Env = append(c.Env, fmt.Sprintf("%s=%d", refusing, int(errno)))
	return c
}

const says = "unspool: sampling by ptrace: "

// Where perf events are refused, record and top sample by ptrace, and say so once.
func TestRefused(t *testing.T) {
	oracle.Long(t)
	for _, e := range []unix.Errno{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ENOENT} {
		c := refusedWith(program(t, append([]string{"record", "-o", "x.folded", "--"}, busy...)...), e)
		r := finish(t, c)
		r.want(t, 7, `x.folded: [\d,]+ samples?`)
		if strings.Count(r.stderr, says) != 1 {
			t.Errorf("%v: %s", e, r.stderr)
		}
		b, err := os.ReadFile(filepath.Join(c.Dir, "x.folded"))
		if err != nil || !strings.HasPrefix(string(b), "sh;") {
			t.Errorf("%v, %q", err, b)
		}
		finish(t, refusedWith(program(t, "record", "--source", "perf", "--", "true"), e)).want(t, 1, "unspool: ")
	}
	finish(t, refusedWith(program(t, "record", "-a", "--duration", "1s"), unix.EPERM)).want(t, 1, "perf events")
	finish(t, refusedWith(program(t, "record", "-e", "page-faults", "--", "true"), unix.EPERM)).want(t, 1, "perf events")
	refused := func(t testing.TB, args ...string) *exec.Cmd { return refusedWith(program(t, args...), unix.EPERM) }
	if stacks, said := untilSampled(t, refused, spinner(t).Process.Pid); !strings.Contains(stacks, "main;outer_of_it;spins_here") || !strings.Contains(said, says) {
		t.Errorf("%s%s", stacks, said)
	}
	if r := finish(t, refusedWith(program(t, "record", "-p", "1999999999"), unix.EPERM)); r.status != 1 || !strings.Contains(r.stderr, "no such process") {
		t.Errorf("%d: %s", r.status, r.stderr)
	}
}

// An ordinary user samples his own programs by ptrace, and is told why not others'.
func TestTracedByUser(t *testing.T) {
	oracle.Long(t)
	r := finish(t, as(t, "", append([]string{"record", "--source", "ptrace", "-o", "x.folded", "--"}, busy...)...))
	r.want(t, 7, `x.folded: [\d,]+ samples?`)
	r = finish(t, as(t, "", "record", "--source", "ptrace", "-o", "x.folded", "-p", "1"))
	r.want(t, 1, `process 1: .*another user`)
	r = finish(t, refusedWith(as(t, "", "record", "-o", "x.folded", "-p", "1"), unix.EACCES))
	r.want(t, 1, `another user`)
}

func TestTracedUsage(t *testing.T) {
	oracle.Long(t)
	for flags, what := range map[string]string{
		"-a": "-a", "--kernel -- x": "--kernel", "-c 5 -- x": "-c", "-F 5000 -- x": "-F over", "-e page-faults -- x": "-e page-faults",
		"--stack-size 65528 -- x": "--stack-size", "--off-cpu -- x": "--off-cpu", "--memory 1M -- x": "--memory",
	} {
		runProgram(t, append([]string{"record", "--source", "ptrace"}, strings.Fields(flags)...)...).want(t, 2, regexp.QuoteMeta(what))
	}
	runProgram(t, "record", "--source", "ptrace", "--", "/nonexistent/program").want(t, 1, "/nonexistent/program")
	runProgram(t, "record", "--source", "ptrace", "-o", "x.svg", "--", "sh", "-c", "kill -9 $$").want(t, 137, "a signal ended the command: killed")
	runProgram(t, "record", "--source", "ptrace", "-o", "x.svg", "--duration", "300ms", "--", "sleep", "1000").want(t, 0, "samples?")
}

// A program that sends, catches, blocks and waits for signals of all kinds does the same when it is sampled as when it is not, as
// often as possible.
func TestTransparent(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "signals")
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", prog, "testdata/signals.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	plain := exec.Command(prog)
	out, _ := plain.Output()
	want, status := string(out), plain.ProcessState.ExitCode()
	if status != 42 || !strings.HasSuffix(want, "done\n") {
		t.Fatalf("%d:\n%s", status, want)
	}
	for range 3 {
		r := runProgram(t, "record", "--source", "ptrace", "-F", "1000", "-o", "x.folded", "--", prog)
		if r.status != status || r.out != want {
			t.Errorf("status %d, want %d\n got %s\nwant %s\n%s", r.status, status, r.out, want, r.stderr)
		}
	}
}
