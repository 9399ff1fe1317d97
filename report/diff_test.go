package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

type diffFunc func(io.Writer, *profile.Profile, *profile.Profile, Options) error

func diffed(t *testing.T, f diffFunc, before, after *profile.Profile, o Options) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b, before, after, o); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestDiffGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/diff/*.txtar")
	if len(files) == 0 {
		wd, _ := os.Getwd()
		t.Fatalf("%s has no testdata/diff/*.txtar", wd)
	}
	for _, path := range files {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		a := parseArchive(string(text))
		var p [2]*profile.Profile
		for i := range p {
			r, err := parseRecording(a[1+i].data)
			if err != nil {
				t.Fatalf("%s: %s: %v", path, a[1+i].name, err)
			}
			p[i] = r.profile()
		}
		got := slices.Clone(a[:3])
		add := func(name string, b []byte) {
			got = append(got, struct{ name, data string }{name, string(b)})
		}
		add("top", diffed(t, Diff, p[0], p[1], Options{}))
		add("top-all", diffed(t, Diff, p[0], p[1], Options{MinShare: -1}))
		add("top-periods", diffed(t, Diff, p[0], p[1], Options{MinShare: -1, Absolute: true, By: Periods, Width: 80, Limit: 3}))
		add("folded", diffed(t, DiffFolded, p[0], p[1], Options{}))
		add("json", diffed(t, DiffJSON, p[0], p[1], Options{}))
		add("flame", flameData(t, diffed(t, FlameDiff, p[0], p[1], Options{MinShare: -1})))
		if *update {
			if err := os.WriteFile(path, []byte(got.String()), 0o666); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if diff := cmp.Diff(a.String(), got.String()); diff != "" {
			t.Errorf("%s: run with -update to accept (-want +got):\n%s", path, diff)
		}
	}
}

// drawn is a profile of n samples, drawn from a program whose functions have the given weights, each called by one of a few.
func drawn(seed uint64, n int, weights []float64) *profile.Profile {
	r := rand.New(rand.NewPCG(seed, 1))
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/x"}}}
	all := 0.0
	for i, w := range weights {
		p.Funcs = append(p.Funcs, profile.Func{Name: fmt.Sprintf("f%d", i), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Off: uint64(i), Func: int32(i), Mapping: -1})
		all += w
	}
	for i := range weights {
		p.Stacks = append(p.Stacks, profile.Stack{Comm: "x", Stop: unwind.Outermost, Frames: []uint32{uint32(i), uint32(i / 50), 0}})
	}
	for range n {
		x, i := r.Float64()*all, 0
		for ; x >= weights[i] && i+1 < len(weights); i++ {
			x -= weights[i]
		}
		p.Stacks[i].Count++
		p.Stacks[i].Period++
	}
	return p.Filter(func(*profile.Stack) bool { return true })
}

// TestDiffNoise: two runs of one program differ by chance, and no function is reported; one that takes half more is, and its
// frame is the red one.
func TestDiffNoise(t *testing.T) {
	weights := make([]float64, 1000)
	for i := range weights {
		weights[i] = 1000 / float64(i+10)
	}
	before := drawn(1, 50_000, weights)
	for seed := range uint64(10) {
		for _, o := range []Options{{}, {Absolute: true}} {
			after := drawn(2+seed, 50_000, weights)
			if out := diffed(t, Diff, before, after, o); !strings.Contains(string(out), "functions differ no more than by chance") || strings.Contains(string(out), "sigma  module") {
				t.Errorf("seed %d: noise is news:\n%s", seed, out)
			}
		}
	}
	weights[20] *= 1.5
	after := drawn(99, 80_000, weights)
	list := Compare(before, after, Options{})
	if list[0].Func.Name != "f20" || !list[0].Self.Significant() || list[0].Self.Share() <= 0 || list[1].Self.Significant() {
		t.Errorf("first %+v\nthen %+v", list[0], list[1])
	}
	f := decodeDiff(t, diffed(t, FlameDiff, before, after, Options{}))
	for i := range f.n() {
		if name, level := f.name(i), f.Nodes[5*i+4]; name == "f20" && f.Nodes[5*i+2] > 0 && level <= 0 || name != "f20" && name != "f0" && level != 0 {
			t.Errorf("%s: level %d", name, level)
		}
	}
}

// A decodedDiff is what the script sees of two profiles.
type decodedDiff struct {
	decodedFlame
	Nodes []int64
}

func decodeDiff(t *testing.T, b []byte) (f decodedDiff) {
	t.Helper()
	if err := json.Unmarshal(flameData(t, b), &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *decodedDiff) n() int            { return len(f.Nodes) / 5 }
func (f *decodedDiff) name(i int) string { return f.Names[f.Frames[f.Nodes[5*i]][0]][0].(string) }

// each calls f with every stack that ends at a node with a weight of its own in one profile.
func (f *decodedDiff) each(side int, yield func(n uint64, names []string)) {
	var path []string
	for i := range f.n() {
		path = append(path[:f.Nodes[5*i+1]], f.name(i))
		if n := f.Nodes[5*i+2+side]; n > 0 {
			yield(uint64(n), path)
		}
	}
}

// TestDiffSameNumbers: each output of a comparison has the numbers of the two profiles.
func TestDiffSameNumbers(t *testing.T) {
	_, r := load(t, "testdata/basic.txtar")
	before := r.profile()
	_, r = load(t, "testdata/inlined.txtar")
	after := r.profile()
	for side, p := range []*profile.Profile{before, after} {
		want := fmt.Sprint(countsOf(p))
		check := func(what string, c counts) {
			t.Helper()
			for name, n := range c {
				if *n == (count{}) {
					delete(c, name)
				}
			}
			if diff := cmp.Diff(want, fmt.Sprint(c)); diff != "" {
				t.Errorf("%s, side %d (-want +got):\n%s", what, side, diff)
			}
		}
		folded := counts{}
		lines(diffed(t, DiffFolded, before, after, Options{}), func(s string) {
			f := strings.Split(s, " ")
			n, err := strconv.ParseUint(f[len(f)-2+side], 10, 64)
			if err != nil {
				t.Fatalf("%q: %v", s, err)
			}
			names := strings.Split(strings.Join(f[:len(f)-2], " "), ";")[1:]
			slices.Reverse(names)
			if n > 0 {
				folded.add(n, names)
			}
		})
		check("folded", folded)

		var j struct {
			Before, After struct{ Samples, Whole uint64 }
			Functions     []struct {
				Function    string
				Self, Total [2]uint64
			}
		}
		if err := json.Unmarshal(diffed(t, DiffJSON, before, after, Options{}), &j); err != nil {
			t.Fatal(err)
		}
		got := counts{}
		for _, f := range j.Functions {
			if got[f.Function] == nil {
				got[f.Function] = &count{}
			}
			got[f.Function].self += f.Self[side]
			got[f.Function].total += f.Total[side]
		}
		check("json", got)
		if j.Before.Samples != before.Totals.Samples || j.After.Whole != after.Totals.Whole() {
			t.Errorf("%+v", j)
		}

		flame := counts{}
		d := decodeDiff(t, diffed(t, FlameDiff, before, after, Options{MinShare: -1}))
		d.each(1-side, func(n uint64, path []string) {
			path = path[2:]
			if len(path) > 0 && (path[0] == "[truncated]" || path[0] == "[broken]") {
				path = path[1:]
			}
			names := slices.Clone(path)
			slices.Reverse(names)
			flame.add(n, names)
		})
		check("flame", flame)
	}
}

// Whatever the names and however many stacks, the graph is XML and loses nothing.
func TestFlameDiffHostile(t *testing.T) {
	oracle.Long(t)
	before, after := manyStacks(60_000), manyStacks(400)
	f := decodeDiff(t, diffed(t, FlameDiff, before, after, Options{}))
	for side, p := range []*profile.Profile{after, before} {
		sum := uint64(0)
		f.each(side, func(n uint64, _ []string) { sum += n })
		if sum != p.Totals.Samples {
			t.Errorf("side %d: %d samples, want %d", side, sum, p.Totals.Samples)
		}
	}
	empty := &profile.Profile{}
	for _, f := range []diffFunc{Diff, DiffFolded, DiffJSON, FlameDiff} {
		diffed(t, f, empty, empty, Options{})
		diffed(t, f, empty, after, Options{Absolute: true})
		diffed(t, f, after, empty, Options{})
	}
}
