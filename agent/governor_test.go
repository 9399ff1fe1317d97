package agent

import (
	"testing"
	"time"
)

// TestGovernor: whatever the load, what recording takes settles at the bound or below it; when the load has gone, all is recorded again. A load at the
// edge does not make the pace swing.
func TestGovernor(t *testing.T) {
	const every = 5 * time.Second
	first := Pace{OneOf: 1, Threshold: 10 * time.Millisecond}
	// The use of a processor: a part that stays, samples, and waits.
	use := func(fixed, samples, waits float64, p Pace) time.Duration {
		return time.Duration((fixed + samples/float64(p.OneOf) + waits*float64(first.Threshold)/float64(p.Threshold)) * float64(every))
	}
	for _, c := range []struct {
		fixed, samples, waits float64
		oneOf                 uint32 // after an hour of the load
		changes               int    // in its last half, at most
	}{
		{0.001, 0.004, 0.003, 1, 0},
		{0.001, 0.020, 0.003, 4, 12},
		{0.001, 0.010, 0.200, 8, 12},
		{0.001, 0.100, 0.000, 16, 12},
		{0.050, 0.100, 0.000, 16, 0}, // the bound cannot be held
		{0.0005, 0.0098, 0, 2, 12},   // just too much
	} {
		g := NewGovernor(0.01, first, 4*time.Second)
		changes, over := 0, 0
		for i := range 720 {
			used := use(c.fixed, c.samples, c.waits, g.Pace())
			changed := g.Observe(used, every)
			if i < 360 {
				continue
			}
			if changed {
				changes++
			}
			if used > every/100 {
				over++
			}
		}
		if p := g.Pace(); p.OneOf != c.oneOf || changes > c.changes || c.fixed < 0.01 && over > 360/20 {
			t.Errorf("%+v: %+v, %d changes and %d times too much in half an hour", c, p, changes, over)
		}
		for range 720 {
			g.Observe(use(0.0001, 0.0005, 0, g.Pace()), every)
		}
		if g.Pace() != first {
			t.Errorf("%+v: an hour after the load, %+v", c, g.Pace())
		}
	}
	g := NewGovernor(0.01, Pace{OneOf: 1}, 4*time.Second)
	for range 10 {
		g.Observe(every, every)
	}
	if p := g.Pace(); p.OneOf != 16 || p.Threshold != 0 || g.Observe(every, 0) {
		t.Errorf("%+v, without waits", p)
	}
}
