package top

import (
	"sync"
	"time"

	"github.com/unspool/unspool/profile"
)

// A tally counts samples until somebody cuts it off. It is safe for concurrent use.
type tally struct {
	mu    sync.Mutex
	b     *profile.Builder
	idle  uint64
	since time.Time
	was   uint64 // lost before
}

// An interval is what a tally held when it was cut off.
type interval struct {
	p    *profile.Profile
	idle uint64 // samples of processors that had nothing to do: they are nowhere else
	lost uint64
	dur  time.Duration
}

func newTally(now time.Time) *tally { return &tally{b: profile.NewBuilder(), since: now} }

// add counts a sample.
func (t *tally) add(s *profile.Sample) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.PID == 0 && !s.HasUser { // not a process of another PID namespace, which has no number here
		t.idle++
		return nil
	}
	t.b.Add(s)
	return nil
}

// cut returns what has come since the last cut. lost is how many samples were lost since the beginning.
func (t *tally) cut(now time.Time, lost uint64, n profile.Namer, info profile.Info) interval {
	t.mu.Lock()
	b, idle, since, was := t.b, t.idle, t.since, t.was
	t.b, t.idle, t.since, t.was = profile.NewBuilder(), 0, now, lost
	t.mu.Unlock()
	return interval{b.Profile(n, info), idle, lost - min(was, lost), now.Sub(since)}
}
