package debuginfo

// Types of units (DWARF 5, section 7.5.1).
const (
	DW_UT_type          = 2
	DW_UT_skeleton      = 4
	DW_UT_split_compile = 5
	DW_UT_split_type    = 6
)

// A unit is a unit of .debug_info: its header and what its first DIE says. It does not change once it is made.
type unit struct {
	encoding
	f              *file
	off, dies, end uint64 // offsets in .debug_info: the header, the first DIE, the end
	typ            uint8
	abbrevs        *abbrevs
	root           root
	dwoID          uint64

	// Where this unit's part of a section begins, or what indices count from.
	strBase, addrBase, rngBase uint64

	// Of a split unit, the skeleton in the linked file.
	skeleton *unit
}

// A root is what a unit's first DIE says.
type root struct {
	low, high, entry, ranges               value
	lines                                  value
	compDir, dwoName                       value
	strBase, addrBase, rngBase, gnuRngBase value
	gnuDwoID                               value
}

// head reads a unit's header, or returns nil. abbrev is where its abbreviations begin.
func (f *file) head(off uint64) (u *unit, abbrev uint64) {
	c := f.at(secInfo, off)
	n, offSize := c.length()
	if c.bad || n > uint64(len(c.b)-c.off) {
		return nil, 0
	}
	u = &unit{f: f, off: off, end: uint64(c.off) + n}
	c.b = c.b[:u.end]
	u.offSize = offSize
	switch u.version = uint16(c.uint(2)); {
	case u.version >= 2 && u.version <= 4:
		abbrev = c.uint(int(offSize))
		u.addrSize = c.u8()
	case u.version == 5:
		u.typ = c.u8()
		u.addrSize = c.u8()
		abbrev = c.uint(int(offSize))
		// Indices count from behind the sections' first headers where no base is told (sections 7.26 to 7.28).
		u.strBase, u.addrBase, u.rngBase = 2*uint64(offSize), 2*uint64(offSize), rnglistsHeader(offSize)
		switch u.typ {
		case DW_UT_skeleton, DW_UT_split_compile:
			u.dwoID = c.uint(8)
		case DW_UT_type, DW_UT_split_type:
			c.skip(8 + uint64(offSize))
		}
	default:
		return nil, 0
	}
	u.dies = uint64(c.off)
	if c.bad || u.addrSize != 4 && u.addrSize != 8 && u.addrSize != 2 {
		return nil, 0
	}
	return u, abbrev
}

// cursor reads the unit's DIEs from off on.
func (u *unit) cursor(off uint64) cursor {
	if off < u.dies {
		off = u.end + 1 // bad
	}
	return cursorAt(u.f.sec(secInfo), off, u.end, u.f.big)
}

// readRoot reads the first DIE and says whether it could.
func (u *unit) readRoot() bool {
	c := u.cursor(u.dies)
	a := u.abbrevs.get(c.uleb())
	if a == nil {
		return false
	}
	r := &u.root
	for i := range a.attrs {
		s := &a.attrs[i]
		v := c.value(&u.encoding, s.form, s.implicit)
		switch s.name {
		case DW_AT_low_pc:
			r.low = v
		case DW_AT_high_pc:
			r.high = v
		case DW_AT_entry_pc:
			r.entry = v
		case DW_AT_ranges:
			r.ranges = v
		case DW_AT_stmt_list:
			r.lines = v
		case DW_AT_comp_dir:
			r.compDir = v
		case DW_AT_dwo_name, DW_AT_GNU_dwo_name:
			r.dwoName = v
		case DW_AT_GNU_dwo_id:
			u.dwoID = v.u
			r.gnuDwoID = v
		case DW_AT_str_offsets_base:
			r.strBase = v
		case DW_AT_addr_base, DW_AT_GNU_addr_base:
			r.addrBase = v
		case DW_AT_rnglists_base:
			r.rngBase = v
		case DW_AT_GNU_ranges_base:
			r.gnuRngBase = v
		}
	}
	if c.bad {
		return false
	}
	for _, b := range []struct {
		v  value
		to *uint64
	}{{r.strBase, &u.strBase}, {r.addrBase, &u.addrBase}, {r.rngBase, &u.rngBase}} {
		if n, ok := b.v.offset(); ok {
			*b.to = n
		}
	}
	return true
}

// readUnit reads the unit at an offset of .debug_info with all of its abbreviations; nil where there is none.
func (f *file) readUnit(off uint64) *unit {
	u, abbrev := f.head(off)
	if u == nil {
		f.in.note("%s: .debug_info+%#x: malformed unit", f.img.Name(), off)
		return nil
	}
	u.abbrevs = f.in.abbrevs(f, abbrev)
	if !u.readRoot() {
		f.in.note("%s: .debug_info+%#x: malformed DIE", f.img.Name(), u.dies)
		return nil
	}
	return u
}

// str returns the string that v stands for, or nil.
func (u *unit) str(v value) []byte {
	f, sec := u.f, secStr
	switch v.form {
	case DW_FORM_string:
		sec = secInfo
	case DW_FORM_strp:
	case DW_FORM_line_strp:
		sec = secLineStr
	case DW_FORM_GNU_strp_alt, DW_FORM_strp_sup:
		if f = f.alt(); f == nil {
			return nil
		}
	case DW_FORM_strx, DW_FORM_strx1, DW_FORM_strx2, DW_FORM_strx3, DW_FORM_strx4, DW_FORM_GNU_str_index:
		if v.u > 1<<32 {
			return nil
		}
		c := f.at(secStrOffsets, u.strBase+v.u*uint64(u.offSize))
		if v.u = c.uint(int(u.offSize)); c.bad {
			return nil
		}
	default:
		return nil
	}
	c := f.at(sec, v.u)
	return c.str()
}

// addr returns the address that v stands for.
func (u *unit) addr(v value) (uint64, bool) {
	switch v.form {
	case DW_FORM_addr:
		return v.u, true
	case DW_FORM_addrx, DW_FORM_addrx1, DW_FORM_addrx2, DW_FORM_addrx3, DW_FORM_addrx4, DW_FORM_GNU_addr_index:
		return u.addrAt(v.u)
	}
	return 0, false
}

// addrAt returns an address of .debug_addr, which stays in the linked file.
func (u *unit) addrAt(i uint64) (uint64, bool) {
	in := u
	if u.skeleton != nil {
		in = u.skeleton
	}
	if i > 1<<32 {
		return 0, false
	}
	c := in.f.at(secAddr, in.addrBase+i*uint64(u.addrSize))
	a := c.uint(int(u.addrSize))
	return a, !c.bad
}

// ref returns the DIE that v refers to: its unit and offset. The unit is nil where there is none.
func (u *unit) ref(v value) (*unit, uint64) {
	f, off := u.f, v.u
	switch v.form {
	case DW_FORM_ref1, DW_FORM_ref2, DW_FORM_ref4, DW_FORM_ref8, DW_FORM_ref_udata:
		if off >= u.end-u.off {
			return nil, 0
		}
		return u, u.off + off
	case DW_FORM_ref_addr:
	case DW_FORM_GNU_ref_alt, DW_FORM_ref_sup4, DW_FORM_ref_sup8:
		if f = f.alt(); f == nil {
			return nil, 0
		}
	default:
		return nil, 0
	}
	if f == u.f && off >= u.dies && off < u.end {
		return u, off
	}
	return f.unitOf(off), off
}

// base returns what ranges are relative to where they name no base themselves.
func (u *unit) base() uint64 {
	in := u
	if u.skeleton != nil {
		in = u.skeleton
	}
	for _, v := range []value{in.root.low, in.root.entry} {
		if a, ok := in.addr(v); ok {
			return a
		}
	}
	return 0
}

// tombstone is the address of code that the linker left out.
func (u *unit) tombstone() uint64 { return 1<<(8*uint(u.addrSize)-1)<<1 - 1 }
