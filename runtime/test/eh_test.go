package test

import (
	"bytes"
	"cmp"
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

// An ehMachine is one whose programs the tests run: x86-64, or AArch64 by qemu-user.
type ehMachine struct {
	name, cc, cxx string
	target        string   // as Clang knows the machine
	goarch        string   // whose processors run the programs; empty for qemu-user
	backtrace     string   // as the library exports it
	flags         []string // of the compiler, one set for each program
}

var ehMachines = []*ehMachine{ehHere, {
	name: "arm64", cc: armCC, cxx: "aarch64-linux-gnu-g++", target: "aarch64-linux-gnu", backtrace: "backtrace@GLIBC_2.17",
	flags: []string{"-O2 -mbranch-protection=standard", "-O0 -mbranch-protection=pac-ret+leaf+b-key", "-Os -fomit-frame-pointer -no-pie"},
}}

var ehHere = &ehMachine{
	name: "amd64", cc: "gcc", cxx: "g++", target: "x86_64-linux-gnu", goarch: "amd64", backtrace: "backtrace@GLIBC_2.2.5",
	flags: []string{"-O2", "-O0", "-O2 -fno-omit-frame-pointer -fcf-protection=none", "-Os -mno-red-zone -no-pie"},
}

// ehEach runs a test for each machine.
func ehEach(t *testing.T, test func(t *testing.T, m *ehMachine)) {
	for _, m := range ehMachines {
		t.Run(m.name, func(t *testing.T) { test(t, m) })
	}
}

// few is one number for the processor at hand, and another one for qemu-user.
func (m *ehMachine) few(here, emulated int) int {
	if m.goarch == "" {
		return emulated
	}
	return here
}

// throws says how often each of 128 threads of eh_shapes.cc throws. Of qemu-user's time, they would take nine tenths.
func (m *ehMachine) throws() string { return fmt.Sprintf("-DTHROWS=%d", m.few(500, 50)) }

// needs skips a test where this machine cannot build or run the programs.
func (m *ehMachine) needs(t testing.TB) {
	t.Helper()
	oracle.Need(t, "make", m.cc, m.cxx)
	switch {
	case m.goarch == "":
		oracle.Need(t, "qemu-aarch64")
	case m.goarch != runtime.GOARCH:
		oracle.Lacks(t, "an x86-64 processor")
	}
}

// library builds the library in front of libgcc's unwinder and returns its path.
func (m *ehMachine) library(t testing.TB) string {
	t.Helper()
	m.needs(t)
	return filepath.Join(built(t, m.cc, "", "libunspool_eh.so"), "libunspool_eh.so")
}

// ehLibrary builds the library for the processor at hand.
func ehLibrary(t testing.TB) string {
	t.Helper()
	return ehHere.library(t)
}

// libgcc returns the machine's libgcc_s.so.1.
func (m *ehMachine) libgcc(t testing.TB) string {
	t.Helper()
	oracle.Need(t, m.cc)
	out, err := exec.Command(m.cc, "-print-file-name=libgcc_s.so.1").Output()
	path := strings.TrimSpace(string(out))
	if err != nil || !filepath.IsAbs(path) {
		oracle.Lacks(t, "libgcc_s.so.1")
	}
	return path
}

// libgccCopy returns a setting of a copy of it, which a program can load beside the one that it is linked with.
func (m *ehMachine) libgccCopy(t testing.TB) string {
	t.Helper()
	data, err := os.ReadFile(m.libgcc(t))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libgcc_copy.so")
	if err := os.WriteFile(path, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return "EH_LIBGCC=" + path
}

// program compiles a C++ program of testdata.
func (m *ehMachine) program(t testing.TB, source string, flags ...string) string {
	t.Helper()
	flags = slices.Concat([]string{"-g", "-Wall", "-Wextra", "-Werror", "-pthread"}, flags, []string{"-ldl"})
	return linkedAs(t, strings.TrimSuffix(source, ".cc"), m.cxx, filepath.Join("testdata", source), flags...)
}

// run runs a program under a preload, or under none, and returns what it prints and how it ends.
func (m *ehMachine) run(t testing.TB, preload string, env []string, prog string, args ...string) string {
	t.Helper()
	if preload != "" {
		env = append(slices.Clip(env), "LD_PRELOAD="+preload)
	}
	command := []string{"-s", "KILL", "300"}
	if m.goarch == "" {
		command = append(command, "qemu-aarch64", "-cpu", "max", "-L", armRoot)
		for _, e := range env {
			command = append(command, "-E", e)
		}
		env = nil
	}
	cmd := exec.Command("timeout", append(append(command, prog), args...)...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return fmt.Sprintf("%s%v\n", &out, err)
}

// ehRun runs a program on the processor at hand.
func ehRun(t testing.TB, preload string, env []string, prog string, args ...string) string {
	t.Helper()
	return ehHere.run(t, preload, env, prog, args...)
}

// TestEhSame walks by libgcc and by the library on the same stacks: all contexts are equal.
func TestEhSame(t *testing.T) {
	ehEach(t, func(t *testing.T, m *ehMachine) {
		lib, env := m.library(t), []string{m.libgccCopy(t)}
		for _, flags := range m.flags {
			out := m.run(t, lib, env, m.program(t, "eh_same.cc", append(strings.Fields(flags), "-Wl,-z,lazy")...))
			if !strings.HasPrefix(out, "libraries differ\n") || !strings.HasSuffix(out, "signal frames many, FDEs many, deepest deep\ndifferent 0\n<nil>\n") {
				t.Errorf("%v: %s", flags, out)
			}
			t.Logf("%v: %s", flags, out)
		}
	})
}

// TestEhDamaged registers damaged call frame information: the library ends well where libgcc does.
func TestEhDamaged(t *testing.T) {
	ehEach(t, func(t *testing.T, m *ehMachine) {
		lib, prog := m.library(t), m.program(t, "eh_same.cc", "-O2")
		out := m.run(t, lib, []string{m.libgccCopy(t)}, prog, fmt.Sprint(oracle.Few(m.few(2000, 50), m.few(200_000, 2000))))
		if !strings.HasSuffix(out, "libgcc ends well: often, the library does not: 0\n<nil>\n") {
			t.Errorf("eh_same prints\n%s\nwant that libgcc never ends well where the library does not", out)
		}
	})
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
		case s.Name == "" || s.Section == elf.SHN_UNDEF || s.Section >= elf.SHN_LORESERVE:
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
	ehEach(t, func(t *testing.T, m *ehMachine) {
		ours, others := exports(t, m.library(t))
		theirs, _ := exports(t, m.libgcc(t))
		if len(theirs) < 20 || !slices.Equal(ours, theirs) {
			t.Errorf("the library has %v, libgcc %v", ours, theirs)
		}
		if !slices.Equal(others, []string{m.backtrace}) {
			t.Errorf("it also has %v", others)
		}
	})
}

// ended is what a program prints of a code that _Unwind_RaiseException has returned. Before GCC 15, libgcc for AArch64 returns whatever is in the register
// (GCC's bug 114843).
var ended = regexp.MustCompile(`(?m)^(end of the stack|nobody catches it): -?\d+$`)

// same runs a program with libgcc and with the library; both say the same, and end in the same way.
func (m *ehMachine) same(t *testing.T, env []string, prog string, args ...string) string {
	t.Helper()
	stock := m.run(t, "", env, prog, args...)
	ours := m.run(t, m.library(t), env, prog, args...)
	if m.goarch == "" {
		stock, ours = ended.ReplaceAllString(stock, "$1"), ended.ReplaceAllString(ours, "$1")
	}
	if stock != ours {
		t.Errorf("%s %v: with libgcc:\n%s\nwith the library:\n%s", filepath.Base(prog), args, stock, ours)
	}
	return stock
}

// TestEhShapes throws and catches in all ways that the program knows: through C, signals, threads, modules that come and go, and to the end.
func TestEhShapes(t *testing.T) {
	ehEach(t, func(t *testing.T, m *ehMachine) {
		if m.goarch == "" {
			oracle.Long(t)
		}
		m.library(t)
		var env []string
		for i, name := range []string{"EH_PLUGIN", "EH_PLUGIN_2"} {
			plugin := m.program(t, "eh_plugin.cc", "-O2", "-fPIC", "-shared", fmt.Sprintf("-Wl,--build-id=%s", []string{"sha1", "none"}[i]))
			env = append(env, name+"="+plugin)
		}
		sets := append(slices.Clone(m.flags), "-O2 -static-libgcc -static-libstdc++")
		if m != ehHere {
			sets = sets[:oracle.Few(2, len(sets))] // each takes half a minute in qemu
		}
		if m == ehHere {
			sets = append(sets, "-O2 -static-libgcc", "-Os -fno-asynchronous-unwind-tables", "-O1 -mno-accumulate-outgoing-args -fomit-frame-pointer")
		}
		for _, flags := range sets {
			prog := m.program(t, "eh_shapes.cc", append(strings.Fields(flags), m.throws(), "-fnon-call-exceptions", "-Wno-infinite-recursion", "-Wno-maybe-uninitialized")...)
			if out := m.same(t, env, prog); strings.Count(out, "\n") < 200 || !strings.HasSuffix(out, "\narguments 4500\n<nil>\n") {
				t.Errorf("%v: %s", flags, out)
			}
			for _, end := range []string{"noexcept", "uncaught", "twice", "abort"} {
				m.same(t, env, prog, end)
			}
			if out := m.run(t, m.library(t), env, prog, "coroutines"); !strings.Contains(flags, "static") && strings.Count(out, "end of the stack: 5\n") != 2 {
				t.Errorf("%v: %s", flags, out)
			}
		}
	})
}

// TestEhStatic: static executables throw and catch by the archive as by libgcc_eh.a, and have nothing else of libgcc's unwinder. make install puts the
// archive where pkg-config says.
func TestEhStatic(t *testing.T) {
	ehEach(t, func(t *testing.T, m *ehMachine) {
		oracle.Long(t)
		oracle.Need(t, "pkg-config")
		m.needs(t)
		root, build := t.TempDir(), dropIn(t, m.cc)
		if out, err := exec.Command("make", "-C", "..", "BUILD="+build, "CC="+m.cc, "DESTDIR="+root, "PREFIX=/usr", "install").CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		cmd := exec.Command("pkg-config", "--libs", "unspool_eh")
		cmd.Env = append(os.Environ(), "PKG_CONFIG_PATH="+filepath.Join(root, "usr/share/pkgconfig"))
		libs, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		sets := []string{"-O2 -static", "-O1 -static-pie -fPIE"}
		if m != ehHere {
			sets = sets[:oracle.Few(1, 2)]
		}
		for _, flags := range sets {
			args := append(strings.Fields(flags), m.throws(), "-w", "-DSTATIC", "-fnon-call-exceptions")
			stock, ours := m.program(t, "eh_shapes.cc", args...), m.program(t, "eh_shapes.cc", append(args, strings.Fields(string(libs))...)...)
			for prog, want := range map[string]bool{stock: false, ours: true} {
				if raises, searches := ehHas(t, prog, "eh_raise"), ehHas(t, prog, "uw_frame_state_for"); raises != want || searches == want {
					t.Errorf("%s: our unwinder %t, libgcc's %t", flags, raises, searches)
				}
			}
			for _, way := range append([]string{"signals"}, ehWays...) {
				want, got := m.run(t, "", nil, stock, way), m.run(t, "", nil, ours, way)
				if m.goarch == "" {
					want, got = ended.ReplaceAllString(want, "$1"), ended.ReplaceAllString(got, "$1")
				}
				if want != got {
					t.Errorf("%s: %s: with libgcc:\n%s\nwith the archive:\n%s", flags, way, want, got)
				}
			}
		}
	})
}

// TestArmEhVectors: exceptions pass frames whose size depends on that of SVE's vectors. GCC 12 describes many such frames wrongly, so that libgcc ends there, too:
// these flags are for some that it describes well.
func TestArmEhVectors(t *testing.T) {
	m := ehMachines[1]
	m.library(t)
	for _, flags := range []string{"-O1 -fomit-frame-pointer", "-O2 -fomit-frame-pointer", "-O1 -fomit-frame-pointer -mbranch-protection=standard"} {
		prog := m.program(t, "eh_sve.cc", append(strings.Fields(flags), "-march=armv8-a+sve")...)
		if out := m.same(t, nil, prog); !strings.HasSuffix(out, "10 cleanups, 9 a lane\n-56.2\n<nil>\n") {
			t.Errorf("%s: %s", flags, out)
		}
	}
}

// ehHas is whether a program has a function with this name, or parts of it that a compiler has made.
func ehHas(t *testing.T, prog, name string) bool {
	t.Helper()
	f, err := elf.Open(prog)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(symbols, func(s elf.Symbol) bool { return s.Name == name || strings.HasPrefix(s.Name, name+".") })
}

// ehWays are the ways of eh_shapes.cc that need no other module, and no signal that another C++ library must know.
var ehWays = []string{"plain", "rethrow", "nested", "foreign", "dependent", "through_c", "constructors", "function_try", "coroutines",
	"forks", "threads", "cancellation", "forced", "arguments", "noexcept", "uncaught", "twice", "abort"}

// TestEhClang: the same with Clang, and with libc++ and its ABI library.
func TestEhClang(t *testing.T) {
	oracle.Long(t)
	ehLibrary(t)
	oracle.Need(t, "clang++-19")
	_, root := llvmPackages(t, ehHere)
	plugin := "EH_PLUGIN=" + ehHere.program(t, "eh_plugin.cc", "-O2", "-fPIC", "-shared")
	env := []string{plugin, strings.Replace(plugin, "=", "_2=", 1)}
	args := []string{"-w", "-pthread", "-fnon-call-exceptions", "-O2", "-ldl"}
	clang := linkedAs(t, "prog", "clang++-19", "testdata/eh_shapes.cc", args...)
	libcxx := filepath.Join(t.TempDir(), "prog")
	libs := filepath.Join(root, "usr/lib/llvm-19/lib")
	oracle.Run(t, "clang++-19", "-nostdlib++", "-pthread", "-L"+libs, "-Wl,-rpath,"+libs, "-o", libcxx, libcxxObject(t, ehHere, root, "eh_shapes.cc", "-O2", "-fnon-call-exceptions"),
		"-l:libc++.so.1", "-l:libc++abi.so.1", "-ldl")
	for _, prog := range []string{clang, libcxx} {
		for _, way := range ehWays {
			ehHere.same(t, env, prog, way)
		}
	}
	ehHere.same(t, env, linkedAs(t, "prog", "clang++-19", "testdata/eh_tree.cc", args...), "7", "10000")
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
	ehEach(t, func(t *testing.T, m *ehMachine) {
		if m.goarch == "" {
			oracle.Long(t)
		}
		lib, env := m.library(t), []string{m.libgccCopy(t)}
		for i, flags := range m.flags {
			prog := m.program(t, "eh_tree.cc", strings.Fields(flags)...)
			seed := fmt.Sprint(i*100_000_000 + 1)
			if out := m.same(t, nil, prog, seed, fmt.Sprint(oracle.Few(m.few(10_000, 200), m.few(1_000_000, 20_000))), "2"); !strings.Contains(out, "escaped") {
				t.Errorf("eh_tree %s, built with %s, prints\n%s\nwant escaped", seed, flags, out)
			}
			out := m.run(t, lib, env, prog, seed, fmt.Sprint(oracle.Few(m.few(2_000, 100), m.few(50_000, 2_000))))
			if !strings.HasSuffix(out, "contexts many different 0\n<nil>\n") {
				t.Errorf("%v: %s", flags, out)
			}
		}
	})
}

// TestEhRust: panics and backtraces of Rust.
func TestEhRust(t *testing.T) {
	ehLibrary(t)
	oracle.Need(t, "rustc")
	prog := filepath.Join(t.TempDir(), "panics")
	if out, err := exec.Command("rustc", "-O", "-o", prog, "testdata/eh_panic.rs").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if out := ehHere.same(t, nil, prog); !strings.Contains(out, "deep: 4, main:") || !strings.HasSuffix(out, "ended 15\n<nil>\n") {
		t.Errorf("eh_panic prints\n%s\nwant deep: 4, main:, and at the end ended 15 and <nil>", out)
	}
	if out := ehHere.same(t, nil, prog, "twice"); strings.HasSuffix(out, "<nil>\n") {
		t.Errorf("eh_panic twice prints\n%s\nwant an error at the end", out)
	}
}

// TestEhFigures measures, in turns with libgcc: medians of runs, of which each of the first four takes its best of 90.
func TestEhFigures(t *testing.T) {
	oracle.Full(t)
	lib, prog := ehLibrary(t), ehHere.program(t, "eh_bench.cc", "-O2", "-fno-optimize-sibling-calls")
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
		stock, ours := measure(c.what, "100", "30")
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
	// A computation takes the same time on a processor whatever else throws: where processors are free, twice as many do twice as much.
	for _, c := range []struct {
		what  string
		count int
	}{{"roots", 192_000}, {"fibonacci", 38_400}} {
		var two float64
		for _, threads := range []int{2, 1, 16, 128} {
			stock, ours := measure(c.what, "10", fmt.Sprint(c.count/threads/100*100), fmt.Sprint(threads))
			t.Logf("%s, 10 %% fail, %d threads: %.0f ns of user time for each, libgcc %.0f", c.what, threads, ours, stock)
			if two = cmp.Or(two, ours); ours*0.95 > two {
				t.Errorf("%s: %.0f ns with %d threads, %.0f with two", c.what, ours, threads, two)
			}
		}
	}
}
