package compact

import (
	"math/bits"

	"github.com/unspool/unspool/arch"
)

// Find implements rows.Stepper. It does not allocate.
func (t *Table) Find(pc arch.Vaddr) (id uint32, ok bool) {
	s := &t.first
	if uint64(pc)-s.lo >= s.size {
		if s = t.findSpan(pc); s == nil {
			return 0, false
		}
	}
	off := (uint64(pc) - s.base) >> (s.shift & 63)
	g := 2 * (uint64(s.granule) + off>>granuleBits)
	r := 4 * (uint64(s.region) + off>>regionBits)
	if g+4 > uint64(len(t.granules)) || r+4 > uint64(len(t.regions)) {
		return 0, false
	}
	// The granule's rows are n lows and then n ids; right in front of them is the id of the row before.
	w := le.Uint32(t.granules[g:])
	base := le.Uint32(t.regions[r:])
	start := base + uint32(uint16(w)-uint16(base))
	n := int(uint16(w>>16) - uint16(w))
	at := 2 * int(start)
	if at+2*n+rowsPad > len(t.body) {
		return 0, false
	}
	at--
	row := start - 1
	if k := countLows(t.body[at+1:], n, uint8(off)); k > 0 {
		at += n + k
		row += uint32(k)
	}
	if uint(at) >= uint(len(t.body)) {
		return 0, false
	}
	id = uint32(t.body[at])
	if id == escapeID {
		id = t.escaped(row)
	}
	return id, id != 0
}

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// countLows returns how many of the n ascending bytes at the start of b are not above x. Eight more bytes
// can be read.
func countLows(b []byte, n int, x uint8) int {
	xs := uint64(x) * ones
	k := 0
	for {
		// Byte by byte: the high bit of ge says x >= y. Subtracting with the high bits set keeps borrows
		// inside their bytes.
		y := le.Uint64(b[k:])
		d := (xs | highs) - y&^highs
		ge := (xs&^y | ^(xs^y)&d) & highs
		left := n - k
		if left <= 8 {
			ge &= 1<<(8*uint(left)) - 1
			return k + bits.OnesCount64(ge)
		}
		if ge != highs {
			return k + bits.OnesCount64(ge)
		}
		k += 8
	}
}

// findSpan returns the span that pc is in, or nil.
func (t *Table) findSpan(pc arch.Vaddr) *span {
	lo, hi := 0, t.nspans
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if le.Uint64(t.spans[mid*spanSize:]) <= uint64(pc) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == 0 {
		return nil
	}
	s := t.span(lo - 1)
	if uint64(pc)-s.lo >= s.size {
		return nil
	}
	return &s
}

// escaped returns the rule of a row that has an escape; 0 if it has none.
func (t *Table) escaped(row uint32) uint32 {
	d := 4 * uint64(row>>escapeBits)
	if d+8 > uint64(len(t.dir)) {
		return 0
	}
	lo, hi := int(le.Uint32(t.dir[d:])), int(le.Uint32(t.dir[d+4:]))
	hi = min(hi, len(t.keys)/2)
	key := uint16(row & (1<<escapeBits - 1))
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		switch k := le.Uint16(t.keys[2*mid:]); {
		case k == key:
			return t.escape(mid)
		case k < key:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0
}
