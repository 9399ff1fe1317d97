package debuginfo

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"
)

// TestPageThatNeverComes: UNSPOOL_HANGS names a file whose reads never end, such as one of a FUSE file system that does not answer.
func TestPageThatNeverComes(t *testing.T) {
	path := os.Getenv("UNSPOOL_HANGS")
	if path == "" {
		t.Skip("UNSPOOL_HANGS names no file")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := New(&fake{}).find(ctx, wanted{path: path, buildID: "aabb", pids: []int32{int32(os.Getpid())}})
		done <- err
	}()
	time.Sleep(time.Second)
	runtime.GC() // which such a page holds up
	if err := <-done; !errors.Is(err, errSilent) {
		t.Error(err)
	}
}
