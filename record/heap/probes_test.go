package heap

import (
	"maps"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/profile"
)

// TestWeigh: samples that are taken as often as they should be stand for all allocations, whatever their size.
func TestWeigh(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const period, total = 1000, 10_000_000
	for _, size := range []uint64{8, 100, 1000, 5000} {
		var objects, bytes uint64
		left := r.ExpFloat64() * period
		for range total / size {
			if left -= float64(size); left > 0 {
				continue
			}
			left = r.ExpFloat64() * period
			x := profile.Sample{Period: size}
			weigh(&x, period)
			objects, bytes = objects+x.Count, bytes+x.Period
		}
		// There are total/period samples, or, of large allocations, fewer: their number has a deviation of at most its root.
		if got, limit := float64(bytes)/total, 5/math.Sqrt(total/max(period, float64(size))); math.Abs(got-1) > limit || math.Abs(float64(objects)/unit*float64(size)/float64(bytes)-1) > 0.01 {
			t.Errorf("%d bytes each: %.3f times what was allocated, at most %.3f from 1; %d objects", size, got, limit, objects/unit)
		}
	}
	x := profile.Sample{Period: 77}
	if weigh(&x, 0); x.Period != 77 || x.Count != unit {
		t.Errorf("%+v", x)
	}
	for size, want := range map[uint64]profile.Sample{100: {Period: 1000, Count: 10 * unit}, 3000: {Period: 1000, Count: unit/3 + 1}, 1: {Period: 0, Count: unit}, 1 << 46: {Period: 1, Count: 1}} {
		y := profile.Sample{Size: size, Period: want.Period} // a process's own
		if weigh(&y, period); y.Period != want.Period || y.Count != want.Count && y.Count != want.Count-1 {
			t.Errorf("of %d bytes: %+v, want %+v", size, y, want)
		}
	}
	if weigh(&profile.Sample{}, period); x.Count != unit {
		t.Errorf("%+v", x)
	}
}

// TestProbed: what was freed is not in use, and stacks begin outside of the allocator.
func TestProbed(t *testing.T) {
	p := &profile.Profile{
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""},
		Funcs: []profile.Func{{Name: "f"}, {Name: "malloc"}, {Name: "operator new(unsigned long)"}, {Name: "tcache"}},
		Locs:  []profile.Loc{{Func: 0, Mapping: -1}, {Func: 1, Mapping: -1}, {Func: 2, Mapping: -1}, {Func: 3, Mapping: -1, Inlined: true}},
	}
	frames := []uint32{3, 1, 2, 0}
	p.Stacks = []profile.Stack{
		{Frames: frames, PID: 1, Event: 1, Count: 2 * unit, Period: 20},
		{Frames: frames, PID: 1, Event: 0, Count: 5 * unit, Period: 50},
		{Frames: frames, PID: 2, Event: 0, Count: 1 * unit, Period: 10},
		{Frames: frames, PID: 2, Event: 1, Count: 9 * unit, Period: 90},
		{PID: 3, Event: 0, Count: 1 * unit, Period: 1},
	}
	q := probed(p, nil)
	got := map[[2]int32][2]uint64{}
	for _, s := range q.Stacks {
		got[[2]int32{s.PID, s.Event}] = [2]uint64{s.Count, s.Period}
		if s.PID < 3 && (len(s.Frames) != 1 || s.Frames[0] != 0) {
			t.Errorf("%v", s.Frames)
		}
	}
	want := map[[2]int32][2]uint64{{1, 0}: {5, 50}, {1, 1}: {3, 30}, {2, 0}: {1, 10}, {3, 0}: {1, 1}, {3, 1}: {1, 1}}
	if len(got) != len(want) {
		t.Errorf("%v, want %v", got, want)
	}
	for k, n := range want {
		if got[k] != n {
			t.Errorf("process %d, event %d: %v, want %v", k[0], k[1], got[k], n)
		}
	}
	if !q.Heap() || q.Totals.Samples != 11 {
		t.Errorf("%+v", q.Totals)
	}
}

// TestProbedRenamed: a thread that has another name when it frees leaves nothing in use; what its name has allocated goes first.
func TestProbedRenamed(t *testing.T) {
	p := &profile.Profile{
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""},
		Funcs: []profile.Func{{Name: "f"}, {Name: "malloc"}}, Locs: []profile.Loc{{Func: 0, Mapping: -1}, {Func: 1, Mapping: -1}},
	}
	frames := []uint32{1, 0}
	stack := func(event int32, comm string, n uint64) profile.Stack {
		return profile.Stack{Frames: frames, PID: 1, Comm: comm, Event: event, Count: n * unit, Period: 10 * n}
	}
	p.Stacks = []profile.Stack{stack(1, "new", 5), stack(0, "old", 5), stack(0, "new", 3), stack(0, "other", 1)}
	got := map[string][2]uint64{}
	for _, s := range probed(p, nil).Stacks {
		if s.Event == 1 {
			got[s.Comm] = [2]uint64{s.Count, s.Period}
		}
	}
	if want := map[string][2]uint64{"old": {3, 30}, "other": {1, 10}}; !maps.Equal(got, want) {
		t.Errorf("in use: %v, want %v", got, want)
	}
}

// TestBeyond: stacks of processes that report themselves begin at the caller of the last function that allocates in the module that has reported; where
// it has none, they stay as they are.
func TestBeyond(t *testing.T) {
	p := &profile.Profile{Funcs: []profile.Func{{Name: "probe"}, {Name: "malloc"}, {Name: "realloc"}, {Name: "operator new(unsigned long)"}, {Name: "main"}, {Name: "arena"}}}
	loc := func(f, module int32) uint32 {
		p.Locs = append(p.Locs, profile.Loc{Func: f, Module: module})
		return uint32(len(p.Locs) - 1)
	}
	for _, c := range []struct {
		frames []uint32
		want   int // are left out
	}{
		{[]uint32{loc(0, 0), loc(1, 0), loc(4, 1)}, 2},
		{[]uint32{loc(0, 0), loc(1, 0), loc(2, 0), loc(5, 0), loc(4, 0)}, 3},
		{[]uint32{loc(0, 0), loc(1, 0), loc(3, 1), loc(4, 1)}, 2}, // begin leaves the operator out
		{[]uint32{loc(0, 0), loc(5, 0), loc(4, 1), loc(1, 0), loc(4, 1)}, 0},
		{[]uint32{loc(0, -1), loc(1, -1), loc(4, 1)}, 0},
		{[]uint32{loc(0, 0), loc(1, 0)}, 0}, // one stays
	} {
		if got := beyond(p, c.frames); len(got) != len(c.frames)-c.want {
			t.Errorf("%v: %v, %d of which were to be left out", c.frames, got, c.want)
		}
	}
}
