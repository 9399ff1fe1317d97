package report

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	pprof "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
)

// goPprof runs go tool pprof on a profile.
func goPprof(t *testing.T, path string, args ...string) string {
	t.Helper()
	oracle.Need(t, "go")
	args = append([]string{"tool", "pprof", "-symbolize=none", "-sample_index=samples", "-nodecount=1000", "-nodefraction=0", "-edgefraction=0"}, append(args, path)...)
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "PPROF_TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// TestGoToolPprof: Go's own reader has our numbers, knows what was inlined, and finds lines in a source file.
func TestGoToolPprof(t *testing.T) {
	_, r := load(t, "testdata/inlined.txtar")
	p := r.profile()
	path := keep(t, outputs(t, r)["pprof"])
	got := counts{}
	inlined := map[string]bool{}
	row := regexp.MustCompile(`(?m)^ +(\d+) +[\d.]+% +[\d.]+% +(\d+) +[\d.]+%  (.*?)( \(inline\))?$`)
	for _, m := range row.FindAllStringSubmatch(goPprof(t, path, "-top"), -1) {
		c := &count{}
		fmt.Sscan(m[1], &c.self)
		fmt.Sscan(m[2], &c.total)
		got[m[3]] = c
		inlined[m[3]] = m[4] != ""
	}
	if diff := cmp.Diff(fmt.Sprint(countsOf(p)), fmt.Sprint(got)); diff != "" {
		t.Errorf("-top (-want +got):\n%s", diff)
	}
	for i := range p.Locs {
		if name := p.Funcs[p.Locs[i].Func].Name; inlined[name] != p.Locs[i].Inlined {
			t.Errorf("%s: inlined: %v, pprof says %v", name, p.Locs[i].Inlined, inlined[name])
		}
	}
	if out := goPprof(t, path, "-top", "-lines"); !regexp.MustCompile(` 2 +33\.33%  tree::each\(visitor\) /src/tree\.h:31 \(inline\)\n`).MatchString(out) {
		t.Errorf("-lines:\n%s", out)
	}
	if out := goPprof(t, path, "-traces"); !regexp.MustCompile(`1   tree::next\(\) \(inline\)\n +tree::each\(visitor\) \(inline\)\n +walk\(tree\*\)\n`).MatchString(out) {
		t.Errorf("-traces:\n%s", out)
	}
	src := t.TempDir()
	if err := os.WriteFile(filepath.Join(src, "walk.cc"), []byte(strings.Repeat("a line\n", 60)), 0o666); err != nil {
		t.Fatal(err)
	}
	if out := goPprof(t, path, "-list=walk", "-trim_path=/src", "-source_path="+src); !regexp.MustCompile(`\. +4 +44:a line`).MatchString(out) {
		t.Errorf("-list:\n%s", out)
	}
}

// TestPprofBack: what was written is read as it was: the same stacks, frame by frame.
func TestPprofBack(t *testing.T) {
	for _, path := range []string{"testdata/basic.txtar", "testdata/inlined.txtar"} {
		_, r := load(t, path)
		p := r.profile()
		back, err := ReadPprof(bytes.NewReader(outputs(t, r)["pprof"]))
		if err != nil {
			t.Fatal(err)
		}
		text := func(p *profile.Profile) string {
			var b strings.Builder
			for i := range p.Stacks {
				s := &p.Stacks[i]
				fmt.Fprintln(&b, s.Comm, s.PID, s.TID, s.Stop, s.Count, s.Period)
				for _, f := range s.Frames {
					l := &p.Locs[f]
					fmt.Fprintf(&b, "  %#x %s %s inlined=%v %s:%d:%d\n", l.Addr, p.Funcs[l.Func].Name, p.Modules[l.Module].Path, l.Inlined, p.File(l), l.Line, l.Column)
				}
			}
			return b.String()
		}
		if diff := cmp.Diff(text(p), text(back)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", path, diff)
		}
	}
}

// A duration that a file makes up is none.
func TestPprofDuration(t *testing.T) {
	var b bytes.Buffer
	in := &pprof.Profile{SampleType: []*pprof.ValueType{{Type: "samples", Unit: "count"}}, DurationNanos: -5}
	if err := in.Write(&b); err != nil {
		t.Fatal(err)
	}
	if p, err := ReadPprof(&b); err != nil || p.Duration != 0 {
		t.Errorf("%v, %v", p, err)
	}
}

// A small file cannot ask for a large profile.
func TestPprofExpands(t *testing.T) {
	fn := &pprof.Function{ID: 1, Name: "f"}
	l := &pprof.Location{ID: 1, Line: make([]pprof.Line, 30_000)}
	for i := range l.Line {
		l.Line[i].Function = fn
	}
	s := &pprof.Sample{Value: []int64{1}, Location: make([]*pprof.Location, 30_000)}
	for i := range s.Location {
		s.Location[i] = l
	}
	p := &pprof.Profile{SampleType: []*pprof.ValueType{{Type: "samples", Unit: "count"}}, Function: []*pprof.Function{fn}, Location: []*pprof.Location{l}, Sample: []*pprof.Sample{s}}
	var b bytes.Buffer
	if err := p.WriteUncompressed(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPprof(&b); err == nil || !strings.Contains(err.Error(), "more frames") {
		t.Errorf("%v", err)
	}
}

// TestPprofBombs: what is small and becomes large is refused before it is, and what real tools write is not.
func TestPprofBombs(t *testing.T) {
	zip := func(b []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		z.Write(b)
		z.Close()
		return out.Bytes()
	}
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"zeros", "inflate to", zip(make([]byte, maxPprof/2))},
		{"zeros, large", "more than 256 MiB", make([]byte, maxPprof+1)},
		{"empty locations", "of memory", zip(bytes.Repeat([]byte{4<<3 | 2, 0}, 8<<20))},
		{"lines", "of memory", zip(append([]byte{4<<3 | 2, 0x80, 0x80, 0x80, 0x07}, bytes.Repeat([]byte{4<<3 | 2, 0}, 7<<20)...))},
		{"labels", "of memory", zip(append([]byte{2<<3 | 2, 0x80, 0x80, 0x80, 0x07}, bytes.Repeat([]byte{3<<3 | 2, 0}, 7<<20)...))},
		{"malformed", "malformed field", []byte{4<<3 | 2, 0x7f}},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := ReadPprof(bytes.NewReader(c.data))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 3*maxPprof {
			t.Errorf("%s: %d bytes of input took %d MiB", c.name, len(c.data), took>>20)
		}
	}
	// Short stacks with labels, deep ones without: of real profiles the largest for their size.
	for _, depth := range []int{1, 100} {
		p := manyStacks(1000)
		for i := range p.Stacks {
			for len(p.Stacks[i].Frames) < depth {
				p.Stacks[i].Frames = append(p.Stacks[i].Frames, p.Stacks[i].Frames[0])
			}
		}
		var b bytes.Buffer
		if err := Pprof(&b, p, Options{}); err != nil {
			t.Fatal(err)
		}
		raw, err := inflate(&b)
		size, serr := parsedSize(raw)
		if err != nil || serr != nil || size > maxParsed*2/3*int64(len(raw)) {
			t.Errorf("depth %d: %d bytes take %d, %v %v", depth, len(raw), size, err, serr)
		}
	}
}

// FuzzReadPprof: whatever is read can be written in every format, and as pprof keeps its samples.
func FuzzReadPprof(f *testing.F) {
	for _, path := range []string{"testdata/basic.txtar", "testdata/inlined.txtar", "testdata/hostile.txtar"} {
		_, r := load(f, path)
		p, err := pprof.Parse(bytes.NewReader(outputs(f, r)["pprof"]))
		if err != nil {
			f.Fatal(err)
		}
		var b bytes.Buffer
		if err := p.WriteUncompressed(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		p, err := ReadPprof(bytes.NewReader(b))
		if err != nil {
			return
		}
		// One of them at a time: a fuzzer wants to be quick.
		if form := Formats[len(b)%len(Formats)]; form.Whole != nil {
			if err := form.Whole(io.Discard, p, Options{MinShare: -1, Limit: 5}); err != nil {
				t.Errorf("%s: %v", form.Name, err)
			}
		}
		var out bytes.Buffer
		if err := Pprof(&out, p, Options{}); err != nil {
			t.Fatal(err)
		}
		back, err := ReadPprof(&out)
		if err != nil {
			t.Fatal(err)
		}
		if back.Totals.Samples != p.Totals.Samples || len(back.Stacks) != len(p.Stacks) {
			t.Errorf("%d samples in %d stacks, were %d in %d", back.Totals.Samples, len(back.Stacks), p.Totals.Samples, len(p.Stacks))
		}
		write := []diffFunc{Diff, DiffFolded, DiffJSON, FlameDiff}[len(b)%4]
		if err := write(io.Discard, p, back, Options{}); err != nil {
			t.Error(err)
		}
	})
}

// TestPprofEvents: types and units say what was counted, and come back as they were.
func TestPprofEvents(t *testing.T) {
	for _, c := range []struct{ event, typ, unit string }{
		{profile.OffCPU, "off-cpu", "nanoseconds"},
		{"cpu-clock:u", "cpu", "nanoseconds"},
		{"task-clock", "cpu", "nanoseconds"},
		{"page-faults", "page-faults", "count"},
		{"sched:sched_switch", "sched:sched_switch", "count"},
		{"cycles:P", "cycles", "count"},
	} {
		p := manyStacks(3)
		p.Events = []profile.Event{profile.NewEvent(c.event)}
		var b bytes.Buffer
		if err := Pprof(&b, p, Options{}); err != nil {
			t.Fatal(err)
		}
		out, err := pprof.ParseData(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if v := out.SampleType[1]; v.Type != c.typ || v.Unit != c.unit || out.DefaultSampleType != c.typ {
			t.Errorf("%s: type %s, unit %s, shown %s", c.event, v.Type, v.Unit, out.DefaultSampleType)
		}
		if waits := c.event == profile.OffCPU; (out.PeriodType.Type == "") != waits {
			t.Errorf("%s: period type %v", c.event, out.PeriodType)
		}
		q, err := ReadPprof(&b)
		if err != nil || q.Waits() != p.Waits() || q.Events[0].Unit != p.Events[0].Unit {
			t.Errorf("%s: read as %+v, %v", c.event, q.Events, err)
		}
		o := Options{By: Periods}
		if got, want := o.unit(q), o.unit(p); got != want && c.typ != "cpu" {
			t.Errorf("%s: unit %s, was %s", c.event, got, want)
		}
		weights := "samples"
		if c.unit == "nanoseconds" {
			weights = "tracing-ms"
		}
		b.Reset()
		if err := Firefox(&b, p, o); err != nil || !bytes.Contains(b.Bytes(), []byte(`"weightType":"`+weights+`"`)) {
			t.Errorf("%s: no weights of type %s in Firefox's format: %v", c.event, weights, err)
		}
	}
}

func TestNumber(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 7: "7 ns", 999: "999 ns", 1500: "1.5 µs", 12_345_678: "12.35 ms", 1_234_567_890: "1.235 s", 5e15: "5,000,000 s"} {
		if got := profile.Number(n, "ns"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	if got := profile.Quantity(1234, "samples"); got != "1,234 samples" {
		t.Error(got)
	}
}
