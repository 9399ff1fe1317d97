package module

import (
	"bytes"
	"encoding/binary"
	"math"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// exercise calls everything that reads an image.
func exercise(img *Image) {
	img.ID()
	img.BuildID()
	img.Interp()
	img.Symbols(func(Symbol) bool { return true })
	for i := range img.secs {
		s := &img.secs[i]
		img.Data(s)
		img.Section(s.Name)
		img.Section(s.Common())
		if i > 64 {
			break
		}
	}
	img.Section("")
	for _, s := range img.Slices() {
		if x, err := img.Slice(s); err == nil && !s.Taken {
			x.ID()
		}
	}
	img.dynsym()
	for _, dynamic := range []bool{false, true} {
		if t, ok := img.SymbolTable(dynamic); ok {
			t.At(t.Len() - 1)
		}
	}
	img.Rebased(func(at, v uint64) {})
	img.Bindings(func(b *Binding) bool { return b.Symbol == 0 || b.Table.At(b.Symbol).Name != 1 })
	for _, v := range []uint64{0, 1, 0x401000, math.MaxInt64, math.MaxUint64 - 1, math.MaxUint64} {
		img.VaddrToOff(arch.Vaddr(v))
		img.OffToVaddr(v)
		img.Tail(arch.Vaddr(v))
		img.At(arch.Vaddr(v), int(v>>1))
	}
	for i := range img.segs {
		s := &img.segs[i]
		img.Contents(s)
		img.Tail(s.Vaddr)
		img.At(s.Vaddr+arch.Vaddr(s.Size)-1, 1)
		if i > 64 {
			break
		}
	}
}

// try opens b and uses it, and says what it allocated and how long that took.
func try(b []byte, expand bool) (bytes uint64, took time.Duration) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	if img, err := newImage("fuzz", b, uint64(len(b)), expand); err == nil {
		exercise(img)
	}
	took = time.Since(start)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, took
}

// seeds are small ELF files of every form.
func seeds() [][]byte {
	var out [][]byte
	for _, is64 := range []bool{false, true} {
		for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			out = append(out, small(is64, o))
		}
	}
	return out
}

// withPE adds a small PE image to a list of files.
func withPE(list [][]byte) [][]byte {
	if b, err := os.ReadFile(goldenPE); err == nil {
		list = append(list, b)
	}
	for _, name := range []string{"x86_64", "arm64"} {
		if b, err := os.ReadFile("testdata/" + name + ".coff.o"); err == nil {
			list = append(list, b, big(b))
		}
	}
	return list
}

// FuzzNew: no call on any image panics, hangs, or allocates out of proportion: what compressed sections may expand
// to, what the decoders need for themselves, and a few times the file.
func FuzzNew(f *testing.F) {
	for _, b := range withPE(slices.Concat(seeds(), machoSeeds(), machoObjects(f))) {
		f.Add(b)
	}
	if img, err := VDSO(); err == nil {
		f.Add(bytes.Clone(img.Bytes()))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		n, took := try(b, false)
		if limit := uint64(64<<20 + 200*len(b)); n > limit {
			t.Errorf("%d bytes allocated for a file of %d", n, len(b))
		}
		if took > 2*time.Second {
			t.Errorf("%v for a file of %d bytes", took, len(b))
		}
		if img, err := LoadedPE("fuzz", bytes.Clone(b)); err == nil {
			exercise(img)
		}
	})
}

// TestDamaged: every truncation and every flipped bit of small files.
func TestDamaged(t *testing.T) {
	oracle.Long(t)
	for _, b := range withPE(slices.Concat(seeds(), machoSeeds(), machoObjects(t))) {
		for n := range b {
			if img, err := New("cut", b[:n:n]); err == nil {
				exercise(img)
			}
		}
		c := bytes.Clone(b)
		for i := range 8 * len(c) {
			c[i/8] ^= 1 << (i % 8)
			if img, err := New("flipped", c); err == nil {
				exercise(img)
			}
			c[i/8] ^= 1 << (i % 8)
		}
	}
}

// TestQuadratic: headers that point again and again at the same bytes do not multiply the work.
func TestQuadratic(t *testing.T) {
	oracle.Long(t)
	const n = 60_000
	o := binary.LittleEndian
	for _, c := range []struct {
		what string
		typ  uint32
		fill byte
	}{
		{"section names", 1, 'a'},
		{"notes", 7, 0},
		{"symbol tables", 2, 0},
		{"symbols with one long name", 2, 'a'},
	} {
		e := synth{is64: true, order: o, pad: n}
		e.secs = []synthSection{{name: ".x", data: bytes.Repeat([]byte{c.fill}, 4<<20)}}
		b := e.bytes()
		shoff := o.Uint64(b[40:])
		for i := range uint64(n) {
			h := b[shoff+64*(i+1):]
			o.PutUint32(h, uint32(i))
			o.PutUint32(h[4:], c.typ)
			o.PutUint64(h[24:], e.offs[1])
			o.PutUint64(h[32:], 4<<20)
			o.PutUint32(h[40:], 1)
		}
		if c.what == "section names" {
			o.PutUint16(b[62:], 1)
		}
		size, took := try(b, false)
		if size > 4*uint64(len(b)) || took > 3*time.Second {
			t.Errorf("%s: %v, %d bytes allocated for a file of %d", c.what, took, size, len(b))
		}
	}
}
