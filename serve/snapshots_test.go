package serve

import (
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// growing is a heap profile of an event with snapshots after 1, 2 and 4 seconds. Process 1 has 10, 30 and 20 bytes in f, process 2 has 0, 5 and 5
// objects of 100 bytes each in g; of what only grows, process 1 has 10, 30 and 30.
func growing(event string, last uint64) *Recording {
	p := &profile.Profile{
		Info:    profile.Info{Events: []profile.Event{profile.HeapEvent(event)}, Start: time.Unix(1_700_000_000, 0), Duration: 4 * time.Second},
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""},
		Funcs:  []profile.Func{{Name: "f", Named: true}, {Name: "g", Named: true}},
		Locs:   []profile.Loc{{Func: 0, Mapping: -1}, {Func: 1, Mapping: -1}},
		Stacks: []profile.Stack{{Frames: []uint32{0}, Comm: "a", PID: 1, Stop: unwind.Outermost, Count: last / 10, Period: last}, {Frames: []uint32{1}, Comm: "b", PID: 2, Stop: unwind.Outermost, Count: 5, Period: 500}},
	}
	var times Times
	at := func(d time.Duration, f, g uint64) {
		q := *p
		q.Duration = d
		q.Stacks = slices.Clone(p.Stacks)
		q.Stacks[0].Count, q.Stacks[0].Period, q.Stacks[1].Count, q.Stacks[1].Period = f/10, f, g, 100*g
		times.AddSnapshot(&q, []int32{0, 1})
	}
	at(time.Second, 10, 0)
	at(2*time.Second, 30, 5)
	at(4*time.Second, last, 5)
	return &Recording{Profile: p.Filter(func(*profile.Stack) bool { return true }), Times: &times, Periods: true}
}

// TestSnapshots: the time line has what was in use at each time, and a range of time shows its end; of allocations, it has what came in a time.
func TestSnapshots(t *testing.T) {
	const sec = "000000000"
	for _, c := range []struct {
		event   string
		last    uint64
		query   string
		all, of []uint32          // the bins of all, and of f
		ranges  map[string]uint64 // bytes by query
	}{
		{profile.HeapInUse, 20, "by=periods", []uint32{10, 530, 520, 520}, []uint32{10, 30, 20, 20},
			map[string]uint64{"": 520, "lo=0&hi=900000000": 10, "lo=0&hi=1500000000": 530, "lo=0&hi=2" + sec: 530, "lo=2100000000&hi=9" + sec: 520}},
		{profile.HeapInUse, 20, "by=samples", []uint32{1, 8, 7, 7}, []uint32{1, 3, 2, 2}, nil},
		{profile.HeapAlloc, 40, "by=periods", []uint32{10, 520, 5, 5}, []uint32{10, 20, 5, 5},
			map[string]uint64{"": 540, "lo=0&hi=900000000": 10, "lo=0&hi=1500000000": 530, "lo=1" + sec + "&hi=2" + sec: 520, "lo=2100000000&hi=9" + sec: 10}},
	} {
		h := start(t, nil, growing(c.event, c.last))
		var info struct {
			Duration uint64
			Timed    bool
		}
		if get(t, h, "/api/info", &info); info.Duration != 4e9+1 || !info.Timed {
			t.Errorf("%s: %+v", c.event, info)
		}
		var line timeline
		get(t, h, "/api/timeline?from=0&to=4000000000&bins=4&limit=9&with=f&"+c.query, &line)
		if len(line.Lanes) != 3 || line.Unit != 1 || line.Grows != (c.event == profile.HeapAlloc) || !slices.Equal(line.Lanes[0].All, c.all) || !slices.Equal(line.Lanes[0].Kept, c.of) {
			t.Fatalf("%s %s: %+v, want %v of %v", c.event, c.query, line, c.of, c.all)
		}
		for _, l := range line.Lanes[1:] {
			if want := map[string][]uint32{"a": c.of, "b": {0, 0, 0, 0}}[l.Thread.Comm]; !slices.Equal(l.Kept, want) {
				t.Errorf("%s %s: of %s %v, want %v", c.event, c.query, l.Thread.Comm, l.Kept, want)
			}
		}
		for query, want := range c.ranges {
			var top topAnswer
			if get(t, h, "/api/top?by=periods&"+query, &top); top.All[0] != want {
				t.Errorf("%s %s: %d bytes, want %d", c.event, query, top.All[0], want)
			}
		}
	}
}

// TestSnapshotsLarge: what 32 bits have no room for is drawn in larger units.
func TestSnapshotsLarge(t *testing.T) {
	h := start(t, nil, growing(profile.HeapInUse, 1<<40))
	var line timeline
	get(t, h, "/api/timeline?from=0&to=4000000000&bins=4&by=periods", &line)
	if all := line.Lanes[0].All; line.Unit != 1024 || all[3] != 1<<30+1 || all[0] != 1 {
		t.Errorf("%+v", line)
	}
}
