package test

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source/heap"
)

// heapLibrary builds the library in front of a program's allocator and returns its path.
func heapLibrary(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	return filepath.Join(once(t, "heap", func(dir string) error {
		out, err := exec.Command("make", "-C", "..", "BUILD="+dir, "heap").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}), "libunspool_heap.so")
}

// heapCounter builds the allocator that counts, and a library to load and unload.
func heapCounter(t testing.TB) (counter, plug string) {
	t.Helper()
	oracle.Need(t, "gcc")
	dir := once(t, "counter", func(dir string) error {
		for _, name := range []string{"heap_count", "heap_plug"} {
			out, err := exec.Command("gcc", "-O2", "-fno-builtin", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", filepath.Join(dir, name+".so"), filepath.Join("testdata", name+".c")).CombinedOutput()
			if err != nil {
				return fmt.Errorf("%w\n%s", err, out)
			}
		}
		return nil
	})
	return filepath.Join(dir, "heap_count.so"), filepath.Join(dir, "heap_plug.so")
}

// heapProgram compiles a program of testdata.
func heapProgram(t testing.TB, source string, flags ...string) string {
	t.Helper()
	oracle.Need(t, "g++")
	prog := filepath.Join(t.TempDir(), strings.TrimSuffix(source, filepath.Ext(source)))
	args := append([]string{"-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", prog, filepath.Join("testdata", source)}, flags...)
	if out, err := exec.Command("g++", append(args, "-ldl")...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return prog
}

// heapRun runs a program under preloads, and returns what it prints, how it ends, and what was recorded.
func heapRun(t testing.TB, preload string, env []string, prog string, args ...string) (string, []*heap.Process) {
	t.Helper()
	dir := t.TempDir()
	out := ehRun(t, preload, append(env, "UNSPOOL_HEAP="+dir), prog, args...)
	all, err := heap.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range all {
		if p.Damaged > 0 || p.Lost > 0 {
			t.Errorf("%s: %d damaged, %d lost", p.Path, p.Damaged, p.Lost)
		}
	}
	return out, all
}

// A total is what a process allocated, and what of that is in use.
type total struct {
	pid          int32
	alloc, inUse heap.Amount
}

// totals adds up what was recorded, and compares the sums with what the library says of them.
func totals(t testing.TB, all []*heap.Process) (out []total) {
	t.Helper()
	for _, p := range all {
		sum, peak := total{pid: p.PID}, heap.Amount{}
		for _, s := range p.Stacks {
			sum.alloc.Objects += s.Alloc.Objects
			sum.alloc.Bytes += s.Alloc.Bytes
			sum.inUse.Objects += s.InUse.Objects
			sum.inUse.Bytes += s.InUse.Bytes
			peak.Objects += s.Peak.Objects
			peak.Bytes += s.Peak.Bytes
		}
		if p.Period == 0 && (sum.inUse != p.InUse || peak != p.Peak) {
			t.Errorf("%s: stacks have %v in use and %v at the peak, the process %v and %v", p.Path, sum.inUse, peak, p.InUse, p.Peak)
		}
		out = append(out, sum)
	}
	slices.SortStableFunc(out, func(a, b total) int { return int(a.pid - b.pid) })
	return out
}

// counted runs a program, and records all allocations in front of the allocator that counts. It returns both's totals.
func counted(t testing.TB, prog string, args ...string) (out string, ours, theirs []total, all []*heap.Process) {
	t.Helper()
	counter, _ := heapCounter(t)
	dir := t.TempDir()
	out, all = heapRun(t, heapLibrary(t)+":"+counter, []string{"UNSPOOL_HEAP_PERIOD=0", "HEAP_COUNT=" + dir}, prog, args...)
	ours = totals(t, all)
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		var pid int32
		b, err := os.ReadFile(filepath.Join(dir, f.Name()))
		if _, e := fmt.Sscanf(f.Name(), "%d.", &pid); err != nil || e != nil || len(b) != 32 {
			t.Fatal(f, err, e)
		}
		w := func(i int) uint64 { return binary.NativeEndian.Uint64(b[8*i:]) }
		if w(0) == 0 {
			continue // it forked off, and only called exec
		}
		theirs = append(theirs, total{pid, heap.Amount{Objects: w(0), Bytes: w(1)}, heap.Amount{Objects: w(2), Bytes: w(3)}})
	}
	slices.SortStableFunc(theirs, func(a, b total) int { return int(a.pid - b.pid) })
	return out, ours, theirs, all
}

// TestHeapAll: all that is allocated, reallocated and freed is recorded, in threads, after fork and exec, and in libraries that come and go. A
// counting allocator behind the library has the same counts.
func TestHeapAll(t *testing.T) {
	_, plug := heapCounter(t)
	prog := heapProgram(t, "heap_all.cc", "-fno-builtin", "-Wno-alloc-size-larger-than")
	out, ours, theirs, all := counted(t, prog, "parent", plug)
	if out != "done\ndone\n<nil>\n" && out != "done\n<nil>\n" {
		t.Error(out)
	}
	if len(ours) != 6 || !slices.Equal(ours, theirs) {
		t.Errorf("recorded\n%v\ncounted\n%v", ours, theirs)
	}
	for _, p := range all {
		if p.Foreign || p.Nested > 0 {
			t.Errorf("%+v", p)
		}
	}
}

// TestHeapPrograms records all allocations of programs of the machine: the counting allocator has the same counts.
func TestHeapPrograms(t *testing.T) {
	source := filepath.Join(t.TempDir(), "big.cc")
	text := "#include <map>\n#include <string>\n#include <regex>\nint main() { std::map<std::string, std::regex> m; m[\"a\"] = std::regex(\"b*\"); return std::regex_match(\"b\", m[\"a\"]); }\n"
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"g++", "-O1", "-o", filepath.Join(t.TempDir(), "big"), source},
		{"python3", "-c", "import json, threading; l = [json.loads(json.dumps({str(i): [i] * 50})) for i in range(20000)]; t = threading.Thread(target=lambda: [str(i) * 100 for i in range(100000)]); t.start(); t.join(); print(len(l))"},
		{"sqlite3", ":memory:", "create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 50000) insert into t select x, hex(randomblob(50)) from c; create index i on t(b); select count(*) from t order by b;"},
		{"bash", "-c", "for i in $(seq 300); do x=$(echo $i); done; ls / | sort | wc -l > /dev/null"},
	} {
		t.Run(c[0], func(t *testing.T) {
			oracle.Need(t, c[0])
			out, ours, theirs, _ := counted(t, c[0], c[1:]...)
			if !strings.HasSuffix(out, "<nil>\n") {
				t.Error(out)
			}
			var all, inUse heap.Amount
			for _, o := range ours {
				all.Objects, all.Bytes = all.Objects+o.alloc.Objects, all.Bytes+o.alloc.Bytes
				inUse.Objects, inUse.Bytes = inUse.Objects+o.inUse.Objects, inUse.Bytes+o.inUse.Bytes
			}
			t.Logf("%d processes, %d objects, %d bytes, at the ends %d objects, %d bytes", len(ours), all.Objects, all.Bytes, inUse.Objects, inUse.Bytes)
			if !slices.Equal(ours, theirs) {
				for i := range min(len(ours), len(theirs)) {
					if ours[i] != theirs[i] {
						t.Errorf("recorded %v, counted %v", ours[i], theirs[i])
						break
					}
				}
				t.Errorf("%d processes, counted %d", len(ours), len(theirs))
			}
		})
	}
}
