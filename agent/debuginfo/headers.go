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
