package record

import (
	"sync"
	"time"

	"github.com/unspool/unspool/profile"
)

// A Tally counts samples until somebody cuts it off. It is safe for concurrent use.
type Tally struct {
	mu    sync.Mutex
	b     *profile.Builder
	idle  uint64
	since time.Time
	was   uint64 // lost before
}

// An Interval has a Tally's samples between two cuts.
type Interval struct {
	Profile  *profile.Profile
	Idle     uint64 // samples of processors that had nothing to do: they are nowhere else
	Lost     uint64
	Duration time.Duration
}

// NewTally returns a tally that begins now.
func NewTally(now time.Time) *Tally { return &Tally{b: profile.NewBuilder(), since: now} }

// Add counts a sample. Its error is always nil.
func (t *Tally) Add(s *profile.Sample) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s.PID == 0 && !s.HasUser { // not a process of another PID namespace, which has no number here
		t.idle++
		return nil
	}
	t.b.Add(s)
	return nil
}

// Cut returns the samples since the last cut. lost is the number of samples lost since the beginning.
func (t *Tally) Cut(now time.Time, lost uint64, n profile.Namer, info profile.Info) Interval {
	t.mu.Lock()
	b, idle, since, was := t.b, t.idle, t.since, t.was
	t.b, t.idle, t.since, t.was = profile.NewBuilder(), 0, now, lost
	t.mu.Unlock()
	return Interval{b.Profile(n, info), idle, lost - min(was, lost), now.Sub(since)}
}
