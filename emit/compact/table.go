package compact

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Table is a compact table, used where its bytes lie. It implements rows.Stepper, and is safe for
// concurrent use.
//
// Load checks the whole structure, so that a damaged table is an error at once. Find and Apply check
// what they read nonetheless: bytes that change under a mapping give wrong answers at worst.
type Table struct {
	first    span  // most tables have no other
	wideEscs bool  // the escapes' rules have four bytes
	six      bool  // Apply has the saves' slots as constants
	inReg    bool  // the return address starts in a register
	ruleBits uint8 // log2 of a rule's size
	sp, ra   uint8 // slots
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
	origins []byte
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
	shift    uint8
}

func (t *Table) span(i int) span {
	b := t.spans[i*spanSize:]
	s := span{lo: le.Uint64(b[spanLo:]), granule: le.Uint32(b[spanGranule:]), region: le.Uint32(b[spanRegion:]), shift: b[spanShift]}
	s.size = le.Uint64(b[spanHi:]) - s.lo
	s.base = s.lo &^ (1<<(granuleBits+s.shift) - 1)
	return s
}

// lastGranule returns the number of s's last granule, counted from its first.
func (s *span) lastGranule() uint64 { return (s.lo + s.size - 1 - s.base) >> (granuleBits + s.shift) }

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

// rule returns the bytes of rule id, which must exist and not be the gap.
func (t *Table) rule(id uint32) []byte {
	return t.rules[int(id-1)<<t.ruleBits:][:1<<t.ruleBits]
}

// isWide says whether rule id, which must exist, is a wide.
func (t *Table) isWide(id uint32) bool {
	return id != 0 && t.rule(id)[ruleCFA]&kindMask == kindWide
}

// Machine returns the machine that the table is for.
func (t *Table) Machine() *arch.Machine { return t.machine }

// NumRules returns the number of rules, with the gap's: ids are below.
func (t *Table) NumRules() int { return int(t.nrules) }

// NumRows returns the number of rows, without the gaps at the ends of spans.
func (t *Table) NumRows() int { return t.nrows }

// Bytes returns the table itself.
func (t *Table) Bytes() []byte { return t.b }

// Rows calls yield for each row, in ascending order, with its first address and its rule, until yield
// returns false. A row holds until the next one; the last one is a gap. Gaps have id 0.
func (t *Table) Rows(yield func(lo arch.Vaddr, id uint32, gap bool) bool) {
	gap := true // what holds before the row
	for i := range t.nspans {
		s := t.span(i)
		for g := range s.lastGranule() + 1 {
			blk, at := t.block(uint64(s.granule)+g, s.region+uint32(g>>(regionBits-granuleBits)))
			n := len(blk) / 2
			for k, lo := range blk[:n] {
				id := uint32(blk[n+k])
				if id == escapeID {
					id = t.escaped(uint32(at/2) + uint32(k))
				}
				addr := max(s.base+g<<(granuleBits+s.shift)+uint64(lo)<<s.shift, s.lo)
				if gap = id == 0; !yield(arch.Vaddr(addr), id, gap) {
					return
				}
			}
		}
		if end := s.lo + s.size; i+1 == t.nspans || t.span(i+1).lo != end {
			if !gap && !yield(arch.Vaddr(end), 0, true) {
				return
			}
			gap = true
		}
	}
}

// Set returns the set of rule id; the gap for an id that does not exist. Expressions alias the table.
func (t *Table) Set(id uint32) rows.Set {
	if id == 0 || id >= t.nrules {
		return rows.Set{}
	}
	r := t.rule(id)
	if kind, _, _ := parts(r); kind != kindWide {
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
	OriginSize int // 0 where all rows have one origin
}

// Stats returns the figures of t.
func (t *Table) Stats() Stats {
	s := Stats{Rules: int(t.nrules) - 1, Escapes: len(t.keys) / 2, Spans: t.nspans, Granules: t.ngran, Bytes: len(t.b)}
	t.Rows(func(arch.Vaddr, uint32, bool) bool { s.Rows++; return true })
	for id := range t.nrules {
		if t.isWide(id) {
			s.Wide++
		}
	}
	s.IndexSize, s.RowsSize, s.RuleSize = len(t.granules), len(t.body), len(t.rules)
	s.EscapeSize = len(t.dir) + len(t.keys) + len(t.escs)
	s.WideSize = len(t.wides) + len(t.exprs)
	s.OriginSize = len(t.origins)
	s.HeaderSize = s.Bytes - s.IndexSize - s.RowsSize - s.RuleSize - s.EscapeSize - s.WideSize - s.OriginSize
	return s
}

// An Index leads from an address to the number of its rule: the parts of a table as they lie in it. Native code searches the same bytes.
type Index struct {
	NumSpans    int
	First       Span // of several spans the first one
	Spans       []byte
	Regions     []byte
	Granules    []byte
	Rows        []byte // with the zeros behind them
	EscapeDir   []byte
	EscapeKeys  []byte
	EscapeRules []byte
	EscapeSize  int // bytes of an escape's rule
}

// A Span is a range of text with one run of granules.
type Span struct {
	Lo, Hi uint64
	Base   uint64 // where its first granule starts
	Shift  uint8  // a unit is 1 << Shift bytes
}

// Constants of the layout, for searches of an Index.
const (
	GranuleBits = granuleBits
	RegionBits  = regionBits
	EscapeID    = escapeID
	EscapeBits  = escapeBits
)

// Index returns the parts of t that a search needs. They alias the table.
func (t *Table) Index() *Index {
	x := &Index{NumSpans: t.nspans, Spans: t.spans, Regions: t.regions, Granules: t.granules, Rows: t.body,
		EscapeDir: t.dir, EscapeKeys: t.keys, EscapeRules: t.escs, EscapeSize: 2}
	if t.wideEscs {
		x.EscapeSize = 4
	}
	if t.nspans > 0 {
		s := t.span(0)
		x.First = Span{Lo: s.lo, Hi: s.lo + s.size, Base: s.base, Shift: s.shift}
	}
	return x
}
