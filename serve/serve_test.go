package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/unwind"
)

// names names code after its offset; every fifth function has a call inlined.
type names struct{}

func (names) User(m *unwind.Module, offs []uint64, out []profile.Name) {
	for i, off := range offs {
		n := fmt.Sprintf("%s::f%d(int)", strings.TrimPrefix(m.Path, "/lib/"), off/16)
		out[i] = profile.Name{Func: n, Start: off &^ 15}
		if off/16%5 == 0 {
			out[i].Source = []profile.Source{{Func: "inl::" + n, File: "/src/a.h", Line: 3}, {File: "/src/a.cc", Line: 7}}
		}
	}
}

func (names) Kernel(addrs []uint64, out []profile.Name) {
	for i, a := range addrs {
		out[i] = profile.Name{Func: fmt.Sprintf("sys_%d", a&0xf)}
	}
}

// sample is what tests know of each sample.
type sample struct {
	time, period uint64
	stack        int
}

// record makes a recording of n samples by a seed.
func record(n int, seed uint64) (*Recording, []sample) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	var maps []*unwind.Mapping
	for i, m := range []string{"/bin/app", "/lib/libc.so.6", "/lib/libx.so"} {
		lo := arch.Addr(0x10000 * (i + 1))
		maps = append(maps, &unwind.Mapping{Lo: lo, Hi: lo + 0x1000, Module: &unwind.Module{Path: m, BuildID: "ab"}})
	}
	b := profile.NewBuilder()
	times := &Times{}
	var all []sample
	now := uint64(5_000_000_000)
	for range n {
		now += rnd.Uint64N(200_000)
		thread := rnd.Int32N(6)
		s := profile.Sample{PID: 100 + thread/3, TID: 100 + thread, Comm: fmt.Sprintf("worker-%d", thread/2), Time: now, Period: 1000 + rnd.Uint64N(5), HasUser: true}
		if rnd.IntN(50) == 0 {
			s.Period = 1 << 40
		}
		if rnd.IntN(10) == 0 {
			s.Stop = unwind.Stop(rnd.IntN(int(unwind.NumStops)))
			s.HasUser = s.Stop != unwind.NoUserStack
		}
		for range rnd.IntN(3) {
			s.Kernel = append(s.Kernel, 0xffffffff80000000+rnd.Uint64N(4))
		}
		for d := range 1 + rnd.IntN(12) {
			if !s.HasUser {
				break
			}
			m := maps[rnd.IntN(len(maps))]
			s.User = append(s.User, unwind.Frame{PC: m.Lo + arch.Addr(rnd.Uint64N(12)*16+5), Exact: true, How: unwind.HowCFI, Mapping: m})
			if d > 8 {
				s.User[d] = s.User[d-1] // recursion
			}
		}
		i := b.Add(&s)
		times.Add(now, i, s.Period)
		all = append(all, sample{now, s.Period, i})
	}
	return &Recording{Profile: b.Profile(names{}, profile.Info{Events: []profile.Event{profile.NewEvent("cpu-clock")}}), Times: times, Local: true}, all
}

// start returns a server that has read its recordings.
func start(t testing.TB, a Annotator, recs ...*Recording) *httptest.Server {
	t.Helper()
	return startWith(t, Options{Annotator: a}, recs...)
}

func startWith(t testing.TB, o Options, recs ...*Recording) *httptest.Server {
	t.Helper()
	for i, r := range recs {
		o.Inputs = append(o.Inputs, Input{fmt.Sprintf("rec%d.data", i), func(context.Context, func(Progress)) (*Recording, error) { return r, nil }})
	}
	s := New(o)
	if err := s.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	h := httptest.NewServer(s)
	t.Cleanup(h.Close)
	return h
}

func get(t testing.TB, h *httptest.Server, path string, out any) {
	t.Helper()
	r, err := http.Get(h.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err == nil && r.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", r.Status, b)
	}
	if err == nil {
		err = json.Unmarshal(b, out)
	}
	if err != nil {
		t.Fatalf("GET %s: %v", path, err)
	}
}

type topAnswer struct {
	head
	top
}

// table returns all rows, page by page, as "self total" by name.
func table(t testing.TB, h *httptest.Server, query string) (map[string]string, topAnswer) {
	t.Helper()
	got := map[string]string{}
	for {
		var a topAnswer
		get(t, h, fmt.Sprintf("/api/top?limit=7&offset=%d&%s", len(got), query), &a)
		for _, r := range a.Rows {
			got[r.Text] = fmt.Sprint(r.Self[0], " ", r.Total[0])
		}
		if len(a.Rows) == 0 {
			if len(got) != a.Count {
				t.Fatalf("%d rows of %d", len(got), a.Count)
			}
			return got, a
		}
	}
}

// reportTop reads report's table: percent, number, percent, number, module, name. Times are to be numbers in it.
func reportTop(t testing.TB, p *profile.Profile, by report.Weight) map[string]string {
	t.Helper()
	var b bytes.Buffer
	plain := *p
	plain.Events = []profile.Event{{Name: "events", Unit: "count"}}
	if err := report.Top(&b, &plain, report.Options{By: by}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^ *[<>\d.]+ % +([\d,]+) +[<>\d.]+ % +([\d,]+)  \S+ +(.*)$`).FindAllStringSubmatch(b.String(), -1) {
		want[m[3]] = strings.ReplaceAll(m[1]+" "+m[2], ",", "")
	}
	return want
}

type graphAnswer struct {
	head
	graph
	Hits []int `json:"hits"`
}

// folded returns the graph's stacks as Folded writes them.
func (a *graphAnswer) folded() map[string]uint64 {
	got := map[string]uint64{}
	var path []string
	for i := 0; i < len(a.Nodes); i += nodeSize {
		n := a.Nodes[i : i+nodeSize]
		path = append(path[:n[0]], a.Labels[n[1]].Text)
		if n[3] > 0 {
			got[strings.Join(path[1:], ";")] += n[3]
		}
	}
	return got
}

func reportFolded(t testing.TB, p *profile.Profile) map[string]uint64 {
	t.Helper()
	var b bytes.Buffer
	if err := report.Folded(&b, p, report.Options{}); err != nil {
		t.Fatal(err)
	}
	want := map[string]uint64{}
	for line := range strings.Lines(b.String()) {
		i := strings.LastIndexByte(line, ' ')
		if n, _ := strconv.ParseUint(strings.TrimSpace(line[i:]), 10, 64); n > 0 {
			want[line[:i]] += n
		}
	}
	return want
}

// counted is a recount of a recording, sample by sample: the definition of what a filter by time is.
func counted(p *profile.Profile, all []sample, keep func(s *sample, st *profile.Stack) bool) *profile.Profile {
	q := *p
	q.Stacks = slices.Clone(p.Stacks)
	for i := range q.Stacks {
		q.Stacks[i].Count, q.Stacks[i].Period = 0, 0
	}
	for i := range all {
		if s := &all[i]; keep(s, &p.Stacks[s.stack]) {
			q.Stacks[s.stack].Count++
			q.Stacks[s.stack].Period += s.period
		}
	}
	return q.Filter(func(s *profile.Stack) bool { return s.Count > 0 })
}

// TestFilters holds tables and graphs of filters against reports of the profile that is counted anew from the samples.
func TestFilters(t *testing.T) {
	oracle.Long(t)
	rec, all := record(3000, 7)
	p := rec.Profile
	h := start(t, nil, rec)
	has := func(st *profile.Stack, re string) bool {
		return slices.ContainsFunc(st.Frames, func(f uint32) bool { return regexp.MustCompile(re).MatchString(p.Funcs[p.Locs[f].Func].Name) })
	}
	lo, hi := all[900].time, all[2100].time
	for _, c := range []struct {
		query string
		by    report.Weight
		keep  func(s *sample, st *profile.Stack) bool
	}{
		{"", report.Samples, func(*sample, *profile.Stack) bool { return true }},
		{"by=periods", report.Periods, func(*sample, *profile.Stack) bool { return true }},
		{"pid=101", report.Samples, func(_ *sample, st *profile.Stack) bool { return st.PID == 101 }},
		{"pid=100&tid=102", report.Samples, func(_ *sample, st *profile.Stack) bool { return st.TID == 102 }},
		{"comm=KER-1", report.Samples, func(_ *sample, st *profile.Stack) bool { return false }},
		{"comm=ker-1", report.Samples, func(_ *sample, st *profile.Stack) bool { return st.Comm == "worker-1" }},
		{"with=" + url.QueryEscape(`f1?0\(`), report.Samples, func(_ *sample, st *profile.Stack) bool { return has(st, `f1?0\(`) }},
		{"without=sys_1", report.Samples, func(_ *sample, st *profile.Stack) bool { return !has(st, "sys_1") }},
		{fmt.Sprintf("lo=%d&hi=%d", lo-all[0].time, hi-all[0].time), report.Samples, func(s *sample, _ *profile.Stack) bool { return s.time >= lo && s.time < hi }},
		{fmt.Sprintf("lo=%d&hi=%d&by=periods&with=sys_2&pid=100", lo-all[0].time, hi-all[0].time), report.Periods, func(s *sample, st *profile.Stack) bool {
			return s.time >= lo && s.time < hi && has(st, "sys_2") && st.PID == 100
		}},
		{"event=0", report.Samples, func(*sample, *profile.Stack) bool { return true }},
		{"event=1", report.Samples, func(*sample, *profile.Stack) bool { return false }},
	} {
		q := counted(p, all, c.keep)
		got, a := table(t, h, c.query)
		if diff := cmp.Diff(reportTop(t, q, c.by), got); diff != "" {
			t.Errorf("%s: report.Top and the table (-want +got):\n%s", c.query, diff)
		}
		if a.Totals[0].Samples != q.Totals.Samples || a.Totals[0].Stops != q.Totals.Stops {
			t.Errorf("%s: %d samples, ends %v, want %d, %v", c.query, a.Totals[0].Samples, a.Totals[0].Stops, q.Totals.Samples, q.Totals.Stops)
		}
		if c.by == report.Samples {
			var g graphAnswer
			get(t, h, "/api/graph?view=calls&width=16000&"+c.query, &g)
			want := map[string]uint64{}
			for s, n := range reportFolded(t, q) {
				want[s] = n
			}
			got := map[string]uint64{}
			for s, n := range g.folded() {
				got[strings.NewReplacer("[truncated];", "", "[broken];", "", ";[truncated]", "", ";[broken]", "").Replace(s)] += n
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s: report.Folded and the graph (-want +got):\n%s", c.query, diff)
			}
		}
	}
}

// TestGraphViews holds the graphs around a function and from the inside outward against the stacks.
func TestGraphViews(t *testing.T) {
	rec, _ := record(2000, 3)
	p := rec.Profile
	h := start(t, nil, rec)
	// name is a stack's functions from the outermost inward, its thread first.
	name := func(s *profile.Stack) []string {
		out := []string{s.Comm}
		if g := profile.Grade(s.Stop); g == "truncated" || g == "broken" {
			out = append(out, "["+g+"]")
		}
		for _, f := range slices.Backward(s.Frames) {
			out = append(out, p.Funcs[p.Locs[f].Func].Name)
		}
		return out
	}
	sums := func(paths func(s *profile.Stack) []string) map[string]uint64 {
		m := map[string]uint64{}
		for i := range p.Stacks {
			if x := paths(&p.Stacks[i]); x != nil {
				m[strings.Join(x, ";")] += p.Stacks[i].Count
			}
		}
		return m
	}
	check := func(query string, want map[string]uint64) {
		t.Helper()
		var g graphAnswer
		get(t, h, "/api/graph?width=16000&"+query, &g)
		if diff := cmp.Diff(want, g.folded()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", query, diff)
		}
	}
	check("view=inverted", sums(func(s *profile.Stack) []string {
		n := name(s)
		slices.Reverse(n)
		return n
	}))
	for _, fn := range []int{0, 5, 11} {
		f := p.Funcs[fn].Name
		check(fmt.Sprintf("view=callees&fn=%d", fn), sums(func(s *profile.Stack) []string {
			n := name(s)
			if i := slices.Index(n, f); i >= 0 {
				return append([]string{""}, n[i:]...)[1:][1:]
			}
			return nil
		}))
		check(fmt.Sprintf("view=callers&fn=%d", fn), sums(func(s *profile.Stack) []string {
			n := name(s)
			slices.Reverse(n)
			if i := slices.Index(n, f); i >= 0 {
				return n[i+1:]
			}
			return nil
		}))
	}
}

// TestZoom cuts a graph to what is drawn, and finds the rest by a path.
func TestZoom(t *testing.T) {
	rec, _ := record(3000, 5)
	h := start(t, nil, rec)
	var whole, small, in graphAnswer
	get(t, h, "/api/graph?view=calls&width=16000", &whole)
	get(t, h, "/api/graph?view=calls&width=20", &small)
	if len(small.Nodes) >= len(whole.Nodes)/4 || small.Hidden == 0 {
		t.Fatalf("%d numbers for 20 pixels, %d for all", len(small.Nodes), len(whole.Nodes))
	}
	for i := 0; i < len(small.Nodes); i += nodeSize {
		if small.Nodes[i+2] < 3000/80 && small.Nodes[i+1] != 0 {
			t.Fatalf("a node of %d samples is narrower than a quarter of a pixel", small.Nodes[i+2])
		}
	}
	// The first node at depth 3, by its path.
	var path []string
	at := -1
	for i := 0; i < len(whole.Nodes) && at < 0; i += nodeSize {
		d := int(whole.Nodes[i])
		path = append(path[:d], strconv.FormatInt(int64(whole.Labels[whole.Nodes[i+1]].ID), 36))
		if d == 3 {
			at = i
		}
	}
	get(t, h, "/api/graph?view=calls&width=16000&path="+strings.Join(path[1:], "."), &in)
	if in.Path != 3 || in.Nodes[3*nodeSize+2] != whole.Nodes[at+2] {
		t.Fatalf("path %v: %d nodes found, weight %d, want 3 and %d", path, in.Path, in.Nodes[3*nodeSize+2], whole.Nodes[at+2])
	}
	get(t, h, "/api/graph?view=calls&width=100&path=zz.1", &in)
	if in.Path != 0 || in.Nodes[2] != 3000 {
		t.Errorf("a path that is not there: %d nodes found, weight %d", in.Path, in.Nodes[2])
	}
}

// TestDeep cuts a graph of too many nodes at a larger weight; what is left has the whole weight.
func TestDeep(t *testing.T) {
	oracle.Long(t)
	p := &profile.Profile{Modules: []profile.Module{{Path: "/bin/app"}}, Files: []string{""}}
	for i := range 1000 {
		p.Funcs = append(p.Funcs, profile.Func{Name: fmt.Sprint("f", i), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Func: int32(i), Mapping: -1})
	}
	for i := range 100 {
		s := profile.Stack{Comm: "app", Count: 1 + uint64(i)}
		for d := range 1000 { // innermost first
			s.Frames = append(s.Frames, uint32((7*d+13*i)%1000))
		}
		p.Stacks = append(p.Stacks, s)
	}
	h := start(t, nil, &Recording{Profile: p.Filter(func(*profile.Stack) bool { return true })})
	for _, view := range []string{"calls", "inverted"} {
		var g graphAnswer
		get(t, h, "/api/graph?width=1000&view="+view, &g)
		if n := len(g.Nodes) / nodeSize; n < 100 || n > maxGraph || g.Hidden == 0 {
			t.Errorf("%s: %d nodes, %d hidden", view, n, g.Hidden)
		}
		sum := uint64(0)
		for i := 0; i < len(g.Nodes); i += nodeSize {
			if g.Nodes[i] == 1 {
				sum += g.Nodes[i+2]
			}
		}
		if sum != g.Nodes[2] || sum != 5050 {
			t.Errorf("%s: %d of %d samples below the root", view, sum, g.Nodes[2])
		}
	}
}

// TestSearch counts each stack that has a match once.
func TestSearch(t *testing.T) {
	rec, _ := record(2000, 9)
	p := rec.Profile
	h := start(t, nil, rec)
	re := regexp.MustCompile(`libx.*f(3|7)\(|sys_0`)
	var want uint64
	for i := range p.Stacks {
		if slices.ContainsFunc(p.Stacks[i].Frames, func(f uint32) bool { return re.MatchString(p.Funcs[p.Locs[f].Func].Name) }) {
			want += p.Stacks[i].Count
		}
	}
	var g graphAnswer
	get(t, h, "/api/graph?view=calls&width=1000&search="+url.QueryEscape(re.String()), &g)
	if g.Found == nil || g.Found.Weight[0] != want || g.Found.Functions != 3 || len(g.Hits) != 3 {
		t.Errorf("found %+v, hits %v, want %d in 3 functions", g.Found, g.Hits, want)
	}
}

// TestTimeline counts samples by time and thread.
func TestTimeline(t *testing.T) {
	rec, all := record(4000, 11)
	h := start(t, nil, rec)
	first, length := all[0].time, all[len(all)-1].time-all[0].time+1
	const bins = 37
	for _, r := range [][2]uint64{{0, length}, {length / 3, length / 2}} {
		want := map[int32][]uint32{0: make([]uint32, bins)}
		for _, s := range all {
			if x := s.time - first; x >= r[0] && x < r[1] {
				tid := rec.Profile.Stacks[s.stack].TID
				if want[tid] == nil {
					want[tid] = make([]uint32, bins)
				}
				i := min(int(float64(x-r[0])*(float64(bins)/float64(r[1]-r[0]))), bins-1)
				want[0][i]++
				want[tid][i]++
			}
		}
		var a timeline
		get(t, h, fmt.Sprintf("/api/timeline?bins=%d&limit=10&from=%d&to=%d&tid=103", bins, r[0], r[1]), &a)
		got, kept := map[int32][]uint32{}, map[int32][]uint32{}
		for _, l := range a.Lanes {
			tid := int32(0)
			if l.Thread != nil {
				tid = l.Thread.TID
			}
			got[tid], kept[tid] = l.All, l.Kept
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", r, diff)
		}
		if !slices.Equal(kept[0], want[103]) || !slices.Equal(kept[103], want[103]) || slices.Max(kept[104]) != 0 {
			t.Errorf("%v: kept %v and %v, want %v", r, kept[0], kept[103], want[103])
		}
	}
}

// TestCompare holds both sides of a comparison against reports of each.
func TestCompare(t *testing.T) {
	a, _ := record(2000, 1)
	b, _ := record(1000, 2)
	h := start(t, nil, a, b)
	wantA, wantB := reportTop(t, a.Profile, report.Samples), reportTop(t, b.Profile, report.Samples)
	gotA, gotB := map[string]string{}, map[string]string{}
	var ans topAnswer
	get(t, h, "/api/top?limit=500&sort=delta", &ans)
	for _, r := range ans.Rows {
		if r.Total[0] > 0 {
			gotA[r.Text] = fmt.Sprint(r.Self[0], " ", r.Total[0])
		}
		if r.Total[1] > 0 {
			gotB[r.Text] = fmt.Sprint(r.Self[1], " ", r.Total[1])
		}
	}
	if diff := cmp.Diff(wantA, gotA); diff != "" {
		t.Errorf("the profile (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(wantB, gotB); diff != "" {
		t.Errorf("the baseline (-want +got):\n%s", diff)
	}
	if ans.All != [2]uint64{2000, 1000} {
		t.Errorf("all %v", ans.All)
	}
	get(t, h, "/api/top?limit=500&sort=tdelta", &ans)
	change := func(n [2]uint64) float64 { return float64(n[0])/2000 - float64(n[1])/1000 }
	for i := range ans.Rows[1:] {
		if x, y := change(ans.Rows[i].Total), change(ans.Rows[i+1].Total); x < y {
			t.Errorf("row %d: the total has changed by %v, in the next by %v", i, x, y)
		}
	}
	// The same program in another directory is the same, and the page has the numbers of a report.
	moved := *b.Profile
	moved.Modules = slices.Clone(moved.Modules)
	for i := range moved.Modules {
		if m := &moved.Modules[i]; m.Path != "" && !m.Kernel {
			m.Path = "/elsewhere/" + m.Base()
		}
	}
	h = start(t, nil, a, &Recording{Profile: &moved})
	get(t, h, "/api/top?limit=500&sort=total", &ans)
	for _, r := range ans.Rows {
		if got := fmt.Sprint(r.Self[1], " ", r.Total[1]); r.Total[1] > 0 && got != wantB[r.Text] {
			t.Errorf("%s, moved: %s, want %s", r.Text, got, wantB[r.Text])
		}
	}
	page := map[string][2][2]uint64{}
	for _, r := range ans.Rows {
		page[r.Text] = [2][2]uint64{r.Self, r.Total}
	}
	for _, c := range report.Compare(&moved, a.Profile, report.Options{}) {
		want := [2][2]uint64{{c.Self.After, c.Self.Before}, {c.Total.After, c.Total.Before}}
		if page[c.Func.Name] != want {
			t.Errorf("%s: the page has %v, the report %v", c.Func.Name, page[c.Func.Name], want)
		}
	}
	// With itself nothing changes.
	h = start(t, nil, a, a)
	get(t, h, "/api/top?limit=500", &ans)
	for _, r := range ans.Rows {
		if r.Self[0] != r.Self[1] || r.Total[0] != r.Total[1] {
			t.Errorf("compared with itself: %+v", r)
		}
	}
	var g graphAnswer
	get(t, h, "/api/graph?view=calls&side=1", &g)
	for i := 0; i < len(g.Nodes); i += nodeSize {
		if g.Nodes[i+2] != g.Nodes[i+4] {
			t.Errorf("compared with itself: node %v", g.Nodes[i:i+nodeSize])
		}
	}
}

// annotator records what it is asked.
type annotator struct {
	mu   sync.Mutex
	seen []*profile.Profile
}

func (a *annotator) Annotate(p *profile.Profile, fn int32, _ profile.Weight) (any, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = append(a.seen, p)
	return map[string]any{"func": p.Funcs[fn].Name, "module": "m", "all": p.Totals.Samples, "self": 3, "total": 4, "lines": []map[string]any{
		{"file": "/src/a.cc", "line": 7, "text": "\tx = <b>1</b>;", "self": 3, "total": 4, "insts": []int{0}},
	}, "insts": []map[string]any{{"addr": 4096, "bytes": "90", "text": "nop", "self": 3, "total": 4}}}, nil
}

// TestSource asks for functions of recordings that may have source, with the samples of the filter and no others.
func TestSource(t *testing.T) {
	rec, _ := record(500, 1)
	base, _ := record(100, 2)
	an := &annotator{}
	h := start(t, an, rec, base)
	var got map[string]any
	get(t, h, "/api/source?fn=1&pid=101", &got)
	want := rec.Profile.Filter(func(s *profile.Stack) bool { return s.PID == 101 })
	if p := an.seen[0]; p.Totals.Samples != want.Totals.Samples || len(p.Stacks) != len(want.Stacks) || got["func"] != want.Funcs[1].Name {
		t.Errorf("annotated %v with %d samples in %d stacks, want %s, %d in %d", got["func"], p.Totals.Samples, len(p.Stacks), want.Funcs[1].Name, want.Totals.Samples, len(want.Stacks))
	}
	rec.Local = false
	h = start(t, an, rec)
	if r, _ := http.Get(h.URL + "/api/source?fn=1"); r.StatusCode != http.StatusBadRequest || len(an.seen) != 1 {
		t.Errorf("a profile from elsewhere is annotated: %s", r.Status)
	}
}
