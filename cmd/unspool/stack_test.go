package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	running "github.com/unspool/unspool/source/live"
	"github.com/unspool/unspool/stacks"
)

// anyCore returns a core, written by the kernel or, where that cannot be, by gdb.
func (p *stackProgram) anyCore(t *testing.T, args []string) (core string) {
	t.Helper()
	t.Run("kernel", func(t *testing.T) {
		b, err := os.ReadFile(p.kernelCore(t, args))
		if err != nil {
			t.Fatal(err)
		}
		core = filepath.Join(filepath.Dir(args[0]), "core")
		if err := os.WriteFile(core, b, 0o600); err != nil {
			t.Fatal(err)
		}
	})
	if core == "" {
		core = p.gdbCore(t, args)
	}
	return core
}

// private returns a copy of the program of crash.c that nobody else uses.
func private(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile(crashProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "private")
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// functions returns the functions of the first thread; "?" for those without a name.
func (s *stackJSON) functions() string {
	var out []string
	for _, f := range s.Threads[0].Frames {
		if f.Function == "" {
			f.Function = "?"
		}
		out = append(out, f.Function)
	}
	return strings.Join(out, " ")
}

// A file that is not the one that was mapped is not used, wherever it is found; the right one is, wherever it is.
func TestCoreFiles(t *testing.T) {
	oracle.Long(t)
	exe := private(t)
	p := stackProgram{}
	core := p.anyCore(t, []string{exe, "abort"})
	dir := t.TempDir()
	cache, here := t.TempDir(), ""
	const whole = `raise abort give_up main\S* __libc_start_call_main`
	check := func(name, functions, notes string, args ...string) {
		t.Helper()
		c := program(t, append([]string{"stack", "--format", "json"}, args...)...)
		c.Env, c.Dir = append(c.Env, "UNSPOOL_CACHE="+cache), here
		r := finish(t, c)
		r.want(t, 0, "^$")
		s := parseStack(t, r.out)
		if !regexp.MustCompile(functions).MatchString(s.functions()) || !regexp.MustCompile(notes).MatchString(strings.Join(s.Notes, "\n")) {
			t.Errorf("%s: %s, want %q\nnotes %q, want %q", name, s.functions(), functions, s.Notes, notes)
		}
		if s.Exe != exe || s.Signal == nil || s.Signal.Name != "SIGABRT" || s.Core != core {
			t.Errorf("%s: %s %+v %s", name, s.Exe, s.Signal, s.Core)
		}
	}
	check("as it was", whole, "^$", core)

	kept := filepath.Join(dir, "kept")
	if err := os.Rename(exe, kept); err != nil {
		t.Fatal(err)
	}
	const lost, unnamed = `raise abort \?$`, `raise abort \? \? __libc_start_call_main`
	check("deleted, with its table in the cache", unnamed, `private: file does not exist; the table that was kept of it is used`, core)
	cache = t.TempDir()
	check("deleted", lost, `private: file does not exist; its frames are found without it`, core)
	check("EXE", whole, "^$", core, kept)
	cache = t.TempDir()
	check("the wrong EXE", lost, `/sh is not the program of this core: build ID \w+, the core has \w+`, core, "/bin/sh")
	check("no EXE", lost, `/none: no such file`, core, filepath.Join(dir, "none"))

	img, err := module.Open(kept)
	if err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(img.BuildID())
	img.Close()
	byID := filepath.Join(dir, ".build-id", id[:2], id[2:])
	root := filepath.Join(dir, "root", exe)
	for _, path := range []string{byID, root} {
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.Symlink(kept, path); err != nil {
			t.Fatal(err)
		}
	}
	check("--debug-dir", whole, "^$", core, "--debug-dir", dir)
	check("--sysroot", whole, "^$", core, "--sysroot", filepath.Join(dir, "root"))
	here = dir // paths from where the program runs
	cache = t.TempDir()
	check("EXE from here", whole, "^$", core, "kept")
	check("--debug-dir from here", whole, "^$", core, "--debug-dir", ".")
	check("--sysroot from here", whole, "^$", core, "--sysroot", "root")

	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(exe, sh, 0o700); err != nil {
		t.Fatal(err)
	}
	check("replaced, with its table in the cache", unnamed, `private has changed since: build ID \w+, the core has \w+; the table that was kept of it is used`, core)
	cache = t.TempDir()
	check("replaced", lost, `private has changed since: build ID \w+, the core has \w+; its frames are found without it`, core)
	check("replaced, EXE", whole, "^$", core, kept)
}

// Many threads with deep stacks, as a hostile core can have them all on one, are shown in part, and a note says so.
func TestManyFrames(t *testing.T) {
	oracle.Long(t)
	exe := built(t, "../../../../source/live/testdata/work.c", "work", "gcc", "-O1", "-pthread", "-o", "OUT", "SRC")
	p := stackProgram{pausing: true}
	c := p.start(t, t.TempDir(), []string{exe, "threads", "1", "1000"})
	mods := modules.New()
	proc, _, err := running.Open(c.Process.Pid, running.Options{Mods: mods.Module})
	if err != nil {
		t.Fatal(err)
	}
	deep := proc.Threads[1]
	proc.Threads = slices.Repeat([]source.Thread{deep}, 10)
	s, err := stacks.Walk(proc, stacks.Options{Frames: 2500})
	if err != nil {
		t.Fatal(err)
	}
	for i, th := range s.Threads {
		if n, short := len(th.Frames), i >= 3; (n > 1000) == short || short && n != 64 {
			t.Errorf("thread %d has %d frames", i, n)
		}
	}
	if want := "more than 2,500 frames: of the last 7 threads, only the innermost 64 are shown"; !strings.Contains(strings.Join(s.Notes, "\n"), want) {
		t.Errorf("notes %q, want %q", s.Notes, want)
	}
}

// The stacks of a program that was deleted while it ran are whole: of itself, because the kernel still has the file, and of the
// core that gdb writes, because that has all of it.
func TestDeleted(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gdb")
	exe := private(t)
	p := stackProgram{ready: true, pausing: true}
	c := p.start(t, t.TempDir(), []string{exe, "threads", "2"})
	if err := os.Remove(exe); err != nil {
		t.Fatal(err)
	}
	pid, core := strconv.Itoa(c.Process.Pid), filepath.Join(t.TempDir(), "core")
	live := runStack(t, pid)
	out := tool(t, "", "gdb", "-batch", "-nx", "-p", pid, "-ex", "generate-core-file "+core)
	if _, err := os.Stat(core); err != nil {
		t.Fatalf("gdb writes no core of process %s: %v\n%s", pid, err, out)
	}
	dead := runStack(t, core)
	for i, s := range []*stackJSON{live, dead} {
		if len(s.Threads) != 3 {
			t.Fatalf("%d threads", len(s.Threads))
		}
		for j := range s.Threads {
			s.Threads[j].Frames = physical(s.Threads[j].Frames) // only the file has lines and inlined calls
		}
		for j, th := range s.Threads {
			if !th.Whole || th.Frames[1].Module != exe+" (deleted)" {
				t.Errorf("%s: TID %d: %s, %+v", []string{"live", "core"}[i], th.TID, th.Stop, th.Frames)
			}
			for k, f := range th.Frames {
				if l := live.Threads[j].Frames; len(l) != len(th.Frames) || l[k].PC != f.PC || l[k].Offset != f.Offset {
					t.Fatalf("TID %d frame %d: %+v, of the process %+v", th.TID, k, f, l)
				}
			}
		}
	}
	if notes := strings.Join(dead.Notes, "\n"); !strings.Contains(notes, "what the core's memory has of it is used") {
		t.Errorf("notes %q", dead.Notes)
	}
}

// A core that is cut off anywhere gives what it has: the stacks that are in it, or an error that says so.
func TestCutCores(t *testing.T) {
	oracle.Long(t)
	exe := crashProgram(t)
	copyOf := private(t) // for its directory
	p := stackProgram{ready: true, pausing: true}
	core := p.anyCore(t, []string{copyOf, "threads", "3"})
	b, err := os.ReadFile(core)
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "cut")
	whole := 0
	for i := range 24 {
		n := len(b) * (i + 1) / 24
		if i < 6 {
			n = []int{1, 40, 64, 500, 3000, 20000}[i]
		}
		if err := os.WriteFile(cut, b[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		r := runProgram(t, "stack", "--format", "json", cut, exe)
		if r.status == 1 && regexp.MustCompile(`cut off|not a core file`).MatchString(r.stderr) {
			continue
		}
		r.want(t, 0, "^$")
		s := parseStack(t, r.out)
		n, broken := 0, 0
		for _, th := range s.Threads {
			if th.Whole {
				n++
			} else {
				broken++
			}
		}
		if n < whole {
			t.Errorf("cut to %d bytes: %d whole stacks, %d with fewer bytes", len(b), n, whole)
		}
		whole = n
		if notes := strings.Join(s.Notes, "\n"); i < 23 && !strings.Contains(notes, "cut off") || i == 23 && notes != "" {
			t.Errorf("cut at %d of %d: notes %q", n, len(b), s.Notes)
		}
	}
	if whole != 4 {
		t.Errorf("%d stacks are whole in the end, want 4", whole)
	}
}

// The flags of stack, on a core.
func TestStackFlags(t *testing.T) {
	oracle.Long(t)
	exe := private(t)
	p := stackProgram{ready: true, pausing: true}
	core := p.anyCore(t, []string{exe, "threads", "3"})
	text := func(args ...string) string {
		t.Helper()
		r := runProgram(t, append([]string{"stack", core}, args...)...)
		r.want(t, 0, "^$")
		return r.out
	}
	for _, c := range []struct {
		args  []string
		match string
		n     int // of matches
	}{
		{nil, `(?m)^TID \d+`, 4},
		{nil, `(?m)^#1  0x[0-9a-f]{16} in wait_there\+0x[0-9a-f]+ \(\S+/crash\.c:\d+\) from \S+/private$`, 3},
		{nil, `(?m)^#1  0x[0-9a-f]{16} in threads \(\S+/crash\.c:\d+\) from \S+/private \[inlined\]$`, 1},
		{[]string{"--unique"}, `(?m)^TID \d+( "private")?$`, 1},
		{[]string{"--unique"}, `(?m)^TID \d+ and 2 more: \d+ \d+$`, 1},
		{[]string{"--depth", "2"}, `not whole, depth-limit`, 4},
		{[]string{"--raw"}, ` in `, 0},
		{[]string{"-v"}, `(?m)^#0.*\n( +[a-z0-9]+ 0x[0-9a-f]{16}){4}\n`, 4},
		{[]string{"--format", "gdb"}, `(?m)^Thread \d \(LWP \d+`, 4},
		{[]string{"--format", "gdb"}, `(?m)^#1  0x[0-9a-f]{16} in wait_there \(\) at \S+/crash\.c:\d+$`, 3},
		{[]string{"--format", "eu"}, `(?m)^TID \d+:$`, 4},
		{[]string{"--format", "eu"}, `(?m)^#1  0x[0-9a-f]{16} wait_there - \S+/private$`, 3},
	} {
		out := text(c.args...)
		if n := len(regexp.MustCompile(c.match).FindAllString(out, -1)); n != c.n {
			t.Errorf("%q: %d matches of %q, want %d\n%s", c.args, n, c.match, c.n, out)
		}
	}
	s := runStack(t, core)
	tid := strconv.Itoa(s.Threads[2].TID)
	if out := text("-t", tid); strings.Count(out, "TID") != 1 || !strings.Contains(out, "TID "+tid) {
		t.Errorf("-t %s:\n%s", tid, out)
	}
	runProgram(t, "stack", core, "-t", "1").want(t, 1, "has no thread 1")

	// Registers are those of gdb, as far as both know them. It counts tail calls and inlined ones as frames.
	f := physical(runStack(t, "-v", core).Threads[0].Frames)[1].Registers
	cmd := []string{"gdb", "-batch", "-nx"}
	for i := range 4 {
		cmd = append(cmd, "-ex", fmt.Sprint("frame ", i), "-ex", "info registers rip rbx rbp rsp r12 r13 r14 r15", "-ex", "echo \\nEND\\n")
	}
	out := tool(t, "", append(cmd, exe, core)...)
	compared := 0
	for _, frame := range strings.Split(out, "\nEND\n") {
		regs := regexp.MustCompile(`(?m)^(r\w+) +0x([0-9a-f]+)`).FindAllStringSubmatch(frame, -1)
		if len(regs) != 8 || f["rip"] != "0x"+regs[0][2] && f["rip"] != "0x"+regs[7][2] {
			continue
		}
		for _, m := range regs {
			if compared++; f[m[1]] != "0x"+m[2] {
				t.Errorf("frame 1: %s is %s, gdb says 0x%s", m[1], f[m[1]], m[2])
			}
		}
		break
	}
	if compared != 8 {
		t.Errorf("%v is none of gdb's frames:\n%s", f, out)
	}
}

// Of a stack that is too deep to show, both ends are, and how many frames lie between them.
func TestStackDeep(t *testing.T) {
	oracle.Long(t)
	core := (&stackProgram{}).anyCore(t, []string{private(t), "deep"})
	s := runStack(t, core)
	all := runStack(t, "--depth", "1000000", "-t", strconv.Itoa(s.Threads[0].TID), core).Threads[0]
	th := s.Threads[0]
	n := len(th.Frames)
	if th.LeftOut == 0 || th.LeftOut+n != len(all.Frames) || n < 4160 || !th.Whole || !all.Whole {
		t.Fatalf("%d frames, %d left out, %s; %d in all, %s", n, th.LeftOut, th.Stop, len(all.Frames), all.Stop)
	}
	for i, f := range th.Frames {
		if i >= th.LeftOutAt {
			i += th.LeftOut
		}
		if f.PC != all.Frames[i].PC || f.Function != all.Frames[i].Function {
			t.Fatalf("frame %d is %s %s, want %s %s", i, f.PC, f.Function, all.Frames[i].PC, all.Frames[i].Function)
		}
	}
	r := runProgram(t, "stack", core)
	r.want(t, 0, "^$")
	if last := fmt.Sprintf("(?m)^#%d +0x[0-9a-f]{16} in _start", len(all.Frames)-1); !regexp.MustCompile(last).MatchString(r.out) || strings.Count(r.out, " frames are left out ...\n") != 1 {
		t.Errorf("no match of %s:\n%s", last, r.out[max(0, len(r.out)-1000):])
	}
}

// Ctrl-C ends stack at once, also where nobody reads what it writes.
func TestStackInterrupted(t *testing.T) {
	oracle.Long(t)
	c := program(t, "stack", (&stackProgram{}).anyCore(t, []string{private(t), "deep"}))
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer time.AfterFunc(time.Minute, func() { c.Process.Kill() }).Stop()
	if _, err := out.Read(make([]byte, 1)); err != nil { // more than a pipe holds follows
		t.Fatal(err)
	}
	c.Process.Signal(os.Interrupt)
	c.Wait()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); !ws.Signaled() || ws.Signal() != syscall.SIGINT {
		t.Errorf("it ended by %v", c.ProcessState)
	}
}

// Usage, and what is no core.
func TestStackErrors(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	packed := filepath.Join(dir, "core.zst")
	if err := os.WriteFile(packed, append([]byte("\x28\xb5\x2f\xfd"), bytes.Repeat([]byte{1}, 100)...), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args   string
		status int
		stderr string
	}{
		{"stack", 2, "an argument is missing: unspool stack"},
		{"stack --format xml 1", 2, "--format is text, gdb, eu or json"},
		{"stack 1 /bin/sh", 2, "EXE needs a core file"},
		{"stack -p 1 /bin/sh", 2, "EXE needs a core file"},
		{"stack -p 99999999", 1, "no such process"},
		{"stack -p abc", 2, `-p takes a process ID such as 1234, not "abc"`},
		{"stack -p 1 core exe", 2, "too many arguments"},
		{"stack --no-pause core", 2, "--no-pause needs a PID"},
		{"stack --depth -1 1", 2, "positive"},
		{"stack /nonexistent", 1, "no such file"},
		{"stack /etc/passwd", 1, "not a core file"},
		{"stack /bin/sh", 1, "give the core file first"},
		{"stack " + packed, 1, "zstd -d core.zst"},
		{"stack " + dir, 1, "not a regular file"},
		{"stack 99999999", 1, "no such process"},
	} {
		runProgram(t, strings.Fields(c.args)...).want(t, c.status, c.stderr)
	}
	r := runProgram(t, "stack", fmt.Sprint(os.Getpid()))
	r.want(t, 0, "")
	if !strings.Contains(r.out, "stopped for") {
		t.Errorf("the stacks of this test:\n%s", r.out)
	}
}

// TestStackMinidump: a minidump is told by its first bytes, and what is wrong with it by the offset.
func TestStackMinidump(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.dmp")
	if err := os.WriteFile(path, []byte("MDMP"+strings.Repeat("\x00", 28)), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := runProgram(t, "stack", path); r.status != 1 || !strings.Contains(r.stderr, "x.dmp+0x0: system information: truncated") {
		t.Errorf("%d %s", r.status, r.stderr)
	}
	if r := runProgram(t, "stack", path, "/bin/sh"); r.status != 2 || !strings.Contains(r.stderr, "without EXE") {
		t.Errorf("%d %s", r.status, r.stderr)
	}
}

// TestStackMinidumpNotes: standard error names the missing files that stacks show, counts the others, and says what ended the process.
func TestStackMinidumpNotes(t *testing.T) {
	oracle.Need(t, "yaml2obj-19")
	dir := t.TempDir()
	yaml, path := filepath.Join(dir, "x.yaml"), filepath.Join(dir, "x.dmp")
	// A context of x86-64 with rip in the first module; its flags and registers are at 0x30, 0x98 and 0xf8.
	ctx := make([]byte, 1232)
	binary.LittleEndian.PutUint32(ctx[0x30:], 0x100003)
	binary.LittleEndian.PutUint64(ctx[0x98:], 0x7000)
	binary.LittleEndian.PutUint64(ctx[0xf8:], 0x140001234)
	text := fmt.Sprintf(`--- !minidump
Streams:
  - Type: SystemInfo
    Processor Arch: AMD64
    Platform ID: Win32NT
    CPU:
      Vendor ID: GenuineIntel
      Version Info: 0
      Feature Info: 0
  - Type: ModuleList
    Modules:
      - {Base of Image: 0x140000000, Size of Image: 0x4000, Time Date Stamp: 1, Module Name: 'C:\Games\game.exe', CodeView Record: ''}
      - {Base of Image: 0x180000000, Size of Image: 0x4000, Time Date Stamp: 1, Module Name: 'C:\Windows\System32\ntdll.dll', CodeView Record: ''}
      - {Base of Image: 0x190000000, Size of Image: 0x4000, Time Date Stamp: 1, Module Name: 'C:\Windows\System32\kernel32.dll', CodeView Record: ''}
  - Type: ThreadList
    Threads:
      - Thread Id: 0x11
        Context: %[1]X
        Stack:
          Start of Memory Range: 0x7000
          Content: '0000000000000000'
  - Type: Exception
    Thread ID: 0x11
    Exception Record:
      Exception Code: 0xC0000005
      Exception Address: 0x140001234
      Number of Parameters: 2
      Parameter 0: 1
      Parameter 1: 0x18
    Thread Context: %[1]X
...
`, ctx)
	if err := os.WriteFile(yaml, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "yaml2obj-19", "-o", path, yaml)
	r := runProgram(t, "stack", path)
	const want = "unspool: thread 17 ended the process: EXCEPTION_ACCESS_VIOLATION (0xc0000005), writing 0x18, at 0x140001234\n" +
		"unspool: C:\\Games\\game.exe: no such file (symbol servers have it as game.exe/000000014000/game.exe); frames in game.exe are found without it\n" +
		"unspool: the files of 2 other modules are not at hand; no stack shows them\n"
	if r.status != 0 || r.stderr != want || !strings.Contains(r.out, "PID 17: C:\\Games\\game.exe (from ") ||
		!strings.Contains(r.out, "#0  0x0000000140001234 in [game.exe+0x1234] from C:\\Games\\game.exe\n") {
		t.Errorf("%d\n%s\n%s", r.status, r.stderr, r.out)
	}
}
