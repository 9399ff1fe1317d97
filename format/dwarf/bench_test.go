package dwarf

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// benchFiles are found by pattern; those a machine lacks are left out.
var benchFiles = []struct{ name, glob string }{
	{"libLLVM", "/usr/lib/x86_64-linux-gnu/libLLVM.so.19*"},
	{"cc1plus", "/usr/l*/gcc/x86_64-linux-gnu/*/cc1plus"},
	{"libc", libcPath},
	{"ld.so", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"},
}

// BenchmarkBuild reports the time for a row of the finished table, from section to table: on one core and on all.
// Beside it, once for each file, what a row costs libdw, which evaluates it and keeps nothing, and readelf -wF, which
// prints it.
func BenchmarkBuild(b *testing.B) {
	for _, f := range benchFiles {
		paths, _ := filepath.Glob(f.glob)
		if len(paths) == 0 {
			b.Logf("no %s here", f.name)
			continue
		}
		img, err := module.Open(paths[0])
		if err != nil {
			b.Fatal(err)
		}
		defer img.Close()
		fs, err := Open(img)
		if err != nil {
			b.Fatal(err)
		}
		for _, procs := range []struct {
			name string
			n    int
		}{{"one", 1}, {"all", runtime.NumCPU()}} {
			b.Run(f.name+"/"+procs.name, func(b *testing.B) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs.n))
				b.ReportAllocs()
				var t *rows.Table
				cpu := oracle.CPUTime()
				for b.Loop() {
					t, _ = fs.Build(EHFrame)
				}
				cpu = oracle.CPUTime() - cpu
				perRow := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / float64(b.N) / float64(len(t.Rows)) }
				b.ReportMetric(perRow(b.Elapsed()), "ns/row")
				b.ReportMetric(perRow(cpu), "cpu-ns/row")
				b.ReportMetric(float64(len(t.Rows)), "rows")
				b.ReportMetric(float64(len(t.Sets)), "sets")
			})
		}
		b.Run(f.name+"/libdw", func(b *testing.B) { peer(b, libdwRows, paths[0]) })
		b.Run(f.name+"/readelf", func(b *testing.B) { peer(b, readelfRows, paths[0]) })
	}
}

// peer reports the time that somebody else takes for a row.
func peer(b *testing.B, run func(testing.TB, string) (rows int, took time.Duration), path string) {
	n, took := 0, time.Duration(0)
	for b.Loop() {
		n, took = run(b, path)
	}
	if n == 0 {
		b.Fatalf("%s: 0 rows", path)
	}
	b.ReportMetric(float64(took.Nanoseconds())/float64(n), "ns/row")
	b.ReportMetric(float64(n), "rows")
}

func libdwRows(t testing.TB, path string) (n int, took time.Duration) {
	out, err := exec.Command(oracle.Program(t, "cfirows"), path).Output()
	if _, err2 := fmt.Sscan(string(out), &n, &took); err != nil || err2 != nil {
		t.Fatalf("cfirows: %v, %v\n%s", err, err2, out)
	}
	return n, took
}

func readelfRows(t testing.TB, path string) (n int, took time.Duration) {
	oracle.Need(t, "readelf")
	c := exec.Command("readelf", "-wNF", path)
	out, err := c.Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if readelfRow.MatchString(line) {
			n++
		}
	}
	return n, c.ProcessState.UserTime() + c.ProcessState.SystemTime()
}

// BenchmarkCompile is the time from files to rows of what the published measurements of compiled unwind tables were
// made on: a program, the C library, the dynamic linker. It opens the files each time.
func BenchmarkCompile(b *testing.B) {
	var paths []string
	for _, p := range []string{"/usr/bin/hackbench", libcPath, "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/usr/lib/x86_64-linux-gnu/libpthread.so.0"} {
		if m, _ := filepath.Glob(p); len(m) > 0 {
			paths = append(paths, p)
		}
	}
	if len(paths) < 3 {
		oracle.Lacks(b, "hackbench")
	}
	n := 0
	cpu := oracle.CPUTime()
	for b.Loop() {
		for _, p := range paths {
			img, err := module.Open(p)
			if err != nil {
				b.Fatal(err)
			}
			f, err := Open(img)
			if err != nil {
				b.Fatal(err)
			}
			t, _ := f.Build(Both)
			n += len(t.Rows)
			img.Close()
		}
	}
	b.ReportMetric(float64(n)/float64(b.N), "rows")
	b.ReportMetric(float64((oracle.CPUTime()-cpu).Microseconds())/float64(b.N)/1000, "cpu-ms")
}
