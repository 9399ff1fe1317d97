package main

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// refused returns the program with a kernel's walk that no verifier accepts: an instruction at the beginning of a program reads R5, which nothing
// has written.
func refused(t *testing.T, programs ...string) string {
	t.Helper()
	object := "../../source/ebpf/unspool_" + runtime.GOARCH + ".bpf.o"
	b, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	whole, left := bytes.Clone(b), len(programs)
	for _, s := range symbols {
		for _, name := range programs {
			if s.Name == name {
				at := b[f.Sections[s.Section].Offset+s.Value:]
				for at[0] == 0x18 { // the loader writes what these load
					at = at[16:]
				}
				copy(at, "\xbf\x50\x00\x00\x00\x00\x00\x00") // r0 = r5
				left--
			}
		}
	}
	if left != 0 {
		t.Fatalf("%s: not all of %v are there", object, programs)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.Index(exe, whole)
	if at < 0 || bytes.Contains(exe[at+1:], whole) {
		t.Fatalf("%s is not once in this program", object)
	}
	copy(exe[at:], b)
	path := filepath.Join(t.TempDir(), "unspool")
	if err := os.WriteFile(path, exe, 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestVerifierRefuses: where the kernel's verifier refuses the walk, recording goes on by copies and says why in a line. What the walk alone
// can do, and a walk asked for by its name, are errors that say how to go on; the verifier's log goes to a file.
func TestVerifierRefuses(t *testing.T) {
	oracle.Long(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	path := refused(t, "on_event", "on_tracepoint")
	run := func(args ...string) result {
		c := program(t, args...)
		c.Path, c.Args[0] = path, path
		return finish(t, c)
	}
	why := `the verifier of Linux \S+ refuses on_event: [^\n]*R5 !read_ok[^\n]* \(UNSPOOL_VERIFIER_LOG=FILE writes its log\)`
	r := run("record", "-o", "x.jsonl", "--", "sh", "-c", "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done")
	r.want(t, 0, `(?m)^unspool: walking copies of stacks, not in the kernel: loading the kernel's program: `+why+`$`)
	if strings.Count(r.stderr, "verifier of") != 1 {
		t.Errorf("said more than once:\n%s", r.stderr)
	}
	run("record", "--off-cpu", "--", "true").want(t, 1, `^unspool: loading the kernel's program: `+why+`; -e sched:sched_switch [^\n]*\n$`)
	run("record", "--memory", "512M", "--source", "ebpf", "--", "true").want(t, 1, why+`; without --source ebpf, the kernel copies stacks\n$`)
	log := filepath.Join(t.TempDir(), "log")
	t.Setenv("UNSPOOL_VERIFIER_LOG", log)
	run("record", "--source", "ebpf", "--", "true").want(t, 1, `refuses on_event: [^\n]*R5 !read_ok; without`)
	b, err := os.ReadFile(log)
	if err != nil || !bytes.Contains(b, []byte("R5 !read_ok")) || bytes.Count(b, []byte("\n")) < 3 {
		t.Errorf("the verifier's log: %v\n%s", err, b)
	}
	// doctor loads the same programs.
	run("doctor").want(t, 0, "")
}

// TestVerifierRefusesLater: the same of a program that is loaded when the event is known, after the others.
func TestVerifierRefusesLater(t *testing.T) {
	oracle.Long(t)
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	path := refused(t, "on_tracepoint")
	c := program(t, "record", "-e", "sched:sched_switch", "-c", "1", "-o", "x.jsonl", "--", "sleep", "0.1")
	c.Path, c.Args[0] = path, path
	finish(t, c).want(t, 0, `(?m)^unspool: walking copies of stacks, not in the kernel: .*the verifier of Linux \S+ refuses on_tracepoint: .*R5 !read_ok`)
	if b, err := os.ReadFile(filepath.Join(c.Dir, "x.jsonl")); err != nil || len(bytes.Split(b, []byte("\n"))) < 2 {
		t.Errorf("no samples: %v\n%s", err, b)
	}
}
