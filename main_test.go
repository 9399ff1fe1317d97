package unspool_test

import (
	"fmt"
	"os"
	"testing"
)

// TestMain keeps the examples off the user's cache, and off the network.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "unspool-examples")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Setenv("UNSPOOL_CACHE", dir)
	os.Unsetenv("DEBUGINFOD_URLS")
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}
