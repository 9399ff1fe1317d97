package modules

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// TestHostile: of a program with damage anywhere, for either machine, a table is made that equals its rows, and walks through it end. C's programs have
// procedure linkage tables and signed return addresses, Go's a table of functions, and functions that are known by name.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "aarch64-linux-gnu-gcc", "go")
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	c := write("x.c", "#include <stdio.h>\nint main(int n, char **v) { char b[n * 16 + 8]; puts(v[0]); return sprintf(b, \"%d\", n) == puts(b); }\n")
	golang := write("x.go", "package main\n\nfunc main() { println(1) }\n")
	for _, x := range []struct {
		m     *arch.Machine
		build []string
		tries int
	}{
		{arch.AMD64, []string{"gcc", "-O2", "-Wl,-z,lazy", c}, 300},
		{arch.ARM64, []string{"aarch64-linux-gnu-gcc", "-O2", "-mbranch-protection=standard", "-Wl,-z,lazy", c}, 300},
		{arch.AMD64, []string{"env", "GOARCH=amd64", "CGO_ENABLED=0", "go", "build", "-ldflags=-w", golang}, 3},
		{arch.ARM64, []string{"env", "GOARCH=arm64", "CGO_ENABLED=0", "go", "build", "-ldflags=-w", golang}, 3},
	} {
		t.Run(x.m.Name+"/"+filepath.Base(x.build[len(x.build)-1]), func(t *testing.T) {
			path := filepath.Join(dir, "program")
			n := len(x.build) - 1
			args := append(append([]string{}, x.build[1:n]...), "-o", path, x.build[n])
			oracle.Run(t, x.build[0], args...)
			whole, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			r := rand.New(rand.NewPCG(uint64(x.m.ELF), uint64(n)))
			read, walked := 0, 0
			for try := range x.tries {
				b := append([]byte(nil), whole...)
				for range 1 + try%64 {
					at := r.IntN(len(b))
					if r.IntN(4) == 0 {
						at = r.IntN(0x400) // where the headers are
					}
					b[at] = byte(r.Uint32())
				}
				if try%8 == 7 {
					b = b[:r.IntN(len(b))]
				}
				began := time.Now()
				img, err := module.New("program", b)
				if err != nil {
					continue
				}
				s := Interpreted()
				code := s.code("program", img)
				if in, ok := code.Stepper.(rows.Interp); ok {
					read++
					packed, err := compact.Emit(in.Table)
					if err != nil {
						t.Fatalf("try %d: %v", try, err)
					}
					if tab, err := compact.Load(packed); err != nil {
						t.Errorf("try %d: %v", try, err)
					} else if err := compact.Verify(tab, in.Table, uint64(try)); err != nil {
						t.Errorf("try %d: %v", try, err)
					}
				}
				walked += hostileWalks(t, r, x.m, code, img)
				if took := time.Since(began); took > 30*time.Second {
					t.Errorf("try %d took %v", try, took)
				}
				s.Close()
			}
			if read < x.tries/4 || walked < 8*x.tries/2 {
				t.Errorf("of %d tries, %d had rows, and %d stacks were walked", x.tries, read, walked)
			}
		})
	}
}

// hostileWalks walks stacks that lead through the module everywhere, and returns how many.
func hostileWalks(t *testing.T, r *rand.Rand, m *arch.Machine, code *unwind.Code, img *module.Image) (n int) {
	const at, stack = 0x5500_0000_0000, 0x7ff0_0000_0000
	size := uint64(len(img.Bytes()))
	mod := unwind.NewModule("program", "", func(*unwind.Module) *unwind.Code { return code })
	space := unwind.NewSpace(unwind.Mapping{Lo: at, Hi: at + arch.Addr(size), Module: mod})
	w := unwind.NewWalker(64)
	mem := make([]byte, 1024)
	for range 8 {
		for i := 0; i < len(mem); i += 8 {
			v := at + r.Uint64N(size)
			if r.IntN(3) == 0 {
				v = stack + r.Uint64N(1024)&^7
			}
			for k := range 8 {
				mem[i+k] = byte(v >> (8 * k))
			}
		}
		s := unwind.Snapshot{Machine: m, Space: space, PC: at + r.Uint64N(size), Known: 1<<33 - 1, Mem: rows.Memory{Lo: stack, Bytes: mem}}
		for i := range s.Regs {
			s.Regs[i] = stack + r.Uint64N(512)&^7
		}
		if frames, _ := w.Walk(&s, nil); len(frames) == 0 || len(frames) > 64 {
			t.Fatalf("%d frames", len(frames))
		}
		n++
	}
	return n
}
