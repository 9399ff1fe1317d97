package module

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"unsafe"

	"github.com/unspool/unspool/arch"
)

// A Symbol is an entry of a symbol table.
type Symbol struct {
	Name    string // aliases the mapped file: valid until the image is closed
	Value   arch.Vaddr
	Size    uint64 // bytes
	Kind    SymbolKind
	Bind    Bind
	Section SectionIndex
	Dynamic bool // from the dynamic symbol table
}

// A SymbolKind says what a symbol names. All other kinds have ELF's numbers.
type SymbolKind uint8

const (
	Unmarked SymbolKind = SymbolKind(elf.STT_NOTYPE)
	Object   SymbolKind = SymbolKind(elf.STT_OBJECT)
	Func     SymbolKind = SymbolKind(elf.STT_FUNC)
	IFunc    SymbolKind = SymbolKind(elf.STT_GNU_IFUNC) // a function that chooses the implementation
)

// A Bind says who sees a symbol. All other bindings have ELF's numbers.
type Bind uint8

const (
	Local  Bind = Bind(elf.STB_LOCAL)
	Global Bind = Bind(elf.STB_GLOBAL)
	Weak   Bind = Bind(elf.STB_WEAK)
)

// A SectionIndex is the number of a symbol's section.
type SectionIndex uint16

// Defined says whether the symbol is in a section of its own file: not in another file, and not a mere number.
func (i SectionIndex) Defined() bool {
	x := elf.SectionIndex(i)
	return x != elf.SHN_UNDEF && (x < elf.SHN_LORESERVE || x == elf.SHN_XINDEX)
}

// A SymbolTable is a symbol table with the bytes of the file. Without Entries it is empty, and Add can add to it.
type SymbolTable struct {
	Entries, Names []byte
	Order          binary.ByteOrder
	Is64           bool
	Thumb          bool // bit 0 of a value is no part of the address (ELF for the Arm Architecture, section 5.5.3)

	placed []Section // of a file that is not linked, where a value counts from its section's start; nil for values as the file has them
}

// A SymbolEntry is a symbol with an unread name: Name is the name's offset in Names.
type SymbolEntry struct {
	Name    uint32
	Kind    SymbolKind
	Bind    Bind
	Section SectionIndex
	Value   uint64
	Size    uint64
}

func (t *SymbolTable) entsize() int {
	if t.Is64 {
		return elf.Sym64Size
	}
	return elf.Sym32Size
}

// Len returns the number of symbols.
func (t *SymbolTable) Len() int { return len(t.Entries) / t.entsize() }

// At returns symbol i.
func (t *SymbolTable) At(i int) (e SymbolEntry) {
	var info byte
	if t.Is64 {
		b := t.Entries[i*elf.Sym64Size:][:elf.Sym64Size]
		if t.Order == binary.LittleEndian { // which the compiler knows
			le := binary.LittleEndian
			e = SymbolEntry{Name: le.Uint32(b), Section: SectionIndex(le.Uint16(b[6:])), Value: le.Uint64(b[8:]), Size: le.Uint64(b[16:])}
		} else {
			e = SymbolEntry{Name: t.Order.Uint32(b), Section: SectionIndex(t.Order.Uint16(b[6:])), Value: t.Order.Uint64(b[8:]), Size: t.Order.Uint64(b[16:])}
		}
		info = b[4]
	} else {
		b := t.Entries[i*elf.Sym32Size:][:elf.Sym32Size]
		e = SymbolEntry{Name: t.Order.Uint32(b), Section: SectionIndex(t.Order.Uint16(b[14:])), Value: uint64(t.Order.Uint32(b[4:])), Size: uint64(t.Order.Uint32(b[8:]))}
		info = b[12]
	}
	e.Kind, e.Bind = SymbolKind(info&15), Bind(info>>4)
	if t.Thumb && e.Kind != Unmarked {
		e.Value &^= 1
	}
	if t.placed != nil && e.Section.Defined() && int(e.Section) < len(t.placed) {
		e.Value += uint64(t.placed[e.Section].Addr)
	}
	return e
}

// Name returns the name of a symbol: it aliases the mapped file.
func (t *SymbolTable) Name(e SymbolEntry) string {
	if uint64(e.Name) >= uint64(len(t.Names)) {
		return ""
	}
	return alias(t.Names[e.Name:])
}

// Add appends a symbol to a 64-bit little-endian table.
func (t *SymbolTable) Add(name string, e SymbolEntry) {
	le := binary.LittleEndian
	t.Entries = le.AppendUint32(t.Entries, uint32(len(t.Names)))
	t.Entries = append(t.Entries, byte(e.Bind)<<4|byte(e.Kind), 0)
	t.Entries = le.AppendUint16(t.Entries, uint16(e.Section))
	t.Entries = le.AppendUint64(le.AppendUint64(t.Entries, e.Value), e.Size)
	t.Names = append(append(t.Names, name...), 0)
}

// SymbolTable returns the first symbol table that holds symbols: the dynamic linker's, or the other one.
func (img *Image) SymbolTable(dynamic bool) (SymbolTable, bool) {
	return img.format.symbolTable(img, dynamic)
}

func (img *Image) elfSymbolTable(dynamic bool) (SymbolTable, bool) {
	typ := elf.SHT_SYMTAB
	if dynamic {
		typ = elf.SHT_DYNSYM
	}
	for i := range img.secs {
		if img.secs[i].elf.typ == typ {
			if t, ok := img.symbolTable(uint32(i)); ok && t.Len() > 1 {
				t.placed = img.placedSections()
				return t, true
			}
		}
	}
	return SymbolTable{}, false
}

// symbolTable returns the symbol table in section i.
func (img *Image) symbolTable(i uint32) (SymbolTable, bool) {
	t := SymbolTable{Order: img.order, Is64: img.is64, Thumb: img.machine.ELF == arch.EM_ARM}
	data := func(i uint32) []byte {
		if uint64(i) >= uint64(len(img.secs)) || img.secs[i].Compressed {
			return nil
		}
		b, err := img.contents(&img.secs[i])
		if err != nil {
			return nil
		}
		return b
	}
	if uint64(i) < uint64(len(img.secs)) && (img.secs[i].elf.typ == elf.SHT_SYMTAB || img.secs[i].elf.typ == elf.SHT_DYNSYM) {
		t.Entries, t.Names = data(i), data(img.secs[i].elf.link)
	}
	return t, t.Entries != nil && t.Names != nil
}

// maxName bounds a symbol's name, in bytes; a longer one is cut. Without a bound, many symbols with one
// very long name would take forever.
const maxName = 1 << 14

// Symbols yields the symbols of the whole table (ELF: .symtab), then those of the dynamic symbol table, which it finds without section headers, too.
// If a table is damaged, Symbols yields the good part and returns an error.
func (img *Image) Symbols(yield func(Symbol) bool) error { return img.format.symbols(img, yield) }

func (img *Image) elfSymbols(yield func(Symbol) bool) error {
	var first error
	note := func(err error) {
		if first == nil {
			first = err
		}
	}
	left := min(uint64(len(img.b)), img.reach) // tables do not overlap
	for _, typ := range []elf.SectionType{elf.SHT_SYMTAB, elf.SHT_DYNSYM} {
		for i := range img.secs {
			s := &img.secs[i]
			if s.elf.typ != typ {
				continue
			}
			syms, err := img.Data(s)
			if err == nil && s.Size > left {
				err = img.errorf(s.Off, ErrMalformed, "section %d %s: symbol tables overlap", i, s.Name)
			}
			if err != nil {
				note(err)
				continue
			}
			left -= s.Size
			var names []byte
			if uint64(s.elf.link) >= uint64(len(img.secs)) {
				note(img.errorf(s.Off, ErrMalformed, "section %d %s: its names are in section %d of %d", i, s.Name, s.elf.link, len(img.secs)))
			} else if names, err = img.Data(&img.secs[s.elf.link]); err != nil {
				note(err)
			}
			if !img.symbols(syms, names, typ == elf.SHT_DYNSYM, yield) {
				return first
			}
		}
	}
	if len(img.secs) == 0 {
		syms, names := img.dynsym()
		img.symbols(syms, names, true, yield)
	}
	return first
}

// symbols yields the entries of one table; false if yield had enough.
func (img *Image) symbols(b, names []byte, dynamic bool, yield func(Symbol) bool) bool {
	t := SymbolTable{Entries: b, Order: img.order, Is64: img.is64, placed: img.placedSections()}
	for i := range t.Len() {
		e := t.At(i)
		s := Symbol{Value: arch.Vaddr(e.Value), Size: e.Size, Kind: e.Kind, Bind: e.Bind, Section: e.Section, Dynamic: dynamic}
		if uint64(e.Name) < uint64(len(names)) {
			s.Name = alias(names[e.Name:])
		}
		if !yield(s) {
			return false
		}
	}
	return true
}

// alias is the string up to the first NUL, cut at maxName, without a copy; "" where there is no NUL.
func alias(b []byte) string {
	cut := b[:min(len(b), maxName)]
	n := bytes.IndexByte(cut, 0)
	if n < 0 && len(cut) < len(b) {
		n = len(cut)
	}
	if n <= 0 {
		return ""
	}
	return unsafe.String(&b[0], n)
}
