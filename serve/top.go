package serve

import (
	"cmp"
	"context"
	"slices"
)

// maxRows bounds the rows of an answer.
const maxRows = 500

// A topQuery says which rows of the table are wanted.
type topQuery struct {
	search        string // a regular expression for names
	sort          string // "self", "total", "name", "module", "delta" (of self), "tdelta" (of total)
	ascending     bool
	offset, limit int
}

// A top is a part of the table of functions.
type top struct {
	Rows  []topRow `json:"rows"`
	Count int      `json:"count"` // rows of the whole table
	Most  uint64   `json:"most"`  // the largest weight of a function's own code
}

// A topRow is a function: the weight of its own code, and that of all stacks that it is in, each once.
type topRow struct {
	ID     int32     `json:"id"`
	Text   string    `json:"text"`
	Module int32     `json:"module"`
	Kind   kind      `json:"kind"`
	Self   [2]uint64 `json:"self"`
	Total  [2]uint64 `json:"total"`
}

// sums adds up a label's nodes.
func (w *weights) sums() (self, total [2][]uint64) {
	t := w.t
	for side := range w.total {
		self[side], total[side] = make([]uint64, len(t.labels)), make([]uint64, len(t.labels))
		for n, s := range w.self[side] {
			self[side][t.label[n]] += s
			if t.marks[n]&markInner == 0 {
				total[side][t.label[n]] += w.total[side][n]
			}
		}
	}
	return self, total
}

// newTop computes a part of the table. It returns nil if ctx ends before.
func newTop(ctx context.Context, d *data, w *weights, q *topQuery) (*top, error) {
	re, err := compile(q.search)
	if err != nil {
		return nil, err
	}
	self, total := w.sums()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	rows := []topRow{}
	for i := range w.t.labels {
		l := &w.t.labels[i]
		if l.kind == kindGroup || l.kind == kindStop || total[0][i]+total[1][i] == 0 || re != nil && !re.MatchString(l.text) {
			continue
		}
		rows = append(rows, topRow{int32(i), l.text, l.module, l.kind, [2]uint64{self[0][i], self[1][i]}, [2]uint64{total[0][i], total[1][i]}})
	}
	module := func(r *topRow) string { return d.p.Modules[r.Module].Base() }
	// A share of the baseline weighs as much as the same share of the profile.
	delta := func(n [2]uint64) float64 {
		return float64(n[0])/float64(max(w.all[0], 1)) - float64(n[1])/float64(max(w.all[1], 1))
	}
	slices.SortFunc(rows, func(a, b topRow) int {
		c := 0
		switch q.sort {
		case "name":
		case "module":
			c = cmp.Compare(module(&a), module(&b))
		case "total":
			c = cmp.Compare(a.Total[0], b.Total[0])
		case "delta":
			c = cmp.Compare(delta(a.Self), delta(b.Self))
		case "tdelta":
			c = cmp.Compare(delta(a.Total), delta(b.Total))
		default:
			c = cmp.Or(cmp.Compare(a.Self[0], b.Self[0]), cmp.Compare(a.Total[0], b.Total[0]))
		}
		c = cmp.Or(c, cmp.Compare(a.Text, b.Text), cmp.Compare(a.ID, b.ID))
		if !q.ascending {
			c = -c
		}
		return c
	})
	t := &top{Count: len(rows)}
	for i := range rows {
		t.Most = max(t.Most, rows[i].Self[0])
	}
	lo := min(max(q.offset, 0), len(rows))
	t.Rows = rows[lo:min(lo+min(max(q.limit, 0), maxRows), len(rows))]
	return t, nil
}

// A found says how much a search matches.
type found struct {
	Functions int       `json:"functions"`
	Weight    [2]uint64 `json:"weight"` // of the stacks with any of them, each once
	Match     []bool    `json:"-"`      // by label
}

// search adds up the stacks that have a function that matches.
func (w *weights) search(s string) (*found, error) {
	re, err := compile(s)
	if err != nil || re == nil {
		return nil, err
	}
	f := &found{Match: w.t.matching(re)}
	for _, m := range f.Match {
		if m {
			f.Functions++
		}
	}
	under := w.t.below(f.Match)
	for n, l := range w.t.label {
		if f.Match[l] && (n == 0 || !under[w.t.parent[n]]) {
			f.Weight[0] += w.total[0][n]
			f.Weight[1] += at(w.total[1], n)
		}
	}
	return f, nil
}
