package module

import (
	"debug/elf"
	"path/filepath"
	"testing"
)

// BenchmarkOpen opens files of very different sizes. Peer: debug/elf.
func BenchmarkOpen(b *testing.B) {
	for _, pattern := range []string{"/usr/lib/*/libc.so.6", "/usr/lib/*/libLLVM-*.so*", "/usr/lib/llvm-*/lib/libLLVM*.so*", "/usr/lib/firefox*/libxul.so"} {
		paths, _ := filepath.Glob(pattern)
		if len(paths) == 0 {
			continue
		}
		b.Run(filepath.Base(paths[0]), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				img, err := Open(paths[0])
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(img.Size())/1e6, "MB")
				img.Close()
			}
		})
		b.Run(filepath.Base(paths[0])+"/debug-elf", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f, err := elf.Open(paths[0])
				if err != nil {
					b.Fatal(err)
				}
				f.Close()
			}
		})
	}
}
