package ebpf

import (
	"testing"
	"time"
)

// TestGenerations: of the stacks that had other numbers, those of samples on their way stay for a while, those of waits until the next generation.
func TestGenerations(t *testing.T) {
	for _, c := range []struct {
		prog  string
		age   time.Duration
		stays bool
	}{
		{"on_event", underway / 2, true},
		{"on_event", underway + time.Second, false},
		{"on_switch", underway + time.Second, true},
	} {
		k := stacks{now: map[uint64][]byte{1: {1}}, old: map[uint64][]byte{2: {2}}, since: time.Now().Add(-c.age)}
		k.tidy(&Program{prog: c.prog})
		if k.find(1) == nil || (k.find(2) != nil) != c.stays {
			t.Errorf("%s, after %v: now %v, old %v; the old ones should stay: %v", c.prog, c.age, k.now, k.old, c.stays)
		}
	}
}
