package report

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

var update = flag.Bool("update", false, "rewrite golden files")

// A recording is what the input of a golden file describes:
//
//	event cpu-clock:ppp                          an event
//	lost 12                                      samples lost
//	map NAME LO HI OFF PATH [BUILDID]            a mapping, by a short name
//	sym NAME START SIZE FUNCTION                 a function, by file offset; FUNCTION is the rest of the line
//	fn NAME START SIZE                           a function without a symbol
//	ksym START SIZE [MODULE] FUNCTION            a function of the kernel
//	src NAME START SIZE PLACE; PLACE; ...        the source of a range, innermost first: FILE:LINE:COLUMN, and of inlined calls
//	                                             FUNCTION after it
//	sample PID/TID COMM TIME PERIOD STOP FRAMES  FRAMES: k:ADDR, or NAME+OFF:HOW, or ?ADDR; innermost first
//
// OFF of a frame that is not exact is that of the return address.
type recording struct {
	info    profile.Info
	samples []profile.Sample
	maps    map[string]*unwind.Mapping
	syms    map[*unwind.Module][]sym
	srcs    map[*unwind.Module][]src
	ksyms   []sym
}

type sym struct {
	start, size  uint64
	name, module string
}

type src struct {
	start, size uint64
	places      []profile.Source
}

func (r *recording) find(syms []sym, a uint64) profile.Name {
	for _, s := range syms {
		if a-s.start < s.size {
			return profile.Name{Func: s.name, Start: s.start, Module: s.module}
		}
	}
	return profile.Name{}
}

func (r *recording) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	for i, o := range offs {
		names[i] = r.find(r.syms[m], o)
		for _, s := range r.srcs[m] {
			if o-s.start < s.size {
				names[i].Source = s.places
			}
		}
	}
}

func (r *recording) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		names[i] = r.find(r.ksyms, a)
	}
}

func (r *recording) profile() *profile.Profile {
	b := profile.NewBuilder()
	for i := range r.samples {
		b.Add(&r.samples[i])
	}
	return b.Profile(r, r.info)
}

func parseRecording(text string) (*recording, error) {
	r := &recording{maps: map[string]*unwind.Mapping{}, syms: map[*unwind.Module][]sym{}, srcs: map[*unwind.Module][]src{}}
	var bad error
	num := func(s string) uint64 {
		n, err := strconv.ParseUint(s, 0, 64)
		if err != nil {
			bad = err
		}
		return n
	}
	mods := map[string]*unwind.Module{}
	for i, line := range strings.Split(text, "\n") {
		f := strings.Fields(line)
		if len(f) == 0 || f[0] == "#" {
			continue
		}
		if need := map[string]int{"event": 2, "lost": 2, "map": 6, "sym": 5, "fn": 4, "ksym": 4, "src": 5, "sample": 6}[f[0]]; need == 0 || len(f) < need {
			return nil, fmt.Errorf("line %d: %q", i+1, line)
		}
		switch f[0] {
		case "event":
			r.info.Events = append(r.info.Events, profile.NewEvent(f[1]))
		case "lost":
			r.info.Loss.Samples = num(f[1])
		case "map":
			m := mods[f[5]]
			if m == nil {
				id := ""
				if len(f) > 6 {
					id = f[6]
				}
				m = unwind.NewModule(f[5], id, nil)
				mods[f[5]] = m
			}
			r.maps[f[1]] = &unwind.Mapping{Lo: arch.Addr(num(f[2])), Hi: arch.Addr(num(f[3])), Off: num(f[4]), Module: m}
		case "sym", "fn":
			s := sym{start: num(f[2]), size: num(f[3]), name: strings.Join(f[4:], " ")}
			m := r.maps[f[1]].Module
			r.syms[m] = append(r.syms[m], s)
		case "src":
			s := src{start: num(f[2]), size: num(f[3])}
			for _, place := range strings.Split(strings.Join(f[4:], " "), "; ") {
				at, name, _ := strings.Cut(place, " ")
				p := strings.Split(at, ":")
				s.places = append(s.places, profile.Source{Func: name, File: p[0], Line: uint32(num(p[1])), Column: uint32(num(p[2]))})
			}
			m := r.maps[f[1]].Module
			r.srcs[m] = append(r.srcs[m], s)
		case "ksym":
			s := sym{start: num(f[1]), size: num(f[2]), name: f[len(f)-1]}
			if len(f) > 4 {
				s.module = f[3]
			}
			r.ksyms = append(r.ksyms, s)
		case "sample":
			pid, tid, _ := strings.Cut(f[1], "/")
			s := profile.Sample{PID: int32(num(pid)), TID: int32(num(tid)), Comm: strings.ReplaceAll(f[2], "_", " "), Time: num(f[3]), Period: num(f[4]), Stop: parseStop(f[5])}
			for _, fr := range f[6:] {
				if a, ok := strings.CutPrefix(fr, "k:"); ok {
					s.Kernel = append(s.Kernel, num(a))
					continue
				}
				place, how, _ := strings.Cut(fr, ":")
				u := unwind.Frame{How: unwind.HowStart}
				for u.How < 8 && how != "" && u.How.String() != how {
					u.How++
				}
				u.Exact = u.How == unwind.HowStart || u.How == unwind.HowSignal
				if a, ok := strings.CutPrefix(place, "?"); ok {
					u.PC = arch.Addr(num(a))
				} else {
					name, off, _ := strings.Cut(place, "+")
					u.Mapping = r.maps[name]
					u.PC = u.Mapping.Lo + arch.Addr(num(off)-u.Mapping.Off)
				}
				s.User = append(s.User, u)
			}
			s.HasUser = s.Stop != unwind.NoUserStack
			r.samples = append(r.samples, s)
		}
		if bad != nil {
			return nil, fmt.Errorf("line %d: %q: %w", i+1, line, bad)
		}
	}
	r.info.Start = time.Unix(1700000000, 0)
	r.info.Duration = 2 * time.Second
	return r, nil
}

func parseStop(text string) (s unwind.Stop) {
	for s < unwind.NumStops && s.String() != text {
		s++
	}
	return s
}

// An archive is the text of a txtar file: a comment, and files with names.
type archive []struct{ name, data string } // the first is the comment

func parseArchive(text string) (a archive) {
	a = make(archive, 1)
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "-- "); ok && strings.HasSuffix(name, " --\n") {
			a = append(a, struct{ name, data string }{strings.TrimSuffix(name, " --\n"), ""})
			continue
		}
		a[len(a)-1].data += line
	}
	return a
}

func (a archive) String() string {
	s := a[0].data
	for _, f := range a[1:] {
		s += "-- " + f.name + " --\n" + f.data
	}
	return s
}

func load(t testing.TB, path string) (archive, *recording) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	a := parseArchive(string(b))
	r, err := parseRecording(a[1].data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return a, r
}

// outputs runs every report.
func outputs(t testing.TB, r *recording) map[string][]byte {
	out := map[string][]byte{}
	p := r.profile()
	run := func(name string, f Func, o Options) {
		var b bytes.Buffer
		if err := f(&b, p, o); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		out[name] = b.Bytes()
	}
	run("top", Top, Options{})
	run("top-narrow", Top, Options{Width: 60, Limit: 3, By: Periods})
	run("callers", Callers, Options{MinShare: -1})
	run("callees", Callees, Options{MinShare: -1})
	run("tree", Tree, Options{MinShare: -1})
	run("tree-narrow", Tree, Options{MinShare: 0.3, Width: 50})
	run("folded", Folded, Options{})
	run("folded-periods", Folded, Options{By: Periods})
	run("json-aggregated", JSON, Options{})
	run("perf-aggregated", Perf, Options{})
	run("pprof", Formats.Named("pprof").Whole, Options{})
	run("flame", Flame, Options{MinShare: -1})
	stream := func(name string, make func(*bytes.Buffer) *Stream) {
		var b bytes.Buffer
		st := make(&b)
		for i := range r.samples {
			if err := st.Sample(&r.samples[i]); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		if err := st.Close(r.info.Loss); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if st.Totals() != p.Totals {
			t.Errorf("%s: totals %+v\nwant %+v", name, st.Totals(), p.Totals)
		}
		out[name] = b.Bytes()
	}
	run("firefox-aggregated", Firefox, Options{})
	run("speedscope-aggregated", Speedscope, Options{})
	stream("speedscope", func(b *bytes.Buffer) *Stream { return NewSpeedscope(b, r, r.info, Options{}) })
	stream("firefox", func(b *bytes.Buffer) *Stream { return NewFirefox(b, r, r.info, Options{}) })
	stream("json", func(b *bytes.Buffer) *Stream { return NewJSON(b, r, r.info, Options{Summary: true}) })
	stream("perf", func(b *bytes.Buffer) *Stream { return NewPerf(b, r, r.info, Options{}) })
	return out
}

// TestHostileEvent: what a recording calls its event makes no line, no stack, and no command to a terminal.
func TestHostileEvent(t *testing.T) {
	of := func(f Func, event string) string {
		_, r := load(t, "testdata/basic.txtar")
		r.info.Events[0].Name = event
		var b bytes.Buffer
		if err := f(&b, r.profile(), Options{By: Periods}); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for _, form := range Formats {
		name := form.Name
		if form.Whole == nil || name == "stacks" { // it quotes
			continue
		}
		got, want := of(form.Whole, "c\n\x1b[2J\tb\u009bk;l main;x\u202e7"), of(form.Whole, "c  [2J b k;l main;x 7")
		if got != want {
			t.Errorf("%s\n got %q\nwant %q", name, got, want)
		}
		if last := got[strings.LastIndexByte(strings.TrimSpace(got), '\n')+1:]; name == "folded" &&
			(!strings.HasPrefix(last, "# ") || !strings.Contains(last, "c  [2J b k:l main:x 7") || strings.Contains(last, ";")) {
			t.Errorf("folded ends with %q", last)
		}
	}
}

func TestGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/*.txtar")
	if len(files) == 0 {
		wd, _ := os.Getwd()
		t.Fatalf("%s has no testdata/*.txtar", wd)
	}
	for _, path := range files {
		t.Run(filepath.Base(path), func(t *testing.T) {
			a, r := load(t, path)
			out := outputs(t, r)
			out["pprof"] = pprofText(t, out["pprof"])
			got := slices.Clone(a[:2])
			for _, name := range []string{"top", "top-narrow", "callers", "callees", "tree", "tree-narrow", "folded", "folded-periods", "json", "json-aggregated", "perf", "perf-aggregated", "pprof", "flame", "speedscope", "speedscope-aggregated", "firefox", "firefox-aggregated"} {
				b := out[name]
				if name == "flame" {
					b = flameData(t, b)
				}
				got = append(got, struct{ name, data string }{name, string(b)})
			}
			if *update {
				if err := os.WriteFile(path, []byte(got.String()), 0o666); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(a.String(), got.String()); diff != "" {
				t.Errorf("run with -update to accept (-want +got):\n%s", diff)
			}
		})
	}
}
