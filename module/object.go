package module

import (
	"cmp"
	"debug/elf"
	"slices"
	"sort"

	"github.com/unspool/unspool/arch"
)

// A layout gives the sections of a file that is not linked addresses of their own. The file has none: each section begins at 0 there.
type layout struct {
	placed []int      // indexes in Image.secs, sorted by address; of the sections that are loaded
	undef  arch.Vaddr // from here on, each symbol of undefs that this file does not define has undefRoom bytes
	undefs SymbolTable
	all    bool // relocations are applied to all sections that are loaded, not only to those that unwinding reads

	// relocate returns a copy of b, the contents of s, with the relocations applied that can be; b itself where there are none. It calls refuse
	// with the others.
	relocate func(s *Section, b []byte) (out []byte, err error)
	refused  []RelocError // of the section that is being relocated
	noted    int          // of the sections before
}

const (
	// firstPlace is where the first section begins: at 0, a pointer to the section's begin would be a null pointer.
	firstPlace = 0x1000

	// maxAlign bounds a section's alignment, in bytes.
	maxAlign = 1 << 20

	// undefRoom is the distance between the addresses of symbols that another file defines.
	undefRoom = 16
)

// place lays out the sections that are loaded, in the order of their headers. Between two sections at least one byte is free: the end of a
// section is no part of the next one, and rows of two sections are no neighbours. A section for which the address space has no room gets no
// address.
func (img *Image) place() {
	l := &layout{relocate: img.newRelocator().relocate}
	top := uint64(1) << 62
	if !img.is64 {
		top = 1 << 31
	}
	end := uint64(firstPlace - 1)
	for i := range img.secs {
		s := &img.secs[i]
		s.Addr = 0
		if s.elf.flags&elf.SHF_ALLOC == 0 {
			continue
		}
		align := s.elf.align
		if align == 0 || align&(align-1) != 0 {
			align = 1
		}
		align = min(align, maxAlign)
		at := (end + align) &^ (align - 1) // the least multiple above end
		if s.Size > top || at > top-s.Size {
			if img.secsErr == nil {
				img.secsErr = img.errorf(s.Off, ErrUnsupported, "section %d %s: no room for %#x bytes at %#x", i, s.Name, s.Size, at)
			}
			continue
		}
		s.Addr, end = arch.Vaddr(at), at+s.Size
		l.placed = append(l.placed, i)
		if !s.Empty && s.Size > 0 {
			img.load = append(img.load, Segment{Kind: Loaded, Perm: s.Perm, Off: s.Off, Vaddr: s.Addr, Size: s.Size, MemSize: s.Size})
		}
	}
	img.setLayout(l, end)
}

// placeInMemory is place for an object file whose section headers have the addresses of a process. Sections without an address lie above all
// that a process has.
func (img *Image) placeInMemory() {
	l := &layout{relocate: img.newRelocator().relocate}
	end := uint64(1) << 62
	if !img.is64 {
		end = 1 << 32
	}
	for i := range img.secs {
		s := &img.secs[i]
		if s.elf.flags&elf.SHF_ALLOC == 0 || s.Size > end-firstPlace {
			s.Addr = 0
			continue
		}
		if at := uint64(s.Addr); at < firstPlace || at > uint64(1)<<62-s.Size {
			s.Addr = arch.Vaddr(end + 1)
			end += s.Size + 1
		} else if s.Size > 0 {
			img.load = append(img.load, Segment{Kind: Loaded, Perm: s.Perm, Off: at, Vaddr: s.Addr, Size: s.Size, MemSize: s.Size})
		}
		l.placed = append(l.placed, i)
	}
	slices.SortStableFunc(l.placed, func(a, b int) int { return cmp.Compare(img.secs[a].Addr, img.secs[b].Addr) })
	img.segs = img.load
	img.setLayout(l, end)
}

// setLayout completes a layout whose last section ends at end.
func (img *Image) setLayout(l *layout, end uint64) {
	l.undef = arch.Vaddr((end + undefRoom) &^ (undefRoom - 1))
	for i := range img.secs {
		if img.secs[i].elf.typ == elf.SHT_SYMTAB {
			l.undefs, _ = img.symbolTable(uint32(i))
			break
		}
	}
	img.layout = l
}

// Place returns the section that has an address, and the offset there, for people: in a file that is not linked, only these two mean something
// outside of this process. The end of a section belongs to it. The address of a symbol that another file defines is named by the symbol. In a
// linked file the name is empty, and so it is where no section is; off is the address then.
func (img *Image) Place(v arch.Vaddr) (section string, off uint64) {
	l := img.layout
	if l == nil {
		return "", uint64(v)
	}
	if s := img.placedAt(v); s != nil && uint64(v-s.Addr) <= s.Size {
		return s.Name, uint64(v - s.Addr)
	}
	if v < l.undef {
		return "", uint64(v)
	}
	if i := uint64(v-l.undef) / undefRoom; l.undefs.Entries != nil && i < uint64(l.undefs.Len()) {
		if e := l.undefs.At(int(i)); uint64(e.Name) < uint64(len(l.undefs.Names)) && !e.Section.Defined() {
			return alias(l.undefs.Names[e.Name:]), uint64(v-l.undef) % undefRoom
		}
	}
	return "", uint64(v)
}

// placedAt returns the last section that begins at v or before.
func (img *Image) placedAt(v arch.Vaddr) *Section {
	p := img.layout.placed
	i := sort.Search(len(p), func(i int) bool { return img.secs[p[i]].Addr > v }) - 1
	if i < 0 {
		return nil
	}
	return &img.secs[p[i]]
}

// A Start is where a section of a file that is not linked begins.
type Start struct {
	Addr arch.Vaddr
	Name string
}

// Starts returns where the sections begin that Place names, sorted by address; nil for a linked file. Behind them all are the symbols that
// other files define, which begin with the name "*UND*".
func (img *Image) Starts() []Start {
	if img.layout == nil {
		return nil
	}
	list := make([]Start, 0, len(img.layout.placed)+1)
	for _, i := range img.layout.placed {
		list = append(list, Start{img.secs[i].Addr, img.secs[i].Name})
	}
	return append(list, Start{img.layout.undef, "*UND*"})
}

// tailPlaced is Tail for a file that is not linked: the contents of v's section, relocated, from v to its end.
func (img *Image) tailPlaced(v arch.Vaddr) []byte {
	s := img.placedAt(v)
	if s == nil || uint64(v-s.Addr) >= s.Size {
		return nil
	}
	b, _, _ := img.Relocate(s)
	if at := uint64(v - s.Addr); at < uint64(len(b)) {
		return b[at:]
	}
	return nil
}

// undefined returns the address of a symbol that this file does not define.
func (l *layout) undefined(symbol int) uint64 { return uint64(l.undef) + undefRoom*uint64(symbol) }

// placedSections returns the sections whose addresses are to be added to the values of symbols; nil for a linked file.
func (img *Image) placedSections() []Section {
	if img.layout == nil {
		return nil
	}
	return img.secs
}
