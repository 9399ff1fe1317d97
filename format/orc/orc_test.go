package orc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Addresses in files made here.
const (
	textAt = 0x1000
	textN  = 0x1000
	ipAt   = 0x8000
)

// A part is a section to be made.
type part struct {
	name  string
	addr  uint64
	flags elf.SectionFlag
	data  []byte
}

// file makes an ELF file of sections.
func file(m uint16, parts ...part) []byte {
	le := binary.LittleEndian
	parts = append(append([]part{{}}, parts...), part{name: ".shstrtab"})
	names := []byte{}
	b := make([]byte, 64)
	heads := []byte{}
	for i := range parts {
		p := &parts[i]
		name := len(names)
		names = append(append(names, p.name...), 0)
		if i == len(parts)-1 {
			p.data = names
		}
		h := make([]byte, 64)
		if i > 0 {
			le.PutUint32(h, uint32(name))
			le.PutUint32(h[4:], uint32(elf.SHT_PROGBITS))
			le.PutUint64(h[8:], uint64(p.flags))
			le.PutUint64(h[16:], p.addr)
			le.PutUint64(h[24:], uint64(len(b)))
			le.PutUint64(h[32:], uint64(len(p.data)))
		}
		b, heads = append(b, p.data...), append(heads, h...)
	}
	copy(b, elf.ELFMAG+"\x02\x01\x01")
	le.PutUint16(b[16:], uint16(elf.ET_EXEC))
	le.PutUint16(b[18:], m)
	le.PutUint32(b[20:], 1)
	le.PutUint64(b[40:], uint64(len(b)))
	le.PutUint16(b[52:], 64)
	le.PutUint16(b[58:], 64)
	le.PutUint16(b[60:], uint16(len(parts)))
	le.PutUint16(b[62:], uint16(len(parts)-1))
	return append(b, heads...)
}

// kernel makes a file with entries at addresses, and what says which layout they have: a hash or a version.
func kernel(m uint16, says string, at []uint64, entries []byte) []byte {
	var ips []byte
	for i, a := range at {
		ips = binary.LittleEndian.AppendUint32(ips, uint32(a-ipAt-uint64(4*i)))
	}
	alloc := elf.SHF_ALLOC
	parts := []part{
		{".text", textAt, alloc | elf.SHF_EXECINSTR, make([]byte, textN)},
		{".orc_unwind_ip", ipAt, alloc, ips},
		{".orc_unwind", ipAt + uint64(len(ips)), alloc, entries},
	}
	if hash, err := hex.DecodeString(says); err == nil && len(hash) > 0 {
		parts = append(parts, part{".orc_header", 0xa000, alloc, hash})
	} else if says != "" {
		parts = append(parts, part{".rodata", 0xa000, alloc, []byte("\x00" + says + "\n\x00")})
	}
	return file(m, parts...)
}

func opened(t testing.TB, b []byte) *module.Image {
	t.Helper()
	img, err := module.New("made", b)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// TestGolden: files of testdata have entries, made by hand from the definitions of a version, and their rows.
func TestGolden(t *testing.T) {
	paths, _ := filepath.Glob("testdata/*.txt")
	if len(paths) < 5 {
		t.Fatalf("golden files: %v", paths)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		head, want, _ := strings.Cut(string(b), "-- rows\n")
		m, says := uint16(arch.EM_X86_64), ""
		var at []uint64
		var entries []byte
		for l := range strings.Lines(head) {
			l = strings.TrimSpace(l)
			if l == "machine loongarch" {
				m = arch.EM_LOONG
				continue
			}
			if v, ok := strings.CutPrefix(l, "says "); ok {
				says = v
				continue
			}
			if l == "" || l[0] == '#' {
				continue
			}
			l, _, _ = strings.Cut(l, "#")
			addr, rest, _ := strings.Cut(l, "  ")
			a, err := strconv.ParseUint(addr, 16, 64)
			e, err2 := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(rest), " ", ""))
			if err != nil || err2 != nil {
				t.Fatalf("%s: %q: %v, %v", path, l, err, err2)
			}
			at, entries = append(at, a), append(entries, e...)
		}
		tab, err := Open(opened(t, kernel(m, says, at, entries)))
		if err != nil || tab == nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		var got strings.Builder
		x, damage := tab.Rows()
		got.WriteString("layout " + tab.Layout() + "\n")
		if err := x.WriteText(&got); err != nil {
			t.Fatal(err)
		}
		for _, d := range damage {
			got.WriteString(d.Error() + "\n")
		}
		if *update {
			if err := os.WriteFile(path, []byte(head+"-- rows\n"+got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if got.String() != want {
			t.Errorf("%s:\n got %s\nwant %s", path, got.String(), want)
		}
	}
}

// call is an entry of Linux 6.4: cfa=rsp+8.
var call = []byte{8, 0, 0, 0, 0x05, 2}

// TestLayouts: the header says which layout entries have, else the kernel's version. What is not known is refused by name.
func TestLayouts(t *testing.T) {
	const hash64, hash71, hashLoong = "fe5d32bf581bd63b2ca9a5c65ba5a625eab3fe24", "137c36ad7627c4dd55932176bb0ecdbd5041fc82", "d9f45aafc6d2a2889d601ec9e3fe1092dac249dc"
	for _, c := range []struct {
		m          uint16
		says, want string // a layout's name, or a part of an error
	}{
		{arch.EM_X86_64, hash64, "6.4 to 7.0"},
		{arch.EM_X86_64, hash64 + hash64, "6.4 to 7.0"}, // ld -r
		{arch.EM_X86_64, hash64 + hash71, hash64 + "137c36ad7627c4dd55932176, which x86_64 has no layout for"},
		{arch.EM_X86_64, hash71, "7.1 and later"},
		{arch.EM_X86_64, hashLoong, hashLoong + ", which x86_64 has no layout for"},
		{arch.EM_X86_64, "0123456789abcdef0123456789abcdef01234567", "0123456789abcdef0123456789abcdef01234567, which x86_64 has no layout for"},
		{arch.EM_X86_64, "01", "01, which x86_64 has no layout for"},
		{arch.EM_LOONG, hashLoong, "LoongArch"},
		{arch.EM_LOONG, "", "LoongArch"},
		{arch.EM_LOONG, hash64, "which loongarch has no layout for"},
		{arch.EM_AARCH64, hash64, "ORC of machine aarch64"},
		{arch.EM_X86_64, "", "no .orc_header, no version in .modinfo"},
		{arch.EM_X86_64, "Linux version %s (%s)", "no .orc_header, no version in .modinfo"},
		{arch.EM_X86_64, "Linux version 4.13.16", "ORC of Linux 4.13"},
		{arch.EM_X86_64, "Linux version 4.14.336-rt", "4.14 to 4.18"},
		{arch.EM_X86_64, "Linux version 4.18.0", "4.14 to 4.18"},
		{arch.EM_X86_64, "Linux version 4.19.0-27-amd64 (debian-kernel@lists.debian.org)", "4.19 to 5.11"},
		{arch.EM_X86_64, "Linux version 5.11.22", "4.19 to 5.11"},
		{arch.EM_X86_64, "Linux version x, Linux version 5.12.0", "5.12 to 6.2"},
		{arch.EM_X86_64, "Linux version 6.2.16", "5.12 to 6.2"},
		{arch.EM_X86_64, "Linux version 6.3.13", "6.3"},
		{arch.EM_X86_64, "Linux version 6.4.0", "6.4 to 7.0"},
		{arch.EM_X86_64, "Linux version 7.0.5", "6.4 to 7.0"},
		{arch.EM_X86_64, "Linux version 7.1.0", "7.1 and later"},
		{arch.EM_X86_64, "Linux version 6", "no .orc_header, no version in .modinfo"},
		{arch.EM_X86_64, "Linux version 123456.1", "no .orc_header, no version in .modinfo"},
	} {
		tab, err := Open(opened(t, kernel(c.m, c.says, []uint64{textAt}, call)))
		switch {
		case err == nil && tab.Layout() != c.want:
			t.Errorf("%q: layout %s, want %s", c.says, tab.Layout(), c.want)
		case err != nil && (!strings.Contains(err.Error(), c.want) || !errors.Is(err, module.ErrUnsupported)):
			t.Errorf("%q: %v, want %s", c.says, err, c.want)
		}
	}
	// A module says which kernel it is for, whatever it prints.
	alloc := elf.SHF_ALLOC
	b := file(arch.EM_X86_64, part{".orc_unwind", 0x2000, alloc, call}, part{".orc_unwind_ip", 0x3000, alloc, make([]byte, 4)},
		part{".rodata", 0x4000, alloc, []byte("Linux version 4.14.1")}, part{".modinfo", 0x5000, alloc, []byte("xvermagic=4.19.1\x00vermagic=6.3.0-2-amd64 SMP\x00")})
	if tab, err := Open(opened(t, b)); err != nil || tab.Layout() != "6.3" {
		t.Errorf("vermagic: %v, %v", tab, err)
	}
	if tab, err := Open(opened(t, file(arch.EM_X86_64, part{".text", textAt, alloc, call}))); tab != nil || err != nil {
		t.Errorf("no ORC: %v, %v", tab, err)
	}
}

// TestDamage: a damaged entry costs its own range, and is named with its place.
func TestDamage(t *testing.T) {
	entries := bytes.Repeat(call, 6)
	entries[1*6+4] = 0x0b // no such base
	entries[2*6+5] = 5    // no such type
	entries[3*6+4] = 0x75 // rbp at an offset from r13
	entries[4*6+4] = 0x01 // the CFA based on itself
	at := []uint64{0x1000, 0x1010, 0x1020, 0x1030, 0x1040, 0x1050}
	for _, c := range []struct {
		name   string
		b      []byte
		damage []string
		rows   string
	}{
		{"entries", kernel(arch.EM_X86_64, "Linux version 6.4.0", at, entries), []string{
			".orc_unwind+0x6: entry of 0x1010: malformed: the stack pointer is based on 11",
			".orc_unwind+0xc: entry of 0x1020: malformed: type 5",
			".orc_unwind+0x12: entry of 0x1030: malformed: the frame pointer is based on another register",
			".orc_unwind+0x18: entry of 0x1040: malformed: the stack pointer is based on nothing",
		}, "1000 1010 1050 2000"},
		{"too few addresses", kernel(arch.EM_X86_64, "Linux version 6.4.0", at[:1], entries), []string{
			".orc_unwind+0x6: malformed: 36 bytes of entries and 4 bytes of their addresses"}, "1000 2000"},
		{"half an entry", kernel(arch.EM_X86_64, "Linux version 6.4.0", at[:1], call[:3]), []string{
			".orc_unwind+0x0: malformed: 3 bytes of entries and 4 bytes of their addresses"}, ""},
		{"outside of code", kernel(arch.EM_X86_64, "Linux version 6.4.0", []uint64{0x7000}, call), nil, "7000 7001"},
		{"around the end of the addresses, unsorted", kernel(arch.EM_X86_64, "Linux version 6.4.0", []uint64{^uint64(0) - 0xff, 0x1000}, append(bytes.Clone(call), call...)), []string{
			".orc_unwind_ip+0x0: unsupported: 2 entries from 0x1000 to 0xffffffffffffff00"}, ""},
		{"unsorted", kernel(arch.EM_X86_64, "Linux version 6.4.0", []uint64{0x1020, 0x1000, 0x1010}, bytes.Join([][]byte{call, {16, 0, 0, 0, 5, 2}, make([]byte, 6)}, nil)), nil, "1000 1010 1020 2000"},
		{"the end of a section does not hide an entry", kernel(arch.EM_X86_64, "Linux version 6.4.0", []uint64{0x1020, 0x1000, 0x1000}, bytes.Join([][]byte{make([]byte, 6), call, make([]byte, 6)}, nil)), nil, "1000 1020"},
	} {
		tab, err := Open(opened(t, c.b))
		if err != nil || tab == nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		x, damage := tab.Rows()
		var got, text []string
		for _, d := range damage {
			got = append(got, d.Error())
		}
		for _, r := range x.Rows {
			text = append(text, strconv.FormatUint(uint64(r.Lo), 16))
		}
		if strings.Join(got, "\n") != strings.Join(c.damage, "\n") || strings.Join(text, " ") != c.rows {
			t.Errorf("%s:\n got %q, rows at %s\nwant %q, rows at %s", c.name, got, strings.Join(text, " "), c.damage, c.rows)
		}
	}
}

// TestMuchDamage: the errors of entries and of relocations are bounded; the last of each counts the others.
func TestMuchDamage(t *testing.T) {
	const n = maxErrors + 500
	at := make([]uint64, n)
	for i := range at {
		at[i] = textAt + uint64(i)
	}
	tab, err := Open(opened(t, kernel(arch.EM_X86_64, "Linux version 6.4.0", at, bytes.Repeat([]byte{0xff}, 6*n))))
	if err != nil {
		t.Fatal(err)
	}
	_, damage := tab.Rows()
	if len(damage) != maxErrors+1 || damage[maxErrors].Error() != ".orc_unwind+0x0: malformed: 500 more entries" {
		t.Errorf("entries: %d errors, the last is %v", len(damage), damage[len(damage)-1])
	}
	for i := range at {
		tab.bad = append(tab.bad, module.RelocError{Section: unwindIP, Off: uint64(4 * i), Err: module.ErrMalformed})
	}
	_, damage = tab.Rows()
	if len(damage) != maxErrors+1 || damage[maxErrors].Error() != ".orc_unwind_ip+0x0: malformed: 500 more relocations" {
		t.Errorf("relocations: %d errors, the last is %v", len(damage), damage[len(damage)-1])
	}
}

// FuzzRows reads arbitrary entries of each layout, at arbitrary addresses. What is built is a table, in which each address has the rule of the last entry before it,
// and each damaged entry is told once.
func FuzzRows(f *testing.F) {
	layouts := []*layout{&layout414, &layout419, &layout512, &layout63, &layout64, &layout71, &layoutLoong}
	for i := range layouts {
		f.Add(bytes.Repeat(append([]byte{0, 0x10, 0, 0}, 8, 0, 0xf0, 0xff, 0x15, 2, 0, 0), 8), uint8(i))
		f.Add(bytes.Repeat(append([]byte{0, 0x10, 0, 0}, 8, 0, 0xf0, 0xff, 5, 0, 0x12, 0x21), 8), uint8(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, which uint8) {
		l := layouts[int(which)%len(layouts)]
		tab := &Table{machine: arch.AMD64, layout: l, place: func(v arch.Vaddr) (string, uint64) { return "", uint64(v) }, addr: ipAt + arch.Vaddr(uint64(which)>>4<<60), code: module.Ranges{{Lo: 0x1000, Hi: 0x2000}, {Lo: 0x1800, Hi: 0x3000}}}
		if l == &layoutLoong {
			tab.machine = arch.ByELF(arch.EM_LOONG)
		}
		for size := 4 + l.size; len(b) >= size; b = b[size:] {
			tab.ips, tab.entries = append(tab.ips, b[:4]...), append(tab.entries, b[4:size]...)
		}
		tab.ips = append(tab.ips, b...)
		x, damage := tab.Rows()
		rowstest.Check(t, x)
		if len(damage) > 0 && errors.Is(damage[len(damage)-1], module.ErrUnsupported) {
			return
		}
		bad := 0
		if len(b) > 0 {
			bad++
		}
		for i := range tab.n() {
			e, err := l.decode(tab.bits(i))
			if err == nil {
				_, err = tab.set(&e)
			}
			if err != nil {
				bad++
			}
		}
		if len(damage) != min(bad, maxErrors+1+min(len(b), 1)) || len(x.Rows) > tab.n()+1 {
			t.Fatalf("%d of %d errors; %d rows of %d entries: %v", len(damage), bad, len(x.Rows), tab.n(), damage)
		}
		// The same by definition, without sorting.
		for i := range min(tab.n(), 32) {
			pc := tab.at(i)
			want, found := rows.Set{}, -1
			for k := range tab.n() {
				if at := tab.at(k); at <= pc && (found < 0 || at >= tab.at(found)) {
					e, err := l.decode(tab.bits(k))
					if found >= 0 && at == tab.at(found) && err == nil && e.Type == None {
						continue
					}
					found = k
					if err == nil {
						want, err = tab.set(&e)
					}
					if err != nil {
						want = rows.Set{}
					}
				}
			}
			if got := x.At(pc); got.Text(tab.machine) != want.Text(tab.machine) && !tab.sorted() {
				t.Fatalf("at %#x\n got %s\nwant %s", uint64(pc), got.Text(tab.machine), want.Text(tab.machine))
			}
		}
		tab.Entries(func(arch.Vaddr, Entry) bool { return true })
	})
}

// FuzzOpen reads arbitrary files.
func FuzzOpen(f *testing.F) {
	f.Add(kernel(arch.EM_X86_64, "Linux version 6.1.0", []uint64{0x1000, 0x1010}, append(bytes.Clone(call), call...)))
	f.Add(kernel(arch.EM_X86_64, "fe5d32bf581bd63b2ca9a5c65ba5a625eab3fe24", []uint64{0x1000}, call))
	f.Add(kernel(arch.EM_LOONG, "d9f45aafc6d2a2889d601ec9e3fe1092dac249dc", []uint64{0x1000}, make([]byte, 8)))
	f.Fuzz(func(t *testing.T, b []byte) {
		img, err := module.New("fuzzed", b)
		if err != nil {
			return
		}
		tab, err := Open(img)
		if err != nil || tab == nil {
			return
		}
		var sum bytes.Buffer
		tab.Sum(&sum)
		x, damage := tab.Rows()
		rowstest.Check(t, x)
		if n := tab.n(); len(damage) > n+1 || len(x.Rows) > n+1 || uint64(4*n) > tab.Size() {
			t.Fatalf("%d errors and %d rows of %d entries", len(damage), len(x.Rows), n)
		}
	})
}

// benchSize is about that of a kernel's.
const benchSize = 400_000

// BenchmarkRows reports the time for an entry, of a kernel's usual mix.
func BenchmarkRows(b *testing.B) {
	mix := [][]byte{{8, 0, 0, 0, 5, 2}, {16, 0, 0xf0, 0xff, 0x15, 2}, {24, 0, 0xf0, 0xff, 0x15, 2}, {16, 0, 0xf0, 0xff, 0x14, 2}, {32, 0, 0, 0, 5, 2}, {40, 0, 0, 0, 5, 2}, {0, 0, 0, 0, 0, 0}}
	for _, sorted := range []bool{true, false} {
		t := &Table{machine: arch.AMD64, layout: &layout64, addr: ipAt, code: module.Ranges{{Lo: 0x100000, Hi: 0x2000000}}}
		for i := range benchSize {
			at := 0x100000 + 16*i
			if !sorted {
				at = 0x100000 + 16*((i+benchSize/4)%benchSize) // two sections
			}
			t.ips = binary.LittleEndian.AppendUint32(t.ips, uint32(at-ipAt-4*i))
			t.entries = append(t.entries, mix[(i*3+i/5)%len(mix)]...)
		}
		b.Run(map[bool]string{true: "sorted", false: "unsorted"}[sorted], func(b *testing.B) {
			n := 0
			for b.Loop() {
				x, damage := t.Rows()
				if n = len(x.Rows); len(damage) > 0 {
					b.Fatalf("Rows has damage %v, want none", damage[0])
				}
			}
			perRow := float64(b.Elapsed().Nanoseconds()) / float64(b.N) / float64(n)
			b.ReportMetric(perRow, "ns/row")
			b.ReportMetric(1000/perRow, "Mrows/s")
			b.ReportMetric(float64(n), "rows")
		})
	}
}
