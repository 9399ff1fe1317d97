package names

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// A tiny is a program of three functions, 0x100 bytes each from 0x1000 on: one that has a frame of some size, one without unwind information or a name, and
// one without a caller.
type tiny struct {
	name  string
	id    [20]byte
	frame byte // bytes, 16 at least
}

const tinyText = 0x1000

// file returns the program as an ELF file.
func (p *tiny) file() []byte {
	le := binary.LittleEndian
	pad := func(b []byte, n int, with byte) []byte {
		for len(b)%n != 0 {
			b = append(b, with)
		}
		return b
	}
	entry := func(b []byte, at int, body []byte) []byte { // at: where its CIE is, -1 in a CIE
		body = pad(append(make([]byte, 4), body...), 8, 0)
		body = append(body, make([]byte, 4)...)
		if at >= 0 {
			le.PutUint32(body, uint32(len(b)+4-at))
		}
		return append(le.AppendUint32(b, uint32(len(body))), body...)
	}
	fde := func(lo uint64, code ...byte) []byte {
		b := le.AppendUint64(le.AppendUint64(nil, lo), 0x100)
		return append(append(b, 0), code...)
	}
	// CFA = rsp+8, the return address at CFA-8.
	frames := entry(nil, -1, []byte{1, 'z', 'R', 0, 1, 0x78, 16, 1, 0, 0x0c, 7, 8, 0x80 | 16, 1})
	frames = entry(frames, 0, fde(tinyText, 0x41, 0x0e, p.frame)) // advance 1, def_cfa_offset
	frames = entry(frames, 0, fde(tinyText+0x200, 0x07, 16))      // undefined
	frames = append(frames, 0, 0, 0, 0)
	text := bytes.Repeat([]byte{0xcc}, 0x300)
	for _, ra := range []int{0x50, 0x60, 0x280} {
		copy(text[ra-5:], "\xe8\x00\x00\x00\x00") // a call
	}
	strs := []byte("\x00" + p.name + "\x00_start\x00")
	var syms []byte
	sym := func(name int, value uint64) {
		syms = le.AppendUint32(syms, uint32(name))
		syms = append(syms, 0x12, 0, 1, 0) // a global function of section 1
		syms = le.AppendUint64(le.AppendUint64(syms, value), 0x100)
	}
	syms = make([]byte, 24)
	sym(1, tinyText)
	sym(len(p.name)+2, tinyText+0x200)
	note := append([]byte("\x04\x00\x00\x00\x14\x00\x00\x00\x03\x00\x00\x00GNU\x00"), p.id[:]...)
	type section struct {
		name               string
		typ                uint32
		flags, addr        uint64
		data               []byte
		link, info, entsiz uint32
	}
	secs := []section{{}, {".text", 1, 6, tinyText, text, 0, 0, 0}, {".eh_frame", 1, 2, 0x2000, frames, 0, 0, 0},
		{".note.gnu.build-id", 7, 2, 0x3000, note, 0, 0, 0}, {".symtab", 2, 0, 0, syms, 5, 1, 24}, {".strtab", 3, 0, 0, strs, 0, 0, 0}, {".shstrtab", 3, 0, 0, nil, 0, 0, 0}}
	var names []byte
	var at []uint32
	for _, s := range secs {
		at = append(at, uint32(len(names)))
		names = append(append(names, s.name...), 0)
	}
	secs[len(secs)-1].data = names
	out := make([]byte, 64+3*56)
	var offs []uint64
	for _, s := range secs {
		if out = pad(out, 16, 0); s.addr == tinyText {
			out = pad(out, 0x1000, 0)
		}
		offs = append(offs, uint64(len(out)))
		out = append(out, s.data...)
	}
	out = pad(out, 16, 0)
	copy(out, "\x7fELF\x02\x01\x01")
	le.PutUint16(out[16:], 3)
	le.PutUint16(out[18:], arch.AMD64.ELF)
	le.PutUint32(out[20:], 1)
	le.PutUint64(out[32:], 64)
	le.PutUint64(out[40:], uint64(len(out)))
	for i, n := range []uint16{64, 56, 3, 64, uint16(len(secs)), uint16(len(secs) - 1)} {
		le.PutUint16(out[52+2*i:], n)
	}
	for i, s := range secs[1:4] {
		typ, flags := uint32(1), uint32(4)
		h := out[64+56*i:]
		if i == 0 {
			flags = 5
		}
		if s.typ == 7 {
			typ = 4
		}
		le.PutUint32(h, typ)
		le.PutUint32(h[4:], flags)
		for k, v := range []uint64{offs[i+1], s.addr, s.addr, uint64(len(s.data)), uint64(len(s.data)), 16} {
			le.PutUint64(h[8+8*k:], v)
		}
	}
	for i, s := range secs {
		out = le.AppendUint32(le.AppendUint32(out, at[i]), s.typ)
		for _, v := range []uint64{s.flags, s.addr, offs[i], uint64(len(s.data))} {
			out = le.AppendUint64(out, v)
		}
		out = le.AppendUint32(le.AppendUint32(out, s.link), s.info)
		out = le.AppendUint64(le.AppendUint64(out, 16), uint64(s.entsiz))
	}
	return out
}

// A churner walks and names stacks of programs.
type churner struct {
	mods  *modules.Set
	namer *Namer
	w     *unwind.Walker
}

const tinyBase = 0x400000

// stack returns a program's stack, as text.
func (c *churner) stack(p *tiny, m *unwind.Module) string {
	space := unwind.NewSpace(unwind.Mapping{Lo: tinyBase + 0x1000, Hi: tinyBase + 0x2000, Off: 0x1000, Module: m})
	const sp = 0x7000_0000
	var mem []byte
	for _, ra := range []uint64{0x1050, 0x1060, 0x2080 - 0xe00} {
		mem = append(mem, make([]byte, int(p.frame)-8)...)
		mem = binary.LittleEndian.AppendUint64(mem, tinyBase+ra)
	}
	s := unwind.Snapshot{Machine: arch.AMD64, Space: space, PC: tinyBase + 0x1010, Mem: rows.Memory{Lo: sp, Bytes: mem}}
	slot := arch.AMD64.Slot(arch.AMD64.SP)
	s.Known, s.Regs[slot] = 1<<slot, sp
	frames, stop := c.w.Walk(&s, nil)
	offs, names := make([]uint64, len(frames)+1), make([]profile.Name, len(frames)+1)
	for i := range frames {
		offs[i] = frames[i].Mapping.FileOff(frames[i].Addr())
	}
	offs[len(frames)] = 0x1180 // without a name
	c.namer.User(m, offs, names)
	var b strings.Builder
	for i := range offs {
		fmt.Fprintf(&b, "%s@%x ", names[i].Func, offs[i])
	}
	return b.String() + stop.String()
}

// TestChurn: programs come and go by the thousand, are walked and named from several goroutines, and memory, mappings and descriptors stay within the
// budget. What has been released gives the same stack when it is wanted again.
func TestChurn(t *testing.T) {
	oracle.Long(t)
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	t.Setenv("DEBUGINFOD_URLS", "")
	programs, workers := 10_000, 4
	if testing.Short() {
		programs = 1_000
	}
	dir := t.TempDir()
	mods := modules.New()
	mods.Files.DebugDirs = []string{}
	const budget = 4 << 20
	mods.Files.Memory.Max = budget
	namer := New(Options{Mods: mods})
	namer.Lines = true
	put := func(i int) (p *tiny, m func() *unwind.Module, path string) {
		p = &tiny{name: fmt.Sprint("f", i), frame: byte(16 + 8*((i+1000)%5))}
		copy(p.id[:], fmt.Sprintf("%020d", i))
		path = filepath.Join(dir, p.name)
		if err := os.WriteFile(path, p.file(), 0o700); err != nil {
			t.Error(err)
		}
		return p, func() *unwind.Module { return mods.Module(path, hex.EncodeToString(p.id[:])) }, path
	}
	want := func(p *tiny) string {
		return fmt.Sprintf("%s@1010 %[1]s@104f %[1]s@105f _start@127f @1180 outermost", p.name)
	}
	// These stay: their modules are wanted now and then.
	const stay = 50
	type staying struct {
		p   *tiny
		mod *unwind.Module
		new func() *unwind.Module
	}
	var old []staying
	for i := range stay {
		p, m, _ := put(-1 - i)
		old = append(old, staying{p, m(), m})
	}
	type use struct {
		heap, used   int64
		maps, mapped int
		descriptors  int
	}
	count := func() (u use) {
		runtime.GC()
		runtime.GC() // weak pointers and cleanups
		var ms runtime.MemStats
		runtime.ReadMemStats(&ms)
		u.heap, u.used = int64(ms.HeapAlloc), mods.Files.Memory.Used()
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, dir) {
				var lo, hi int
				fmt.Sscanf(line, "%x-%x", &lo, &hi)
				u.maps, u.mapped = u.maps+1, u.mapped+hi-lo
			}
		}
		list, _ := os.ReadDir("/proc/self/fd")
		u.descriptors = len(list)
		return u
	}
	var next atomic.Int64
	run := func(until int) {
		var wg sync.WaitGroup
		for range workers {
			wg.Go(func() {
				c := churner{mods, namer, unwind.NewWalker(0)}
				for i := int(next.Add(1)); i <= until; i = int(next.Add(1)) {
					p, m, path := put(i)
					if got := c.stack(p, m()); got != want(p) {
						t.Errorf("program %d: %s, want %s", i, got, want(p))
						return
					}
					os.Remove(path)
					if i%20 != 0 {
						continue
					}
					o := &old[i/20%stay]
					fresh := churner{mods, namer, unwind.NewWalker(0)}
					for _, m := range []*unwind.Module{o.mod, o.new()} {
						if got := fresh.stack(o.p, m); got != want(o.p) {
							t.Errorf("after program %d, program %s: %s, want %s", i, o.p.name, got, want(o.p))
							return
						}
					}
				}
			})
		}
		wg.Wait()
		next.Add(int64(-workers))
	}
	run(programs / 4)
	first := count()
	run(programs)
	last := count()
	t.Logf("after %d programs %+v, after %d %+v", programs/4, first, programs, last)
	if errs := mods.Errors(); len(errs) > 0 {
		t.Errorf("Errors = %d, the first %v, want none", len(errs), errs[0])
	}
	// What was used in the last seconds may be twice the budget, and what was in use when it had to go comes on top; a file counts as a quarter of its
	// size, at least.
	if last.used > 2*budget+budget/4 || last.mapped > 4*2*budget || last.maps > 2*budget>>14 {
		t.Errorf("%d bytes are used, %d in %d mappings, of a budget of %d", last.used, last.mapped, last.maps, budget)
	}
	if last.heap > 4*2*budget {
		t.Errorf("the heap has %d bytes, of a budget of %d", last.heap, budget)
	}
	if last.descriptors > first.descriptors+2 {
		t.Errorf("%d descriptors, and %d after a quarter", last.descriptors, first.descriptors)
	}
	if err := namer.Close(); err != nil {
		t.Error(err)
	}
	if err := mods.Close(); err != nil {
		t.Error(err)
	}
	if u := count(); u.maps > 0 || u.used > 0 {
		t.Errorf("after Close: %+v", u)
	}
}
