package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
)

// A permitted is a difference from a judge that is the judge's own.
type permitted struct {
	program string // regular expression
	judge   string
	differs string // regular expression
	reason  string
}

var allowed = []permitted{
	{"corrupt", "gdb|eu-stack", `^#2: more: 0x123456  after corrupt \(bad-return\)`, "judges show a return address that leads nowhere as a frame; ours is in the reason for the stack's end"},
	{"deleted", "gdb", `^#1: pc `, "gdb does not open a file that has been deleted, and guesses"},
	{"mount namespace", "eu-stack", `^#2: `, "eu-stack opens files by their names in its own mount namespace, and guesses where there are none"},
	{"Go", "gdb", `name (runtime\.\w+), ours runtime\.\w+\.abi0$|more: 0x0  after runtime.(\S+ \(outermost|clone.abi0 \(bad-return)\)|more: 0x\w+ runtime.clone after runtime.mstart.abi0 \(outermost\)`,
		"gdb names a function as the debug information does, ours is as the symbol table spells it; and it goes on where a goroutine or a thread begins, or has not yet begun"},
	{"Go", "eu-stack", `more: 0x\w+ runtime.clone.abi0 after runtime.mstart.abi0 \(outermost\)`,
		"eu-stack goes on where a thread's stack begins: the return address there is where clone left it"},
	{"python3|node", "gdb", `name __new_sem_wait_slow64, ours __new_sem_wait_slow64.constprop.0`, "gdb names a function as the debug information does, without the suffix of a clone"},
	{"node", "gdb", `pc 0x\w+ , ours 0x\w+ Builtins_`, "gdb guesses in V8's code, which has no call frame information but keeps frame pointers"},
}

// programs are what stacks are compared of.
var programs = []struct {
	name  string
	cmd   func(t *testing.T) *exec.Cmd
	has   string // regular expression of some stack's names, innermost first
	ready func(pid int) bool
	stops bool   // it is stopped first, because it does not keep still
	alone string // why no judge can look at it
}{
	{name: "threads", cmd: worker("threads", "20", "10"), has: `^(__libc_)?pause (down ){11}deep start_thread`},
	{name: "deep", cmd: worker("threads", "2", "3000"), has: `^\S+ (down ){1000}(down ){1000}(down ){901}(down ){100}deep start_thread`},
	{name: "handler", cmd: worker("handler"), has: `handler( \S+)? \S+ raise in_handler main `},
	{name: "altstack", cmd: worker("altstack"), has: `handler( \S+)? \S+ raise in_handler main `},
	{name: "vfork", cmd: worker("vfork"), has: `^\S*vfork\S* in_vfork main \S*libc_start`, alone: "a thread that waits in vfork does not stop for a tracer: judges wait for it"},
	{name: "system call", cmd: worker("read"), has: `^\S*read\S* main \S*libc_start`},
	{name: "corrupt", cmd: worker("corrupt"), has: `^\S*pause\S* corrupt$`},
	{name: "nowhere", cmd: worker("nowhere"), has: `^nowhere$`},
	{name: "static", cmd: func(t *testing.T) *exec.Cmd {
		return exec.Command(build(t, "work.c", "gcc", "-O1", "-g", "-pthread", "-static"), "threads", "3", "10")
	}, has: `^\S*pause (down ){11}deep start_thread`},
	{name: "deleted", cmd: func(t *testing.T) *exec.Cmd {
		b, err := os.ReadFile(work(t))
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "gone")
		if err := os.WriteFile(path, b, 0o755); err != nil {
			t.Fatal(err)
		}
		// It deletes its own file: the shell's wait is over when exec has opened it.
		return exec.Command("sh", "-c", `exec 3<"$0"; rm "$0"; exec /proc/self/fd/3 threads 2 5`, path)
	}, has: `^\S*pause (down ){6}deep start_thread`},
	{name: "mount namespace", cmd: func(t *testing.T) *exec.Cmd {
		if os.Geteuid() != 0 {
			t.Skip("for root")
		}
		oracle.Need(t, "unshare", "mount")
		dir := t.TempDir()
		return exec.Command("unshare", "-m", "sh", "-c", `mount -t tmpfs none "$1" && cp "$0" "$1/inside" && exec "$1/inside" threads 2 5`, work(t), dir)
	}, has: `^\S*pause (down ){6}deep start_thread`},
	{name: "C++", cmd: func(t *testing.T) *exec.Cmd {
		return exec.Command(build(t, "many.cc", "g++", "-O1", "-pthread"))
	}, has: `nested.*Square::area.*`},
	{name: "Rust", cmd: func(t *testing.T) *exec.Cmd {
		return exec.Command(build(t, "many.rs", "rustc", "-O"))
	}, has: `many.*descend`},
	{name: "Go", cmd: func(t *testing.T) *exec.Cmd {
		return exec.Command(build(t, "goroutines.go", "go", "build"))
	}, ready: func(pid int) bool { return reading(pid) == 8 }, stops: true, has: `syscall.read main.block (main.block )+`},
	{name: "python3", cmd: func(t *testing.T) *exec.Cmd {
		oracle.Need(t, "/usr/bin/python3")
		return exec.Command("/usr/bin/python3", "-c", `
import threading
lock = threading.Lock()
lock.acquire()
def deep(n):
    if n: return [deep(x) for x in [n-1]]
    lock.acquire()
for i in range(5): threading.Thread(target=deep, args=(5,)).start()
print("up", flush=True)
lock.acquire()
`)
	}, has: `_PyEval_EvalFrameDefault`},
	{name: "node", cmd: func(t *testing.T) *exec.Cmd {
		oracle.Need(t, "node")
		return exec.Command("node", "-e", `
const wait = () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0)
function deep(n) { if (n) deep(n - 1); else wait() }
console.log("up")
deep(5)
`)
	}, stops: true, has: `node::Start`},
	{name: "gdb", cmd: func(t *testing.T) *exec.Cmd {
		oracle.Need(t, "gdb")
		return exec.Command("gdb", "-nx", "-q", "-ex", "echo up\\n")
	}, has: `main`},
}

func worker(args ...string) func(t *testing.T) *exec.Cmd {
	return func(t *testing.T) *exec.Cmd { return exec.Command(work(t), args...) }
}

// TestJudges compares the stacks of programs with what gdb and eu-stack find, frame by frame: program counters and names.
func TestJudges(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gdb", "eu-stack")
	used := make([]int, len(allowed))
	ran := map[string]bool{} // to the end
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			defer func() { ran[p.name] = !t.Skipped() && !t.Failed() }()
			pid := start(t, p.cmd(t))
			if p.ready != nil {
				eventually(t, "it is where it stays", func() bool { return p.ready(pid) })
			}
			if p.stops {
				stopAll(t, pid)
			}
			has := regexp.MustCompile(p.has)
			check := func(stacks []stack) {
				t.Helper()
				for _, s := range stacks {
					if has.MatchString(s.names()) {
						return
					}
				}
				t.Errorf("no stack is like %q", p.has)
				for _, s := range stacks {
					t.Log(s)
				}
			}
			if p.alone != "" {
				check(steady(t, pid, func() {}))
				return
			}
			for judge, stacks := range map[string]func(testing.TB, int) []stack{"gdb": gdb, "eu-stack": euStack} {
				var theirs []stack
				ours := steady(t, pid, func() {
					theirs = stacks(t, pid)
					if p.stops {
						stopAll(t, pid)
					}
				})
				check(ours)
				diffs, frames := differences(ours, theirs)
				t.Logf("%s: %d stacks, %d frames agree", judge, len(ours), frames)
			next:
				for _, d := range slices.Compact(slices.Sorted(slices.Values(diffs))) {
					for i, a := range allowed {
						if regexp.MustCompile("^("+a.judge+")$").MatchString(judge) && regexp.MustCompile("^("+a.program+")$").MatchString(p.name) && regexp.MustCompile(a.differs).MatchString(d) {
							used[i]++
							continue next
						}
					}
					t.Errorf("%s: %s", judge, d)
				}
			}
		})
	}
	for i, a := range allowed {
		due := false
		for name, whole := range ran {
			due = due || whole && regexp.MustCompile("^("+a.program+")$").MatchString(name)
		}
		if used[i] == 0 && due {
			t.Errorf("nothing is like %+v", a)
		}
	}
}

// stopAll stops a process by SIGSTOP and waits until all its threads have stopped.
func stopAll(t testing.TB, pid int) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all threads have stopped", func() bool { return strings.Trim(states(pid), "T") == "" })
}

// states returns the state of each thread of a process.
func states(pid int) string {
	dirs, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	var out []byte
	for _, d := range dirs {
		if b, err := os.ReadFile(d); err == nil {
			out = append(out, procfs.State(b))
		}
	}
	return string(out)
}

// reading returns how many threads of a process wait in read(2).
func reading(pid int) (n int) {
	tids, _ := procfs.Threads(pid)
	for _, tid := range tids {
		if c, ok, err := ptrace.Blocked(pid, tid); err == nil && ok && c.Number == syscall.SYS_READ {
			n++
		}
	}
	return n
}
