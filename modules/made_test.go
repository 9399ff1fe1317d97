package modules_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/live"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/symbol/jit"
	"github.com/unspool/unspool/unwind"
)

// pythonScript calls functions through the interpreter and through C: each call goes through code that was made for it. It ends with the number of
// its process.
const pythonScript = `import os, time
def leaf(n):
    s = 0
    for i in range(n): s += i * i
    return s
def fib(n):
    if n < 2: return leaf(40)
    return fib(n - 1) + fib(n - 2)
class C:
    def __getattr__(self, k): return fib(6)
def go():
    return C().a + sum(map(fib, range(8)))
end = time.process_time() + 0.6
while time.process_time() < end: go()
print(os.getpid())
`

// python returns the command line of a CPython that writes dumps with unwind records: 3.13 of Debian, started by its own loader.
func python(t *testing.T) []string {
	root := oracle.Debian(t, "trixie", "amd64", "python", "python3.13-minimal")
	lib := filepath.Join(root, "usr/lib/x86_64-linux-gnu")
	return []string{filepath.Join(root, "lib64/ld-linux-x86-64.so.2"), "--library-path", lib, filepath.Join(root, "usr/bin/python3.13"), "-I", "-S", "-X", "perf_jit"}
}

// TestCPython: stacks through the code that CPython makes are whole by its unwind records alone, and callers are the ones that the program has.
func TestCPython(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "perf")
	if arch.Host() != arch.AMD64 {
		oracle.Lacks(t, "an x86-64 processor")
	}
	dir := t.TempDir()
	data, script := filepath.Join(dir, "perf.data"), filepath.Join(dir, "script.py")
	if err := os.WriteFile(script, []byte(pythonScript), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"record", "-q", "-e", "cpu-clock", "-F", "1000", "-k", "mono", "--call-graph", "dwarf,32768", "-o", data, "--"}, python(t)...)
	cmd := exec.Command("perf", append(args, script)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.Bytes())
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(out)))
	if err != nil {
		t.Fatal(err)
	}
	dump := "/tmp/jit-" + strconv.Itoa(pid) + ".dump"
	defer os.Remove(dump)
	// What may call what: the functions of the script.
	callers := map[string][]string{"leaf": {"fib"}, "fib": {"fib", "go", "C.__getattr__"}, "C.__getattr__": {"go"}, "go": {"<module>"}}
	made := jit.Open(jit.Seen(pid), []string{dump})
	through, whole, wrong := 0, 0, 0
	set := modules.Interpreted()
	defer set.Close()
	stops := map[unwind.Stop]int{}
	run(t, data, set, set.Made(arch.AMD64), func(s *source.Sample) {
		passes, alone := false, true
		var names []string
		for i, x := range s.User {
			if i > 0 && x.How != unwind.HowCFI && x.How != unwind.HowPLT {
				alone = false
			}
			if x.Mapping == nil || x.Mapping.Module.PID == 0 {
				continue
			}
			passes = true
			name := made.Lookup([]arch.Addr{x.Addr()}, s.Time)[0].Name
			names = append(names, strings.Split(strings.TrimPrefix(name, "py::"), ":")[0])
		}
		if !passes {
			return
		}
		if through++; s.Stop == unwind.Outermost && alone {
			whole++
		}
		stops[s.Stop]++
		for i := 1; i < len(names); i++ {
			if may := callers[names[i-1]]; may != nil && !strings.Contains(" "+strings.Join(may, " ")+" ", " "+names[i]+" ") {
				if wrong++; wrong < 5 {
					t.Errorf("%s is called by %s: %v", names[i-1], names[i], names)
				}
			}
		}
	})
	t.Logf("%d stacks through code that Python made, %d whole", through, whole)
	if through < 100 || whole*100 < through*99 {
		t.Errorf("of %d stacks through code that Python made, %d are whole; they end as %v\n%v", through, whole, stops, set.Errors())
	}
}

// freshScript makes functions as long as it runs: two hundred a second and more.
const freshScript = `import os, time
end = time.process_time() + 1.5
n = 0
while time.process_time() < end:
    n += 1
    ns = {}
    exec(f"def outer{n}(f, k): return f(k)\ndef inner{n}(k):\n    s = 0\n    for i in range(k): s += i * i\n    return s\n", ns)
    for _ in range(20): ns[f"outer{n}"](ns[f"inner{n}"], 2000)
`

// TestRecordCPython: while Python runs, and writes its dump in blocks, stacks through the code that it has made last are whole, too.
func TestRecordCPython(t *testing.T) {
	oracle.Long(t)
	if arch.Host() != arch.AMD64 {
		oracle.Lacks(t, "an x86-64 processor")
	}
	quiet := strings.TrimSuffix(pythonScript, "print(os.getpid())\n")
	for _, c := range []struct {
		name, script, from string
	}{{"few functions", quiet, record.Perf}, {"few functions, ptrace", quiet, record.Ptrace}, {"fresh functions", freshScript, record.Perf}} {
		script := filepath.Join(t.TempDir(), "script.py")
		if err := os.WriteFile(script, []byte(c.script), 0o600); err != nil {
			t.Fatal(err)
		}
		mods := modules.Interpreted()
		p := record.Plan{Source: c.from}
		p.Command, p.Frequency, p.User = append(python(t), script), 999, true
		l, err := p.Open(context.Background(), mods)
		if err != nil {
			oracle.Lacks(t, err.Error())
		}
		n := names.New(names.Options{Mods: mods})
		through, whole, pid := 0, 0, int32(0)
		stops := map[unwind.Stop]int{}
		err = l.Session(record.Options{Mods: mods, Names: n}).Run(context.Background(), func(s *profile.Sample) error {
			passes, alone := false, s.Stop == unwind.Outermost
			for i, x := range s.User {
				passes = passes || x.Mapping != nil && x.Mapping.Module.PID != 0
				alone = alone && (i == 0 || x.How == unwind.HowCFI || x.How == unwind.HowPLT)
			}
			if pid = s.PID; passes {
				if through++; alone {
					whole++
				}
				stops[s.Stop]++
			}
			return nil
		})
		if err := errors.Join(err, l.Close(), n.Close(), mods.Close()); err != nil {
			t.Fatal(err)
		}
		os.Remove("/tmp/jit-" + strconv.Itoa(int(pid)) + ".dump")
		t.Logf("%s: %d stacks through code that Python made, %d whole", c.name, through, whole)
		if through < 100 || whole*100 < through*99 {
			t.Errorf("%s: of %d stacks through code that Python made, %d are whole; they end as %v", c.name, through, whole, stops)
		}
	}
}

// jitted is a program for lli: main calls top again and again, which calls middle, which calls leaf, all with frames of different sizes.
const jitted = `define i32 @leaf(i32 %n) uwtable noinline {
  %a = alloca i32
  store volatile i32 %n, ptr %a
  br label %loop
loop:
  %v = load volatile i32, ptr %a
  %w = sub i32 %v, 1
  store volatile i32 %w, ptr %a
  %c = icmp sgt i32 %w, 0
  br i1 %c, label %loop, label %end
end:
  ret i32 %w
}
define i32 @middle(i32 %n) uwtable noinline {
  %a = alloca [72 x i8]
  %c = call i32 @leaf(i32 %n)
  %p = load volatile i32, ptr %a
  %r = add i32 %p, %c
  ret i32 %r
}
define i32 @top(i32 %n) uwtable noinline {
  %a = alloca [24 x i8]
  %c = call i32 @middle(i32 %n)
  %p = load volatile i32, ptr %a
  %r = add i32 %p, %c
  ret i32 %r
}
define i32 @main() uwtable {
  br label %loop
loop:
  %c = call i32 @top(i32 100000)
  br label %loop
}
`

// TestRecordLLVM: stacks through code that LLVM's compilers make are whole, from the second second on at least: the code is read where the process has
// registered it, and on a busy machine that takes time. There are no dumps.
func TestRecordLLVM(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "lli-19")
	src := filepath.Join(t.TempDir(), "jitted.ll")
	if err := os.WriteFile(src, []byte(jitted), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ kind, from string }{{"-jit-kind=orc", record.Perf}, {"-jit-kind=mcjit", record.Perf}, {"-jit-linker=jitlink", record.Perf}, {"-jit-kind=orc", record.Ptrace}} {
		mods := modules.Interpreted()
		p := record.Plan{Source: c.from}
		p.Command, p.Frequency, p.User, p.Duration = []string{"lli-19", c.kind, src}, 499, true, 3*time.Second
		l, err := p.Open(context.Background(), mods)
		if err != nil {
			oracle.Lacks(t, err.Error())
		}
		n := names.New(names.Options{Mods: mods})
		before, whole, last, first := 0, 0, 0, uint64(0)
		err = l.Session(record.Options{Mods: mods, Names: n}).Run(context.Background(), func(s *profile.Sample) error {
			made, alone := 0, s.Stop == unwind.Outermost
			if first == 0 {
				first = s.Time
			}
			for i, x := range s.User {
				if x.Mapping != nil && x.Mapping.Module.PID != 0 {
					made++
				}
				alone = alone && (i == 0 || x.How == unwind.HowCFI || x.How == unwind.HowPLT)
			}
			switch {
			case made == 0:
			case alone && made <= 4:
				whole++
			case s.Time-first < uint64(time.Second):
				before++
			case s.Time-first > uint64(p.Duration-time.Second/2) && s.Stop == unwind.Truncated && last == 0:
				last++ // the thread is being killed, and its memory is gone
			default:
				t.Errorf("%v: after %v, a stack ends as %s behind %d frames of made code", c, time.Duration(s.Time-first), s.Stop, made)
			}
			return nil
		})
		if err := errors.Join(err, l.Close(), n.Close(), mods.Close()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%v: %d stacks through made code are whole, %d are not", c, whole, before)
		if whole < 100 {
			t.Errorf("%v: %d stacks through made code are whole, %d are not", c, whole, before)
		}
	}
}

// run walks the samples of a recording.
func run(t *testing.T, data string, set *modules.Set, made source.Maker, each func(*source.Sample)) {
	in, err := os.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	f, err := perfdata.New(in, data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := source.Run(context.Background(), f, source.Options{Mods: set.Module, Made: made, Sample: func(s *source.Sample) error { each(s); return nil }}); err != nil {
		t.Fatal(err)
	}
}

const nodeScript = `function hot(n) { let h = 0; for (let i = 0; i < n; i++) h = (h * 31 + i) | 0; return h; }
function down(d) { return d ? down(d - 1) + hot(3000) : hot(1000); }
let t = 0;
for (let i = 0; i < 4000; i++) t += [1, 2, 3].map(x => down(5 + x))[0];
`

// TestNode: V8 writes records for few functions, and has frame pointers in all: with its records, no fewer stacks are whole than by the frame pointers,
// and the records are used.
func TestNode(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "perf", "node")
	if arch.Host() != arch.AMD64 {
		oracle.Lacks(t, "an x86-64 processor")
	}
	dir := t.TempDir()
	data, script := filepath.Join(dir, "perf.data"), filepath.Join(dir, "script.js")
	if err := os.WriteFile(script, []byte(nodeScript), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("perf", "record", "-q", "-e", "cpu-clock", "-F", "1000", "-k", "mono", "--call-graph", "dwarf,32768", "-o", data, "--", "node", "--perf-prof", script)
	cmd.Dir = dir // node leaves the dump there
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	set := modules.Interpreted()
	defer set.Close()
	count := func(made source.Maker) (through, whole, byRecords int) {
		run(t, data, set, made, func(s *source.Sample) {
			passes := false
			for i, x := range s.User {
				if x.Mapping != nil && x.Mapping.Module.PID != 0 {
					passes = true
					if i+1 < len(s.User) && s.User[i+1].How == unwind.HowCFI {
						byRecords++
					}
				}
			}
			if passes {
				if through++; s.Stop == unwind.Outermost {
					whole++
				}
			}
		})
		return through, whole, byRecords
	}
	through, before, none := count(nil)
	_, after, used := count(set.Made(arch.AMD64))
	t.Logf("%d stacks through code that V8 made: %d whole by frame pointers, %d with its records, which led out of %d frames", through, before, after, used)
	if through < 50 || after < before || after*100 < through*95 || none != 0 || used == 0 {
		t.Errorf("of %d stacks through code that V8 made, %d are whole by frame pointers and %d with its records; %d frames are by records, and %d without a dump", through, before, after, used, none)
	}
}

// TestLiveCPython: the stack of a process that runs is whole, too, although its dump lacks the functions made last: Python writes it in blocks.
func TestLiveCPython(t *testing.T) {
	if arch.Host() != arch.AMD64 {
		oracle.Lacks(t, "an x86-64 processor")
	}
	script := filepath.Join(t.TempDir(), "script.py")
	if err := os.WriteFile(script, []byte(`import time
def leaf(s):
    if s: print("ready", flush=True)
    time.sleep(s)
def down(n, s): return down(n - 1, s) if n else leaf(s)
down(1, 0)
down(20, 600)
`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append(python(t), script)
	cmd := exec.Command(args[0], args[1:]...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer os.Remove("/tmp/jit-" + strconv.Itoa(cmd.Process.Pid) + ".dump")
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	set := modules.Interpreted()
	defer set.Close()
	p, _, err := live.Open(cmd.Process.Pid, live.Options{Mods: set.Module, Made: set.Made(arch.AMD64)})
	if err != nil {
		t.Fatal(err)
	}
	frames, stop := unwind.NewWalker(0).Walk(&p.Threads[0].Snapshot, nil)
	made := 0
	for i, x := range frames {
		if i > 0 && x.How != unwind.HowCFI && x.How != unwind.HowPLT {
			t.Errorf("frame %d is found by %s", i, x.How)
		}
		if x.Mapping != nil && x.Mapping.Module.PID != 0 {
			made++
		}
	}
	if stop != unwind.Outermost || made != 23 { // the file, 21 of down, and leaf
		t.Errorf("the stack ends as %s, and has %d frames of made code; want 23", stop, made)
	}
}

// TestUnreadDump: what is wrong with a dump that stacks lead to is said.
func TestUnreadDump(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "jit-1.dump")
	if err := os.WriteFile(dump, bytes.Repeat([]byte("no dump "), 10), 0o600); err != nil {
		t.Fatal(err)
	}
	set := modules.Interpreted()
	defer set.Close()
	made := set.Made(arch.AMD64)
	pid := int32(os.Getpid())
	made.Mapped(pid, dump)
	if _, ok := made.Module(pid, "//anon").Code().Made(0x1000, 1); ok || len(set.Errors()) != 1 || !strings.Contains(set.Errors()[0].Error(), dump+": ") {
		t.Errorf("%v, %v", ok, set.Errors())
	}
}
