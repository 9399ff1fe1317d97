package debuginfo

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestUnanswered: a file system that never answers costs a goroutine, and holds up nobody else: Go's garbage collector goes on.
func TestUnanswered(t *testing.T) {
	oracle.Full(t)
	path := oracle.Silent(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := New(&fake{}).find(ctx, wanted{path: path, buildID: "aabb", pids: []int32{int32(os.Getpid())}})
		done <- err
	}()
	time.Sleep(time.Second)
	collected := make(chan bool)
	go func() { runtime.GC(); close(collected) }()
	select {
	case <-collected:
	case <-time.After(30 * time.Second):
		t.Errorf("after 30 s, the garbage collector has not ended: it waits for a page of %s; find has ended: %v", path, len(done) > 0)
	}
	if err := <-done; !errors.Is(err, errSilent) {
		t.Errorf("%v, want %v", err, errSilent)
	}
}
