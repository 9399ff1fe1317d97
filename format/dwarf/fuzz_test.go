package dwarf

import (
	"debug/elf"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows/rowstest"
)

// seeds are sections to start fuzzing from: the .eh_frame of the test's own small programs, and listings.
func seeds() (all [][]byte) {
	for _, l := range []*listing{{}, {eh: true}, {eh: true, wide: true}, {wide: true}} {
		cie := l.cie(cieHead{aug: "zR", data: sized(DW_EH_PE_udata4)})
		for i := range 4 {
			l.entry(cie, join(l.num(4, uint64(0x1000+16*i)), l.num(4, 24), sized(), []byte{0x41, 0x0e, 0x10, 0x86, 2, 0x0a, 0x42, 0x0c, 6, 16,
				0x0f, 3, 0x76, 0x78, 6, 0x41, 0x0d, 7, 0xc6, 0x10, 3, 2, 0x76, 0x70, 0x41, 0x0b, 0x2e, 8})...)
		}
		all = append(all, l.b)
	}
	l, _ := withHdr(4, false, 8)
	all = append(all, l.b)
	l, _ = withHdr(4, true, 4)
	return append(all, l.b)
}

// fuzzed makes Frames of bytes: what the flags do not say is usual.
func fuzzed(b []byte, flags uint16) *Frames {
	in := Sections{Machine: arch.AMD64, Order: binary.LittleEndian, AddrSize: 8, Text: 0x1000, GOT: 0x2000,
		Memory: func(at arch.Vaddr, n int) ([]byte, bool) {
			return binary.LittleEndian.AppendUint64(nil, uint64(at))[:n], at&1 == 0
		}}
	if flags&1 != 0 {
		in.Order = binary.BigEndian
	}
	if flags&2 != 0 {
		in.AddrSize = 4
	}
	if flags&4 != 0 {
		in.Machine = arch.ARM64
	} else if flags&8 != 0 {
		in.Machine = arch.ByELF(emSPARC)
	}
	s := Section{Name: "fuzzed", Addr: 0x100, Data: b, Open: flags&16 != 0}
	if flags&32 != 0 {
		in.DebugFrame = []Section{s}
	} else {
		in.EHFrame = []Section{s}
	}
	if n := len(b) / 2; flags&64 != 0 {
		in.EHFrame, in.DebugFrame = []Section{{Name: "first", Addr: 0x100, Data: b[:n]}}, []Section{{Name: "second", Data: b[n:]}}
	}
	return New(in)
}

// FuzzBuild reads arbitrary sections. It takes no longer than their size allows; what is built is a table; and where
// nothing is damaged Lookup finds the same.
func FuzzBuild(f *testing.F) {
	for i, b := range seeds() {
		for _, flags := range []uint16{0, 32, 32 + 1, 2, 64, 4, 16} {
			f.Add(b, flags+uint16(i)<<8)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, flags uint16) {
		began := time.Now()
		fs := fuzzed(b, flags)
		x, ds := fs.Build(Both)
		rowstest.Check(t, x)
		entries, insns := 0, 0
		eds := fs.Entries(Both, func(e Entry) bool {
			entries++
			e.Instructions(func(i *Instruction) bool {
				insns++
				if insns < 100 {
					i.Text(fs.Machine())
				}
				return true
			})
			return true
		})
		if entries > len(b) || insns > len(b) {
			t.Fatalf("%d entries and %d instructions in %d bytes", entries, insns, len(b))
		}
		for _, d := range append(ds, eds...) {
			if d.Off > uint64(len(b)) || d.Entry > uint64(len(b)) || d.Err == nil || d.Error() == "" {
				t.Fatalf("%v: offset %#x of entry %#x in %d bytes", d, d.Off, d.Entry, len(b))
			}
		}
		if took := time.Since(began); took > 2*time.Second+time.Duration(len(b))*10*time.Microsecond {
			t.Fatalf("%v for %d bytes", took, len(b))
		}
		check := x.Rows
		if len(check) > 50 {
			check = check[:50]
		}
		for i, r := range check {
			for _, pc := range []arch.Vaddr{r.Lo - 1, r.Lo, x.Hi(i) - 1} {
				one, err := fs.Lookup(pc)
				fs.Bounds(Both, pc)
				if err != nil && len(ds) == 0 {
					t.Fatalf("Lookup(%#x): %v, but nothing is damaged", uint64(pc), err)
				} else if err == nil {
					rowstest.Check(t, one)
					if got, want := one.At(pc).Text(x.Machine), x.At(pc).Text(x.Machine); got != want && len(ds) == 0 {
						t.Fatalf("Lookup(%#x)\n got %s\nwant %s", uint64(pc), got, want)
					}
				}
			}
		}
	})
}

// FuzzHdr reads an arbitrary .eh_frame_hdr beside a sound .eh_frame: it does no harm where the FDEs do not overlap.
func FuzzHdr(f *testing.F) {
	for variant := range uint8(4) {
		l, pairs := withHdr(5, variant&1 != 0, 4+int(variant>>1)*4)
		for _, enc := range []byte{0x1b, 0x3b, 0x0c, 0x00} {
			f.Add(l.hdr(enc, 0x03, enc, 5, pairs).Data, variant)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte, variant uint8) {
		l, _ := withHdr(5, variant&1 != 0, 4+int(variant>>1&1)*4)
		in := l.sections()
		in.Hdr = &Section{Name: ".eh_frame_hdr", Addr: hdrBase, Data: b}
		fs := New(in)
		x, ds := fs.Build(Both)
		sound(t, ds)
		agree(t, fs, x, func(yield func(arch.Vaddr) bool) {
			for pc := arch.Vaddr(0xff0); pc < 0x1150 && yield(pc); pc += 8 {
			}
		})
	})
}

// FuzzOpen reads arbitrary files.
func FuzzOpen(f *testing.F) {
	for _, pattern := range []string{"/usr/lib/x86_64-linux-gnu/libdl.so.2", "/usr/lib/x86_64-linux-gnu/libutil.so.1", "/usr/aarch64-linux-gnu/lib/libdl.so.2"} {
		paths, _ := filepath.Glob(pattern)
		for _, p := range paths {
			b, err := os.ReadFile(p)
			if err != nil || len(b) > 1<<16 {
				continue
			}
			f.Add(b)
			f.Add(withoutSections(b))
		}
	}
	f.Add(smallELF())
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := module.New("fuzzed", b)
		if err != nil {
			return
		}
		defer img.Close()
		fs, _ := Open(img)
		if fs == nil {
			return
		}
		x, _ := fs.Build(Both)
		rowstest.Check(t, x)
		fs.Entries(Both, func(Entry) bool { return true })
		for i := 0; i < len(x.Rows); i += 1 + len(x.Rows)/16 {
			fs.Lookup(x.Rows[i].Lo)
			fs.Bounds(Both, x.Rows[i].Lo)
		}
	})
}

// smallELF is a file with two program headers and no section: a segment, and the search table in it.
func smallELF() []byte {
	l, pairs := withHdr(4, false, 8)
	hdr := l.hdr(0x1b, 0x03, 0x3b, len(pairs), pairs)
	const base, hdrOff = hdrBase - 0x400, 0x400
	b := append(make([]byte, ehBase-base), l.b...)
	copy(b[hdrOff:], hdr.Data)
	copy(b, elf.ELFMAG+"\x02\x01\x01")
	le := binary.LittleEndian
	le.PutUint16(b[16:], uint16(elf.ET_DYN))
	le.PutUint16(b[18:], uint16(elf.EM_X86_64))
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[32:], 64) // e_phoff
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[54:], 56)
	le.PutUint16(b[56:], 2)
	for i, p := range [][2]uint64{{uint64(elf.PT_LOAD), 0}, {uint64(elf.PT_GNU_EH_FRAME), hdrOff}} {
		ph := b[64+56*i:]
		le.PutUint32(ph, uint32(p[0]))
		le.PutUint32(ph[4:], uint32(elf.PF_R|elf.PF_X))
		le.PutUint64(ph[8:], p[1])
		le.PutUint64(ph[16:], base+p[1])
		le.PutUint64(ph[24:], base+p[1])
		size := uint64(len(b)) - p[1]
		if i == 1 {
			size = uint64(len(hdr.Data))
		}
		le.PutUint64(ph[32:], size)
		le.PutUint64(ph[40:], size)
		le.PutUint64(ph[48:], 8)
	}
	return b
}

// TestSmallELF: the seed is what it should be.
func TestSmallELF(t *testing.T) {
	img, err := module.New("small", smallELF())
	if err != nil {
		t.Fatal(err)
	}
	f := openFrames(t, img)
	l, _ := withHdr(4, false, 8)
	if got, want := built(t, f), built(t, l.frames()); got != want || f.hdr == nil {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
