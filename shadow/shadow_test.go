package shadow

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
)

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "verify" { // as a program of its own: TestKilled
		cmd := exec.Command(os.Args[2])
		cmd.Stdout = os.Stdout
		Run(context.Background(), cmd, Options{Modules: modules.Interpreted()})
		os.Exit(0)
	}
	dir, err := os.MkdirTemp("", "shadow")
	if err != nil {
		panic(err)
	}
	os.Setenv("UNSPOOL_CACHE", dir) // for tables
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// build compiles a program of testdata, linked statically: the dynamic linker would be most of what is executed.
func build(t testing.TB, source string, args ...string) string {
	t.Helper()
	cc := "gcc"
	if filepath.Ext(source) == ".cc" {
		cc = "g++"
	}
	oracle.Need(t, cc)
	path := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), filepath.Ext(source)))
	args = append([]string{"-O2", "-o", path, filepath.Join("testdata", source)}, args...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", cc, args, err, out)
	}
	return path
}

// execute runs a command step by step. It must print, and end, as it does by itself.
func execute(t testing.TB, o Options, path string, args ...string) *Result {
	t.Helper()
	alone := exec.Command(path, args...)
	want, _ := alone.Output()
	var got bytes.Buffer
	cmd := exec.Command(path, args...)
	cmd.Stdout = &got
	r, err := Run(t.Context(), cmd, o)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	if !bytes.Equal(got.Bytes(), want) || r.Exit != unix.WaitStatus(alone.ProcessState.Sys().(interface{ ExitStatus() int }).ExitStatus()<<8) {
		t.Errorf("%s printed %q and %s; by itself it prints %q, %v", path, got.Bytes(), r.How(), want, alone.ProcessState)
	}
	return r
}

// right fails the test where a finding is not known.
func right(t testing.TB, r *Result) {
	t.Helper()
	if len(r.Wrong()) > 0 {
		var b bytes.Buffer
		r.WriteText(&b)
		t.Errorf("%s", b.Bytes())
	}
}

// planted builds the functions whose call frame information is wrong, and returns the program and what is wrong in it: the names of functions
// say that.
func planted(t testing.TB) (path string, wrong []string) {
	t.Helper()
	source, args := "planted_"+runtime.GOARCH+".s", []string{"-static"}
	if runtime.GOARCH == "arm64" {
		args = append(args, "-nostdlib")
	}
	src, err := os.ReadFile(filepath.Join("testdata", source))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:\s*fn )?(wrong_(\w+?)(__\w+)?)(:|$)`).FindAllStringSubmatch(string(src), -1) {
		what := strings.Split(m[2], "_")
		slices.Sort(what)
		wrong = append(wrong, fmt.Sprint(m[1], what))
	}
	slices.Sort(wrong)
	return build(t, source, args...), wrong
}

// TestPlanted executes functions whose call frame information is wrong on purpose. It must find what is wrong in each, once, and
// nothing in those that are right.
func TestPlanted(t *testing.T) {
	path, want := planted(t)
	r := execute(t, Options{}, path)
	var got []string
	for _, f := range r.Findings {
		got = append(got, fmt.Sprint(f.Function, f.What()))
		if f.Known != nil || f.Ours || f.Row == "" || len(f.Code) < 2 {
			t.Errorf("%+v", f)
		}
	}
	slices.Sort(got)
	if len(want) < 6 || !slices.Equal(got, want) {
		t.Errorf("wrong rows:\ngot  %v\nwant %v", got, want)
	}
	should := map[string]string{
		"wrong_cfa_ra_rbx":    "cfa=rsp+16  ra=c-8",
		"wrong_r12":           "cfa=rsp+8  ra=c-8  r12=rcx",
		"wrong_cfa_ra":        "cfa=rsp+8  ra=c-8",
		"wrong_ra":            "cfa=rsp+0  ra=rdx",
		"wrong_ra__outermost": "cfa=rsp+8  ra=c-8",
	}
	if runtime.GOARCH == "arm64" {
		should = map[string]string{
			"wrong_cfa_x19":    "cfa=sp+16  ra=c-8",
			"wrong_ra":         "cfa=sp+0  ra=x9",
			"wrong_ra__signed": "cfa=sp+0  ra=x30",
		}
	}
	for _, f := range r.Findings {
		if s := should[f.Function]; s != "" && f.Should != s {
			t.Errorf("%s should be %q, it says %q", f.Function, s, f.Should)
		}
	}
}

// TestJumps executes a program with signals, longjmp, threads, forks, contexts, and stacks of its own.
func TestJumps(t *testing.T) {
	r := execute(t, Options{}, build(t, "jumps.c", "-static", "-pthread"))
	right(t, r)
	if r.Threads < 11 || r.Processes < 7 {
		t.Errorf("%d threads in %d processes, not 11 in 7", r.Threads, r.Processes)
	}
	sum(t, r)
}

// TestThrow executes exceptions through frames with and without handlers.
func TestThrow(t *testing.T) {
	r := execute(t, Options{}, build(t, "throw.cc", "-static-pie"))
	right(t, r)
	sum(t, r)
	if !slices.ContainsFunc(r.Findings, func(f *Finding) bool { return f.Known.Name == "eh-return" }) {
		t.Errorf("_Unwind_RaiseException was not executed")
	}
}

// sum checks that nearly everything was compared.
func sum(t *testing.T, r *Result) {
	t.Helper()
	var compared, steps, rest uint64
	for _, m := range r.Modules {
		compared, steps, rest = compared+m.Compared, steps+m.Steps, rest+m.NoInfo+m.Unknown
	}
	if compared != r.Compared || steps != r.Steps || compared+rest != steps || rest*50 > steps {
		t.Errorf("%d instructions: %d compared, %d not; the modules have %d and %d", r.Steps, r.Compared, rest, steps, compared)
	}
}

// TestOptions holds the filters and limits against a run without.
func TestOptions(t *testing.T) {
	path, _ := planted(t)
	one, times := "wrong_rbp", uint64(9)
	if runtime.GOARCH == "arm64" {
		one, times = "wrong_x20", 8
	}
	all := execute(t, Options{}, path)
	// The dynamic linker asks the processor that it runs on, and takes a few instructions more or less.
	whole := func(r *Result) bool { return max(r.Steps, all.Steps)-min(r.Steps, all.Steps) <= 16 }
	for _, c := range []struct {
		name string
		o    Options
		ok   func(*Result) bool
	}{
		{"module", Options{Module: regexp.MustCompile("no such")}, func(r *Result) bool { return r.Compared == 0 && whole(r) }},
		{"function", Options{Function: regexp.MustCompile("^" + one + "$")}, func(r *Result) bool {
			return r.Compared == times && len(r.Findings) == 1 && r.Findings[0].Function == one
		}},
		{"thread", Options{Thread: 2}, func(r *Result) bool { return r.Compared == 0 && whole(r) }},
		{"every", Options{Every: 10}, func(r *Result) bool { return r.Compared > 0 && r.Compared <= all.Steps/10+1 }},
		{"steps", Options{Steps: 200}, func(r *Result) bool { return r.Stopped && r.Steps == 200 }},
	} {
		if r := execute(t, c.o, path); !c.ok(r) {
			t.Errorf("%s: %d instructions, %d compared, %d findings; without it %d, %d, %d", c.name, r.Steps, r.Compared, len(r.Findings), all.Steps, all.Compared, len(all.Findings))
		}
	}
}

// TestMoments holds each moment's innermost caller against what the machine itself would return to, in a program without system calls' handlers.
func TestMoments(t *testing.T) {
	moments, deepest, whole := 0, 0, true
	r, err := Run(t.Context(), exec.Command("/bin/true"), Options{Modules: modules.New(), Entry: true, Each: func(m *Moment) {
		moments++
		deepest = max(deepest, len(m.Callers))
		whole = whole && m.Whole
		last := m.Regs[host.Slot(host.SP)]
		for _, c := range m.Callers {
			if c.CFA < last || m.Space.Find(arch.Addr(c.PC)) == nil {
				t.Errorf("at %#x a caller goes on at %#x, with the stack at %#x, below %#x, or in no code", m.PC, c.PC, c.CFA, last)
			}
			last = c.CFA
			if word, ok := m.Read8(c.CFA - host.CallPush); link < 0 && (!ok || word != c.PC) {
				t.Errorf("at %#x the return address is %#x, not %#x", m.PC, word, c.PC)
			}
		}
	}})
	if err != nil || uint64(moments) > r.Steps || uint64(moments) < r.Steps*9/10 || deepest < 4 || !whole {
		t.Errorf("%v: %d moments of %d instructions, %d callers at most, whole: %v", err, moments, r.Steps, deepest, whole)
	}
}
