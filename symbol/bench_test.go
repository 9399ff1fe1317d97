package symbol

import (
	"debug/elf"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// large are the files with the most symbols.
func large() (out []string) {
	for _, pattern := range []string{"/usr/lib/*-linux-gnu/libc.so.6", "/usr/bin/node", "/usr/lib/*-linux-gnu/libLLVM-*.so.1", "/usr/lib/firefox*/libxul.so", "/usr/lib/gcc/*/*/cc1plus"} {
		paths, _ := filepath.Glob(pattern)
		out = append(out, paths...)
	}
	return out
}

// BenchmarkIndex builds indexes, procedure linkage tables included.
func BenchmarkIndex(b *testing.B) {
	for _, path := range large() {
		b.Run(filepath.Base(path), func(b *testing.B) {
			r := New(Options{})
			defer r.Close()
			t := r.Module(path, "")
			t.open()
			n := 0
			for i := range t.sources {
				n += t.sources[i].Len()
			}
			sources := t.sources
			var x *index
			for b.Loop() {
				t.sources, t.index = slices.Clone(sources), nil
				x = t.getIndex()
			}
			b.ReportMetric(float64(n), "symbols")
			b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N)/float64(n)*1e5, "ms/100k")
			b.ReportMetric(float64(12*cap(x.starts)+4*(cap(x.groups)+cap(x.members)))/float64(n), "B/symbol")
		})
	}
}

// BenchmarkIndexStd is what debug/elf takes for reading the same symbols.
func BenchmarkIndexStd(b *testing.B) {
	for _, path := range large() {
		b.Run(filepath.Base(path), func(b *testing.B) {
			for b.Loop() {
				f, err := elf.Open(path)
				if err != nil {
					b.Fatal(err)
				}
				f.Symbols()
				f.DynamicSymbols()
				f.Close()
			}
		})
	}
}

// BenchmarkResolve names sorted lists of random addresses in code: names that were shown before, and, as first, the
// first time, with demangling.
func BenchmarkResolve(b *testing.B) {
	for _, path := range large() {
		for _, first := range []bool{false, true} {
			name := filepath.Base(path)
			if first {
				name += "/first"
			}
			b.Run(name, func(b *testing.B) {
				r := New(Options{})
				defer r.Close()
				t := r.Module(path, "")
				addrs := randomCode(t, 10_000)
				t.Resolve(addrs)
				for b.Loop() {
					if first {
						t.shown, t.named, r.names.young, r.names.old = nil, nil, [2]map[string]string{}, [2]map[string]string{}
					}
					t.Resolve(addrs)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(addrs)), "ns/address")
			})
		}
	}
}

func randomCode(t *Table, n int) []arch.Vaddr {
	rnd := rand.New(rand.NewPCG(3, 4))
	t.open()
	var addrs []arch.Vaddr
	segs := slices.DeleteFunc(slices.Clone(t.img.Segments()), func(s module.Segment) bool { return s.Kind != module.Loaded || s.Perm&module.Exec == 0 })
	for i := range n {
		s := segs[i%len(segs)]
		addrs = append(addrs, s.Vaddr+arch.Vaddr(rnd.Uint64N(s.Size)))
	}
	slices.Sort(addrs)
	return addrs
}

// BenchmarkKallsyms reads the running kernel's symbols.
func BenchmarkKallsyms(b *testing.B) {
	for b.Loop() {
		r := New(Options{})
		if noteOf(r) != "" {
			b.Skipf("this benchmark lacks the kernel's symbols: %s", noteOf(r))
		}
		b.ReportMetric(float64(len(r.kernel.funcs)), "functions")
		runtime.KeepAlive(r)
	}
}
