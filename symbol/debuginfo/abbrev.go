package debuginfo

// An abbrev says which attributes a DIE has, in which forms (DWARF 5, section 7.5.3).
type abbrev struct {
	code     uint64
	tag      uint16
	children bool
	sibling  bool // it has DW_AT_sibling
	attrs    []attrSpec

	// The size of a DIE is fixed+addrs*(size of an address)+offs*(size of an offset) bytes, unless fixed < 0.
	fixed, addrs, offs int
}

type attrSpec struct {
	name, form uint16
	implicit   int64
}

// abbrevs are the abbreviations of a unit, read as far as somebody wanted to know: a unit's own DIE mostly has the first.
type abbrevs struct {
	c     cursor
	dense []*abbrev // code-1, as long as codes are numbered so
	other map[uint64]*abbrev
	done  bool
}

// maxAbbrevAttrs bounds the attributes of one abbreviation, maxAbbrevs the bytes of a unit's.
const (
	maxAbbrevAttrs = 1 << 12
	maxAbbrevs     = 1 << 20
)

// abbrevsAt reads the abbreviations at an offset of .debug_abbrev.
func (f *file) abbrevsAt(off uint64) cursor {
	c := f.at(secAbbrev, off)
	c.b = c.b[:min(len(c.b), c.off+maxAbbrevs)]
	return c
}

// get returns an abbreviation, or nil. It is not safe for concurrent use before all was called.
func (t *abbrevs) get(code uint64) *abbrev {
	for {
		if i := code - 1; i < uint64(len(t.dense)) {
			return t.dense[i]
		}
		if a := t.other[code]; a != nil || t.done {
			return a
		}
		t.next()
	}
}

// all reads what is left.
func (t *abbrevs) all() {
	for !t.done {
		t.next()
	}
}

// next reads one more abbreviation.
func (t *abbrevs) next() {
	c := &t.c
	a := &abbrev{code: c.uleb()}
	if a.code == 0 || c.bad {
		t.done = true
		return
	}
	a.tag = uint16(min(c.uleb(), 0xffff))
	a.children = c.u8() != 0
	for {
		s := attrSpec{name: uint16(min(c.uleb(), 0xffff)), form: uint16(min(c.uleb(), 0xffff))}
		if s.form == DW_FORM_implicit_const {
			s.implicit = c.sleb()
		}
		if c.bad || len(a.attrs) > maxAbbrevAttrs {
			t.done = true
			return
		}
		if s.name == 0 && s.form == 0 {
			break
		}
		a.attrs = append(a.attrs, s)
		a.sibling = a.sibling || s.name == DW_AT_sibling
		switch n := formSize(s.form); {
		case n >= 0 && a.fixed >= 0:
			a.fixed += n
		case n == sizeAddr:
			a.addrs++
		case n == sizeOff, n == sizeRef:
			a.offs++
		case n == sizeVar:
			a.fixed = -1
		}
	}
	switch {
	case a.code == uint64(len(t.dense))+1 && t.other == nil:
		t.dense = append(t.dense, a)
	case t.other == nil:
		t.other = map[uint64]*abbrev{a.code: a}
	case t.other[a.code] == nil:
		t.other[a.code] = a
	}
}

// skipDIE moves behind the attributes of a DIE.
func (c *cursor) skipDIE(e *encoding, a *abbrev) {
	if a.fixed >= 0 && (e.version > 2 || e.addrSize == e.offSize) {
		c.skip(uint64(a.fixed + a.addrs*int(e.addrSize) + a.offs*int(e.offSize)))
		return
	}
	for i := range a.attrs {
		c.value(e, a.attrs[i].form, a.attrs[i].implicit)
	}
}
