package serve

import (
	"slices"
	"testing"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// waiting is a recording of two threads that wait: from 0 to 400 and 500 to 1000, and from 250 to 750.
func waiting() *Recording {
	p := &profile.Profile{
		Info:    profile.Info{Events: []profile.Event{profile.NewEvent(profile.OffCPU)}},
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""},
		Funcs:  []profile.Func{{Name: "read", Named: true}, {Name: "lock", Named: true}},
		Locs:   []profile.Loc{{Func: 0, Mapping: -1}, {Func: 1, Mapping: -1}},
		Stacks: []profile.Stack{{Frames: []uint32{0}, PID: 1, TID: 1, Stop: unwind.Outermost, Count: 2, Period: 900}, {Frames: []uint32{1}, PID: 1, TID: 2, Stop: unwind.Outermost, Count: 1, Period: 500}},
	}
	times := &Times{Waits: true}
	times.Add(10_400, 0, 400)
	times.Add(10_750, 1, 500)
	times.Add(11_000, 0, 500)
	return &Recording{Profile: p.Filter(func(*profile.Stack) bool { return true }), Times: times, Periods: p.Waits()}
}

// TestWaits draws waits from their beginning to their end, and counts of each what lies in a selection.
func TestWaits(t *testing.T) {
	h := start(t, nil, waiting())
	var info struct{ Duration uint64 }
	if get(t, h, "/api/info", &info); info.Duration != 1001 {
		t.Errorf("%d ns from the first beginning to the last end, and that end", info.Duration)
	}
	var line timeline
	get(t, h, "/api/timeline?from=0&to=1000&bins=4&limit=9&by=periods&with=lock", &line)
	want := [][2][]uint32{
		{{1000, 1600, 2000, 1000}, {0, 1000, 1000, 0}},
		{{1000, 600, 1000, 1000}, {0, 0, 0, 0}},
		{{0, 1000, 1000, 0}, {0, 1000, 1000, 0}},
	}
	if len(line.Lanes) != 3 || !line.Waits {
		t.Fatalf("%+v", line)
	}
	for i, l := range line.Lanes {
		if !slices.Equal(l.All, want[i][0]) || !slices.Equal(l.Kept, want[i][1]) {
			t.Errorf("lane %d: %v of %v, want %v of %v", i, l.Kept, l.All, want[i][1], want[i][0])
		}
	}
	for _, c := range []struct {
		query         string
		weight, count uint64
	}{
		{"lo=0&hi=1001", 1400, 3},
		{"lo=300&hi=600", 100 + 100 + 300, 3},
		{"lo=760&hi=900", 140, 1},
		{"lo=410&hi=420&with=lock", 10, 1},
		{"lo=410&hi=420&with=read", 0, 0},
	} {
		var top topAnswer
		get(t, h, "/api/top?by=periods&"+c.query, &top)
		if top.All[0] != c.weight || top.Totals[0].Samples != c.count {
			t.Errorf("%s: %d ns in %d waits, want %d in %d", c.query, top.All[0], top.Totals[0].Samples, c.weight, c.count)
		}
	}
}
