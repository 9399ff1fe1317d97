package heap

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/record"
)

// TestWaitEvery: a snapshot after each interval and for each signal, as long as the command runs; the status is the command's.
func TestWaitEvery(t *testing.T) {
	oracle.Long(t)
	var target record.Plan
	target.Command = []string{"sh", "-c", "sleep 0.5; exit 3"}
	for _, interval := range []time.Duration{0, 20 * time.Millisecond} {
		r, err := start(Plan{Target: target}, nil)
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan os.Signal, 1)
		asked <- syscall.SIGUSR2
		n := 0
		status, note, err := r.waitEvery(t.Context(), interval, asked, func() { n++ })
		if status != 3 || note != "" || err != nil || interval == 0 && n != 1 || interval > 0 && n < 3 {
			t.Errorf("every %v: status %d, %q, %v, %d snapshots", interval, status, note, err, n)
		}
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}
}
