package daemon

import (
	"testing"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
)

// TestDefaults: a daemon has defaults of its own, which flags change.
func TestDefaults(t *testing.T) {
	for _, c := range []struct {
		event     string
		offCPU    bool
		period    uint64
		given     string
		frequency uint64
		waits     bool
		threshold time.Duration
	}{
		{frequency: 19},
		{given: "frequency"},
		{period: 1000},
		{offCPU: true, frequency: 19, waits: true, threshold: WaitThreshold},
		{offCPU: true, given: "off-cpu-threshold", frequency: 19, waits: true},
		{event: profile.OffCPU, threshold: WaitThreshold},
		{event: profile.OffCPU, offCPU: true, threshold: WaitThreshold},
	} {
		p := record.Plan{OffCPU: c.offCPU}
		p.Event, p.Period = c.event, c.period
		Defaults(&p, func(flag string) bool { return flag == c.given })
		if p.Frequency != c.frequency || p.Waits != c.waits || p.InKernel.Threshold != c.threshold || !p.InKernel.AtEnd || p.Waits && p.OffCPU {
			t.Errorf("%+v: %+v", c, p)
		}
	}
}
