package ptrace

import (
	"fmt"
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"
)

// TestNextAfter: what is known of a thread that has ended can be read before its end is told, and not any more afterwards.
func TestNextAfter(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	read := func() (string, error) {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		return string(b), err
	}
	for end := time.Now().Add(time.Minute); time.Now().Before(end); Nap() {
		var ran string
		s, ok, err := NextAfter(pid, func(ended int) {
			if ended != pid {
				t.Errorf("%d has ended, want %d", ended, pid)
			}
			if ran, err = read(); err != nil || ran == "" {
				t.Errorf("before the end is told: %q, %v", ran, err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			continue
		}
		if !s.Gone() || ran == "" {
			t.Errorf("told %+v, after %q was read", s, ran)
		}
		if b, err := read(); err == nil {
			t.Errorf("after the end is told: %q", b)
		}
		return
	}
	ran, err := read()
	t.Fatalf("after a minute, the end of process %d is not told; its schedstat: %q, %v", pid, ran, err)
}
