package test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// ehLibrary builds the library in front of libgcc's unwinder and returns its path.
func ehLibrary(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "make", "gcc", "g++")
	if runtime.GOARCH != "amd64" {
		oracle.Lacks(t, "an x86-64 processor")
	}
	return filepath.Join(once(t, "exceptions", func(dir string) error {
		out, err := exec.Command("make", "-C", "..", "BUILD="+dir, "eh").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}), "libunspool_eh.so")
}

// libgcc returns the machine's libgcc_s.so.1.
func libgcc(t testing.TB) string {
	t.Helper()
	out, err := exec.Command("gcc", "-print-file-name=libgcc_s.so.1").Output()
	path := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(path) {
		oracle.Lacks(t, "libgcc_s.so.1")
	}
	return path
}

// libgccCopy returns a copy of it, which a program can load beside the one that it is linked with.
func libgccCopy(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(libgcc(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libgcc_copy.so")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// ehProgram compiles a C++ program of testdata.
func ehProgram(t testing.TB, source string, flags ...string) string {
	t.Helper()
	oracle.Need(t, "g++")
	prog := filepath.Join(t.TempDir(), strings.TrimSuffix(source, ".cc"))
	args := append([]string{"-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", prog, filepath.Join("testdata", source)}, flags...)
	if out, err := exec.Command("g++", append(args, "-ldl")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return prog
}

// ehRun runs a program under a preload, or under none, and returns what it prints and how it ends.
func ehRun(t testing.TB, preload string, env []string, prog string, args ...string) string {
	t.Helper()
	cmd := exec.Command("timeout", append([]string{"-s", "KILL", "300", prog}, args...)...)
	cmd.Env = append(os.Environ(), env...)
	if preload != "" {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+preload)
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return fmt.Sprintf("%s%v\n", &out, err)
}

// TestEhSame walks by libgcc and by the library on the same stacks: all contexts are equal.
func TestEhSame(t *testing.T) {
	lib, env := ehLibrary(t), []string{"EH_LIBGCC=" + libgccCopy(t)}
	for _, flags := range [][]string{{"-O2"}, {"-O0"}, {"-O2", "-fno-omit-frame-pointer", "-fcf-protection=none"}, {"-Os", "-mno-red-zone", "-no-pie"}} {
		out := ehRun(t, lib, env, ehProgram(t, "eh_same.cc", append(flags, "-Wl,-z,lazy")...))
		if !strings.HasPrefix(out, "libraries differ\n") || !strings.HasSuffix(out, "signal frames many, FDEs many, deepest deep\ndifferent 0\n<nil>\n") {
			t.Errorf("%v: %s", flags, out)
		}
		t.Logf("%v: %s", flags, out)
	}
}

// TestEhDamaged registers damaged call frame information: the library ends well where libgcc does.
func TestEhDamaged(t *testing.T) {
	prog := ehProgram(t, "eh_same.cc", "-O2")
	out := ehRun(t, ehLibrary(t), []string{"EH_LIBGCC=" + libgccCopy(t)}, prog, fmt.Sprint(oracle.Few(2000, 200_000)))
	if out != "libgcc ends well: often, the library does not: 0\n<nil>\n" {
		t.Error(out)
	}
}

// exports returns the symbols that a library exports, with their versions: those of an unwinder, and the others.
func exports(t testing.TB, path string) (unwinder, others []string) {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		switch name := s.Name + "@" + s.Version; {
		case s.Section == elf.SHN_UNDEF || s.Section >= elf.SHN_LORESERVE:
		case strings.HasPrefix(s.Name, "_Unwind_") || strings.Contains(s.Name, "register_frame"):
			unwinder = append(unwinder, name)
		default:
			others = append(others, name)
		}
	}
	slices.Sort(unwinder)
	return unwinder, others
}

// TestEhExports: the library has what libgcc has of its unwinder, with its versions, and backtrace.
func TestEhExports(t *testing.T) {
	ours, others := exports(t, ehLibrary(t))
	theirs, _ := exports(t, libgcc(t))
	if len(theirs) < 20 || !slices.Equal(ours, theirs) {
		t.Errorf("the library has %v, libgcc %v", ours, theirs)
	}
	if !slices.Equal(others, []string{"backtrace@GLIBC_2.2.5"}) {
		t.Errorf("it also has %v", others)
	}
}

// ehSame runs a program with libgcc and with the library; both say the same, and end in the same way.
func ehSame(t *testing.T, env []string, prog string, args ...string) string {
	t.Helper()
	stock := ehRun(t, "", env, prog, args...)
	ours := ehRun(t, ehLibrary(t), env, prog, args...)
	if stock != ours {
		t.Errorf("%s %v: with libgcc:\n%s\nwith the library:\n%s", filepath.Base(prog), args, stock, ours)
	}
	return stock
}

// TestEhShapes throws and catches in all ways that the program knows: through C, signals, threads, modules that come and go, and to the end.
func TestEhShapes(t *testing.T) {
	ehLibrary(t)
	var env []string
	for i, name := range []string{"EH_PLUGIN", "EH_PLUGIN_2"} {
		plugin := ehProgram(t, "eh_plugin.cc", "-O2", "-fPIC", "-shared", fmt.Sprintf("-Wl,--build-id=%s", []string{"sha1", "none"}[i]))
		env = append(env, name+"="+plugin)
	}
	for _, flags := range [][]string{{"-O2"}, {"-O0"}, {"-O2", "-static-libgcc"}, {"-O2", "-static-libgcc", "-static-libstdc++"},
		{"-Os", "-fno-asynchronous-unwind-tables", "-mno-red-zone"}, {"-O1", "-mno-accumulate-outgoing-args", "-fomit-frame-pointer"}} {
		prog := ehProgram(t, "eh_shapes.cc", append(flags, "-fnon-call-exceptions", "-Wno-infinite-recursion", "-Wno-maybe-uninitialized")...)
		if out := ehSame(t, env, prog); strings.Count(out, "\n") < 200 || !strings.HasSuffix(out, "\narguments 4500\n<nil>\n") {
			t.Errorf("%v: %s", flags, out)
		}
		for _, end := range []string{"noexcept", "uncaught", "twice", "abort"} {
			ehSame(t, env, prog, end)
		}
	}
}

// TestEhClang: the same with Clang, and with libc++ and its ABI library.
func TestEhClang(t *testing.T) {
	oracle.Long(t)
	ehLibrary(t)
	oracle.Need(t, "clang++-19")
	// Its development package cannot be installed beside libunwind's.
	root := oracle.Debian(t, "bookworm", "amd64", "libcxx", "libc++-19-dev", "libc++abi-19-dev", "libc++1-19", "libc++abi1-19", "libunwind-19")
	libs := filepath.Join(root, "usr/lib/llvm-19/lib")
	plugin := "EH_PLUGIN=" + ehProgram(t, "eh_plugin.cc", "-O2", "-fPIC", "-shared")
	env := []string{plugin, strings.Replace(plugin, "=", "_2=", 1)}
	for _, flags := range [][]string{{"-O2"}, {"-O2", "-nostdinc++", "-nostdlib++", "-isystem", filepath.Join(root, "usr/lib/llvm-19/include/c++/v1"),
		"-L" + libs, "-Wl,-rpath," + libs, "-l:libc++.so.1", "-l:libc++abi.so.1"}} {
		for _, source := range []string{"eh_shapes.cc", "eh_tree.cc"} {
			prog := filepath.Join(t.TempDir(), "prog")
			args := append([]string{"-w", "-fnon-call-exceptions", "-pthread", "-o", prog, filepath.Join("testdata", source)}, flags...)
			if out, err := exec.Command("clang++-19", append(args, "-ldl")...).CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			switch {
			case source == "eh_shapes.cc":
				for _, way := range []string{"plain", "rethrow", "nested", "foreign", "dependent", "through_c", "constructors", "function_try", "coroutines",
					"forks", "threads", "cancellation", "forced", "arguments", "noexcept", "uncaught", "twice", "abort"} {
					ehSame(t, env, prog, way)
				}
			case len(flags) == 1:
				ehSame(t, env, prog, "7", "10000")
			}
		}
	}
}

// addresses are what a run prints that differs from one to the next.
var addresses = regexp.MustCompile(`0x[0-9a-f]+`)

// TestEhLanguages: Ada's exceptions and tasks, and Fortran's backtraces.
func TestEhLanguages(t *testing.T) {
	oracle.Full(t)
	lib, dir := ehLibrary(t), t.TempDir()
	oracle.Need(t, "gnatmake", "gfortran")
	for _, name := range []string{"eh_ada.adb", "eh_fortran.f90"} {
		data, err := os.ReadFile(filepath.Join("testdata", name))
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"gnatmake", "-q", "-O2", "eh_ada.adb", "-bargs", "-shared"}, {"gfortran", "-g", "-o", "eh_fortran", "eh_fortran.f90"}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		prog := filepath.Join(dir, strings.TrimSuffix(args[len(args)-1], ".f90"))
		if args[0] == "gnatmake" {
			prog = filepath.Join(dir, "eh_ada")
		}
		stock := addresses.ReplaceAllString(ehRun(t, "", nil, prog), "ADDRESS")
		ours := addresses.ReplaceAllString(ehRun(t, lib, nil, prog), "ADDRESS")
		if stock != ours || !strings.Contains(stock, "deep") && !strings.Contains(stock, "in a task raised") {
			t.Errorf("with libgcc:\n%s\nwith the library:\n%s", stock, ours)
		}
	}
}

// TestEhTrees: in trees of calls that a generator makes, exceptions take the same ways; and personality routines see libgcc's contexts.
func TestEhTrees(t *testing.T) {
	for i, flags := range [][]string{{"-O2"}, {"-O0"}, {"-Os", "-fno-omit-frame-pointer"}} {
		prog := ehProgram(t, "eh_tree.cc", flags...)
		seed := fmt.Sprint(i*100_000_000 + 1)
		if out := ehSame(t, nil, prog, seed, fmt.Sprint(oracle.Few(10_000, 1_000_000)), "2"); !strings.Contains(out, "escaped") {
			t.Error(out)
		}
		out := ehRun(t, ehLibrary(t), []string{"EH_LIBGCC=" + libgccCopy(t)}, prog, seed, fmt.Sprint(oracle.Few(2_000, 50_000)))
		if !strings.HasSuffix(out, "contexts many different 0\n<nil>\n") {
			t.Errorf("%v: %s", flags, out)
		}
	}
}

// TestEhRust: panics and backtraces of Rust.
func TestEhRust(t *testing.T) {
	ehLibrary(t)
	oracle.Need(t, "rustc")
	prog := filepath.Join(t.TempDir(), "panics")
	if out, err := exec.Command("rustc", "-O", "-o", prog, "testdata/eh_panic.rs").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out := ehSame(t, nil, prog); !strings.Contains(out, "deep: 4, main:") || !strings.HasSuffix(out, "ended 15\n<nil>\n") {
		t.Error(out)
	}
	if out := ehSame(t, nil, prog, "twice"); strings.HasSuffix(out, "<nil>\n") {
		t.Error(out)
	}
}

// TestEhFigures measures, in turns with libgcc: medians of runs, of which each of the first four takes its best of nine.
func TestEhFigures(t *testing.T) {
	oracle.Full(t)
	lib, prog := ehLibrary(t), ehProgram(t, "eh_bench.cc", "-O2", "-fno-optimize-sibling-calls")
	measure := func(args ...string) (stock, ours float64) {
		var times [2][]float64
		for range 21 {
			for i, preload := range []string{"", lib} {
				var ns float64
				if _, err := fmt.Sscan(ehRun(t, preload, nil, prog, args...), &ns); err != nil {
					t.Fatal(err)
				}
				times[i] = append(times[i], ns)
			}
		}
		for i := range times {
			slices.Sort(times[i])
		}
		return times[0][10], times[1][10]
	}
	for _, c := range []struct {
		what string
		max  float64 // nanoseconds a frame
	}{{"throw", 60}, {"cleanup", 150}, {"unwind", 20}, {"backtrace", 10}} {
		stock, ours := measure(c.what, "100", "300")
		t.Logf("%s: %.1f ns a frame, libgcc %.1f", c.what, ours, stock)
		if ours > c.max {
			t.Errorf("%s: %.1f ns a frame, not %g", c.what, ours, c.max)
		}
	}
	for _, depth := range []string{"1", "50"} {
		stock, ours := measure("first", depth)
		t.Logf("the first throw through %s frames: %.1f µs, libgcc %.1f", depth, ours/1000, stock/1000)
		if ours > stock {
			t.Errorf("the first throw through %s frames: %.1f µs, libgcc %.1f", depth, ours/1000, stock/1000)
		}
	}
	stockOne, oursOne := measure("threads", "20", "20000", "1")
	stockTwo, oursTwo := measure("threads", "20", "20000", "2")
	t.Logf("two threads throw %.2f times as much as one, libgcc %.2f", 2*oursOne/oursTwo, 2*stockOne/stockTwo)
}
