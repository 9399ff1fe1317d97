package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
)

// coffFormat is an object file for Windows's linkers (PE Format, "COFF File Header (Object and Image)"), of x86-64, AArch64, i386 or 32-bit Arm. Compilers write each inline
// function into sections of its own, which have equal names: ".text#2" is the second one that is called ".text".
var coffFormat = format{
	name: "COFF",
	has: func(b []byte) bool {
		m := binary.LittleEndian.Uint16(b)
		if isBigCOFF(b) {
			m = binary.LittleEndian.Uint16(b[6:])
		}
		switch m {
		case arch.IMAGE_FILE_MACHINE_AMD64, arch.IMAGE_FILE_MACHINE_ARM64, arch.IMAGE_FILE_MACHINE_I386, arch.IMAGE_FILE_MACHINE_ARMNT:
			return true
		}
		return false
	},
	kind:    kindCOFF,
	read:    (*Image).readCOFF,
	buildID: func(*Image) []byte { return nil },
	headers: func(img *Image, h io.Writer) { h.Write(img.b[:img.Reach()]) },
	symbolTable: func(img *Image, dynamic bool) (t SymbolTable, ok bool) {
		if !dynamic {
			t, _ = img.coffSymbols()
		}
		return t, t.Entries != nil && t.Len() > 1
	},
	symbols: func(img *Image, yield func(Symbol) bool) error {
		t, err := img.coffSymbols()
		t.each(false, yield)
		return err
	},
}

const (
	coffReloc = 10 // bytes of a relocation

	scnInfo        = 0x200 // for the linker
	scnRemove      = 0x800
	scnMoreRelocs  = 0x01000000 // the first relocation has their number
	scnDiscardable = 0x02000000 // debug information
	scnAlign       = 20         // from this bit on: 1 for 1 byte, 2 for 2, 3 for 4

	symAbsolute = 0xffffffff // of a section number

	coffBigHeader = 56 // of object files with many sections
	coffBigSymbol = 20

	// Types of relocations ("x64 Processors", "ARM64 Processors", "ARM Processors", "Intel 386 Processors").
	amd64Addr64, amd64Addr32, amd64Addr32NB, amd64Rel32, amd64Rel32_5 = 1, 2, 3, 4, 9
	arm64Addr32, arm64Addr32NB, arm64Addr64, arm64Rel32               = 1, 2, 14, 17
	armAddr32, armAddr32NB, armRel32                                  = 1, 2, 10
	i386Addr32, i386Addr32NB, i386Rel32                               = 6, 7, 20
)

// A coffHead is the header of an object file.
type coffHead struct {
	size     uint64 // of the header: section headers come next
	machine  uint16
	sections uint64
	symtab   uint64 // file offset of the symbols
	nsyms    uint64
	symbol   uint64 // bytes of a symbol
	image    bool   // there is an optional header, which object files have none of
}

// bigClass is the class of object files with a long header, in which numbers of sections have 32 bits: ANON_OBJECT_HEADER_BIGOBJ of winnt.h,
// which compilers write for /bigobj. It follows two signatures, a version of 2 or more, the machine and the time.
const bigClass = "\xc7\xa1\xba\xd1\xee\xba\xa9\x4b\xaf\x20\xfa\xf6\x6a\xa4\xdc\xb8"

// isBigCOFF says whether a file begins with the long header. Imports of libraries have the same signatures, and another version.
func isBigCOFF(b []byte) bool {
	return len(b) >= 28 && string(b[:4]) == "\x00\x00\xff\xff" && binary.LittleEndian.Uint16(b[4:]) >= 2 && string(b[12:28]) == bigClass
}

// readCOFFHead reads the header that b begins with; ok is false where b is too short for it.
func readCOFFHead(b []byte) (h coffHead, ok bool) {
	le := binary.LittleEndian
	switch {
	case isBigCOFF(b) && len(b) >= coffBigHeader:
		return coffHead{coffBigHeader, le.Uint16(b[6:]), uint64(le.Uint32(b[44:])), uint64(le.Uint32(b[48:])), uint64(le.Uint32(b[52:])), coffBigSymbol, false}, true
	case len(b) < coffHeader || isBigCOFF(b):
		return h, false
	}
	return coffHead{coffHeader, le.Uint16(b), uint64(le.Uint16(b[2:])), uint64(le.Uint32(b[8:])), uint64(le.Uint32(b[12:])), coffSymbol, le.Uint16(b[16:]) != 0}, true
}

// end returns where the section headers and the symbols end.
func (h *coffHead) end() uint64 {
	return max(h.size+peSection*h.sections, h.symtab+h.symbol*h.nsyms)
}

// A coffSym is a symbol.
type coffSym struct {
	name    []byte // 8 bytes: the name, or zeros and its offset among the names
	value   uint32
	section uint32 // from 1 on; 0: of another file; symAbsolute: none
	typ     uint16
	class   byte
	aux     int // how many entries behind it belong to it
}

// symbolAt reads the symbol that b begins with.
func (p *portable) symbolAt(b []byte) coffSym {
	le := binary.LittleEndian
	s := coffSym{name: b[:8], value: le.Uint32(b[8:])}
	if b = b[12:]; p.symbol == coffBigSymbol {
		s.section, b = le.Uint32(b), b[4:]
	} else if s.section, b = uint32(le.Uint16(b)), b[2:]; s.section >= 0xfff0 { // a negative number
		s.section |= 0xffff0000
	}
	s.typ, s.class, s.aux = le.Uint16(b), b[2], int(b[3])
	return s
}

// index returns the number of a symbol's section, as far as numbers of symbol tables go.
func (s *coffSym) index() SectionIndex {
	if s.section >= uint32(elf.SHN_LORESERVE) && s.section < 0xfffffff0 {
		return SectionIndex(elf.SHN_XINDEX) // in a section
	}
	return SectionIndex(s.section)
}

func kindCOFF(f io.ReaderAt) FileKind {
	var b [coffBigHeader]byte
	var last [1]byte
	n, _ := f.ReadAt(b[:], 0)
	h, ok := readCOFFHead(b[:n])
	if !ok || h.image {
		return UnknownFile
	}
	if _, err := f.ReadAt(last[:], int64(h.end()-1)); err != nil { // two bytes begin other files, too
		return UnknownFile
	}
	return ObjectFile
}

// readCOFF reads the headers of an object file, and lays out its sections.
func (img *Image) readCOFF() error {
	le := binary.LittleEndian
	h, ok := readCOFFHead(img.b)
	if !ok {
		return img.errorf(0, ErrTruncated, "header")
	}
	if h.image {
		return img.errorf(0, ErrFormat, "header")
	} else if end := h.end(); end > uint64(len(img.b)) {
		return img.errorf(0, ErrTruncated, "an object file of Windows with headers and symbols up to %#x", end)
	}
	img.order, img.machine = le, arch.ByCOFF(h.machine)
	img.is64 = img.machine.WordSize() == 8
	img.pe = &portable{symtab: h.symtab, nsyms: h.nsyms, symbol: h.symbol}
	all, ok := img.bytes(h.size, peSection*h.sections)
	if !ok {
		return img.errorf(h.size, ErrTruncated, "section headers")
	}
	names, room := img.coffStrings(), min(uint64(len(img.b)), img.reach)
	seen := map[string]int{}
	l := &layout{all: true, relocate: img.coffRelocator()}
	end := uint64(firstPlace - 1)
	for i := 0; len(all) > 0; i, all = i+1, all[peSection:] {
		flags := le.Uint32(all[36:])
		s := Section{Name: unlike(coffName(all[:8], names, &room), seen), Off: uint64(le.Uint32(all[20:])), Size: uint64(le.Uint32(all[16:])), index: i}
		s.Empty = s.Size == 0 || flags&scnUninitialized != 0 || s.Off == 0
		r := relocs{at: uint64(le.Uint32(all[24:])), n: uint64(le.Uint16(all[32:]))}
		if more, ok := img.bytes(r.at, coffReloc); ok && flags&scnMoreRelocs != 0 && r.n == 0xffff && le.Uint32(more) > 0 {
			r = relocs{r.at + coffReloc, uint64(le.Uint32(more)) - 1}
		}
		img.pe.relocs = append(img.pe.relocs, r)
		if flags&(scnInfo|scnRemove|scnDiscardable) == 0 {
			s.Perm = pePerm(flags)
		}
		if s.Perm != 0 {
			align := uint64(1)
			if a := flags >> scnAlign & 15; a > 0 {
				align = 1 << (a - 1)
			}
			at := (end + align) &^ (align - 1) // the least multiple above end
			if at+s.Size >= 1<<31 {
				if img.secsErr == nil {
					img.secsErr = img.errorf(s.Off, ErrUnsupported, "section %d %s: no room for %#x bytes at %#x", i, s.Name, s.Size, at)
				}
				s.Perm = 0
			} else {
				s.Addr, end = arch.Vaddr(at), at+s.Size
				l.placed = append(l.placed, i)
				if !s.Empty {
					img.addLoaded(Segment{Kind: Loaded, Perm: s.Perm, Off: s.Off, Vaddr: s.Addr, Size: s.Size, MemSize: s.Size})
				}
			}
		}
		img.secs = append(img.secs, s)
	}
	l.undef = arch.Vaddr((end + undefRoom) &^ (undefRoom - 1))
	l.undefs = img.coffUndefined()
	img.layout = l
	return nil
}

// relocs are where a section's relocations lie in the file, and how many there are.
type relocs struct{ at, n uint64 }

// coffName reads the name in a section's header. All names together get room bytes of the string table.
func coffName(h, names []byte, room *uint64) string {
	name := string(bytes.TrimRight(h[:8], "\x00"))
	if len(name) > 1 && name[0] == '/' { // a number: the name is that far into the string table
		if at, err := strconv.ParseUint(name[1:], 10, 32); err == nil && at < uint64(len(names)) {
			name = cstring(names[at:][:min(*room, uint64(len(names))-at)])
			*room -= uint64(len(name))
		}
	}
	return name
}

// coffUndefined returns a table of all symbols, in which those that other files define are in no section.
func (img *Image) coffUndefined() SymbolTable {
	p, le := img.pe, binary.LittleEndian
	all, _ := img.bytes(p.symtab, p.symbol*p.nsyms)
	t := SymbolTable{Order: le, Is64: true, Names: slices.Clone(img.coffStrings()), Entries: make([]byte, 24*(len(all)/int(p.symbol)))}
	for i := 0; i < t.Len(); i++ {
		s, b := p.symbolAt(all[int(p.symbol)*i:]), t.Entries[24*i:]
		at := le.Uint32(s.name[4:])
		if le.Uint32(s.name) != 0 {
			at = uint32(len(t.Names))
			t.Names = append(append(t.Names, bytes.TrimRight(s.name, "\x00")...), 0)
		}
		le.PutUint32(b, at)
		le.PutUint16(b[6:], uint16(s.index()))
		for aux := s.aux; aux > 0 && i+1 < t.Len(); aux-- { // no symbol
			i++
			le.PutUint16(t.Entries[24*i+6:], 1)
		}
	}
	return t
}

// coffRelocator returns what applies the relocations of sections: in unwind information, all, and in code and data, those that data can have. There, others
// are in instructions, which nobody reads the operands of.
func (img *Image) coffRelocator() func(s *Section, b []byte) ([]byte, error) {
	// Sections do not overlap, nor do their relocations: all copies together take no more than the file.
	room, left := min(uint64(len(img.b)), img.reach), min(uint64(len(img.b)), img.reach)
	return func(s *Section, b []byte) ([]byte, error) {
		r := img.pe.relocs[s.index]
		if r.n == 0 || len(b) == 0 {
			return b, nil
		}
		size := uint64(len(b))
		list, ok := img.bytes(r.at, coffReloc*r.n)
		if !ok {
			return b, img.errorf(r.at, ErrTruncated, "%d relocations of section %s", r.n, s.Name)
		}
		if size > room || uint64(len(list)) > left {
			return b, img.errorf(s.Off, ErrMalformed, "section %d %s: sections or relocations overlap", s.index, s.Name)
		}
		room, left = room-size, left-uint64(len(list))
		out := slices.Clone(b)
		img.relocateCOFF(s, out, list)
		return out, nil
	}
}

func (img *Image) relocateCOFF(s *Section, out, list []byte) {
	le, p := binary.LittleEndian, img.pe
	syms, _ := img.bytes(p.symtab, p.symbol*p.nsyms)
	unwinding := strings.HasPrefix(s.Name, ".pdata") || strings.HasPrefix(s.Name, ".xdata")
	for ; len(list) > 0; list = list[coffReloc:] {
		at, symbol, typ := uint64(le.Uint32(list)), uint64(le.Uint32(list[4:])), le.Uint16(list[8:])
		refuse := func(cause error, format string, args ...any) {
			if unwinding {
				img.layout.refuse(s, at, fmt.Sprint(typ), cause, format, args...)
			}
		}
		size, from := coffField(img.machine, typ)
		if size == 0 {
			if typ != 0 {
				refuse(ErrUnsupported, "in unwind information")
			}
			continue
		}
		if at > uint64(len(out)) || uint64(len(out))-at < size {
			refuse(ErrMalformed, "outside of the section")
			continue
		}
		if symbol >= p.nsyms {
			refuse(ErrMalformed, "symbol %d of %d", symbol, p.nsyms)
			continue
		}
		x := p.symbolAt(syms[p.symbol*symbol:])
		v := uint64(x.value)
		switch sec := x.section; {
		case sec == symAbsolute:
		case sec == 0:
			v = img.layout.undefined(int(symbol))
		case uint64(sec) > uint64(len(img.secs)) || img.secs[sec-1].Perm == 0:
			refuse(ErrUnsupported, "symbol %d is in section %d, which is not loaded", symbol, sec)
			continue
		default:
			v += uint64(img.secs[sec-1].Addr)
		}
		field := out[at:][:size]
		if from > 0 {
			v -= uint64(s.Addr) + at + from
		}
		putNumber(field, v+number(field, le), le)
	}
}

// coffField says how many bytes a relocation's field has, and, where it is relative, how far behind its beginning it counts from. The size is 0 for
// types that are none of data.
func coffField(m *arch.Machine, typ uint16) (size, from uint64) {
	switch m {
	case arch.WindowsAMD64:
		switch {
		case typ == amd64Addr64:
			return 8, 0
		case typ == amd64Addr32, typ == amd64Addr32NB:
			return 4, 0
		case typ >= amd64Rel32 && typ <= amd64Rel32_5:
			return 4, 4 + uint64(typ-amd64Rel32)
		}
		return 0, 0
	case arch.I386:
		switch typ {
		case i386Addr32, i386Addr32NB:
			return 4, 0
		case i386Rel32:
			return 4, 4
		}
		return 0, 0
	case arch.ARM:
		switch typ {
		case armAddr32, armAddr32NB:
			return 4, 0
		case armRel32:
			return 4, 4
		}
		return 0, 0
	}
	switch typ {
	case arm64Addr64:
		return 8, 0
	case arm64Addr32, arm64Addr32NB:
		return 4, 0
	case arm64Rel32:
		return 4, 4
	}
	return 0, 0
}
