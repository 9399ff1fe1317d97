package test

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestExampleProfile: the sampling profiler's stacks go from the program's entry to what ran, and it is as short as an example should be.
func TestExampleProfile(t *testing.T) {
	dir := installed(t)
	// A stack within fib, whose depth varies, or in main.
	stack := regexp.MustCompile(`^_start;__libc_start_main(@@GLIBC_2\.34)?;[^;]+;main(;fib)* 1$`)
	out, err := started(dir, client(t, dir, "../examples/profile.c")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	n, within := 0, 0
	for line := range strings.Lines(string(out)) {
		n++
		if line = strings.TrimSpace(line); !stack.MatchString(line) {
			t.Errorf("no stack of this program: %s", line)
		}
		if strings.Contains(line, ";main;fib") {
			within++
		}
	}
	if n < 50 || within < n*9/10 {
		t.Errorf("%d samples, %d in fib\n%s", n, within, out)
	}
	for name, most := range map[string]int{"profile.c": 60, "crash.c": 40} {
		if b, err := os.ReadFile("../examples/" + name); err != nil || bytes.Count(b, []byte("\n")) > most {
			t.Errorf("%s: more than %d lines, or %v", name, most, err)
		}
	}
}

// TestSharedObjects: each library has the name by which programs or LD_PRELOAD know it, needs nothing else than the C library, libgcc and what it
// stands in front of, and asks the loader for no writable code and no stack with code.
func TestSharedObjects(t *testing.T) {
	build := dropIn(t, "gcc")
	needs := map[string][]string{
		"libunwind.so.8":         {"libc.so.6", "libgcc_s.so.1"},
		"libunwind-x86_64.so.8":  {"libc.so.6"},
		"libunwind.so.1":         {"libc.so.6"},
		"libunspool.so":          {"libc.so.6", "libgcc_s.so.1"},
		"libunspool_eh.so":       {"libc.so.6"},
		"libunspool-dw.so":       {"libc.so.6"},
		"libunspool_heap.so":     {"libc.so.6"},
		"libunspool_heap_new.so": {"libc.so.6", "libunspool_heap.so"},
	}
	for name, want := range needs {
		path := filepath.Join(build, name)
		f, err := elf.Open(path)
		if os.IsNotExist(err) && name == "libunspool-dw.so" {
			continue // there are no headers of elfutils
		} else if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		soname, err := f.DynString(elf.DT_SONAME)
		libs, err2 := f.ImportedLibraries()
		flags, err3 := f.DynValue(elf.DT_FLAGS)
		textrel, err4 := f.DynValue(elf.DT_TEXTREL)
		if err != nil || err2 != nil || err3 != nil || err4 != nil {
			t.Fatalf("%s: SONAME: %v, libraries: %v, FLAGS: %v, TEXTREL: %v", name, err, err2, err3, err4)
		}
		slices.Sort(libs)
		libs = slices.DeleteFunc(libs, func(lib string) bool { return strings.HasPrefix(lib, "ld-linux") })
		if !slices.Equal(soname, []string{name}) || !slices.Equal(libs, want) {
			t.Errorf("%s is %q and needs %q, want %q", name, soname, libs, want)
		}
		if len(textrel) > 0 || len(flags) != 1 || elf.DynFlag(flags[0])&elf.DF_BIND_NOW == 0 {
			t.Errorf("%s: DT_TEXTREL %v, DT_FLAGS %v", name, textrel, flags)
		}
		for _, p := range f.Progs {
			if p.Flags&elf.PF_W != 0 && p.Flags&elf.PF_X != 0 {
				t.Errorf("%s: %v is writable and executable", name, p.Type)
			}
		}
	}
}

// TestDwExports: the library in front of libdw exports functions of libdw only, in libdw's versions.
func TestDwExports(t *testing.T) {
	path := filepath.Join(dropIn(t, "gcc"), "libunspool-dw.so")
	if _, err := os.Stat(path); err != nil {
		t.Skip("this machine lacks libdw-dev")
	}
	_, ours := exports(t, path)
	_, theirs := exports(t, "/usr/lib/x86_64-linux-gnu/libdw.so.1")
	if len(ours) < 30 {
		t.Errorf("only %q", ours)
	}
	for _, name := range ours {
		if !slices.Contains(theirs, name) {
			t.Errorf("%s is not libdw's", name)
		}
	}
}
