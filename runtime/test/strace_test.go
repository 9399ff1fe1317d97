package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestStrace: strace -k, which reads a process with ptrace through Debian's libunwind-ptrace, prints the same stacks on the
// drop-in, in both modes.
func TestStrace(t *testing.T) {
	oracle.Need(t, "strace")
	trace := func(env ...string) string {
		out := filepath.Join(t.TempDir(), "out")
		// The traced program gets an environment without the library, of the same size in all runs.
		cmd := exec.Command("strace", "-k", "-o", out, "-e", "trace=openat,read,close,mmap,exit_group", "-E", "LD_LIBRARY_PATH", "-E", "UNSPOOL_STRICT",
			"-E", "UNSPOOL_CACHE", "setarch", "-R", "cat", "/etc/passwd")
		cmd.Env = append(stockEnv(), env...)
		if text, err := cmd.CombinedOutput(); err != nil {
			oracle.Lacks(t, "the permission to trace: "+string(text))
		}
		b, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		// Addresses in arguments differ from run to run until setarch takes effect.
		var stacks []string
		for line := range strings.Lines(string(b)) {
			if strings.HasPrefix(line, " > ") {
				stacks = append(stacks, line)
			}
		}
		return strings.Join(stacks, "")
	}
	lib := "LD_LIBRARY_PATH=" + dropIn(t, "gcc")
	stock := trace()
	if strings.Count(stock, "\n") < 50 {
		t.Skipf("this machine's strace prints no stacks: %q", stock)
	}
	for _, env := range [][]string{{lib}, {lib, "UNSPOOL_STRICT=1"}} {
		if got := trace(env...); got != stock {
			t.Errorf("%v:\n got\n%s\n want\n%s", env, got, stock)
		}
	}
}
