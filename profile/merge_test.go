package profile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// described returns what a profile says, without its numbers: samples and periods by stack.
func described(t *testing.T, p *Profile, at []Place) map[string][2]uint64 {
	t.Helper()
	out := map[string][2]uint64{}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		var b strings.Builder
		fmt.Fprint(&b, at[i].Service, at[i].Pod, " ", s.Comm, " ", s.PID, " ", s.TID, " ", s.Stop, " ", p.Events[s.Event].Name)
		for _, f := range s.Frames {
			l := &p.Locs[f]
			fn, mod := &p.Funcs[l.Func], &p.Modules[l.Module]
			fmt.Fprint(&b, "; ", fn.Name, " ", p.Modules[fn.Module].Path, " ", mod.Path, " ", l.Off, " ", l.How, " ", l.Inlined, " ", p.File(l), ":", l.Line)
			if m := &p.Mappings[l.Mapping]; l.Addr-m.Lo+m.Off != l.Off || l.Addr >= m.Hi || m.Module != l.Module {
				t.Fatalf("location %+v lies outside of %+v", l, m)
			}
		}
		k := b.String()
		if _, ok := out[k]; ok {
			t.Fatalf("twice: %s", k)
		}
		out[k] = [2]uint64{s.Count, s.Period}
	}
	return out
}

// TestMerger: profiles of parts of the samples, merged, are the profile of all of them, in whatever order they come.
func TestMerger(t *testing.T) {
	samples := compilerLike(5000)
	r := rand.New(rand.NewPCG(3, 4))
	began := time.Unix(1_700_000_000, 0)
	about := func(from, to int) Info {
		return Info{Events: []Event{{"cpu-clock", "nanoseconds"}}, Host: "h", Command: "c", Start: began.Add(time.Duration(from) * time.Second), Duration: time.Duration(to-from) * time.Second, Loss: Loss{Samples: uint64(to - from)}}
	}
	const parts = 7
	var b [parts]*Builder
	for i := range b {
		b[i] = NewBuilder()
	}
	even, odd := NewPlace("shop", "market", "shop-0"), NewPlace("shop", "market", "shop-1")
	all := map[Place]*Builder{even: NewBuilder(), odd: NewBuilder()} // each place has a profile of its own
	place := func(i int) Place { return []Place{even, odd}[i%2] }
	for i := range samples {
		part := r.IntN(parts)
		b[part].Add(&samples[i])
		all[place(part)].Add(&samples[i])
	}
	var m Merger
	for _, i := range r.Perm(parts) {
		p := b[i].Profile(inliner{}, about(i, i+1))
		to := m.Add(p, place(i))
		for k := range p.Stacks {
			if got := m.p.Stacks[to[k]]; got.TID != p.Stacks[k].TID || got.Count < p.Stacks[k].Count {
				t.Fatalf("stack %d became %+v", k, got)
			}
		}
	}
	p, at := m.Profile()
	got, want := described(t, p, at), map[string][2]uint64{}
	var totals Totals
	for one, b := range all {
		q := b.Profile(inliner{}, about(0, parts))
		at := make([]Place, len(q.Stacks))
		for i := range at {
			at[i] = one
		}
		maps.Copy(want, described(t, q, at))
		totals.Merge(&q.Totals)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p.Totals != totals {
		t.Errorf("totals %+v, want %+v", p.Totals, totals)
	}
	if diff := cmp.Diff(about(0, parts), p.Info); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if q := p.Filter(func(*Stack) bool { return true }); q.Totals != p.Totals {
		t.Errorf("totals after an empty filter: %+v\nwant %+v", q.Totals, p.Totals)
	}
}

// TestMergerInfo: what profiles do not agree in is left out, and their events are found by name.
func TestMergerInfo(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	a := &Profile{Info: Info{Host: "a", Command: "x", Events: []Event{{"cycles", "count"}, {OffCPU, "nanoseconds"}}, Start: at.Add(time.Hour), Duration: time.Second}, Stacks: []Stack{{Comm: "c", Event: 1, Count: 1, Period: 7}}}
	b := &Profile{Info: Info{Host: "a", Command: "y", Events: []Event{{OffCPU, "nanoseconds"}}, Start: at, Duration: time.Second}, Stacks: []Stack{{Comm: "c", Count: 2, Period: 8}}}
	var m Merger
	m.Add(a, Place{})
	m.Add(b, Place{})
	p, _ := m.Profile()
	want := Info{Host: "a", Events: a.Events, Start: at, Duration: time.Hour + time.Second}
	if diff := cmp.Diff(want, p.Info); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if len(p.Stacks) != 1 || p.Stacks[0].Event != 1 || p.Stacks[0].Count != 3 || p.Stacks[0].Period != 15 {
		t.Errorf("stacks %+v", p.Stacks)
	}
}
