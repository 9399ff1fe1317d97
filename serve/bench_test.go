package serve

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/unspool/unspool/profile"
)

const (
	benchSamples = 10_000_000
	benchStacks  = 500_000
)

// large is a recording of 10 million samples in 500,000 different stacks, 30 frames deep on average, of 64 threads and 30,000
// functions.
var large = sync.OnceValue(func() *Recording {
	rnd := rand.New(rand.NewPCG(1, 2))
	p := &profile.Profile{Info: profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock")}}, Files: []string{""}}
	for i := range 40 {
		p.Modules = append(p.Modules, profile.Module{Path: fmt.Sprintf("/lib/lib%d.so", i)})
	}
	for i := range 30_000 {
		p.Funcs = append(p.Funcs, profile.Func{Name: fmt.Sprintf("ns%d::type<int, %d>::method(char const*)", i%50, i), Module: int32(i % 40), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Func: int32(i), Module: int32(i % 40), Mapping: -1})
	}
	var path []uint32 // outermost first
	for range benchStacks {
		keep := len(path) * (50 + rnd.IntN(50)) / 100
		path = path[:keep]
		for len(path) < 10 || rnd.IntN(8) > 0 && len(path) < 60 {
			// Functions call few others.
			next := rnd.Uint32N(3)
			if len(path) > 0 {
				next = (path[len(path)-1]*31 + uint32(len(path))*7 + rnd.Uint32N(4)) % 30_000
			}
			path = append(path, next)
		}
		f := slices.Clone(path)
		slices.Reverse(f)
		t := rnd.Int32N(64)
		p.Stacks = append(p.Stacks, profile.Stack{Frames: f, Comm: fmt.Sprintf("pool-%d", t/8), PID: 7, TID: t + 7})
	}
	times := &Times{}
	now := uint64(0)
	for range benchSamples {
		now += rnd.Uint64N(20_000)
		s := int(rnd.Uint64N(benchStacks))
		p.Stacks[s].Count++
		p.Stacks[s].Period += 1_000_000
		times.Add(now, s, 1_000_000)
	}
	return &Recording{Profile: p.Filter(func(*profile.Stack) bool { return true }), Times: times}
})

// BenchmarkViews times what the server does for each view of 10 million samples.
func BenchmarkViews(b *testing.B) {
	d := newData(large(), nil)
	ctx := context.Background()
	none := func(float64) {}
	all := filter{group: "comm", pid: -1, tid: -1, event: -1, hi: math.MaxUint64}
	t := newTree(ctx, d, groupings["comm"], none)
	w := d.weigh(ctx, t, &all)
	half := all
	half.lo, half.hi = d.times.length()/4, d.times.length()*3/4
	with := all
	with.with = `ns7::.*method`
	b.Run("tree", func(b *testing.B) {
		for b.Loop() {
			newTree(ctx, d, groupings["comm"], none)
		}
		b.ReportMetric(float64(len(t.label)), "nodes")
	})
	for name, f := range map[string]*filter{"all": &all, "half the time": &half, "by function": &with} {
		b.Run("sums/"+name, func(b *testing.B) {
			for b.Loop() {
				d.weigh(ctx, t, f)
			}
		})
	}
	hottest, err := newTop(ctx, d, w, &topQuery{sort: "total", limit: 20})
	if err != nil {
		b.Fatal(err)
	}
	for _, view := range []string{"calls", "inverted", "callers", "callees"} {
		b.Run("graph/"+view, func(b *testing.B) {
			n := 0
			for b.Loop() {
				out, err := json.Marshal(newGraph(ctx, w, &graphQuery{view: view, width: 1600, fn: hottest.Rows[10].ID}))
				if err != nil {
					b.Fatal(err)
				}
				n = len(out)
			}
			b.ReportMetric(float64(n), "bytes")
		})
	}
	b.Run("top", func(b *testing.B) {
		for b.Loop() {
			if _, err := newTop(ctx, d, w, &topQuery{limit: 200}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("search", func(b *testing.B) {
		for b.Loop() {
			if _, err := w.search("method"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("timeline", func(b *testing.B) {
		for b.Loop() {
			newTimeline(ctx, d, t, &all, &timelineQuery{hi: math.MaxUint64, bins: 800, limit: 64})
		}
	})
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	b.Run("memory", func(b *testing.B) {
		for b.Loop() {
		}
		b.ReportMetric(float64(m.HeapAlloc)/(1<<20), "MiB")
		b.ReportMetric(float64(len(d.times.chunks)*chunkSize*16)/benchSamples, "bytes/sample")
	})
	runtime.KeepAlive(w)
}
