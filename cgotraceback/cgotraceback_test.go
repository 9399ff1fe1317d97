package cgotraceback_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
)

// sources is the sum of the C that cgo compiles from ../runtime, where Go's cache does not look.
func sources(t testing.TB) string {
	t.Helper()
	list, err := filepath.Glob("../runtime/*.[ch]")
	if err != nil || len(list) == 0 {
		t.Fatalf("../runtime: %q, %v", list, err)
	}
	sum := sha256.New()
	for _, path := range list {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum.Write(b)
	}
	return fmt.Sprintf("%x", sum.Sum(nil)[:8])
}

// build compiles testdata/callbacks; env are settings of Go, flags are go build's.
func build(t testing.TB, env []string, flags ...string) string {
	t.Helper()
	oracle.Need(t, "go", "gcc")
	prog := filepath.Join(t.TempDir(), "callbacks")
	cmd := exec.Command("go", slices.Concat([]string{"build", "-trimpath", "-o", prog}, flags, []string{"./testdata/callbacks"})...)
	cmd.Env = append(append(os.Environ(), "CGO_ENABLED=1", "CGO_CFLAGS=-O2 -g -Werror -DUNSPOOL_SOURCES="+sources(t)), env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return prog
}

// run runs a program for at most a minute.
func run(t testing.TB, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOTRACEBACK=system")
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		t.Fatalf("%q: no end after a minute\n%s", args, out)
	}
	return string(out), err
}

// The chains of calls of testdata/callbacks, from the middle on, innermost function first.
var (
	callback  = "main.goMiddle main.goCallback _cgoexp goCallback c_call "
	recursion = "c_recurse c_recurse c_recurse c_outer main._Cfunc_c_outer main.outer "
	sort      = "c_compare LIB qsort_r c_sorted main._Cfunc_c_sorted main.sorted "
	called    = "c_leaf c_inner main._Cfunc_c_inner "
	made      = "main.goLeaf "
)

// TestProfile: the stacks of a CPU profile are the chains of calls that the program makes, C functions included, in threads of Go and in others.
func TestProfile(t *testing.T) {
	oracle.Long(t)
	prog := build(t, nil)
	for _, what := range []string{"profile", "threads"} {
		path := filepath.Join(t.TempDir(), "cpu.pprof")
		if out, err := run(t, prog, what, path); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		chains := []string{called + callback + recursion, made + callback + recursion, called + callback + sort, called + "main.only "}
		if what == "threads" {
			chains = append(chains, "c_leaf c_inner c_thread ")
		}
		judge(t, read(t, path), chains, oracle.Few(30, 100))
	}
}

func read(t *testing.T, path string) *profile.Profile {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Parse(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// judge holds each stack against the chains of calls: a stack whose innermost function is of the program is the outer part of one of them. Every chain
// has its samples.
func judge(t *testing.T, p *profile.Profile, chains []string, least int) {
	t.Helper()
	had, all, within := map[string]int64{}, int64(0), int64(0)
	for _, s := range p.Sample {
		var names []string
		for _, l := range s.Location {
			for _, line := range l.Line {
				names = append(names, cmp.Or(line.Function.Name, "LIB"))
			}
		}
		all += s.Value[0]
		if !regexp.MustCompile(`^(c_|goCallback$|main\.(goLeaf|goMiddle|outer|only|sorted)$)`).MatchString(names[0]) {
			continue // in Go's runtime, also on the ways from Go to C and back, or in what starts threads
		}
		if len(names) == 2 && names[1] == "runtime._ExternalCode" {
			continue // of threads that Go does not know, it asks for one stack at a time (runtime.sigprofCallersUse)
		}
		within += s.Value[0]
		var kept []string
		for _, name := range names {
			if strings.HasPrefix(name, "_cgoexp_") {
				name = "_cgoexp"
			}
			if !strings.HasPrefix(name, "runtime.") {
				kept = append(kept, name)
			}
			if slices.Contains([]string{"main.outer", "main.sorted", "main.only", "c_thread"}, name) {
				break
			}
		}
		got := strings.Join(kept, " ") + " "
		at := slices.IndexFunc(chains, func(c string) bool { return strings.HasSuffix(" "+c, " "+got) })
		if at < 0 {
			t.Errorf("%d samples of %s\nwant a part of %s", s.Value[0], strings.Join(names, " "), strings.Join(chains, "\n"))
			continue
		}
		if got == chains[at] {
			had[got] += s.Value[0]
		}
	}
	t.Logf("%d samples, %d of them in the program's functions", all, within)
	for _, c := range chains {
		if t.Logf("%4d %s", had[c], c); had[c] < int64(least) {
			t.Errorf("%d samples of %s", had[c], c)
		}
	}
}

var frame = regexp.MustCompile(`^(?:(c_\w+|goCallback|qsort_r)|(main\.\w+)(\(.*\)))$`)

// frames returns the names of the functions of a traceback of one goroutine, the first that has one of the program.
func frames(out string) string {
	var names []string
	for line := range strings.Lines(out) {
		if m := frame.FindStringSubmatch(strings.TrimSpace(line)); m != nil && line[0] != '\t' {
			names = append(names, m[1]+m[2])
		} else if strings.HasPrefix(line, "goroutine ") && len(names) > 0 {
			break
		}
	}
	return strings.Join(names, " ")
}

// tracebacks are what the program does, and the frames that Go prints of it, as far as they are functions of the program.
var tracebacks = map[string]string{
	"stack": callback + recursion + "main.main",
	"crash": "c_crash main._Cfunc_c_crash " + callback + recursion + "main.main",
	"abort": "c_abort main._Cfunc_c_abort " + callback + recursion + "main.main",
	"null":  "c_null main._Cfunc_c_null " + callback + recursion + "main.main",
	"other": "main.goMiddle main.main", // and see TestOther
	// Before Go reports a panic that nobody recovers, it gives up what the callback knew of its C frames.
	"panic":   "main.goMiddle main.goCallback main._Cfunc_c_outer main.outer main.main",
	"nest":    nested,
	"recover": nested,
}

// nested are five callbacks within each other, more than a thread keeps contexts of its own for.
var nested = "main.goMiddle " + strings.Repeat(callback+"c_recurse c_recurse c_outer main._Cfunc_c_outer ", 4) + callback +
	"c_recurse c_recurse c_outer main._Cfunc_c_outer main.outer main.main"

// TestTracebacks: Go's tracebacks have the C frames of a program's chain of calls, also where a signal arrived in C, and after panics that left C.
func TestTracebacks(t *testing.T) {
	oracle.Long(t)
	same(t, build(t, nil))
}

func same(t *testing.T, command ...string) {
	t.Helper()
	for what, want := range tracebacks {
		out, _ := run(t, append(command, what)...)
		if want = strings.Join(strings.Fields(strings.ReplaceAll(want, "_cgoexp ", "")), " "); frames(out) != want {
			t.Errorf("%s:\n got  %s\n want %s\n%s", what, frames(out), want, out)
		}
	}
}

// TestOther: the C frames of a goroutine that waits in a callback, as another thread finds them.
func TestOther(t *testing.T) {
	oracle.Long(t)
	out, err := run(t, build(t, nil), "other")
	_, other, _ := strings.Cut(out, "\n\n")
	want := strings.TrimSpace(strings.ReplaceAll(callback+recursion, "_cgoexp ", ""))
	if got := frames(other); err != nil || got != want {
		t.Errorf("%v\n got  %s\n want %s\n%s", err, got, want, out)
	}
}

// TestSignals: threads between Go and C, in malloc, in the loader and in panics get a hundred thousand signals, and none waits for ever.
func TestSignals(t *testing.T) {
	oracle.Long(t)
	if out, err := run(t, build(t, nil), "signals", "", "100000"); err != nil || out != "100000 signals\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestRace: with the race detector.
func TestRace(t *testing.T) {
	oracle.Long(t)
	prog := build(t, nil, "-race")
	same(t, prog)
	if out, err := run(t, prog, "signals", "", "5000"); err != nil || out != "5000 signals\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestStripped: a program without symbols has all C frames, too; only what it exports for Go has a name.
func TestStripped(t *testing.T) {
	oracle.Long(t)
	out, err := run(t, build(t, nil, "-ldflags=-s -w"), "stack")
	if n := strings.Count(out, "non-Go function\n\tpc=0x"); err != nil || n != 5 {
		t.Errorf("%d C frames without a name, want 5: %v\n%s", n, err, out)
	}
}

// TestArm: the same under qemu-user.
func TestArm(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "aarch64-linux-gnu-gcc", "qemu-aarch64")
	same(t, "qemu-aarch64", "-L", "/usr/aarch64-linux-gnu", build(t, []string{"GOARCH=arm64", "CC=aarch64-linux-gnu-gcc"}))
}

// TestVendored: the C is there, too, in a copy of the package that go mod vendor makes.
func TestVendored(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "go", "gcc")
	dir := t.TempDir()
	root, err := filepath.Abs("..")
	mod, err2 := os.ReadFile("../go.mod")
	sum, err3 := os.ReadFile("../go.sum")
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		// It requires what this module does, so that nothing is to be fetched.
		"go.mod": strings.Replace(string(mod), "module github.com/unspool/unspool", "module example", 1) +
			"\nrequire github.com/unspool/unspool v0.0.0\n\nreplace github.com/unspool/unspool => " + root + "\n",
		"go.sum":  string(sum),
		"main.go": "package main\n\nimport _ \"github.com/unspool/unspool/cgotraceback\"\n\nfunc main() { println(\"ok\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"go", "mod", "vendor"}, {"go", "build", "-mod=vendor", "-o", "main", "."}, {"./main"}} {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Dir, cmd.Env = dir, append(os.Environ(), "CGO_ENABLED=1", "GOFLAGS=-trimpath", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
}

// BenchmarkTraceback measures what a callback from C to Go costs, without the package and with it, and a traceback through 20 C frames, beside
// libgcc's _Unwind_Backtrace, by which other packages walk.
func BenchmarkTraceback(b *testing.B) {
	with, without := build(b, nil), build(b, nil, "-tags", "plain")
	for b.Loop() {
		var cost, callback, ours, theirs float64
		var frames, n int
		out, err := run(b, without, "cost")
		if _, err2 := fmt.Sscanf(out, "callback %f\n", &callback); err != nil || err2 != nil {
			b.Fatalf("%v, %v\n%s", err, err2, out)
		}
		out, err = run(b, with, "cost")
		if _, err2 := fmt.Sscanf(out, "callback %f\nours %f %d\nlibgcc %f %d\n", &cost, &ours, &frames, &theirs, &n); err != nil || err2 != nil {
			b.Fatalf("%v, %v\n%s", err, err2, out)
		}
		b.ReportMetric(callback, "ns/plain-callback")
		b.ReportMetric(cost, "ns/callback")
		b.ReportMetric(ours/float64(frames), "ns/frame")
		b.ReportMetric(theirs/float64(n), "ns/libgcc-frame")
	}
}
