package dwarf

import (
	"path/filepath"
	"runtime"
	"testing"

	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// benchFiles are found by pattern; those a machine lacks are left out.
var benchFiles = []struct{ name, glob string }{
	{"libLLVM", "/usr/lib/x86_64-linux-gnu/libLLVM.so.19*"},
	{"cc1plus", "/usr/l*/gcc/x86_64-linux-gnu/*/cc1plus"},
	{"libc", "/usr/lib/x86_64-linux-gnu/libc.so.6"},
	{"ld.so", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"},
}

// BenchmarkBuild reports the time for a row of the finished table, from section to table: on one core and on all.
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
				for b.Loop() {
					t, _ = fs.Build(EHFrame)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(t.Rows)), "ns/row")
				b.ReportMetric(float64(len(t.Rows)), "rows")
				b.ReportMetric(float64(len(t.Sets)), "sets")
			})
		}
	}
}
