package main

import (
	"bufio"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// A judgedFrame is a frame as some tool has it.
type judgedFrame struct {
	pc   uint64
	name string
}

// A judged is what a tool makes of a core: stacks by TID.
type judged map[int][]judgedFrame

// gdbScript prints the frames of all threads, without those of inlined calls, and of tail calls, which it makes up.
const gdbScript = `
import gdb
for t in gdb.selected_inferior().threads():
    t.switch()
    print("TID %d" % t.ptid[1])
    try:
        f = gdb.newest_frame()
        while f is not None:
            if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
                print("%#x %s" % (f.pc(), f.name()))
            f = f.older()
    except gdb.error as e:
        print("error: %s" % e)
print("END")
`

// tool runs a judge, which must end within a minute.
func tool(t testing.TB, dir string, args ...string) string {
	t.Helper()
	c := exec.Command(args[0], args[1:]...)
	c.Dir = dir
	c.Env = append(os.Environ(), "DEBUGINFOD_URLS=", "LC_ALL=C")
	var out, stderr strings.Builder
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	defer timeout.Stop()
	if err := c.Wait(); err != nil && out.Len() == 0 {
		t.Fatalf("%q: %v\n%s", args, err, stderr.String())
	}
	return out.String()
}

func gdbStacks(t testing.TB, exe, core string, depth int) judged {
	return gdbStacksBy(t, "gdb", exe, core, depth)
}

func gdbStacksBy(t testing.TB, gdb, exe, core string, depth int) judged {
	t.Helper()
	script := filepath.Join(t.TempDir(), "bt.py")
	if err := os.WriteFile(script, []byte(gdbScript), 0o600); err != nil {
		t.Fatal(err)
	}
	out := tool(t, "", gdb, "-batch", "-nx", "-ex", "set backtrace past-main on", "-ex", fmt.Sprintf("set backtrace limit %d", depth), "-x", script, exe, core)
	if !strings.Contains(out, "\nEND\n") {
		t.Fatalf("%s %s %s:\n%s", gdb, exe, core, out)
	}
	j := parseJudge(out, regexp.MustCompile(`^TID (\d+)`), regexp.MustCompile(`^0x([0-9a-f]+) (.*)`))
	for tid, frames := range j {
		if len(frames) == 0 { // one that it takes from libpthread's list and that is not in the core: the parent of a vfork
			delete(j, tid)
		}
	}
	return j
}

func euStacks(t testing.TB, exe, core string, depth int) judged {
	t.Helper()
	out := tool(t, "", "eu-stack", "-n", strconv.Itoa(depth), "--core", core, "-e", exe)
	return parseJudge(out, regexp.MustCompile(`^TID (\d+):`), regexp.MustCompile(`^#\d+ +0x([0-9a-f]+)(?: - \d+)? ?(.*)`))
}

func parseJudge(out string, thread, frame *regexp.Regexp) judged {
	j, tid := judged{}, 0
	for _, l := range strings.Split(out, "\n") {
		if m := thread.FindStringSubmatch(l); m != nil {
			tid, _ = strconv.Atoi(m[1])
			j[tid] = nil
		} else if m := frame.FindStringSubmatch(l); m != nil && tid != 0 {
			pc, _ := strconv.ParseUint(m[1], 16, 64)
			if m[2] == "None" {
				m[2] = ""
			}
			j[tid] = append(j[tid], judgedFrame{pc, m[2]})
		}
	}
	return j
}

// A stackJSON is what is used of the JSON of stack.
type stackJSON struct {
	PID    int
	Exe    string
	Core   string
	Signal *struct {
		Name, Addr string
		CodeName   string `json:"code_name"`
	}
	PauseNS int64 `json:"pause_ns"`
	Notes   []string
	Threads []struct {
		TID    int
		Name   string
		Stop   string
		Whole  bool
		Frames []frameJSON

		LeftOut   int `json:"left_out"`
		LeftOutAt int `json:"left_out_at"`
	}
}

type frameJSON struct {
	PC, Addr, How, Module, Offset, Function, Linkage string
	BuildID                                          string `json:"build_id"`
	FuncOff                                          string `json:"function_offset"`
	Inlined                                          bool
	Registers                                        map[string]string
}

// physical returns the frames that are no inlined calls.
func physical(frames []frameJSON) []frameJSON {
	return slices.DeleteFunc(slices.Clone(frames), func(f frameJSON) bool { return f.Inlined })
}

// runStack returns what stack says of a target.
func runStack(t testing.TB, args ...string) *stackJSON {
	t.Helper()
	r := runProgram(t, append([]string{"stack", "--format", "json"}, args...)...)
	r.want(t, 0, "^$")
	return parseStack(t, r.out)
}

func parseStack(t testing.TB, out string) *stackJSON {
	t.Helper()
	var s stackJSON
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return &s
}

// stacks returns the frames without inlined calls. module has the path of each PC.
func (s *stackJSON) stacks() (j judged, linkage, module map[uint64]string) {
	j, linkage, module = judged{}, map[uint64]string{}, map[uint64]string{}
	for _, th := range s.Threads {
		j[th.TID] = nil
		for _, f := range th.Frames {
			if f.Inlined {
				continue
			}
			pc, _ := strconv.ParseUint(f.PC, 0, 64)
			j[th.TID] = append(j[th.TID], judgedFrame{pc, f.Function})
			if linkage[pc] = f.Linkage; f.Linkage == "" {
				linkage[pc] = f.Function
			}
			module[pc] = f.Module
		}
	}
	return j, linkage, module
}

// A stackProgram is one whose stacks are looked at.
type stackProgram struct {
	name    string
	args    func(t testing.TB) []string
	ready   bool   // it prints a line and waits; else it ends by a signal
	env     string // may be empty
	pausing bool   // and all its threads are in pause then
	gdb     string // what gdb is told before it runs the program; may be empty
	both    bool   // gdb writes a core of it even if the kernel has
	handles bool   // it handles the signals that end programs: the kernel writes no core of it
}

// stackBuilds are the programs that are compiled, once each, and stackDir is where; TestMain removes it.
var (
	stackBuilds sync.Map
	stackDir    = sync.OnceValue(func() string {
		dir, err := os.MkdirTemp("", "unspool-stack")
		if err != nil {
			panic(err)
		}
		return dir
	})
)

// built compiles a program of testdata/stack with a command, in which SRC and OUT stand for files.
func built(t testing.TB, src, as string, command ...string) string {
	t.Helper()
	oracle.Need(t, command[0])
	v, _ := stackBuilds.LoadOrStore(as, sync.OnceValues(func() (string, error) {
		out := filepath.Join(stackDir(), as)
		src, _ := filepath.Abs(filepath.Join("testdata/stack", src))
		args := slices.Clone(command)
		for i := range args {
			args[i] = map[string]string{"SRC": src, "OUT": out}[args[i]]
			if args[i] == "" {
				args[i] = command[i]
			}
		}
		if b, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("%q: %w\n%s", args, err, b)
		}
		return out, nil
	}))
	path, err := v.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func crashProgram(t testing.TB) string {
	return built(t, "crash.c", "crash", "gcc", "-O2", "-g", "-pthread", "-o", "OUT", "SRC")
}

// found returns the path of a tool that is a program to be looked at.
func found(t testing.TB, names ...string) string {
	t.Helper()
	for _, n := range names {
		if p, err := exec.LookPath(n); err == nil {
			return p
		}
	}
	oracle.Lacks(t, names[len(names)-1])
	return ""
}

func crash(how ...string) func(testing.TB) []string {
	return func(t testing.TB) []string { return append([]string{crashProgram(t)}, how...) }
}

var stackPrograms = []stackProgram{
	{name: "segv", args: crash("segv")},
	{name: "null call", args: crash("null")},
	{name: "abort", args: crash("abort"), both: true},
	{name: "stack overflow", args: crash("overflow")},
	{name: "handler on its own stack", args: crash("handler"), gdb: "handle SIGSEGV nostop noprint pass", both: true},
	{name: "child of vfork", args: crash("vfork"), gdb: "set follow-fork-mode child"},
	{name: "corrupted stack", args: crash("corrupted")},
	{name: "blocked in a system call", args: crash("blocked"), ready: true},
	{name: "threads", args: crash("threads", "5"), ready: true, pausing: true, both: true},
	{name: "static", args: func(t testing.TB) []string {
		return []string{built(t, "crash.c", "crash-static", "gcc", "-O2", "-static", "-pthread", "-o", "OUT", "SRC"), "threads", "3"}
	}, ready: true, pausing: true, both: true},
	{name: "C++", args: func(t testing.TB) []string {
		return []string{built(t, "threads.cc", "threads-cc", "g++", "-O1", "-g", "-pthread", "-o", "OUT", "SRC")}
	}, ready: true},
	{name: "Rust", args: func(t testing.TB) []string {
		return []string{built(t, "threads.rs", "threads-rs", "rustc", "-O", "-o", "OUT", "SRC")}
	}, ready: true, both: true},
	{name: "Go", args: func(t testing.TB) []string {
		return []string{built(t, "crash.go", "crash-go", "go", "build", "-o", "OUT", "SRC")}
	}, env: "GOTRACEBACK=crash", both: true},
	{name: "python3", args: func(t testing.TB) []string {
		return []string{found(t, "/usr/bin/python3", "python3"), "-c", "import ctypes; ctypes.string_at(0)"}
	}},
	{name: "node", args: func(t testing.TB) []string { return []string{found(t, "node"), "-e", "process.abort()"} }},
	{name: "gdb", args: func(t testing.TB) []string {
		return []string{found(t, "gdb"), "-nx", "-batch", "-ex", "python import time; print('ready', flush=True); time.sleep(1000)"}
	}, ready: true},
	{name: "lli", args: lli(jits[0]...), ready: true, pausing: true, handles: true},
	{name: "lli jitlink", args: lli(jits[1]...), ready: true, pausing: true, handles: true},
	{name: "lli mcjit", args: lli(jits[2]...), ready: true, pausing: true, handles: true},
}

// start starts a program in dir and waits until it is ready.
func (p *stackProgram) start(t testing.TB, dir string, args []string) *exec.Cmd {
	t.Helper()
	c := exec.Command("sh", append([]string{"-c", `ulimit -c unlimited; exec "$@"`, "sh"}, args...)...)
	c.Dir = dir
	c.Env = append(os.Environ(), p.env)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	timeout := time.AfterFunc(2*time.Minute, func() { c.Process.Kill() })
	t.Cleanup(func() {
		timeout.Stop()
		c.Process.Kill()
		c.Wait()
	})
	if p.ready {
		if l, err := bufio.NewReader(out).ReadString('\n'); err != nil {
			t.Fatalf("%q: %q, %v", args, l, err)
		}
	}
	for p.pausing && !allPause(c.Process.Pid) {
		time.Sleep(10 * time.Millisecond) // until then, or the end of the program
	}
	return c
}

// allPause says whether all threads of a process are in pause(2), or whether it has ended.
func allPause(pid int) bool {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	for _, f := range tasks {
		if b, err := os.ReadFile(f); err == nil && !strings.HasPrefix(string(b), "34 ") {
			return false
		}
	}
	return true
}

// kernelCore returns a core that the kernel wrote. It skips the test where kernel.core_pattern sends cores elsewhere.
func (p *stackProgram) kernelCore(t testing.TB, args []string) string {
	t.Helper()
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if s := strings.TrimSpace(string(pattern)); err != nil || s == "" || strings.ContainsAny(s, "|/") {
		t.Skipf("kernel.core_pattern is %q: cores are not written where programs run", s)
	}
	dir := t.TempDir()
	c := p.start(t, dir, args)
	if p.ready {
		c.Process.Signal(syscall.SIGXCPU) // its default is to dump core, and nobody handles it
	}
	c.Wait()
	all, _ := os.ReadDir(dir)
	for _, e := range all {
		if strings.HasPrefix(e.Name(), "core") {
			return filepath.Join(dir, e.Name())
		}
	}
	t.Skipf("the kernel wrote no core (%v); kernel.core_pattern is %q", c.ProcessState, pattern)
	return ""
}

// gdbCore returns a core that gdb wrote.
func (p *stackProgram) gdbCore(t testing.TB, args []string) string {
	t.Helper()
	core := filepath.Join(t.TempDir(), "core")
	cmd := []string{"gdb", "-batch", "-nx"}
	if p.gdb != "" {
		cmd = append(cmd, "-ex", p.gdb)
	}
	if k, v, ok := strings.Cut(p.env, "="); ok {
		cmd = append(cmd, "-ex", "set environment "+k+" "+v)
	}
	if p.ready {
		c := p.start(t, t.TempDir(), args)
		cmd = append(cmd, "-p", strconv.Itoa(c.Process.Pid), "-ex", "generate-core-file "+core)
	} else {
		cmd = append(append(cmd, "-ex", "run", "-ex", "generate-core-file "+core, "--args"), args...)
	}
	out := tool(t, "", cmd...)
	if _, err := os.Stat(core); err != nil {
		t.Fatalf("%q wrote no core:\n%s", cmd, out)
	}
	return core
}

// A difference is one that is permitted, and why.
type difference struct {
	program, judge string // program "": any
	pattern        string // of the message
	reason         string
	sometimes      bool // it depends on where threads happen to be
}

var stackDifferences = []difference{
	{"null call", "eu-stack", `frame 1: 0x\w+ null_call, the judge has`, "it does not look for the return address of a call to 0, and follows the frame pointer, which is none", false},
	{"", "gdb", `\(bad-return\), the judge goes on: 0x[1-9a-f]\w* $`, "it shows a return address that is in no mapping as a frame; here it is why the stack ends", false},
	{"", "eu-stack", `\(bad-return\), the judge goes on: 0x[1-9a-f]\w* $`, "the same", false},
	{"Go", "gdb", `\(outermost\), the judge goes on: 0x0 $`, "it does not know that runtime.goexit and mcall have no caller on their stack", false},
	{"Go", "gdb", `in runtime.mcall \(outermost\), the judge goes on: 0x7f\w+ $`, "it takes the word above mcall's frame, on the stack that was switched to, for a return address; it is an address of the stack", true},
	{"Go", "eu-stack", `in runtime.mcall \(outermost\), the judge goes on: 0x7f\w+ $`, "the same", true},
	{"Go", "gdb", `ends after 1 frames in \S+ \(bad-return\), the judge goes on: 0x0 $`, "where the rule finds a return address of 0, it shows that as a frame; here it is why the stack ends", true},
	{"Go", "gdb", `\(outermost\), the judge goes on: 0x\w+ runtime.clone$`, "it shows the function in which a thread begins, below runtime.mstart", true},
	{"Go", "eu-stack", `\(outermost\), the judge goes on: 0x\w+ runtime.clone`, "the same", true},
	{"node", "gdb", `frame \d+: 0x\w+ Builtins_JSEntryTrampoline, the judge has`, "it guesses at code that JavaScript was compiled to, by its prologue; here it is the frame pointer", false},
	{"node", "gdb", `ends after 1 frames in (__)?clone3? \(outermost\), the judge goes on: 0x0 $`, "a thread that has just begun, behind clone3's system call, has no caller yet; it shows the word at the stack pointer", true},
	{"node", "eu-stack", `ends after 1 frames in (__)?clone3? \(outermost\), the judge goes on: 0x\w+ $`, "the same", true},
	{"Go", "gdb", `frame \d+: 0x\w+ main.last, the judge has 0x0 $`, "it takes the caller of runtime.sigpanic for one that made a call; it was interrupted", true},
	{"lli", "eu-stack", `frame \d+: 0x\w+ middle, the judge has`, "it does not know of code that is registered for debuggers, and follows the frame pointer", false},
	{"lli jitlink", "eu-stack", `frame \d+: 0x\w+ middle, the judge has`, "the same", false},
	{"lli mcjit", "eu-stack", `frame \d+: 0x\w+ middle, the judge has`, "the same", false},
	{"Go", "eu-stack", `the judge ends after \d+ frames, here it goes on: 0x\w+ runtime.raise`, "Go's signal trampoline has no information; gdb, too, knows it by its code", true},
}

const judgeDepth = 3000

// TestCores: the stacks of cores, written by the kernel and by gdb, are those that gdb and eu-stack print: the same
// program counters and functions, frame by frame.
func TestCores(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gdb", "eu-stack", "gcc")
	used, ran := make([]bool, len(stackDifferences)), map[string]bool{}
	for _, p := range stackPrograms {
		t.Run(p.name, func(t *testing.T) {
			args := p.args(t)
			judge := func(t *testing.T, core string) {
				s := runStack(t, "--depth", strconv.Itoa(judgeDepth), core, args[0])
				if len(s.Notes) > 0 {
					t.Errorf("notes: %q", s.Notes)
				}
				ran[p.name] = true
				for judge, run := range map[string]func(testing.TB, string, string, int) judged{"gdb": gdbStacks, "eu-stack": euStacks} {
					for _, d := range s.compare(run(t, args[0], core, judgeDepth)) {
						i := slices.IndexFunc(stackDifferences, func(x difference) bool {
							return (x.program == p.name || x.program == "") && x.judge == judge && regexp.MustCompile(x.pattern).MatchString(d)
						})
						if i < 0 {
							t.Errorf("%s: %s", judge, d)
							continue
						}
						used[i] = true
					}
				}
			}
			kernel := !p.handles && t.Run("kernel", func(t *testing.T) { judge(t, p.kernelCore(t, args)) })
			if p.both || !kernel || !ran[p.name] {
				t.Run("gdb", func(t *testing.T) { judge(t, p.gdbCore(t, args)) })
			}
		})
	}
	for i, d := range stackDifferences {
		if !used[i] && !d.sometimes && (ran[d.program] || d.program == "" && ran["corrupted stack"]) {
			t.Errorf("no difference matches %+v: take it off the list", d)
		}
	}
}

// compare says where s differs from what a judge has.
func (s *stackJSON) compare(want judged) (out []string) {
	have, linkage, module := s.stacks()
	stop := map[int]string{}
	for _, th := range s.Threads {
		stop[th.TID] = th.Stop
	}
	for tid, w := range want {
		h, ok := have[tid]
		if !ok {
			out = append(out, fmt.Sprintf("TID %d is missing", tid))
			continue
		}
		for i := range max(len(h), len(w)) {
			switch {
			case i >= len(h):
				last := "nothing"
				if i > 0 {
					last = h[i-1].name
				}
				out = append(out, fmt.Sprintf("TID %d ends after %d frames in %s (%s), the judge goes on: %#x %s", tid, i, last, stop[tid], w[i].pc, w[i].name))
			case i >= len(w):
				out = append(out, fmt.Sprintf("TID %d: the judge ends after %d frames, here it goes on: %#x %s", tid, i, h[i].pc, h[i].name))
			case h[i].pc != w[i].pc:
				out = append(out, fmt.Sprintf("TID %d frame %d: %#x %s, the judge has %#x %s", tid, i, h[i].pc, h[i].name, w[i].pc, w[i].name))
			default:
				if w[i].name != "" && baseName(h[i].name) != baseName(w[i].name) && !sameSymbol(module[h[i].pc], linkage[h[i].pc], w[i].name) {
					out = append(out, fmt.Sprintf("TID %d frame %d: %#x is %q, the judge says %q", tid, i, h[i].pc, h[i].name, w[i].name))
				}
				continue
			}
			break
		}
	}
	for tid := range have {
		if _, ok := want[tid]; !ok {
			out = append(out, fmt.Sprintf("the judge has no TID %d", tid))
		}
	}
	return out
}

// baseName is a function's name without parameters, template arguments, scope, hash and version: tools differ in what they show.
func baseName(s string) string {
	s, _, _ = strings.Cut(s, "@@")
	s = strings.NewReplacer("$LT$", "<", "$GT$", ">", "_$u7b$", "{", "$u7b$", "{", "$u7d$", "}").Replace(s)
	s = regexp.MustCompile(`(\.(abi0|cold|(part|constprop|isra)\.\d+))+$`).ReplaceAllString(s, "")
	s = regexp.MustCompile(`::h[0-9a-f]{16}$`).ReplaceAllString(s, "")
	depth, out := 0, ""
	for i, r := range s {
		switch {
		case depth == 0 && strings.HasPrefix(s[i:], "operator"):
			return s[i:min(i+10, len(s))]
		case r == '<' || r == '(' || r == '{':
			depth++
		case r == '>' || r == ')' || r == '}':
			depth--
		case depth == 0:
			out += string(r)
		}
	}
	out = strings.TrimSpace(out)
	return out[strings.LastIndexAny(out, ": ")+1:]
}

var symbolValues sync.Map

// sameSymbol says whether two names are of one address in a file's symbol tables, or in those of its debug file.
func sameSymbol(path, a, b string) bool {
	v, _ := symbolValues.LoadOrStore(path, sync.OnceValue(func() map[string][]uint64 {
		all := map[string][]uint64{} // a name can have several versions
		read := func(path string) (id string) {
			f, err := elf.Open(path)
			if err != nil {
				return ""
			}
			defer f.Close()
			for _, table := range []func() ([]elf.Symbol, error){f.Symbols, f.DynamicSymbols} {
				syms, _ := table()
				for _, s := range syms {
					name, _, _ := strings.Cut(s.Name, "@")
					all[name] = append(all[name], s.Value)
				}
			}
			if s := f.Section(".note.gnu.build-id"); s != nil {
				if b, err := s.Data(); err == nil && len(b) > 17 {
					id = fmt.Sprintf("%x", b[16:])
				}
			}
			return id
		}
		if id := read(path); id != "" {
			read("/usr/lib/debug/.build-id/" + id[:2] + "/" + id[2:] + ".debug")
		}
		return all
	}))
	all := v.(func() map[string][]uint64)()
	a, _, _ = strings.Cut(a, "@")
	b, _, _ = strings.Cut(b, "@")
	return slices.ContainsFunc(all[a], func(v uint64) bool { return slices.Contains(all[b], v) })
}
