package libgcc

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// Where things are in a fake. Objects and nodes are 0x100 bytes apart.
const (
	dataAt   = 0x1000
	objectAt = 0x10000
	nodeAt   = 0x20000
	ehAt     = 0x30000
	arrayAt  = 0x40000
	vectorAt = 0x50000
	codeAt   = 0x80000
	codeSize = 0x10
)

// A writer writes numbers of a machine.
type writer struct {
	m     *arch.Machine
	order binary.AppendByteOrder
	b     []byte
}

func write(m *arch.Machine) *writer {
	w := &writer{m: m, order: binary.LittleEndian}
	if m.BigEndian {
		w.order = binary.BigEndian
	}
	return w
}

func (w *writer) u32(v ...uint32) *writer {
	for _, x := range v {
		w.b = w.order.AppendUint32(w.b, x)
	}
	return w
}

func (w *writer) word(v ...uint64) *writer {
	for _, x := range v {
		if w.m.WordSize() == 4 {
			w.u32(uint32(x))
		} else {
			w.b = w.order.AppendUint64(w.b, x)
		}
	}
	return w
}

func (w *writer) page() []byte { return append(w.b, make([]byte, 0x1000-len(w.b))...) }

// flags are the bit fields of an object as the machine's compiler lays them out.
func (w *writer) flags(sorted, array bool, encoding, count uint32) *writer {
	bit := map[bool]uint32{true: 1}
	v := bit[sorted] | bit[array]<<1 | encoding<<3 | count<<11
	if w.m.BigEndian {
		v = bit[sorted]<<31 | bit[array]<<30 | encoding<<21 | count
	}
	w.u32(v)
	if w.m.WordSize() == 8 {
		w.u32(0)
	}
	return w
}

// eh is .eh_frame of the i-th function: a CIE, an FDE and a terminator.
func eh(m *arch.Machine, i int) []byte {
	w := write(m).u32(12, 0)
	w.b = append(w.b, 1, 0, 1, 0x7c, byte(m.RA), dwarf.DW_CFA_def_cfa, byte(m.SP), 8)
	w.u32(uint32(4+2*m.WordSize()), 20).word(codeAt+uint64(i)*codeSize, codeSize).u32(0)
	return w.page()
}

// registered is a process that has n objects in a list, at the third word of its data: the first is an array, the second sorted.
func registered(m *arch.Machine, n int) oracle.Memory {
	f := oracle.Memory{dataAt: write(m).word(0x123, 0, objectAt).page()}
	for i := range n {
		next, from := uint64(objectAt+(i+1)*0x1000), uint64(ehAt+i*0x1000)
		if i == n-1 {
			next = 0
		}
		f[from] = eh(m, i)
		switch i {
		case 0:
			f[arrayAt] = write(m).word(from, 0).page()
			from = arrayAt
		case 1:
			f[vectorAt] = write(m).word(from, 1, from+16).page()
			from = vectorAt
		}
		f[uint64(objectAt+i*0x1000)] = write(m).word(codeAt, 0, 0, from).flags(i == 1, i == 0, 0xff, 1).word(next).page()
	}
	return f
}

// tree is registered with a tree of two levels: its leaves have the objects by their code, and by their unwind information.
func tree(m *arch.Machine, n int) oracle.Memory {
	f := registered(m, n)
	f[dataAt] = write(m).word(0, nodeAt).page()
	type entry struct{ lo, size, object uint64 }
	var all []entry
	for i := range n {
		all = append(all, entry{uint64(ehAt + i*0x1000), 1, uint64(objectAt + i*0x1000)})
	}
	for i := range n {
		all = append(all, entry{uint64(codeAt + i*codeSize), codeSize, uint64(objectAt + i*0x1000)})
	}
	var leaves []uint64
	for at := uint64(nodeAt + 0x1000); len(all) > 0; at += 0x1000 {
		k := min(len(all), maxLeaf)
		w := write(m).word(4).u32(uint32(k), leaf)
		for _, e := range all[:k] {
			w.word(e.lo, e.size, e.object)
		}
		f[at] = w.page()
		leaves = append(leaves, all[k-1].lo+all[k-1].size-1, at)
		all = all[k:]
	}
	leaves[len(leaves)-2] = ^uint64(0)
	f[nodeAt] = write(m).word(8).u32(uint32(len(leaves)/2), inner).word(leaves...).page()
	return f
}

// read reads what a oracle.Memory has registered, and returns the functions that have rows.
func read(m *arch.Machine, f oracle.Memory) (found []int, err error) {
	tables, err := Read(m, f.Read, []Range{{dataAt, dataAt + 0x1000}}, func(lo, hi arch.Addr) bool { return lo < codeAt+0x1000 && hi > codeAt })
	for i := range 0x100 {
		if slices.ContainsFunc(tables, func(t *rows.Table) bool {
			k := t.Find(arch.Vaddr(codeAt + i*codeSize))
			return k >= 0 && t.Rows[k].Set != rows.GapID
		}) {
			found = append(found, i)
		}
	}
	return found, err
}

// TestRead: lists and trees are read on machines of both sizes of words and both orders of bytes.
func TestRead(t *testing.T) {
	for _, m := range arch.Machines() {
		if m.RA > 127 || m.SP > 127 {
			continue
		}
		for name, make := range map[string]func(*arch.Machine, int) oracle.Memory{"list": registered, "tree": tree} {
			if found, err := read(m, make(m, 12)); len(found) != 12 || err != nil {
				t.Errorf("%s, %s: %v, %v; want 12 functions", m.Name, name, found, err)
			}
		}
	}
}

// TestHostile: what a program has in its memory is bounded, and costs only what is wrong.
func TestHostile(t *testing.T) {
	m := arch.AMD64
	le := binary.LittleEndian
	for _, c := range []struct {
		name  string
		make  func(*arch.Machine, int) oracle.Memory
		spoil func(f oracle.Memory)
		n     int
		err   string
	}{
		{"nothing is there", registered, func(f oracle.Memory) { clear(f) }, 0, ""},
		{"no registry", registered, func(f oracle.Memory) { clear(f[dataAt]) }, 0, ""},
		{"two lists", registered, func(f oracle.Memory) { le.PutUint64(f[dataAt][0x800:], objectAt+0x1000) }, 3, ""},
		{"a ring", registered, func(f oracle.Memory) { le.PutUint64(f[objectAt+0x2000][40:], objectAt) }, 3, "the list does not end after 3 objects"},
		{"an object is gone", registered, func(f oracle.Memory) { delete(f, objectAt+0x1000) }, 1, "object 1 of the list, at 0x11000, is none"},
		{"no object", registered, func(f oracle.Memory) { f[objectAt+0x1000][39] = 1 }, 1, "object 1 of the list, at 0x11000, is none"},
		{"no encoding", registered, func(f oracle.Memory) { f[objectAt+0x1000][33] = 0 }, 1, "object 1 of the list, at 0x11000, is none"},
		{"no unwind information", registered, func(f oracle.Memory) { delete(f, ehAt+0x2000) }, 2, "object at 0x12000: .eh_frame at 0x32000+0x0: unreadable"},
		{"an array without an end", registered, func(f oracle.Memory) {
			for i := range 0x1000 / 8 {
				le.PutUint64(f[arrayAt][8*i:], ehAt)
			}
		}, 3, "object at 0x10000: the array at 0x40000: unreadable"},
		{"a long entry", registered, func(f oracle.Memory) { le.PutUint32(f[ehAt+0x2000][16:], 1<<30) }, 2, ".eh_frame at 0x32000+0x10: an entry of 1073741824 bytes"},
		{"an extended length", registered, func(f oracle.Memory) { le.PutUint32(f[ehAt+0x2000][16:], 1<<32-1) }, 2, ".eh_frame at 0x32000+0x10: an entry of 4294967295 bytes"},
		{"an entry without a CIE", registered, func(f oracle.Memory) { le.PutUint32(f[ehAt+0x2000][20:], 1<<30) }, 2, "CIE pointer 0x40000000 leads out of the section"},
		{"code of a file", registered, func(f oracle.Memory) {
			for i := range uint64(3) {
				le.PutUint64(f[ehAt+i*0x1000][24:], 0x900000)
			}
		}, 0, ""},
		{"a tree in a ring", tree, func(f oracle.Memory) { le.PutUint64(f[nodeAt][24:], nodeAt) }, 0, ""},
		{"a leaf is gone", tree, func(f oracle.Memory) { delete(f, nodeAt+0x1000) }, 0, ""},
		{"no order", tree, func(f oracle.Memory) { le.PutUint64(f[nodeAt+0x1000][16+24:], 1) }, 1, "the node of the tree at 0x21000 is not in order"},
		{"many entries", tree, func(f oracle.Memory) { f[nodeAt+0x1000][8] = maxLeaf + 1 }, 0, ""},
		{"a free node", tree, func(f oracle.Memory) { f[nodeAt+0x1000][12] = 2 }, 0, ""},
	} {
		f := c.make(m, 3)
		c.spoil(f)
		found, err := read(m, f)
		if len(found) != c.n || err == nil && c.err != "" || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %v, %v; want %d, %q", c.name, found, err, c.n, c.err)
		}
	}
}

// TestBounds: a process cannot take much memory or time: objects without an end, and unwind information without an end.
func TestBounds(t *testing.T) {
	oracle.Long(t)
	m := arch.AMD64
	base := registered(m, 1)
	endless := func(addr uint64, b []byte) bool {
		if addr >= 1<<32 { // one object after another
			if len(b) == 48 {
				copy(b, write(m).word(codeAt, 0, 0, ehAt).flags(false, false, 0xff, 1).word(addr+64).b)
			}
			return true
		}
		return base.Read(addr, b)
	}
	base[dataAt] = write(m).word(1 << 32).page()
	in := func(lo, hi arch.Addr) bool { return lo == codeAt }
	tables, err := Read(m, endless, []Range{{dataAt, dataAt + 0x1000}}, in)
	if len(tables) == 0 || err == nil || !strings.Contains(err.Error(), "the list does not end after 32768 objects") {
		t.Errorf("%d tables, %v", len(tables), err)
	}
	entries := eh(m, 0)
	long := func(addr uint64, b []byte) bool { // one FDE after another
		if addr < ehAt || addr >= 1<<40 {
			return base.Read(addr, b)
		}
		for i := range b {
			off := addr + uint64(i) - ehAt
			if off >= 16 {
				off = 16 + (off-16)%24
			}
			b[i] = entries[off]
		}
		return true
	}
	base = oracle.Memory{dataAt: write(m).word(objectAt).page(), objectAt: write(m).word(codeAt, 0, 0, ehAt).flags(false, false, 0xff, 1).word(0).page()}
	tables, err = Read(m, long, []Range{{dataAt, dataAt + 0x1000}}, in)
	if len(tables) != 1 || err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("%d tables, %v", len(tables), err)
	}
}

// TestManyWays: words that lead to each object of one long list cost no more than the list many times over.
func TestManyWays(t *testing.T) {
	oracle.Long(t)
	m := arch.AMD64
	const n, step = 1 << 16, 64
	reads := 0
	object := write(m).word(codeAt, 0, 0, ehAt).flags(false, false, 0xff, 1).word(0).b
	mem := func(addr uint64, b []byte) bool {
		reads++
		switch {
		case addr >= dataAt && addr < dataAt+8*n: // each word leads to another object
			for i := range len(b) / 8 {
				binary.LittleEndian.PutUint64(b[8*i:], 1<<32+((addr-dataAt)/8+uint64(i))*step)
			}
			return true
		case addr >= 1<<32 && len(b) == 48: // which leads to the next one, without an end
			binary.LittleEndian.PutUint64(object[40:], addr+step)
			copy(b, object)
			return true
		}
		return false
	}
	tables, _ := Read(m, mem, []Range{{dataAt, dataAt + 8*n}}, func(lo, hi arch.Addr) bool { return true })
	if most := 2*maxReads + 8*n + 2*maxRegions; len(tables) > 0 || reads > most {
		t.Errorf("%d tables, %d reads; want none, and %d at most", len(tables), reads, most)
	}
}

// TestChanges: a registry that changes while it is read is read again, and a note says so if it does not stop.
func TestChanges(t *testing.T) {
	m := arch.AMD64
	f, n := registered(m, 3), 0
	for _, steady := range []int{1, 1 << 30} {
		n = 0
		tables, err := Read(m, func(addr uint64, b []byte) bool {
			if addr == dataAt+16 && len(b) == 8 { // the second look
				if n++; n <= steady {
					copy(b, write(m).word(objectAt+0x1000).b)
					return true
				}
			}
			return f.Read(addr, b)
		}, []Range{{dataAt, dataAt + 0x1000}}, func(lo, hi arch.Addr) bool { return true })
		if len(tables) != 1 || (err != nil) != (steady > 1) || err != nil && err.Error() != "libgcc's registry of unwind information changes while it is read" {
			t.Errorf("after %d changes: %d tables, %v", n, len(tables), err)
		}
	}
}

// TestSplice: registered code replaces memory that is no file's, piece by piece, and nothing else.
func TestSplice(t *testing.T) {
	m := arch.AMD64
	tables, err := Read(m, registered(m, 4).Read, []Range{{dataAt, dataAt + 0x1000}}, func(lo, hi arch.Addr) bool { return true })
	if len(tables) != 1 || err != nil {
		t.Fatalf("Read = %d tables, %v, want 1", len(tables), err)
	}
	anon, file := unwind.NewModule("//anon", "", nil), unwind.NewModule("/lib/x.so", "", nil)
	// Four functions of 16 bytes: over the end of one mapping into the next, over a file's, and over the last end.
	maps := []unwind.Mapping{
		{Lo: codeAt - 0x1000, Hi: codeAt + 0x18, Module: anon}, {Lo: codeAt + 0x18, Hi: codeAt + 0x28, Module: anon}, {Lo: codeAt + 0x28, Hi: codeAt + 0x30, Module: file},
		{Lo: codeAt + 0x38, Hi: codeAt + 0x100, Module: anon},
	}
	var got []string
	for _, x := range Splice(maps, tables, m, func(m *unwind.Mapping) bool { return m.Module == anon }, "//anon", 7) {
		what := x.Module.Path
		if x.Module != anon && x.Module != file {
			what = fmt.Sprintf("made by %d at %#x", x.Module.PID, x.Off-codeAt)
			if v, ok := x.Vaddr(x.Lo); !ok || v != arch.Vaddr(x.Lo) {
				t.Errorf("%+v: %#x", x, v)
			}
		}
		got = append(got, fmt.Sprintf("%d-%d %s", int64(x.Lo-codeAt), int64(x.Hi-codeAt), what))
	}
	want := []string{"-4096-0 //anon", "0-24 made by 7 at 0x0", "24-40 made by 7 at 0x18", "40-48 /lib/x.so", "56-64 made by 7 at 0x38", "64-256 //anon"}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if out := Splice(maps, nil, m, nil, "//anon", 7); !slices.Equal(out, maps) {
		t.Errorf("without code: %+v", out)
	}
}

// TestData: this machine's libgcc has a registry in its writable memory; a library without libgcc's functions has none.
func TestData(t *testing.T) {
	for path, has := range map[string]bool{"/lib/" + arch.Host().Name + "-linux-gnu/libgcc_s.so.1": true, "/lib/" + arch.Host().Name + "-linux-gnu/libm.so.6": false} {
		img, err := module.Open(path)
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		size := arch.Vaddr(0)
		for _, d := range Data(img, false) {
			size += d.Hi - d.Lo
		}
		if has != (size > 0) || size > 1<<13 {
			t.Errorf("%s has %d bytes", path, size)
		}
		img.Close()
	}
}

func FuzzRead(f *testing.F) {
	for i, m := range arch.Machines() {
		for _, make := range []func(*arch.Machine, int) oracle.Memory{registered, tree} {
			x := make(m, 2)
			f.Add(uint8(i), x[dataAt][:64], x[objectAt][:48], x[objectAt+0x1000][:48], x[ehAt][:64], x[nodeAt], x[nodeAt+0x1000])
		}
	}
	f.Fuzz(func(t *testing.T, which uint8, data, a, b, eh, node, leaf []byte) {
		m := arch.Machines()[int(which)%len(arch.Machines())]
		mem := registered(m, 2)
		mem[dataAt], mem[objectAt], mem[objectAt+0x1000], mem[ehAt], mem[nodeAt], mem[nodeAt+0x1000] = data, a, b, eh, node, leaf
		all := func(lo, hi arch.Addr) bool { return true }
		tables, _ := Read(m, mem.Read, []Range{{dataAt, dataAt + uint64(len(data))}}, all)
		anon := unwind.NewModule("//anon", "", nil)
		maps := Splice([]unwind.Mapping{{Lo: 0x1000, Hi: 1 << 47, Module: anon}}, tables, m, func(*unwind.Mapping) bool { return true }, "//anon", 1)
		for i := range maps {
			if maps[i].Lo >= maps[i].Hi || i > 0 && maps[i].Lo < maps[i-1].Hi {
				t.Fatalf("%+v", maps)
			}
		}
	})
}
