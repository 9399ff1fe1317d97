package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// secretive puts what it reads onto its stack, where it lies in 32 places, and works. It ends when there is a file.
const secretive = `
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
static volatile unsigned long n;
__attribute__((noinline)) int deep(int k, const char *secret, const char *end) {
	volatile char mine[32];
	for (int i = 0; i < 32; i++)
		mine[i] = secret[i] ^ 0x55;
	struct timespec t;
	int r = 0;
	if (k) {
		r = deep(k - 1, secret, end);
	} else {
		do {
			for (int i = 0; i < 1000000; i++) n += i;
			clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
		} while (t.tv_sec < 60 && access(end, F_OK));
	}
	return r + mine[3];
}
int main(int argc, char **argv) {
	char secret[32];
	FILE *f = fopen(argv[1], "r");
	if (!f || fread(secret, 1, 32, f) != 32)
		return 1;
	deep(32, secret, argv[2]);
	return 0;
}
`

// TestNoCopies: with --no-copies, what a program has on its stack is nowhere: not in the recorder's memory, its files or its cache. Without, it is
// in the recorder's memory at once.
func TestNoCopies(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe := filepath.Join(dir, "secretive.c"), filepath.Join(dir, "secretive")
	if err := os.WriteFile(src, []byte(secretive), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, src)
	secret, hidden := make([]byte, 32), make([]byte, 32)
	for i := range secret {
		secret[i] = byte(i*37) ^ byte(time.Now().UnixNano()>>(i%8))
		hidden[i] = secret[i] ^ 0x55 // this program has not read what is looked for from any file
	}
	file := filepath.Join(dir, "secret")
	if err := os.WriteFile(file, secret, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want bool
	}{
		{"copies", []string{"--source", "perf"}, true},
		{"no copies", []string{"--no-copies"}, false},
		{"waits, no copies", []string{"--no-copies", "--off-cpu", "-a"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			out, cache, end := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "end")
			p := program(t, append(append([]string{"record", "-o", filepath.Join(out, "x.data")}, c.args...), "--", exe, file, end)...)
			p.Env = append(p.Env, "UNSPOOL_CACHE="+cache)
			var said strings.Builder
			p.Stderr = &said
			if err := p.Start(); err != nil {
				t.Fatal(err)
			}
			defer p.Process.Kill()
			seen := false
			for deadline := time.Now().Add(8 * time.Second); time.Now().Before(deadline) && !seen; {
				time.Sleep(200 * time.Millisecond)
				seen = inMemory(t, p.Process.Pid, secret, hidden)
				if !c.want && time.Until(deadline) < 5*time.Second {
					break // three seconds of it have nothing
				}
			}
			if err := os.WriteFile(end, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				t.Fatalf("%v\n%s", err, &said)
			}
			if seen != c.want {
				t.Errorf("in the recorder's memory: %v", seen)
			}
			files, bytesRead := 0, int64(0)
			for _, root := range []string{out, cache} {
				err := filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
					if err != nil || e.IsDir() {
						return err
					}
					b, err := os.ReadFile(path)
					if err != nil {
						return err
					}
					files, bytesRead = files+1, bytesRead+int64(len(b))
					if bytes.Contains(b, secret) || bytes.Contains(b, hidden) {
						t.Errorf("%s has it", path)
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if files < 2 || bytesRead < 1000 {
				t.Errorf("only %d files of %d bytes were looked at", files, bytesRead)
			}
			report := runProgram(t, "report", filepath.Join(out, "x.data"), "--format", "folded")
			report.want(t, 0, "")
			if !c.want && !strings.Contains(c.name, "waits") && !strings.Contains(report.out, "main;deep;deep;deep") {
				t.Errorf("no whole stack of the program: %.500s\n%s", report.out, &said)
			}
		})
	}
	runProgram(t, "record", "--no-copies", "--source", "perf", "--", "true").want(t, 2, "--no-copies works only with --source ebpf")
	runProgram(t, "record", "--no-copies", "--stack-size", "4096", "--", "true").want(t, 2, "exclude each other")
	runProgram(t, "record", "--no-copies", "--call-graph", "fp,cfi", "--", "true").want(t, 2, "excludes --no-copies")
}

// inMemory says whether a process's memory has one of these, its ring buffers included.
func inMemory(t *testing.T, pid int, what ...[]byte) bool {
	t.Helper()
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	// Ring buffers cannot be read by others: those of perf events are special mappings. The recorder copies what it reads of them.
	for line := range strings.Lines(string(maps)) {
		var lo, hi uint64
		var perm string
		if n, _ := fmt.Sscanf(line, "%x-%x %s", &lo, &hi, &perm); n != 3 || perm[0] != 'r' || perm[1] != 'w' {
			continue
		}
		buf := make([]byte, 1<<20)
		for at := lo; at < hi; {
			n, err := mem.ReadAt(buf[:min(uint64(len(buf)), hi-at)], int64(at))
			for _, w := range what {
				if bytes.Contains(buf[:n], w) {
					return true
				}
			}
			if err != nil && err != io.EOF || n == 0 {
				break
			}
			at += uint64(n)
			if uint64(n) == uint64(len(buf)) {
				at -= 64 // it may lie across the end
			}
		}
	}
	return false
}
