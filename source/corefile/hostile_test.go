package corefile

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// walkAll walks all threads with w, and reads at the edges of all memory.
func walkAll(w *unwind.Walker, f *File) (frames int) {
	for i := range f.Threads {
		s := &f.Threads[i].Snapshot
		out, _ := w.Walk(s, nil)
		frames += len(out)
	}
	m := rows.Memory{Next: &f.mem}
	for _, s := range f.mem.segs {
		for _, a := range []uint64{s.lo - 8, s.lo - 4, s.lo, s.lo + uint64(len(s.b)) - 4, s.hi - 8, s.hi - 4, s.hi} {
			m.Load(a)
		}
	}
	return frames
}

func FuzzCore(f *testing.F) {
	f.Add(sample().build())
	c := sample()
	c.tail = true
	f.Add(c.build())
	f.Add(c.build()[:1500])
	c = sample()
	c.machine = arch.ARM64
	f.Add(c.build())
	w := unwind.NewWalker(64)
	f.Fuzz(func(t *testing.T, b []byte) {
		file, err := New("core", b, options())
		if err != nil {
			return
		}
		defer file.Close()
		if len(file.Threads) == 0 || walkAll(w, file) < len(file.Threads) {
			t.Errorf("%d threads", len(file.Threads))
		}
		last := uint64(0)
		for _, s := range file.mem.segs {
			if s.lo < last || s.hi <= s.lo || uint64(len(s.b)) > s.hi-s.lo {
				t.Fatalf("segment [%#x, %#x) of %d bytes after %#x", s.lo, s.hi, len(s.b), last)
			}
			last = s.hi
		}
	})
}

// Whatever a core promises, memory is bounded by what it has, whichever machine it is of.
func TestHostile(t *testing.T) {
	oracle.Long(t)
	defer func() { sampled = arch.AMD64 }()
	for _, sampled = range arch.Machines() {
		t.Run(sampled.Name, hostile)
	}
}

func hostile(t *testing.T) {
	noteAt := func(b []byte) int { return int(le.Uint64(b[64+8:])) }
	for _, c := range []struct {
		name string
		make func() []byte
	}{
		{"65534 program headers", func() []byte {
			b := sample().build()
			le.PutUint16(b[56:], 0xfffe)
			return b
		}},
		{"2³² program headers", func() []byte {
			b := sample().build()
			le.PutUint16(b[56:], 0xffff)
			le.PutUint64(b[40:], uint64(len(b)))
			sec := make([]byte, 64)
			le.PutUint32(sec[44:], 0xffffffff)
			return append(b, sec...)
		}},
		{"program headers that are one", func() []byte {
			b := sample().build()
			le.PutUint16(b[54:], 56)
			le.PutUint64(b[32:], 64)
			for range 5000 { // the same segment
				b = append(b, b[64+2*56:64+3*56]...)
			}
			return b
		}},
		{"2⁶⁰ mapped files", func() []byte {
			b := sample().build()
			i := bytes.Index(b, put(nil, uint32(ntFILE)))
			le.PutUint64(b[i+12:], 1<<60)
			return b
		}},
		{"a note of 4 GiB", func() []byte {
			b := sample().build()
			le.PutUint32(b[noteAt(b)+4:], 0xffffffff)
			le.PutUint32(b[noteAt(b):], 0xffffffff)
			return append(b, b[noteAt(b)+12:]...)
		}},
		{"the same notes again and again", func() []byte {
			c := sample()
			b := c.build()
			notes := c.notes()
			var phs []byte
			for range 20000 {
				phs = put(phs, uint32(4), uint32(0), uint64(noteAt(b)), uint64(0), uint64(0), uint64(len(notes)), uint64(0), uint64(4))
			}
			le.PutUint64(b[32:], uint64(len(b)))
			le.PutUint16(b[56:], 20000)
			return append(b, phs...)
		}},
		{"many files with code", func() []byte {
			c := sample()
			c.mem, c.files = nil, nil
			for i := range uint64(20000) {
				c.mem = append(c.mem, coreMemory{i << 13, page, nil, 5})
				c.files = append(c.files, fileRange{lo: i << 13, hi: i<<13 + page, path: fmt.Sprint("/nonexistent/", i)})
			}
			return c.build()
		}},
		{"one file's beginning as that of many", func() []byte {
			return aliased(5000, elfHead(1160, 6, 1<<16), func(i int) string { return fmt.Sprint("/nonexistent/", i) })
		}},
		{"one segment as many parts of a file", func() []byte {
			return aliased(5000, elfHead(1, 1, 4<<20), func(int) string { return "/nonexistent/program" })
		}},
		{"unwind information at the end of a file", func() []byte {
			return aliased(1, elfHead(1, 0x6474e550, page), func(int) string { return "/nonexistent/program" })
		}},
		{"a linker's list that is a ring", func() []byte { return linked(func(int) uint64 { return 0 }, "/nonexistent/lib.so") }},
		{"a linker's list that never ends", func() []byte {
			return linked(func(i int) uint64 { return uint64(i+1) * 32 }, "/"+strings.Repeat("a", maxPath-2))
		}},
		{"a linker's list of what is no file", func() []byte { return linked(func(int) uint64 { return 0 }, "/dev/zero") }},
		{"64 MiB of empty notes", func() []byte {
			b := sample().build()
			le.PutUint64(b[64+8:], uint64(len(b)))
			le.PutUint64(b[64+32:], 64<<20)
			return append(append(b, sample().notes()...), make([]byte, 64<<20)...)
		}},
	} {
		b := c.make()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := New("core", b, options())
		if err == nil {
			walkAll(unwind.NewWalker(64), f)
			f.Close()
		}
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > 100<<20 {
			t.Errorf("%s: %d MiB for %d bytes", c.name, used>>20, len(b))
		}
	}
}

// linked returns a core without files whose program says that it has libraries of a name, with next the offsets of the list's entries.
func linked(next func(i int) uint64, name string) []byte {
	const at, list, names = 0x400000, 0x500000, 0x700000
	c := sample()
	c.files = nil
	c.auxv = []uint64{atPHDR, at, atPHNUM, 2, 0, 0}
	prog := put(nil, uint32(2), uint32(6), uint64(0), uint64(0x200), uint64(0), uint64(0x20), uint64(0x20), uint64(8)) // PT_DYNAMIC
	prog = put(prog, uint32(6), uint32(4), uint64(0), uint64(0), uint64(0), uint64(0), uint64(0), uint64(8))           // PT_PHDR
	prog = append(prog, make([]byte, 0x200-len(prog))...)
	prog = put(prog, uint64(21), uint64(at+0x220), uint64(0), uint64(0)) // DT_DEBUG
	prog = put(prog, uint64(1), uint64(list))                            // struct r_debug
	var maps []byte
	for i := range 1 << 15 {
		maps = put(maps, uint64(0x10000000+i<<12), uint64(names), uint64(0), list+next(i))
	}
	c.mem = append(c.mem[2:], coreMemory{at, 0x1000, prog, 6}, coreMemory{list, uint64(len(maps)), maps, 6}, coreMemory{names, 0x1000, append([]byte(name), 0), 6})
	return c.build()
}

// A terabyte of memory, of which nothing but the headers takes room.
func TestLarge(t *testing.T) {
	c := sample()
	path := filepath.Join(t.TempDir(), "core")
	b := c.build()
	le.PutUint64(b[64+4*56+32:], 1<<40)
	le.PutUint64(b[64+4*56+40:], 1<<40)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skipf("no sparse files here: %v", err)
	}
	f, err := Open(path, options())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	walkAll(unwind.NewWalker(64), f)
	if len(f.Threads) != 3 {
		t.Errorf("%d threads", len(f.Threads))
	}
}
