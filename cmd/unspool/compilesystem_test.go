package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/compile"
	"github.com/unspool/unspool/internal/oracle"
)

// tablesIn returns the tables and the machine code that a cache keeps.
func tablesIn(t *testing.T, cache string) (names []string) {
	t.Helper()
	for _, pattern := range []string{"*-own-*", "*-any-*"} {
		found, err := filepath.Glob(filepath.Join(cache, pattern))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

// TestCompileSystem: what root compiles for all users is found by all that walk stacks, also where they have no cache, and none of them compiles
// anything. What has changed or gone is removed, and a second run does not read what has not changed.
func TestCompileSystem(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, who writes the store of all users")
	}
	dir := t.TempDir()
	src, exe, machine := filepath.Join(dir, "spin.c"), filepath.Join(dir, "spin"), filepath.Join(dir, "machine")
	if err := os.WriteFile(src, []byte(spinning), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-fomit-frame-pointer", "-o", exe, src)
	spin := exec.Command(exe)
	if err := spin.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { spin.Process.Kill(); spin.Wait() }()
	pid := fmt.Sprint(spin.Process.Pid)
	var files []string
	for began := time.Now(); len(files) < 3 && time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) { // exe, libc, ld.so
		files, _ = compile.Mapped(spin.Process.Pid)
	}
	shared := func(tables string, args ...string) *exec.Cmd {
		c := program(t, args...)
		c.Env = append(c.Env, "UNSPOOL_TABLES="+tables)
		return c
	}
	timeout, err := exec.LookPath("timeout")
	if err != nil {
		oracle.Lacks(t, "timeout")
	}
	files = append(files, timeout)
	all := append([]string{"compile", "--system"}, files...)
	r := finish(t, shared(machine, all...))
	r.want(t, 0, `^$`)
	if !regexp.MustCompile(fmt.Sprintf(`^%d files compiled, 0 were there, 0 without unwind information: .* of tables, in .*s\n\S+ has %d tables: .*B\n$`, len(files), len(files)+1)).MatchString(r.out) {
		t.Errorf("%q", r.out) // and the vDSO
	}
	r = finish(t, shared(machine, all...))
	if !strings.HasPrefix(r.out, fmt.Sprintf("0 files compiled, %d were there, ", len(files))) {
		t.Errorf("again: %q", r.out)
	}
	if r := finish(t, shared(machine, append(all, "--quiet")...)); r.status != 0 || r.out+r.stderr != "" {
		t.Errorf("--quiet: %+v", r)
	}
	packaged := filepath.Join(dir, "packaged")
	finish(t, shared("", append(all, "-o", packaged)...)).want(t, 0, `^$`)
	if n := len(tablesIn(t, packaged)); n != len(files) {
		t.Errorf("a package has %d tables, of %d files", n, len(files))
	}

	data := filepath.Join(dir, "perf.data")
	finish(t, program(t, "record", "--source", "perf", "--duration", "2s", "-p", pid, "-o", data)).want(t, 0, "samples")
	record := func(source string) []string {
		return []string{"record", "--source", source, "-p", pid, "--duration", "500ms", "-o", "/dev/stdout", "--format", "folded"}
	}
	ring := filepath.Join(dir, "ring")
	readers := map[string][]string{
		"record perf": record("perf"), "record ebpf": record("ebpf"), "record ptrace": record("ptrace"),
		"report": {"report", "--format", "folded", data},
		"stack":  {"stack", pid},
		"agent":  {"agent", "--output", "files=" + ring, "--interval", "1s", "--listen", "", "-F", "99", "--", timeout, "2", exe},
	}
	if r := runProgram(t, "record", "--source", "ebpf", "-o", os.DevNull, "--format", "folded", "--", "true"); r.status != 0 {
		delete(readers, "record ebpf")
	}
	for name, args := range readers {
		for _, tables := range []string{machine, packaged} {
			for _, cache := range []string{filepath.Join(t.TempDir(), "cache"), "/proc/unspool"} {
				if tables == packaged && cache == "/proc/unspool" {
					continue
				}
				var r result
				for d := 500 * time.Millisecond; d < 30*time.Second; d *= 4 { // a busy machine may not run it at once
					at := slices.Index(args, "500ms")
					if at >= 0 {
						args = slices.Clone(args)
						args[at] = d.String()
					}
					c := shared(tables, args...)
					c.Env = append(c.Env, "UNSPOOL_CACHE="+cache)
					if r = finish(t, c); at < 0 || !strings.Contains(r.stderr, ": 0 samples ") {
						break
					}
					args[at] = "500ms"
				}
				if name == "agent" {
					r.out += ringFunctions(t, ring)
				}
				if r.status != map[bool]int{true: 124}[name == "agent"] || !regexp.MustCompile(`(?s)main;(outer;)?inner|(inner|outer).*main`).MatchString(r.out) {
					t.Errorf("%s, tables in %s, cache %s: status %d\n%s%s", name, tables, cache, r.status, r.out, r.stderr)
				}
				made := tablesIn(t, cache)
				if tables == packaged { // no package has this kernel's vDSO
					made = made[:max(0, len(made)-1)]
				}
				if len(made) > 0 {
					t.Errorf("%s, tables in %s: compiled %v", name, tables, made)
				}
			}
		}
	}

	// A container has nothing of the machine but its processes and a mount of the store, and its root is read-only.
	t.Run("container", func(t *testing.T) {
		oracle.Need(t, "unshare", "chroot", "mount")
		binary, err := os.ReadFile(withoutCgo(t))
		if err != nil {
			t.Fatal(err)
		}
		root := t.TempDir()
		for _, d := range []string{"proc", "sys", "tables", "tmp"} {
			if err := os.Mkdir(filepath.Join(root, d), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(root, "unspool"), binary, 0o755); err != nil {
			t.Fatal(err)
		}
		out := t.TempDir()
		const enter = `mount --bind $0 $0 && cd $0 && mount -t proc proc proc && mount --rbind /sys sys && mount --bind $1 tables && mount --bind $2 tmp &&
			mount -o remount,bind,ro $0 && mount -o remount,bind,ro $0/tables && shift 2 && exec chroot $0 /unspool "$@"`
		c := exec.Command("unshare", append([]string{"--mount", "sh", "-c", enter, root, machine, out}, "record", "--source", "perf", "-p", pid, "--duration", "2s",
			"-o", "/tmp/x.folded")...)
		c.Env = []string{"PATH=" + os.Getenv("PATH"), asProgram + "=1", "UNSPOOL_TABLES=/tables", "UNSPOOL_CACHE=/tmp/cache"}
		finish(t, c).want(t, 0, ` samples · `)
		if made := tablesIn(t, filepath.Join(out, "cache")); len(made) > 0 {
			t.Errorf("compiled: %v", made)
		}
	})

	// The program goes.
	if err := os.Remove(exe); err != nil {
		t.Fatal(err)
	}
	finish(t, shared(machine, "compile", "--system", timeout)).want(t, 0, "")
	if n := len(tablesIn(t, machine)); n != len(files) {
		t.Errorf("%d tables are left, of %d files and the vDSO", n, len(files)-1)
	}
}

// ringFunctions returns the functions of the profiles in a directory, and removes it.
func ringFunctions(t *testing.T, ring string) string {
	t.Helper()
	var out strings.Builder
	found, err := filepath.Glob(filepath.Join(ring, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if p, err := proto.ParseData(b); err == nil {
			for _, f := range p.Function {
				fmt.Fprintf(&out, "%s;", f.Name)
			}
		}
	}
	os.RemoveAll(ring)
	return out.String()
}

// TestCompileSystemUsage: only root fills the machine's store, and flags of other outputs are refused.
func TestCompileSystemUsage(t *testing.T) {
	for args, want := range map[string]string{
		"compile --system --emit c /bin/sh": "--emit does not go with --system",
		"compile --system -p 1":             "--pid does not go with --system",
		"compile --system -o x":             "name the files",
		"compile --quiet /bin/sh":           "--quiet goes with --system",
	} {
		runProgram(t, strings.Fields(args)...).want(t, 2, want)
	}
	c := program(t, "compile", "--system", "/bin/sh")
	c.Env = append(c.Env, "UNSPOOL_TABLES=")
	want := "names no directory"
	if os.Geteuid() != 0 {
		c.Env, want = append(c.Env, "UNSPOOL_TABLES="+t.TempDir()), "written by root only"
	}
	finish(t, c).want(t, 1, want)
}
