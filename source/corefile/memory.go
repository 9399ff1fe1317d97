package corefile

import (
	"cmp"
	"slices"
	"sort"
)

// Flags of a segment (System V ABI, chapter 5).
const (
	pfX = 1
	pfW = 2
)

// A segment is [lo, hi) of a process's memory, of which b is there, from lo on.
type segment struct {
	lo, hi uint64
	b      []byte
	flags  uint32
}

// windowBelow is how much below the stack pointer a window begins: the red zone of x86-64, and what a function that is
// about to push has written already.
const windowBelow = 512

// window returns what is there of a stack whose pointer is sp.
func (s *segment) window(sp uint64) (lo uint64, b []byte) {
	at := sp - s.lo
	at -= min(at, windowBelow)
	at = min(at, uint64(len(s.b)))
	return s.lo + at, s.b[at:]
}

// A memory is what the core has, and behind it the files that were mapped. It is safe for concurrent use.
type memory struct {
	segs  []segment   // sorted, disjoint
	files []fileRange // sorted, disjoint
}

func (m *memory) add(lo, size uint64, b []byte, flags uint32) {
	if hi := lo + size; hi > lo {
		m.segs = append(m.segs, segment{lo, hi, b, flags})
	}
}

// finish sorts the segments and cuts those that overlap the one before. It returns how many did.
func (m *memory) finish() (dropped int) {
	slices.SortStableFunc(m.segs, func(a, b segment) int { return cmp.Compare(a.lo, b.lo) })
	out, end := m.segs[:0], uint64(0)
	for _, s := range m.segs {
		if s.lo < end {
			dropped++
			if s.hi <= end {
				continue
			}
			s.b = s.b[min(end-s.lo, uint64(len(s.b))):]
			s.lo = end
		}
		end = s.hi
		out = append(out, s)
	}
	m.segs = out
	return dropped
}

// find returns the segment that contains addr, or nil.
func (m *memory) find(addr uint64) *segment {
	i := sort.Search(len(m.segs), func(i int) bool { return m.segs[i].hi > addr })
	if i < len(m.segs) && m.segs[i].lo <= addr {
		return &m.segs[i]
	}
	return nil
}

// tail returns what the core has from addr to the end of its segment.
func (m *memory) tail(addr uint64) []byte {
	if s := m.find(addr); s != nil && addr-s.lo < uint64(len(s.b)) {
		return s.b[addr-s.lo:]
	}
	return nil
}

// behind returns what lies at addr in a file that was mapped there and could not be written to.
func (m *memory) behind(addr uint64) []byte {
	i := sort.Search(len(m.files), func(i int) bool { return m.files[i].hi > addr })
	if i == len(m.files) || m.files[i].lo > addr {
		return nil
	}
	r := &m.files[i]
	if r.object == nil || r.object.img == nil || r.flags&pfW != 0 {
		return nil
	}
	b, off := r.object.img.Bytes(), r.off+(addr-r.lo)
	if off >= uint64(len(b)) {
		return nil
	}
	return b[off:min(off+(r.hi-addr), uint64(len(b)))]
}

// Read8 implements rows.Reader.
func (m *memory) Read8(addr uint64) (uint64, bool) {
	if b := m.tail(addr); len(b) >= 8 {
		return le.Uint64(b), true
	}
	var w [8]byte
	if !m.read(addr, w[:]) {
		return 0, false
	}
	return le.Uint64(w[:]), true
}

// read copies memory from addr on, and says whether all of to is there.
func (m *memory) read(addr uint64, to []byte) bool {
	for len(to) > 0 {
		b := m.tail(addr)
		if len(b) == 0 {
			b = m.behind(addr)
		}
		n := copy(to, b)
		if n == 0 || addr+uint64(n) < addr {
			return false
		}
		to, addr = to[n:], addr+uint64(n)
	}
	return true
}
