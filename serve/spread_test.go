package serve

import (
	"testing"
	"time"

	"github.com/unspool/unspool/profile"
)

// TestSpread: the samples of an interval lie evenly in it, those of each stack, too; waits have no place in it.
func TestSpread(t *testing.T) {
	begin := time.Unix(1_700_000_000, 0)
	p := &profile.Profile{
		Info:   profile.Info{Events: []profile.Event{{Name: "cpu-clock", Unit: "nanoseconds"}, {Name: profile.OffCPU, Unit: "nanoseconds"}}, Start: begin, Duration: 10 * time.Second},
		Stacks: []profile.Stack{{Count: 500, Period: 5000}, {Event: 1, Count: 7, Period: 7}, {Count: 1, Period: 10}, {Count: 499, Period: 499}},
	}
	var times Times
	times.Spread(p, []int32{3, 4, 5, 6})
	counts, periods := map[int32][10]int{}, map[int32]uint64{}
	times.each(0, 1<<63, func() bool { return false }, func(c *chunk, first int, _ bool) {
		for i := range c.n {
			n := counts[c.stack[i]]
			n[(c.time[i]-uint64(begin.UnixNano()))/1e9]++
			counts[c.stack[i]] = n
			periods[c.stack[i]] += times.periodAt(c, first, i)
		}
	})
	if len(counts) != 3 || periods[3] != 5000 || periods[5] != 10 || periods[6] != 499 {
		t.Errorf("counts %v, periods %v", counts, periods)
	}
	for stack, total := range map[int32]int{3: 500, 6: 499} {
		for second, n := range counts[stack] {
			if n < total/10-2 || n > total/10+2 {
				t.Errorf("stack %d has %d samples of %d in second %d", stack, n, total, second)
			}
		}
	}
	late := *p
	late.Start = time.Time{}
	var none Times
	if none.Spread(&late, []int32{0, 0, 0, 0}); none.n != 0 {
		t.Errorf("%d samples of an interval without a beginning", none.n)
	}
}

// TestServices: of profiles of an agent, stacks are grouped by service unless the page says otherwise, and a filter takes some services or pods.
func TestServices(t *testing.T) {
	p := &profile.Profile{
		Info:    profile.Info{Events: []profile.Event{{Name: "cpu-clock", Unit: "nanoseconds"}}, Start: time.Unix(1_700_000_000, 0), Duration: 10 * time.Second},
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""}, Funcs: []profile.Func{{Name: "main", Named: true}}, Locs: []profile.Loc{{Mapping: -1}},
		Stacks: []profile.Stack{{Frames: []uint32{0}, Comm: "sh", PID: 1, TID: 1, Count: 3, Period: 3}, {Frames: []uint32{0}, Comm: "sh", PID: 2, TID: 2, Count: 4, Period: 4}},
	}
	p = p.Filter(func(*profile.Stack) bool { return true })
	rec := &Recording{Profile: p, Times: &Times{}, Places: []profile.Place{{Service: "web"}, profile.NewPlace("db", "market", "db-0")}, Interval: 10 * time.Second}
	rec.Times.Spread(p, []int32{0, 1})
	h := start(t, nil, rec)
	var info struct {
		Services, Pods     bool
		Interval, Duration uint64
		Start              int64
	}
	if get(t, h, "/api/info", &info); !info.Services || !info.Pods || info.Interval != 10e9 || info.Start < 1_700_000_000_000 || info.Start+int64(info.Duration/1e6) > 1_700_000_010_000 {
		t.Errorf("%+v", info)
	}
	for query, want := range map[string]struct {
		label  string
		weight uint64
	}{"": {"web", 7}, "&service=^d": {"db", 4}, "&group=comm": {"sh", 7}, "&service=x": {"", 0}, "&pod=^market/": {"db", 4}, "&group=pod": {"market/db-0", 7}, "&group=pod&pod=%5E$": {"no pod", 3}} {
		var g struct {
			head
			Labels []struct{ Text string }
		}
		get(t, h, "/api/graph?view=calls"+query, &g)
		found := want.label == ""
		for _, l := range g.Labels {
			found = found || l.Text == want.label
		}
		if !found || g.All[0] != want.weight {
			t.Errorf("%q: %d samples, labels %v", query, g.All[0], g.Labels)
		}
	}
}
