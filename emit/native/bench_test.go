package native

import (
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// first returns the first file that matches.
func first(b *testing.B, glob string) string {
	m, _ := filepath.Glob(glob)
	if len(m) == 0 {
		oracle.Lacks(b, glob)
	}
	return m[0]
}

// BenchmarkCompile goes from files to eh_elf files in memory, and proves them: the report's set (25.28 s there), and the
// largest library of the machine.
func BenchmarkCompile(b *testing.B) {
	sets := map[string][]string{
		"report":  {"/usr/bin/hackbench", "/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libpthread.so.0"},
		"libLLVM": {"/usr/lib/x86_64-linux-gnu/libLLVM*.so.*"},
	}
	for name, globs := range sets {
		for _, proven := range []bool{false, true} {
			title := name
			if proven {
				title += ", proven"
			}
			b.Run(title, func(b *testing.B) {
				var files []string
				for _, g := range globs {
					files = append(files, first(b, g))
				}
				for b.Loop() {
					for _, path := range files {
						img, err := module.Open(path)
						if err != nil {
							b.Fatal(err)
						}
						f, err := dwarf.Open(img)
						if err != nil {
							b.Fatal(err)
						}
						ref, _ := f.Build(dwarf.Both)
						e, err := Emit(ref, Options{ID: img.ID()})
						if err != nil {
							b.Fatal(err)
						}
						if proven {
							c, err := Load(e)
							if err == nil {
								err = Verify(c, ref, 1)
							}
							if err != nil {
								b.Fatal(err)
							}
							c.Close()
						}
						img.Close()
					}
				}
			})
		}
	}
}

// BenchmarkStep finds and applies rules of libc from Go, at addresses that jump about: machine code, the compact table and
// the reference.
func BenchmarkStep(b *testing.B) {
	ref := readTable(b, libc)
	e, err := compact.Emit(ref)
	if err != nil {
		b.Fatal(err)
	}
	ct, err := compact.Load(e)
	if err != nil {
		b.Fatal(err)
	}
	for _, x := range []struct {
		name string
		s    rows.Stepper
	}{
		{"page", mustLoad(b, ref, Options{Deref: Slice})}, {"tree", mustLoad(b, ref, Options{Layout: Tree, Deref: Slice})},
		{"compact", ct}, {"rows", rows.Interp{Table: ref}},
	} {
		for _, warm := range []bool{true, false} {
			name := x.name + ", random"
			if warm {
				name = x.name + ", warm"
			}
			b.Run(name, func(b *testing.B) {
				pcs := make([]arch.Vaddr, 4096)
				at := uint64(1)
				for i := range pcs {
					at = at*6364136223846793005 + 1442695040888963407
					pcs[i] = ref.Rows[(at>>33)%uint64(len(ref.Rows)-1)].Lo
					if warm {
						pcs[i] = pcs[0]
					}
				}
				stack := make([]byte, 64<<10)
				m := rows.Memory{Lo: 0x1000, Bytes: stack}
				var s rows.State
				i := 0
				for b.Loop() {
					s.Start(0, 1<<17-1)
					for r := range s.Snap[:17] {
						s.Snap[r] = 0x2000
					}
					for range 64 {
						i++
						if id, ok := x.s.Find(pcs[i&4095]); ok {
							x.s.Apply(id, &s, &m)
						}
						s.InMem, s.InReg, s.Known = 0, 0, 1<<17-1
						s.Val[6], s.Val[7] = 0x2000, 0x2000
					}
				}
				b.ReportMetric(float64(b.Elapsed())/float64(b.N)/64, "ns/step")
			})
		}
	}
}
