package report

import (
	"io"
	"maps"
	"testing"

	"github.com/unspool/unspool/profile"
)

// TestNameless: a stream knows what a profile of the same samples knows: which modules took time in code without names, each once, and how much.
func TestNameless(t *testing.T) {
	_, r := load(t, "testdata/basic.txtar")
	p := r.profile()
	want := map[profile.Module]uint64{}
	for i := range p.Stacks {
		if s := &p.Stacks[i]; len(s.Frames) > 0 {
			if l := &p.Locs[s.Frames[0]]; !p.Funcs[l.Func].Named {
				want[p.Modules[l.Module]] += s.Period
			}
		}
	}
	st := NewJSON(io.Discard, r, r.info, Options{})
	for i := range r.samples {
		if err := st.Sample(&r.samples[i]); err != nil {
			t.Fatal(err)
		}
	}
	mods, weights := st.Nameless()
	got := map[profile.Module]uint64{}
	for i, m := range mods {
		got[m] = weights[i]
	}
	if len(want) == 0 || len(got) != len(mods) || len(weights) != len(mods) || !maps.Equal(got, want) {
		t.Errorf("%v, %d modules, want %v", got, len(mods), want)
	}
}
