package jit

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
)

// TestLookup compares with a search through all entries: they overlap, and have times.
func TestLookup(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		m := &Map{}
		space, n := 1+rnd.Uint64N(200), rnd.IntN(60)
		for i := range n {
			name := fmt.Sprint("f", i)
			if rnd.IntN(5) == 0 {
				name = "" // gone
			}
			m.add(rnd.Uint64N(space), 1+rnd.Uint64N(40), rnd.Uint64N(20), []byte(name))
		}
		m.build()
		for addr := range space + 50 {
			for _, at := range []uint64{0, rnd.Uint64N(22), Always} {
				best := -1
				for i, e := range m.entries {
					if e.lo <= addr && addr < e.hi && e.time <= at && (best < 0 || e.time >= m.entries[best].time) {
						best = i
					}
				}
				want := ""
				if best >= 0 && m.entries[best].size > 0 {
					want = fmt.Sprint("f", best)
				}
				if got, ok := m.Lookup(arch.Addr(addr), at); got.Name != want || ok != (want != "") {
					t.Fatalf("Lookup(%#x, %d) = %+v, %v, want %q\n%+v", addr, at, got, ok, want, m.entries)
				}
			}
		}
	}
}

func TestReadMap(t *testing.T) {
	m, err := ReadMap(strings.NewReader("1000 10 one\n0x2000 0x10 LazyCompile:*two /a b.js:1:2\n\nnonsense\n3000 zz x\n4000 0 empty\nffffffffffffffff 10 wraps\n" +
		"1008 4 later\n5000 10 " + strings.Repeat("x", 1<<17) + "\n6000 10 after\n7000 10 unfinished"))
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[arch.Addr]string{
		0xfff: "", 0x1000: "one", 0x1007: "one", 0x1008: "later", 0x100c: "one", 0x1010: "", 0x200f: "LazyCompile:*two /a b.js:1:2",
		0x3000: "", 0x4000: "", 0x6000: "after", 0x7000: "",
	} {
		if f, ok := m.Lookup(addr, Always); f.Name != want || ok != (want != "") {
			t.Errorf("%#x is %+v, want %q", addr, f, want)
		}
	}
	if f, _ := m.Lookup(0x5000, Always); len(f.Name) != maxName {
		t.Errorf("a long name has %d bytes", len(f.Name))
	}
}

// A writer makes dumps.
type writer struct {
	bytes.Buffer
	order binary.AppendByteOrder
}

func newWriter(order binary.AppendByteOrder) *writer {
	w := &writer{order: order}
	var b []byte
	for _, v := range []uint32{dumpMagic, 1, dumpHead + 8, 62, 0, 42} {
		b = order.AppendUint32(b, v)
	}
	b = order.AppendUint64(order.AppendUint64(b, 1), 0)
	w.Write(append(b, "reserved"...))
	return w
}

func (w *writer) record(id uint32, time uint64, parts ...any) {
	var b []byte
	for _, p := range parts {
		switch p := p.(type) {
		case uint32:
			b = w.order.AppendUint32(b, p)
		case int:
			b = w.order.AppendUint64(b, uint64(p))
		case string:
			b = append(append(b, p...), 0)
		case []byte:
			b = append(b, p...)
		}
	}
	h := w.order.AppendUint32(w.order.AppendUint32(nil, id), uint32(recordHead+len(b)))
	w.Write(append(w.order.AppendUint64(h, time), b...))
}

func (w *writer) load(time uint64, addr, size, index int, name string) {
	w.record(codeLoad, time, uint32(42), uint32(42), addr, addr, size, index, name, bytes.Repeat([]byte{0xcc}, size))
}

// sample has every kind of record.
func sample(order binary.AppendByteOrder) *writer {
	w := newWriter(order)
	w.load(10, 0x1000, 0x100, 1, "one")
	w.record(codeDebugInfo, 20, 0x2000, 3, 0x2000, uint32(7), uint32(0), "a.js", 0x2020, uint32(8), uint32(0), "\xff", 0x2010, uint32(9), uint32(0), "b.js")
	w.record(codeUnwindingInfo, 20, 8, 0, 8, make([]byte, 8))
	w.load(21, 0x2000, 0x30, 2, "two")
	w.record(codeMove, 30, uint32(42), uint32(42), 0x3000, 0x2000, 0x3000, 0x30, 2)
	w.record(77, 31, 1, 2, 3)
	w.load(40, 0x1000, 0x80, 3, "three")
	w.record(codeClose, 50)
	w.load(60, 0x9000, 1, 9, "after the end")
	return w
}

func TestReadDump(t *testing.T) {
	for _, order := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
		w := sample(order)
		m, err := ReadDump(&w.Buffer)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			addr arch.Addr
			time uint64
			want Func
		}{
			{0x1000, 9, Func{}},
			{0x1000, 10, Func{Name: "one", Start: 0x1000, Size: 0x100}},
			{0x1000, Always, Func{Name: "three", Start: 0x1000, Size: 0x80}},
			{0x1080, Always, Func{Name: "one", Start: 0x1000, Size: 0x100}},
			{0x2000, 25, Func{Name: "two", Start: 0x2000, Size: 0x30, File: "a.js", Line: 7}},
			{0x201f, 25, Func{Name: "two", Start: 0x2000, Size: 0x30, File: "b.js", Line: 9}},
			{0x2020, 25, Func{Name: "two", Start: 0x2000, Size: 0x30, File: "a.js", Line: 8}},
			{0x2020, Always, Func{}},
			{0x3020, 29, Func{}},
			{0x3020, Always, Func{Name: "two", Start: 0x3000, Size: 0x30, File: "a.js", Line: 8}},
			{0x9000, Always, Func{}},
		} {
			if got, ok := m.Lookup(c.addr, c.time); got != c.want || ok != (c.want.Name != "") {
				t.Errorf("Lookup(%#x, %d) = %+v, want %+v", c.addr, c.time, got, c.want)
			}
		}
	}
}

// TestDamaged: dumps that end anywhere, and in which any byte is wrong.
func TestDamaged(t *testing.T) {
	whole := sample(binary.LittleEndian).Bytes()
	for n := range whole {
		m, _ := ReadDump(bytes.NewReader(whole[:n]))
		m.Lookup(0x1000, Always)
		b := bytes.Clone(whole)
		b[n] ^= 0xff
		m, _ = ReadDump(bytes.NewReader(b))
		m.Lookup(0x1000, Always)
	}
	if _, err := ReadDump(strings.NewReader("<html>")); err == nil {
		t.Error("no error for what is no dump")
	}
}

// TestCode: a process's files as they grow, and files that are not to be read.
func TestCode(t *testing.T) {
	dir := t.TempDir()
	dump, text := filepath.Join(dir, "jit-1.dump"), filepath.Join(dir, "perf-1.map")
	c := &Code{pid: os.Getpid(), files: []file{{path: dump, dump: true}, {path: text}}}
	addrs := []arch.Addr{0x1000, 0x8000}
	names := func() [2]string {
		c.asked = time.Time{}
		f := c.Lookup(addrs, Always)
		return [2]string{f[0].Name, f[1].Name}
	}
	if got := names(); got != [2]string{} || c.Note() != "" {
		t.Errorf("without files: %q, %s", got, c.Note())
	}
	os.WriteFile(text, []byte("1000 10 map\n8000 10 also"), 0o600)
	if got := names(); got != [2]string{"map", ""} {
		t.Errorf("a line without an end: %q", got)
	}
	os.WriteFile(text, []byte("1000 10 map\n8000 10 also\n"), 0o600)
	if got := names(); got != [2]string{"map", "also"} {
		t.Errorf("a map that grew: %q", got)
	}
	c.files[1].m = nil
	os.WriteFile(dump, sample(binary.LittleEndian).Bytes()[:700], 0o600)
	if got := names(); got != [2]string{"one", "also"} || c.Note() != "" {
		t.Errorf("a dump, not whole, and a map: %q, %s", got, c.Note())
	}
	os.Remove(text)
	os.Mkdir(text, 0o700)
	c.files[1].m = nil
	if got := names(); got != [2]string{"one", ""} || !strings.Contains(c.Note(), "regular") {
		t.Errorf("a directory: %q, %s", got, c.Note())
	}
	if IsDump("/tmp/jit-12.dump") != true || IsDump("/tmp/jit-x.dump") || IsDump("/tmp/jit-12.dump.so") {
		t.Error("IsDump")
	}
}

func FuzzReadMap(f *testing.F) {
	f.Add([]byte("1000 10 one\n1008 4 two\n"), uint64(0x1008))
	f.Fuzz(func(t *testing.T, b []byte, addr uint64) {
		m, _ := ReadMap(bytes.NewReader(b))
		if f, ok := m.Lookup(arch.Addr(addr), Always); ok && addr-uint64(f.Start) >= f.Size {
			t.Errorf("%#x is in %+v", addr, f)
		}
	})
}

func FuzzReadDump(f *testing.F) {
	f.Add(sample(binary.LittleEndian).Bytes(), uint64(0x1000), uint64(Always))
	f.Add(sample(binary.BigEndian).Bytes(), uint64(0x3020), uint64(25))
	f.Fuzz(func(t *testing.T, b []byte, addr, time uint64) {
		m, _ := ReadDump(bytes.NewReader(b))
		if f, ok := m.Lookup(arch.Addr(addr), time); ok && addr-uint64(f.Start) >= f.Size {
			t.Errorf("%#x is in %+v", addr, f)
		}
	})
}

// BenchmarkReadMap reads what a large program writes: a hundred thousand functions.
func BenchmarkReadMap(b *testing.B) {
	var text bytes.Buffer
	for i := range 100_000 {
		fmt.Fprintf(&text, "%x %x LazyCompile:*function%d /some/where/file%d.js:%d:1\n", 0x10000+i*0x100, 0x90, i, i%100, i)
	}
	for b.Loop() {
		ReadMap(bytes.NewReader(text.Bytes()))
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/100_000, "ns/function")
}
