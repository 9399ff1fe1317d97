package module

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// hole writes a file and makes it longer, with a hole.
func hole(t *testing.T, b []byte, size int64) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "holes")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, size); err != nil {
		t.Skipf("this test lacks a file system for a sparse file of %d bytes: %v", size, err)
	}
	return path
}

const long = 20 << 30

// TestHoles: a file can claim any length. What lies in its holes costs nothing: neither its name, nor its notes, symbols, sections or segments.
func TestHoles(t *testing.T) {
	o := binary.LittleEndian
	plain := func(secs ...synthSection) []byte {
		e := synth{is64: true, order: o, typ: elf.ET_DYN, machine: elf.EM_X86_64, secs: secs,
			segs: []phdr{{Type: elf.PT_LOAD, Flags: elf.PF_X, Filesz: long, Memsz: long}, {Type: elf.PT_NOTE, Filesz: long, Align: 4}}}
		return e.bytes()
	}
	for _, c := range []struct {
		what string
		typ  elf.SectionType
	}{{".note", elf.SHT_NOTE}, {".symtab", elf.SHT_SYMTAB}, {".dynsym", elf.SHT_DYNSYM}, {".eh_frame", elf.SHT_PROGBITS}, {".text", elf.SHT_PROGBITS}} {
		e := plain(synthSection{name: c.what, typ: c.typ, link: 1, data: make([]byte, 48)})
		at := o.Uint64(e[40:]) + 64 // the first section's header
		o.PutUint64(e[at+32:], long-4096)
		for _, headless := range []bool{false, true} {
			if headless {
				clear(e[40:48])
			}
			began := time.Now()
			img, err := Open(hole(t, e, long))
			if err != nil {
				t.Fatalf("Open with the sparse section %s, headless %v: %v", c.what, headless, err)
			}
			id := img.ID()
			img.Symbols(func(Symbol) bool { return true })
			for i := range img.Sections() {
				if b, err := img.Data(&img.Sections()[i]); len(b) > 32<<20 || err == nil && img.Sections()[i].Size > 32<<20 {
					t.Errorf("%s: %d bytes, %v", c.what, len(b), err)
				}
			}
			b, err := img.Contents(&img.Segments()[0])
			if tail := img.Tail(0x1000); err == nil || len(b) > 32<<20 || len(tail) > 32<<20 {
				t.Errorf("%s: a segment of %d bytes, %v; from 0x1000 on %d", c.what, len(b), err, len(tail))
			}
			if took := time.Since(began); took > 2*time.Second || len(id) != len("sha256-")+64 {
				t.Errorf("%s, without section headers %v: %v, named %s", c.what, headless, took, id)
			}
			img.Close()
		}
	}
	// As many section headers as the hole has room for.
	e := plain()
	o.PutUint64(e[40:], 1<<20)
	o.PutUint16(e[60:], 0)
	path := hole(t, e, long)
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteAt(o.AppendUint64(nil, long/64), 1<<20+32)
	f.Close()
	img, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if n := len(img.Sections()); n > 1<<20 || img.SectionsErr() == nil {
		t.Errorf("%d sections, %v", n, img.SectionsErr())
	}
}

// TestSparseBomb: a compressed section in a sparse file expands by what is there, not by the file's length; and all images of a process
// together have a bound.
func TestSparseBomb(t *testing.T) {
	oracle.Long(t)
	const size = 600 << 20
	z := append(binary.LittleEndian.AppendUint32(nil, uint32(elf.COMPRESS_ZLIB)), make([]byte, 4)...)
	z = binary.LittleEndian.AppendUint64(z, size)
	z = binary.LittleEndian.AppendUint64(z, 1)
	z = append(z, deflateZeros(size)...)
	e := synth{is64: true, order: binary.LittleEndian, typ: elf.ET_DYN, machine: elf.EM_X86_64,
		secs: []synthSection{{name: ".debug_info", typ: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, data: z}}}
	img, err := Open(hole(t, e.bytes(), 40<<30))
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if b, err := img.Data(img.Section(".debug_info")); err == nil {
		t.Errorf("%d bytes on disk became %d", len(z), len(b))
	}

	inflating.Add(maxInflated)
	defer inflating.Add(-maxInflated)
	LimitInflated(1 << 62) // is no more than maxInflated
	e.secs[0].data = append(bytes.Clone(z[:24]), deflate(make([]byte, 1<<16))...)
	binary.LittleEndian.PutUint64(e.secs[0].data[8:], 1<<16)
	path := hole(t, e.bytes(), int64(len(e.bytes())))
	full, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if b, err := full.Data(full.Section(".debug_info")); err == nil {
		t.Errorf("a process expands without a bound: %d bytes, where %d are expanded and %d may be; want an error", len(b), inflating.Load(), int64(maxInflated))
	}
	inflating.Add(-maxInflated)
	was := inflating.Load()
	fits, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := fits.Data(fits.Section(".debug_info"))
	if err != nil || len(b) != 1<<16 || inflating.Load() != was+1<<16 {
		t.Errorf("%d bytes, %v; counted %d", len(b), err, inflating.Load()-was)
	}
	if fits.Close(); inflating.Load() != was {
		t.Errorf("%d bytes are counted after Close", inflating.Load()-was)
	}
	inflating.Add(maxInflated)
}

func deflateZeros(n int64) []byte {
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	io.CopyN(z, zeroReader{}, n)
	z.Close()
	return out.Bytes()
}
