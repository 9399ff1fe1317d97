package heap

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestWaitEvery: a snapshot after each interval and for each signal, as long as the command runs; the status is the command's.
func TestWaitEvery(t *testing.T) {
	for _, interval := range []time.Duration{0, 20 * time.Millisecond} {
		r, err := Start(Plan{Command: []string{"sh", "-c", "sleep 0.5; exit 3"}})
		if err != nil {
			t.Fatal(err)
		}
		asked := make(chan os.Signal, 1)
		asked <- syscall.SIGUSR2
		n := 0
		status, note, err := r.WaitEvery(t.Context(), interval, asked, func() { n++ })
		if status != 3 || note != "" || err != nil || interval == 0 && n != 1 || interval > 0 && n < 3 {
			t.Errorf("every %v: status %d, %q, %v, %d snapshots", interval, status, note, err, n)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
