package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestRebuilt: a program that is built again in place keeps the names and lines of the recording before; where they were not kept, every output
// says what is missing.
func TestRebuilt(t *testing.T) {
	canRecord(t)
	dir := t.TempDir()
	prog, data, cache, home := filepath.Join(dir, "rb"), filepath.Join(dir, "rb.data"), t.TempDir(), t.TempDir()
	os.Chmod(cache, 0o700)
	build(t, prog, spins, "-Wl,--build-id")
	run := func(cache string, args ...string) result {
		t.Helper()
		p := program(t, args...)
		p.Env = append(p.Env, "UNSPOOL_CACHE="+cache, "HOME="+home, "DEBUGINFOD_URLS=")
		r := finish(t, p)
		r.want(t, 0, "")
		return r
	}
	run(cache, "record", "--user", "-o", data, "--", prog)
	before := run(cache, "report", data, "--format", "folded").out
	if !strings.Contains(before, "where_it_spins") {
		t.Fatalf("nothing was recorded:\n%s", before)
	}
	build(t, prog, strings.ReplaceAll(spins, "where_it_spins", "what_never_ran"), "-Wl,--build-id")
	after := run(cache, "report", data, "--format", "folded")
	if after.out != before || strings.Contains(after.stderr, "has been rebuilt") {
		t.Errorf("%s\nthe program was built again, and the report is\n%s\nbefore it was\n%s", after.stderr, after.out, before)
	}
	if r := run(cache, "report", data, "--format", "pprof", "-o", filepath.Join(dir, "p.pb.gz")); !strings.Contains(r.stderr, "whole") {
		t.Errorf("report --format pprof says\n%s\nwant how many stacks are whole", r.stderr)
	}
	oracle.Need(t, "go")
	if out, err := exec.Command("go", "tool", "pprof", "-top", "-lines", filepath.Join(dir, "p.pb.gz")).CombinedOutput(); err != nil || !strings.Contains(string(out), "a.c:3") {
		t.Errorf("the lines are gone: %v\n%s", err, out)
	}
	other := t.TempDir()
	os.Chmod(other, 0o700)
	for _, verb := range [][]string{{"report", data, "--format", "folded"}, {"report", data}, {"diff", data, data, "--all"}, {"report", data, "-o", filepath.Join(dir, "x.svg")},
		{"report", data, "--format", "json"}, {"report", data, "-o", filepath.Join(dir, "x.firefox.json")}, {"report", data, "-o", filepath.Join(dir, "x.speedscope.json")}} {
		if r := run(other, verb...); strings.Contains(r.out, "where_it_spins") || strings.Contains(r.out, "what_never_ran") ||
			!strings.Contains(r.stderr, "rb has been rebuilt since this recording: ") || !strings.Contains(r.stderr, "of the time has no names") {
			t.Errorf("%v, and nothing was kept:\n%s%s", verb, r.stderr, r.out)
		}
	}
	// Stripped.
	oracle.Need(t, "strip")
	if out, err := exec.Command("strip", prog).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	run(other, "record", "-o", data, "--", prog)
	if r := run(other, "report", data, "--format", "folded"); !strings.Contains(r.stderr, "no symbols for rb (") || !strings.Contains(r.stderr, "-dbgsym") {
		t.Errorf("stripped:\n%s%s", r.stderr, r.out)
	}
}

// TestWithNames: a recording brings its names to where neither the program nor what was kept is. perf reads it as before.
func TestWithNames(t *testing.T) {
	canRecord(t)
	dir := t.TempDir()
	prog, data, home := filepath.Join(dir, "wn"), filepath.Join(dir, "wn.data"), t.TempDir()
	build(t, prog, spins)
	run := func(status int, args ...string) result {
		t.Helper()
		p := program(t, args...) // each has a cache of its own
		p.Env = append(p.Env, "HOME="+home, "DEBUGINFOD_URLS=")
		r := finish(t, p)
		r.want(t, status, "")
		return r
	}
	run(2, "record", "--with-names", "-o", filepath.Join(dir, "x.svg"), "--", prog)
	run(0, "record", "--user", "--with-names", "-o", data, "--", prog)
	before := run(0, "report", data, "--format", "folded").out
	if !strings.Contains(before, "where_it_spins") {
		t.Fatalf("nothing was recorded:\n%s", before)
	}
	os.Remove(prog)
	if r := run(0, "report", data, "--format", "folded"); r.out != before {
		t.Errorf("%s\nelsewhere the report is\n%s\nhere it was\n%s", r.stderr, r.out, before)
	}
	if r := run(0, "report", data, "--format", "json"); !strings.Contains(r.out, "a.c") {
		t.Errorf("the lines are gone:\n%.1000s", r.out)
	}
	oracle.Need(t, "perf")
	if out, err := exec.Command("perf", "script", "-i", data).CombinedOutput(); err != nil || strings.Count(string(out), "wn ") < 10 {
		t.Errorf("perf: %v\n%.1000s", err, out)
	}
	// Damaged names cost themselves.
	b, err := os.ReadFile(data)
	if err != nil {
		t.Fatal(err)
	}
	at := bytes.LastIndex(b, []byte("unspnam1"))
	if at < 0 {
		t.Fatalf("the recording, of %d bytes, has no names: it lacks %q", len(b), "unspnam1")
	}
	b[at+20] ^= 1
	os.WriteFile(data, b, 0o600)
	if r := run(0, "report", data, "--format", "folded"); strings.Contains(r.out, "where_it_spins") || !strings.Contains(r.stderr, "names that cannot be read") {
		t.Errorf("damaged:\n%s%s", r.stderr, r.out)
	}
}
