package debuginfo

import (
	"path/filepath"
	"slices"
	"strings"
)

// A packageIndex is .debug_cu_index of a .dwp (DWARF 5, section 7.3.5.3; version 2 is GNU's, of DWARF 4).
type packageIndex struct {
	version                    uint64
	columns, units, slots      uint64
	hashes, rows, ids, offsets cursor // as many as there are slots, slots, columns, units times columns
}

// Kinds of columns in the index.
const (
	DW_SECT_INFO        = 1
	DW_SECT_ABBREV      = 3
	DW_SECT_STR_OFFSETS = 6
	DW_SECT_RNGLISTS    = 8 // version 5
)

// packageIndex reads the header; nil where the file is no package.
func (f *file) packageIndex() *packageIndex {
	b := f.data(".debug_cu_index")
	if b == nil {
		return nil
	}
	c := cursorAt(b, 0, uint64(len(b)), f.big)
	x := &packageIndex{version: c.uint(4)}
	if x.version != 2 {
		c.off = 0
		x.version = c.uint(2)
		c.skip(2)
	}
	x.columns, x.units, x.slots = c.uint(4), c.uint(4), c.uint(4)
	cut := func(n uint64) cursor {
		part := c
		c.skip(n)
		return part
	}
	x.hashes, x.rows, x.ids = cut(8*x.slots), cut(4*x.slots), cut(4*x.columns)
	x.offsets = cut(4 * x.columns * min(x.units, 1<<28))
	if c.bad || x.columns > 16 || x.version != 2 && x.version != 5 || x.slots&(x.slots-1) != 0 {
		f.in.note("%s: .debug_cu_index: malformed", f.img.Name())
		return nil
	}
	return x
}

// maxProbes bounds the slots that are looked at: a third of them is free.
const maxProbes = 1 << 12

// find returns where a unit's parts of the sections begin, by DW_SECT.
func (x *packageIndex) find(id uint64) (parts [9]uint64, ok bool) {
	mask := x.slots - 1
	for n, h := uint64(0), id&mask; n < min(x.slots, maxProbes); n, h = n+1, (h+(id>>32&mask|1))&mask {
		hash, row := x.hashes, x.rows
		hash.skip(8 * h)
		row.skip(4 * h)
		sum, r := hash.uint(8), row.uint(4)
		if r == 0 {
			return parts, false
		}
		if sum != id {
			continue
		}
		if r > x.units {
			return parts, false
		}
		ids, at := x.ids, x.offsets
		at.skip(4 * x.columns * (r - 1))
		for range x.columns {
			if s, off := ids.uint(4), at.uint(4); s < uint64(len(parts)) {
				parts[s] = off
			}
		}
		return parts, true
	}
	return parts, false
}

// splitUnit returns the unit with a skeleton's ID, or nil.
func (f *file) splitUnit(skeleton *unit) *unit {
	if x := f.index(); x != nil {
		parts, ok := x.find(skeleton.dwoID)
		if !ok {
			return nil
		}
		if x.version == 2 {
			parts[DW_SECT_RNGLISTS] = 0 // there it is .debug_macro
		}
		return f.readSplit(parts[DW_SECT_INFO], skeleton, &parts)
	}
	for _, off := range f.heads() {
		if !f.in.spend(rangeWork) {
			break
		}
		if u := f.readSplit(off, skeleton, new([9]uint64)); u != nil {
			return u
		}
	}
	return nil
}

func (f *file) readSplit(off uint64, skeleton *unit, parts *[9]uint64) *unit {
	u, abbrev := f.head(off)
	if u == nil || u.version == 5 && u.typ != DW_UT_split_compile {
		return nil
	}
	u.skeleton = skeleton
	u.abbrevs = f.in.abbrevs(f, parts[DW_SECT_ABBREV]+abbrev)
	u.strBase += parts[DW_SECT_STR_OFFSETS]
	u.rngBase += parts[DW_SECT_RNGLISTS]
	if !u.readRoot() || u.dwoID != skeleton.dwoID || u.addrSize != skeleton.addrSize {
		return nil
	}
	return u
}

// split returns the unit that a skeleton stands for, from the package beside the file or else from the file that the
// skeleton names; nil where it is missing.
func (in *Info) split(u *unit) *unit {
	name := string(u.str(u.root.dwoName))
	if dwp := in.dwp(); dwp != nil {
		if s := dwp.splitUnit(u); s != nil {
			return s
		}
	}
	path := name
	if !filepath.IsAbs(path) {
		path = join(string(u.str(u.root.compDir)), name)
	}
	f := in.splitFile(path)
	if f == nil {
		return nil
	}
	s := f.splitUnit(u)
	if s == nil {
		in.note("%s: no unit with the ID %#x", path, u.dwoID)
	}
	return s
}

// openPackage opens the .dwp beside the file; a separate debug file has that of the file that it was taken from.
func (in *Info) openPackage() *file {
	name := in.main.img.Name()
	for _, path := range slices.Compact([]string{name + ".dwp", strings.TrimSuffix(name, ".debug") + ".dwp"}) {
		if img := in.try(path, nil); img != nil {
			return newFile(in, img, true)
		}
	}
	return nil
}
