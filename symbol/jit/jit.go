// Package jit names code that a process made while it ran. No file has such code, but its maker can write down where it is, in two forms:
// the map for perf, /tmp/perf-PID.map, and the dump for perf inject, jit-PID.dump (Linux: tools/perf/Documentation/jit-interface.txt,
// jitdump-specification.txt).
//
// Code comes, moves and is overwritten: an address can have several names, one after the other. The latest name wins.
package jit

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/unspool/unspool/arch"
)

// A Func is a piece of code with a name.
type Func struct {
	Name  string
	Start arch.Addr
	Size  uint64 // bytes
	File  string // of the source; empty if not known
	Line  uint32 // 0: not known
}

// Always is a time after all records of a dump.
const Always = math.MaxUint64

// A Map has the functions of one process. It does not change once it is built, and is safe for concurrent use.
type Map struct {
	entries []entry
	names   []byte
	lines   []line // of each entry together, sorted by offset
	files   []string
	unwinds []unwinding // all of them, each once

	templates []template

	big        bool    // the dump is big-endian
	otherClock bool    // its times are of a clock that no recording has
	charge     *Charge // what it takes of maxHeld; nil: it has names, and counts for nothing there

	// A segment tree over the n pieces between bounds: piece i is node n+i, and nodes 2k and 2k+1 are the children of k. An entry is in the
	// nodes that it covers but whose parents it does not. So an address finds all entries that contain it in as many nodes as there are bits
	// in n, whatever overlaps what.
	bounds []uint64
	starts []uint32 // of each node in refs
	refs   []int32  // entries in the order in which they were written
}

// An entry is a range that has a name from a time on.
type entry struct {
	lo, hi   uint64
	time     uint64 // 0 where times are not known
	name     uint32 // offset in names
	size     uint32 // of the name; 0: the code went away
	from, to uint32 // lines
	unwind   int32  // its number in unwinds and 1; 0: it has none
}

// unwinding is unwind information of code of a size.
type unwinding struct {
	eh   string // .eh_frame
	size uint64
}

type line struct {
	off  uint64 // from the entry's start
	file uint32
	line uint32
}

// The most that is read of a process, and kept: what real ones write is a tenth of it.
const (
	maxFile    = 1 << 30  // bytes; a dump has the code, too
	maxText    = 64 << 20 // bytes of names and files
	maxName    = 1 << 14
	maxEntries = 1 << 19
	maxLines   = 1 << 22
	maxUnwinds = 32 << 20 // bytes of unwind information
)

// add enters a range; false if there are too many.
func (m *Map) add(lo, size, time uint64, name []byte) bool {
	if size == 0 || lo+size < lo {
		return true
	}
	if name = name[:min(len(name), maxName)]; m.charge != nil {
		name = nil
		if !m.charge.Take(entryBytes) {
			return false
		}
	}
	if len(m.entries) >= maxEntries || len(m.names)+len(name) > maxText {
		return false
	}
	m.entries = append(m.entries, entry{lo: lo, hi: lo + size, time: time, name: uint32(len(m.names)), size: uint32(len(name))})
	m.names = append(m.names, name...)
	return true
}

// build makes the tree; false if it is too large.
func (m *Map) build() bool {
	m.bounds = m.bounds[:0]
	for i := range m.entries {
		m.bounds = append(m.bounds, m.entries[i].lo, m.entries[i].hi)
	}
	slices.Sort(m.bounds)
	m.bounds = slices.Compact(m.bounds)
	n := len(m.bounds) - 1 // pieces
	if n < 1 {
		return true
	}
	// Times are in order but for what a writer got wrong.
	order := make([]int32, len(m.entries))
	for i := range order {
		order[i] = int32(i)
	}
	slices.SortStableFunc(order, func(a, b int32) int { return cmp.Compare(m.entries[a].time, m.entries[b].time) })
	m.starts = make([]uint32, 2*n+1)
	for i := range m.entries {
		m.cover(&m.entries[i], func(node int) { m.starts[node]++ })
	}
	sum := uint32(0)
	for i, c := range m.starts {
		m.starts[i] = sum
		sum += c
	}
	if !m.charge.Take(4 * int64(sum)) {
		return false
	}
	m.refs = make([]int32, sum)
	for _, k := range order {
		m.cover(&m.entries[k], func(node int) {
			m.refs[m.starts[node]] = k
			m.starts[node]++
		})
	}
	copy(m.starts[1:], m.starts) // each is where the one before began
	m.starts[0] = 0
	return true
}

// cover calls f with the nodes that e is in.
func (m *Map) cover(e *entry, f func(node int)) {
	n := len(m.bounds) - 1
	lo, _ := slices.BinarySearch(m.bounds, e.lo)
	hi, _ := slices.BinarySearch(m.bounds, e.hi)
	for lo, hi = lo+n, hi+n; lo < hi; lo, hi = lo/2, hi/2 {
		if lo&1 == 1 {
			f(lo)
			lo++
		}
		if hi&1 == 1 {
			hi--
			f(hi)
		}
	}
}

// Len returns the number of functions.
func (m *Map) Len() int { return len(m.entries) }

// Lookup returns the function at addr at a time, in ns by the dump's clock; Always finds the latest.
func (m *Map) Lookup(addr arch.Addr, time uint64) (Func, bool) {
	best := m.at(addr, time)
	if best < 0 || m.entries[best].size == 0 {
		return Func{}, false
	}
	e := &m.entries[best]
	f := Func{Name: string(m.names[e.name:][:e.size]), Start: arch.Addr(e.lo), Size: e.hi - e.lo}
	rows := m.lines[e.from:e.to]
	if j := sort.Search(len(rows), func(j int) bool { return rows[j].off > uint64(addr)-e.lo }) - 1; j >= 0 {
		f.File, f.Line = m.files[rows[j].file], rows[j].line
	}
	return f, true
}

// unwinding returns the unwind information of addr at a time.
func (m *Map) unwinding(addr arch.Addr, time uint64) (Unwinding, bool) {
	i := m.at(addr, time)
	if i < 0 || m.entries[i].unwind == 0 {
		return Unwinding{}, false
	}
	e := &m.entries[i]
	u := &m.unwinds[e.unwind-1]
	return Unwinding{Start: arch.Addr(e.lo), Size: u.size, EHFrame: u.eh, Big: m.big}, true
}

// at returns the entry of addr at a time, -1 if there is none.
func (m *Map) at(addr arch.Addr, time uint64) int32 {
	if m.otherClock {
		time = Always
	}
	i := sort.Search(len(m.bounds), func(i int) bool { return m.bounds[i] > uint64(addr) }) - 1
	if i < 0 || i >= len(m.bounds)-1 {
		return -1
	}
	best := int32(-1)
	for k := i + len(m.bounds) - 1; k > 0; k /= 2 {
		in := m.refs[m.starts[k]:m.starts[k+1]]
		j := sort.Search(len(in), func(j int) bool { return m.entries[in[j]].time > time }) - 1
		if j >= 0 && (best < 0 || m.later(in[j], best)) {
			best = in[j]
		}
	}
	return best
}

// later says whether entry a was written after b.
func (m *Map) later(a, b int32) bool {
	return cmp.Or(cmp.Compare(m.entries[a].time, m.entries[b].time), cmp.Compare(a, b)) > 0
}
