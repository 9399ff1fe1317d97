// Package elfnote reads the notes of ELF files (gABI, "Note Section"): from bytes of notes, and from a file, whose note segments it finds without mapping
// the file. It is below package module, which reads images.
package elfnote

import (
	"debug/elf"
	"encoding/binary"
	"io"
)

// A Kind is the owner and the type of a note.
type Kind struct {
	Owner string // with the NUL and what fills it up: 4 bytes
	Type  uint32
}

var (
	BuildID   = Kind{"GNU\x00", 3}    // NT_GNU_BUILD_ID
	GoBuildID = Kind{"Go\x00\x00", 4} // ELF_NOTE_GOBUILDID_TAG (Go: cmd/link/internal/ld/elf.go)
)

// Find returns the contents of the first such note in b, whose notes are aligned to 8 bytes or, with any other align, 4; nil if there is none. The
// contents are part of b.
func (kind Kind) Find(b []byte, order binary.ByteOrder, align uint64) []byte {
	if align != 8 {
		align = 4
	}
	up := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	for len(b) >= 12 {
		namesz, descsz, typ := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint32(b[8:])
		desc := up(12 + namesz)
		if end := uint64(len(b)); desc > end || descsz > end-desc {
			return nil
		}
		if typ == kind.Type && namesz == 4 && string(b[12:16]) == kind.Owner && descsz > 0 {
			return b[desc : desc+descsz]
		}
		b = b[min(up(desc+descsz), uint64(len(b))):]
	}
	return nil
}

// maxNotes bounds what is read of an ELF file's notes, in bytes.
const maxNotes = 1 << 20

// In returns the contents of the first such note in the note segments of an ELF file; nil if there is none. It reads no sections: a sparse file can claim
// any size for them.
func (kind Kind) In(f io.ReaderAt) []byte {
	var h [64]byte // Elf64_Ehdr
	if n, _ := f.ReadAt(h[:], 0); n < len(h) || string(h[:4]) != elf.ELFMAG {
		return nil
	}
	var order binary.ByteOrder = binary.LittleEndian
	if h[elf.EI_DATA] == byte(elf.ELFDATA2MSB) {
		order = binary.BigEndian
	}
	is64 := h[elf.EI_CLASS] == byte(elf.ELFCLASS64)
	at, size, count := order.Uint64(h[32:]), order.Uint16(h[54:]), order.Uint16(h[56:])
	if !is64 {
		at, size, count = uint64(order.Uint32(h[28:])), order.Uint16(h[42:]), order.Uint16(h[44:])
	}
	room := uint64(maxNotes)
	for i := range uint64(count) {
		var p [56]byte // Elf64_Phdr
		if n, _ := f.ReadAt(p[:min(int(size), len(p))], int64(at+i*uint64(size))); n < int(size) && n < len(p) {
			return nil
		}
		off, n, align := order.Uint64(p[8:]), order.Uint64(p[32:]), order.Uint64(p[48:])
		if !is64 {
			off, n, align = uint64(order.Uint32(p[4:])), uint64(order.Uint32(p[16:])), uint64(order.Uint32(p[28:]))
		}
		if elf.ProgType(order.Uint32(p[:])) != elf.PT_NOTE || n > room {
			continue
		}
		room -= n
		b := make([]byte, n)
		if _, err := f.ReadAt(b, int64(off)); err != nil {
			continue
		}
		if found := kind.Find(b, order, align); found != nil {
			return found
		}
	}
	return nil
}
