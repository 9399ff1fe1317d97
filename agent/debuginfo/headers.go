package debuginfo

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
)

// withHeaders returns a separate debug file with the program headers of the program's file. Tools that make debug files leave headers whose offsets
// are of nothing: engines find an address's place in the file by them. The debug file is returned as it is where its headers are not the same segments.
func withHeaders(debug, program io.ReaderAt) io.ReaderAt {
	d, p := readHeaders(debug), readHeaders(program)
	if d == nil || p == nil || len(d.table) != len(p.table) || d.class != p.class || d.order != p.order {
		return debug
	}
	out := bytes.Clone(d.table)
	offset, address, size := 8, 16, 32 // in an Elf64_Phdr: p_offset, p_vaddr, p_filesz
	word, entry := 8, 56
	if d.class == elf.ELFCLASS32 {
		offset, address, size = 4, 8, 16
		word, entry = 4, 32
	}
	for at := 0; at < len(out); at += entry {
		to, from := out[at:at+entry], p.table[at:at+entry]
		if !bytes.Equal(to[:4], from[:4]) || !bytes.Equal(to[address:address+word], from[address:address+word]) {
			return debug
		}
		copy(to[offset:], from[offset:offset+word])
		copy(to[size:], from[size:size+word])
	}
	return &patched{debug, d.off, out}
}

// A headers is a table of program headers, at an offset in its file.
type headers struct {
	class elf.Class
	order binary.ByteOrder
	off   int64
	table []byte
}

// readHeaders returns a file's; nil if there are none that can be read.
func readHeaders(r io.ReaderAt) *headers {
	b := make([]byte, 64) // an Elf64_Ehdr
	if _, err := r.ReadAt(b, 0); err != nil || string(b[:4]) != elf.ELFMAG {
		return nil
	}
	h := headers{class: elf.Class(b[elf.EI_CLASS]), order: binary.LittleEndian}
	if elf.Data(b[elf.EI_DATA]) == elf.ELFDATA2MSB {
		h.order = binary.BigEndian
	}
	var n, entry uint16
	want := uint16(56)
	switch h.class {
	case elf.ELFCLASS64:
		h.off, entry, n = int64(h.order.Uint64(b[32:])), h.order.Uint16(b[54:]), h.order.Uint16(b[56:])
	case elf.ELFCLASS32:
		want = 32
		h.off, entry, n = int64(h.order.Uint32(b[28:])), h.order.Uint16(b[42:]), h.order.Uint16(b[44:])
	default:
		return nil
	}
	h.table = make([]byte, int(n)*int(want))
	if n == 0 || entry != want || h.off < 0 {
		return nil
	}
	if _, err := r.ReadAt(h.table, h.off); err != nil && err != io.EOF {
		return nil
	}
	return &h
}

// What fetch reads of a file at most, in bytes. Programs have some thousands.
const (
	maxTable = 8 << 20 // of the headers of sections, of those of segments, and of the sections' names; who has more is no image here
	maxNotes = 4 << 20 // of all notes; package module reads no more
)

// fetch reads what identified and has look at: headers, names of sections, and notes. Where the file system of a file never answers, this waits, in a
// system call. A page of a mapped file that never comes would hold up the whole program: Go's garbage collector cannot stop the thread that touches it.
// A sparse file can claim any size for each: false says that a file claims more than programs have.
func fetch(file io.ReaderAt, size int64) bool {
	h := make([]byte, 64) // an Elf64_Ehdr
	if n, _ := file.ReadAt(h, 0); n < len(h) || string(h[:4]) != elf.ELFMAG {
		return true // package module judges it
	}
	var o binary.ByteOrder = binary.LittleEndian
	if elf.Data(h[elf.EI_DATA]) == elf.ELFDATA2MSB {
		o = binary.BigEndian
	}
	is64 := elf.Class(h[elf.EI_CLASS]) == elf.ELFCLASS64
	word := func(b []byte, at64, at32 int) uint64 {
		if is64 {
			return o.Uint64(b[at64:])
		}
		return uint64(o.Uint32(b[at32:]))
	}
	half := func(at64, at32 int) uint64 {
		if is64 {
			return uint64(o.Uint16(h[at64:]))
		}
		return uint64(o.Uint16(h[at32:]))
	}
	// read returns n entries of a table, or those that are in the file; none where there is no table.
	read := func(off, n, entry uint64) (table []byte, ok bool) {
		if off == 0 || off >= uint64(size) {
			return nil, true
		}
		if n = min(n, (uint64(size)-off)/entry); n > maxTable/entry {
			return nil, false
		}
		table = make([]byte, n*entry)
		k, _ := file.ReadAt(table, int64(off))
		return table[:k], true
	}
	phoff, phentry, phnum := word(h, 32, 28), half(54, 42), half(56, 44)
	shoff, shentry, shnum, strndx := word(h, 40, 32), half(58, 46), half(60, 48), half(62, 50)
	sizeP, sizeS := uint64(56), uint64(64) // of an Elf64_Phdr and an Elf64_Shdr
	if !is64 {
		sizeP, sizeS = 32, 40
	}
	if first, _ := read(shoff, 1, sizeS); uint64(len(first)) == sizeS { // it has the numbers that are too large for the header
		if shnum == 0 {
			shnum = word(first, 32, 20)
		}
		rest := first[len(first)-24:] // sh_link, sh_info
		if !is64 {
			rest = first[24:]
		}
		if strndx == uint64(elf.SHN_XINDEX) {
			strndx = uint64(o.Uint32(rest))
		}
		if phnum == 0xffff {
			phnum = uint64(o.Uint32(rest[4:]))
		}
	}
	phentry, shentry = max(phentry, sizeP), max(shentry, sizeS)
	segments, ok := read(phoff, phnum, phentry)
	sections, ok2 := read(shoff, shnum, shentry)
	if !ok || !ok2 {
		return false
	}
	left := uint64(maxNotes)
	notes := func(off, n uint64) {
		if n > left {
			return
		}
		left -= n
		io.Copy(io.Discard, io.NewSectionReader(file, int64(off), int64(n)))
	}
	for b := segments; uint64(len(b)) >= phentry; b = b[phentry:] {
		if elf.ProgType(o.Uint32(b)) == elf.PT_NOTE {
			notes(word(b, 8, 4), word(b, 32, 16))
		}
	}
	for i, b := uint64(0), sections; uint64(len(b)) >= shentry; i, b = i+1, b[shentry:] {
		if elf.SectionType(o.Uint32(b[4:])) == elf.SHT_NOTE {
			notes(word(b, 24, 16), word(b, 32, 20))
		}
		if i == strndx {
			if _, ok := read(word(b, 24, 16), word(b, 32, 20), 1); !ok {
				return false
			}
		}
	}
	return true
}

// A patched is a file with other bytes at an offset.
type patched struct {
	io.ReaderAt
	off   int64
	bytes []byte
}

func (f *patched) ReadAt(p []byte, at int64) (int, error) {
	n, err := f.ReaderAt.ReadAt(p, at)
	if lo, hi := max(at, f.off), min(at+int64(n), f.off+int64(len(f.bytes))); lo < hi {
		copy(p[lo-at:hi-at], f.bytes[lo-f.off:])
	}
	return n, err
}
