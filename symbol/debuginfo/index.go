package debuginfo

import (
	"cmp"
	"container/heap"
	"slices"
)

// index returns which unit each address belongs to, from the cache or else from .debug_aranges and, of units that are not
// in it, their own DIEs.
func (in *Info) index() []span {
	if spans, ok := in.loadIndex(); ok {
		return spans
	}
	spans, units := in.main.buildIndex()
	if units >= minUnits {
		in.saveIndex(spans)
	}
	return spans
}

// buildIndex reads .debug_aranges and one DIE a unit. It says how many units there are.
func (f *file) buildIndex() ([]span, int) {
	// A range takes some bytes of the file, unless hostile units share lists; most of the bytes are not for ranges.
	size := len(f.sec(secInfo)) + len(f.sec(secAranges)) + len(f.sec(secRanges)) + len(f.sec(secRnglists))
	k := collector{room: min(1<<16+size/4, 1<<22)}
	told := f.aranges(&k)
	heads := f.heads()
	var table *abbrevs
	var at uint64
	// The budget bounds a file with many units whose abbreviations are all at the end of long lists.
	budget := 16<<20 + 16*len(f.sec(secAbbrev))
	for _, off := range heads {
		if told[off] {
			continue
		}
		u, abbrev := f.head(off)
		if u == nil || u.typ == DW_UT_type || u.typ == DW_UT_split_type {
			continue
		}
		if table == nil || at != abbrev {
			table, at = &abbrevs{c: f.abbrevsAt(abbrev)}, abbrev
		}
		u.abbrevs = table
		from := table.c.off
		if u.readRoot() {
			u.collect(&k, u.root.low, u.root.high, u.root.ranges, off)
		} else {
			f.in.note("%s: .debug_info+%#x: malformed DIE", f.img.Name(), u.dies)
		}
		if budget -= table.c.off - from; budget < 0 || k.room <= 0 {
			f.in.note("%s: .debug_info+%#x: the units from here on are too much", f.img.Name(), off)
			break
		}
	}
	return claim(k.spans), len(heads)
}

// aranges reads .debug_aranges (DWARF 5, section 6.1.2) and returns which units it tells of.
func (f *file) aranges(k *collector) map[uint64]bool {
	told := map[uint64]bool{}
	for c := f.at(secAranges, 0); c.more(); {
		at := c.off
		n, offSize := c.length()
		set := c
		c.skip(n)
		if c.bad {
			f.in.note("%s: .debug_aranges+%#x: truncated", f.img.Name(), at)
			break
		}
		set.b = set.b[:c.off]
		version, unit := set.uint(2), set.uint(int(offSize))
		size, segment := int(set.u8()), set.u8()
		if set.bad || version != 2 || size != 2 && size != 4 && size != 8 || segment != 0 {
			f.in.note("%s: .debug_aranges+%#x: malformed", f.img.Name(), at)
			continue
		}
		told[unit] = true
		if over := (set.off - at) % (2 * size); over > 0 {
			set.skip(uint64(2*size - over))
		}
		for set.more() {
			lo, n := set.uint(size), set.uint(size)
			if !set.bad {
				k.add(lo, lo+n, unit)
			}
		}
	}
	return told
}

// claim makes spans sorted and disjoint: where several units have an address, the one goes on that has the address before
// it, or else the first in the file begins.
func claim(spans []span) []span {
	type point struct {
		addr, unit uint64
		start      bool
	}
	points := make([]point, 0, 2*len(spans))
	for _, s := range spans {
		points = append(points, point{s.lo, s.id, true}, point{s.hi, s.id, false})
	}
	slices.SortStableFunc(points, func(a, b point) int { return cmp.Compare(a.addr, b.addr) })
	var out []span
	live := claims{count: map[uint64]int{}}
	last := uint64(0)
	for _, p := range points {
		if u, ok := live.first(); ok && last < p.addr {
			if n := len(out); n > 0 && out[n-1].hi == last && live.count[out[n-1].id] > 0 {
				out[n-1].hi = p.addr
			} else {
				out = append(out, span{last, p.addr, u})
			}
		}
		if p.start {
			live.add(p.unit)
		} else {
			live.remove(p.unit)
		}
		last = p.addr
	}
	return out
}

// claims are the units that have the address that claim is at, some more than once.
type claims struct {
	count map[uint64]int
	order least // with those that are gone, until they come first
}

func (l *claims) add(unit uint64) {
	if l.count[unit]++; l.count[unit] == 1 {
		heap.Push(&l.order, unit)
	}
}

func (l *claims) remove(unit uint64) {
	if l.count[unit]--; l.count[unit] == 0 {
		delete(l.count, unit)
	}
}

func (l *claims) first() (uint64, bool) {
	for len(l.order) > 0 {
		if l.count[l.order[0]] > 0 {
			return l.order[0], true
		}
		heap.Pop(&l.order)
	}
	return 0, false
}

// least is a heap with the least offset on top.
type least []uint64

func (l least) Len() int           { return len(l) }
func (l least) Less(i, j int) bool { return l[i] < l[j] }
func (l least) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *least) Push(x any)        { *l = append(*l, x.(uint64)) }
func (l *least) Pop() any {
	x := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return x
}
