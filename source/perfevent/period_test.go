package perfevent

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestPeriod holds that of software events and tracepoints, too, every so many make a sample: as many as perf has of the same program, and as
// the program does.
func TestPeriod(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "perf")
	w := work(t)
	const events, period = "20000", 100
	for _, event := range []string{"page-faults", "minor-faults", "raw_syscalls:sys_enter"} {
		if strings.Contains(event, ":") && os.Geteuid() != 0 {
			continue
		}
		r := open(t, Options{Event: event, Period: period, StackSize: 1 << 10, Command: []string{w, "count", events}})
		n := int(run(t, r).Samples)
		file := filepath.Join(t.TempDir(), "perf.data")
		oracle.Run(t, "perf", "record", "-q", "-e", event, "-c", "100", "-o", file, "--", w, "count", events)
		out, err := exec.Command("perf", "script", "-i", file, "-F", "period").Output()
		if err != nil {
			t.Fatal(err)
		}
		perf := strings.Count(string(out), "\n")
		t.Logf("%s: %d samples, perf %d", event, n, perf)
		// What a program does to start is less than 1,000. There is an event for each processor, which counts to the period by itself
		// (hw_perf_event.period_left): at the end, less than a period remains in each, and floors of parts add up to more than the floor of the
		// whole less their number. A program that stays on one processor has 200 or 201 samples, one that may move between two 199 or 200.
		between(t, event, n, 200-runtime.NumCPU(), 210)
		if event != "raw_syscalls:sys_enter" { // of which perf 6.1 takes each, with the period 1
			between(t, "perf's "+event, perf, n-runtime.NumCPU(), n+runtime.NumCPU())
		}
	}
}
