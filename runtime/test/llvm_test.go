package test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// llvmPackages returns the directory of LLVM's libraries, and the root of its packages: their development package cannot be installed beside libunwind's.
func llvmPackages(t testing.TB, m *ehMachine) (theirs, root string) {
	t.Helper()
	m.needs(t)
	root = oracle.Debian(t, "bookworm", m.name, "llvm-unwind", "libunwind-19-dev", "libunwind-19", "libc++-19-dev", "libc++abi-19-dev", "libc++1-19", "libc++abi1-19")
	return filepath.Join(root, "usr/lib/llvm-19/lib"), root
}

// llvmLibraries also builds the drop-in for LLVM's libunwind, and returns its directory.
func llvmLibraries(t testing.TB, m *ehMachine) (theirs, ours, root string) {
	t.Helper()
	theirs, root = llvmPackages(t, m)
	return theirs, built(t, m.cc, "", "libunwind.so.1"), root
}

// TestLlvmExports: the library has the symbols of LLVM's, without versions, and its name.
func TestLlvmExports(t *testing.T) {
	ehEach(t, func(t *testing.T, m *ehMachine) {
		theirs, ours, _ := llvmLibraries(t, m)
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
	})
}

// llvmSame compiles the program that walks by both libraries, with LLVM's header.
func llvmSame(t testing.TB, m *ehMachine, root string, flags ...string) string {
	t.Helper()
	args := []string{"-g", "-Wall", "-Wextra", "-Werror", "-rdynamic", "-pthread", "-I" + filepath.Join(root, "usr/lib/llvm-19/include"), "testdata/llvm_same.c", "-ldl"}
	return compiledAs(t, "same", m.cc, append(args, flags...)...)
}

// TestLlvmSame: LLVM's libunwind and the library say the same of each frame of the same stacks: results of steps, all registers, procedures, names,
// frames that a signal interrupted; and of code registered at run time, registers that are set, and frames gone on in.
func TestLlvmSame(t *testing.T) {
	ehEach(t, func(t *testing.T, m *ehMachine) {
		theirs, ours, root := llvmLibraries(t, m)
		flags := []string{"-O2", "-O0", "-Os -fno-omit-frame-pointer", "-O3 -fcf-protection=none -no-pie"}
		if m != ehHere {
			flags = m.flags
		}
		for _, flags := range flags {
			out := m.run(t, "", nil, llvmSame(t, m, root, strings.Fields(flags)...), filepath.Join(theirs, "libunwind.so.1"), filepath.Join(ours, "libunwind.so.1"))
			if !strings.Contains(out, "compared many deepest deep signals many named many different 0\n") || !strings.HasSuffix(out, "<nil>\n") {
				t.Errorf("%v: %s", flags, out)
			}
			t.Logf("%v: %s", flags, out)
		}
	})
}

// TestLlvmFigures measures a step and a program counter in turns, medians of 15 runs, of which each takes the best of nine.
func TestLlvmFigures(t *testing.T) {
	oracle.Full(t)
	theirs, ours, root := llvmLibraries(t, ehHere)
	prog := llvmSame(t, ehHere, root, "-O2", "-fno-optimize-sibling-calls")
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
func clangLlvm(t testing.TB, m *ehMachine, root, prog string, args ...string) {
	t.Helper()
	oracle.Need(t, "clang++-19")
	libs := filepath.Join(root, "usr/lib/llvm-19/lib")
	args = append([]string{"--target=" + m.target, "-w", "-nostdinc++", "-nostdlib++", "--unwindlib=none", "-isystem", filepath.Join(root, "usr/lib/llvm-19/include/c++/v1"),
		"-pthread", "-rdynamic", "-o", prog}, args...)
	args = append(args, "-L"+libs, "-Wl,--no-as-needed", "-l:libc++.so.1", "-l:libc++abi.so.1", "-l:libunwind.so.1", "-ldl")
	if out, err := exec.Command("clang++-19", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// libcxxObject compiles a source of testdata with Clang and libc++.
func libcxxObject(t testing.TB, m *ehMachine, root, source string, flags ...string) string {
	t.Helper()
	args := []string{"--target=" + m.target, "-w", "-nostdinc++", "-isystem", filepath.Join(root, "usr/lib/llvm-19/include/c++/v1"), "-pthread", "-c", filepath.Join("testdata", source)}
	return compiledAs(t, source+".o", "clang++-19", append(args, flags...)...)
}

// llvmRun runs a program with the libraries of a directory before LLVM's.
func llvmRun(t testing.TB, m *ehMachine, env []string, theirs, dir, prog string, args ...string) string {
	t.Helper()
	env = append(slices.Clone(env), "LD_LIBRARY_PATH="+dir+":"+theirs)
	var list string
	if m.goarch == "" {
		list = m.run(t, "", append(env, "LD_TRACE_LOADED_OBJECTS=1"), prog)
	} else {
		list = m.run(t, "", env, "env", "LD_TRACE_LOADED_OBJECTS=1", prog)
	}
	if !strings.Contains(list, " "+filepath.Join(dir, "libunwind.so.1")+" ") {
		t.Fatalf("%s is not loaded: %s", filepath.Join(dir, "libunwind.so.1"), list)
	}
	return m.run(t, "", env, prog, args...)
}

// TestLlvmTests runs LLVM's own tests of its libunwind: each ends with the library as it does with LLVM's.
func TestLlvmTests(t *testing.T) {
	oracle.Long(t)
	ehEach(t, func(t *testing.T, m *ehMachine) {
		theirs, ours, root := llvmLibraries(t, m)
		dir := oracle.Source(t, "bookworm", "llvm-libunwind", "llvm-toolchain-19", "*/libunwind/test/*")
		passed := 0
		for _, source := range oracle.Files(t, dir, func(path string) bool { return regexp.MustCompile(`\.pass\.(sh\.)?(cpp|[sS])$`).MatchString(path) }) {
			name := filepath.Base(source)
			switch name {
			case "aix_signal_unwind.pass.sh.S", "unwind_scalable_vectors.pass.cpp": // of other machines
				continue
			case "remember_state_leak.pass.sh.s": // of x86-64
				if m != ehHere {
					continue
				}
			case "frameheadercache_test.pass.cpp", "alignment.compile.pass.cpp": // of LLVM's own classes, and of its header
				continue
			}
			prog := filepath.Join(t.TempDir(), name)
			clangLlvm(t, m, root, prog, "-std=c++17", "-funwind-tables", "-isystem", filepath.Join(root, "usr/lib/llvm-19/include"), source)
			stock, with := llvmRun(t, m, nil, theirs, theirs, prog), llvmRun(t, m, nil, theirs, ours, prog)
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
	})
}

// TestLlvmThrows: programs with libc++ and LLVM's libunwind throw and catch in the same ways: those of eh_shapes.cc, and random trees of calls.
func TestLlvmThrows(t *testing.T) {
	oracle.Long(t)
	ehEach(t, func(t *testing.T, m *ehMachine) {
		theirs, ours, root := llvmLibraries(t, m)
		plugin := filepath.Join(t.TempDir(), "plugin.so")
		clangLlvm(t, m, root, plugin, "-O2", "-fPIC", "-shared", "testdata/eh_plugin.cc")
		env := []string{"EH_PLUGIN=" + plugin, "EH_PLUGIN_2=" + plugin}
		same := func(prog string, args ...string) string {
			stock, with := llvmRun(t, m, env, theirs, theirs, prog, args...), llvmRun(t, m, env, theirs, ours, prog, args...)
			if stock != with {
				t.Errorf("%s %v: with LLVM's libunwind:\n%s\nwith the library:\n%s", filepath.Base(prog), args, stock, with)
			}
			return with
		}
		sets := []string{"-O2", "-O0"}
		if m != ehHere {
			sets = []string{"-O2 -mbranch-protection=standard", "-O0 -mbranch-protection=pac-ret+leaf+b-key"}[:oracle.Few(1, 2)]
		}
		for _, flags := range sets {
			dir := t.TempDir()
			shapes, tree := filepath.Join(dir, "shapes"), filepath.Join(dir, "tree")
			clangLlvm(t, m, root, shapes, libcxxObject(t, m, root, "eh_shapes.cc", append(strings.Fields(flags), "-fnon-call-exceptions")...))
			clangLlvm(t, m, root, tree, append(strings.Fields(flags), "testdata/eh_tree.cc")...)
			for _, way := range []string{"plain", "rethrow", "nested", "foreign", "dependent", "through_c", "constructors", "function_try", "coroutines",
				"forks", "threads", "forced", "arguments", "noexcept", "uncaught", "twice", "abort"} {
				if out := same(shapes, way); testing.Verbose() {
					t.Logf("%v %s: %d lines, %s", flags, way, strings.Count(out, "\n"), out[max(0, len(out)-30):])
				}
			}
			// libgcc_s.so.1, which the C library loads, makes contexts that LLVM's functions cannot read.
			if out := llvmRun(t, m, env, theirs, ours, shapes, "cancellation"); strings.Count(out, "\ncleanup waits\n") != 4 {
				t.Errorf("eh_shapes cancellation, built with %s, prints\n%s\nwant cleanup waits 4 times", flags, out)
			}
			if out := same(tree, "7", fmt.Sprint(oracle.Few(m.few(1000, 100), m.few(100_000, 1000)))); !strings.Contains(out, "escaped") {
				t.Errorf("eh_tree 7, built with %s, prints\n%s\nwant escaped", flags, out)
			}
		}
	})
}

// TestLlvmRun: unspool run puts the library in the place of LLVM's that a program of Clang's is linked with, also with --exceptions; the program says the
// same.
func TestLlvmRun(t *testing.T) {
	oracle.Long(t)
	theirs, root := llvmPackages(t, ehHere)
	ours := dropIn(t, "gcc")
	unspool, prog := unspool(t), filepath.Join(t.TempDir(), "run")
	clangLlvm(t, ehHere, root, prog, "-O2", "-std=c++17", "-Wl,-rpath,"+theirs, "-isystem", filepath.Join(root, "usr/lib/llvm-19/include"), "testdata/llvm_run.cc")
	said := func(args ...string) (out, mapped string) {
		t.Helper()
		var stdout, stderr bytes.Buffer
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = append(os.Environ(), "UNSPOOL_CACHE="+t.TempDir())
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%q: %v\n%s%s", args, err, &stdout, &stderr)
		}
		return stdout.String(), stderr.String()
	}
	stock, mapped := said(prog)
	if want := "1450 cleanups, deep\nin a thread: deep\nframes: middle main\n"; stock != want || !strings.HasPrefix(mapped, theirs) {
		t.Fatalf("%swant %s%s", stock, want, mapped)
	}
	for _, c := range []struct{ flags, mapped []string }{
		{nil, []string{"libunwind.so.1"}},
		{[]string{"--exceptions"}, []string{"libunspool_eh.so", "libunwind.so.1"}},
	} {
		out, mapped := said(slices.Concat([]string{unspool, "run", "--runtime", ours}, c.flags, []string{"--", prog})...)
		files := strings.Fields(mapped)
		slices.Sort(files)
		for i, name := range c.mapped {
			c.mapped[i] = filepath.Join(ours, name)
		}
		if out != stock || !slices.Equal(files, c.mapped) {
			t.Errorf("%q: %swithout unspool %s%q, want %q", c.flags, out, stock, files, c.mapped)
		}
	}
}
