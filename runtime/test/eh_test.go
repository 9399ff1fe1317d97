package test

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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

// unwinder returns the functions of an unwinder that a library exports, with their versions.
func unwinder(t testing.TB, path string) (names []string) {
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
		if s.Section != elf.SHN_UNDEF && s.Section < elf.SHN_LORESERVE &&
			(strings.HasPrefix(s.Name, "_Unwind_") || strings.Contains(s.Name, "register_frame")) {
			names = append(names, s.Name+"@"+s.Version)
		}
	}
	slices.Sort(names)
	return names
}

// TestEhExports: the library has what libgcc has of its unwinder, with its versions, and backtrace.
func TestEhExports(t *testing.T) {
	lib := ehLibrary(t)
	ours, theirs := unwinder(t, lib), unwinder(t, libgcc(t))
	if len(theirs) < 20 || !slices.Equal(ours, theirs) {
		t.Errorf("the library has %v, libgcc %v", ours, theirs)
	}
	f, err := elf.Open(lib)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var others []string
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && s.Section < elf.SHN_LORESERVE && !slices.Contains(ours, s.Name+"@"+s.Version) {
			others = append(others, s.Name+"@"+s.Version)
		}
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
