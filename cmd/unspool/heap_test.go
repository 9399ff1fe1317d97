package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// heapRuntime builds the library for heap profiles, and returns its directory.
func heapRuntime(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	dir := t.TempDir()
	if out, err := exec.Command("make", "-C", "../../runtime", "BUILD="+dir, "heap").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, doctor.Dropin), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRecordHeap: each way to write a heap profile shows what a program is known to allocate.
func TestRecordHeap(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++")
	dir := heapRuntime(t)
	prog := filepath.Join(dir, "prog")
	gcc := exec.Command("g++", "-O1", "-g", "-pthread", "-x", "c++", "-o", prog, "-")
	gcc.Stdin = strings.NewReader(`#include <cstdlib>
#include <thread>
#include <unistd.h>
#include <sys/wait.h>
static void *volatile sink;
__attribute__((noipa)) static void kept() { for (int i = 0; i < 1000; i++) sink = new char[1000]; }
__attribute__((noipa)) static void brief() { for (int i = 0; i < 5000; i++) free(sink = malloc(2000)); }
__attribute__((always_inline)) static inline void *peaked() { void *p = malloc(50000000); sink = p; return p; }
int main() {
	free(peaked());
	kept();
	std::thread(brief).join();
	if (fork() == 0) { kept(); _exit(0); }
	wait(nullptr);
	return 3;
}`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	record := func(args ...string) (result, string) {
		c := program(t, append(append([]string{"record"}, args...), "--", prog)...)
		c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir)
		return finish(t, c), c.Dir
	}
	r, at := record("--heap=all")
	r.want(t, 3, `unspool.heap.pb.gz: .* MiB allocated, .* in use, .* at the peak, .* 100.0 % whole .* 0 lost`)
	if !strings.Contains(r.out, " MiB in use, 2,0") || !strings.Contains(r.out, "  kept()\n") || strings.Contains(r.out, "operator new") {
		t.Error(r.out)
	}
	b, err := os.Open(filepath.Join(at, defaultHeap))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := pprof.Read(b)
	if err != nil || !p.Heap() || p.Every != 0 && p.Every != 1 {
		t.Fatalf("%v %+v", err, p)
	}
	for _, c := range []struct {
		event, function string
		objects, bytes  uint64
	}{
		{profile.HeapAlloc, "kept", 2000, 2_000_000},
		{profile.HeapInUse, "kept", 2000, 2_000_000},
		{profile.HeapAlloc, "brief", 5000, 10_000_000},
		{profile.HeapBrief, "brief", 5000, 10_000_000},
		{profile.HeapInUse, "brief", 0, 0},
		{profile.HeapAlloc, "peaked", 1, 50_000_000},
		{profile.HeapPeak, "peaked", 1, 50_000_000},
		{profile.HeapInUse, "peaked", 0, 0},
	} {
		q := p.Only(c.event)
		objects, bytes := q.Sums(profile.Samples, nil), q.Sums(profile.Periods, nil)
		var got [2]uint64
		for i, f := range q.Funcs {
			if strings.TrimSuffix(f.Name, "()") == c.function { // inlined functions have no parentheses
				got = [2]uint64{objects.Self[i], bytes.Self[i]}
			}
		}
		if got != [2]uint64{c.objects, c.bytes} {
			t.Errorf("%s of %s: %v, want %v %v", c.event, c.function, got, c.objects, c.bytes)
		}
	}
	rep := program(t, "report", filepath.Join(at, defaultHeap))
	if r := finish(t, rep); !strings.Contains(r.out, " MiB in use") || !strings.Contains(r.out, "kept()") {
		t.Error(r)
	}
	r, _ = record("--heap=all", "--heap-value=alloc_objects", "--format", "folded")
	if r.want(t, 3, ""); !strings.Contains(r.out, ";brief() 5000\n") {
		t.Error(r.out)
	}
	r, at = record("--heap", "-o", "x.svg", "--heap-value", "peak_space")
	r.want(t, 3, `x.svg: .* at the peak`)
	if svg, err := os.ReadFile(filepath.Join(at, "x.svg")); err != nil || !strings.Contains(string(svg), "peaked") {
		t.Error(err)
	}
	tidy := prog + "-tidy" // has nothing in use at its end: an empty graph says what to ask for
	gcc = exec.Command("gcc", "-O1", "-fno-builtin", "-x", "c", "-o", tidy, "-")
	gcc.Stdin = strings.NewReader("#include <stdlib.h>\nint main(void) { free(malloc(1000000)); return 0; }")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := program(t, "record", "--heap=all", "-o", "y.folded", "--", tidy)
	c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir)
	r = finish(t, c)
	r.want(t, 0, "nothing was in use at the end: --heap-value peak_space")
	r, _ = record("--heap", "-o", "x.data")
	r.want(t, 2, `^unspool: --heap makes a profile`)
	r, _ = record("--heap", "-e", "cycles")
	r.want(t, 2, `^unspool: --heap and --event exclude each other`)
}
