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

// TestKept: stacks that a generation began with do not fill it, however many they are, and have a limit in bytes.
func TestKept(t *testing.T) {
	k := stacks{now: map[uint64][]byte{}, old: map[uint64][]byte{}}
	record := make([]byte, 11<<10)
	next := kept{stacks: map[uint64][]byte{}}
	for id := range uint64(2 * maxStacks) {
		k.now[id] = record
		k.keep(&next, id)
		k.keep(&next, id)
	}
	if n := len(next.stacks); n != maxKept/len(record) || next.size != n*len(record) {
		t.Errorf("kept %d stacks of %d bytes each, want %d", n, len(record), maxKept/len(record))
	}
	if !k.full(maxStacks, maxBytes) {
		t.Errorf("a generation of %d new stacks (%d bytes) is not full, but may have %d (%d bytes)", len(k.now)-k.kept, k.size, maxStacks, maxBytes)
	}
	if k.kept = len(k.now); k.full(maxStacks, maxBytes) {
		t.Errorf("a generation is full of the %d stacks that it began with: %d are new (%d bytes), it may have %d (%d bytes)", k.kept, len(k.now)-k.kept, k.size, maxStacks, maxBytes)
	}
	if k.drop(1); k.size != 0 {
		t.Errorf("%d bytes have come", k.size)
	}
}
