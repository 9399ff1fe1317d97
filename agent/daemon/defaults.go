package daemon

import (
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
)

const (
	// Frequency is in Hz, out of step with what runs ten or twenty times a second.
	Frequency = 19

	// WaitThreshold is of waits: a thread that always waits has a hundred a second at most.
	WaitThreshold = 10 * time.Millisecond
)

// Defaults changes a plan into that of a daemon: waits are recorded beside CPU time, not instead, and what no flag says is chosen for a recording that does not
// end. given knows the command's flags.
func Defaults(p *record.Plan, given func(flag string) bool) {
	if p.OffCPU && p.Event != profile.OffCPU {
		p.OffCPU, p.Waits = false, true
	}
	if !given("frequency") && p.Period == 0 && p.Event != profile.OffCPU {
		p.Frequency = Frequency
	}
	if !given("off-cpu-threshold") && (p.Waits || p.Event == profile.OffCPU) {
		p.InKernel.Threshold = WaitThreshold
	}
	p.InKernel.AtEnd, p.Patience = true, lastRecords
}
