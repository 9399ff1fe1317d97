package serve

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// maxChoices bounds how many processes and threads a page can choose from.
const maxChoices = 1000

// info is what a page needs to know once.
func (q *request) info() (any, error) {
	d := q.d
	type event struct {
		Name string `json:"name"`
		Unit string `json:"unit"`
	}
	type module struct {
		Path string `json:"path"`
		Hue  int32  `json:"hue"`
	}
	type input struct {
		Name    string `json:"name"`
		Summary string `json:"summary"`
		totals
	}
	info := struct {
		Inputs   []input           `json:"inputs"`
		Command  string            `json:"command"`
		Host     string            `json:"host"`
		Start    int64             `json:"start"`    // ms since 1970; 0: unknown
		Duration uint64            `json:"duration"` // ns
		Timed    bool              `json:"timed"`
		Source   bool              `json:"source"`
		Live     bool              `json:"live"`     // there is a newer page
		Services bool              `json:"services"` // of stacks are known
		Pods     bool              `json:"pods"`     // of some are
		Interval uint64            `json:"interval"` // ns in which it is not known when a sample was taken
		Periods  bool              `json:"periods"`  // are what matters
		Events   []event           `json:"events"`
		Modules  []module          `json:"modules"`
		Threads  []thread          `json:"threads"` // those with the most samples
		Count    int               `json:"count"`   // threads that there are
		Hows     map[string]uint64 `json:"hows"`    // frames by how they were found
		HowNames []string          `json:"howNames"`
		Stops    []stopInfo        `json:"stops"`
	}{
		Command: d.p.Command, Host: d.p.Host, Duration: uint64(d.p.Duration), Timed: d.times != nil, Source: q.s.opts.Annotator != nil && d.local, Periods: d.periods,
		Live: q.s.opts.Live, Services: d.places != nil, Pods: d.pods(), Interval: uint64(d.interval),
		Hows: map[string]uint64{},
	}
	for i := range d.sides() {
		info.Inputs = append(info.Inputs, input{q.s.opts.Inputs[i].Name, d.summary[i], totalsOf(&d.totals[i])})
	}
	if !d.p.Start.IsZero() {
		info.Start = d.p.Start.UnixMilli()
	}
	if d.times != nil {
		info.Duration = d.times.length()
		if d.interval > 0 {
			info.Start = int64(d.times.lo / 1e6)
		}
	}
	for _, e := range d.p.Events {
		info.Events = append(info.Events, event{e.Name, e.Unit})
	}
	for i := range d.p.Modules {
		info.Modules = append(info.Modules, module{d.p.Modules[i].Path, d.rank[i]})
	}
	info.Threads, info.Count = d.heaviest(maxChoices)
	for h, n := range d.totals[0].Hows {
		name := profile.How(h).String()
		info.HowNames = append(info.HowNames, name)
		if n > 0 {
			info.Hows[name] += n
		}
	}
	for i := range unwind.NumStops {
		info.Stops = append(info.Stops, stopInfo{i.String(), profile.Grade(i), profile.WhyRecorded(i)})
	}
	return info, nil
}

type stopInfo struct {
	Name  string `json:"name"`
	Grade string `json:"grade"`
	Note  string `json:"note"`
}

// totals say how complete stacks are.
type totals struct {
	Samples uint64                  `json:"samples"`
	Stops   [unwind.NumStops]uint64 `json:"byStop"`
	NoStops bool                    `json:"noStops"`
}

func totalsOf(t *profile.Totals) totals { return totals{t.Samples, t.Stops, t.NoStops} }

// A head is in every answer about a filter.
type head struct {
	All    [2]uint64 `json:"all"`    // the weight of all that the filter wants, and of the baseline's
	Totals []totals  `json:"totals"` // of the profile, and of the baseline
	Found  *found    `json:"found,omitempty"`
}

func (q *request) weights() (*weights, head, error) {
	f, err := parseFilter(q.r.URL.Query(), q.d.grouping())
	if err != nil {
		return nil, head{}, errBad{err}
	}
	w, err := q.s.weights(q.ctx, q.d, f)
	if err != nil {
		return nil, head{}, err
	}
	h := head{All: w.all}
	for i := range q.d.sides() {
		h.Totals = append(h.Totals, totals{w.samples[i], w.stops[i], q.d.totals[i].NoStops})
	}
	if h.Found, err = w.search(q.r.URL.Query().Get("search")); err != nil {
		return nil, head{}, errBad{err}
	}
	return w, h, nil
}

// number reads a parameter; what is missing is none.
func (q *request) number(name string, none int) (int, error) {
	s := q.r.URL.Query().Get(name)
	if s == "" {
		return none, nil
	}
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return 0, errBad{fmt.Errorf("%s: %q is not a number", name, s)}
	}
	return int(n), nil
}

// numbers reads parameters into what their names lead to.
func (q *request) numbers(to map[string]*int) error {
	for name, p := range to {
		n, err := q.number(name, *p)
		if err != nil {
			return err
		}
		*p = n
	}
	return nil
}

// function reads the number of a function.
func (q *request) function() (int32, error) {
	fn, err := q.number("fn", -1)
	if err == nil && (fn < 0 || fn >= len(q.d.p.Funcs)) {
		err = errBad{fmt.Errorf("there is no function %d", fn)}
	}
	return int32(fn), err
}

// graph is a flame graph.
func (q *request) graph() (any, error) {
	v := q.r.URL.Query()
	gq := graphQuery{view: v.Get("view"), width: 1000, heavy: v.Get("order") == "heavy"}
	switch gq.view {
	case "calls", "inverted":
	case "callers", "callees":
		fn, err := q.function()
		if err != nil {
			return nil, err
		}
		gq.fn = fn
	default:
		return nil, errBad{fmt.Errorf("there is no view %q", gq.view)}
	}
	if err := q.numbers(map[string]*int{"width": &gq.width, "side": &gq.side}); err != nil {
		return nil, err
	}
	gq.width, gq.side = min(gq.width, 1<<14), min(gq.side, q.d.sides()-1)
	if s := v.Get("path"); s != "" {
		for x := range strings.SplitSeq(s, ".") {
			n, err := strconv.ParseInt(x, 36, 32)
			if err != nil || n < 0 {
				return nil, errBad{errors.New("the path is not a list of numbers")}
			}
			gq.path = append(gq.path, int32(n))
		}
	}
	w, h, err := q.weights()
	if err != nil {
		return nil, err
	}
	g := newGraph(q.ctx, w, &gq)
	if g == nil {
		return nil, q.ctx.Err()
	}
	out := struct {
		head
		*graph
		Hits []int `json:"hits,omitempty"` // indices of the labels that the search matches
	}{h, g, nil}
	if h.Found != nil {
		for i, l := range g.Labels {
			if l.ID >= 0 && h.Found.Match[l.ID] {
				out.Hits = append(out.Hits, i)
			}
		}
	}
	return out, nil
}

// top is a part of the table of functions.
func (q *request) top() (any, error) {
	v := q.r.URL.Query()
	tq := topQuery{search: v.Get("match"), sort: v.Get("sort"), ascending: v.Get("dir") == "up", limit: 200}
	if err := q.numbers(map[string]*int{"offset": &tq.offset, "limit": &tq.limit}); err != nil {
		return nil, err
	}
	if _, err := compile(tq.search); err != nil {
		return nil, errBad{err}
	}
	w, h, err := q.weights()
	if err != nil {
		return nil, err
	}
	t, err := newTop(q.ctx, q.d, w, &tq)
	return struct {
		head
		*top
	}{h, t}, err
}

// timeline is samples by thread and time.
func (q *request) timeline() (any, error) {
	if q.d.times == nil {
		return nil, errBad{errors.New("the times of samples were not recorded")}
	}
	v := q.r.URL.Query()
	f, err := parseFilter(v, q.d.grouping())
	if err != nil {
		return nil, errBad{err}
	}
	tq := timelineQuery{bins: 500, limit: 20, hi: math.MaxUint64}
	if err := q.numbers(map[string]*int{"bins": &tq.bins, "offset": &tq.offset, "limit": &tq.limit}); err != nil {
		return nil, err
	}
	for name, p := range map[string]*uint64{"from": &tq.lo, "to": &tq.hi} {
		if s := v.Get(name); s != "" {
			if *p, err = strconv.ParseUint(s, 10, 64); err != nil {
				return nil, errBad{fmt.Errorf("%s: %q is not a number", name, s)}
			}
		}
	}
	t, err := q.s.tree(q.ctx, q.d, f.group)
	if err != nil {
		return nil, err
	}
	if out := newTimeline(q.ctx, q.d, t, &f, &tq); out != nil {
		return out, nil
	}
	return nil, q.ctx.Err()
}

// source is the source and the instructions of a function, with the samples of the profile that the filter wants.
func (q *request) source() (any, error) {
	if q.s.opts.Annotator == nil || !q.d.local {
		return nil, errBad{errors.New("this profile has no source")}
	}
	fn, err := q.function()
	if err != nil {
		return nil, err
	}
	w, _, err := q.weights()
	if err != nil {
		return nil, err
	}
	q.s.source.Lock()
	defer q.s.source.Unlock()
	if q.ctx.Err() != nil {
		return nil, q.ctx.Err()
	}
	by := profile.Samples
	if w.periods {
		by = profile.Periods
	}
	return q.s.opts.Annotator.Annotate(q.d.counted(w), fn, by)
}

// counted returns the profile, without the baseline, with the counts of a filter.
func (d *data) counted(w *weights) *profile.Profile {
	q := *d.p
	q.Locs = q.Locs[:d.locs] // those of another build lie elsewhere in the file
	q.Stacks = make([]profile.Stack, 0, d.base)
	for i := range d.p.Stacks[:d.base] {
		if w.stacks[i] > 0 {
			s := d.p.Stacks[i]
			if s.Count = w.stacks[i]; w.periods {
				s.Period = w.perStack[i]
			}
			q.Stacks = append(q.Stacks, s)
		}
	}
	return q.Filter(func(*profile.Stack) bool { return true })
}
