package test

import (
	"bufio"
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// installed installs the runtime below a directory, as packagers do, and returns that directory. PREFIX is /usr.
func installed(t testing.TB) string {
	t.Helper()
	build := dropIn(t, "gcc")
	return once(t, "installation", func(dir string) error {
		out, err := exec.Command("make", "-C", "..", "install", "BUILD="+build, "DESTDIR="+dir, "PREFIX=/usr").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
}

// client compiles a program against the installed library, as its pkg-config file says.
func client(t testing.TB, dir, source string, flags ...string) string {
	t.Helper()
	return clientAt(t, dir, "", source, flags...)
}

// clientAt is client for a program that finds the library at rpath when it runs, if that is not where it is now.
func clientAt(t testing.TB, dir, rpath, source string, flags ...string) string {
	t.Helper()
	oracle.Need(t, "pkg-config", "gcc")
	ask := []string{"--cflags", "--libs", "unspool"}
	if rpath != "" {
		ask = append(ask, "--define-variable=rpath="+rpath)
	}
	cmd := exec.Command("pkg-config", ask...)
	cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(dir, "usr/share/pkgconfig"))
	config, err := cmd.Output()
	if err != nil {
		t.Fatalf("pkg-config: %v", err)
	}
	prog := filepath.Join(t.TempDir(), "client")
	args := append([]string{"-O1", "-g", "-Wall", "-Wextra", "-Werror", "-o", prog, source}, append(strings.Fields(string(config)), flags...)...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return prog
}

// started is a command with the installed library, for at most 20 seconds.
func started(dir, prog string, args ...string) *exec.Cmd {
	cmd := exec.Command("timeout", append([]string{"-s", "KILL", "300", prog}, args...)...)
	cmd.Env = append(stockEnv(), "LD_LIBRARY_PATH="+filepath.Join(dir, "usr/lib"))
	cmd.WaitDelay = 10 * time.Second // children may hold its output
	return cmd
}

// The program is not relocated, so that a function's address is that of its stub in the linkage table.
var nativeFlags = []string{"-fno-pie", "-no-pie", "-fcf-protection=none", "-Wl,-z,lazy", "-lunwind"}

// TestNative: stacks of the own process are those of libgcc and libunwind; how each frame was found, why stacks end, and
// errors are as the header says.
func TestNative(t *testing.T) {
	needStock(t)
	dir := installed(t)
	for _, flag := range []string{"-DPLT_CFI", "-Wl,--no-ld-generated-unwind-info"} {
		prog := client(t, dir, "testdata/native.c", append(nativeFlags, flag)...)
		for _, what := range []string{"here", "context", "name", "thread"} {
			if out, err := started(dir, prog, what).CombinedOutput(); err != nil {
				t.Errorf("%s, %s: %v\n%s", flag, what, err, out)
			}
		}
	}
}

// What examples/other prints.
var nativeFrame = regexp.MustCompile(`^#\d+ +0x([0-9a-f]+|0) sp 0x([0-9a-f]+) how (\d)$`)

// TestNativeThread: stacks of another process's threads are those of elfutils, with how each frame was found.
func TestNativeThread(t *testing.T) {
	oracle.Need(t, "eu-stack")
	needStock(t)
	dir := installed(t)
	target := started(dir, client(t, dir, "testdata/native.c", nativeFlags...), "target")
	pipe, err := target.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer target.Wait()
	defer target.Process.Kill()
	tids := map[string]string{}
	for s := bufio.NewScanner(pipe); len(tids) < 5 && s.Scan(); {
		what, tid, _ := strings.Cut(s.Text(), " ")
		tids[what] = tid
	}
	if len(tids) < 5 {
		t.Fatalf("the target says only %v", tids)
	}
	defer exec.Command("kill", "-KILL", tids["signal"]).Run() // its first thread; timeout does not pass it on
	peers := euStacks(t, tids["signal"])
	other := client(t, dir, "../examples/other.c")
	// In how, f is any number of frames by call frame information; see enum unspool_how.
	for what, want := range map[string]struct{ how, end string }{
		"sorted":  {`^01*$`, "0"},
		"pointer": {`^0114111*$`, "0"},
		"nothing": {`^011$`, "2"},
		"call":    {`^01125111*$`, "0"},
		"signal":  {`^0112111*$`, "0"},
	} {
		out, err := started(dir, other, tids[what]).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", what, err, out)
		}
		var pcs []uint64
		how, end := "", ""
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(strings.Replace(line, " 0 sp", " 0x0 sp", 1))
			if m := nativeFrame.FindStringSubmatch(line); m != nil {
				pc, _ := strconv.ParseUint(m[1], 16, 64)
				pcs, how = append(pcs, pc), how+m[3]
			} else {
				end = strings.TrimPrefix(line, "ended: ")
			}
		}
		if !regexp.MustCompile(want.how).MatchString(how) || end != want.end {
			t.Errorf("%s: found by %s, ended %s; want %s, %s\n%s", what, how, end, want.how, want.end, out)
		}
		peer := peers[tids[what]]
		if what == "call" {
			// elfutils ends at the address that has no code.
			if len(peer) < 3 || len(pcs) < len(peer) {
				t.Errorf("%s: got %#x, elfutils %#x", what, pcs, peer)
			}
			pcs = pcs[:min(len(pcs), len(peer))]
		}
		if !slices.Equal(pcs, peer) {
			t.Errorf("%s:\n got  %#x\n want %#x", what, pcs, peer)
		}
	}
}

// euStacks returns the program counters of each thread's frames, as elfutils finds them.
func euStacks(t *testing.T, pid string) map[string][]uint64 {
	t.Helper()
	out, err := exec.Command("timeout", "20", "eu-stack", "-n", "0", "-p", pid).Output()
	if len(out) == 0 {
		t.Fatalf("eu-stack: %v", err) // it says so too where a stack has no end
	}
	stacks, tid := map[string][]uint64{}, ""
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		if len(f) == 2 && f[0] == "TID" {
			tid = strings.TrimSuffix(f[1], ":")
		} else if len(f) >= 2 && f[0][0] == '#' {
			pc, err := strconv.ParseUint(f[1], 0, 64)
			if err != nil {
				t.Fatalf("eu-stack: %q: %v", line, err)
			}
			stacks[tid] = append(stacks[tid], pc)
		}
	}
	return stacks
}

// TestNativeExamples: the examples build and do what they say.
func TestNativeExamples(t *testing.T) {
	dir := installed(t)
	for name, want := range map[string]string{
		"here":  `(?m)^#0 +0x[0-9a-f]+ main\+0x[0-9a-f]+\n(#.*\n)*#\d+ +0x[0-9a-f]+ _start\+0x[0-9a-f]+\n$`,
		"crash": `^signal 11\n#0  0 sp 0x[0-9a-f]+ how 0\n#1  0x[0-9a-f]+ sp 0x[0-9a-f]+ how 5\n(#.* how 1\n)+ended: 0\n$`,
	} {
		out, err := started(dir, client(t, dir, "../examples/"+name+".c")).CombinedOutput()
		if err != nil || !regexp.MustCompile(want).Match(out) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	// A process that is not there.
	out, err := started(dir, client(t, dir, "../examples/other.c"), strconv.Itoa(1<<30)).CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("No such process")) {
		t.Errorf("other: %v\n%s", err, out)
	}
}

// TestNativePrivate: a package has the library in a directory of its own, wherever it is unpacked. unspool.pc leads a program there, when it is
// compiled and when it runs, or when it runs elsewhere. It does not lead to the drop-ins: a program that uses libunwind, too, gets the system's.
func TestNativePrivate(t *testing.T) {
	build, dir := dropIn(t, "gcc"), t.TempDir()
	out, err := exec.Command("make", "-C", "..", "install", "BUILD="+build, "DESTDIR="+dir, "PREFIX=/usr", "NATIVE=/unspool/native").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Rename(filepath.Join(dir, "usr"), filepath.Join(dir, "opt")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("opt", filepath.Join(dir, "usr")); err != nil {
		t.Fatal(err)
	}
	here := client(t, dir, "../examples/here.c")
	cmd := exec.Command(here)
	cmd.Env = stockEnv()
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte(" main+0x")) {
		t.Errorf("%v\n%s", err, out)
	}
	if path := runpath(t, here); !strings.HasSuffix(path, "/lib/unspool/native") {
		t.Errorf("the program looks for libraries in %q", path)
	} else if list, err := filepath.Glob(path + "/*"); err != nil || len(list) != 1 || filepath.Base(list[0]) != "libunspool.so" {
		t.Errorf("the program's own libraries: %q, %v", list, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "opt/lib/unspool/libunwind.so.8")); err != nil {
		t.Error(err)
	}
	const target = "/usr/lib/unspool/native"
	if path := runpath(t, clientAt(t, dir, target, "../examples/here.c")); path != target {
		t.Errorf("for %s: the program looks for libraries in %q", target, path)
	}
}

// runpath returns where a program looks for libraries.
func runpath(t *testing.T, prog string) string {
	t.Helper()
	f, err := elf.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	new, err := f.DynString(elf.DT_RUNPATH)
	old, err2 := f.DynString(elf.DT_RPATH)
	if err != nil || err2 != nil {
		t.Fatalf("%s: RUNPATH: %v, RPATH: %v", prog, err, err2)
	}
	return strings.Join(append(old, new...), ":")
}

// TestNativeInstalled: what is installed says where it is, exports its own names only, and has a manual that formats.
func TestNativeInstalled(t *testing.T) {
	dir := installed(t)
	config, err := os.ReadFile(filepath.Join(dir, "usr/share/pkgconfig/unspool.pc"))
	if err != nil || bytes.Contains(config, []byte(dir)) || bytes.Contains(config, []byte("@")) {
		t.Errorf("unspool.pc: %v\n%s", err, config)
	}
	var names []string
	for _, s := range exported(t, filepath.Join(dir, "usr/lib/libunspool.so")) {
		names = append(names, strings.TrimSuffix(s, " "+elf.STT_FUNC.String()))
	}
	want := []string{"unspool_backtrace", "unspool_backtrace_context", "unspool_backtrace_thread", "unspool_name"}
	if !slices.Equal(names, want) {
		t.Errorf("exported: %q, want %q", names, want)
	}
	oracle.Need(t, "groff")
	out, err := exec.Command("groff", "-ww", "-man", "-Tutf8", "-z", filepath.Join(dir, "usr/share/man/man3/libunspool.3")).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%s", err, out)
	}
}
