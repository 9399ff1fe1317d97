package csource

import (
	"debug/elf"
	"os"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestSize logs the size of what compilers make of the code, in terms of .eh_frame.
func TestSize(t *testing.T) {
	oracle.Full(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	for _, path := range []string{hackbench, libc} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		if path == libc && os.Getenv("UNSPOOL_CORPUS") != "all" {
			continue // takes long
		}
		ref, ehFrame := readELF(t, path)
		for l := range numLayouts {
			if l == Switch && path == libc {
				continue
			}
			for _, opt := range []string{"-O2", "-Os"} {
				src, err := generate(dir, ref, Options{Layout: l})
				if err != nil {
					t.Fatal(err)
				}
				t0 := time.Now()
				if err := compile("gcc", "-std=gnu11", opt, "-fno-asynchronous-unwind-tables", "-c", "-o", src+".o", src); err != nil {
					t.Fatal(err)
				}
				d := time.Since(t0)
				e, err := elf.Open(src + ".o")
				if err != nil {
					t.Fatal(err)
				}
				text, rodata := uint64(0), uint64(0)
				for _, s := range e.Sections {
					switch {
					case s.Flags&elf.SHF_EXECINSTR != 0:
						text += s.Size
					case s.Flags&elf.SHF_ALLOC != 0:
						rodata += s.Size
					}
				}
				e.Close()
				t.Logf("%s, %v, gcc %s (%.1f s): %d bytes of .text, %.2f of .eh_frame (%d); %d of other sections", path, l, opt, d.Seconds(), text,
					float64(text)/float64(ehFrame), ehFrame, rodata)
			}
		}
	}
}
