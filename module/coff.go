package module

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
)

// coffFormat is an object file for Windows's linkers (PE Format, "COFF File Header (Object and Image)"), of x86-64, AArch64 or 32-bit Arm. Compilers write each inline
// function into sections of its own, which have equal names: ".text#2" is the second one that is called ".text".
var coffFormat = format{
	name: "COFF",
	has: func(b []byte) bool {
		m := binary.LittleEndian.Uint16(b)
		return m == arch.IMAGE_FILE_MACHINE_AMD64 || m == arch.IMAGE_FILE_MACHINE_ARM64 || m == arch.IMAGE_FILE_MACHINE_ARMNT
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

	symAbsolute = 0xffff // of a section number

	// Types of relocations ("x64 Processors", "ARM64 Processors", "ARM Processors").
	amd64Addr64, amd64Addr32, amd64Addr32NB, amd64Rel32, amd64Rel32_5 = 1, 2, 3, 4, 9
	arm64Addr32, arm64Addr32NB, arm64Addr64, arm64Rel32               = 1, 2, 14, 17
	armAddr32, armAddr32NB, armRel32                                  = 1, 2, 10
)

// coffEnd returns where the section headers and the symbols end of a header that is an object file's: it has no optional header.
func coffEnd(h []byte) (end uint64, ok bool) {
	le := binary.LittleEndian
	return max(coffHeader+peSection*uint64(le.Uint16(h[2:])), uint64(le.Uint32(h[8:]))+coffSymbol*uint64(le.Uint32(h[12:]))), le.Uint16(h[16:]) == 0
}

func kindCOFF(f io.ReaderAt) FileKind {
	var h [coffHeader]byte
	var last [1]byte
	if _, err := f.ReadAt(h[:], 0); err != nil {
		return UnknownFile
	}
	end, ok := coffEnd(h[:])
	if !ok {
		return UnknownFile
	}
	if _, err := f.ReadAt(last[:], int64(end-1)); err != nil { // two bytes begin other files, too
		return UnknownFile
	}
	return ObjectFile
}

// readCOFF reads the headers of an object file, and lays out its sections.
func (img *Image) readCOFF() error {
	le := binary.LittleEndian
	h, ok := img.bytes(0, coffHeader)
	if !ok {
		return img.errorf(0, ErrTruncated, "header")
	}
	if end, ok := coffEnd(h); !ok {
		return img.errorf(0, ErrFormat, "header")
	} else if end > uint64(len(img.b)) {
		return img.errorf(0, ErrTruncated, "an object file of Windows with headers and symbols up to %#x", end)
	}
	img.order, img.machine = le, arch.ByCOFF(le.Uint16(h))
	img.is64 = img.machine.WordSize() == 8
	img.pe = &portable{symtab: uint64(le.Uint32(h[8:])), nsyms: uint64(le.Uint32(h[12:]))}
	all, ok := img.bytes(coffHeader, peSection*uint64(le.Uint16(h[2:])))
	if !ok {
		return img.errorf(coffHeader, ErrTruncated, "section headers")
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
	all, _ := img.bytes(p.symtab, coffSymbol*p.nsyms)
	t := SymbolTable{Order: le, Is64: true, Names: slices.Clone(img.coffStrings()), Entries: make([]byte, 24*(len(all)/coffSymbol))}
	for i := 0; i < t.Len(); i++ {
		s, b := all[coffSymbol*i:][:coffSymbol], t.Entries[24*i:]
		at := le.Uint32(s[4:])
		if le.Uint32(s) != 0 {
			at = uint32(len(t.Names))
			t.Names = append(append(t.Names, bytes.TrimRight(s[:8], "\x00")...), 0)
		}
		le.PutUint32(b, at)
		le.PutUint16(b[6:], le.Uint16(s[12:]))
		for aux := int(s[17]); aux > 0 && i+1 < t.Len(); aux-- { // no symbol
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
	syms, _ := img.bytes(p.symtab, coffSymbol*p.nsyms)
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
		x := syms[coffSymbol*symbol:][:coffSymbol]
		v := uint64(le.Uint32(x[8:]))
		switch sec := le.Uint16(x[12:]); {
		case sec == symAbsolute:
		case sec == 0:
			v = img.layout.undefined(int(symbol))
		case int(sec) > len(img.secs) || img.secs[sec-1].Perm == 0:
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
	if m == arch.WindowsAMD64 {
		switch {
		case typ == amd64Addr64:
			return 8, 0
		case typ == amd64Addr32, typ == amd64Addr32NB:
			return 4, 0
		case typ >= amd64Rel32 && typ <= amd64Rel32_5:
			return 4, 4 + uint64(typ-amd64Rel32)
		}
		return 0, 0
	}
	if m == arch.ARM {
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
