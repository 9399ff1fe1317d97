package compactunwind_test

import (
	"bytes"
	"compress/gzip"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/format/compactunwind"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

var update = flag.Bool("update", false, "write the golden files anew, with clang and lld")

// programs calls each with the programs of a Mach-O file, and what llvm-objdump calls their machine.
func programs(t testing.TB, path string, each func(arch string, img *module.Image)) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Error(err)
		return
	}
	defer img.Close()
	if len(img.Slices()) == 0 {
		each("", img)
	}
	for _, s := range img.Slices() {
		if x, err := img.Slice(s); err != nil {
			t.Error(err)
		} else {
			each(s.Name, x)
		}
	}
}

var (
	functionLine = regexp.MustCompile(`^      \[\d+\]: function offset=0x([0-9a-f]+), encoding(?:\[\d+\])?=0x([0-9a-f]+)$`)
	lsdaLine     = regexp.MustCompile(`^    \[\d+\]: function offset=0x([0-9a-f]+), LSDA offset=0x([0-9a-f]+)$`)
	persLine     = regexp.MustCompile(`^    personality\[(\d+)\]: 0x([0-9a-f]+)$`)
)

func hex(t testing.TB, s string) uint64 {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestObjdump: every entry of shipped files, with its function, encoding, personality and data, is what llvm-objdump prints, and each function that
// is left to DWARF has an FDE.
func TestObjdump(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-objdump-19")
	files, entries, withData, left, regular := 0, 0, 0, 0, 0
	judge := time.Duration(0)
	for _, path := range oracle.MachO(t, oracle.Few(3, 100)) {
		programs(t, path, func(machine string, img *module.Image) {
			table, err := compactunwind.Open(img)
			if err != nil {
				t.Error(err)
			}
			if table == nil {
				return
			}
			files++
			args := []string{"--macho", "--unwind-info", path}
			if machine != "" {
				args = append(args, "--arch="+machine)
			}
			start := time.Now()
			out, err := exec.Command("llvm-objdump-19", args...).Output()
			if judge += time.Since(start); err != nil {
				t.Fatal(err)
			}
			var want []string
			data, personalities := map[uint64]uint64{}, map[uint32]uint64{}
			for _, line := range strings.Split(string(out), "\n") {
				if m := functionLine.FindStringSubmatch(line); m != nil {
					want = append(want, fmt.Sprintf("%x %x", hex(t, m[1]), hex(t, m[2])))
					if strings.Contains(line, "encoding=") {
						regular++
					}
				} else if m := lsdaLine.FindStringSubmatch(line); m != nil {
					data[hex(t, m[1])] = hex(t, m[2])
				} else if m := persLine.FindStringSubmatch(line); m != nil {
					personalities[uint32(hex(t, m[1]))] = hex(t, m[2])
				}
			}
			base, _ := img.OffToVaddr(0)
			u, err := format.Open(img)
			if err != nil {
				t.Error(err)
			}
			var got []string
			here := 0 // functions without rows: left to DWARF, or nothing is said of them
			for e := range table.Entries {
				got = append(got, fmt.Sprintf("%x %x", uint64(e.Lo-base), e.Encoding))
				lsda, has := data[uint64(e.Lo-base)]
				if has = has && e.Encoding>>30&1 != 0; has != e.HasLSDA || has && e.LSDA-base != arch.Vaddr(lsda) {
					t.Errorf("%s: function %#x has data at %#x %v, want %#x %v", path, e.Lo, e.LSDA, e.HasLSDA, lsda, has)
				}
				if has {
					withData++
				}
				if pers := personalities[e.Encoding>>28&3]; pers != 0 && e.Personality-base != arch.Vaddr(pers) || pers == 0 && e.Personality != 0 {
					t.Errorf("%s: function %#x has a personality at %#x, want %#x", path, e.Lo, e.Personality, pers)
				}
				dwarf := uint32(0x04000000)
				if img.Machine() == arch.ARM64 {
					dwarf = 0x03000000
				}
				if e.Encoding&0x0f000000 == 0 {
					here++
				}
				if e.Encoding&0x0f000000 == dwarf {
					left++
					here++
					if lo, _, ok := u.Sources[0].Bounds(e.Lo); u.Sources[0].Name != format.EHFrame || !ok || lo != e.Lo {
						t.Errorf("%s: function %#x is left to DWARF, which has %#x %v", path, e.Lo, lo, ok)
					}
				}
			}
			entries += len(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: %d entries, want %d", path, len(got), len(want))
				for i := range min(len(got), len(want)) {
					if got[i] != want[i] {
						t.Errorf("entry %d: %s, want %s", i, got[i], want[i])
						break
					}
				}
			}
			tbl, damage := table.Rows()
			if len(damage) > 0 || len(tbl.Rows) == 0 && here < len(got) {
				t.Errorf("%s: %d rows: %v", path, len(tbl.Rows), damage)
			}
		})
	}
	t.Logf("%d files, %d entries, %d of them of regular pages, %d left to DWARF, %d with language-specific data; llvm-objdump took %v", files, entries, regular, left, withData, judge)
	if files < oracle.Few(4, 40) || entries < 1000 || left == 0 || withData == 0 {
		t.Errorf("%d files, %d entries, %d left to DWARF, %d with language-specific data; want %d, 1000, 1, 1 or more", files, entries, left, withData, oracle.Few(4, 40))
	}
}

// build compiles the functions of frames.cc for a machine, with both compact unwind information and DWARF, and links them twice: as they are, and
// without the former. The linker leaves out DWARF where there is an encoding.
func build(t testing.TB, machine string, flags ...string) (compact, dwarf *module.Image) {
	t.Helper()
	oracle.Need(t, "clang-19", "ld64.lld-19", "llvm-objcopy-19")
	dir := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		cmd := exec.Command(name, args...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	o, stripped := filepath.Join(dir, "o.o"), filepath.Join(dir, "s.o")
	run("clang-19", append([]string{"--target=" + machine + "-apple-macos12", "-O2", "-fexceptions", "-femit-dwarf-unwind=always", "-Wno-vla-cxx-extension", "-c", "testdata/frames.cc", "-o", o}, flags...)...)
	run("llvm-objcopy-19", "--remove-section=__LD,__compact_unwind", o, stripped)
	var imgs []*module.Image
	for _, from := range []string{o, stripped} {
		to := from + ".dylib"
		run("ld64.lld-19", "-arch", machine, "-platform_version", "macos", "12", "12", "-dylib", "-undefined", "dynamic_lookup", from, "-o", to)
		img, err := module.Open(to)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { img.Close() })
		imgs = append(imgs, img)
	}
	return imgs[0], imgs[1]
}

// rowsOf returns the rows of one source of an image.
func rowsOf(t testing.TB, img *module.Image, name string) *rows.Table {
	t.Helper()
	u, err := format.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	x, damage := u.Rows(name)
	if len(damage) > 0 {
		t.Fatalf("Rows(%s) has damage %v, want none", name, damage)
	}
	return x
}

// TestCallSites: at every call, and at every nop on arm64, the rows of an encoding equal those of the same function's DWARF.
func TestCallSites(t *testing.T) {
	oracle.Long(t)
	for _, machine := range []string{"x86_64", "arm64"} {
		for _, flag := range []string{"-fomit-frame-pointer", "-fno-omit-frame-pointer"} {
			t.Run(machine+flag, func(t *testing.T) {
				img, ref := build(t, machine, flag)
				got, want := rowsOf(t, img, format.CompactUnwind), rowsOf(t, ref, format.EHFrame)
				text, refText := img.Section(".text"), ref.Section(".text")
				if text == nil || refText == nil || text.Size != refText.Size {
					t.Fatalf("the linker has laid out the code in different ways: .text is\n%+v with encodings, and\n%+v with DWARF", text, refText)
				}
				calls, compared := 0, 0
				for off := uint64(0); off < text.Size; off++ {
					code, ok := img.At(text.Addr, int(text.Size))
					if !ok {
						t.Fatalf("the image has no %#x bytes at %#x, the text", text.Size, text.Addr)
					}
					nop := machine == "arm64" && off%4 == 1 && bytes.HasPrefix(code[off-1:], []byte("\x1f\x20\x03\xd5"))
					if !nop && !img.Machine().AfterCall(code[:off]) {
						continue
					}
					calls++
					g, w := got.At(text.Addr+arch.Vaddr(off)-1), want.At(refText.Addr+arch.Vaddr(off)-1)
					if g.Gap() || w.Gap() {
						continue
					}
					compared++
					if g.CFA != w.CFA || g.RA != w.RA || !slices.Equal(g.Rules, w.Rules) {
						t.Errorf("call that returns to %#x\n got %v %v\nwant %v %v", uint64(text.Addr)+off, g.CFA, g.Rules, w.CFA, w.Rules)
					}
				}
				t.Logf("%d calls, %d of them in functions with an encoding", calls, compared)
				if compared < 5 {
					t.Errorf("%d of %d calls compared, want 5 or more", compared, calls)
				}
			})
		}
	}
}

// TestShipped: linkers leave each function to one format: no function with rules of its encoding has an FDE. So there is nothing to compare in shipped
// files, and TestCallSites compares what is linked twice.
func TestShipped(t *testing.T) {
	encoded, fdes := 0, 0
	for _, path := range oracle.MachO(t, oracle.Few(3, 100)) {
		programs(t, path, func(_ string, img *module.Image) {
			u, err := format.Open(img)
			if err != nil {
				t.Error(err)
			}
			table := rowsOf(t, img, format.CompactUnwind)
			u.Entries(func(e format.Entry) bool {
				if !e.IsFDE || e.FDE.Dead {
					return true
				}
				fdes++
				if set := table.At(e.FDE.Lo); !set.Gap() {
					t.Errorf("%s: function %#x has an FDE, and the rule %v of an encoding", path, e.FDE.Lo, set)
				}
				return true
			})
			for _, r := range table.Rows {
				if r.Set != rows.GapID {
					encoded++
				}
			}
		})
	}
	t.Logf("%d rows of encodings, %d FDEs", encoded, fdes)
	if encoded < 1000 || fdes < 1000 {
		t.Errorf("%d rows of encodings, %d FDEs; want 1000 of each or more", encoded, fdes)
	}
}

// TestGolden: linked libraries of both machines, with and without frame pointers: the rows of all sources together.
func TestGolden(t *testing.T) {
	for _, name := range []string{"x86_64", "x86_64-fp", "arm64", "arm64-fp"} {
		library, golden := filepath.Join("testdata", name+".dylib.gz"), filepath.Join("testdata", name+".golden")
		if *update {
			machine, fp := strings.CutSuffix(name, "-fp")
			flag := map[bool]string{true: "-fno-omit-frame-pointer", false: "-fomit-frame-pointer"}[fp]
			img, _ := build(t, machine, flag)
			var b bytes.Buffer
			w, _ := gzip.NewWriterLevel(&b, gzip.BestCompression)
			w.Write(img.Bytes())
			w.Close()
			if err := os.WriteFile(library, b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		f, err := os.Open(library)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		r, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		img, err := module.New(name, b)
		if err != nil {
			t.Fatal(err)
		}
		u, err := format.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		x, damage := u.Rows()
		if len(damage) > 0 {
			t.Errorf("Rows of %s has damage %v, want none", name, damage)
		}
		var got bytes.Buffer
		x.WriteText(&got)
		if *update {
			if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want, err := os.ReadFile(golden); err != nil || got.String() != string(want) {
			t.Errorf("%s: %v\n got %s\nwant %s", name, err, got.String(), want)
		}
	}
}

// BenchmarkRows makes the rows of a shipped library. Peer: llvm-objdump, which prints the entries.
func BenchmarkRows(b *testing.B) {
	path := oracle.MachO(b, 2)[1]
	img, err := module.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer img.Close()
	b.Run("unspool", func(b *testing.B) {
		n := 0
		for b.Loop() {
			table, err := compactunwind.Open(img)
			if err != nil {
				b.Fatal(err)
			}
			x, _ := table.Rows()
			n += len(x.Rows)
		}
		b.ReportMetric(float64(n)/1e6/b.Elapsed().Seconds(), "Mrows/s")
	})
	b.Run("llvm-objdump", func(b *testing.B) {
		oracle.Need(b, "llvm-objdump-19")
		for b.Loop() {
			if err := exec.Command("llvm-objdump-19", "--macho", "--unwind-info", path).Run(); err != nil {
				b.Fatal(err)
			}
		}
	})
}
