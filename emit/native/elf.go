package native

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"hash/crc32"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

var le = binary.LittleEndian

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// The notes of a file, both owned by "unspool".
const (
	noteOwner = "unspool\x00"
	noteInfo  = 1 // an info
	noteID    = 2 // the module's ID, in text
)

// An info says what a file is. It lies in a note. Offsets are in bytes from the start of the file, and addresses too
// when it is mapped in one piece.
type info struct {
	Version  uint16
	Layout   uint8
	Deref    uint8
	Machine  uint32    // e_machine of the module
	Size     uint32    // of the file
	Checksum uint32    // CRC-32C of all bytes but these four
	Entries  [3]uint32 // find, apply, step; 0: there is none
	Rules    uint32    // a u32 each: offset of the code; bit 31: a signal frame's
	NumRules uint32
	TextLo   uint32
	TextHi   uint32
	_        uint32
	Lo, Hi   uint64 // addresses of the module that are covered
}

const (
	infoSize     = 64
	infoChecksum = 12

	headSize  = 64
	progSize  = 56
	sectSize  = 64
	symSize   = 24
	hdrPhoff  = 32 // in the ELF header
	hdrPhnum  = 56
	numProgs  = 6
	numDynTag = 7
)

// checksum is that of a file whose checksum lies at an offset.
func checksum(b []byte, at int) uint32 {
	return crc32.Update(crc32.Update(crc32.Checksum(b[:at], castagnoli), castagnoli, make([]byte, 4)), castagnoli, b[at+4:])
}

// sectionNames are the sections of a file, in their order. The null section comes before them. What tools find through
// segments has no section of its own: the hash table and .eh_frame_hdr are in .rodata.
var sectionNames = []string{".note.unspool", ".dynstr", ".dynsym", ".rodata", ".text", ".eh_frame", ".dynamic"}

const (
	dynstrIndex = 2
	textIndex   = 5
)

// A section is a piece of the file on its way.
type section struct {
	name    string
	typ     elf.SectionType
	flags   elf.SectionFlag
	link    uint32
	info    uint32
	entsize uint64
	off     int
	size    int
	align   int
}

// An object is a file that is being joined. Everything is loaded where it lies in the file, as one segment that can be
// read and executed; .dynamic is mapped once more behind it, because some loaders write to it.
type object struct {
	b     []byte
	sects []section
}

// add appends a section.
func (o *object) add(s section, align int, data []byte) *section {
	o.b = append(o.b, make([]byte, -len(o.b)&(align-1))...)
	s.off, s.size, s.align = len(o.b), len(data), align
	o.b = append(o.b, data...)
	o.sects = append(o.sects, s)
	return &o.sects[len(o.sects)-1]
}

// file writes the code and joins the file.
func (g *generator) file(t *rows.Table) ([]byte, error) {
	o := &object{b: make([]byte, headSize+numProgs*progSize), sects: make([]section, 1, 16)}
	notes := o.add(section{name: ".note.unspool", typ: elf.SHT_NOTE, flags: elf.SHF_ALLOC}, 4, append(note(noteInfo, make([]byte, infoSize)), note(noteID, []byte(g.o.ID))...))
	infoAt := notes.off + 12 + len(noteOwner)

	// One string table holds the names of symbols and of sections.
	strs := []byte{0}
	name := func(s string) uint32 { at := len(strs); strs = append(append(strs, s...), 0); return uint32(at) }
	nameOf := map[string]uint32{"": 0}
	for _, s := range sectionNames {
		nameOf[s] = name(s)
	}
	var names []uint32
	nsyms := 1
	for i, n := range entryNames {
		if g.o.has(i) {
			names = append(names, name(n))
			nsyms++
		}
	}
	dynstr := o.add(section{name: ".dynstr", typ: elf.SHT_STRTAB, flags: elf.SHF_ALLOC}, 1, strs)
	dynsym := o.add(section{name: ".dynsym", typ: elf.SHT_DYNSYM, flags: elf.SHF_ALLOC, link: dynstrIndex, info: 1, entsize: symSize}, 8, make([]byte, nsyms*symSize))

	// The index and the directory of rules, whose size is known before the code.
	x := g.t.Index()
	ro := o.add(section{name: ".rodata", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC}, 8, nil)
	hash := len(o.b)
	o.b = append(o.b, hashTable(nsyms)...)
	hdr := len(o.b)
	o.b = append(o.b, make([]byte, hdrSize)...)
	if g.o.Layout == Page {
		if x.NumSpans < 2 {
			x.Spans = nil
		}
		for i, part := range [][]byte{x.Spans, x.Regions, x.Granules, x.Rows, x.EscapeDir, x.EscapeKeys, x.EscapeRules} {
			o.b = append(o.b, make([]byte, -len(o.b)&3)...)
			g.parts[i] = int32(len(o.b))
			o.b = append(o.b, part...)
		}
	}
	o.b = append(o.b, make([]byte, -len(o.b)&7)...)
	dir := len(o.b)
	g.parts[partRules] = int32(dir)
	nrules := g.t.NumRules()
	if g.o.Layout != Inline {
		o.b = append(o.b, make([]byte, 4*nrules)...)
	}
	ro.size = len(o.b) - ro.off

	o.b = append(o.b, make([]byte, -len(o.b)&15)...)
	g.start = int64(len(o.b))
	if err := g.code(); err != nil {
		return nil, err
	}
	code, at := g.m.assemble()
	if len(o.b)+len(code) > maxSize {
		return nil, ErrTooLarge
	}
	text := o.add(section{name: ".text", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC | elf.SHF_EXECINSTR}, 16, code)
	if g.o.Layout != Inline {
		copy(o.b[dir:], g.directory(at))
	}
	frame := o.add(section{name: ".eh_frame", typ: elf.SHT_PROGBITS, flags: elf.SHF_ALLOC}, 8, nil)
	fde := o.frame(g, at, len(code))
	frame.size = len(o.b) - frame.off
	o.frameHdr(hdr, frame.off, fde, int(g.start))

	// .dynamic is the last that is loaded, and again behind everything.
	dynamic := o.add(section{name: ".dynamic", typ: elf.SHT_DYNAMIC, flags: elf.SHF_ALLOC | elf.SHF_WRITE, link: dynstrIndex, entsize: 16}, 8, make([]byte, numDynTag*16))
	loaded, page := len(o.b), targets[t.Machine].page
	dynVaddr := uint64((loaded+page-1)&^(page-1) + dynamic.off&(page-1))
	for i, e := range [numDynTag][2]uint64{
		{uint64(elf.DT_HASH), uint64(hash)}, {uint64(elf.DT_STRTAB), uint64(dynstr.off)},
		{uint64(elf.DT_STRSZ), uint64(dynstr.size)}, {uint64(elf.DT_SYMTAB), uint64(dynsym.off)}, {uint64(elf.DT_SYMENT), symSize},
		{uint64(elf.DT_FLAGS), uint64(elf.DF_BIND_NOW)}, {uint64(elf.DT_NULL), 0},
	} {
		le.PutUint64(o.b[dynamic.off+16*i:], e[0])
		le.PutUint64(o.b[dynamic.off+16*i+8:], e[1])
	}

	in := info{Version: Version, Layout: uint8(g.o.Layout), Deref: uint8(g.o.Deref), Machine: uint32(t.Machine.ELF),
		Rules: uint32(dir), NumRules: uint32(nrules), TextLo: uint32(text.off), TextHi: uint32(text.off + text.size)}
	if n := len(t.Rows); n > 0 {
		in.Lo, in.Hi = uint64(t.Rows[0].Lo), uint64(t.Rows[n-1].Lo)
	}
	if g.o.Layout == Inline {
		in.Rules, in.NumRules = 0, 0
	}
	k := 0
	for i := range entryNames {
		if !g.o.has(i) {
			continue
		}
		in.Entries[i] = uint32(g.start) + at[g.entries[i]]
		s := o.b[dynsym.off+symSize*(k+1):]
		le.PutUint32(s, names[k])
		s[4] = byte(elf.STB_GLOBAL)<<4 | byte(elf.STT_FUNC)
		le.PutUint16(s[6:], textIndex)
		le.PutUint64(s[8:], uint64(in.Entries[i]))
		le.PutUint64(s[16:], uint64(at[g.ends[i]]-at[g.entries[i]]))
		k++
	}

	o.headers(t.Machine, nameOf, dynamic, dynVaddr, loaded, notes, hdr)
	in.Size = uint32(len(o.b))
	var buf bytes.Buffer
	binary.Write(&buf, le, &in)
	copy(o.b[infoAt:], buf.Bytes())
	le.PutUint32(o.b[infoAt+infoChecksum:], checksum(o.b, infoAt+infoChecksum))
	return o.b, nil
}

// note returns a note with the owner of this package.
func note(typ uint32, desc []byte) []byte {
	b := le.AppendUint32(nil, uint32(len(noteOwner)))
	b = le.AppendUint32(b, uint32(len(desc)))
	b = le.AppendUint32(b, typ)
	b = append(append(b, noteOwner...), desc...)
	return append(b, make([]byte, -len(desc)&3)...)
}

// hashTable returns a symbol hash table with one bucket (System V ABI, chapter 5): there are three symbols.
func hashTable(nsyms int) []byte {
	b := le.AppendUint32(nil, 1)
	b = le.AppendUint32(b, uint32(nsyms))
	b = le.AppendUint32(b, 1)
	for i := range nsyms {
		next := i + 1
		if i == 0 || next == nsyms {
			next = 0
		}
		b = le.AppendUint32(b, uint32(next))
	}
	return b
}

// Pointer encodings and call frame instructions of the code's own unwind information (LSB 5.0, section 10.6; DWARF 5,
// section 6.4.2).
const (
	pcrelSdata4   = 0x1b
	datarelSdata4 = 0x3b
	udata4        = 0x03

	cfaAdvance4    = 0x04
	cfaDefCFA      = 0x0c
	cfaDefRegister = 0x0d
	cfaDefOffset   = 0x0e
	cfaSameValue   = 0x08
	cfaRegister    = 0x09
	cfaOffset      = 0x80
	cfaRestore     = 0xc0
)

// frame appends call frame information for the code, which is one function to it, and returns the offset of its FDE.
func (o *object) frame(g *generator, at []uint32, size int) (fde int) {
	entry := func(body []byte) {
		body = append(body, make([]byte, -(len(body)+4)&7)...)
		o.b = append(le.AppendUint32(o.b, uint32(len(body))), body...)
	}
	cie := len(o.b)
	entry(append([]byte{0, 0, 0, 0}, g.m.cie()...))
	fde = len(o.b)
	b := le.AppendUint32(nil, uint32(fde+4-cie))
	b = le.AppendUint32(b, uint32(g.start-int64(fde+8)))
	b = append(le.AppendUint32(b, uint32(size)), 0)
	was, from := frameNone, uint32(0)
	for i, r := range g.frames {
		lo := at[r.from]
		if i+1 < len(g.frames) && at[g.frames[i+1].from] == lo || int(lo) == size || r.kind == was {
			continue // it is empty, or goes on
		}
		switch d := lo - from; {
		case d == 0:
		case d < 64:
			b = append(b, 0x40|byte(d))
		default:
			b = le.AppendUint32(append(b, cfaAdvance4), d)
		}
		b = append(b, g.m.cfi(was, r.kind)...)
		was, from = r.kind, lo
	}
	entry(b)
	o.b = append(o.b, 0, 0, 0, 0)
	return fde
}

// hdrSize is the size of .eh_frame_hdr.
const hdrSize = 20

// frameHdr writes .eh_frame_hdr at an offset.
func (o *object) frameHdr(at, frame, fde, text int) {
	b := append(o.b[:at], 1, pcrelSdata4, udata4, datarelSdata4)
	for _, v := range [...]int{frame - (at + 4), 1, text - at, fde - at} {
		b = le.AppendUint32(b, uint32(v))
	}
}

// headers appends the section headers and fills in those of the file and of its segments.
func (o *object) headers(m *arch.Machine, nameOf map[string]uint32, dynamic *section, dynVaddr uint64, loaded int, notes *section, hdr int) {
	o.b = append(o.b, make([]byte, -len(o.b)&7)...)
	shoff := len(o.b)
	for i := range o.sects {
		s := &o.sects[i]
		addr := uint64(0)
		switch {
		case s.flags&elf.SHF_WRITE != 0:
			addr = dynVaddr
		case s.flags&elf.SHF_ALLOC != 0:
			addr = uint64(s.off)
		}
		b := le.AppendUint32(o.b, nameOf[s.name])
		b = le.AppendUint32(b, uint32(s.typ))
		for _, v := range [...]uint64{uint64(s.flags), addr, uint64(s.off), uint64(s.size), uint64(s.link) | uint64(s.info)<<32, uint64(s.align), s.entsize} {
			b = le.AppendUint64(b, v)
		}
		o.b = b
	}
	h := o.b[:0:headSize]
	h = append(h, 0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT))
	h = append(h, make([]byte, 9)...)
	h = le.AppendUint16(h, uint16(elf.ET_DYN))
	h = le.AppendUint16(h, m.ELF)
	h = le.AppendUint32(h, uint32(elf.EV_CURRENT))
	for _, v := range [...]uint64{0, headSize, uint64(shoff)} {
		h = le.AppendUint64(h, v)
	}
	h = le.AppendUint32(h, 0)
	for _, v := range [...]int{headSize, progSize, numProgs, sectSize, len(o.sects), dynstrIndex} {
		h = le.AppendUint16(h, uint16(v))
	}
	page := uint64(targets[m].page)
	p := o.b[headSize:headSize:cap(o.b)]
	for _, s := range [numProgs]struct {
		typ        elf.ProgType
		flags      elf.ProgFlag
		off, vaddr uint64
		size       int
		align      uint64
	}{
		{elf.PT_LOAD, elf.PF_R | elf.PF_X, 0, 0, loaded, page},
		{elf.PT_LOAD, elf.PF_R | elf.PF_W, uint64(dynamic.off), dynVaddr, dynamic.size, page},
		{elf.PT_DYNAMIC, elf.PF_R | elf.PF_W, uint64(dynamic.off), dynVaddr, dynamic.size, 8},
		{elf.PT_NOTE, elf.PF_R, uint64(notes.off), uint64(notes.off), notes.size, 4},
		{elf.PT_GNU_EH_FRAME, elf.PF_R, uint64(hdr), uint64(hdr), hdrSize, 4},
		{elf.PT_GNU_STACK, elf.PF_R | elf.PF_W, 0, 0, 0, 16},
	} {
		p = le.AppendUint32(le.AppendUint32(p, uint32(s.typ)), uint32(s.flags))
		for _, v := range [...]uint64{s.off, s.vaddr, s.vaddr, uint64(s.size), uint64(s.size), s.align} {
			p = le.AppendUint64(p, v)
		}
	}
}
