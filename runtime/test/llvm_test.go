package test

import (
	"bytes"
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

// llvmLibraries builds the drop-in for LLVM's libunwind and returns the directories of LLVM's own and of ours, and the root of LLVM's packages: their
// development package cannot be installed beside libunwind's.
func llvmLibraries(t testing.TB) (theirs, ours, root string) {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	if runtime.GOARCH != "amd64" {
		oracle.Lacks(t, "an x86-64 processor")
	}
	root = oracle.Debian(t, "bookworm", "amd64", "llvm-unwind", "libunwind-19-dev", "libunwind-19", "libc++-19-dev", "libc++abi-19-dev", "libc++1-19", "libc++abi1-19")
	ours = once(t, "llvm", func(dir string) error {
		out, err := exec.Command("make", "-C", "..", "BUILD="+dir, "llvm").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	})
	return filepath.Join(root, "usr/lib/llvm-19/lib"), ours, root
}

// TestLlvmExports: the library has the symbols of LLVM's, without versions, and its name.
func TestLlvmExports(t *testing.T) {
	theirs, ours, _ := llvmLibraries(t)
	list := func(dir string) string {
		unwinder, others := exports(t, filepath.Join(dir, "libunwind.so.1"))
		// Linkers of old versions exported these.
		others = slices.DeleteFunc(others, func(name string) bool { return slices.Contains([]string{"__bss_start@", "_edata@", "_end@"}, name) })
		slices.Sort(others)
		return strings.Join(slices.Concat(unwinder, others), "\n")
	}
	want := list(theirs)
	if got := list(ours); got != want || strings.Count(want, "\n") < 30 {
		t.Errorf("the library has\n%s\nLLVM's\n%s", got, want)
	}
	out := oracle.Run(t, "readelf", "-dW", filepath.Join(ours, "libunwind.so.1"))
	if !bytes.Contains(out, []byte("soname: [libunwind.so.1]")) || bytes.Contains(out, []byte("libgcc")) {
		t.Errorf("%s", out)
	}
}

// llvmSame compiles the program that walks by both libraries, with LLVM's header.
func llvmSame(t testing.TB, root string, flags ...string) string {
	t.Helper()
	prog := filepath.Join(t.TempDir(), "same")
	args := append([]string{"-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-I" + filepath.Join(root, "usr/lib/llvm-19/include"),
		"-o", prog, "testdata/llvm_same.c", "-ldl"}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return prog
}

// TestLlvmSame: LLVM's libunwind and the library say the same of each frame of the same stacks: results of steps, all registers, procedures, names,
// frames that a signal interrupted; and of code registered at run time, registers that are set, and frames gone on in.
func TestLlvmSame(t *testing.T) {
	theirs, ours, root := llvmLibraries(t)
	for _, flags := range [][]string{{"-O2"}, {"-O0"}, {"-Os", "-fno-omit-frame-pointer"}, {"-O3", "-fcf-protection=none", "-no-pie"}} {
		out := ehRun(t, "", nil, llvmSame(t, root, flags...), filepath.Join(theirs, "libunwind.so.1"), filepath.Join(ours, "libunwind.so.1"))
		if !strings.Contains(out, "compared many deepest deep signals many named many different 0\n") || !strings.HasSuffix(out, "<nil>\n") {
			t.Errorf("%v: %s", flags, out)
		}
		t.Logf("%v: %s", flags, out)
	}
}

// TestLlvmFigures measures a step and a program counter in turns, medians of 15 runs, of which each takes the best of nine.
func TestLlvmFigures(t *testing.T) {
	oracle.Full(t)
	theirs, ours, root := llvmLibraries(t)
	prog := llvmSame(t, root, "-O2", "-fno-optimize-sibling-calls")
	for _, depth := range []string{"20", "200"} {
		var times [2][]float64
		for range 15 {
			var x, y float64
			out := ehRun(t, "", nil, prog, filepath.Join(theirs, "libunwind.so.1"), filepath.Join(ours, "libunwind.so.1"), depth)
			if _, err := fmt.Sscan(out, &x, &y); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			times[0], times[1] = append(times[0], x), append(times[1], y)
		}
		for i := range times {
			slices.Sort(times[i])
		}
		t.Logf("%s frames: %.1f ns a frame, LLVM's %.1f", depth, times[1][7], times[0][7])
		if times[1][7]*5 > times[0][7] {
			t.Errorf("%s frames: %.1f ns a frame, LLVM's %.1f", depth, times[1][7], times[0][7])
		}
	}
}

// clangLlvm compiles with Clang, libc++ and LLVM's libunwind; the linker and the loader take the libraries from their directories.
func clangLlvm(t testing.TB, root, prog string, args ...string) {
	t.Helper()
	oracle.Need(t, "clang++-19")
	libs := filepath.Join(root, "usr/lib/llvm-19/lib")
	args = append([]string{"-w", "-nostdinc++", "-nostdlib++", "--unwindlib=none", "-isystem", filepath.Join(root, "usr/lib/llvm-19/include/c++/v1"),
		"-pthread", "-rdynamic", "-o", prog}, args...)
	args = append(args, "-L"+libs, "-Wl,--no-as-needed", "-l:libc++.so.1", "-l:libc++abi.so.1", "-l:libunwind.so.1", "-ldl")
	if out, err := exec.Command("clang++-19", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// llvmRun runs a program with the libraries of a directory before LLVM's.
func llvmRun(t testing.TB, theirs, dir, prog string, args ...string) string {
	t.Helper()
	env := []string{"LD_LIBRARY_PATH=" + dir + ":" + theirs}
	cmd := exec.Command(prog)
	cmd.Env = append(os.Environ(), append(env, "LD_TRACE_LOADED_OBJECTS=1")...)
	if list, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(list, []byte(" "+filepath.Join(dir, "libunwind.so.1")+" ")) {
		t.Fatalf("%s is not loaded: %v\n%s", filepath.Join(dir, "libunwind.so.1"), err, list)
	}
	return ehRun(t, "", env, prog, args...)
}

// TestLlvmTests runs LLVM's own tests of its libunwind: each ends with the library as it does with LLVM's.
func TestLlvmTests(t *testing.T) {
	oracle.Long(t)
	theirs, ours, root := llvmLibraries(t)
	dir := oracle.Source(t, "bookworm", "llvm-libunwind", "llvm-toolchain-19", "*/libunwind/test/*")
	passed := 0
	for _, source := range oracle.Files(t, dir, func(path string) bool { return regexp.MustCompile(`\.pass\.(sh\.)?(cpp|[sS])$`).MatchString(path) }) {
		name := filepath.Base(source)
		switch name {
		case "aix_signal_unwind.pass.sh.S", "unwind_scalable_vectors.pass.cpp": // of other machines
			continue
		case "frameheadercache_test.pass.cpp", "alignment.compile.pass.cpp": // of LLVM's own classes, and of its header
			continue
		}
		prog := filepath.Join(t.TempDir(), name)
		clangLlvm(t, root, prog, "-std=c++17", "-funwind-tables", "-isystem", filepath.Join(root, "usr/lib/llvm-19/include"), source)
		stock, with := llvmRun(t, theirs, theirs, prog), llvmRun(t, theirs, ours, prog)
		end := func(out string) string { return out[strings.LastIndexByte(strings.TrimSuffix(out, "\n"), '\n')+1:] }
		if end(with) != end(stock) {
			t.Errorf("%s: %s\nLLVM's: %s", name, with, stock)
		} else if end(with) == "<nil>\n" {
			passed++
		}
		t.Logf("%s: %q, LLVM's %q", name, end(with), end(stock))
	}
	if passed < 10 {
		t.Errorf("only %d tests pass", passed)
	}
}

// TestLlvmThrows: programs with libc++ and LLVM's libunwind throw and catch in the same ways: those of eh_shapes.cc, and random trees of calls.
func TestLlvmThrows(t *testing.T) {
	oracle.Long(t)
	theirs, ours, root := llvmLibraries(t)
	plugin := filepath.Join(t.TempDir(), "plugin.so")
	clangLlvm(t, root, plugin, "-O2", "-fPIC", "-shared", "testdata/eh_plugin.cc")
	t.Setenv("EH_PLUGIN", plugin)
	t.Setenv("EH_PLUGIN_2", plugin)
	same := func(prog string, args ...string) string {
		stock, with := llvmRun(t, theirs, theirs, prog, args...), llvmRun(t, theirs, ours, prog, args...)
		if stock != with {
			t.Errorf("%s %v: with LLVM's libunwind:\n%s\nwith the library:\n%s", filepath.Base(prog), args, stock, with)
		}
		return with
	}
	for _, flags := range [][]string{{"-O2"}, {"-O0"}} {
		dir := t.TempDir()
		shapes, tree := filepath.Join(dir, "shapes"), filepath.Join(dir, "tree")
		clangLlvm(t, root, shapes, append(flags, "-fnon-call-exceptions", "testdata/eh_shapes.cc")...)
		clangLlvm(t, root, tree, append(flags, "testdata/eh_tree.cc")...)
		for _, way := range []string{"plain", "rethrow", "nested", "foreign", "dependent", "through_c", "constructors", "function_try", "coroutines",
			"forks", "threads", "forced", "arguments", "noexcept", "uncaught", "twice", "abort"} {
			if out := same(shapes, way); testing.Verbose() {
				t.Logf("%v %s: %d lines, %s", flags, way, strings.Count(out, "\n"), out[max(0, len(out)-30):])
			}
		}
		// libgcc_s.so.1, which the C library loads, makes contexts that LLVM's functions cannot read.
		if out := llvmRun(t, theirs, ours, shapes, "cancellation"); strings.Count(out, "\ncleanup waits\n") != 4 {
			t.Error(out)
		}
		if out := same(tree, "7", fmt.Sprint(oracle.Few(1000, 100_000))); !strings.Contains(out, "escaped") {
			t.Error(out)
		}
	}
}
