package oracle

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A verdict is a test whose end is kept.
type verdict struct {
	testing.TB
	says string
}

func (v *verdict) Skipf(format string, args ...any) {
	v.says = "skipped: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

func (v *verdict) Fatalf(format string, args ...any) {
	v.says = "failed: " + fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// verdictOf says how a test ends.
func verdictOf(t *testing.T, test func(t testing.TB)) string {
	v := &verdict{TB: t, says: "passed"}
	done := make(chan bool)
	go func() {
		defer close(done)
		test(v)
	}()
	<-done
	return v.says
}

// TestFetched: where a package cannot be fetched, or not in time, a test says what it lacks, and no process of the fetch is left. The next test does not
// wait again.
func TestFetched(t *testing.T) {
	Long(t)
	dir := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", filepath.Join(dir, "cache"))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	runs := filepath.Join(dir, "runs")
	defer stalled.Store(stalled.Load())
	for _, c := range []struct {
		name, script, require, want string
		limit                       time.Duration
	}{
		{"no network", "echo no route to host >&2; exit 100", "0", "skipped: this machine lacks no network: exit status 100\nno route to host", time.Minute},
		{"judges required", "echo no route to host >&2; exit 100", "1", "failed: this machine lacks judges required: exit status 100\nno route to host", time.Minute},
		{"a server that does not answer", "sleep 1000 & echo $! >" + runs + ".pid; wait", "0", "skipped: this machine lacks a server that does not answer: not fetched in 3s: signal: killed", 3 * time.Second},
	} {
		t.Setenv("UNSPOOL_REQUIRE_JUDGES", c.require)
		if err := os.WriteFile(filepath.Join(dir, "apt-get"), []byte("#!/bin/sh\necho >>"+runs+"\n"+c.script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		os.Remove(runs)
		for range 2 {
			got := verdictOf(t, func(t testing.TB) {
				within(t, c.limit, c.name, func(ctx context.Context) (string, error) {
					return shell(ctx, debianScript, "bookworm", "amd64", c.name, "bash")
				})
			})
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%s\n got %s\nwant %s", c.name, got, c.want)
			}
		}
		if b, err := os.ReadFile(runs); err != nil || len(b) != 1 {
			t.Errorf("%s: apt-get ran %d times, %v", c.name, len(b), err)
		}
	}
	var pid int
	if b, err := os.ReadFile(runs + ".pid"); err != nil {
		t.Error(err)
	} else if _, err := fmt.Sscan(string(b), &pid); err != nil || running(pid) {
		t.Errorf("process %d of the fetch goes on, %v", pid, err)
	}
	if !stalled.Load() {
		t.Errorf("after a fetch of process %d took too long, stalled is %v, want true: the next fetch would have all its time", pid, stalled.Load())
	}
}

// running says whether a process is there and not a zombie, which has no command line.
func running(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(b) > 0
}

// TestFetchOnce: who wants a kernel that another process fetches waits for it.
func TestFetchOnce(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	dir := filepath.Join(cache, "unspool-kernels", "bookworm-amd64")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	lock, err := os.Create(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	var image string
	go func() {
		var err error
		image, err = FetchKernel(t.Context(), "bookworm", "amd64")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatal("it has not waited: ", err)
	case <-time.After(300 * time.Millisecond):
	}
	want := filepath.Join(dir, "vmlinuz-6.1")
	if err := os.WriteFile(want, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	if err := <-done; err != nil || image != want {
		t.Errorf("%q, %v", image, err)
	}
}
