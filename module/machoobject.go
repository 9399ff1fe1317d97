package module

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
)

// Types of relocations (mach-o/x86_64/reloc.h, arm64/reloc.h, reloc.h).
const (
	machoUnsigned = 0 // on all machines: a pointer

	amd64RelocGOT, amd64RelocSubtractor                 = 4, 5
	arm64RelocSubtractor, arm64RelocPointerToGOT        = 1, 7
	machoScattered                               uint32 = 1 << 31
)

// placeMachO makes the layout of an object file. Its sections have addresses already, from 0 on, and fields that have the difference of two have no
// relocation. So all addresses become greater by firstPlace, for the reason that firstPlace has.
func (img *Image) placeMachO() {
	// Sections do not overlap, nor do their relocations: all copies together take no more than the file.
	room, left := min(uint64(len(img.b)), img.reach), min(uint64(len(img.b)), img.reach)
	l := &layout{relocate: func(s *Section, b []byte) ([]byte, error) {
		size, relocs := uint64(len(b)), 8*uint64(s.macho.nrelocs)
		if relocs == 0 {
			return b, nil
		}
		if size > room || relocs > left {
			return b, img.errorf(s.Off, ErrMalformed, "section %d %s: sections or relocations overlap", s.index, s.Name)
		}
		room, left = room-size, left-relocs
		return img.relocateMachO(s, b)
	}}
	top := uint64(1) << 62
	if !img.is64 {
		top = 1 << 31
	}
	end := uint64(0)
	for i := range img.secs {
		s := &img.secs[i]
		if s.Perm == 0 || s.Size == 0 {
			continue
		}
		if s.Size > top || uint64(s.Addr) > top-s.Size {
			if img.secsErr == nil {
				img.secsErr = img.errorf(s.Off, ErrUnsupported, "section %d %s: no room for %#x bytes at %#x", i, s.Name, s.Size, uint64(s.Addr))
			}
			s.Perm, s.Addr = 0, 0
			continue
		}
		s.Addr += firstPlace
		l.placed = append(l.placed, i)
		end = max(end, uint64(s.Addr)+s.Size)
	}
	for i := range img.load {
		img.load[i].Vaddr += firstPlace
	}
	slices.SortStableFunc(l.placed, func(a, b int) int { return cmp.Compare(img.secs[a].Addr, img.secs[b].Addr) })
	l.undef = arch.Vaddr((end + undefRoom) &^ (undefRoom - 1))
	l.undefs = img.machoUndefined()
	img.layout = l
}

// machoUndefined returns a table of all symbols, in which those that other files define are in no section.
func (img *Image) machoUndefined() (t SymbolTable) {
	syms, names, err := img.machoSymtab()
	if err != nil {
		return t
	}
	t = SymbolTable{Order: img.order, Is64: true, Names: names, Entries: make([]byte, 24*(len(syms)/img.nlist()))}
	for i := range t.Len() {
		e, ok := img.machoSymbol(syms[i*img.nlist():])
		if uint64(e.Name) < uint64(len(names)) && names[e.Name] == '_' {
			e.Name++
		}
		b := t.Entries[24*i:]
		img.order.PutUint32(b, e.Name)
		if ok {
			img.order.PutUint16(b[6:], uint16(max(e.Section, 1)))
		}
	}
	return t
}

// A machoReloc is a struct relocation_info.
type machoReloc struct {
	at     uint64
	symbol uint32
	pcrel  bool
	size   int // bytes
	extern bool
	typ    uint8
}

func (img *Image) machoReloc(b []byte) (r machoReloc, scattered bool) {
	w0, w1 := img.order.Uint32(b), img.order.Uint32(b[4:])
	if w0&machoScattered != 0 {
		return machoReloc{at: uint64(w0 & 0xffffff), typ: uint8(w0 >> 24 & 15), size: 1 << (w0 >> 28 & 3), pcrel: w0>>30&1 != 0}, true
	}
	return machoReloc{uint64(w0), w1 & 0xffffff, w1>>24&1 != 0, 1 << (w1 >> 25 & 3), w1>>27&1 != 0, uint8(w1 >> 28)}, false
}

// relocateMachO applies the relocations of a section. A field that refers to a section has the address in the file. Where a pointer to a pointer is
// meant (GOT), the field gets the pointer's target, as there is no such table yet.
func (img *Image) relocateMachO(s *Section, b []byte) (out []byte, err error) {
	list, ok := img.bytes(uint64(s.macho.relocs), 8*uint64(s.macho.nrelocs))
	if !ok {
		return b, img.errorf(uint64(s.macho.relocs), ErrTruncated, "%d relocations of section %s", s.macho.nrelocs, s.Name)
	}
	syms, _, err := img.machoSymtab()
	if err != nil {
		return b, err
	}
	out = slices.Clone(b)
	var minus *uint64 // the symbol that the next relocation subtracts from its own
	for ; len(list) > 0; list = list[8:] {
		r, scattered := img.machoReloc(list)
		refuse := func(cause error, format string, args ...any) {
			img.layout.refuse(s, r.at, fmt.Sprint(r.typ), cause, format, args...)
		}
		if img.machine.ELF == arch.EM_386 || img.machine.ELF == arch.EM_ARM {
			if r.typ != machoUnsigned { // the difference of two addresses of this file, which is in the field
				continue
			}
			r.extern = r.extern && !scattered
		}
		if r.at > uint64(len(out)) || uint64(len(out))-r.at < uint64(r.size) {
			refuse(ErrMalformed, "outside of the section")
			minus = nil
			continue
		}
		value := func() (uint64, bool) {
			if uint64(r.symbol) >= uint64(len(syms)/img.nlist()) {
				refuse(ErrMalformed, "symbol %d of %d", r.symbol, len(syms)/img.nlist())
				return 0, false
			}
			if e, ok := img.machoSymbol(syms[int(r.symbol)*img.nlist():]); ok {
				return e.Value, true
			}
			return img.layout.undefined(int(r.symbol)), true
		}
		field := out[r.at:][:r.size]
		amd64, arm64 := img.machine.ELF == arch.EM_X86_64, img.machine.ELF == arch.EM_AARCH64
		switch {
		case amd64 && r.typ == amd64RelocSubtractor, arm64 && r.typ == arm64RelocSubtractor:
			if !r.extern {
				refuse(ErrUnsupported, "minus a section")
				continue
			}
			if v, ok := value(); ok {
				minus = &v
			}
			continue
		case r.typ == machoUnsigned && !r.pcrel:
			v := number(field, img.order)
			if !r.extern {
				v += firstPlace
			} else {
				symbol, ok := value()
				if !ok {
					minus = nil
					continue
				}
				v += symbol
			}
			if minus != nil {
				v -= *minus
			}
			putNumber(field, v, img.order)
		case amd64 && r.typ == amd64RelocGOT && r.pcrel && r.extern && r.size == 4, arm64 && r.typ == arm64RelocPointerToGOT && r.pcrel && r.extern && r.size == 4:
			if v, ok := value(); ok {
				v += number(field, img.order) - uint64(s.Addr) - r.at
				if amd64 {
					v -= 4 // it counts from the end of the field
				}
				putNumber(field, v, img.order)
			}
		default:
			refuse(ErrUnsupported, "in unwind information")
		}
		minus = nil
	}
	return out, nil
}
