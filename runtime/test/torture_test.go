package test

import (
	"os"
	"os/exec"
	"testing"
)

// TestTorture: threads, signal handlers that interrupt walks, children of fork, flushes and stacks of nonsense, all at
// once; under each sanitizer. ThreadSanitizer lets handlers run only between calls that it intercepts.
func TestTorture(t *testing.T) {
	for _, c := range []struct {
		name  string
		flags []string
		storm string // microseconds between signals: more than a handler takes
	}{
		{"plain", nil, "500"},
		{"address", asan[1:], "5000"},
		{"undefined", []string{"-fsanitize=undefined", "-fno-sanitize-recover=all"}, "1000"},
		{"thread", []string{"-fsanitize=thread", "-Wno-tsan"}, "5000"},
	} {
		t.Run(c.name, func(t *testing.T) {
			prog := remoteProgram(t, "torture.c", append([]string{"-O1"}, c.flags...)...)
			for _, mode := range []string{"", "1"} {
				out, err := sanitized(prog, "UNSPOOL_STRICT="+mode, "1", c.storm)
				if err != nil {
					t.Errorf("UNSPOOL_STRICT=%s: %v\n%s", mode, err, out)
				} else {
					t.Logf("UNSPOOL_STRICT=%s: %s", mode, out)
				}
			}
		})
	}
}

// sanitized runs a program for at most five minutes, and returns the beginning of what it says.
func sanitized(prog, env string, args ...string) ([]byte, error) {
	cmd := exec.Command("timeout", append([]string{"-s", "KILL", "300", prog}, args...)...)
	cmd.Env = append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	return out[:min(len(out), 4000)], err
}

// TestHostile: a module of nonsense ends walks, and nothing else.
func TestHostile(t *testing.T) {
	prog := remoteProgram(t, "hostile.c", asan...)
	for _, mode := range []string{"", "1"} {
		for _, file := range []string{"/lib64/ld-linux-x86-64.so.2", "/bin/true"} {
			out, err := sanitized(prog, "UNSPOOL_STRICT="+mode, file, "400")
			if err != nil {
				t.Errorf("%s, UNSPOOL_STRICT=%s: %v\n%s", file, mode, err, out)
			} else {
				t.Logf("%s: %s", file, out)
			}
		}
	}
}
