// Package top records, and shows the hottest functions, whole stacks and processes of the last seconds (Record). Samples come in one by one. Once an
// interval, they are ranked, and shown on a terminal or as text.
//
// Each stage is a file: record runs the recording, rank adds up its last intervals, view makes lines of a ranking, watch draws them on a terminal.
package top

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
)

// A recording is the source of the samples shown.
type recording interface {
	Lost() uint64    // samples that were lost so far
	Summary() string // who walks stacks, and what that takes
}

// Options control the view and its interval.
type Options struct {
	Window time.Duration // what happened in this time is shown
	Every  time.Duration // something new is shown after this time
	Rounds int           // how often; 0: no end
	Rows   int           // of a table in text
	Table  string        // of Tables: the one that is shown first
	Total  bool          // functions come in the order of their total weight, not of their own

	what string         // is recorded: fit for a terminal
	by   profile.Weight // periods are ns
}

// Tables are the names of the tables.
func Tables() []string { return tableNames[:] }

// A display shows a recording.
type display struct {
	o Options
	f *feed
	v *view
}

// newDisplay returns a display of a recording that began at a time, whose samples n names.
func newDisplay(o Options, rec recording, n profile.Namer, since time.Time) *display {
	v := newView()
	v.what, v.size, v.table, v.periods = o.what, o.Window, max(0, slices.Index(tableNames[:], o.Table)), o.by == profile.Periods
	return &display{o, newFeed(rec, n, since, &o), v}
}

// add counts a sample. It is safe for concurrent use with all else, and its error is always nil.
func (t *display) add(s *profile.Sample) error { return t.f.tally.Add(s) }

// print writes a table at each interval, until there have been enough, ctx is done, or the recording ends, which ended tells. It says whether
// the recording ended by itself.
func (t *display) print(ctx context.Context, out io.Writer, ended <-chan error) (over bool, err error) {
	tick := time.NewTicker(t.o.Every)
	defer tick.Stop()
	w := bufio.NewWriter(out)
	for n := 1; ; n++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false, nil
		case err := <-ended:
			over = true
			if err != nil {
				return true, err
			}
		}
		if n > 1 {
			fmt.Fprintln(w)
		}
		t.v.walks = t.f.rec.Summary()
		t.v.show(t.f.next())
		w.WriteString(t.v.plainText(0, t.o.Rows))
		if err := w.Flush(); err != nil {
			return over, err
		}
		if over || n == t.o.Rounds {
			return over, nil
		}
	}
}

// A feed makes rankings of a recording. It is safe for concurrent use.
type feed struct {
	rec   recording
	tally *record.Tally
	names profile.Namer

	mu     sync.Mutex
	window window
}

func newFeed(rec recording, names profile.Namer, since time.Time, o *Options) *feed {
	return &feed{
		rec: rec, names: names, tally: record.NewTally(since),
		window: window{size: int((o.Window + o.Every - 1) / o.Every), by: o.by, total: o.Total},
	}
}

// next ends an interval and ranks what there is.
func (f *feed) next() *ranking {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.window.push(f.tally.Cut(time.Now(), f.rec.Lost(), f.names, profile.Info{}))
	return f.window.rank()
}

// reset forgets all.
func (f *feed) reset() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tally.Cut(time.Now(), f.rec.Lost(), nil, profile.Info{})
	f.window.reset()
}
