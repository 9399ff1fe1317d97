package dwarf

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

const libcPath = "/usr/lib/x86_64-linux-gnu/libc.so.6"

// needLibc returns the image of the C library.
func needLibc(t testing.TB) *module.Image {
	t.Helper()
	if _, err := os.Stat(libcPath); err != nil {
		oracle.Lacks(t, libcPath)
	}
	return openImage(t, libcPath)
}

func openImage(t testing.TB, path string) *module.Image {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func openFrames(t testing.TB, img *module.Image) *Frames {
	t.Helper()
	f, err := Open(img)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// compileC compiles a C program with gcc and returns its path.
func compileC(t testing.TB, flags ...string) string {
	t.Helper()
	oracle.Need(t, "gcc")
	path := filepath.Join(t.TempDir(), "prog")
	c := exec.Command("gcc", append(append([]string{"-x", "c", "-", "-o", path}, flags...), "-O2")...)
	c.Stdin = strings.NewReader("#include <stdio.h>\nint main(int n, char **v) { volatile char b[n]; b[0] = 1; printf(\"%d %s\\n\", b[0], v[0]); return 0; }\n")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return path
}

// sampled yields the first and last address of every row, or of every nth, and random addresses.
func sampled(x *rows.Table, nth int) func(func(arch.Vaddr) bool) {
	return func(yield func(arch.Vaddr) bool) {
		if len(x.Rows) == 0 {
			return
		}
		for i := 0; i < len(x.Rows); i += nth {
			if !yield(x.Rows[i].Lo) || i+1 < len(x.Rows) && !yield(x.Hi(i)-1) {
				return
			}
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		lo, hi := x.Rows[0].Lo, x.Rows[len(x.Rows)-1].Lo
		for range 2000 {
			if !yield(lo+arch.Vaddr(rnd.Uint64N(uint64(hi-lo)+100))) || !yield(arch.Vaddr(rnd.Uint64())) {
				return
			}
		}
	}
}

// TestLookup: what Lookup finds at every row of a file is what Build finds.
func TestLookup(t *testing.T) {
	oracle.Long(t)
	check := func(t *testing.T, img *module.Image, nth int) *Frames {
		f := openFrames(t, img)
		x, ds := f.Build(Both)
		sound(t, ds)
		if len(x.Rows) == 0 {
			t.Fatalf("Build makes no rows, of %d sections .eh_frame and %d .debug_frame, with %d damaged", len(f.eh), len(f.debug), len(ds))
		}
		n := agree(t, f, x, sampled(x, nth))
		t.Logf("%d rows, %d addresses", len(x.Rows), n)
		return f
	}
	t.Run("libc", func(t *testing.T) {
		if f := check(t, needLibc(t), 1); f.hdr == nil || f.hdr.count == 0 {
			t.Errorf("no search table: %v", f.hdrErr)
		}
	})
	t.Run("go", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "prog")
		src := path + ".go"
		if err := os.WriteFile(src, []byte("package main\n\nfunc main() { println(\"a program\") }\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		oracle.Run(t, "go", "build", "-o", path, src)
		f := check(t, openImage(t, path), 3)
		if len(f.eh) != 0 || len(f.debug) != 1 {
			t.Errorf("a Go program has %d .eh_frame and %d .debug_frame", len(f.eh), len(f.debug))
		}
	})
	t.Run("static", func(t *testing.T) {
		f := check(t, openImage(t, compileC(t, "-static")), 3)
		if f.in.Hdr != nil {
			t.Errorf("a static program has an .eh_frame_hdr of %d bytes at %#x; want none", len(f.in.Hdr.Data), f.in.Hdr.Addr)
		}
	})
	t.Run("pie", func(t *testing.T) {
		check(t, openImage(t, compileC(t)), 1)
	})
}

// TestBounds: every FDE's bounds are Entries', unless another lies over it.
func TestBounds(t *testing.T) {
	f := openFrames(t, needLibc(t))
	type span struct{ lo, hi arch.Vaddr }
	var all []span
	sound(t, f.Entries(Both, func(e Entry) bool {
		if e.IsFDE && !e.FDE.Dead && e.FDE.Lo < e.FDE.Hi {
			all = append(all, span{e.FDE.Lo, e.FDE.Hi})
		}
		return true
	}))
	if len(all) < 1000 {
		t.Fatalf("%d FDEs", len(all))
	}
	other := 0
	for _, s := range all {
		for _, pc := range []arch.Vaddr{s.lo, s.lo + (s.hi-s.lo)/2, s.hi - 1} {
			if lo, hi, ok := f.Bounds(Both, pc); !ok || lo != s.lo || hi != s.hi {
				if !ok || lo < s.lo && hi < s.hi {
					t.Errorf("Bounds(%#x)\n got [%#x, %#x) %v\nwant %#x", uint64(pc), uint64(lo), uint64(hi), ok, s)
				}
				other++
			}
		}
	}
	if other > len(all)/100 {
		t.Errorf("%d of %d FDEs are covered by others", other, len(all))
	}
}

// TestNoSections: a file that has lost its section headers has the same rows, by way of PT_GNU_EH_FRAME.
func TestNoSections(t *testing.T) {
	oracle.Long(t)
	for name, img := range map[string]*module.Image{"libc": needLibc(t), "pie": openImage(t, compileC(t))} {
		whole := openFrames(t, img)
		want, _ := whole.Build(EHFrame)

		bare, err := module.New(name, withoutSections(img.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		f := openFrames(t, bare)
		if len(f.eh) != 1 || !f.eh[0].open || f.hdr == nil {
			t.Fatalf("%s: %d sections", name, len(f.eh))
		}
		got, ds := f.Build(Both)
		sound(t, ds)
		if lines(t, got) != lines(t, want) {
			t.Errorf("%s: %d rows and %d sets, want %d and %d", name, len(got.Rows), len(got.Sets), len(want.Rows), len(want.Sets))
		}
		agree(t, f, got, sampled(got, 50))
	}
}

// TestNoFrames: an image without any is no error.
func TestNoFrames(t *testing.T) {
	f := New(Sections{})
	x, ds := f.Build(Both)
	one, err := f.Lookup(0x1000)
	if _, _, ok := f.Bounds(Both, 0x1000); len(x.Rows) != 0 || len(ds) != 0 || err != nil || len(one.Rows) != 0 || ok || f.Sizes() != (Sizes{}) {
		t.Errorf("got %d rows, %v, %v", len(x.Rows), ds, err)
	}
}

// BenchmarkLookup is one function's rules, as they are made on demand.
func BenchmarkLookup(b *testing.B) {
	f := openFrames(b, needLibc(b))
	x, _ := f.Build(EHFrame)
	rnd := rand.New(rand.NewPCG(1, 2))
	pcs := make([]arch.Vaddr, 1024)
	for i := range pcs {
		pcs[i] = x.Rows[rnd.IntN(len(x.Rows))].Lo
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		if _, err := f.Lookup(pcs[i&1023]); err != nil {
			b.Fatal(err)
		}
		i++
	}
}
