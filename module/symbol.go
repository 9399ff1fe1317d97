package module

import (
	"bytes"
	"debug/elf"
	"unsafe"

	"github.com/unspool/unspool/arch"
)

// A Symbol is an entry of a symbol table.
type Symbol struct {
	Name    string // aliases the mapped file: valid until the image is closed
	Value   arch.Vaddr
	Size    uint64 // bytes
	Type    elf.SymType
	Bind    elf.SymBind
	Section elf.SectionIndex
	Dynamic bool // from the dynamic symbol table
}

// maxName bounds a symbol's name, in bytes; a longer one is cut. Without a bound, many symbols with one
// very long name would take forever.
const maxName = 1 << 14

// Symbols yields the symbols of .symtab, and then those of the dynamic symbol table, which is found without
// section headers too. It returns what was wrong with a table after yielding its good part.
func (img *Image) Symbols(yield func(Symbol) bool) error {
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
			if s.Type != typ {
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
			if uint64(s.Link) >= uint64(len(img.secs)) {
				note(img.errorf(s.Off, ErrMalformed, "section %d %s: its names are in section %d of %d", i, s.Name, s.Link, len(img.secs)))
			} else if names, err = img.Data(&img.secs[s.Link]); err != nil {
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
	size := 16
	if img.is64 {
		size = 24
	}
	for len(b) >= size {
		var s Symbol
		var info byte
		name := uint64(img.order.Uint32(b))
		if img.is64 {
			info = b[4]
			s.Section = elf.SectionIndex(img.order.Uint16(b[6:]))
			s.Value, s.Size = arch.Vaddr(img.order.Uint64(b[8:])), img.order.Uint64(b[16:])
		} else {
			s.Value, s.Size = arch.Vaddr(img.order.Uint32(b[4:])), uint64(img.order.Uint32(b[8:]))
			info = b[12]
			s.Section = elf.SectionIndex(img.order.Uint16(b[14:]))
		}
		s.Type, s.Bind, s.Dynamic = elf.SymType(info&15), elf.SymBind(info>>4), dynamic
		if name < uint64(len(names)) {
			s.Name = alias(names[name:])
		}
		if !yield(s) {
			return false
		}
		b = b[size:]
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

// dynsym finds the dynamic symbols through PT_DYNAMIC. Their number is what the hash table says
// (DT_HASH), or the last chain's end (DT_GNU_HASH).
func (img *Image) dynsym() (syms, names []byte) {
	var symtab, strtab, strsz, hash, gnu uint64
	for i := range img.segs {
		s := &img.segs[i]
		if s.Type != elf.PT_DYNAMIC {
			continue
		}
		b, ok := img.bytes(s.Off, s.Filesz)
		if !ok {
			return nil, nil
		}
		entry := 8
		if img.is64 {
			entry = 16
		}
	entries:
		for ; len(b) >= entry; b = b[entry:] {
			f := img.fields(b)
			tag, v := f.word(), f.word()
			switch elf.DynTag(tag) {
			case elf.DT_NULL:
				break entries
			case elf.DT_SYMTAB:
				symtab = v
			case elf.DT_STRTAB:
				strtab = v
			case elf.DT_STRSZ:
				strsz = v
			case elf.DT_HASH:
				hash = v
			case elf.DT_GNU_HASH:
				gnu = v
			}
		}
		break
	}
	if symtab == 0 || strtab == 0 {
		return nil, nil
	}
	n := uint64(0)
	if h := img.Tail(arch.Vaddr(hash)); hash != 0 && len(h) >= 8 {
		n = uint64(img.order.Uint32(h[4:]))
	} else if gnu != 0 {
		n = img.gnuHashed(img.Tail(arch.Vaddr(gnu)))
	}
	size := uint64(16)
	if img.is64 {
		size = 24
	}
	syms, names = img.Tail(arch.Vaddr(symtab)), img.Tail(arch.Vaddr(strtab))
	return syms[:min(n*size, uint64(len(syms)))], names[:min(strsz, uint64(len(names)))]
}

// gnuHashed returns one more than the highest symbol number in a DT_GNU_HASH table.
func (img *Image) gnuHashed(h []byte) uint64 {
	if len(h) < 16 {
		return 0
	}
	u32 := func(at uint64) (uint64, bool) {
		if at > uint64(len(h))-4 {
			return 0, false
		}
		return uint64(img.order.Uint32(h[at:])), true
	}
	nbuckets, _ := u32(0)
	base, _ := u32(4)
	bloom, _ := u32(8)
	word := uint64(4)
	if img.is64 {
		word = 8
	}
	buckets := 16 + bloom*word
	last := uint64(0)
	for i := range nbuckets {
		v, ok := u32(buckets + 4*i)
		if !ok {
			break
		}
		last = max(last, v)
	}
	if last < base {
		return base
	}
	for at := buckets + 4*nbuckets + 4*(last-base); ; at += 4 {
		v, ok := u32(at)
		last++
		if !ok || v&1 != 0 {
			return last
		}
	}
}
