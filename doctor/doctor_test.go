package doctor

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestWrite: a line says yes, no or ?, then a setting's value, then why not and what to change; other people's bytes do not reach the terminal.
func TestWrite(t *testing.T) {
	d := &Diagnosis{
		Version: "v1", Kernel: "6.1.0", Machine: "x86_64", CPUs: 2, UID: 1000,
		Ways: []Finding{
			{Name: "record-user", What: "record", OK: true},
			{Name: "record-all", What: "record all", Reason: "refused\x1b[2J", Change: "sudo it"},
		},
		Needs: []Finding{
			{Name: "kptr-restrict", What: "kernel.kptr_restrict", OK: true, Value: "0"},
			{Name: "bpf-loop", What: "bpf_loop", Unknown: true, Reason: "it refuses to try"},
		},
		Measured: &Measurement{
			Load: 12.4, Processes: 1234, Modules: 56, TableBytes: 1 << 20, MapBytes: 3 << 19, Overhead: 1.5, Seconds: 1.04, Samples: 2000, Whole: 99.5, Lost: 1,
			Runs: 2100, PerSample: 3456, Note: "a note",
		},
	}
	var b bytes.Buffer
	if err := d.Write(&b); err != nil {
		t.Fatal(err)
	}
	if want := `unspool v1 · Linux 6.1.0 x86_64 · 2 processors · user 1000

What can be done
  yes  record
  no   record all  refused?[2J
         change: sudo it

What it stands on
  yes  kernel.kptr_restrict  0
  ?    bpf_loop              it refuses to try

The kernel's program, 1.0 s on the whole machine
  loaded in 12 ms
  1,234 processes, tables of 56 modules: 1.0 MiB, which take 1.5 MiB of kernel memory (1.50 times as much)
  2,000 samples, 99.5 % of the user stacks whole, 1 lost
  3456 ns a sample, by the kernel's count of 2,100 runs
  a note
`; b.String() != want {
		t.Errorf("got\n%s\nwant\n%s", b.String(), want)
	}
	d.UID, d.Measured.Runs, d.Measured.PerSample, d.Measured.Note = 0, 0, 0, ""
	b.Reset()
	if err := d.Write(&b); err != nil || !strings.HasPrefix(b.String(), "unspool v1 · Linux 6.1.0 x86_64 · 2 processors · root\n") ||
		!strings.HasSuffix(b.String(), ", 1 lost\n") {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// TestDiagnose: whatever this machine allows, each finding has a name of its own, a reason where it says no, and the same in JSON.
func TestDiagnose(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	t.Setenv("UNSPOOL_RUNTIME", dir)
	d := Diagnose("v1")
	seen := map[string]bool{}
	for _, f := range append(d.Ways, d.Needs...) {
		if f.Name == "" || f.What == "" || seen[f.Name] || f.OK == (f.Reason != "") && f.Name != "record-ebpf" || f.OK && f.Unknown {
			t.Errorf("%+v", f)
		}
		seen[f.Name] = true
	}
	if f := d.Way("run"); f.OK || f.Reason != "no "+Dropin+" in "+dir || !strings.HasPrefix(f.Change, "install all of a release") {
		t.Errorf("run: %+v", f)
	}
	records := false
	for _, name := range []string{"record-user", "record-kernel", "record-all", "record-ebpf"} {
		records = records || d.Way(name).OK
	}
	if d.Records() != records {
		t.Errorf("Records() = %v of %+v", d.Records(), d.Ways)
	}
	b, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	var again Diagnosis
	if err := json.Unmarshal(b, &again); err != nil || len(again.Ways) != len(d.Ways) || len(again.Needs) != len(d.Needs) || again.Ways[0] != d.Ways[0] {
		t.Errorf("%v: %s", err, b)
	}
	for _, key := range []string{"version", "kernel", "machine", "cpus", "uid", "ways", "checks"} {
		if !strings.Contains(string(b), `"`+key+`":`) {
			t.Errorf("no %s in %s", key, b)
		}
	}
}

// TestFindDropin: a directory that is named is the only one; else the environment's is.
func TestFindDropin(t *testing.T) {
	dir, empty := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, Dropin), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ named, env, want string }{
		{dir, empty, dir}, {"", dir, dir}, {empty, dir, ""}, {"", empty, ""},
	} {
		t.Setenv("UNSPOOL_RUNTIME", c.env)
		if got, err := FindDropin(c.named); got != c.want || (err == nil) != (c.want != "") {
			t.Errorf("FindDropin(%q) with %s in the environment: %q, %v", c.named, c.env, got, err)
		}
	}
}

// TestDropinChange: beside the sources, make builds the drop-in; a package's users are not asked for sources. What others can change is not used,
// and the change is another one.
func TestDropinChange(t *testing.T) {
	t.Setenv("UNSPOOL_RUNTIME", "")
	top := t.TempDir()
	for _, dir := range []string{"bin", "lib/unspool", "src/runtime"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(top, "src/runtime/Makefile"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	check := func(program, reason, change string) {
		t.Helper()
		// One may be installed on this machine.
		if at, r, c := findDropin("", filepath.Join(top, program)); at != "/usr/local/lib/unspool" && (!strings.HasPrefix(r, reason) || !strings.HasPrefix(c, change)) {
			t.Errorf("in %s: %q, %q: %q", program, at, r, c)
		}
	}
	check("bin", "no "+Dropin+" in ", "install all of a release")
	check("src", "no "+Dropin+" in ", "make runtime")
	lib := filepath.Join(top, "lib/unspool", Dropin)
	if err := os.WriteFile(lib, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if at, reason, change := findDropin("", filepath.Join(top, "bin")); at != filepath.Dir(lib) || reason+change != "" {
		t.Errorf("%q, %q: %q", at, reason, change)
	}
	if err := os.Chmod(lib, 0o666); err != nil {
		t.Fatal(err)
	}
	check("bin", lib+" is not used: others can change ", "set UNSPOOL_RUNTIME="+filepath.Dir(lib))
}

// TestChangeable: what somebody else can change on the way to a library, in a sticky directory, too.
func TestChangeable(t *testing.T) {
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, to give a directory to another user")
	}
	top, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sticky, own, lib := filepath.Join(top, "tmp"), filepath.Join(top, "tmp", "lib"), filepath.Join(top, "tmp", "lib", Dropin)
	for _, err := range []error{os.MkdirAll(own, 0o755), os.Chmod(sticky, 0o777|os.ModeSticky), os.WriteFile(lib, nil, 0o755)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	want := func(want string) {
		t.Helper()
		if got := changeable(lib); got != want {
			t.Errorf("%q can be changed, want %q", got, want)
		}
	}
	want("")
	for _, path := range []string{own, lib} {
		if err := os.Lchown(path, 1000, 0); err != nil {
			t.Fatal(err)
		}
		want(path)
		if err := os.Lchown(path, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(sticky, 0o777); err != nil {
		t.Fatal(err)
	}
	want(sticky)
}

// TestHasOperators: an allocator counts if the program is linked with it, or if it is preloaded.
func TestHasOperators(t *testing.T) {
	t.Setenv("LD_PRELOAD", "")
	if sh, none := HasOperators("sh"), HasOperators("/no such program"); sh || none {
		t.Errorf("without LD_PRELOAD, an allocator of its own: sh %v, a program that is not there %v; want false, false", sh, none)
	}
	t.Setenv("LD_PRELOAD", "/usr/lib/libother.so /opt/libjemalloc.so.2")
	if !HasOperators("sh") {
		t.Errorf("with LD_PRELOAD=%q, sh has no allocator of its own; want one: it is preloaded", os.Getenv("LD_PRELOAD"))
	}
}
