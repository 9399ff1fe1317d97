package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile/pprof"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/tui/tuitest"
)

// TestDiff: two recordings are compared in every format, with filters, by share and by number; and report has all formats.
func TestDiff(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	write := func(name string, lines ...string) string {
		var b bytes.Buffer
		if err := pprof.Write(&b, tuitest.NewScene().Profile(t, lines...)); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	before := write("before.pb.gz", "300x 10/10 cc1 outermost: hash main", "700x 10/10 cc1 outermost: parse main", "10x 11/11 sh truncated: read")
	after := write("after.pb.gz", "600x 10/10 cc1 outermost: hash main", "700x 10/10 cc1 outermost: parse main", "10x 11/11 sh truncated: read")
	has := func(want string, args ...string) {
		t.Helper()
		r := runProgram(t, append([]string{"diff", before, after}, args...)...)
		if r.want(t, 0, ""); !strings.Contains(strings.Join(strings.Fields(r.out), " "), want) {
			t.Errorf("%q: no %q in\n%s", args, want, r.out)
		}
	}
	has("before 1,010 samples of cpu · 99.0 % whole · 1.0 % truncated")
	has("29.7 % 45.8 % +16.10 pp 29.7 % 45.8 % +16.10 pp 7.9 a.out hash")
	has("2 functions differ no more than by chance")
	has("300 600 +300 300 600 +300 10.0 a.out hash", "--by", "samples")
	has("30.0 % 46.2 % +16.15 pp", "--comm", "cc1")
	has("cc1;main;hash 300 600", "--format", "folded")
	has("600 ms 1.2 s +600 ms", "--by", "periods")
	has("1.0 % 0.8 %", "--all")
	svg := filepath.Join(dir, "diff.svg")
	has("", "-o", svg)
	if b, err := os.ReadFile(svg); err != nil || !bytes.Contains(b, []byte(`"diff":["before","after"]`)) {
		t.Errorf("diff.svg: %v", err)
	}
	var j struct{ Functions []struct{ Total [2]int } }
	if r := runProgram(t, "diff", before, after, "--format", "json"); json.Unmarshal([]byte(r.out), &j) != nil || j.Functions[0].Total != [2]int{300, 600} {
		t.Errorf("diff --format json prints\n%s\nwant 300 and 600 as the first totals; stderr:\n%s", r.out, r.stderr)
	}
	for _, f := range report.Formats.Names() {
		if report.Formats.Named(f).Whole == nil {
			runProgram(t, "report", after, "--format", f).want(t, 2, "no single samples: --format stacks")
			continue
		}
		r := runProgram(t, "report", after, "--format", f)
		if r.want(t, 0, ""); f != "pprof" && !strings.Contains(r.out, "hash") {
			t.Errorf("%s: %s", f, r.out)
		}
	}
	for name, want := range map[string]string{"x.firefox.json": `"preprocessedProfileVersion":`, "x.speedscope.json": "file-format-schema", "x.stacks.json": `{"pid":10`} {
		path := filepath.Join(dir, name)
		runProgram(t, "report", after, "-o", path).want(t, 0, "")
		if b, err := os.ReadFile(path); err != nil || !bytes.Contains(b, []byte(want)) {
			t.Errorf("%s: no %s, %v", name, want, err)
		}
	}
}

// TestReportPart: what a filter leaves nothing of is an error, and of a recording that is cut off comes what is there, whatever
// the format.
func TestReportPart(t *testing.T) {
	pb := writeProfile(t)
	runProgram(t, "report", pb, "--comm", "nobody").want(t, 1, "none of 10 samples matches")
	runProgram(t, "report", pb, "--time", "1,2").want(t, 1, "x.pb.gz: --time")
	runProgram(t, "report", pb, "--function", "(").want(t, 2, "--function: .*missing closing")
	runProgram(t, "report", os.DevNull).want(t, 1, "not a recording: it is empty")
	c := program(t, "report", "-")
	in, err := os.Open(pb)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	c.Stdin = in
	if r := finish(t, c); r.status != 0 || !strings.Contains(r.out, "10 samples") {
		t.Errorf("from standard input: %+v", r)
	}

	canRecord(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "x.data")
	runProgram(t, append([]string{"record", "-o", file, "--"}, busy...)...).want(t, 7, "samples")
	runProgram(t, "report", file, "--comm", "nobody", "--format", "jsonl").want(t, 1, "none of .* samples matches")
	b, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, b[:len(b)*3/4], 0o666)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, ending := range []string{"txt", "pb.gz", "jsonl", "perf", "firefox.json"} {
		out := filepath.Join(dir, "x."+ending)
		runProgram(t, "report", file, "-o", out).want(t, 1, "truncated")
		if st, err := os.Stat(out); err != nil || st.Size() < 100 {
			t.Errorf("%s: %v, %v", ending, st, err)
		}
	}
}
