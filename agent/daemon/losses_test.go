package daemon

import (
	"testing"

	"github.com/unspool/unspool/agent"
)

// TestLossy: what is lost is said from one in a hundred on, of what came since it was looked at last.
func TestLossy(t *testing.T) {
	for _, c := range []struct {
		lost, samples uint64
		want          bool
	}{{0, 0, false}, {0, 1000, false}, {1, 50, true}, {10, 990, false}, {11, 990, true}, {5, 0, true}} {
		lost, samples := since(&agent.Stats{Lost: 7, Samples: 9}, &agent.Stats{Lost: 7 + c.lost, Samples: 9 + c.samples})
		if got := lossy(lost, samples); got != c.want {
			t.Errorf("%d lost and %d not: %v", lost, samples, got)
		}
	}
}
