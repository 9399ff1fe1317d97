package rows

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"math/rand/v2"
	"slices"

	"github.com/unspool/unspool/arch"
)

// A Builder collects the rows of a module, range by range and in any order, and makes the Table. It is
// for one goroutine; several Builders can work side by side and be joined by Build.
type Builder struct {
	Machine *arch.Machine

	sets   []Set
	index  []SetID // a hash table, at most half full: a set's number and one more
	hashes []uint64
	rules  []Rule // the sets' rules are slices of this and its predecessors
	ranges []span
	rows   []Row

	// Ranges that come in ascending order and do not overlap need no passes: Range lays them out as the
	// table will have them, gaps included, and with its numbers of sets. loose says that this is over.
	loose   bool
	end     arch.Vaddr // of the last range
	numbers []SetID    // of each set, its number in the table; unused where no row has it yet
	used    []SetID    // the sets by their numbers in the table
}

// unused is the number of a set that no row has.
const unused = ^SetID(0)

// A span is one FDE's rows, or the like: rows[first:first+n] hold in [lo, hi). The first of them may start
// before lo, if the range before ends with the same Set.
type span struct {
	lo, hi   arch.Vaddr
	first, n int
}

// NewBuilder returns an empty Builder.
func NewBuilder(m *arch.Machine) *Builder {
	b := &Builder{Machine: m, index: make([]SetID, 64)}
	b.number(b.Intern(Set{}))
	return b
}

// Grow makes room for more rows and ranges.
func (b *Builder) Grow(rows, ranges int) {
	if cap(b.rows)-len(b.rows) < rows {
		// Unlike what append does, this touches no memory that is not used in the end.
		b.rows = append(make([]Row, 0, len(b.rows)+rows), b.rows...)
	}
	b.ranges = slices.Grow(b.ranges, ranges)
}

// Len returns the number of rows so far.
func (b *Builder) Len() int { return len(b.rows) }

// Intern returns the id of s, which is copied the first time it is seen. Rules must be sorted by Of.
func (b *Builder) Intern(s Set) SetID {
	h := hashSet(&s)
	mask := uint64(len(b.index) - 1)
	at := h & mask
	for ; b.index[at] != 0; at = (at + 1) & mask {
		if id := b.index[at] - 1; b.hashes[id] == h && equalSets(&b.sets[id], &s) {
			return id
		}
	}
	id := SetID(len(b.sets))
	if n := len(s.Rules); n > 0 {
		if cap(b.rules)-len(b.rules) < n {
			b.rules = make([]Rule, 0, max(n, min(2*cap(b.rules), 4096), 64))
		}
		first := len(b.rules)
		b.rules = append(b.rules, s.Rules...)
		s.Rules = b.rules[first:len(b.rules):len(b.rules)]
	} else {
		s.Rules = nil
	}
	b.sets = append(b.sets, s)
	b.hashes = append(b.hashes, h)
	b.numbers = append(b.numbers, unused)
	b.index[at] = id + 1
	if 2*len(b.sets) > len(b.index) {
		b.index = make([]SetID, 4*len(b.index))
		mask = uint64(len(b.index) - 1)
		for id, h := range b.hashes {
			for at = h & mask; b.index[at] != 0; at = (at + 1) & mask {
			}
			b.index[at] = SetID(id) + 1
		}
	}
	return id
}

// hashSeed keeps hostile files from making sets that collide.
var hashSeed, hashWord = maphash.MakeSeed(), rand.Uint64()

func hashSet(s *Set) uint64 {
	mix := func(h, x uint64) uint64 {
		hi, lo := bits.Mul64(h^x, hashWord|1)
		return hi ^ lo ^ x>>32
	}
	h := mix(hashWord>>1, uint64(s.CFA.Kind)|uint64(s.CFA.Reg)<<16|uint64(s.RA)<<32|uint64(s.Flags)<<48)
	h = mix(mix(h, uint64(s.CFA.Off)), uint64(s.CFA.Off2))
	if s.CFA.Expr != "" {
		h = mix(h, maphash.String(hashSeed, s.CFA.Expr))
	}
	for i := range s.Rules {
		r := &s.Rules[i]
		h = mix(mix(h, uint64(r.Kind)|uint64(r.Of)<<16|uint64(r.Reg)<<32), uint64(r.Off))
		if r.Expr != "" {
			h = mix(h, maphash.String(hashSeed, r.Expr))
		}
	}
	return h
}

func equalSets(a, b *Set) bool {
	return a.CFA == b.CFA && a.RA == b.RA && a.Flags == b.Flags && slices.Equal(a.Rules, b.Rules)
}

// Set returns the Set that Intern gave id for.
func (b *Builder) Set(id SetID) *Set { return &b.sets[id] }

// number returns a set's number in the table: they are in the order of their first use, the gap first.
func (b *Builder) number(id SetID) SetID {
	if b.numbers[id] == unused {
		b.numbers[id] = SetID(len(b.used))
		b.used = append(b.used, id)
	}
	return b.numbers[id]
}

// loosen gives rows that were laid out their sets' own numbers.
func (b *Builder) loosen() {
	if b.loose {
		return
	}
	b.loose = true
	for i := range b.rows {
		b.rows[i].Set = b.used[b.rows[i].Set]
	}
}

// Begin starts the rows of [lo, hi). An empty range, lo >= hi, takes no rows.
func (b *Builder) Begin(lo, hi arch.Vaddr) {
	b.loosen()
	b.ranges = append(b.ranges, span{lo: lo, hi: hi, first: len(b.rows)})
}

// Row says that from lo on, set holds, until the next Row or the end of the range. Calls are in
// ascending order of lo; of several for one lo the last counts. Rows outside the range are dropped.
func (b *Builder) Row(lo arch.Vaddr, set SetID) {
	s := &b.ranges[len(b.ranges)-1]
	if lo < s.lo || lo >= s.hi {
		return
	}
	if s.n > 0 {
		last := &b.rows[len(b.rows)-1]
		if last.Lo >= lo {
			last.Set = set
			return
		}
		if last.Set == set {
			return
		}
	}
	b.rows = append(b.rows, Row{lo, set})
	s.n++
}

// Range adds the rows of [lo, hi): the first starts at lo, the others ascend strictly, and neighbours differ. Rows from hi on are dropped. It
// does the work of Begin and Row in one call, and is faster still if the ranges come in ascending order.
func (b *Builder) Range(lo, hi arch.Vaddr, rows []Row) {
	n := len(rows)
	for n > 0 && rows[n-1].Lo >= hi {
		n--
	}
	if n == 0 || lo >= hi {
		return
	}
	if !b.loose {
		if k := len(b.ranges); k > 0 && lo < b.end {
			if last := &b.ranges[k-1]; lo == last.lo && hi <= last.hi {
				return // the one begun first holds
			}
			b.loosen()
		} else {
			b.layOut(lo, hi, rows[:n])
			return
		}
	}
	b.ranges = append(b.ranges, span{lo: lo, hi: hi, first: len(b.rows), n: n})
	b.rows = append(b.rows, rows[:n]...)
}

// layOut appends a range that lies behind all others.
func (b *Builder) layOut(lo, hi arch.Vaddr, rows []Row) {
	set := GapID // what holds right before lo
	if n := len(b.rows); n > 0 {
		set = b.rows[n-1].Set
		if set != GapID && b.end < lo {
			b.rows = append(b.rows, Row{b.end, GapID})
			set = GapID
		}
	}
	s := span{lo: lo, hi: hi, first: len(b.rows), n: len(rows)}
	if rows[0].Set == b.used[set] {
		if rows = rows[1:]; s.first > 0 {
			s.first--
		} else {
			s.n--
		}
	}
	b.ranges = append(b.ranges, s)
	n := len(b.rows)
	b.rows = slices.Grow(b.rows, len(rows))[:n+len(rows)]
	out := b.rows[n:]
	for i, r := range rows {
		k := b.numbers[r.Set]
		if k == unused {
			k = b.number(r.Set)
		}
		out[i] = Row{r.Lo, k}
	}
	b.end = hi
}

// Clip shortens the range that was begun last to its part in [lo, hi).
func (b *Builder) Clip(lo, hi arch.Vaddr) {
	b.loosen()
	r := &b.ranges[len(b.ranges)-1]
	for r.n > 0 && b.rows[r.first+r.n-1].Lo >= hi {
		r.n--
	}
	for r.n > 1 && b.rows[r.first+1].Lo <= lo {
		r.first, r.n = r.first+1, r.n-1
	}
	r.lo, r.hi = max(r.lo, lo), min(r.hi, hi)
	if r.n > 0 {
		b.rows[r.first].Lo = max(b.rows[r.first].Lo, r.lo)
	}
}

// Drop takes back the range that was begun last, because its entry turned out to be damaged.
func (b *Builder) Drop() {
	n := len(b.ranges) - 1
	b.rows = b.rows[:b.ranges[n].first]
	b.ranges = b.ranges[:n]
}

// Build makes the Table of everything that the Builders have collected, which must be of one machine.
// Where ranges overlap, the one with the greatest start that contains a PC holds there; of several
// with that start, the one that was begun first.
func Build(bs ...*Builder) *Table {
	t := &draft{Builder: *bs[0]}
	for _, o := range bs[1:] {
		t.join(o)
	}
	for _, p := range passes {
		p.run(t)
		if checkPasses {
			if err := p.check(t); err != nil {
				panic(fmt.Sprintf("BUG: rows pass %s: %v", p.name, err))
			}
		}
	}
	return &Table{Machine: t.Machine, Rows: t.rows, Sets: t.sets}
}

// A draft is a table on its way through the passes.
type draft struct{ Builder }

// passes run in order; tests run check after each.
var passes = []struct {
	name  string
	run   func(*draft)
	check func(*draft) error
}{
	{"sort", sortRanges, checkSorted},
	{"clip", clipRanges, checkDisjoint}, // needs sort
	{"merge", mergeRows, checkMerged},   // needs clip: equal neighbours now touch
	{"prune", pruneSets, checkSets},     // needs merge: it numbers the sets that are left
}

// checkPasses is set by tests.
var checkPasses = false

// join appends o's ranges, giving its sets b's numbers.
func (b *Builder) join(o *Builder) {
	b.Grow(len(o.rows)+1, len(o.ranges))
	if n := len(b.rows); n > 0 && len(o.ranges) > 0 && b.rows[n-1].Set != GapID && b.end < o.ranges[0].lo {
		b.rows = append(b.rows, Row{b.end, GapID}) // no range has it: it does no harm to loose ones
	}
	if o.loose || len(o.ranges) > 0 && o.ranges[0].lo < b.end {
		b.loosen()
	}
	ids := make([]SetID, len(o.sets)) // by o's rows' numbers; 0 until one is used
	id := func(s SetID) SetID {
		if ids[s] == 0 && s != GapID {
			set := s
			if !o.loose {
				set = o.used[s]
			}
			if ids[s] = b.Intern(o.sets[set]); !b.loose {
				ids[s] = b.number(ids[s])
			}
		}
		return ids[s]
	}
	base := len(b.rows)
	in := o.rows
	if !b.loose && base > 0 && len(in) > 0 && b.rows[base-1].Set == id(in[0].Set) {
		base, in = base-1, in[1:]
	}
	for _, r := range in {
		b.rows = append(b.rows, Row{r.Lo, id(r.Set)})
	}
	for _, r := range o.ranges {
		r.first += base
		b.ranges = append(b.ranges, r)
	}
	b.end = max(b.end, o.end)
}

func sortRanges(d *draft) {
	if !d.loose {
		return
	}
	byLo := func(a, b span) int {
		switch {
		case a.lo < b.lo:
			return -1
		case a.lo > b.lo:
			return 1
		}
		return 0
	}
	if !slices.IsSortedFunc(d.ranges, byLo) {
		slices.SortStableFunc(d.ranges, byLo)
	}
}

func checkSorted(d *draft) error {
	for i := 1; i < len(d.ranges); i++ {
		if d.ranges[i].lo < d.ranges[i-1].lo {
			return fmt.Errorf("range %d starts at %#x, before %#x", i, d.ranges[i].lo, d.ranges[i-1].lo)
		}
	}
	return nil
}

// clipRanges lays the sorted ranges out as one list of rows, with a gap wherever none holds. Ranges
// that contain the current address wait on a stack, the greatest start on top.
func clipRanges(d *draft) {
	if !d.loose {
		if n := len(d.rows); n > 0 && d.rows[n-1].Set != GapID {
			d.rows = append(d.rows, Row{d.end, GapID})
		}
		d.ranges = nil
		return
	}
	in := d.rows
	out := make([]Row, 0, len(in)+len(in)/16+1)
	var stack []span
	at := arch.Vaddr(0) // everything below is laid out
	gap := func(lo arch.Vaddr) {
		if n := len(out); n > 0 && out[n-1].Set != GapID {
			out = append(out, Row{lo, GapID})
		}
	}
	// upTo lays out what the stack holds, up to hi.
	upTo := func(hi arch.Vaddr) {
		for len(stack) > 0 && at < hi {
			top := &stack[len(stack)-1]
			if top.hi <= at {
				stack = stack[:len(stack)-1]
				continue
			}
			end := min(top.hi, hi)
			rs := in[top.first : top.first+top.n]
			i := 0
			if at > top.lo { // resumed: find the row that holds here
				i, _ = slices.BinarySearchFunc(rs, at, func(r Row, v arch.Vaddr) int {
					if r.Lo <= v {
						return -1
					}
					return 1
				})
				if i > 0 {
					i--
				}
			}
			if i < len(rs) && rs[i].Lo > at {
				gap(at) // rows that do not start with their range
			}
			for ; i < len(rs) && rs[i].Lo < end; i++ {
				if len(out) == 0 && rs[i].Set == GapID {
					continue
				}
				out = append(out, Row{max(rs[i].Lo, at), rs[i].Set})
			}
			at = end
		}
		if len(stack) == 0 && at < hi {
			gap(at)
			at = hi
		}
	}
	for rest := d.ranges; len(rest) > 0; {
		lo := rest[0].lo
		upTo(lo)
		at = lo
		// Of those with this start, the one begun first comes to lie on top, and those that reach no
		// farther than one before them are left out.
		under, reach := len(stack), lo
		for ; len(rest) > 0 && rest[0].lo == lo; rest = rest[1:] {
			if r := rest[0]; r.n > 0 && r.hi > reach {
				stack, reach = append(stack, r), r.hi
			}
		}
		slices.Reverse(stack[under:])
	}
	upTo(^arch.Vaddr(0))
	gap(at)
	d.rows, d.ranges = out, nil
}

func checkDisjoint(d *draft) error {
	for i := 1; i < len(d.rows); i++ {
		if d.rows[i].Lo <= d.rows[i-1].Lo {
			return fmt.Errorf("row %d at %#x follows row at %#x", i, d.rows[i].Lo, d.rows[i-1].Lo)
		}
	}
	if n := len(d.rows); n > 0 && (d.rows[n-1].Set != GapID || d.rows[0].Set == GapID) {
		return fmt.Errorf("the table must start with a row and end with a gap")
	}
	return nil
}

func mergeRows(d *draft) {
	if !d.loose {
		return
	}
	d.rows = slices.CompactFunc(d.rows, func(a, b Row) bool { return a.Set == b.Set })
}

func checkMerged(d *draft) error {
	for i := 1; i < len(d.rows); i++ {
		if d.rows[i].Set == d.rows[i-1].Set {
			return fmt.Errorf("rows %d and %d are equal", i-1, i)
		}
	}
	return checkDisjoint(d)
}

// pruneSets numbers the sets in the order of their first use, the gap first, and drops the others.
func pruneSets(d *draft) {
	if !d.loose { // they are numbered
		sets := make([]Set, len(d.used))
		for number, id := range d.used {
			sets[number] = d.sets[id]
		}
		d.sets, d.index = sets, nil
		return
	}
	top := GapID
	for i := range d.rows {
		if s := d.rows[i].Set; s > top {
			if s != top+1 {
				break
			}
			top = s
		}
	}
	if int(top) == len(d.sets)-1 {
		d.index = nil // they are as they should be
		return
	}
	ids := make([]SetID, len(d.sets))
	for i := range ids {
		ids[i] = unused
	}
	ids[GapID] = GapID
	sets := []Set{{}}
	for i := range d.rows {
		r := &d.rows[i]
		if ids[r.Set] == unused {
			ids[r.Set] = SetID(len(sets))
			sets = append(sets, d.sets[r.Set])
		}
		r.Set = ids[r.Set]
	}
	d.sets, d.index = sets, nil
}

func checkSets(d *draft) error {
	b := NewBuilder(d.Machine)
	for i := range d.sets {
		if id := b.Intern(d.sets[i]); int(id) != i {
			return fmt.Errorf("sets %d and %d are equal", id, i)
		}
	}
	for _, r := range d.rows {
		if int(r.Set) >= len(d.sets) {
			return fmt.Errorf("row at %#x has set %d of %d", r.Lo, r.Set, len(d.sets))
		}
	}
	return checkMerged(d)
}

// Overlay returns a table that has t's rows and, in t's gaps, o's: what .debug_frame adds to .eh_frame.
// It returns t itself where o has no rows.
func (t *Table) Overlay(o *Table) *Table {
	if len(o.Rows) == 0 {
		return t
	}
	if len(t.Rows) == 0 {
		return o
	}
	// As ranges: a row of t is inside the range of o's table that it covers, so it wins.
	b := NewBuilder(t.Machine)
	ids := func(x *Table) []SetID {
		m := make([]SetID, len(x.Sets))
		for i := range x.Sets {
			m[i] = b.Intern(x.Sets[i])
		}
		return m
	}
	ti, oi := ids(t), ids(o)
	i, j := -1, -1 // the rows that hold at the current address
	var origins []OriginRange
	var from *Table // whose row holds from lo on, nil in a gap
	lo := arch.Vaddr(0)
	b.Begin(0, ^arch.Vaddr(0))
	for i+1 < len(t.Rows) || j+1 < len(o.Rows) {
		var at arch.Vaddr
		switch {
		case j+1 >= len(o.Rows) || i+1 < len(t.Rows) && t.Rows[i+1].Lo < o.Rows[j+1].Lo:
			i++
			at = t.Rows[i].Lo
		case i+1 >= len(t.Rows) || o.Rows[j+1].Lo < t.Rows[i+1].Lo:
			j++
			at = o.Rows[j].Lo
		default:
			i, j = i+1, j+1
			at = t.Rows[i].Lo
		}
		if from != nil {
			origins = from.appendOrigins(origins, lo, at)
		}
		id := GapID
		from, lo = nil, at
		if j >= 0 && o.Rows[j].Set != GapID {
			id, from = oi[o.Rows[j].Set], o
		}
		if i >= 0 && t.Rows[i].Set != GapID {
			id, from = ti[t.Rows[i].Set], t
		}
		b.Row(at, id)
	}
	both := Build(b)
	if len(t.Origins)+len(o.Origins) > 0 {
		both.Origins = origins
	}
	return both
}
