package compact

import (
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Table is a compact table, used where its bytes lie. It implements rows.Stepper, and is safe for
// concurrent use.
//
// Load checks the whole structure, so that a damaged table is an error at once. Find and Apply check
// what they read nonetheless: bytes that change under a mapping give wrong answers at worst.
type Table struct {
	first    span // most tables have no other
	shift    uint8
	wideEscs bool // the escapes' rules have four bytes
	arm      bool
	ruleBits uint8 // log2 of a rule's size
	nrules   uint32
	saved    uint64 // registers that a call preserves, as slots
	granules []byte
	regions  []byte
	body     []byte
	rules    []byte

	spans   []byte
	dir     []byte
	keys    []byte
	escs    []byte
	wides   []byte
	exprs   []byte
	b       []byte
	nrows   int
	sh      shape
	nspans  int
	ngran   int
	machine *arch.Machine
}

// A span is a range of text with one run of granules.
type span struct {
	lo, size uint64 // of the range
	base     uint64 // address of its first granule
	granule  uint32
	region   uint32
}

func (t *Table) span(i int) span {
	b := t.spans[i*spanSize:]
	s := span{lo: le.Uint64(b[spanLo:]), granule: le.Uint32(b[spanGranule:]), region: le.Uint32(b[spanRegion:])}
	s.size = le.Uint64(b[spanHi:]) - s.lo
	s.base = s.lo &^ (1<<(granuleBits+t.shift) - 1)
	return s
}

// An Error says what is wrong with a table, and where.
type Error struct {
	Off int
	Msg string
}

func (e *Error) Error() string { return fmt.Sprintf("compact table+%#x: %s", e.Off, e.Msg) }

func bad(off int, format string, args ...any) error {
	return &Error{off, fmt.Sprintf(format, args...)}
}

// Load checks a table and returns it. b is not decoded and must not change. Bytes behind the table are
// ignored.
func Load(b []byte) (*Table, error) {
	if len(b) < headerSize {
		return nil, bad(0, "truncated: %d bytes", len(b))
	}
	if string(b[:len(Magic)]) != Magic {
		return nil, bad(0, "not a compact table")
	}
	if v := le.Uint16(b[hdrVersion:]); v != Version {
		return nil, bad(hdrVersion, "version %d, not %d", v, Version)
	}
	u32 := func(at int) uint64 { return uint64(le.Uint32(b[at:])) }
	if n := u32(hdrSize); n > uint64(len(b)) {
		return nil, bad(hdrSize, "truncated: %d of %d bytes", len(b), n)
	} else {
		b = b[:n:n]
	}
	if len(b) < headerSize {
		return nil, bad(hdrSize, "truncated: %d bytes", len(b))
	}
	m := arch.ByELF(le.Uint16(b[hdrMachine:]))
	t := &Table{b: b, machine: m, sh: shapeOf(m), shift: b[hdrShift], wideEscs: b[hdrEscSize] == 4,
		arm: m == arch.ARM64, nrules: uint32(u32(hdrNRules)), saved: m.SavedSlots(), nrows: int(u32(hdrNRows)),
		nspans: int(u32(hdrNSpans)), ngran: int(u32(hdrNGranules)), ruleBits: 4}
	if t.sh.size == 32 {
		t.ruleBits = 5
	}
	if t.shift > maxShift {
		return nil, bad(hdrShift, "shift %d", t.shift)
	}
	if int(b[hdrRuleSize]) != t.sh.size || int(b[hdrSaves]) != len(t.sh.saves) {
		return nil, bad(hdrRuleSize, "rules of %d bytes with %d saves on %s", b[hdrRuleSize], b[hdrSaves], m.Name)
	}
	for i, r := range t.sh.saves {
		if arch.Slot(b[hdrSlots+i]) != m.Slot(r) {
			return nil, bad(hdrSlots+i, "save %d is slot %d, not %s", i, b[hdrSlots+i], m.RegName(r))
		}
	}
	escSize := uint64(b[hdrEscSize])
	if escSize != 2 && escSize != 4 {
		return nil, bad(hdrEscSize, "escapes of %d bytes", escSize)
	}
	ngran, ndir, nesc := u32(hdrNGranules), uint64(0), u32(hdrNEscapes)
	if ngran > 0 {
		ngran++
	}
	if nesc > 0 {
		ndir = u32(hdrNRows)>>escapeBits + 2
	}
	for _, p := range []struct {
		at   int
		size uint64
		to   *[]byte
	}{
		{hdrSpans, u32(hdrNSpans) * spanSize, &t.spans},
		{hdrRules, u32(hdrNRules) * uint64(t.sh.size), &t.rules},
		{hdrRegions, u32(hdrNRegions) * 4, &t.regions},
		{hdrGranules, ngran * 2, &t.granules},
		{hdrRows, u32(hdrNRows)*2 + rowsPad, &t.body},
		{hdrEscDir, ndir * 4, &t.dir},
		{hdrEscKeys, nesc * 2, &t.keys},
		{hdrEscRules, nesc * escSize, &t.escs},
		{hdrWides, u32(hdrWideSize), &t.wides},
		{hdrExprs, u32(hdrExprSize), &t.exprs},
	} {
		off := u32(p.at)
		if off%align != 0 || off < headerSize || off > uint64(len(b)) || p.size > uint64(len(b))-off {
			return nil, bad(p.at, "part of %d bytes at %#x of %#x", p.size, off, len(b))
		}
		*p.to = b[off : off+p.size : off+p.size]
	}
	for _, check := range []func() error{t.checkIndex, t.checkRows, t.checkRules} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	if t.nspans > 0 {
		t.first = t.span(0)
	}
	return t, nil
}

// off returns the offset of part in the table.
func (t *Table) off(field int) int { return int(le.Uint32(t.b[field:])) }

// checkIndex checks spans, regions and granules: each leads to the next part's items, in order.
func (t *Table) checkIndex() error {
	at := t.off(hdrSpans)
	end := uint64(0)
	granule, region := uint64(0), uint64(0)
	row := uint32(0)
	for i := range t.nspans {
		s := t.span(i)
		hi := s.lo + s.size
		if hi <= s.lo || i > 0 && s.lo <= end {
			return bad(at+i*spanSize, "span [%#x, %#x)", s.lo, hi)
		}
		end = hi
		if uint64(s.granule) != granule || uint64(s.region) != region {
			return bad(at+i*spanSize, "span starts at granule %d, region %d", s.granule, s.region)
		}
		n := (hi-1-s.base)>>(granuleBits+t.shift) + 1
		if n > uint64(t.ngran)-granule {
			return bad(at+i*spanSize, "span of %d granules, %d are left", n, uint64(t.ngran)-granule)
		}
		nr := (n-1)>>(regionBits-granuleBits) + 1
		if nr > uint64(len(t.regions)/4)-region {
			return bad(at+i*spanSize, "span of %d regions", nr)
		}
		for k := range n {
			if k%(1<<(regionBits-granuleBits)) == 0 {
				if x := le.Uint32(t.regions[4*region:]); x != row {
					return bad(t.off(hdrRegions)+int(4*region), "region starts at row %d, not %d", x, row)
				}
				region++
			}
			a, e := le.Uint16(t.granules[2*granule:]), le.Uint16(t.granules[2*granule+2:])
			if a != uint16(row) || e-a > 1<<granuleBits {
				return bad(t.off(hdrGranules)+int(2*granule), "granule starts at row %d, not %d", a, row)
			}
			row += uint32(e - a)
			if uint64(row) > uint64(t.nrows) {
				return bad(t.off(hdrGranules)+int(2*granule), "row %d of %d", row, t.nrows)
			}
			granule++
		}
	}
	if granule != uint64(t.ngran) || region != uint64(len(t.regions)/4) || uint64(row) != uint64(t.nrows) {
		return bad(at, "spans hold %d granules, %d regions, %d rows", granule, region, row)
	}
	return nil
}

// checkRows checks that rows ascend, that a span starts with its first row, and that rules exist.
func (t *Table) checkRows() error {
	nesc := 0
	body := t.off(hdrRows)
	for i := range t.nspans {
		s := t.span(i)
		n := (s.lo + s.size - 1 - s.base) >> (granuleBits + t.shift)
		for g := uint64(0); g <= n; g++ {
			blk, at := t.block(uint64(s.granule)+g, s.region+uint32(g>>(regionBits-granuleBits)))
			n := len(blk) / 2
			last := -1
			if g == 0 {
				first := int(s.lo>>t.shift) & (1<<granuleBits - 1)
				if n == 0 || int(blk[0]) != first || s.lo&(1<<t.shift-1) != 0 {
					return bad(body+int(at), "the first row of the span at %#x", s.lo)
				}
			}
			for k, lo := range blk[:n] {
				if int(lo) <= last {
					return bad(body+int(at)+k, "rows do not ascend")
				}
				last = int(lo)
			}
			if g == n0(s, t) && last > int((s.lo+s.size-1)>>t.shift)&(1<<granuleBits-1) {
				return bad(body+int(at), "a row behind the span's end %#x", s.lo+s.size)
			}
			for k, id := range blk[n:] {
				if id != escapeID {
					if uint32(id) >= t.nrules {
						return bad(body+int(at)+n+k, "rule %d of %d", id, t.nrules)
					}
					continue
				}
				row := uint32(at/2) + uint32(k)
				if nesc >= len(t.keys)/2 || uint32(le.Uint16(t.keys[2*nesc:])) != row&(1<<escapeBits-1) {
					return bad(t.off(hdrEscKeys)+2*nesc, "row %d has no escape", row)
				}
				if d := row >> escapeBits; uint32(nesc) < le.Uint32(t.dir[4*d:]) || uint32(nesc) >= le.Uint32(t.dir[4*d+4:]) {
					return bad(t.off(hdrEscDir)+int(4*d), "escape %d is not in its place", nesc)
				}
				if x := t.escape(nesc); x >= t.nrules {
					return bad(t.off(hdrEscRules), "escape %d has rule %d of %d", nesc, x, t.nrules)
				}
				nesc++
			}
		}
	}
	if nesc != len(t.keys)/2 {
		return bad(t.off(hdrEscKeys), "%d escapes for %d rows", len(t.keys)/2, nesc)
	}
	for i := 4; i < len(t.dir); i += 4 {
		if le.Uint32(t.dir[i:]) < le.Uint32(t.dir[i-4:]) || uint64(le.Uint32(t.dir[i:])) > uint64(nesc) {
			return bad(t.off(hdrEscDir)+i, "directory of escapes does not ascend")
		}
	}
	return nil
}

func n0(s span, t *Table) uint64 { return (s.lo + s.size - 1 - s.base) >> (granuleBits + t.shift) }

// block returns the lows and ids of a granule, and their offset in the rows. It returns nothing if
// the granule does not exist.
func (t *Table) block(g uint64, region uint32) (blk []byte, at uint64) {
	if 4*uint64(region)+4 > uint64(len(t.regions)) || 2*g+4 > uint64(len(t.granules)) {
		return nil, 0
	}
	base := le.Uint32(t.regions[4*region:])
	w := le.Uint32(t.granules[2*g:])
	start := base + uint32(uint16(w)-uint16(base))
	n := uint64(uint16(w>>16) - uint16(w))
	at = 2 * uint64(start)
	if at+2*n > uint64(len(t.body)) {
		return nil, 0
	}
	return t.body[at : at+2*n], at
}

// escape returns the rule of the i-th escape.
func (t *Table) escape(i int) uint32 {
	if t.wideEscs {
		return le.Uint32(t.escs[4*i:])
	}
	return uint32(le.Uint16(t.escs[2*i:]))
}

// checkRules checks each rule, and what wide ones point to.
func (t *Table) checkRules() error {
	at := t.off(hdrRules)
	if t.nrules == 0 {
		return bad(at, "no rules")
	}
	for id := range t.nrules {
		r := t.rule(id)
		at := at + int(id)<<t.ruleBits
		if id == 0 && (r[ruleKind] != kindNone || r[ruleFlags] != 0) {
			return bad(at, "rule 0 is not a gap")
		}
		if r[ruleKind] >= numKinds {
			return bad(at, "kind %d", r[ruleKind])
		}
		if r[ruleReg] >= arch.NumSlots {
			return bad(at+ruleReg, "slot %d", r[ruleReg])
		}
		if r[ruleKind] == kindWide {
			if err := t.checkWide(le.Uint32(r[ruleOff:])); err != nil {
				return err
			}
		} else if !t.machine.StepKnown && id != 0 {
			return bad(at, "a fixed rule on %s", t.machine.Name)
		}
	}
	return nil
}

func (t *Table) checkWide(off uint32) error {
	w, ok := t.wide(off)
	at := t.off(hdrWides) + int(off)
	if !ok || off%align != 0 {
		return bad(at, "a wide rule that is cut off")
	}
	if rows.CFAKind(w.head[wideCFAKind]) >= rows.NumCFAKinds {
		return bad(at, "CFA kind %d", w.head[wideCFAKind])
	}
	if rows.CFAKind(w.head[wideCFAKind]) == rows.CFAExpr {
		if _, ok := t.expr(le.Uint64(w.head[wideOff:])); !ok {
			return bad(at, "an expression that is cut off")
		}
	}
	for i := range w.n {
		r := w.rules[i*wruleSize:]
		switch k := rows.Kind(r[wruleKind]); {
		case k >= rows.NumKinds:
			return bad(at, "rule kind %d", k)
		case k == rows.Expr || k == rows.ValExpr:
			if _, ok := t.expr(le.Uint64(r[wruleOff:])); !ok {
				return bad(at, "an expression that is cut off")
			}
		}
	}
	return nil
}

// rule returns the bytes of rule id, which must exist.
func (t *Table) rule(id uint32) []byte {
	return t.rules[int(id)<<t.ruleBits:][:1<<t.ruleBits]
}

// Machine returns the machine that the table is for.
func (t *Table) Machine() *arch.Machine { return t.machine }

// Bytes returns the table itself.
func (t *Table) Bytes() []byte { return t.b }

// Rows calls yield for each row, in ascending order, with its first address and its rule, until yield
// returns false. A row holds until the next one; the last one is a gap. Gaps have id 0.
func (t *Table) Rows(yield func(lo arch.Vaddr, id uint32, gap bool) bool) {
	gap := true // what holds before the row
	for i := range t.nspans {
		s := t.span(i)
		for g := range n0(s, t) + 1 {
			blk, at := t.block(uint64(s.granule)+g, s.region+uint32(g>>(regionBits-granuleBits)))
			n := len(blk) / 2
			for k, lo := range blk[:n] {
				id := uint32(blk[n+k])
				if id == escapeID {
					id = t.escaped(uint32(at/2) + uint32(k))
				}
				addr := s.base + g<<(granuleBits+t.shift) + uint64(lo)<<t.shift
				if gap = id == 0; !yield(arch.Vaddr(addr), id, gap) {
					return
				}
			}
		}
		if !gap && !yield(arch.Vaddr(s.lo+s.size), 0, true) {
			return
		}
		gap = true
	}
}

// Set returns what rule id says; the gap for an id that does not exist. Expressions alias the table.
func (t *Table) Set(id uint32) rows.Set {
	if id == 0 || id >= t.nrules {
		return rows.Set{}
	}
	r := t.rule(id)
	if r[ruleKind] != kindWide {
		return t.sh.fixedSet(r)
	}
	w, ok := t.wide(le.Uint32(r[ruleOff:]))
	if !ok {
		return rows.Set{}
	}
	return w.set(t)
}

// Stats are the figures of a table.
type Stats struct {
	Rows     int // gaps included, the one at the end too
	Rules    int // distinct ones; the gap is not counted
	Wide     int // of them in full, because they do not fit a rule of fixed size
	Escapes  int // rows whose rule is not among the 254 commonest
	Spans    int
	Granules int

	Bytes      int // of the whole table
	HeaderSize int // with the spans, regions and padding
	IndexSize  int // granules
	RowsSize   int
	EscapeSize int
	RuleSize   int
	WideSize   int // with their expressions
}

// Stats returns the figures of t.
func (t *Table) Stats() Stats {
	s := Stats{Rules: int(t.nrules) - 1, Escapes: len(t.keys) / 2, Spans: t.nspans, Granules: t.ngran, Bytes: len(t.b)}
	t.Rows(func(arch.Vaddr, uint32, bool) bool { s.Rows++; return true })
	for id := range t.nrules {
		if t.rule(id)[ruleKind] == kindWide {
			s.Wide++
		}
	}
	s.IndexSize, s.RowsSize, s.RuleSize = len(t.granules), len(t.body), len(t.rules)
	s.EscapeSize = len(t.dir) + len(t.keys) + len(t.escs)
	s.WideSize = len(t.wides) + len(t.exprs)
	s.HeaderSize = s.Bytes - s.IndexSize - s.RowsSize - s.RuleSize - s.EscapeSize - s.WideSize
	return s
}
