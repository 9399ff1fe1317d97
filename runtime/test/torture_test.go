package test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestTorture: threads, signal handlers that interrupt walks, children of fork, flushes and stacks of nonsense, all at
// once; under each sanitizer.
func TestTorture(t *testing.T) {
	for _, c := range []struct {
		name, cc string
		flags    []string
		storms   string // the sanitizers for threads and addresses do not stand signals and fork among threads
	}{
		{"plain", "gcc", nil, "1"},
		{"address", "gcc", []string{"-fsanitize=address,undefined", "-fno-sanitize-recover=all"}, "0"},
		{"undefined", "gcc", []string{"-fsanitize=undefined", "-fno-sanitize-recover=all"}, "1"},
		{"thread", "gcc", []string{"-fsanitize=thread", "-Wno-tsan"}, "0"},
	} {
		for _, mode := range []string{"", "1"} {
			t.Run(c.name+map[string]string{"1": " strict"}[mode], func(t *testing.T) {
				oracle.Need(t, c.cc)
				prog := filepath.Join(t.TempDir(), "torture")
				args := append([]string{"-std=c11", "-g", "-O2", "-Wall", "-Wextra", "-Werror", "-I..", "-pthread", "-o", prog, "testdata/torture.c",
					"../core.c", "../frames.c", "../table.c", "../module.c", "../space.c", "../remote.c"}, c.flags...)
				if out, err := exec.Command(c.cc, args...).CombinedOutput(); err != nil {
					t.Fatalf("%s: %v\n%s", c.cc, err, out)
				}
				cmd := exec.Command(prog, "2", c.storms)
				cmd.Env = append(os.Environ(), "UNSPOOL_STRICT="+mode)
				out, err := cmd.CombinedOutput()
				if len(out) > 4000 {
					out = out[:4000]
				}
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				t.Logf("%s", out)
			})
		}
	}
}

// TestHostile: a module of nonsense ends walks, and nothing else.
func TestHostile(t *testing.T) {
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "hostile")
	out, err := exec.Command("gcc", "-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-I..", "-fsanitize=address,undefined", "-fno-sanitize-recover=all",
		"-o", prog, "testdata/hostile.c", "../core.c", "../frames.c", "../table.c", "../module.c", "../space.c", "../remote.c").CombinedOutput()
	if err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	for _, mode := range []string{"", "1"} {
		for _, file := range []string{"/lib64/ld-linux-x86-64.so.2", "/bin/true"} {
			cmd := exec.Command(prog, file, "400")
			cmd.Env = append(os.Environ(), "UNSPOOL_STRICT="+mode)
			out, err := cmd.CombinedOutput()
			if len(out) > 4000 {
				out = out[:4000]
			}
			if err != nil {
				t.Errorf("%s, UNSPOOL_STRICT=%s: %v\n%s", file, mode, err, out)
			} else {
				t.Logf("%s: %s", file, out)
			}
		}
	}
}
