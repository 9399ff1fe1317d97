package profile

import (
	"strings"
	"testing"

	"github.com/unspool/unspool/unwind"
)

// TestWhy: every reason to stop is explained, or needs no explanation; those of other programs' recordings are no reason to panic. A recording's
// explanation begins as any other's.
func TestWhy(t *testing.T) {
	for s := range unwind.NumStops + 2 {
		mark := Mark(s)
		if want := map[string]string{"truncated": "[truncated]", "broken": "[broken]"}[Grade(s)]; mark != want {
			t.Errorf("Mark(%v) = %q, want %q", s, mark, want)
		}
		known := s < unwind.NumStops
		if why := Why(s); (why != "") != (known && s != unwind.Outermost) {
			t.Errorf("Why(%v) = %q", s, why)
		}
		if got, why := WhyRecorded(s), Why(s); !strings.HasPrefix(got, why) {
			t.Errorf("WhyRecorded(%v) = %q, Why: %q", s, got, why)
		}
		if reason := Reason(s); (reason != "") != (known && mark != "") {
			t.Errorf("Reason(%v) = %q, marked %q", s, reason, mark)
		}
	}
}

// TestTotalsMerge: sums are of both, and how stacks ended is not recorded only where neither knows.
func TestTotalsMerge(t *testing.T) {
	a := Totals{Samples: 1, Period: 10, Frames: 5, NoStops: true}
	b := Totals{Samples: 2, Period: 20, Frames: 7}
	b.Stops[unwind.Truncated], b.Hows[HowKernel] = 2, 7
	want := Totals{Samples: 3, Period: 30, Frames: 12}
	want.Stops[unwind.Truncated], want.Hows[HowKernel] = 2, 7
	if a.Merge(&b); a != want {
		t.Errorf("%+v\nwant %+v", a, want)
	}
}
