package profile

import (
	"slices"
	"strings"
	"testing"
)

// TestSums: a function that is in a stack several times, inlined or not, has its weight once, and its own is the innermost one's.
func TestSums(t *testing.T) {
	p := &Profile{
		Funcs: make([]Func, 4),
		Locs:  []Loc{{Func: 0}, {Func: 1}, {Func: 1, Inlined: true}, {Func: 2}},
		Stacks: []Stack{
			{Frames: []uint32{0, 2, 1, 3}, Count: 2, Period: 70},
			{Frames: []uint32{1, 1, 0}, Count: 3, Period: 5},
			{Count: 9, Period: 9}, // without frames
			{Frames: []uint32{3}, Count: 1, Period: 1},
		},
	}
	for _, c := range []struct {
		by          Weight
		keep        func(int) bool
		self, total []uint64
	}{
		{Samples, nil, []uint64{2, 3, 1, 0}, []uint64{5, 5, 3, 0}},
		{Periods, nil, []uint64{70, 5, 1, 0}, []uint64{75, 75, 71, 0}},
		{Samples, func(i int) bool { return i != 1 }, []uint64{2, 0, 1, 0}, []uint64{2, 2, 3, 0}},
	} {
		if got := p.Sums(c.by, c.keep); !slices.Equal(got.Self, c.self) || !slices.Equal(got.Total, c.total) {
			t.Errorf("Sums(%d): %+v\nwant self %v, total %v", c.by, got, c.self, c.total)
		}
	}
}

// TestSumsAdd: profiles add up. Functions of one number are one function, also within a stack.
func TestSumsAdd(t *testing.T) {
	p := &Profile{Funcs: make([]Func, 3), Locs: []Loc{{Func: 0}, {Func: 1}, {Func: 2}}, Stacks: []Stack{{Frames: []uint32{0, 1, 2}, Count: 2}, {Frames: []uint32{1}, Count: 1}}}
	q := &Profile{Funcs: make([]Func, 2), Locs: []Loc{{Func: 1}, {Func: 0}}, Stacks: []Stack{{Frames: []uint32{0, 1}, Count: 5}}}
	var got Sums
	got.Add(p, Samples, []int32{0, 1, 0}, nil)
	got.Add(&Profile{}, Samples, nil, nil)
	got.Add(q, Samples, []int32{0, 3}, nil)
	if self, total := []uint64{2, 1, 0, 5}, []uint64{7, 3, 0, 5}; !slices.Equal(got.Self, self) || !slices.Equal(got.Total, total) {
		t.Errorf("%+v\nwant self %v, total %v", got, self, total)
	}
}

// TestNumber: times and bytes have the unit that suits them, all other numbers are counts.
func TestNumber(t *testing.T) {
	for n, want := range map[uint64]string{0: "0", 7: "7 ns", 999: "999 ns", 1500: "1.5 µs", 12_345_678: "12.35 ms", 1_234_567_890: "1.235 s", 5e15: "5,000,000 s"} {
		if got := Number(n, "ns"); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
	for unit, want := range map[string]string{"ns": "1.5 µs", "bytes": "1.5 KiB"} {
		if got := Quantity(1500, unit); got != want {
			t.Errorf("Quantity(1500, %s) = %q, want %q", unit, got, want)
		}
	}
}

// TestQuantity: one of anything is in the singular.
func TestQuantity(t *testing.T) {
	for unit, one := range map[string]string{
		"samples": "sample", "events": "event", "cycles": "cycle", "page-faults": "page-fault", "LLC-load-misses": "LLC-load-miss", "branches": "branch", "cache-references": "cache-reference",
		"context-switches": "context-switch", "cs": "cs", "cpu-clock": "cpu-clock", "sched:sched_stats": "sched:sched_stats", "cpu/x/s": "cpu/x/s", "progress": "progress",
	} {
		if got := Quantity(1, unit); got != "1 "+one {
			t.Errorf("%q, want 1 %s", got, one)
		}
		for n, want := range map[uint64]string{0: "0 ", 2: "2 ", 1234: "1,234 "} {
			if got := Quantity(n, unit); got != want+unit {
				t.Errorf("%q, want %s%s", got, want, unit)
			}
		}
	}
	totals := Totals{Samples: 1}
	if got := totals.Summary(Loss{Skipped: 1, Damaged: 2}); !strings.HasPrefix(got, "1 sample · ") || !strings.HasSuffix(got, " · 0 lost · 1 record skipped · 2 records damaged") {
		t.Errorf("Summary = %q, want 1 sample, 0 lost, 1 record skipped, 2 records damaged", got)
	}
}

// TestBytes: sizes have the unit that suits them.
func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 20: "1.0 MiB", 5 << 30: "5.0 GiB", 1 << 42: "4096.0 GiB"} {
		if got := Bytes(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}
