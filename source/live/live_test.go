package live

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// A frame is one as tests compare it. module and start are ours only.
type frame struct {
	pc     uint64
	name   string
	module *unwind.Module
	start  arch.Vaddr // of the function
}

// A stack is a thread's.
type stack struct {
	tid    int
	name   string
	frames []frame
	stop   unwind.Stop
	err    error
	late   uint64
}

var resolver = symbol.New(symbol.Options{})

// walked walks the stacks of a process.
func walked(p *source.Process) []stack {
	w := unwind.NewWalker(0)
	var out []stack
	for i := range p.Threads {
		th := &p.Threads[i]
		s := stack{tid: th.TID, name: th.Name, err: th.Err}
		if th.Err == nil {
			var frames []unwind.Frame
			frames, s.stop = w.Walk(&th.Snapshot, nil)
			for j := range frames {
				s.frames = append(s.frames, named(&frames[j]))
			}
			s.late = th.Late()
		}
		out = append(out, s)
	}
	return out
}

func named(f *unwind.Frame) frame {
	x := frame{pc: uint64(f.PC)}
	if f.Mapping == nil {
		return x
	}
	x.module = f.Mapping.Module
	t := resolver.Module(x.module.Path, x.module.BuildID)
	if v, ok := t.OffToVaddr(f.Mapping.FileOff(f.Addr())); ok {
		s := t.Resolve([]arch.Vaddr{v})[0]
		x.name, x.start = s.Name, s.Start
	}
	return x
}

func (s stack) String() string {
	out := fmt.Sprintf("thread %d %q: %v, %d late", s.tid, s.name, s.stop, s.late)
	if s.err != nil {
		out += ": " + s.err.Error()
	}
	for i, f := range s.frames {
		out += fmt.Sprintf("\n\t#%d %#x %s", i, f.pc, f.name)
	}
	return out
}

// names joins the names of a stack's frames that have one.
func (s stack) names() string {
	var out []string
	for _, f := range s.frames {
		if f.name != "" {
			out = append(out, f.name)
		}
	}
	return strings.Join(out, " ")
}

var set = sync.OnceValue(modules.New)

// look opens a process.
func look(t testing.TB, pid int, o Options) (*source.Process, Pause) {
	t.Helper()
	o.Mods = set().Module
	p, pause, err := Open(pid, o)
	if err != nil {
		t.Fatal(err)
	}
	return p, pause
}

var built struct {
	sync.Mutex
	dir  string
	path map[string]string
}

func TestMain(m *testing.M) {
	status := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(status)
}

// build compiles a program of testdata, once, with the command that compiles it up to the output's name.
func build(t testing.TB, source string, compiler ...string) string {
	t.Helper()
	oracle.Need(t, compiler[0])
	built.Lock()
	defer built.Unlock()
	key := strings.Join(append(compiler, source), " ")
	if p := built.path[key]; p != "" {
		return p
	}
	if built.dir == "" {
		dir, err := os.MkdirTemp("", "unspool-live")
		if err != nil {
			t.Fatal(err)
		}
		built.dir, built.path = dir, map[string]string{}
	}
	name := strings.TrimSuffix(source, filepath.Ext(source))
	out := filepath.Join(built.dir, fmt.Sprint(name, len(built.path)))
	args := append(compiler[1:], "-o", out, filepath.Join("testdata", source))
	oracle.Run(t, compiler[0], args...)
	built.path[key] = out
	return out
}

func work(t testing.TB) string { return build(t, "work.c", "gcc", "-O1", "-g", "-pthread") }

// start starts a program and waits until it has said "up".
func start(t testing.TB, cmd *exec.Cmd) int {
	t.Helper()
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = in
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		stdin.Close()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%v: %q, %v", cmd, line, err)
	}
	return cmd.Process.Pid
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// output runs a judge. One that hangs is ended.
func output(t testing.TB, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if ctx.Err() != nil {
		t.Fatalf("%s %v hangs", name, args)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), err
}

const gdbCommands = `
import gdb
for t in gdb.selected_inferior().threads():
    t.switch()
    print("T", t.ptid[1] or t.ptid[0])
    f, n = gdb.newest_frame(), 0
    while f is not None and n < 5000:
        if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            print("F", "%x" % f.pc(), f.name() or "")
        try:
            f, n = f.older(), n + 1
        except gdb.error:
            break
`

// gdb returns the stacks that gdb finds.
func gdb(t testing.TB, pid int) []stack {
	script := filepath.Join(t.TempDir(), "stacks.py")
	if err := os.WriteFile(script, []byte(gdbCommands), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := output(t, "gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", "set auto-load off", "-iex", "set print demangle off", "-iex", "set backtrace past-main on",
		"-iex", "set backtrace past-entry on", "-p", fmt.Sprint(pid), "-x", script)
	if err != nil && out == "" {
		t.Fatal(err)
	}
	var stacks []stack
	for line := range strings.Lines(out) {
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		switch {
		case kind == "T":
			var s stack
			fmt.Sscan(rest, &s.tid)
			stacks = append(stacks, s)
		case kind == "F" && len(stacks) > 0:
			var f frame
			pc, name, _ := strings.Cut(rest, " ")
			fmt.Sscanf(pc, "%x", &f.pc)
			f.name = name
			s := &stacks[len(stacks)-1]
			s.frames = append(s.frames, f)
		}
	}
	return stacks
}

// euStack returns the stacks that eu-stack finds.
func euStack(t testing.TB, pid int) []stack {
	out, err := output(t, "eu-stack", "-n", "0", "-r", "-p", fmt.Sprint(pid))
	if err != nil && out == "" {
		t.Fatal(err)
	}
	var stacks []stack
	for line := range strings.Lines(out) {
		var n int
		var f frame
		if strings.HasPrefix(line, "TID ") {
			var s stack
			fmt.Sscanf(line, "TID %d:", &s.tid)
			stacks = append(stacks, s)
		} else if k, _ := fmt.Sscanf(line, "#%d 0x%x %s", &n, &f.pc, &f.name); k >= 2 && len(stacks) > 0 {
			s := &stacks[len(stacks)-1]
			s.frames = append(s.frames, f)
		}
	}
	return stacks
}

// same says whether a frame of ours is a judge's: of the same program counter, and a function that is named alike, or has both names.
func same(a, b frame) (pc, name bool) {
	pc = a.pc == b.pc
	if x, y := plain(a.name), plain(b.name); x == y || x == "" || y == "" {
		return pc, true
	}
	if a.module == nil {
		return pc, false
	}
	table := resolver.Module(a.module.Path, a.module.BuildID)
	for _, n := range []string{b.name, plain(b.name)} {
		if lo, _, ok := table.FuncRange(n); ok && lo == a.start {
			return pc, true
		}
	}
	return pc, false
}

// plain is a name without parameters and version.
func plain(name string) string {
	if i := strings.IndexAny(name, "(@<"); i > 0 {
		name = name[:i]
	}
	return name
}

// differences compares stacks, and says where each that differs first does.
func differences(ours, theirs []stack) (out []string, frames int) {
	for _, a := range ours {
		i := slices.IndexFunc(theirs, func(b stack) bool { return b.tid == a.tid })
		if i < 0 {
			out = append(out, fmt.Sprintf("thread %d %s: it is not there", a.tid, a.name))
			continue
		}
		b := theirs[i]
		for j := range max(len(a.frames), len(b.frames)) {
			if j >= len(a.frames) {
				out = append(out, fmt.Sprintf("#%d: more: %#x %s after %s (%v)", j, b.frames[j].pc, b.frames[j].name, a.frames[max(j-1, 0)].name, a.stop))
				break
			}
			if j >= len(b.frames) {
				out = append(out, fmt.Sprintf("#%d: less: without %#x %s (%v)", j, a.frames[j].pc, a.frames[j].name, a.stop))
				break
			}
			pc, name := same(a.frames[j], b.frames[j])
			if !pc {
				out = append(out, fmt.Sprintf("#%d: pc %#x %s, ours %#x %s", j, b.frames[j].pc, b.frames[j].name, a.frames[j].pc, a.frames[j].name))
				break
			}
			if !name {
				out = append(out, fmt.Sprintf("#%d: name %s, ours %s", j, b.frames[j].name, a.frames[j].name))
			}
			frames++
		}
	}
	for _, b := range theirs {
		if !slices.ContainsFunc(ours, func(a stack) bool { return a.tid == b.tid }) {
			out = append(out, fmt.Sprintf("thread %d: only there", b.tid))
		}
	}
	return out, frames
}

// pcs says what a process's stacks are, for a look whether they are still the same.
func pcs(stacks []stack) string {
	var s strings.Builder
	for _, x := range stacks {
		fmt.Fprintln(&s, x.tid, x.stop, x.err)
		for _, f := range x.frames {
			fmt.Fprintf(&s, "%x ", f.pc)
		}
	}
	return s.String()
}

// steady looks at a process before and after f, until that is the same.
func steady(t testing.TB, pid int, f func()) []stack {
	t.Helper()
	for range 50 {
		p, _ := look(t, pid, Options{})
		before := walked(p)
		f()
		q, _ := look(t, pid, Options{})
		if pcs(before) == pcs(walked(q)) {
			return before
		}
	}
	t.Fatalf("process %d does not keep still", pid)
	return nil
}
