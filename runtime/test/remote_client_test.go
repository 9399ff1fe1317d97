package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// clientLibs returns three directories whose names are of one length, because where a stack starts depends on the
// environment: with Debian's libraries, with ours, and with our libunwind-x86_64.so.8 beside Debian's libunwind.so.8.
func clientLibs(t testing.TB) (stock, ours, mixed string) {
	t.Helper()
	needStock(t)
	built, dir := dropIn(t, "gcc"), t.TempDir()
	for i, from := range [][2]string{{filepath.Dir(stockLocal), filepath.Dir(stockLocal)}, {built, built}, {built, filepath.Dir(stockLocal)}} {
		to := filepath.Join(dir, strconv.Itoa(i))
		if err := os.Mkdir(to, 0o755); err != nil {
			t.Fatal(err)
		}
		for k, name := range []string{"libunwind-x86_64.so.8", "libunwind.so.8"} {
			if err := os.Symlink(filepath.Join(from[k], name), filepath.Join(to, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return filepath.Join(dir, "0"), filepath.Join(dir, "1"), filepath.Join(dir, "2")
}

// compileC compiles a program of testdata.
func compileC(t testing.TB, source string, flags ...string) string {
	t.Helper()
	return compiledAs(t, "prog", "gcc", append([]string{"-O2", "-g", "-Wall", "-Wextra", filepath.Join("testdata", source)}, flags...)...)
}

func remoteClient(t testing.TB) string {
	t.Helper()
	if _, err := os.Stat("/usr/include/x86_64-linux-gnu/libunwind-ptrace.h"); err != nil {
		oracle.Lacks(t, "libunwind-dev")
	}
	return compileC(t, "remote_client.c", "-lunwind-ptrace", "-lunwind-coredump", "-lunwind-x86_64", "-lunwind")
}

// runClient returns what remote_client prints with the libraries of dir.
func runClient(t testing.TB, dir, env, prog string, args ...string) []string {
	t.Helper()
	cmd := exec.Command("timeout", append([]string{"-s", "KILL", "300", "setarch", "-R", prog}, args...)...)
	cmd.Env = append(slices.DeleteFunc(stockEnv(), func(s string) bool { return strings.HasPrefix(s, "CACHED=") }),
		"LD_LIBRARY_PATH="+dir, "UNSPOOL_CACHE=/nonexistent", env)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if cmd.ProcessState != nil && cmd.ProcessState.ExitCode() == 3 {
		oracle.Lacks(t, "the permission to trace: "+errs.String())
	}
	if err != nil {
		t.Fatalf("%s %v with %s, %s: %v\n%s%s", prog, args, dir, env, err, out, errs.Bytes())
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// firstDifference compares line by line. Where lost, a register that a call does not preserve may be lost in got.
func firstDifference(got, want []string, lost bool) string {
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g == w || (lost && sameButLost(g, w)) {
			continue
		}
		return fmt.Sprintf("line %d:\n got %s\nwant %s", i+1, g, w)
	}
	return ""
}

func sameButLost(got, want string) bool {
	g, w := strings.Fields(got), strings.Fields(want)
	if len(g) != len(w) || len(g) == 0 || g[0] != "V" || w[0] != "V" {
		return false
	}
	for i := range g {
		if g[i] != w[i] && !strings.HasSuffix(g[i], "=!-3") { // -UNW_EBADREG
			return false
		}
	}
	return true
}

// TestOwnProcess: by libunwind-x86_64.so.8 the own process is walked as with Debian's: all of the interface, from a
// function that a library calls, from a signal handler and from what it interrupted, by states of registers, and resumed.
// What cannot be read or written is an error.
func TestOwnProcess(t *testing.T) {
	oracle.Need(t, "setarch")
	stock, ours, mixed := clientLibs(t)
	prog := remoteClient(t)
	want := runClient(t, stock, "UNSPOOL_STRICT=0", prog, "own")
	if n := len(want); n < 100 || want[n-1] != "returned 77, 0" {
		t.Fatalf("Debian's library prints\n%s", strings.Join(want, "\n"))
	}
	for _, lib := range []string{ours, mixed} {
		for _, env := range []string{"UNSPOOL_STRICT=0", "UNSPOOL_STRICT=1"} {
			if diff := firstDifference(runClient(t, lib, env, prog, "own"), want, false); diff != "" {
				t.Errorf("%s, %s: %s", lib, env, diff)
			}
		}
	}
	got := runClient(t, ours, "EDGES=1", prog, "own")
	for _, line := range []string{"none -8", "constant -8"} {
		if !slices.Contains(got, line) {
			t.Errorf("no line %q in\n%s", line, strings.Join(got, "\n"))
		}
	}
}

// BenchmarkOwn times walks of the own process, of 55 frames, by turns with Debian's libraries and with ours.
func BenchmarkOwn(b *testing.B) {
	oracle.Need(b, "setarch")
	stock, ours, _ := clientLibs(b)
	prog := remoteClient(b)
	var cold, warm [2][]float64
	for range b.N {
		for i, lib := range []string{stock, ours} {
			var c, w float64
			if _, err := fmt.Sscan(runClient(b, lib, "UNSPOOL_STRICT=0", prog, "bench")[0], &c, &w); err != nil {
				b.Fatal(err)
			}
			cold[i], warm[i] = append(cold[i], c), append(warm[i], w)
		}
	}
	for i, name := range []string{"stock", "own"} {
		slices.Sort(cold[i])
		slices.Sort(warm[i])
		b.ReportMetric(cold[i][len(cold[i])/2], name+"-cold-µs")
		b.ReportMetric(warm[i][len(warm[i])/2], name+"-ns/frame")
	}
}

// A stopped is a target of its own, which stays where it is.
type stopped struct {
	prog string
	pid  int
}

// startTarget starts remote_target and waits until it is where it will stay.
func startTarget(t *testing.T, prog string, args ...string) stopped {
	t.Helper()
	cmd := exec.Command(prog, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatalf("%s: %v", prog, err)
	}
	// It has said so; now it goes to the instruction where it stays, which takes some microseconds of a processor, however long it waits for one.
	said := ranFor(t, cmd.Process.Pid)
	for end := time.Now().Add(time.Minute); ranFor(t, cmd.Process.Pid) < said+time.Millisecond && !asleep(cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not where it stays a minute after it was ready", prog)
		}
	}
	return stopped{prog, cmd.Process.Pid}
}

// ranFor is how long a process has had a processor.
func ranFor(t *testing.T, pid int) (d time.Duration) {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
	if err == nil {
		_, err = fmt.Sscan(string(b), (*int64)(&d))
	}
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// asleep says whether a process sleeps, as in pause(2).
func asleep(pid int) bool {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(b), ") ")
	return strings.HasPrefix(state, "S")
}

// gdbScript prints the frames that are on the stack: not those of functions that were inlined, or left by a tail call.
const gdbScript = `python
f = gdb.newest_frame()
while f:
    if f.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
        print("FRAME %x %s" % (f.pc(), f.name() or "?"))
    f = f.older()
end
`

// gdbFrames returns the addresses and names of gdb's frames.
func gdbFrames(t *testing.T, args ...string) (addrs, names []string) {
	t.Helper()
	oracle.Need(t, "gdb")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte(gdbScript), 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "set backtrace past-main on",
		"-ex", "set backtrace past-entry on", "-x", script}, args...)
	out, err := exec.Command("gdb", args...).Output()
	if err != nil {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "FRAME" {
			addrs = append(addrs, f[1])
			names = append(names, f[2])
		}
	}
	if len(addrs) == 0 {
		oracle.Lacks(t, "gdb with Python")
	}
	return addrs, names
}

// asGdb compares the frames of the first walk with gdb's; and the names of remote_target's functions.
func asGdb(t *testing.T, got, addrs, names []string, compareNames bool) {
	t.Helper()
	n := 0
	for _, line := range got {
		f := strings.Fields(line)
		if f[0] == "E" {
			break
		}
		if f[0] != "F" {
			continue
		}
		name, _, _ := strings.Cut(f[7], "+")
		switch {
		case n >= len(addrs) || addrs[n] != f[2]:
			t.Errorf("frame %d: %s, gdb has %v", n, line, addrs)
			return
		case compareNames && slices.Contains(targetFunctions, names[n]) && name != names[n]:
			t.Errorf("frame %d: %s, gdb has %s", n, line, names[n])
		}
		n++
	}
	if n != len(addrs) {
		t.Errorf("%d frames, gdb has %d", n, len(addrs))
	}
}

// targetFunctions are remote_target's: their names are known exactly.
var targetFunctions = []string{"stay", "handler", "leaf", "with_alloca", "many_registers", "compare", "sorted", "recurse", "main"}

// targetModes are the ways to stop remote_target; a second argument says that the handler has a stack of its own.
var targetModes = [][]string{{"deep"}, {"signal"}, {"signal", "altstack"}, {"syscall"}}

// TestPtraceClient: Debian's libunwind-ptrace says the same of a stopped process on the drop-in: frames, registers and
// where they are, procedures and names. In default mode, registers that a call does not preserve may be lost. gdb agrees.
func TestPtraceClient(t *testing.T) {
	oracle.Need(t, "setarch")
	stock, ours, mixed := clientLibs(t)
	prog, target := remoteClient(t), compileC(t, "remote_target.c")
	for _, mode := range targetModes {
		t.Run(strings.Join(mode, " "), func(t *testing.T) {
			p := startTarget(t, target, mode...)
			pid := strconv.Itoa(p.pid)
			want := runClient(t, stock, "UNSPOOL_STRICT=0", prog, "ptrace", pid)
			if len(want) < 300 {
				t.Fatalf("Debian's library prints %d lines", len(want))
			}
			addrs, names := gdbFrames(t, "-p", pid)
			asGdb(t, want, addrs, names, true)
			for _, lib := range []string{ours, mixed} {
				for _, env := range []string{"UNSPOOL_STRICT=1", "UNSPOOL_STRICT=0", "CACHED=1"} {
					got := runClient(t, lib, env, prog, "ptrace", pid)
					if diff := firstDifference(got, want, env != "UNSPOOL_STRICT=1"); diff != "" {
						t.Errorf("%s: %s", env, diff)
					}
				}
			}
		})
	}
}

// core makes a core dump of a process with all of its memory.
func core(t *testing.T, p stopped) string {
	t.Helper()
	oracle.Need(t, "gcore")
	pid := strconv.Itoa(p.pid)
	if err := os.WriteFile("/proc/"+pid+"/coredump_filter", []byte("0x7f"), 0); err != nil {
		oracle.Lacks(t, "coredump_filter")
	}
	path := filepath.Join(t.TempDir(), "core")
	if out, err := exec.Command("gcore", "-o", path, pid).CombinedOutput(); err != nil {
		oracle.Lacks(t, "the permission to trace: "+string(out))
	}
	return path + "." + pid
}

// TestCoreClient: Debian's libunwind-coredump on the drop-in. It takes the code of a file to be in its first segment. Of
// a program that is so, all answers are Debian's, and complete. Of others Debian's are wrong: in strict mode ours are the
// same, in default mode the frames are gdb's.
func TestCoreClient(t *testing.T) {
	oracle.Need(t, "setarch")
	stock, ours, _ := clientLibs(t)
	prog := remoteClient(t)
	for _, kind := range []struct {
		name  string
		flags []string
		wrong bool // with Debian's
	}{
		{"static", []string{"-static", "-Wl,-z,noseparate-code", "-Wl,--eh-frame-hdr"}, false},
		{"dynamic", nil, true},
	} {
		target := compileC(t, "remote_target.c", kind.flags...)
		for _, mode := range targetModes {
			t.Run(kind.name+" "+strings.Join(mode, " "), func(t *testing.T) {
				file := core(t, startTarget(t, target, mode...))
				addrs, names := gdbFrames(t, target, file)
				want := runClient(t, stock, "UNSPOOL_STRICT=0", prog, "core", file)
				if diff := firstDifference(runClient(t, ours, "UNSPOOL_STRICT=1", prog, "core", file), want, false); diff != "" {
					t.Errorf("strict: %s", diff)
				}
				got := runClient(t, ours, "UNSPOOL_STRICT=0", prog, "core", file)
				asGdb(t, got, addrs, names, !kind.wrong)
				if !kind.wrong {
					if diff := firstDifference(got, want, true); diff != "" {
						t.Error(diff)
					}
				} else if len(want) > 50 {
					t.Errorf("Debian's library walks it as well: %d lines", len(want))
				}
			})
		}
	}
}
