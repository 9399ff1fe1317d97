// Package elfcopy makes copies of ELF programs and libraries that have more sections (System V ABI, chapters 4 and 5). The copy runs as the file does,
// and nothing of the file moves: a new segment behind all others has the program headers and the sections, and the section headers are behind
// that. What cannot be copied so is refused, with the reason.
package elfcopy

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/unspool/unspool/internal/printable"
)

// A Section is one that the copy has, and the file has not.
type Section struct {
	Name    string
	Type    uint32 // of its section header
	Program uint32 // the type of the program header that leads to it; 0: none does
	Exec    bool   // it has code
	Align   uint64 // in memory
	Bytes   []byte
}

// maxHole bounds the hole in a copy.
const maxHole = 64 << 20

const (
	ehsize, phentsize, shentsize = 64, 56, 64
	minPage                      = 4096 // of all machines of 64 bits

	ptLoad, ptDynamic, ptInterp, ptPHDR = 1, 2, 3, 6
	pfExec, pfRead                      = 1, 4
	dtNeeded, dtDebug, dtFlags1         = 1, 21, 0x6ffffffb
	df1PIE                              = 0x08000000
	shtNoBits                           = 8
	shfAlloc, shfExec                   = 2, 4
)

var le = binary.LittleEndian

// A File is a file's headers.
type File struct {
	file   []byte
	phdrs  []phdr
	loads  []phdr
	last   int    // the last segment, among the program headers
	end    uint64 // behind all segments in memory
	unit   uint64 // of segments: no page is larger
	shoff  uint64
	shnum  uint64
	strndx uint64
	names  []byte // of the sections; their header is number strndx
}

type phdr struct {
	typ, flags                       uint32
	off, vaddr, filesz, memsz, align uint64
	bytes                            []byte
}

// Read reads the headers of a program or a library, of 64 bits, little-endian.
func Read(file []byte) (*File, error) {
	bad := func(format string, args ...any) (*File, error) { return nil, fmt.Errorf(format, args...) }
	if len(file) < ehsize || string(file[:6]) != "\x7fELF\x02\x01" {
		return bad("not an ELF file of 64 bits, little-endian")
	}
	if typ := le.Uint16(file[16:]); typ != 2 && typ != 3 {
		return bad("an ELF file of type %d has no segments to add one to", typ)
	}
	f := &File{file: file, last: -1, unit: minPage}
	phoff, phnum := le.Uint64(file[32:]), uint64(le.Uint16(file[56:]))
	if le.Uint16(file[54:]) != phentsize || phnum > math.MaxUint16-16 || phoff > uint64(len(file)) || phnum*phentsize > uint64(len(file))-phoff {
		return bad("program headers at %#x, %d of them, in %#x bytes", phoff, phnum, len(file))
	}
	used := max(ehsize, phoff+phnum*phentsize) // what the headers name, in the file
	for i := range int(phnum) {
		b := file[phoff:][phentsize*i:][:phentsize]
		u := func(at int) uint64 { return le.Uint64(b[at:]) }
		p := phdr{le.Uint32(b), le.Uint32(b[4:]), u(8), u(16), u(32), u(40), u(48), b}
		f.phdrs = append(f.phdrs, p)
		if p.off+p.filesz > p.off {
			used = max(used, p.off+p.filesz)
		}
		if p.typ != ptLoad {
			continue
		}
		if p.vaddr+p.memsz < p.vaddr || p.vaddr+p.memsz > 1<<62 || p.off > p.vaddr && len(f.loads) == 0 || p.align > 1<<24 || p.align&(p.align-1) != 0 {
			return bad("a segment at %#x, of %#x bytes", p.vaddr, p.memsz)
		}
		if len(f.loads) > 0 && p.vaddr < f.loads[len(f.loads)-1].vaddr {
			return bad("segments are not in the order of their addresses")
		}
		f.loads, f.last, f.end, f.unit = append(f.loads, p), i, max(f.end, p.vaddr+p.memsz), max(f.unit, p.align)
	}
	if len(f.loads) == 0 {
		return bad("the file has no segments")
	}
	if f.interpreter() {
		return bad("a dynamic linker cannot have another segment: Linux before 6.7 would not start programs with it")
	}
	if err := f.sections(&used); err != nil {
		return nil, err
	}
	if used < uint64(len(file)) {
		if rest := bytes.TrimRight(file[used:], "\x00"); len(rest) > 0 {
			return bad("%s follow at %#x, behind all segments and sections, such as an archive that the program reads: it would not find them in a copy",
				printable.Bytes(int64(len(rest))), used)
		}
	}
	return f, nil
}

// sections reads the section headers, and adds to what they name.
func (f *File) sections(used *uint64) error {
	size := uint64(len(f.file))
	f.shoff, f.shnum, f.strndx = le.Uint64(f.file[40:]), uint64(le.Uint16(f.file[60:])), uint64(le.Uint16(f.file[62:]))
	if f.shoff == 0 {
		f.shnum = 0
		return nil
	}
	if le.Uint16(f.file[58:]) != shentsize || f.shnum == 0 || f.shnum >= 0xff00-16 || f.strndx >= f.shnum || f.shoff > size || f.shnum*shentsize > size-f.shoff {
		return fmt.Errorf("section headers at %#x, %d of them, in %#x bytes", f.shoff, f.shnum, size)
	}
	*used = max(*used, f.shoff+f.shnum*shentsize)
	for i := range f.shnum {
		h := f.file[f.shoff+shentsize*i:]
		off, n := le.Uint64(h[24:]), le.Uint64(h[32:])
		if le.Uint32(h[4:]) != shtNoBits && off+n > off {
			*used = max(*used, off+n)
		}
		if i == f.strndx {
			if off > size || n > size-off {
				return fmt.Errorf("section names at %#x, of %#x bytes", off, n)
			}
			f.names = f.file[off:][:n]
		}
	}
	return nil
}

// interpreter says whether the file can be the interpreter of others: a position-independent file with an entry point, which needs no other file. A
// program that links itself is one, too, but says that it is a program: its linker leaves room for a debugger, or names it position-independent.
// What old linkers made of a library without any needs has an entry point and looks the same.
func (f *File) interpreter() bool {
	entry := le.Uint64(f.file[24:])
	code, dynamic := false, false
	for _, p := range f.phdrs {
		switch p.typ {
		case ptInterp:
			return false
		case ptLoad:
			code = code || p.flags&pfExec != 0 && entry >= p.vaddr && entry-p.vaddr < p.memsz
		case ptDynamic:
			dynamic = true
			b := f.file[min(p.off, uint64(len(f.file))):]
			for b = b[:min(p.filesz, uint64(len(b)))]; len(b) >= 16; b = b[16:] {
				switch tag, v := le.Uint64(b), le.Uint64(b[8:]); {
				case tag == dtNeeded, tag == dtDebug, tag == dtFlags1 && v&df1PIE != 0:
					return false
				}
			}
		}
	}
	return le.Uint16(f.file[16:]) == 3 && entry != 0 && code && dynamic
}

// Has says whether the file has a section of a name, or a program header of a type.
func (f *File) Has(name string, program uint32) bool {
	for _, p := range f.phdrs {
		if p.typ == program {
			return true
		}
	}
	for i := range f.shnum {
		at := uint64(le.Uint32(f.file[f.shoff+shentsize*i:]))
		if n := uint64(len(name)); at+n < uint64(len(f.names)) && string(f.names[at:at+n]) == name && f.names[at+n] == 0 {
			return true
		}
	}
	return false
}

// Place returns where each of some sections is, of which the first may begin at an address.
func Place(addr uint64, list []Section) (at []uint64) {
	for _, s := range list {
		a := max(s.Align, 1)
		addr = (addr + a - 1) &^ (a - 1)
		at = append(at, addr)
		addr += uint64(len(s.Bytes))
	}
	return at
}

// Add returns a copy with the sections that make returns for an address: Place says where they are. programs is how many of them have program headers.
//
// The new segment is as far from its place in the file as the first one is: Linux before 5.18 tells a program its headers' address by that of
// the first segment. So what .bss takes in memory is a hole in the copy. A dynamic linker is refused: Linux before 6.7 clears the .bss of an
// interpreter's last segment only.
func (f *File) Add(programs int, make func(addr uint64) ([]Section, error)) ([]byte, error) {
	base := f.loads[0]
	far := base.vaddr - base.off
	align := f.unit
	for far&(align-1) != 0 {
		align >>= 1
	}
	if align < minPage {
		return nil, fmt.Errorf("the first segment, at %#x of the file, is loaded at %#x: it is not aligned to pages", base.off, base.vaddr)
	}
	size := uint64(len(f.file))
	off := size
	if f.end > far {
		off = max(off, f.end-far)
	}
	off = (off + f.unit - 1) &^ (f.unit - 1)
	if off-size > maxHole {
		return nil, fmt.Errorf("the program has %d bytes of memory behind its contents: a copy would have a hole of this size", off-size)
	}
	table := uint64(phentsize * (len(f.phdrs) + 1 + programs))
	list, err := make(off + far + table)
	if err != nil {
		return nil, err
	}
	at := Place(off+far+table, list)
	flags, total := uint32(pfRead), table
	for i, s := range list {
		if s.Exec {
			flags |= pfExec
		}
		total = at[i] + uint64(len(s.Bytes)) - far - off
	}

	header := func(b []byte, typ, flags uint32, v, n, align uint64) []byte {
		b = le.AppendUint32(le.AppendUint32(b, typ), flags)
		for _, x := range []uint64{v - far, v, v, n, n, align} {
			b = le.AppendUint64(b, x)
		}
		return b
	}
	out := append(bytes.Clone(f.file), zeros(off-size)...)
	for i, p := range f.phdrs {
		if p.typ == ptPHDR {
			out = header(out, ptPHDR, p.flags, off+far, table, 8)
		} else {
			out = append(out, p.bytes...)
		}
		if i == f.last { // segments are in the order of their addresses
			out = header(out, ptLoad, flags, off+far, total, align)
		}
	}
	n := 0
	for i, s := range list {
		if s.Program != 0 {
			out = header(out, s.Program, pfRead, at[i], uint64(len(s.Bytes)), s.Align)
			n++
		}
	}
	if n != programs {
		panic("BUG: another number of program headers than of sections with one")
	}
	for i, s := range list {
		out = append(append(out, zeros(at[i]-far-uint64(len(out)))...), s.Bytes...)
	}
	le.PutUint64(out[32:], off)
	le.PutUint16(out[56:], uint16(len(f.phdrs)+1+programs))
	if f.shnum > 0 {
		out = f.addHeaders(out, list, at, far)
	}
	return out, nil
}

// addHeaders appends the section headers to the copy, those of its sections last, and their names.
func (f *File) addHeaders(out []byte, list []Section, addr []uint64, far uint64) []byte {
	names, nameAt := bytes.Clone(f.names), []uint32(nil)
	for _, s := range list {
		nameAt = append(nameAt, uint32(len(names)))
		names = append(append(names, s.Name...), 0)
	}
	at := uint64(len(out))
	out = append(out, names...)
	out = append(out, zeros(-uint64(len(out))&7)...)
	shoff := uint64(len(out))
	out = append(out, f.file[f.shoff:][:f.shnum*shentsize]...)
	h := out[shoff+f.strndx*shentsize:]
	le.PutUint64(h[24:], at)
	le.PutUint64(h[32:], uint64(len(names)))
	for i, s := range list {
		out = le.AppendUint32(le.AppendUint32(out, nameAt[i]), s.Type)
		flags := uint64(shfAlloc)
		if s.Exec {
			flags |= shfExec
		}
		for _, x := range []uint64{flags, addr[i], addr[i] - far, uint64(len(s.Bytes)), 0, s.Align, 0} { // two halves of a word are link and info
			out = le.AppendUint64(out, x)
		}
	}
	le.PutUint64(out[40:], shoff)
	le.PutUint16(out[60:], uint16(f.shnum+uint64(len(list))))
	return out
}

func zeros(n uint64) []byte { return make([]byte, n) }
