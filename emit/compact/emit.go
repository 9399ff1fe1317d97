package compact

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/unspool/unspool/rows"
)

// ErrTooLarge says that a table does not fit the layout: it would exceed 4 GiB.
var ErrTooLarge = errors.New("compact table: more than 4 GiB")

// Emit returns the compact table of t: the same bytes for the same table. Left out is what Step does not
// look at: rules of registers that a walker does not carry, such as vector registers, and rules that
// only repeat the ABI's default. The tables of machines whose frames cannot be walked are complete.
func Emit(t *rows.Table) ([]byte, error) {
	if uint64(len(t.Rows)) >= math.MaxUint32/2 {
		return nil, ErrTooLarge
	}
	e := emitter{t: t, sh: shapeOf(t.Machine), pools: pools{index: map[string]uint64{}}}
	if err := e.encodeRules(); err != nil {
		return nil, err
	}
	e.merge()
	e.cutSpans()
	e.layRows()
	return e.join()
}

type emitter struct {
	t  *rows.Table
	sh shape
	pools

	ids      []uint32 // rule of each set
	rules    []byte
	shift    uint
	rows     []rows.Row // neighbours have different rules
	spans    []byte
	regions  []byte
	granules []byte
	body     []byte // lows and ids
	nrows    int
	dir      []byte // escapes
	keys     []byte
	escs     []uint32
	cuts     []cut
}

// A cut is a run of rows that form a span: rows[first:last] in [lo, hi).
type cut struct {
	first, last int
	lo, hi      uint64
	shift       uint
}

// encodeRules encodes each set and numbers the distinct encodings, the commonest first. Rule 0 is the gap.
func (e *emitter) encodeRules() error {
	uses := make([]int, len(e.t.Sets))
	for i := range e.t.Rows {
		uses[e.t.Rows[i].Set]++
	}
	type draft struct {
		at    int // of its rule in all
		uses  int
		first int // set
	}
	all := make([]byte, e.sh.size)
	drafts := []draft{{uses: math.MaxInt}}
	index := make(map[string]int, len(e.t.Sets))
	var scratch []rows.Rule
	draftOf := make([]int, len(e.t.Sets))
	buf := make([]byte, e.sh.size)
	for i := range e.t.Sets {
		if i == int(rows.GapID) || uses[i] == 0 {
			continue
		}
		s := e.sh.normal(&e.t.Sets[i], scratch)
		scratch = s.Rules[:0]
		if len(s.Rules) > math.MaxUint8 {
			return fmt.Errorf("compact table: a set has %d rules", len(s.Rules))
		}
		clear(buf)
		key := buf
		undo := len(e.wides)
		if !e.sh.fixed(buf, &s) {
			clear(buf)
			at := e.wide(&s)
			key = e.wides[at:]
			buf[ruleCFA] = kindWide
			le.PutUint16(buf[ruleFlags:], uint16(s.Flags))
			le.PutUint32(buf[ruleOff:], uint32(at))
			if uint64(len(e.wides)) > math.MaxUint32 || uint64(len(e.exprs)) > math.MaxUint32 {
				return ErrTooLarge
			}
		}
		d, dup := index[string(key)]
		if dup {
			e.wides = e.wides[:undo]
		} else {
			d = len(drafts)
			index[string(key)] = d
			drafts = append(drafts, draft{at: len(all), first: i})
			all = append(all, buf...)
		}
		drafts[d].uses += uses[i]
		draftOf[i] = d
	}
	order := make([]int, len(drafts))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		x, y := &drafts[a], &drafts[b]
		return cmp.Or(cmp.Compare(y.uses, x.uses), cmp.Compare(x.first, y.first))
	})
	idOf := make([]uint32, len(drafts))
	e.rules = make([]byte, 0, len(all))
	for id, d := range order {
		if idOf[d] = uint32(id); id > 0 {
			e.rules = append(e.rules, all[drafts[d].at:][:e.sh.size]...)
		}
	}
	e.ids = make([]uint32, len(e.t.Sets))
	for i := range e.ids {
		e.ids[i] = idOf[draftOf[i]]
	}
	return nil
}

// merge makes the list of rows: the table's own, unless sets that differed only in what was left out are
// equal now and neighbours.
func (e *emitter) merge() {
	rs, ids := e.t.Rows, e.ids
	low := uint64(0)
	last := uint32(0)
	equal := 0
	for i := range rs {
		id := ids[rs[i].Set]
		if id == last {
			equal++
		}
		last = id
		low |= uint64(rs[i].Lo)
	}
	if equal > 0 {
		low, last = 0, 0
		out := make([]rows.Row, 0, len(rs)-equal)
		for _, r := range rs {
			if id := ids[r.Set]; id != last {
				last = id
				low |= uint64(r.Lo)
				out = append(out, r)
			}
		}
		rs = out
	}
	e.rows = rs
	for e.shift < 2 && low>>e.shift&1 == 0 {
		e.shift++
	}
}

// cutSpans cuts the rows where one of them, a gap or not, is so long that bridging it would cost much: it costs
// two bytes for each of its granules. Those that cost less than a new span are bridged, and of the others
// the shortest, as long as they stay within a budget: a larger one for rows, as lookups are faster where there
// is one span only. So a table's size is bounded by the number of its rows.
func (e *emitter) cutSpans() {
	rs := e.rows
	type long struct {
		at    int
		width uint64
	}
	var longs []long
	for i := range len(rs) - 1 {
		if w := uint64(rs[i+1].Lo - rs[i].Lo); e.cost(w) > spanSize {
			longs = append(longs, long{i, w})
		}
	}
	slices.SortFunc(longs, func(a, b long) int {
		return cmp.Or(cmp.Compare(a.width, b.width), cmp.Compare(a.at, b.at))
	})
	gaps, others := uint64(len(rs)/16), uint64(len(rs)/8+1024)
	longs = slices.DeleteFunc(longs, func(l long) bool {
		budget := &others
		if e.ids[rs[l.at].Set] == 0 {
			budget = &gaps
		}
		c := e.cost(l.width)
		if c > *budget {
			return false
		}
		*budget -= c
		return true
	})
	slices.SortFunc(longs, func(a, b long) int { return cmp.Compare(a.at, b.at) })
	first := 0
	span := func(last int, shift uint) {
		if first < last {
			e.cuts = append(e.cuts, cut{first, last, uint64(rs[first].Lo), uint64(rs[last].Lo), shift})
		}
		first = last
	}
	for _, l := range longs {
		span(l.at, e.shift)
		if e.ids[rs[l.at].Set] != 0 {
			span(l.at+1, uint(min(max(bits.Len64(l.width)-granuleBits, int(e.shift)), maxShift)))
		}
		first = l.at + 1
	}
	if n := len(rs); n > 0 {
		span(n-1, e.shift)
	}
}

// cost returns the bytes of index for so many bytes of text.
func (e *emitter) cost(width uint64) uint64 { return width >> (granuleBits + e.shift) * 2 }

// layRows writes spans, regions, granules, rows and escapes.
func (e *emitter) layRows() {
	e.body = make([]byte, 0, 2*len(e.rows)+rowsPad)
	e.granules = make([]byte, 0, 2*len(e.rows)/4)
	ngran := uint32(0)
	for _, c := range e.cuts {
		e.spans = le.AppendUint64(le.AppendUint64(e.spans, c.lo), c.hi)
		e.spans = le.AppendUint32(e.spans, ngran)
		e.spans = le.AppendUint32(e.spans, uint32(len(e.regions)/4))
		e.spans = le.AppendUint64(e.spans, uint64(c.shift))
		base := c.lo >> c.shift &^ (1<<granuleBits - 1)      // in units, as all that follows
		last := (c.hi-1)>>c.shift&^(1<<granuleBits-1) - base // the granule of the last address
		rs := e.rows[c.first:c.last]
		for at := uint64(0); at <= last; at += 1 << granuleBits {
			if at&(1<<regionBits-1) == 0 {
				e.regions = le.AppendUint32(e.regions, uint32(e.nrows))
			}
			e.granules = le.AppendUint16(e.granules, uint16(e.nrows))
			ngran++
			n := 0
			for n < len(rs) {
				lo := uint64(rs[n].Lo)>>c.shift - base - at
				if lo >= 1<<granuleBits {
					break
				}
				e.body = append(e.body, byte(lo))
				n++
			}
			for i := range rs[:n] {
				e.body = append(e.body, e.rowID(e.ids[rs[i].Set]))
			}
			rs = rs[n:]
		}
	}
	if ngran > 0 {
		e.granules = le.AppendUint16(e.granules, uint16(e.nrows))
	}
	e.body = append(e.body, make([]byte, rowsPad)...)
	if len(e.escs) > 0 {
		for len(e.dir)/4 <= e.nrows>>escapeBits+1 {
			e.dir = le.AppendUint32(e.dir, uint32(len(e.escs)))
		}
	}
}

// rowID counts a row and returns the byte for its rule.
func (e *emitter) rowID(id uint32) byte {
	n := e.nrows
	e.nrows++
	if id < escapeID {
		return byte(id)
	}
	for len(e.dir)/4 <= n>>escapeBits {
		e.dir = le.AppendUint32(e.dir, uint32(len(e.escs)))
	}
	e.keys = le.AppendUint16(e.keys, uint16(n&(1<<escapeBits-1)))
	e.escs = append(e.escs, id)
	return escapeID
}

// join puts the parts together.
func (e *emitter) join() ([]byte, error) {
	nrules := len(e.rules)/e.sh.size + 1
	escSize := 2
	if nrules > math.MaxUint16+1 {
		escSize = 4
	}
	origin, origins, err := originsOf(e.t)
	if err != nil {
		return nil, err
	}
	escs := make([]byte, 0, len(e.escs)*escSize)
	for _, id := range e.escs {
		if escSize == 2 {
			escs = le.AppendUint16(escs, uint16(id))
		} else {
			escs = le.AppendUint32(escs, id)
		}
	}
	b := make([]byte, headerSize)
	copy(b, Magic)
	le.PutUint16(b[hdrVersion:], Version)
	le.PutUint16(b[hdrMachine:], e.t.Machine.ELF)
	b[hdrRuleSize], b[hdrNSaves], b[hdrEscSize] = byte(e.sh.size), byte(len(e.sh.saves)), byte(escSize)
	b[hdrSaveScale], b[hdrSP], b[hdrTraits] = byte(e.sh.scale), byte(e.t.Machine.Slot(e.t.Machine.SP)), e.sh.traits()
	b[hdrOrigin], b[hdrNRun] = origin, byte(e.sh.run)
	b = append(b, e.sh.slots...)
	b = append(b, make([]byte, -len(b)&(align-1))...)
	u32 := func(at, v int) { le.PutUint32(b[at:], uint32(v)) }
	u32(hdrNSpans, len(e.spans)/spanSize)
	u32(hdrNRegions, len(e.regions)/4)
	u32(hdrNGranules, max(len(e.granules)/2-1, 0))
	u32(hdrNRows, e.nrows)
	u32(hdrNRules, nrules)
	u32(hdrNEscapes, len(e.escs))
	u32(hdrWideSize, len(e.wides))
	u32(hdrExprSize, len(e.exprs))
	size := uint64(len(b) + len(origins))
	parts := []struct {
		at   int
		data []byte
	}{
		{hdrSpans, e.spans}, {hdrRules, e.rules}, {hdrRegions, e.regions}, {hdrGranules, e.granules}, {hdrRows, e.body},
		{hdrEscDir, e.dir}, {hdrEscKeys, e.keys}, {hdrEscRules, escs}, {hdrWides, e.wides}, {hdrExprs, e.exprs},
	}
	for _, p := range parts {
		size += uint64(len(p.data) + align - 1)
	}
	if size > math.MaxUint32 {
		return nil, ErrTooLarge
	}
	b = slices.Grow(b, int(size)-len(b))
	for _, p := range parts {
		u32(p.at, len(b))
		b = append(b, p.data...)
		b = append(b, make([]byte, -len(b)&(align-1))...)
	}
	u32(hdrRules, int(le.Uint32(b[hdrRules:]))-e.sh.size)
	b = append(b, origins...)
	u32(hdrSize, len(b))
	le.PutUint32(b[hdrChecksum:], checksum(b))
	return b, nil
}
