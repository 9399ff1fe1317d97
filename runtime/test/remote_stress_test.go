package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// remoteSources are what libunwind-x86_64.so.8 is made of, as the Makefile has it.
func remoteSources(t *testing.T) []string {
	t.Helper()
	oracle.Need(t, "make")
	out, err := exec.Command("make", "-s", "-C", "..", "--no-print-directory", "--eval", "print: ; @echo $(remote)", "print").Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("make: %v", err)
	}
	return strings.Fields(string(out))
}

// bothLibs builds both drop-ins with flags and returns their directory.
func bothLibs(t *testing.T, flags ...string) string {
	t.Helper()
	oracle.Need(t, "gcc")
	local, sources := localLib(t, "gcc", flags...), remoteSources(t)
	return once(t, "both "+strings.Join(flags, ""), func(dir string) error {
		// ThreadSanitizer does not know fences; all that they order here is atomic, which is all that it asks for.
		args := append([]string{"-Wno-tsan", "-std=c11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-shared",
			"-Wl,-soname,libunwind-x86_64.so.8", "-Wl,-z,now", "-o", filepath.Join(dir, "libunwind-x86_64.so.8")}, flags...)
		for _, s := range sources {
			args = append(args, filepath.Join("..", s))
		}
		if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %s", err, out)
		}
		return os.Symlink(filepath.Join(local, "libunwind.so.8"), filepath.Join(dir, "libunwind.so.8"))
	})
}

// TestOwnStress is TestLocalStress by libunwind-x86_64.so.8: the header of that, included first, gives all functions its names.
func TestOwnStress(t *testing.T) {
	libs := plugins(t)
	for _, kind := range []struct {
		name, env string
		flags     []string
	}{
		{"plain", "NONE=1", nil},
		{"address", "ASAN_OPTIONS=detect_stack_use_after_return=0:use_sigaltstack=0:handle_segv=0", asan},
		{"thread", "TSAN_OPTIONS=handle_segv=0:report_signal_unsafe=0:ignore_noninstrumented_modules=1", []string{"-fsanitize=thread"}},
	} {
		t.Run(kind.name, func(t *testing.T) {
			lib := bothLibs(t, kind.flags...)
			prog := localProgram(t, "gcc", "local_stress.c", append([]string{"-include", "libunwind-x86_64.h", "-Wl,--no-as-needed", "-lunwind-x86_64"}, kind.flags...)...)
			for _, what := range []string{"threads", "storm", "altstorm", "fork", "dlopen", "dlstorm", "corrupt", "guard", "overflow", "alt", "call"} {
				t.Run(what, func(t *testing.T) {
					t.Parallel() // half of them go on for a fixed time
					if out, err := runWith(lib, []string{kind.env}, prog, append([]string{what}, libs...)...); err != nil {
						t.Errorf("%v\n%s", err, out)
					}
				})
			}
		})
	}
}
