// Package oracle runs the outside tools that judge this project's decoders and walkers. It is for
// tests only.
package oracle

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// Need skips the test unless every tool is installed; with UNSPOOL_REQUIRE_JUDGES=1, as in CI, a
// missing tool is a failure.
func Need(t testing.TB, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			Lacks(t, tool)
		}
	}
}

// Tool returns the path of a tool's file, without links; see Need.
func Tool(t testing.TB, tool string) string {
	t.Helper()
	Need(t, tool)
	path, err := exec.LookPath(tool)
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// Long skips a test that takes seconds where only quick ones are asked for, as by make check.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("part of make test")
	}
}

// Full skips a test that is part of make full only: it measures, or repeats at length what a test of every commit judges.
func Full(t testing.TB) {
	t.Helper()
	if os.Getenv("UNSPOOL_FULL") != "1" {
		t.Skip("this test lacks UNSPOOL_FULL=1 (make full)")
	}
}

// Few returns few, or many where all is asked for, as by make full: how much of a kind a test looks at.
func Few(few, many int) int {
	if os.Getenv("UNSPOOL_FULL") == "1" {
		return many
	}
	return few
}

// Lacks skips the test, or fails it where judges are required, naming what the machine lacks.
func Lacks(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("UNSPOOL_REQUIRE_JUDGES") == "1" {
		t.Fatalf("this machine lacks %s, and UNSPOOL_REQUIRE_JUDGES=1", what)
	}
	t.Skipf("this machine lacks %s", what)
}
