package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
)

// An object is a file that is not linked, to be made: some code, a section that unwinding reads, and relocations of that section.
type object struct {
	machine elf.Machine
	is64    bool
	order   binary.AppendByteOrder
	rela    bool
	field   []byte // the contents of .eh_frame
	relocs  []byte
}

// objectSymbols are the symbols of an object: none, the section .text, a function there, a number, one that another file defines, and one in
// a section that is not there.
const (
	symNone = iota
	symText
	symFunc
	symNumber
	symOther
	symLost
)

func (x *object) bytes() []byte {
	e := synth{is64: x.is64, order: x.order, typ: elf.ET_REL, machine: x.machine}
	symbol := func(name uint32, info byte, section uint16, v uint64) []byte {
		b := x.order.AppendUint32(nil, name)
		if x.is64 {
			b = append(b, info, 0)
			b = x.order.AppendUint16(b, section)
			return x.order.AppendUint64(x.order.AppendUint64(b, v), 0)
		}
		b = x.order.AppendUint32(x.order.AppendUint32(b, uint32(v)), 0)
		return x.order.AppendUint16(append(b, info, 0), section)
	}
	var syms []byte
	for _, s := range [][]byte{symbol(0, 0, 0, 0), symbol(0, 3, 1, 0), symbol(1, 0x12, 1, 0x10), symbol(0, 0x10, 0xfff1, 0x1234), symbol(6, 0x10, 0, 0), symbol(0, 0x10, 99, 0)} {
		syms = append(syms, s...)
	}
	typ, size := elf.SHT_REL, uint64(8)
	if x.is64 {
		size = 16
	}
	if x.rela {
		typ, size = elf.SHT_RELA, size*3/2
	}
	e.secs = []synthSection{
		{name: ".text", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, data: make([]byte, 0x40)},
		{name: ".eh_frame", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: x.field},
		{name: ".rel.eh_frame", typ: typ, link: 4, info: 2, entsize: size, data: x.relocs},
		{name: ".symtab", typ: elf.SHT_SYMTAB, link: 5, data: syms},
		{name: ".strtab", typ: elf.SHT_STRTAB, data: []byte("\x00func\x00other\x00")},
		{name: ".other", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: []byte{1, 2, 3}},
	}
	return e.bytes()
}

// reloc returns an entry of a table of relocations.
func (x *object) reloc(off uint64, typ, sym uint32, addend int64) []byte {
	if !x.is64 {
		b := x.order.AppendUint32(nil, uint32(off))
		b = x.order.AppendUint32(b, sym<<8|typ)
		if x.rela {
			b = x.order.AppendUint32(b, uint32(addend))
		}
		return b
	}
	b := x.order.AppendUint64(nil, off)
	if x.machine == elf.EM_MIPS {
		b = append(x.order.AppendUint32(b, sym), byte(typ>>24), byte(typ>>16), byte(typ>>8), byte(typ))
	} else {
		b = x.order.AppendUint64(b, uint64(sym)<<32|uint64(typ))
	}
	if x.rela {
		b = x.order.AppendUint64(b, uint64(addend))
	}
	return b
}

func (x *object) open(t testing.TB) *Image {
	t.Helper()
	img, err := New("x.o", x.bytes())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// In an object, .text is at 0x1000 and .eh_frame at 0x1041.
const textAt, frameAt = 0x1000, 0x1041

// TestRelocate: what each kind of relocation writes, by the psABIs' formulas. All other types of fields are judged by a linker (format/dwarf).
func TestRelocate(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	for _, c := range []struct {
		what   string
		x      object
		typ    uint32
		sym    uint32
		addend int64
		field  string // hex
		want   string
	}{
		{"absolute", object{machine: elf.EM_X86_64, is64: true, order: le, rela: true}, uint32(elf.R_X86_64_64), symFunc, 2, "ffffffffffffffff", "1210000000000000"},
		{"relative", object{machine: elf.EM_X86_64, is64: true, order: le, rela: true}, uint32(elf.R_X86_64_PC32), symText, 4, "ffffffff", "c3ffffff"},
		{"relative, 64 bits", object{machine: elf.EM_X86_64, is64: true, order: le, rela: true}, uint32(elf.R_X86_64_PC64), symText, 4, "ffffffffffffffff", "c3ffffffffffffff"},
		{"a number", object{machine: elf.EM_X86_64, is64: true, order: le, rela: true}, uint32(elf.R_X86_64_32), symNumber, 0, "00000000", "34120000"},
		{"discarded", object{machine: elf.EM_X86_64, is64: true, order: le, rela: true}, uint32(elf.R_X86_64_64), symNone, 0, "ffffffffffffffff", "0000000000000000"},
		{"none", object{machine: elf.EM_X86_64, is64: true, order: le, rela: true}, uint32(elf.R_X86_64_NONE), symText, 9, "01020304", "01020304"},
		{"big-endian", object{machine: elf.EM_AARCH64, is64: true, order: be, rela: true}, uint32(elf.R_AARCH64_PREL32), symText, 0, "00000000", "ffffffbf"},
		{"big-endian, absolute", object{machine: elf.EM_S390, is64: true, order: be, rela: true}, uint32(elf.R_390_64), symFunc, 0, "0000000000000000", "0000000000001010"},
		{"addend in the field", object{machine: elf.EM_386, order: le}, uint32(elf.R_386_PC32), symText, 0, "fcffffff", "bbffffff"},
		{"addend in the field, absolute", object{machine: elf.EM_386, order: le}, uint32(elf.R_386_32), symFunc, 0, "02000000", "12100000"},
		{"31 bits", object{machine: elf.EM_ARM, order: le}, uint32(elf.R_ARM_PREL31), symText, 0, "04000080", "c3ffffff"},
		{"31 bits, negative addend", object{machine: elf.EM_ARM, order: le}, uint32(elf.R_ARM_PREL31), symText, 0, "feffff7f", "bdffff7f"},
		{"sum of a byte", object{machine: elf.EM_RISCV, is64: true, order: le, rela: true}, 33, symFunc, 0, "05", "15"},
		{"difference", object{machine: elf.EM_RISCV, is64: true, order: le, rela: true}, 39, symFunc, 0, "20100000", "10000000"},
		{"six bits", object{machine: elf.EM_RISCV, is64: true, order: le, rela: true}, 53, symFunc, 3, "40", "53"},
		{"six bits, difference", object{machine: elf.EM_RISCV, is64: true, order: le, rela: true}, 52, symFunc, 0, "53", "43"},
		{"LEB128", object{machine: elf.EM_RISCV, is64: true, order: le, rela: true}, 60, symFunc, 1, "808000", "91a000"},
		{"LEB128, difference", object{machine: elf.EM_RISCV, is64: true, order: le, rela: true}, 61, symFunc, 0, "91a000", "818000"},
		{"24 bits", object{machine: elf.EM_LOONGARCH, is64: true, order: le, rela: true}, 49, symFunc, 0, "010000", "111000"},
		{"three types", object{machine: elf.EM_MIPS, is64: true, order: be, rela: true}, mipsPC64, symText, 0, "0000000000000000", "ffffffffffffffbf"},
	} {
		fmt.Sscanf(c.field, "%x", &c.x.field)
		var want []byte
		fmt.Sscanf(c.want, "%x", &want)
		c.x.relocs = c.x.reloc(0, c.typ, c.sym, c.addend)
		img := c.x.open(t)
		s := img.Section(".eh_frame")
		got, err := img.Data(s)
		if err != nil || !bytes.Equal(got, want) || s.Addr != frameAt {
			t.Errorf("%s: %x, %v, want %x", c.what, got, err, want)
		}
		if again, _ := img.Data(s); !bytes.Equal(again, want) {
			t.Errorf("%s: the second time: %x, want %x", c.what, again, want)
		}
		if tail := img.Tail(frameAt); !bytes.Equal(tail, want) {
			t.Errorf("%s: at its address: %x, want %x", c.what, tail, want)
		}
	}
}

// TestManySymbolTables: a file may have a table of relocations for each of many symbol tables. Its cost grows with their number, not its square.
func TestManySymbolTables(t *testing.T) {
	const n = 50_000
	e := synth{is64: true, order: binary.LittleEndian, typ: elf.ET_REL, machine: elf.EM_X86_64, secs: []synthSection{
		{name: ".eh_frame", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, data: make([]byte, 8)},
		{name: ".strtab", typ: elf.SHT_STRTAB, data: []byte{0}},
	}}
	for i := range uint32(n) {
		e.secs = append(e.secs, synthSection{typ: elf.SHT_SYMTAB, link: 2}, synthSection{typ: elf.SHT_RELA, link: 3 + 2*i, info: 1})
	}
	img, err := New("x.o", e.bytes())
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if _, bad, err := img.Relocate(img.Section(".eh_frame")); err != nil || len(bad) > 0 {
		t.Errorf("Relocate of .eh_frame = %v, %v, want no errors", bad, err)
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("%v for %d tables", took, n)
	}
}

// TestNotRelocated: a relocation that cannot be applied is an error of its own; all others are applied.
func TestNotRelocated(t *testing.T) {
	x := object{machine: elf.EM_X86_64, is64: true, order: binary.LittleEndian, rela: true, field: make([]byte, 32)}
	for _, r := range []struct {
		off      uint64
		typ, sym uint32
		addend   int64
	}{
		{28, 9, symText, 0}, {16, 10, symLost, 0}, {12, 10, 77, 0}, {30, 10, symText, 0}, {1 << 60, 10, symText, 0}, {8, 10, symText, -0x2000}, {24, 10, symText, 0},
		{4, 2, symText, 1 << 40}, {0, 10, symText, 1},
	} {
		x.relocs = append(x.relocs, x.reloc(r.off, r.typ, r.sym, r.addend)...)
	}
	x.relocs = append(x.relocs, 1, 2, 3) // no whole entry
	img := x.open(t)
	s := img.Section(".eh_frame")
	b, bad, err := img.Relocate(s)
	var text []string
	for i := range bad {
		text = append(text, bad[i].Error())
		if !errors.Is(&bad[i], ErrMalformed) && !errors.Is(&bad[i], ErrUnsupported) {
			t.Errorf("%v has no cause", &bad[i])
		}
	}
	want := `.eh_frame+0x4: relocation R_X86_64_PC32: 0xffffffffbb does not fit: malformed
.eh_frame+0x8: relocation R_X86_64_32: 0xfffffffffffff000 does not fit: malformed
.eh_frame+0xc: relocation R_X86_64_32: symbol 77 is in no section: malformed
.eh_frame+0x10: relocation R_X86_64_32: symbol 5 is in no section: malformed
.eh_frame+0x1c: relocation R_X86_64_GOTPCREL: not known here: unsupported
.eh_frame+0x1e: relocation R_X86_64_32: .eh_frame has 0x20 bytes: malformed
.eh_frame+0x1000000000000000: relocation R_X86_64_32: .eh_frame has 0x20 bytes: malformed`
	if got := strings.Join(text, "\n"); got != want || err != nil {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	if b[0] != 1 || b[1] != 0x10 || b[25] != 0x10 || b[29] != 0 {
		t.Errorf("%x", b)
	}
	if _, err := img.Data(s); err == nil || !strings.Contains(err.Error(), "x.o: .eh_frame+0x4: ") {
		t.Errorf("Data: %v", err)
	}
	sparc := object{machine: elf.EM_SPARC, order: binary.BigEndian, rela: true, field: make([]byte, 32), relocs: make([]byte, 12)}
	img = sparc.open(t)
	if _, err := img.Data(img.Section(".eh_frame")); !errors.Is(err, ErrUnsupported) {
		t.Errorf("SPARC: %v", err)
	}
}

// TestPlace: sections have addresses of their own, with room between them, and addresses have names.
func TestPlace(t *testing.T) {
	x := object{machine: elf.EM_X86_64, is64: true, order: binary.LittleEndian, rela: true, field: make([]byte, 32)}
	img := x.open(t)
	if img.Linked() {
		t.Errorf("Linked is true of an object, whose type is %v; want false", img.typ)
	}
	undef := uint64(img.layout.undef)
	for _, c := range []struct {
		v       uint64
		section string
		off     uint64
	}{
		{textAt, ".text", 0}, {textAt + 0x3f, ".text", 0x3f}, {textAt + 0x40, ".text", 0x40}, {frameAt, ".eh_frame", 0}, {0, "", 0}, {0xfff, "", 0xfff},
		{undef + undefRoom*symOther, "other", 0}, {undef + undefRoom*symOther + 3, "other", 3}, {undef + undefRoom*symFunc, "", undef + undefRoom*symFunc}, {1 << 40, "", 1 << 40}, {1<<64 - 1, "", 1<<64 - 1},
	} {
		if section, off := img.Place(arch.Vaddr(c.v)); section != c.section || off != c.off {
			t.Errorf("Place(%#x) = %q, %#x, want %q, %#x", c.v, section, off, c.section, c.off)
		}
	}
	starts := img.Starts()
	if len(starts) != 4 || starts[0] != (Start{textAt, ".text"}) || starts[1] != (Start{frameAt, ".eh_frame"}) || starts[3].Name != "*UND*" {
		t.Errorf("%v", starts)
	}
	n := 0
	img.Symbols(func(s Symbol) bool {
		if s.Name == "func" {
			n++
			if s.Value != textAt+0x10 {
				t.Errorf("%+v", s)
			}
		}
		return true
	})
	if tab, ok := img.SymbolTable(false); !ok || tab.At(symFunc).Value != textAt+0x10 || n != 1 {
		t.Errorf("%v, %d", tab.At(symFunc), n)
	}
	if off, ok := img.VaddrToOff(textAt + 1); !ok || off != img.Section(".text").Off+1 {
		t.Errorf("%#x, %v", off, ok)
	}
	self, err := VDSO()
	if err == nil {
		if section, off := self.Place(0x123); section != "" || off != 0x123 || !self.Linked() || self.Starts() != nil {
			t.Errorf("linked: %q, %#x", section, off)
		}
	}
}

// TestOverlappingObjects: headers that point again and again at the same bytes do not multiply the work.
func TestOverlappingObjects(t *testing.T) {
	const n = 20_000
	o := binary.LittleEndian
	e := synth{is64: true, order: o, typ: elf.ET_REL, machine: elf.EM_X86_64, pad: n}
	e.secs = []synthSection{{name: ".eh_frame", data: make([]byte, 4<<20)}, {name: ".symtab", typ: elf.SHT_SYMTAB, link: 3, data: make([]byte, 48)}, {name: ".strtab", typ: elf.SHT_STRTAB, data: []byte{0}}}
	b := e.bytes()
	shoff := o.Uint64(b[40:])
	for i := range uint64(n) {
		h := b[shoff+64*(i+4):]
		copy(h, b[shoff+64:][:4]) // the name
		o.PutUint32(h[4:], uint32(elf.SHT_PROGBITS))
		o.PutUint64(h[8:], uint64(elf.SHF_ALLOC))
		o.PutUint64(h[24:], e.offs[1])
		o.PutUint64(h[32:], 4<<20)
		if i >= n/2 { // relocations of the one n/2 before
			o.PutUint32(h[4:], uint32(elf.SHT_RELA))
			o.PutUint32(h[40:], 2)
			o.PutUint32(h[44:], uint32(4+i-n/2))
		}
	}
	img, err := New("x.o", b)
	if err != nil {
		t.Fatal(err)
	}
	size, errs := 0, 0
	for i := range img.Sections() {
		s := &img.Sections()[i]
		if s.Name != ".eh_frame" || s.elf.typ != elf.SHT_PROGBITS {
			continue
		}
		if b, _, err := img.Relocate(s); err != nil {
			errs++
		} else {
			size += len(b)
		}
	}
	if errs < n/2-10 || size > 4*len(b) {
		t.Errorf("%d errors, %d bytes of a file of %d", errs, size, len(b))
	}
}

// written counts bytes.
type written int

func (n *written) Write(b []byte) (int, error) { *n += written(len(b)); return len(b), nil }

// TestOverlapping: of a linked file, too, sections of unwind information that share their bytes are read once, and its name costs no more
// than its length.
func TestOverlapping(t *testing.T) {
	const n, size = 5000, 1 << 20
	e := synth{is64: true, order: binary.LittleEndian, typ: elf.ET_DYN, machine: elf.EM_X86_64, pad: n, secs: []synthSection{{name: ".eh_frame", typ: elf.SHT_PROGBITS, data: make([]byte, size)}}}
	b := e.bytes()
	shoff := binary.LittleEndian.Uint64(b[40:])
	for i := range uint64(n) {
		copy(b[shoff+64*(i+2):][:64], b[shoff+64:][:64])
	}
	img, err := New("x", b)
	if err != nil {
		t.Fatal(err)
	}
	sections, given := 0, 0
	for range 2 { // what was given out is given out again
		sections, given = 0, 0
		for i := range img.Sections() {
			s := &img.Sections()[i]
			if s.Name != ".eh_frame" {
				continue
			}
			sections++
			if b, err := img.Data(s); err == nil {
				given += len(b)
			} else if !strings.Contains(err.Error(), "sections of unwind information overlap") {
				t.Fatal(err)
			}
		}
	}
	if sections < n || given != size {
		t.Errorf("%d bytes of %d sections, want %d", given, sections, size)
	}
	var w written
	if img.sumTo(&w); int(w) > 4*len(b) || int(w) < size {
		t.Errorf("the name is made of %d bytes of a file of %d", w, len(b))
	}
}

// TestManyRefused: relocations that cannot be applied are listed up to a bound, and behind that, sections are refused.
func TestManyRefused(t *testing.T) {
	x := object{machine: elf.EM_X86_64, is64: true, order: binary.LittleEndian, rela: true, field: make([]byte, 32)}
	for _, n := range []int{maxRefused, maxRefused + 1, 4 * maxRefused} {
		x.relocs = bytes.Repeat(x.reloc(8, 9, symText, 0), n)
		img := x.open(t)
		_, bad, err := img.Relocate(img.Section(".eh_frame"))
		if n == maxRefused && (err != nil || len(bad) != n) {
			t.Errorf("%d relocations: %d listed, %v", n, len(bad), err)
		}
		if n > maxRefused && (len(bad) > 0 || !errors.Is(err, ErrUnsupported) ||
			!strings.Contains(err.Error(), `.eh_frame: more than 65536 relocations cannot be applied, the last one at 0x8: not known here: unsupported`)) {
			t.Errorf("%d relocations: %d listed, %v", n, len(bad), err)
		}
	}
}

// FuzzRelocate applies arbitrary relocations to arbitrary bytes.
func FuzzRelocate(f *testing.F) {
	machines := []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64, elf.EM_386, elf.EM_ARM, elf.EM_RISCV, elf.EM_LOONGARCH, elf.EM_S390, elf.EM_MIPS, elf.EM_PPC64, elf.EM_SPARC}
	for i := range machines {
		x := object{machine: machines[i], is64: true, order: binary.LittleEndian, rela: true}
		for typ := range uint32(110) {
			x.relocs = append(x.relocs, x.reloc(uint64(typ)/2, typ, typ%7, int64(typ)<<(typ%60))...)
		}
		f.Add(byte(i), byte(1), bytes.Repeat([]byte{0x81}, 64), x.relocs)
		f.Add(byte(i), byte(6), bytes.Repeat([]byte{0x01}, 64), x.relocs)
	}
	f.Fuzz(func(t *testing.T, machine, flags byte, field, relocs []byte) {
		x := object{machine: machines[int(machine)%len(machines)], is64: flags&1 != 0, order: binary.LittleEndian, rela: flags&2 == 0, field: field, relocs: relocs}
		if flags&4 != 0 {
			x.order = binary.BigEndian
		}
		before := bytes.Clone(field)
		img := x.open(t)
		b, bad, err := img.Relocate(img.Section(".eh_frame"))
		if err == nil && len(b) != len(field) || !bytes.Equal(field, before) {
			t.Fatalf("%d bytes of %d", len(b), len(field))
		}
		if len(bad) > len(relocs)/8 {
			t.Fatalf("%d errors in %d bytes", len(bad), len(relocs))
		}
		for i := range bad {
			if bad[i].Error() == "" || i > 0 && bad[i].Off < bad[i-1].Off {
				t.Fatalf("%v", &bad[i])
			}
		}
		for _, s := range img.Starts() {
			if name, off := img.Place(s.Addr); s.Name != "*UND*" && (name != s.Name || off != 0) {
				t.Fatalf("%s begins at %s+%#x", s.Name, name, off)
			}
		}
		img.Tail(frameAt + 1)
	})
}
