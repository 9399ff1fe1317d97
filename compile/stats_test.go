package compile

import (
	"strings"
	"testing"
)

// TestWriteStats: several files have a line each, sorted by name, and one more with the sum.
func TestWriteStats(t *testing.T) {
	a, b := newStats(), newStats()
	a.File, a.Rows, b.File, b.Rows = "a", 1, "b", 2
	write := func(all []*Stats, asJSON bool) string {
		var out strings.Builder
		if err := WriteStats(&out, all, asJSON); err != nil {
			t.Error(err)
		}
		return out.String()
	}
	lines := strings.Split(strings.TrimSpace(write([]*Stats{b, a}, true)), "\n")
	if len(lines) != 3 || !strings.HasPrefix(lines[0], `{"file":"a",`) || !strings.HasPrefix(lines[1], `{"file":"b",`) || !strings.HasPrefix(lines[2], `{"files":2,`) || !strings.Contains(lines[2], `"rows":3,`) {
		t.Errorf("%q", lines)
	}
	if got := write([]*Stats{a}, true); strings.Count(got, "\n") != 1 {
		t.Errorf("one file: %q", got)
	}
	if one, both := write([]*Stats{a}, false), write([]*Stats{b, a}, false); one == "" || both == "" || one == both {
		t.Errorf("one file as text %q, two %q", one, both)
	}
}
