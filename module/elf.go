package module

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/elfnote"
)

var elfFormat = format{
	name:        "ELF",
	has:         func(b []byte) bool { return string(b[:4]) == elf.ELFMAG },
	kind:        kindELF,
	read:        (*Image).readELF,
	buildID:     func(img *Image) []byte { return img.note(elfnote.BuildID) },
	headers:     (*Image).sumELF,
	hashed:      []string{".text", ".eh_frame_hdr", ".eh_frame", ".debug_frame", ".sframe", ".gopclntab", ".dynsym", ".dynstr", ".symtab", ".strtab"},
	symbolTable: (*Image).elfSymbolTable,
	symbols:     (*Image).elfSymbols,
}

func kindELF(f io.ReaderAt) FileKind {
	var b [elf.EI_NIDENT + 2]byte
	if _, err := f.ReadAt(b[:], 0); err != nil {
		return UnknownFile
	}
	typ := elf.Type(b[16]) | elf.Type(b[17])<<8
	if elf.Data(b[elf.EI_DATA]) == elf.ELFDATA2MSB {
		typ = elf.Type(b[17]) | elf.Type(b[16])<<8
	}
	switch typ {
	case elf.ET_EXEC, elf.ET_DYN:
		return LinkedFile
	case elf.ET_REL:
		return ObjectFile
	}
	return UnknownFile
}

// An elfType is what an ELF header says its file is for.
type elfType = elf.Type

// A progHeader is what a program header says besides a Segment.
type progHeader struct {
	typ   elf.ProgType
	flags elf.ProgFlag
	align uint64
}

// A sectionHeader is what a section header says besides a Section.
type sectionHeader struct {
	typ        elf.SectionType
	flags      elf.SectionFlag
	link, info uint32
	align      uint64
}

var kinds = map[elf.ProgType]Kind{elf.PT_LOAD: Loaded, elf.PT_DYNAMIC: Dynamic, elf.PT_INTERP: Interpreter, elf.PT_PHDR: Headers, elf.PT_GNU_EH_FRAME: UnwindIndex, ptGNUSFrame: SFrame}

const ptGNUSFrame = elf.ProgType(0x6474e554)

// readELF reads the headers of an ELF file.
func (img *Image) readELF() error {
	if len(img.b) < elf.EI_NIDENT {
		return img.errorf(0, ErrTruncated, "header")
	}
	switch elf.Class(img.b[elf.EI_CLASS]) {
	case elf.ELFCLASS64:
		img.is64 = true
	case elf.ELFCLASS32:
	default:
		return img.errorf(uint64(elf.EI_CLASS), ErrUnsupported, "class %d", img.b[elf.EI_CLASS])
	}
	switch elf.Data(img.b[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		img.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		img.order = binary.BigEndian
	default:
		return img.errorf(uint64(elf.EI_DATA), ErrUnsupported, "byte order %d", img.b[elf.EI_DATA])
	}
	return img.headers()
}

// fields reads a fixed record: word fields have 4 or 8 bytes by class.
type fields struct {
	b  []byte
	o  binary.ByteOrder
	is bool // 64 bits
}

func (f *fields) u16() uint16 { v := f.o.Uint16(f.b); f.b = f.b[2:]; return v }
func (f *fields) u32() uint32 { v := f.o.Uint32(f.b); f.b = f.b[4:]; return v }
func (f *fields) word() uint64 {
	if !f.is {
		return uint64(f.u32())
	}
	v := f.o.Uint64(f.b)
	f.b = f.b[8:]
	return v
}

func (img *Image) fields(b []byte) *fields { return &fields{b, img.order, img.is64} }

// headers reads the ELF header, the program headers and the section headers.
func (img *Image) headers() error {
	ehsize, phsize, shsize := uint64(52), uint64(32), uint64(40)
	if img.is64 {
		ehsize, phsize, shsize = 64, 56, 64
	}
	h, ok := img.bytes(0, ehsize)
	if !ok {
		return img.errorf(0, ErrTruncated, "header")
	}
	f := img.fields(h[16:])
	img.typ = elf.Type(f.u16())
	img.linked = img.typ != elf.ET_REL
	img.machine = arch.ByELF(f.u16())
	f.u32() // version
	img.entry = arch.Vaddr(f.word())
	phoff, shoff := f.word(), f.word()
	if flags := f.u32(); img.machine.ELF == arch.EM_MIPS {
		img.machine = arch.MIPSMachine(arch.MIPSConventionOf(img.is64, flags), img.order == binary.BigEndian)
	}
	f.u16() // size of this header
	phentsize, phnum := uint64(f.u16()), uint64(f.u16())
	shentsize, shnum := uint64(f.u16()), uint64(f.u16())
	strndx := uint64(f.u16())

	// Section headers may be missing or damaged: what the program headers say stays good, so their
	// trouble is told only where they are needed. Extended numbers are in the first section header.
	if shoff != 0 {
		if first, ok := img.bytes(shoff, shsize); !ok {
			img.secsErr = img.errorf(shoff, ErrTruncated, "section headers")
		} else if shentsize < shsize {
			img.secsErr = img.errorf(shoff, ErrMalformed, "section header size %d", shentsize)
		} else {
			s := img.section(first, 0)
			if shnum == 0 {
				shnum = s.Size
			}
			if strndx == uint64(elf.SHN_XINDEX) {
				strndx = uint64(s.elf.link)
			}
			if phnum == 0xffff {
				phnum = uint64(s.elf.info)
			}
			img.sections(shoff, shentsize, shnum, strndx)
		}
	}
	if img.typ == elf.ET_REL {
		if img.inMemory {
			img.placeInMemory()
		} else {
			img.place()
		}
		return nil
	}
	if phoff != 0 && phnum > 0 {
		if phentsize < phsize {
			return img.errorf(phoff, ErrMalformed, "program header size %d", phentsize)
		}
		all, ok := img.bytes(phoff, min(phnum, math.MaxUint32)*phentsize)
		if !ok {
			return img.errorf(phoff, ErrTruncated, "%d program headers", phnum)
		}
		for ; len(all) > 0; all = all[phentsize:] {
			s := img.segment(all)
			img.segs = append(img.segs, s)
			if s.Kind == Loaded && s.Size > 0 {
				img.load = append(img.load, s)
			}
		}
	}
	return nil
}

func (img *Image) segment(b []byte) Segment {
	f := img.fields(b)
	var s Segment
	s.elf.typ = elf.ProgType(f.u32())
	if img.is64 {
		s.elf.flags = elf.ProgFlag(f.u32())
	}
	s.Off, s.Vaddr = f.word(), arch.Vaddr(f.word())
	f.word() // physical address
	s.Size, s.MemSize = f.word(), f.word()
	if !img.is64 {
		s.elf.flags = elf.ProgFlag(f.u32())
	}
	s.elf.align = f.word()
	s.Kind, s.Perm = kinds[s.elf.typ], Perm(s.elf.flags&(elf.PF_X|elf.PF_W|elf.PF_R))
	const ptARMEXIDX = 0x70000001 // other machines use the number otherwise
	if s.elf.typ == ptARMEXIDX && img.machine.ELF == arch.EM_ARM {
		s.Kind = ArmIndex
	}
	return s
}

func (img *Image) section(b []byte, index int) Section {
	f := img.fields(b)
	f.u32() // the name comes later
	s := Section{index: index}
	s.elf.typ, s.elf.flags = elf.SectionType(f.u32()), elf.SectionFlag(f.word())
	s.Addr, s.Off, s.Size = arch.Vaddr(f.word()), f.word(), f.word()
	s.elf.link, s.elf.info = f.u32(), f.u32()
	s.elf.align = f.word()
	s.Entsize = f.word()
	s.Empty, s.Compressed = s.elf.typ == elf.SHT_NOBITS, s.elf.flags&elf.SHF_COMPRESSED != 0
	if s.elf.flags&elf.SHF_ALLOC != 0 {
		s.Perm = Read
	}
	if s.elf.flags&elf.SHF_WRITE != 0 {
		s.Perm |= Write
	}
	if s.elf.flags&elf.SHF_EXECINSTR != 0 {
		s.Perm |= Exec
	}
	return s
}

// sections reads the section headers that are there. Names are copied, so that many long ones in one place
// could fill the memory: together they get as many bytes as the file has.
func (img *Image) sections(off, entsize, num, strndx uint64) {
	if room := min(uint64(len(img.b))-off, img.reach) / entsize; num > room {
		img.secsErr = img.errorf(off, ErrTruncated, "%d section headers", num)
		num = room
	}
	all, _ := img.bytes(off, num*entsize)
	img.secs = make([]Section, num)
	for i := range img.secs {
		img.secs[i] = img.section(all[uint64(i)*entsize:], i)
	}
	if strndx >= num {
		return
	}
	names, ok := img.bytes(img.secs[strndx].Off, img.secs[strndx].Size)
	if !ok {
		img.secsErr = cmp.Or(img.secsErr, img.errorf(img.secs[strndx].Off, ErrTruncated, "section names"))
		return
	}
	room := min(uint64(len(img.b)), img.reach)
	for i := range img.secs {
		at := uint64(img.order.Uint32(all[uint64(i)*entsize:]))
		if at >= uint64(len(names)) {
			continue
		}
		in := names[at:][:min(room, uint64(len(names))-at)]
		if img.secs[i].Name = cstring(in); img.secs[i].Name != "" {
			in = in[:len(img.secs[i].Name)]
		}
		room -= uint64(len(in))
	}
}

// cstring returns the string up to the first NUL; "" where there is none.
func cstring(b []byte) string {
	return string(b[:max(bytes.IndexByte(b, 0), 0)])
}

// maxNotes bounds what is read of notes, in bytes: those of programs have some hundreds, and those of cores, which come first, have no build ID.
const maxNotes = 4 << 20

// GoBuildID returns the ID that Go's linker gave the program; nil if another linker made it, or if the linker was told to write no ID.
func (img *Image) GoBuildID() []byte { return img.note(elfnote.GoBuildID) }

// note looks at the notes of the segments, and then at those of the sections: a separate debug file's segments lie.
func (img *Image) note(kind elfnote.Kind) []byte {
	left := uint64(maxNotes)
	look := func(off, size, align uint64) []byte {
		if size > left {
			return nil
		}
		left -= size
		b, _ := img.bytes(off, size)
		return bytes.Clone(kind.Find(b, img.order, align))
	}
	for i := range img.segs {
		if s := &img.segs[i]; s.elf.typ == elf.PT_NOTE {
			if id := look(s.Off, s.Size, s.elf.align); id != nil {
				return id
			}
		}
	}
	for i := range img.secs {
		if s := &img.secs[i]; s.elf.typ == elf.SHT_NOTE {
			if id := look(s.Off, s.Size, 4); id != nil {
				return id
			}
		}
	}
	return nil
}

// sumELF writes the headers.
func (img *Image) sumELF(h io.Writer) {
	// The text of the headers is hashed as fmt prints these: tables in users' caches are called by the hash.
	type segment struct {
		Type                 elf.ProgType
		Flags                elf.ProgFlag
		Off                  uint64
		Vaddr                arch.Vaddr
		Filesz, Memsz, Align uint64
	}
	type section struct {
		Name       string
		Type       elf.SectionType
		Flags      elf.SectionFlag
		Addr       arch.Vaddr
		Off, Size  uint64
		Link, Info uint32
		Entsize    uint64
		index      int
	}
	segs := make([]segment, len(img.segs))
	for i, s := range img.segs {
		segs[i] = segment{s.elf.typ, s.elf.flags, s.Off, s.Vaddr, s.Size, s.MemSize, s.elf.align}
	}
	fmt.Fprint(h, len(img.b), img.typ, img.entry, img.machine.ELF, segs)
	for _, s := range img.secs {
		fmt.Fprint(h, section{s.Name, s.elf.typ, s.elf.flags, s.Addr, s.Off, s.Size, s.elf.link, s.elf.info, s.Entsize, s.index})
	}
}
