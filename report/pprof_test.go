package report

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
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
	oracle.Long(t)
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
		back, err := pprof.Read(bytes.NewReader(outputs(t, r)["pprof"]))
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

// FuzzReadPprof: whatever is read can be written in every format, and as pprof keeps its samples.
func FuzzReadPprof(f *testing.F) {
	for _, path := range []string{"testdata/basic.txtar", "testdata/inlined.txtar", "testdata/hostile.txtar"} {
		_, r := load(f, path)
		p, err := proto.Parse(bytes.NewReader(outputs(f, r)["pprof"]))
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
		p, err := pprof.Read(bytes.NewReader(b))
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
		if err := pprof.Write(&out, p); err != nil {
			t.Fatal(err)
		}
		back, err := pprof.Read(&out)
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

// TestPprofEvents: what was read from pprof's format is shown with the unit that was written.
func TestPprofEvents(t *testing.T) {
	for _, c := range []struct{ event, weights string }{
		{profile.OffCPU, "tracing-ms"}, {"cpu-clock:u", "tracing-ms"}, {"page-faults", "samples"}, {"sched:sched_switch", "samples"}, {"cycles:P", "samples"},
	} {
		p := manyStacks(3)
		p.Events = []profile.Event{profile.NewEvent(c.event)}
		var b bytes.Buffer
		if err := pprof.Write(&b, p); err != nil {
			t.Fatal(err)
		}
		q, err := pprof.Read(&b)
		if err != nil {
			t.Fatal(err)
		}
		o := Options{By: Periods}
		if got, want := o.unit(q), o.unit(p); got != want {
			t.Errorf("%s: unit %s, was %s", c.event, got, want)
		}
		b.Reset()
		if err := Firefox(&b, p, o); err != nil || !bytes.Contains(b.Bytes(), []byte(`"weightType":"`+c.weights+`"`)) {
			t.Errorf("%s: no weights of type %s in Firefox's format: %v", c.event, c.weights, err)
		}
	}
}
