package gdbjit

import (
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// header is an ELF header of a machine's object file without sections.
func header(m *arch.Machine) []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01")
	var order binary.ByteOrder = binary.LittleEndian
	if m.Word == 4 {
		b[4] = 1
	}
	if m.BigEndian {
		b[5], order = 2, binary.BigEndian
	}
	order.PutUint16(b[16:], 1)
	order.PutUint16(b[18:], uint16(m.ELF))
	return b
}

const list = 0x1000 // where descriptors are

func room() *uint64 {
	n := uint64(Room)
	return &n
}

// registered is a process that has registered images, one every 0x10000 bytes from 0x100000 on, as the compiler lays struct jit_descriptor and
// struct jit_code_entry out on each machine: of the fields' offsets, only that of the size differs.
func registered(m *arch.Machine, images ...[]byte) oracle.Memory {
	var order binary.AppendByteOrder = binary.LittleEndian
	if m.BigEndian {
		order = binary.BigEndian
	}
	word := func(b []byte, v uint64) []byte {
		if m.Word == 4 {
			return order.AppendUint32(b, uint32(v))
		}
		return order.AppendUint64(b, v)
	}
	f := oracle.Memory{}
	entry := func(i int) uint64 {
		if i == len(images) {
			return 0
		}
		return 0x100000 + uint64(i)<<16
	}
	d := order.AppendUint32(order.AppendUint32(nil, 1), 1)
	f[list] = word(word(d, 0), entry(0))
	for i, img := range images {
		at := entry(i)
		e := word(word(word(nil, entry(i+1)), 0), at+0x100)
		if m.Word == 4 && m.ELF != arch.EM_386 {
			e = append(e, 0, 0, 0, 0)
		}
		f[at] = order.AppendUint64(e, uint64(len(img)))
		f[at+0x100] = img
	}
	return f
}

// TestRead: the list is read on machines of both sizes of words and both orders of bytes.
func TestRead(t *testing.T) {
	for _, m := range arch.Machines() {
		images, err := Read(m, registered(m, header(m), header(m), header(m)).Read, list, room())
		if len(images) != 3 || err != nil {
			t.Errorf("%s: %d images, %v; want 3", m.Name, len(images), err)
			continue
		}
		if name := images[1].Name(); name != "[jit 0x110100]" || images[1].Machine() != m {
			t.Errorf("%s: %q of %s", m.Name, name, images[1].Machine().Name)
		}
	}
}

// TestHostileList: what a program says of its code is bounded and costs only what is wrong.
func TestHostileList(t *testing.T) {
	m := arch.AMD64
	le := binary.LittleEndian
	for _, c := range []struct {
		name  string
		spoil func(f oracle.Memory)
		n     int
		err   string
	}{
		{"nothing is there", func(f oracle.Memory) { delete(f, list) }, 0, "code for debuggers: the list at 0x1000: unreadable"},
		{"another version", func(f oracle.Memory) { f[list][0] = 2 }, 0, "code for debuggers: the list at 0x1000 is of version 2"},
		{"nothing registered", func(f oracle.Memory) { clear(f[list][16:]) }, 0, ""},
		{"an entry is gone", func(f oracle.Memory) { delete(f, 0x110000) }, 1, "code for debuggers: entry 1 at 0x110000: unreadable"},
		{"an image is gone", func(f oracle.Memory) { delete(f, 0x110100) }, 2, "code for debuggers: entry 1: [jit 0x110100] of 64 bytes: unreadable"},
		{"no image", func(f oracle.Memory) { f[0x110100][0] = 0 }, 2, "code for debuggers: entry 1: [jit 0x110100]+0x0: header"},
		{"another machine", func(f oracle.Memory) { f[0x110100][18] = byte(arch.EM_AARCH64) }, 2, "code for debuggers: entry 1: [jit 0x110100] is code for aarch64"},
		{"too large", func(f oracle.Memory) { le.PutUint64(f[0x110000][24:], 1<<40) }, 1, "code for debuggers: entry 1 at 0x110000 has 1099511627776 bytes: too large"},
		{"a ring", func(f oracle.Memory) { le.PutUint64(f[0x120000], 0x100000) }, 3, "code for debuggers: the list does not end after 3 entries"},
		{"three are bad", func(f oracle.Memory) { clear(f[0x100100]); clear(f[0x110100]); clear(f[0x120100]) }, 0, "[jit 0x100100]+0x0: header: not an ELF, Mach-O or PE file; and 2 more"},
	} {
		f := registered(m, header(m), header(m), header(m))
		c.spoil(f)
		images, err := Read(m, f.Read, list, room())
		if err == nil && c.err != "" || err != nil && (c.err == "" || !strings.Contains(err.Error(), c.err)) || len(images) != c.n {
			t.Errorf("%s: %d images, %v; want %d, %q", c.name, len(images), err, c.n, c.err)
		}
	}
}

// TestRoom: lists share what there is room for.
func TestRoom(t *testing.T) {
	m := arch.AMD64
	f := registered(m, header(m), header(m), header(m))
	n := uint64(5 * len(header(m)))
	if images, err := Read(m, f.Read, list, &n); len(images) != 3 || err != nil {
		t.Errorf("%d images, %v; want 3", len(images), err)
	}
	if images, err := Read(m, f.Read, list, &n); len(images) != 2 || err == nil || !strings.Contains(err.Error(), "entry 2 at 0x120000 has 64 bytes: too large") || n != 0 {
		t.Errorf("%d images, %v, %d bytes left; want 2", len(images), err, n)
	}
}

// object is a compiled function whose sections have addresses, as those of an image in memory.
func object(t testing.TB, addresses ...string) []byte {
	t.Helper()
	oracle.Need(t, "gcc", "objcopy")
	dir := t.TempDir()
	src, out := filepath.Join(dir, "f.c"), filepath.Join(dir, "f.o")
	if err := os.WriteFile(src, []byte("int g(int);\nint f(int n)\n{\n\treturn g(n + 1) + n;\n}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O2", "-g", "-c", "-o", out, src)
	var args []string
	for _, a := range addresses {
		args = append(args, "--change-section-address", a)
	}
	if b, err := exec.Command("objcopy", append(args, out)...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestAddresses: rows, symbols and sections of an image in memory are where the process has them.
func TestAddresses(t *testing.T) {
	m := arch.AMD64
	b := object(t, ".text=0x7f0000001040", ".eh_frame=0x7f0000002000")
	images, err := Read(m, registered(m, b).Read, list, room())
	if err != nil || len(images) != 1 {
		t.Fatalf("Read = %d images, %v, want 1", len(images), err)
	}
	img := images[0]
	u, err := format.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	rows, damage := u.Rows()
	if len(damage) > 0 || len(rows.Rows) < 4 || rows.Rows[0].Lo != 0x7f0000001040 {
		t.Fatalf("%v, rows %+v", damage, rows.Rows)
	}
	t1, _ := img.SymbolTable(false)
	found := false
	for i := range t1.Len() {
		e := t1.At(i)
		found = found || t1.Name(e) == "f" && e.Value == 0x7f0000001040
	}
	if off, ok := img.VaddrToOff(0x7f0000001044); !found || !ok || off != 0x7f0000001044 {
		t.Errorf("f is found: %v; offset %#x", found, off)
	}
}

// TestSplice: code replaces memory that is no file's, and nothing else.
func TestSplice(t *testing.T) {
	oracle.Long(t)
	at := func(text string) *module.Image {
		img, err := module.InMemory("[jit]", object(t, ".text="+text))
		if err != nil {
			t.Fatal(err)
		}
		return img
	}
	anon, file := unwind.NewModule("//anon", "", nil), unwind.NewModule("/lib/x.so", "", nil)
	maps := []unwind.Mapping{{Lo: 0x10000, Hi: 0x20000, Off: 0x10000, Module: anon}, {Lo: 0x20000, Hi: 0x30000, Module: file}}
	mods := map[*module.Image]*unwind.Module{}
	of := func(img *module.Image) *unwind.Module {
		mods[img] = unwind.NewModule(img.Name(), "", nil)
		return mods[img]
	}
	// Of three at one place, the first is believed; those over a file, or over an end, are not.
	a, b := at("0x10000"), at("0x18000")
	out := Splice(maps, []*module.Image{b, a, at("0x18004"), at("0x20010"), at("0x1fffc"), at("0xfffc"), at("0x50000")},
		func(m *unwind.Mapping) bool { return m.Module == anon }, of)
	size := arch.Addr(a.Segments()[0].Size)
	want := []unwind.Mapping{
		{Lo: 0x10000, Hi: 0x10000 + size, Off: 0x10000, Module: mods[a]},
		{Lo: 0x10000 + size, Hi: 0x18000, Off: 0x10000 + uint64(size), Module: anon},
		{Lo: 0x18000, Hi: 0x18000 + size, Off: 0x18000, Module: mods[b]},
		{Lo: 0x18000 + size, Hi: 0x20000, Off: 0x18000 + uint64(size), Module: anon},
		maps[1],
	}
	if !slices.Equal(out, want) {
		t.Errorf("%+v\nwant %+v", out, want)
	}
	if out := Splice(maps, nil, nil, nil); !slices.Equal(out, maps) {
		t.Errorf("without images: %+v", out)
	}
}

func FuzzRead(f *testing.F) {
	for i, m := range arch.Machines() {
		mem := registered(m, header(m))
		f.Add(uint8(i), mem[list], mem[0x100000], mem[0x100100])
	}
	f.Add(uint8(0), registered(arch.AMD64, nil)[list], registered(arch.AMD64, object(f, ".text=0x1000", ".eh_frame=0x2000"))[0x100000], object(f, ".text=0x1000", ".eh_frame=0x2000"))
	f.Fuzz(func(t *testing.T, which uint8, d, e, img []byte) {
		m := arch.Machines()[int(which)%len(arch.Machines())]
		images, _ := Read(m, oracle.Memory{list: d, 0x100000: e, 0x100100: img}.Read, list, room())
		for _, img := range images[:min(len(images), 4)] {
			if u, err := format.Open(img); err == nil {
				u.Rows()
			}
			Descriptor(img)
		}
		made := unwind.NewModule("//anon", "", nil)
		maps := Splice([]unwind.Mapping{{Lo: 0x1000, Hi: 1 << 47, Module: made}}, images, func(*unwind.Mapping) bool { return true },
			func(img *module.Image) *unwind.Module { return unwind.NewModule(img.Name(), "", nil) })
		for i := range maps {
			if maps[i].Lo >= maps[i].Hi || i > 0 && maps[i].Lo < maps[i-1].Hi {
				t.Fatalf("%+v", maps)
			}
		}
	})
}
