// Package gosym reads functions, files, lines and inlined calls from pclntab, the table that every Go program carries for its own run time,
// stripped or not.
//
// Package pclntab finds the table and reads its header; gosym reads all layouts that pclntab reads (Go: runtime/symtab.go,
// runtime/symtabinl.go, internal/abi/symtab.go). Tables have inlined calls since Go 1.18.
package gosym

import (
	"bytes"
	"sort"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/pclntab"
	"github.com/unspool/unspool/module"
)

// A Table has a program's names and lines. It is safe for concurrent use as long as its image is open.
type Table struct {
	*pclntab.Header
}

const maxName = 1 << 12 // bytes of names of functions and files; longer ones are cut

// Open finds the table of a Go program. It returns nil without an error if there is none.
func Open(img *module.Image) (*Table, error) {
	h, err := pclntab.Find(img)
	if h == nil || err != nil {
		return nil, err
	}
	return &Table{h}, nil
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

// index returns the function that contains v.
func (t *Table) index(v arch.Vaddr) (i int, ok bool) {
	i = sort.Search(t.N, func(i int) bool { return t.Start(i) > v }) - 1
	return i, i >= 0 && v < t.Start(i+1)
}

// Funcs calls yield with the functions, until yield returns false. Padding between functions belongs to the function before it.
func (t *Table) Funcs(yield func(name string, lo, hi arch.Vaddr) bool) {
	for i := range t.N {
		if lo, hi := t.Start(i), t.Start(i+1); lo < hi {
			if f := t.fn(i); !yield(t.name(f.nameOff), lo, hi) {
				return
			}
		}
	}
}

// name returns the name at an offset.
func (t *Table) name(off uint32) string { return str(t.Names, uint64(off)) }

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
	f := fn{entry: t.Start(i), inline: noTree}
	b := t.Desc(i)
	field := func(i uint64) uint32 { return t.U32(b, 4*i) }
	f.nameOff, f.file, f.line, f.unit = field(0), field(4), field(5), field(7)
	npcdata, last := uint64(field(6)), uint64(8) // last is the number of the field that ends in the count of funcdata
	switch t.Version {
	case pclntab.Go120:
		last++ // the line at which the function starts
	case pclntab.Go118:
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
	if t.Version == pclntab.Go12 {
		if off := t.U32(t.Units, 4*uint64(n)); n > 0 && off != 0 {
			return str(t.Bytes, uint64(off))
		}
		return ""
	}
	at := 4 * (uint64(unit) + uint64(n))
	if at+4 > uint64(len(t.Units)) {
		return ""
	}
	if off := t.U32(t.Units, at); off != ^uint32(0) {
		return str(t.Files, uint64(off))
	}
	return ""
}
