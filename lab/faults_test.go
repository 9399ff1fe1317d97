package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/unwind"
)

// gdbScript runs a program until it stops, prints the program counters of the stack of the thread that has stopped, and leaves a
// core file. Inlined calls are no frames, and neither are calls that have become jumps.
const gdbScript = `
set pagination off
set confirm off
set debuginfod enabled off
set disable-randomization off
set breakpoint pending on
handle all nostop noprint pass
%s
run
python
f = gdb.newest_frame()
print("thread", gdb.selected_thread().ptid[1])
while f:
    if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
        print("frame %%#x %%s" %% (f.pc(), f.name()))
    f = f.older()
end
generate-core-file %s
kill
`

// A faulted is a program that has stopped, by gdb.
type faulted struct {
	tid   int
	pcs   []uint64
	names []string
	core  string
}

func runGDB(t *testing.T, stop string, cmd ...string) (f faulted) {
	t.Helper()
	oracle.Need(t, "gdb")
	dir := t.TempDir()
	f.core = filepath.Join(dir, "core")
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, fmt.Appendf(nil, gdbScript, stop, f.core), 0o644); err != nil {
		t.Fatal(err)
	}
	c := exec.Command("gdb", append([]string{"-nx", "-batch", "-x", script, "--args"}, cmd...)...)
	c.Env = append(os.Environ(), "LC_ALL=C")
	out, err := c.CombinedOutput()
	if err != nil {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	for l := range strings.Lines(string(out)) {
		var pc uint64
		var name string
		if n, _ := fmt.Sscanf(l, "thread %d", &f.tid); n == 1 {
			continue
		}
		if n, _ := fmt.Sscanf(l, "frame %v %s", &pc, &name); n == 2 {
			f.pcs, f.names = append(f.pcs, pc), append(f.names, name)
		}
	}
	if _, err := os.Stat(f.core); err != nil || f.tid == 0 {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	return f
}

// walkCore walks the stack of a thread in a core file.
func walkCore(t *testing.T, path string, tid int) ([]unwind.Frame, unwind.Stop) {
	t.Helper()
	mods := modules.New()
	f, err := corefile.Open(path, corefile.Options{Mods: mods.Module, Image: mods.Image})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for i := range f.Threads {
		if th := &f.Threads[i]; th.TID == tid && th.Err == nil {
			return unwind.NewWalker(0).Walk(&th.Snapshot, nil)
		}
	}
	t.Fatalf("%s: there is no thread %d", path, tid)
	return nil, 0
}

// TestFaults holds stacks through signal handlers and calls of null against gdb, which ends at main. Of Debian's musl, which is
// stripped, gdb does not know the function that handlers return to: a static program has its name.
func TestFaults(t *testing.T) {
	const handler, null = "break stop_here", "handle SIGSEGV stop print"
	compile := func(cc string, flags ...string) func(*testing.T, string) []string {
		return func(t *testing.T, how string) []string {
			oracle.Need(t, cc)
			return []string{compiled(t, cc, "faults.c", flags...), how}
		}
	}
	goProgram := func(flags ...string) func(*testing.T, string) []string {
		return func(t *testing.T, _ string) []string {
			return []string{goBuildFile(t, "workload/testdata/faults.go", flags...)}
		}
	}
	for _, c := range []struct {
		name string
		cmd  func(*testing.T, string) []string
		how  string
		stop string
		want []unwind.How // of frames whose place in the stack is not given
		last string       // the last function that gdb shows
	}{
		{"glibc", compile("gcc"), "handler", handler, []unwind.How{unwind.HowSignal}, "main"},
		{"own restorer", compile("gcc", "-DRESTORER"), "handler", handler, []unwind.How{unwind.HowSigReturn}, "main"},
		{"own restorer", compile("gcc", "-DRESTORER"), "altstack", handler, []unwind.How{unwind.HowSigReturn}, "main"},
		{"own restorer", compile("gcc", "-DRESTORER"), "nullhandler", handler, []unwind.How{unwind.HowSigReturn, unwind.HowCall}, "main"},
		{"musl, static", compile("musl-gcc", "-static"), "handler", handler, []unwind.How{unwind.HowSigReturn}, "main"},
		{"musl, static", compile("musl-gcc", "-static"), "altstack", handler, []unwind.How{unwind.HowSigReturn}, "main"},
		{"musl, static", compile("musl-gcc", "-static"), "nullhandler", handler, []unwind.How{unwind.HowSigReturn, unwind.HowCall}, "main"},
		{"musl", compile("musl-gcc"), "null", null, []unwind.How{unwind.HowCall}, "main"},
		{"glibc", compile("gcc"), "null", null, []unwind.How{unwind.HowCall}, "main"},
		{"glibc", compile("gcc"), "wild", null, []unwind.How{unwind.HowCall}, "main"},
		{"glibc", compile("gcc"), "nullhandler", handler, []unwind.How{unwind.HowSignal, unwind.HowCall}, "main"},
		{"go", goProgram(), "", "break runtime.sighandler if $rax == 11", []unwind.How{unwind.HowSigReturn}, "main.main"},
	} {
		t.Run(c.name+" "+c.how, func(t *testing.T) {
			f := runGDB(t, c.stop, c.cmd(t, c.how)...)
			frames, stop := walkCore(t, f.core, f.tid)
			var pcs []uint64
			var hows []unwind.How
			for _, fr := range frames {
				pcs, hows = append(pcs, uint64(fr.PC)), append(hows, fr.How)
			}
			if len(f.pcs) < 4 || f.names[len(f.names)-1] != c.last {
				t.Errorf("gdb's stack does not end at %s: %v", c.last, f.names)
			}
			if len(pcs) < len(f.pcs) || !slices.Equal(pcs[:len(f.pcs)], f.pcs) {
				t.Errorf("got %#x %v, %v\ngdb %#x\n%v", pcs, hows, stop, f.pcs, f.names)
			}
			for _, how := range c.want {
				if !slices.Contains(hows, how) {
					t.Errorf("no frame is by %v: %v", how, hows)
				}
			}
		})
	}
}
