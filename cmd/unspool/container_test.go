package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// spinning is a program whose stacks have three frames of its own.
const spinning = `#include <unistd.h>
__attribute__((noinline)) int inner(volatile int *p) { for (int i = 0; i < 1 << 20; i++) ++*p; return *p; }
__attribute__((noinline)) int outer(volatile int *p) { return inner(p) + 1; }
int main(void) { volatile int n = 0; if (write(1, "", 1) < 0) return 1; for (;;) n += outer(&n) & 1; }
`

// untilSampled records a process that runs, until there are samples: on a busy machine that may take a while. It returns the stacks, and what was said.
func untilSampled(t *testing.T, program func(testing.TB, ...string) *exec.Cmd, pid int, args ...string) (stacks, said string) {
	t.Helper()
	for d := 300 * time.Millisecond; ; d *= 2 {
		c := program(t, append([]string{"record", "-p", fmt.Sprint(pid), "--duration", d.String(), "-o", "x.folded"}, args...)...)
		r := finish(t, c)
		r.want(t, 0, "samples?")
		b, err := os.ReadFile(filepath.Join(c.Dir, "x.folded"))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), ";main;") || d > 20*time.Second {
			return string(b), r.stderr
		}
	}
}

// TestHidden: stacks are whole and have names though no path of this machine's leads to the program's file, whoever walks them: it is in a
// container, perhaps at a path where this machine has another, or was deleted.
func TestHidden(t *testing.T) {
	canRecord(t)
	for _, c := range []struct {
		name    string
		flag    string
		deleted bool
	}{
		{"only-in-there", "-Wl,--build-id", false}, {"bin/true", "-Wl,--build-id", false}, {"deleted", "-Wl,--build-id", true},
		{"without-id", "-Wl,--build-id=none", false}, {"bin/true", "-Wl,--build-id=none", false}, {"deleted", "-Wl,--build-id=none", true},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, c.name)), 0o700); err != nil {
			t.Fatal(err)
		}
		pid := oracle.Contained(t, root, c.name, spinning, "-O1", "-fomit-frame-pointer", c.flag)
		if c.deleted {
			if err := os.Remove(filepath.Join(root, c.name)); err != nil {
				t.Fatal(err)
			}
		}
		for _, from := range []string{"perf", "ptrace", "ebpf"} {
			t.Run(c.name+c.flag+" "+from, func(t *testing.T) {
				if from == "ebpf" {
					canWalk(t)
				}
				b, _ := untilSampled(t, program, pid, "--source", from)
				whole, all := 0, 0
				for line := range strings.Lines(b) {
					if strings.HasPrefix(line, "#") {
						continue
					}
					all++
					if strings.Contains(line, ";_start;__libc_start_main;__libc_start_call_main;main;outer;inner") {
						whole++
					}
				}
				if whole == 0 || all > whole+2 { // an interrupt may come as inner begins or ends
					t.Errorf("%d of %d stacks are whole:\n%s", whole, all, b)
				}
			})
		}
	}
}
