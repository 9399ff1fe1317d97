package module

import (
	"debug/elf"
	"encoding/binary"

	"github.com/unspool/unspool/arch"
)

// dynamic calls each with the entries of PT_DYNAMIC.
func (img *Image) dynamic(each func(tag elf.DynTag, v uint64)) {
	for i := range img.segs {
		s := &img.segs[i]
		if s.Kind != Dynamic {
			continue
		}
		b, _ := img.Contents(s)
		entry := 8
		if img.is64 {
			entry = 16
		}
		for ; len(b) >= entry; b = b[entry:] {
			f := img.fields(b)
			tag, v := elf.DynTag(f.word()), f.word()
			if tag == elf.DT_NULL {
				break
			}
			each(tag, v)
		}
		return
	}
}

// dynsym finds the dynamic symbols through PT_DYNAMIC. Their number is what the hash table says
// (DT_HASH), or the last chain's end (DT_GNU_HASH).
func (img *Image) dynsym() (syms, names []byte) {
	var symtab, strtab, strsz, hash, gnu uint64
	img.dynamic(func(tag elf.DynTag, v uint64) {
		switch tag {
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
	})
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

// relative says whether a relocation adds the load address to a number, and nothing else.
func relative(typ uint32) bool {
	return typ == uint32(elf.R_X86_64_RELATIVE) || typ == uint32(elf.R_AARCH64_RELATIVE)
}

// Rebased calls each with the words of a position-independent program that the loader sets: their addresses, and their values as if the
// program was loaded at its link-time address. 64 bits only.
func (img *Image) Rebased(each func(at, v uint64)) {
	if img.typ != elf.ET_DYN || !img.is64 {
		return
	}
	var table, size uint64
	img.dynamic(func(tag elf.DynTag, v uint64) {
		switch tag {
		case elf.DT_RELA:
			table = v
		case elf.DT_RELASZ:
			size = v
		}
	})
	all := img.Tail(arch.Vaddr(table))
	for all = all[:min(size, uint64(len(all)))]; len(all) >= 24; all = all[24:] {
		if relative(uint32(img.order.Uint64(all[8:]))) {
			each(img.order.Uint64(all), img.order.Uint64(all[16:]))
		}
	}
}

// A Binding is a word that the dynamic linker sets to the address of a function or of data.
type Binding struct {
	At       uint64
	Table    *SymbolTable // of Symbol
	Symbol   int          // 0: none
	Resolver uint64       // without a symbol: the address of the function that chooses, or 0
}

// Bindings calls each with the bindings of a 64-bit little-endian file, from the last to the first of each table, until each returns false.
// Linkers put relocations without a symbol first, up to a million of them: reading stops at these.
func (img *Image) Bindings(each func(*Binding) bool) {
	const size = 24 // Elf64_Rela
	le := binary.LittleEndian
	total := img.Size()
	for i := range img.secs {
		sec := &img.secs[i]
		if sec.elf.typ != elf.SHT_RELA || sec.Compressed {
			continue
		}
		b, err := img.Data(sec)
		if total -= int64(len(b)); err != nil || total < 0 {
			continue
		}
		syms, _ := img.symbolTable(sec.elf.link)
		for at := len(b)/size*size - size; at >= 0; at -= size {
			info := le.Uint64(b[at+8:])
			typ := uint32(info)
			if relative(typ) {
				break
			}
			x := Binding{At: le.Uint64(b[at:]), Table: &syms}
			if sym := int(info >> 32); sym > 0 && sym < syms.Len() {
				x.Symbol = sym
			} else if typ == uint32(elf.R_X86_64_IRELATIVE) || typ == uint32(elf.R_AARCH64_IRELATIVE) {
				x.Resolver = le.Uint64(b[at+16:])
			}
			if !each(&x) {
				return
			}
		}
	}
}
