package test

import (
	"testing"
)

// bothLibs builds both drop-ins with flags and returns their directory.
func bothLibs(t *testing.T, flags ...string) string {
	t.Helper()
	localLib(t, "gcc", flags...)
	cflags, settings := cflagsWith(flags), []string(nil)
	if cflags != "" {
		// ThreadSanitizer does not know fences; all that they order here is atomic, which is all that it asks for.
		settings = []string{"CFLAGS=" + cflags + " -Wno-tsan"}
	}
	return built(t, "gcc", cflags, "libunwind-x86_64.so.8", settings...)
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
