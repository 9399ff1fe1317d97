package orc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// What a copy of an object needs to know of ELF (System V ABI, chapter 4; its supplement for x86-64).
const (
	ehsize, shentsize, symsize = 64, 64, 24

	etRel, emAMD64 = 1, 62

	shtProgbits, shtSymtab, shtRela, shtSymtabShndx = 1, 2, 4, 18
	shfAlloc, shfExec, shfInfoLink, shfGroup        = 2, 4, 0x40, 0x200
	shnLoReserve, shnXIndex                         = 0xff00, 0xffff

	sttSection, stbWeak = 3, 2
	amd64PC32           = 2 // R_X86_64_PC32
)

// A Place returns the section that has an address of an object's rows, by its number, and the offset there. The end of a section belongs to it.
type Place func(arch.Vaddr) (section int, off uint64, ok bool)

// Add returns a copy of an object file for x86-64 with ORC for a version of Linux, made from t: the rows of the file. As objtool does, it adds
// no .orc_header: a module has one for all its objects. Code in a group of sections is refused: ORC of code that a linker discards would stay.
func Add(file []byte, t *rows.Table, v Version, place Place) ([]byte, *Table, error) {
	f, err := readObject(file)
	if err != nil {
		return nil, nil, err
	}
	x, err := Emit(t, v)
	if err != nil {
		return nil, nil, err
	}
	grouped := func(a arch.Vaddr) bool { i, _, ok := place(a); return ok && i < f.shnum && f.field(i, 8)&shfGroup != 0 }
	for i, r := range t.Rows {
		if !t.Sets[r.Set].Gap() && grouped(r.Lo) {
			x.Refused = append(x.Refused, Refusal{r.Lo, t.Hi(i), "in a group of sections, which a linker may discard"})
		}
	}
	var addrs []arch.Vaddr
	var entries, rela []byte
	le := binary.LittleEndian
	said := false
	for i, a := range x.Addrs {
		section, off, ok := place(a)
		if !ok || section >= f.shnum || f.field(section, 8)&shfExec == 0 {
			return nil, nil, fmt.Errorf("rows at %#x, where no code is", uint64(a))
		}
		if grouped(a) {
			continue
		}
		symbol, ok := f.symbols[section]
		if !ok {
			return nil, nil, fmt.Errorf("section %d has no symbol that an address could be relative to", section)
		}
		e := x.Entries[6*i:][:6]
		said = said || string(e) != "\x00\x00\x00\x00\x00\x00"
		rela = le.AppendUint64(rela, uint64(4*(len(entries)/6)))
		rela = le.AppendUint64(rela, uint64(symbol.index)<<32|amd64PC32)
		rela = le.AppendUint64(rela, off-symbol.value)
		addrs, entries = append(addrs, a), append(entries, e...)
	}
	if !said {
		return nil, x, fmt.Errorf("the file has no rows that ORC can say")
	}
	x.Addrs, x.Entries = addrs, entries
	return f.with(entries, rela), x, nil
}

// An objectFile is an object's section headers, and what its relocations can refer to.
type objectFile struct {
	file    []byte
	headers []byte // of the sections
	shnum   int
	names   []byte // of the sections; their header is number index
	index   int
	symtab  int
	symbols map[int]symbol // by section
}

// A symbol is in a section.
type symbol struct {
	index uint32
	value uint64
	rank  int // the lower, the better a relocation refers to it
}

// field returns a field of 8 bytes of a section's header.
func (f *objectFile) field(section, at int) uint64 {
	return binary.LittleEndian.Uint64(f.headers[shentsize*section+at:])
}

// kind returns the type of a section.
func (f *objectFile) kind(section int) uint32 {
	return binary.LittleEndian.Uint32(f.headers[shentsize*section+4:])
}

// contents returns what a section has in the file.
func (f *objectFile) contents(section int) ([]byte, error) {
	off, size := f.field(section, 24), f.field(section, 32)
	if off > uint64(len(f.file)) || size > uint64(len(f.file))-off {
		return nil, fmt.Errorf("section %d at %#x, of %#x bytes, in a file of %#x", section, off, size, len(f.file))
	}
	return f.file[off:][:size], nil
}

// readObject reads the headers and the symbols of an object file.
func readObject(file []byte) (*objectFile, error) {
	le := binary.LittleEndian
	if len(file) < ehsize || string(file[:6]) != "\x7fELF\x02\x01" || le.Uint16(file[18:]) != emAMD64 {
		return nil, fmt.Errorf("%w: ORC is added to ELF files for x86-64", ErrUnsupported)
	}
	if le.Uint16(file[16:]) != etRel {
		return nil, fmt.Errorf("%w: ORC is added to object files; this file is linked", ErrUnsupported)
	}
	shoff, shnum, index := le.Uint64(file[40:]), uint64(le.Uint16(file[60:])), uint64(le.Uint16(file[62:]))
	if le.Uint16(file[58:]) != shentsize || shoff > uint64(len(file)) || uint64(len(file))-shoff < shentsize {
		return nil, fmt.Errorf("section headers at %#x, in %#x bytes", shoff, len(file))
	}
	f := &objectFile{file: file, headers: file[shoff:], symtab: -1, symbols: map[int]symbol{}}
	if shnum == 0 { // too many for the field
		shnum = f.field(0, 32)
	}
	if index == shnXIndex {
		index = f.field(0, 40) & math.MaxUint32
	}
	if shnum > uint64(len(f.headers))/shentsize || index >= shnum {
		return nil, fmt.Errorf("%d section headers at %#x, and names in section %d, in %#x bytes", shnum, shoff, index, len(file))
	}
	f.headers, f.shnum, f.index = f.headers[:shnum*shentsize], int(shnum), int(index)
	var err error
	if f.names, err = f.contents(f.index); err != nil {
		return nil, err
	}
	if len(f.names) > math.MaxUint32-100 {
		return nil, fmt.Errorf("names of sections of %#x bytes", len(f.names))
	}
	if bytes.Contains(f.names, []byte("\x00.orc_unwind\x00")) {
		return nil, fmt.Errorf("the file has ORC")
	}
	return f, f.readSymbols()
}

// readSymbols finds the best symbol of each section: the section's own, another local one, or a global one that no other file replaces.
func (f *objectFile) readSymbols() error {
	le := binary.LittleEndian
	var extended []byte
	for i := range f.shnum {
		var err error
		switch {
		case f.kind(i) == shtSymtab && f.symtab < 0:
			f.symtab = i
		case f.kind(i) == shtSymtabShndx && extended == nil:
			extended, err = f.contents(i)
		}
		if err != nil {
			return err
		}
	}
	if f.symtab < 0 {
		return fmt.Errorf("the file has no symbols that addresses could be relative to")
	}
	all, err := f.contents(f.symtab)
	if err != nil {
		return err
	}
	for i := 0; len(all) >= symsize; i, all = i+1, all[symsize:] {
		section := int(le.Uint16(all[6:]))
		switch {
		case section == shnXIndex && 4*i+4 <= len(extended):
			section = int(le.Uint32(extended[4*i:]))
		case section >= shnLoReserve:
			continue
		}
		bind := all[4] >> 4
		if section == 0 || bind >= stbWeak {
			continue
		}
		rank := int(bind) + 1
		if all[4]&15 == sttSection {
			rank = 0
		}
		if old, ok := f.symbols[section]; !ok || rank < old.rank {
			f.symbols[section] = symbol{uint32(i), le.Uint64(all[8:]), rank}
		}
	}
	return nil
}

// with returns a copy of the file with the sections of ORC. They lie behind the file, and the section headers and their names behind them.
func (f *objectFile) with(entries, rela []byte) []byte {
	le := binary.LittleEndian
	out := bytes.Clone(f.file)
	names, headers := bytes.Clone(f.names), bytes.Clone(f.headers)
	align := func() {
		for len(out)%8 != 0 {
			out = append(out, 0)
		}
	}
	add := func(name string, typ uint32, flags uint64, contents []byte, link, info int, alignment, entsize uint64) {
		if alignment == 8 {
			align()
		}
		headers = le.AppendUint32(le.AppendUint32(headers, uint32(len(names))), typ)
		for _, x := range []uint64{flags, 0, uint64(len(out)), uint64(len(contents)), uint64(link) | uint64(info)<<32, alignment, entsize} {
			headers = le.AppendUint64(headers, x)
		}
		out, names = append(out, contents...), append(append(names, name...), 0)
	}
	add(".orc_unwind", shtProgbits, shfAlloc, entries, 0, 0, 1, 6)
	add(".orc_unwind_ip", shtProgbits, shfAlloc, make([]byte, len(entries)/6*4), 0, 0, 1, 4)
	add(".rela.orc_unwind_ip", shtRela, shfInfoLink, rela, f.symtab, f.shnum+1, 8, 24)
	h := headers[shentsize*f.index:]
	le.PutUint64(h[24:], uint64(len(out)))
	le.PutUint64(h[32:], uint64(len(names)))
	out = append(out, names...)
	align()
	le.PutUint64(out[40:], uint64(len(out)))
	if n := len(headers) / shentsize; n < shnLoReserve {
		le.PutUint16(out[60:], uint16(n))
	} else {
		le.PutUint16(out[60:], 0)
		le.PutUint64(headers[32:], uint64(n))
	}
	return append(out, headers...)
}
