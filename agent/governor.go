package agent

import "time"

// A Pace is how much is recorded.
type Pace struct {
	OneOf     uint32        // of so many events, one takes a sample, which counts for all of them
	Threshold time.Duration // of waits; 0: all are recorded, or none
}

// A Governor keeps the CPU time that recording takes below a bound: it chooses a slower Pace when more was used, and a faster one when much less was
// for a while. It is for one goroutine.
type Governor struct {
	max   float64 // of a processor
	paces []Pace
	at    int
	calm  int // observations in a row that would allow a faster pace
	wait  int // so many are needed
	since int // observations since the pace was made faster
}

// How a Governor decides, in observations, which are some seconds each.
const (
	leastCalm = 6   // before the pace gets faster
	mostCalm  = 120 // where it did not last
	lasts     = 12  // a faster pace for so long was right
	calmShare = 0.4 // of the bound: less allows a faster pace, which may take twice as much
	farOver   = 3   // times the bound: two steps at once
)

// NewGovernor returns a Governor that begins with a pace, and allows so much of a processor. most bounds the threshold.
func NewGovernor(max float64, first Pace, most time.Duration) *Governor {
	g := &Governor{max: max, wait: leastCalm, since: lasts}
	for p := first; ; {
		g.paces = append(g.paces, p)
		if p.OneOf >= 16 {
			return g
		}
		p.OneOf *= 2
		p.Threshold = min(4*p.Threshold, most)
	}
}

// Pace returns the pace that holds.
func (g *Governor) Pace() Pace { return g.paces[g.at] }

// Observe takes the CPU time that recording has used in a time, and says whether the pace has changed.
func (g *Governor) Observe(used, in time.Duration) bool {
	if in <= 0 {
		return false
	}
	share, was := float64(used)/float64(in), g.at
	g.since = min(g.since+1, lasts)
	switch {
	case share > g.max:
		g.calm = 0
		if g.since < lasts && g.at < len(g.paces)-1 { // the last try was too early
			g.wait = min(2*g.wait, mostCalm)
		}
		g.at++
		if share > farOver*g.max {
			g.at++
		}
		g.at = min(g.at, len(g.paces)-1)
	case share > calmShare*g.max:
		g.calm = 0
	case g.at > 0:
		if g.calm++; g.calm >= g.wait {
			g.at, g.calm, g.since = g.at-1, 0, 0
		}
	}
	if g.at == 0 && g.since == lasts {
		g.wait = leastCalm
	}
	return g.at != was
}
