package debuginfo

import (
	"cmp"
	"container/heap"
	"slices"
	"sort"
)

// A span is a range of addresses and what is there: the offset of a DIE, an index, or the offset of a unit.
type span struct {
	lo, hi, id uint64
}

// find returns the span that contains a, of a list that is sorted and disjoint, or nil.
func find(spans []span, a uint64) *span {
	i := sort.Search(len(spans), func(i int) bool { return spans[i].hi > a })
	if i < len(spans) && spans[i].lo <= a {
		return &spans[i]
	}
	return nil
}

// paint makes spans sorted and disjoint: where some overlap, the last of them stays, as with an inlined function behind the
// one that contains it.
func paint(spans []span) []span {
	sorted := true
	for i := 1; i < len(spans) && sorted; i++ {
		sorted = spans[i-1].hi <= spans[i].lo
	}
	if sorted {
		return spans
	}
	points := make([]uint64, 0, 2*len(spans))
	starts := make([]int, len(spans))
	for i, s := range spans {
		points = append(points, s.lo, s.hi)
		starts[i] = i
	}
	slices.Sort(points)
	points = slices.Compact(points)
	slices.SortFunc(starts, func(a, b int) int { return cmp.Compare(spans[a].lo, spans[b].lo) })
	var out []span
	var live last
	for i, p := range points {
		for len(starts) > 0 && spans[starts[0]].lo == p {
			heap.Push(&live, starts[0])
			starts = starts[1:]
		}
		for len(live) > 0 && spans[live[0]].hi <= p {
			heap.Pop(&live)
		}
		if len(live) == 0 {
			continue
		}
		id := spans[live[0]].id
		if n := len(out); n > 0 && out[n-1].hi == p && out[n-1].id == id {
			out[n-1].hi = points[i+1] // a live span ends later
		} else {
			out = append(out, span{p, points[i+1], id})
		}
	}
	return out
}

// last is a heap with the greatest index on top.
type last []int

func (l last) Len() int           { return len(l) }
func (l last) Less(i, j int) bool { return l[i] > l[j] }
func (l last) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *last) Push(x any)        { *l = append(*l, x.(int)) }
func (l *last) Pop() any {
	x := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return x
}

// A collector takes ranges, as many as there is room for: many DIEs can have the same long list.
type collector struct {
	spans []span
	room  int
}

func (k *collector) add(lo, hi, id uint64) {
	if lo < hi && k.room > 0 {
		k.spans = append(k.spans, span{lo, hi, id})
	}
	k.room--
}

// collect adds the ranges of a DIE (DWARF 5, section 2.17).
func (u *unit) collect(k *collector, low, high, ranges value, id uint64) {
	if lo, ok := u.addr(low); ok && high.form != 0 && lo != u.tombstone() {
		hi, ok := u.addr(high)
		if !ok {
			n, isSize := high.number()
			hi, ok = lo+n, isSize
		}
		if ok {
			k.add(lo, hi, id)
			return
		}
	}
	switch off, ok := ranges.offset(); {
	case ranges.form == DW_FORM_rnglistx:
		if ranges.u > 1<<32 {
			return
		}
		c := u.f.at(secRnglists, u.rngBase+ranges.u*uint64(u.offSize))
		if off := c.uint(int(u.offSize)); !c.bad {
			u.rnglist(k, u.rngBase+off, id)
		}
	case ok && u.version >= 5:
		if u.skeleton != nil {
			off += u.rngBase - rnglistsHeader(u.offSize) // of this unit's part in a package
		}
		u.rnglist(k, off, id)
	case ok:
		u.rangeList(k, off, id)
	}
}

// rnglistsHeader is the size of the header of .debug_rnglists (section 7.28).
func rnglistsHeader(offSize uint8) uint64 {
	if offSize == 8 {
		return 20
	}
	return 12
}

// rangeList reads a list of .debug_ranges (DWARF 4, section 2.17.3), which stays in the linked file.
func (u *unit) rangeList(k *collector, off, id uint64) {
	in := u.f
	if u.skeleton != nil {
		in = u.skeleton.f
		base, _ := u.skeleton.root.gnuRngBase.offset()
		off += base
	}
	size := int(u.addrSize)
	base, dead := u.base(), u.tombstone()-1 // the greatest address selects a base
	for c := in.at(secRanges, off); k.room > 0; {
		lo, hi := c.uint(size), c.uint(size)
		switch {
		case c.bad || lo == 0 && hi == 0:
			return
		case lo == u.tombstone():
			base = hi
		case lo != dead && base != dead:
			k.add(lo+base, hi+base, id)
		default:
			k.room--
		}
	}
}

// Entries of .debug_rnglists (DWARF 5, section 7.25).
const (
	DW_RLE_end_of_list = iota
	DW_RLE_base_addressx
	DW_RLE_startx_endx
	DW_RLE_startx_length
	DW_RLE_offset_pair
	DW_RLE_base_address
	DW_RLE_start_end
	DW_RLE_start_length
)

// rnglist reads a list of .debug_rnglists (section 2.17.3).
func (u *unit) rnglist(k *collector, off, id uint64) {
	size := int(u.addrSize)
	base, dead := u.base(), u.tombstone()
	for c := u.f.at(secRnglists, off); k.room > 0; k.room-- {
		var lo, hi uint64
		ok := true
		switch c.u8() {
		case DW_RLE_end_of_list:
			return
		case DW_RLE_base_addressx:
			base, ok = u.addrAt(c.uleb())
			if !ok {
				base = dead
			}
			continue
		case DW_RLE_base_address:
			base = c.uint(size)
			continue
		case DW_RLE_startx_endx:
			lo, ok = u.addrAt(c.uleb())
			if end, has := u.addrAt(c.uleb()); has {
				hi = end
			}
		case DW_RLE_startx_length:
			lo, ok = u.addrAt(c.uleb())
			hi = lo + c.uleb()
		case DW_RLE_offset_pair:
			lo, hi = base+c.uleb(), base+c.uleb()
			ok = base != dead
		case DW_RLE_start_end:
			lo, hi = c.uint(size), c.uint(size)
		case DW_RLE_start_length:
			lo = c.uint(size)
			hi = lo + c.uleb()
		default:
			return
		}
		if c.bad {
			return
		}
		if ok && lo != dead {
			k.add(lo, hi, id)
		}
	}
}
