package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// spins is a program that spends its time in a function of its own and, some of it, in the kernel.
const spins = `#include <sys/mman.h>
static volatile int x;
__attribute__((noinline)) void where_it_spins(void) { for (int i = 0; i < 400000000; i++) x += i; }
int main(void) { for (int i = 0; i < 200; i++) { char *p = mmap(0, 1 << 22, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0); munmap(p, 1 << 22); } where_it_spins(); }
`

// build compiles C, and puts the result in place of what is at path, under a new inode.
func build(t testing.TB, path, source string, flags ...string) {
	t.Helper()
	oracle.Need(t, "gcc")
	c := filepath.Join(t.TempDir(), "a.c")
	if err := os.WriteFile(c, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-g", "-O1", "-o", path + ".new", c}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// TestIdentity: a recording without build IDs has names of the files that were recorded, and of no others; and those of this kernel only if
// nothing says that it was another.
func TestIdentity(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	dir := t.TempDir()
	prog, data := filepath.Join(dir, "prog"), filepath.Join(dir, "perf.data")
	build(t, prog, spins)
	if out, err := exec.Command("perf", "record", "-B", "-q", "-F", "999", "-g", "-o", data, prog).CombinedOutput(); err != nil {
		t.Fatalf("perf: %v\n%s", err, out)
	}
	report := func() (folded, notes string) {
		r := runProgram(t, "report", data, "--format", "folded")
		r.want(t, 0, "")
		return r.out, r.stderr
	}
	folded, _ := report()
	if !strings.Contains(folded, "where_it_spins") {
		t.Fatalf("the program that was recorded has no names:\n%s", folded)
	}
	kernel := strings.Contains(folded, "page")

	// Another release of the same length, wherever the header has it.
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		t.Fatal(err)
	}
	here := u.Release[:bytes.IndexByte(u.Release[:], 0)]
	b, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	other := bytes.Clone(here)
	other[0] = '1'
	if bytes.Count(b, append(bytes.Clone(here), 0)) == 0 {
		t.Fatalf("the recording, of %d bytes, does not have its kernel's release, %q", len(b), here)
	}
	if err := os.WriteFile(data, bytes.ReplaceAll(b, append(bytes.Clone(here), 0), append(other, 0)), 0o600); err != nil {
		t.Fatal(err)
	}
	if folded, notes := report(); kernel && (strings.Contains(folded, "page") || !strings.Contains(notes, "another kernel was recorded")) {
		t.Errorf("another kernel's addresses:\n%s\n%s", notes, folded)
	}

	build(t, prog, strings.ReplaceAll(spins, "where_it_spins", "what_never_ran"))
	folded, notes := report()
	if strings.Contains(folded, "what_never_ran") || strings.Contains(folded, "where_it_spins") || !strings.Contains(notes, "another file was recorded") {
		t.Errorf("another file at the path:\n%s\n%s", notes, folded)
	}
}

// TestRewritten: where a program is written into the file of another one while both are recorded, what ran first has no names, and none of the second
// one's.
func TestRewritten(t *testing.T) {
	canRecord(t)
	for _, id := range []string{"-Wl,--build-id", "-Wl,--build-id=none"} {
		t.Run(id, func(t *testing.T) { rewritten(t, id) })
	}
}

func rewritten(t *testing.T, id string) {
	dir := t.TempDir()
	for _, name := range []string{"first", "second"} {
		build(t, filepath.Join(dir, name), `#include <time.h>
static volatile int x;
__attribute__((noinline)) void `+name+`_one(void) { for (int i = 0; i < 1 << 16; i++) x += i; }
int main(void) { while (clock() < CLOCKS_PER_SEC / 2) `+name+`_one(); }
`, id)
	}
	for _, source := range []string{"perf", "ebpf", "ptrace"} {
		t.Run(source, func(t *testing.T) {
			if source == "ebpf" {
				canWalk(t)
			}
			p := program(t, "record", "--source", source, "--user", "-o", "x.folded", "--", "sh", "-c", "cat first >rewritten; chmod +x rewritten; ./rewritten; cat second >rewritten; ./rewritten")
			p.Dir = dir
			r := finish(t, p)
			r.want(t, 0, "rewritten has been rebuilt")
			b, err := os.ReadFile(filepath.Join(dir, "x.folded"))
			if err != nil {
				t.Fatal(err)
			}
			os.Remove(filepath.Join(dir, "x.folded"))
			text := string(b)
			if source == "perf" && strings.Contains(id, "none") { // the same by way of the disk
				p := program(t, "record", "--source", source, "--user", "-o", "x.data", "--", "sh", "-c", "cat first >rewritten; chmod +x rewritten; ./rewritten; cat second >rewritten; ./rewritten")
				p.Dir = dir
				finish(t, p).want(t, 0, "")
				r := runProgram(t, "report", filepath.Join(dir, "x.data"), "--format", "folded")
				r.want(t, 0, "rewritten has been rebuilt")
				text = r.out
			}
			if strings.Contains(text, "first_one") || !strings.Contains(text, "second_one") || !strings.Contains(text, "rewritten+0x") && !strings.Contains(text, "[rewritten]") {
				t.Errorf("want names of the second program, and places without names of the first:\n%s", text)
			}
		})
	}
}
