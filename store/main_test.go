package store

import (
	"os"
	"testing"
)

// TestMain keeps the tests off what this machine has.
func TestMain(m *testing.M) {
	os.Setenv(SharedVar, "")
	os.Exit(m.Run())
}
