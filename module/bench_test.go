package module

import (
	"debug/elf"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
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

// BenchmarkRelocate applies the relocations of the unwind information of all members of an archive. The time for each byte is that of .eh_frame.
func BenchmarkRelocate(b *testing.B) {
	paths, _ := filepath.Glob("/usr/lib/gcc/*/*/libstdc++.a")
	if len(paths) == 0 {
		oracle.Lacks(b, "libstdc++.a")
	}
	a, err := OpenArchive(paths[0])
	if err != nil {
		b.Fatal(err)
	}
	defer a.Close()
	list, err := a.Members()
	if err != nil {
		b.Fatal(err)
	}
	n := int64(0)
	for b.Loop() {
		n = 0
		for _, m := range list {
			img, err := a.Open(m)
			if err != nil {
				b.Fatal(err)
			}
			if s := img.Section(".eh_frame"); s != nil {
				x, err := img.Data(s)
				if err != nil {
					b.Fatal(err)
				}
				n += int64(len(x))
			}
			img.Close()
		}
	}
	b.SetBytes(n)
}
