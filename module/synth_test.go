package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"slices"

	"github.com/unspool/unspool/arch"
)

// A synth is an ELF file to be made.
type synth struct {
	is64    bool
	order   binary.AppendByteOrder
	typ     elf.Type
	machine elf.Machine
	segs    []phdr // Off and Filesz are those of the file that comes out
	secs    []synthSection
	pad     int // null sections at the end

	offs []uint64 // set by bytes: where each section's contents are
}

// A phdr is a program header that is made up.
type phdr struct {
	Type          elf.ProgType
	Flags         elf.ProgFlag
	Off           uint64
	Vaddr         arch.Vaddr
	Filesz, Memsz uint64
	Align         uint64
}

type synthSection struct {
	name    string
	typ     elf.SectionType
	flags   elf.SectionFlag
	addr    uint64
	link    uint32
	info    uint32
	entsize uint64
	data    []byte
}

// bytes lays out the header, the program headers, the contents and the section headers. The null section and
// the section names are added; counts that do not fit the header go to the null section.
func (e *synth) bytes() []byte {
	o := e.order
	word := func(b []byte, v uint64) []byte {
		if e.is64 {
			return o.AppendUint64(b, v)
		}
		return o.AppendUint32(b, uint32(v))
	}
	eh, ph, sh, class := 52, 32, 40, elf.ELFCLASS32
	if e.is64 {
		eh, ph, sh, class = 64, 56, 64, elf.ELFCLASS64
	}
	secs := append([]synthSection{{}}, e.secs...)
	secs = append(secs, make([]synthSection, e.pad)...)
	strndx := len(secs)
	secs = append(secs, synthSection{name: ".shstrtab", typ: elf.SHT_STRTAB})
	strs := []byte{0}
	names := make([]uint32, len(secs))
	for i, s := range secs {
		if s.name != "" {
			names[i] = uint32(len(strs))
			strs = append(append(strs, s.name...), 0)
		}
	}
	secs[strndx].data = strs

	body := make([]byte, eh+ph*len(e.segs))
	e.offs = make([]uint64, len(secs))
	for i, s := range secs {
		for len(body)%16 != 0 {
			body = append(body, 0)
		}
		e.offs[i] = uint64(len(body))
		body = append(body, s.data...)
	}
	shoff := len(body)

	null := &secs[0]
	size0, num, str := uint64(0), len(secs), strndx
	if num >= 0xff00 {
		size0, num = uint64(num), 0
	}
	if str >= 0xff00 {
		null.link, str = uint32(str), 0xffff
	}
	data := elf.ELFDATA2LSB
	if o.String() == "BigEndian" {
		data = elf.ELFDATA2MSB
	}
	h := append([]byte(elf.ELFMAG), byte(class), byte(data), 1, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	h = o.AppendUint16(o.AppendUint16(h, uint16(e.typ)), uint16(e.machine))
	h = word(o.AppendUint32(h, 1), 0x1234)
	h = word(h, uint64(eh))
	h = word(h, uint64(shoff))
	h = o.AppendUint32(h, 0)
	for _, v := range []int{eh, ph, len(e.segs), sh, num, str} {
		h = o.AppendUint16(h, uint16(v))
	}
	for _, s := range e.segs {
		h = o.AppendUint32(h, uint32(s.Type))
		if e.is64 {
			h = o.AppendUint32(h, uint32(s.Flags))
		}
		for _, v := range []uint64{s.Off, uint64(s.Vaddr), uint64(s.Vaddr), s.Filesz, s.Memsz} {
			h = word(h, v)
		}
		if !e.is64 {
			h = o.AppendUint32(h, uint32(s.Flags))
		}
		h = word(h, s.Align)
	}
	copy(body, h)
	for i, s := range secs {
		b := o.AppendUint32(nil, names[i])
		b = word(o.AppendUint32(b, uint32(s.typ)), uint64(s.flags))
		b = word(word(b, s.addr), e.offs[i])
		size := uint64(len(s.data))
		if i == 0 {
			size = size0
		}
		b = o.AppendUint32(o.AppendUint32(word(b, size), s.link), s.info)
		body = append(body, word(word(b, 1), s.entsize)...)
	}
	return body
}

// note returns a note in the given byte order, padded to 4 bytes.
func note(o binary.AppendByteOrder, name string, typ uint32, desc []byte) []byte {
	b := o.AppendUint32(nil, uint32(len(name)+1))
	b = o.AppendUint32(b, uint32(len(desc)))
	b = append(append(o.AppendUint32(b, typ), name...), 0)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	b = append(b, desc...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	return b
}

// symtab returns a symbol table and its string table.
func symtab(o binary.AppendByteOrder, is64 bool, syms []Symbol) (tab, str []byte) {
	size := 16
	if is64 {
		size = 24
	}
	tab, str = make([]byte, size), []byte{0}
	for _, s := range syms {
		tab = o.AppendUint32(tab, uint32(len(str)))
		str = append(append(str, s.Name...), 0)
		info := byte(s.Bind)<<4 | byte(s.Kind)
		if is64 {
			tab = o.AppendUint16(append(tab, info, 0), uint16(s.Section))
			tab = o.AppendUint64(o.AppendUint64(tab, uint64(s.Value)), s.Size)
		} else {
			tab = o.AppendUint32(o.AppendUint32(tab, uint32(s.Value)), uint32(s.Size))
			tab = o.AppendUint16(append(tab, info, 0), uint16(s.Section))
		}
	}
	return tab, str
}

// small is a file with a bit of everything: two loaded segments whose addresses are not their offsets, a build
// ID, symbols, an interpreter.
func small(is64 bool, o binary.AppendByteOrder) []byte {
	tab, str := symtab(o, is64, smallSyms)
	e := synth{is64: is64, order: o, typ: elf.ET_DYN, machine: elf.EM_X86_64}
	e.segs = make([]phdr, 4)
	e.secs = []synthSection{
		{name: ".interp", typ: elf.SHT_PROGBITS, data: []byte("/lib/ld.so\x00")},
		{name: ".note.gnu.build-id", typ: elf.SHT_NOTE, flags: elf.SHF_ALLOC,
			data: slices.Concat(note(o, "Odd", 7, []byte("abc")), note(o, "GNU", 3, smallID))},
		{name: ".text", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR, addr: 0x401000, data: bytes.Repeat([]byte{0xc3}, 64)},
		{name: ".data", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC, addr: 0x700000, data: []byte("data of the second segment")},
		{name: ".bss", typ: elf.SHT_NOBITS, addr: 0x700020},
		{name: ".symtab", typ: elf.SHT_SYMTAB, link: 7, data: tab},
		{name: ".strtab", typ: elf.SHT_STRTAB, data: str},
	}
	e.bytes() // for the offsets
	at := func(i int) (uint64, uint64) { return e.offs[i], uint64(len(e.secs[i-1].data)) }
	e.segs[0] = phdr{Type: elf.PT_INTERP}
	e.segs[0].Off, e.segs[0].Filesz = at(1)
	e.segs[1] = phdr{Type: elf.PT_NOTE, Align: 4}
	e.segs[1].Off, e.segs[1].Filesz = at(2)
	e.segs[2] = phdr{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_X, Vaddr: 0x401000, Memsz: 64, Align: 0x1000}
	e.segs[2].Off, e.segs[2].Filesz = at(3)
	e.segs[3] = phdr{Type: elf.PT_LOAD, Flags: elf.PF_R | elf.PF_W, Vaddr: 0x700000, Memsz: 0x1000, Align: 0x1000}
	e.segs[3].Off, e.segs[3].Filesz = at(4)
	return e.bytes()
}

var (
	smallID   = []byte{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4}
	smallSyms = []Symbol{
		{Name: "f", Value: 0x401000, Size: 16, Kind: Func, Bind: Global, Section: 3},
		{Name: "g", Value: 0x401010, Size: 48, Kind: Func, Bind: Local, Section: 3},
	}
)
