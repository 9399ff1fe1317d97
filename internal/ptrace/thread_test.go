package ptrace

import (
	"os"
	"os/exec"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// A tracer's thread has no children, whatever thread its goroutine had.
func TestNoChildren(t *testing.T) {
	known := true
	Do(func() {
		c := exec.Command("cat")
		in, err := c.StdinPipe()
		if err == nil {
			err = c.Start()
		}
		if err != nil {
			t.Error(err)
			return
		}
		defer func() {
			in.Close()
			if err := c.Wait(); err != nil {
				t.Errorf("the child's exit: %v", err)
			}
		}()
		if known = parent(); !known {
			return
		}
		here, called := unix.Gettid(), false
		onThread(func() {
			called = true
			if tid := unix.Gettid(); tid == here || tid == os.Getpid() {
				t.Errorf("f runs on thread %d of process %d; the child's parent is thread %d", tid, os.Getpid(), here)
			}
			if s, ok, err := Next(-1); err != unix.ECHILD {
				t.Errorf("Next(-1) = %+v, %v, %v, want ECHILD: the thread has a child that it did not start", s, ok, err)
			}
		})
		if !called {
			t.Errorf("onThread, called on thread %d of process %d, returned without a call of f", here, os.Getpid())
		}
	})
	if !known {
		t.Skip("this kernel has no /proc/thread-self/children (CONFIG_PROC_CHILDREN)")
	}
}

// The same by Do, while other goroutines start processes and wait for them.
func TestOtherChildren(t *testing.T) {
	oracle.Long(t)
	var others sync.WaitGroup
	for range 4 {
		others.Go(func() {
			for range 50 {
				if err := exec.Command("true").Run(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 200 {
		Do(func() {
			if s, ok, err := Next(-1); err != unix.ECHILD {
				t.Errorf("Next(-1) = %+v, %v, %v, want ECHILD", s, ok, err)
			}
		})
	}
	others.Wait()
}
