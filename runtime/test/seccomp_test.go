package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestSeccomp: a sandbox that forbids process_vm_readv, or kills who calls it, costs no frames; nor does one that forbids all ways to
// ask whether there is memory, by an error.
func TestSeccomp(t *testing.T) {
	needStock(t)
	lib := localLib(t, "gcc")
	prog := filepath.Join(t.TempDir(), "seccomp")
	if out, err := exec.Command("gcc", "-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-fno-optimize-sibling-calls", "-o", prog,
		"testdata/seccomp.c", "-lunwind").CombinedOutput(); err != nil {
		oracle.Lacks(t, "libunwind-dev: "+string(out))
	}
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command(prog, args...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Errorf("%q: %v", args, err)
		}
		return string(out)
	}
	want := run()
	var n, steps int
	if _, err := fmt.Sscan(want, &n, &steps); err != nil || n < 13 || steps != n {
		t.Fatalf("without a filter: %q", want)
	}
	for _, args := range [][]string{{"kill", "vm"}, {"EACCES", "vm"}, {"EPERM", "vm"}, {"EACCES", "both"}, {"EPERM", "both"}} {
		if got := run(args...); got != want {
			t.Errorf("%q: %q, not %q", args, got, want)
		}
	}
}
