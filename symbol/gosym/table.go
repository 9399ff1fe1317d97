// Package gosym reads the table of functions and lines that every Go program carries for its own run time, stripped or not:
// pclntab, with its functions, their files and lines, and what was inlined into them.
//
// It reads the layouts of Go 1.2, 1.16, 1.18 and 1.20, which is that of Go 1.26 too (Go: runtime/symtab.go, runtime/symtabinl.go,
// internal/abi/symtab.go; "Go 1.2 Runtime Symbol Information"). Inlined calls are known since Go 1.18.
package gosym

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// The layouts, by pcHeader.magic.
const (
	go12  = 0xfffffffb
	go116 = 0xfffffffa
	go118 = 0xfffffff0 // offsets from the text's start in place of addresses
	go120 = 0xfffffff1 // lines at which functions start
)

// A Table is a program's pclntab. It is safe for concurrent use as long as its image is open.
type Table struct {
	b       []byte // from the header to the end of what there is
	order   binary.ByteOrder
	magic   uint32
	quantum uint64 // least size of an instruction
	ptr     int    // bytes
	n       int    // functions
	text    uint64 // what offsets of functions are from

	names, units, files, numbers, funcs []byte // parts of b; the offsets that lead to them are from their starts

	inlined []byte // what funcdata offsets are from; nil: not known
}

const (
	maxFuncs = 1 << 24
	maxName  = 1 << 12 // bytes of names of functions and files; longer ones are cut
)

// Open finds the table of a Go program. It returns nil without an error where there is none.
func Open(img *module.Image) (*Table, error) {
	b, addr, err := find(img)
	if b == nil {
		return nil, err
	}
	t, err := parse(b, img.Order())
	if err != nil {
		return nil, fmt.Errorf("%s: pclntab at %#x: %w", img.Name(), uint64(addr), err)
	}
	if t.magic == go118 || t.magic == go120 {
		t.place(img, addr)
	}
	return t, nil
}

// parse reads the header.
func parse(b []byte, order binary.ByteOrder) (*Table, error) {
	if len(b) < 16 {
		return nil, module.ErrTruncated
	}
	t := &Table{b: b, order: order, magic: order.Uint32(b), quantum: uint64(b[6]), ptr: int(b[7])}
	if b[4] != 0 || b[5] != 0 || t.quantum != 1 && t.quantum != 2 && t.quantum != 4 || t.ptr != 4 && t.ptr != 8 {
		return nil, fmt.Errorf("header % x: %w", b[:8], module.ErrMalformed)
	}
	head := func(i int) uint64 { return t.word(b, uint64(8+i*t.ptr)) }
	n := head(0)
	if n > maxFuncs {
		return nil, fmt.Errorf("%d functions: %w", n, module.ErrUnsupported)
	}
	t.n = int(n)
	part := func(i int) []byte { return b[min(head(i), uint64(len(b))):] }
	switch t.magic {
	case go12:
		t.names, t.units, t.files, t.numbers = b, b, b, b
		t.funcs = b[min(8+t.ptr, len(b)):]
	case go116:
		t.names, t.units, t.files, t.numbers, t.funcs = part(2), part(3), part(4), part(5), part(6)
	case go118, go120:
		t.text = head(2)
		t.names, t.units, t.files, t.numbers, t.funcs = part(3), part(4), part(5), part(6), part(7)
	default:
		return nil, fmt.Errorf("magic %#x: %w", t.magic, module.ErrUnsupported)
	}
	if size := t.n*2*t.width() + t.width(); t.n == 0 || len(t.funcs) < size {
		return nil, fmt.Errorf("%d functions in %d bytes: %w", n, len(t.funcs), module.ErrTruncated)
	}
	if t.magic == go12 { // the table of files is where the last word of that of functions says
		at := t.u32(t.funcs, uint64(t.n*2*t.width()+t.width()))
		t.units = b[min(uint64(at), uint64(len(b))):]
	}
	return t, nil
}

// word reads a pointer at off; 0 outside.
func (t *Table) word(b []byte, off uint64) uint64 {
	if t.ptr == 4 {
		return uint64(t.u32(b, off))
	}
	if off > uint64(len(b)) || len(b)-int(off) < 8 {
		return 0
	}
	return t.order.Uint64(b[off:])
}

func (t *Table) u32(b []byte, off uint64) uint32 {
	if off > uint64(len(b)) || len(b)-int(off) < 4 {
		return 0
	}
	return t.order.Uint32(b[off:])
}

// str reads the string at off.
func str(b []byte, off uint64) string {
	if off >= uint64(len(b)) {
		return ""
	}
	b = b[off:][:min(maxName, uint64(len(b))-off)]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// width is the size of the numbers in the table of functions: pairs of where one starts and where its description is.
func (t *Table) width() int {
	if t.magic == go118 || t.magic == go120 {
		return 4
	}
	return t.ptr
}

func (t *Table) entry(k int) uint64 {
	if t.width() == 4 {
		return uint64(t.u32(t.funcs, uint64(k)*4))
	}
	return t.word(t.funcs, uint64(k)*8)
}

// start returns where function i starts; i may be their number.
func (t *Table) start(i int) arch.Vaddr { return arch.Vaddr(t.text + t.entry(2*i)) }

// index returns the function that contains v.
func (t *Table) index(v arch.Vaddr) (i int, ok bool) {
	i = sort.Search(t.n, func(i int) bool { return t.start(i) > v }) - 1
	return i, i >= 0 && v < t.start(i+1)
}

// Funcs calls yield with the functions, until it says no. Between some of them the table has nothing but padding, which belongs to the
// function before it.
func (t *Table) Funcs(yield func(name string, lo, hi arch.Vaddr) bool) {
	for i := range t.n {
		if lo, hi := t.start(i), t.start(i+1); lo < hi {
			if f := t.fn(i); !yield(t.name(f.nameOff), lo, hi) {
				return
			}
		}
	}
}

// name returns the name at an offset.
func (t *Table) name(off uint32) string { return str(t.names, uint64(off)) }

// A fn is a function's description (runtime._func).
type fn struct {
	entry            arch.Vaddr
	nameOff          uint32
	file, line, tree uint32 // offsets of tables of numbers; 0: none
	unit             uint32
	inline           uint32 // offset of the inlining tree; noTree: none
}

const noTree = ^uint32(0)

// The indices of what is said of inlining, in a function's lists of tables and of other data.
const (
	pcdataInlTreeIndex = 2
	funcdataInlTree    = 3
)

func (t *Table) fn(i int) fn {
	at := t.entry(2*i + 1)
	f := fn{entry: t.start(i), inline: noTree}
	b := t.funcs
	if t.magic == go12 {
		b = t.b
	}
	if at > uint64(len(b)) {
		return f
	}
	b = b[at:]
	if t.magic == go118 || t.magic == go120 {
		b = b[min(4, len(b)):] // the entry's offset
	} else {
		b = b[min(t.ptr, len(b)):]
	}
	field := func(i uint64) uint32 { return t.u32(b, 4*i) }
	f.nameOff, f.file, f.line, f.unit = field(0), field(4), field(5), field(7)
	npcdata, last := uint64(field(6)), uint64(8) // last is the number of the field that ends in the count of funcdata
	switch t.magic {
	case go120:
		last++ // the line at which the function starts
	case go118:
	default:
		return f
	}
	nfuncdata := uint64(0)
	if o := 4*last + 3; o < uint64(len(b)) {
		nfuncdata = uint64(b[o])
	}
	if npcdata > pcdataInlTreeIndex && nfuncdata > funcdataInlTree && npcdata < 256 {
		f.tree = field(last + 1 + pcdataInlTreeIndex)
		f.inline = field(last + 1 + npcdata + funcdataInlTree)
	}
	return f
}

// file returns the name of a file by its number in a unit.
func (t *Table) file(unit uint32, n int32) string {
	if n < 0 {
		return ""
	}
	if t.magic == go12 {
		if off := t.u32(t.units, 4*uint64(n)); n > 0 && off != 0 {
			return str(t.b, uint64(off))
		}
		return ""
	}
	at := 4 * (uint64(unit) + uint64(n))
	if at+4 > uint64(len(t.units)) {
		return ""
	}
	if off := t.u32(t.units, at); off != ^uint32(0) {
		return str(t.files, uint64(off))
	}
	return ""
}
