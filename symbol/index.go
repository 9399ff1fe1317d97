package symbol

import (
	"bytes"
	"cmp"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// A source is one symbol table of a file, as it lies in the file.
type source struct {
	module.SymbolTable
	secs []module.Section // of the same file; empty if it has none
	made bool             // it is in this program's memory, not in the file's
}

type entry = module.SymbolEntry

// name returns the name at off in the string table, which it aliases, cut at maxName.
func (s *source) name(off uint32) []byte {
	if uint64(off) >= uint64(len(s.Names)) {
		return nil
	}
	b := s.Names[off:]
	b = b[:min(len(b), maxName)]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return b[:i]
	}
	return b
}

// A kind says how well a symbol names code. The lowest is the best.
type kind uint32

const (
	function kind = iota // with a size
	label                // with a size, but not marked as a function
	unsized              // either, without a size: it holds up to the next symbol
	noCode
)

// kind returns what e is: a function, or a label in an executable section that is neither a mapping symbol
// ($x, $d: ELF for the Arm 64-bit Architecture, section 5.7) nor local to the assembler (.L).
func (s *source) kind(e *entry) kind {
	if !e.Section.Defined() {
		return noCode
	}
	switch {
	case e.Kind == module.Func, e.Kind == module.IFunc:
		if e.Size > 0 {
			return function
		} else if e.Value == 0 {
			return noCode
		}
		return unsized
	case e.Kind != module.Unmarked, int(e.Section) >= len(s.secs), s.secs[e.Section].Perm&module.Exec == 0:
		return noCode
	}
	n := s.name(e.Name)
	if len(n) == 0 || len(n) > 1 && (n[0] == '.' && n[1] == 'L' || n[0] == '$' && isMapping(n[1:])) {
		return noCode
	}
	if e.Size > 0 {
		return label
	}
	return unsized
}

// isMapping says whether what follows a '$' makes a mapping symbol: RISC-V has "$xrv64i", too.
func isMapping(n []byte) bool {
	return strings.IndexByte("adtx", n[0]) >= 0 && (len(n) == 1 || n[1] == '.' || n[0] == 'x')
}

// extent returns how many bytes from its start e can hold: its size, or what is left of its section.
func (s *source) extent(e *entry) uint32 {
	size := e.Size
	if size == 0 && int(e.Section) < len(s.secs) {
		sec := &s.secs[e.Section]
		if at := e.Value - uint64(sec.Addr); at < sec.Size {
			size = sec.Size - at
		} else {
			size = 1
		}
	}
	if size == 0 || size > math.MaxUint32 {
		return math.MaxUint32
	}
	return uint32(size)
}

// rank orders symbols of one extent; the greatest is shown. A name that other files can see before one
// that is local; few leading underscores; a global symbol before a weak one; a short name; and one without
// a version ("free" before "cfree@GLIBC_2.2.5", "read" before "__libc_read"): the name by which people
// know a function, which is also the one that is left when .symtab has been stripped.
func (s *source) rank(e *entry) uint64 {
	n := s.name(e.Name)
	lead, base, plain := 0, len(n), uint64(1)
	for lead < min(len(n), 255) && n[lead] == '_' {
		lead++
	}
	if i := bytes.IndexByte(n, '@'); i >= 0 {
		base, plain = i, 0
	}
	seen, strong := uint64(1), uint64(1)
	switch e.Bind {
	case module.Local:
		seen = 0
	case module.Weak:
		strong = 0
	}
	return seen<<63 | uint64(255-lead)<<40 | strong<<32 | uint64(maxName-base)<<1 | plain
}

// An index says which symbol names an address: spans that start at starts, each up to the next one's start,
// and what names them. It is compact: 12 bytes a span, and no names are read to make it.
type index struct {
	starts  []uint64
	refs    []uint32 // a symbol's number, or isGroup and a group's, or none
	groups  []uint32 // where each group starts in members
	members []uint32 // numbers of symbols of the same start and end
}

const (
	none    = math.MaxUint32
	isGroup = 1 << 31
	maxRef  = 1<<29 - 1
)

// find returns the number of the span of v, or -1 before the first. It is fast where from is a span not far before
// it; from may be any span, or -1.
func (x *index) find(v uint64, from int) int {
	lo, hi := 0, len(x.starts) // of the first start after v
	if from >= 0 && x.starts[from] <= v {
		lo = from + 1
		for step := 1; lo+step <= hi; step *= 2 {
			if x.starts[lo+step-1] > v {
				hi = lo + step - 1
				break
			}
			lo += step
		}
	}
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); x.starts[mid] > v {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo - 1
}

// span returns the extent of a span.
func (x *index) span(i int) (lo, hi uint64) {
	if i+1 < len(x.starts) {
		return x.starts[i], x.starts[i+1]
	}
	return x.starts[i], math.MaxUint64
}

// symbol returns the number of the symbol to show for a span.
func (x *index) symbol(i int, sources []source) uint32 {
	ref := x.refs[i]
	if ref&isGroup == 0 {
		return ref
	}
	g := ref &^ isGroup
	members := x.members[x.groups[g]:]
	if int(g)+1 < len(x.groups) {
		members = members[:x.groups[g+1]-x.groups[g]]
	}
	best, top := members[0], rank(sources, members[0])
	for _, m := range members[1:] {
		if r := rank(sources, m); r > top {
			best, top = m, r
		}
	}
	return best
}

// emit starts a span.
func (x *index) emit(start uint64, ref uint32) {
	n := len(x.starts)
	if n > 0 && x.starts[n-1] == start {
		x.refs[n-1] = ref
		return
	}
	if n > 0 && x.refs[n-1] == ref || n == 0 && ref == none {
		return
	}
	x.starts = append(x.starts, start)
	x.refs = append(x.refs, ref)
}

// A key is a symbol on its way into the index.
type key struct {
	start  uint64
	extent uint32
	ref    uint32 // its number, and its kind in the two highest bits
}

func (k *key) kind() kind { return kind(k.ref >> 30) }

// An interval is a function that has begun.
type interval struct {
	end uint64
	ref uint32
}

// build makes the index of all symbols of the sources. Symbols are numbered through, source after source.
//
// Where functions overlap, an address belongs to the one with the greatest start among those that contain it.
// A label, or a function without a size, that starts inside a function with a size is part of that.
func build(sources []source) *index { return lay(sources, sortKeys(collect(sources))) }

// buildFor makes an index that has for addrs, which are sorted, what that of all symbols has. It reads the symbols three times, and keeps few.
//
// What names an address begins at the last start before it, or contains it. The next start ends what has no size. A function around such a start
// decides whether labels there count.
func buildFor(sources []source, addrs []arch.Vaddr) *index {
	type near struct {
		before, after uint64 // the last start that is not behind the address, and the first that is
		is, next      bool   // there are such
	}
	nears := make([]near, len(addrs)) // of each, what is not known by the one before it, or behind it
	starts := map[uint64]bool{}
	eachKey(sources, func(k key) {
		i := sort.Search(len(addrs), func(i int) bool { return uint64(addrs[i]) >= k.start })
		if i < len(addrs) {
			n := &nears[i]
			n.before, n.is = max(n.before, k.start), true
			if uint64(addrs[i])-k.start < uint64(k.extent) {
				starts[k.start] = true
			}
		}
		if i > 0 {
			if n := &nears[i-1]; !n.next || k.start < n.after {
				n.after, n.next = k.start, true
			}
		}
	})
	for i, n := range nears {
		if n.is {
			starts[n.before] = true
		}
		if n.next {
			starts[n.after] = true
		}
		if i+1 < len(nears) && !nears[i+1].is {
			nears[i+1].before, nears[i+1].is = n.before, n.is
		}
	}
	for i := len(nears) - 1; i > 0; i-- {
		if n := nears[i]; n.next && !nears[i-1].next {
			nears[i-1].after, nears[i-1].next = n.after, true
		}
	}
	order := slices.Sorted(maps.Keys(starts))
	around := make([]key, len(order)) // of each start, the function that ends last of those that begin between it and the one before
	end := func(k *key) uint64 { return addSat(k.start, uint64(k.extent)) }
	eachKey(sources, func(k key) {
		i := sort.Search(len(order), func(i int) bool { return order[i] > k.start })
		if i < len(order) && k.kind() == function && end(&k) > end(&around[i]) {
			around[i] = k
		}
	})
	var last key
	for i, s := range order {
		if end(&around[i]) > end(&last) {
			last = around[i]
		}
		if end(&last) > s {
			starts[last.start] = true
		}
	}
	var keys []key
	eachKey(sources, func(k key) {
		if starts[k.start] {
			keys = append(keys, k)
		}
	})
	return lay(sources, sortKeys(keys))
}

// lay makes an index of sorted keys.
func lay(sources []source, keys []key) *index {
	room := 2 * len(keys) // pages that are not written cost nothing
	x := &index{starts: make([]uint64, 0, room), refs: make([]uint32, 0, room)}
	var open []interval // around the current address, the innermost last
	closeTo := func(to uint64) {
		for len(open) > 0 && open[len(open)-1].end <= to {
			end := open[len(open)-1].end
			for len(open) > 0 && open[len(open)-1].end <= end {
				open = open[:len(open)-1]
			}
			if len(open) > 0 {
				x.emit(end, open[len(open)-1].ref)
			} else {
				x.emit(end, none)
			}
		}
	}
	cover := uint64(0) // the greatest end of a function with a size so far
	for i := 0; i < len(keys); {
		start, best, same := keys[i].start, keys[i].kind(), true
		j := i + 1
		for ; j < len(keys) && keys[j].start == start; j++ {
			best = min(best, keys[j].kind())
		}
		group := keys[i:j]
		i = j
		if best != function && start < cover {
			continue
		}
		if len(group) > 1 {
			group = slices.DeleteFunc(group, func(k key) bool { return k.kind() != best })
			for _, k := range group {
				same = same && k.extent == group[0].extent
			}
		}
		closeTo(start)
		switch {
		case best == unsized || same:
			end, ref := addSat(start, uint64(group[0].extent)), x.group(group)
			if best == unsized && j < len(keys) {
				end = min(end, keys[j].start)
			} else if best == unsized && group[0].extent == math.MaxUint32 {
				end = addSat(start, 1) // nothing says where it ends
			}
			open = append(open, interval{end, ref})
		default:
			byRank(sources, group)
			for _, k := range group {
				open = append(open, interval{addSat(start, uint64(k.extent)), k.ref & maxRef})
			}
		}
		if best == function {
			for _, k := range group {
				cover = max(cover, addSat(start, uint64(k.extent)))
			}
		}
		x.emit(start, open[len(open)-1].ref)
	}
	closeTo(math.MaxUint64)
	return x
}

func addSat(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}

// collect returns the symbols that name code.
func collect(sources []source) []key {
	total := 0
	for i := range sources {
		total += sources[i].Len()
	}
	keys := make([]key, 0, total)
	eachKey(sources, func(k key) { keys = append(keys, k) })
	return keys
}

// eachKey calls f with each symbol that names code.
func eachKey(sources []source, f func(key)) {
	base := 0
	for i := range sources {
		s := &sources[i]
		n := min(s.Len(), maxRef-base)
		for j := range n {
			e := s.At(j)
			if k := s.kind(&e); k != noCode {
				f(key{e.Value, s.extent(&e), uint32(base+j) | uint32(k)<<30})
			}
		}
		base += n
	}
}

// group returns the reference to symbols of one start and end.
func (x *index) group(keys []key) uint32 {
	if len(keys) == 1 {
		return keys[0].ref & maxRef
	}
	x.groups = append(x.groups, uint32(len(x.members)))
	for _, k := range keys {
		x.members = append(x.members, k.ref&maxRef)
	}
	return uint32(len(x.groups)-1) | isGroup
}

// byRank sorts symbols of one start, the one to show last: of equals the first in the table.
func byRank(sources []source, group []key) {
	ranks := make(map[uint32]uint64, len(group))
	for _, k := range group {
		ranks[k.ref] = rank(sources, k.ref&maxRef)
	}
	slices.SortFunc(group, func(a, b key) int {
		return cmp.Or(cmp.Compare(ranks[a.ref], ranks[b.ref]), cmp.Compare(b.ref, a.ref))
	})
}

func rank(sources []source, ref uint32) uint64 {
	s, k := at(sources, ref)
	e := s.At(k)
	return s.rank(&e)
}

// at returns the source of symbol number ref, and its place there.
func at(sources []source, ref uint32) (*source, int) {
	k := int(ref)
	for i := range sources {
		s := &sources[i]
		if n := s.Len(); k < n {
			return s, k
		} else {
			k -= n
		}
	}
	panic("BUG: no such symbol")
}

// sortKeys sorts by start, and keeps the order of equals. It returns keys or a new slice. Radix sort, 11 bits a
// pass, over the bits that differ: for 150,000 symbols that takes a tenth of a comparison sort.
func sortKeys(keys []key) []key {
	if len(keys) < 128 {
		slices.SortStableFunc(keys, func(a, b key) int { return cmp.Compare(a.start, b.start) })
		return keys
	}
	lo, hi := keys[0].start, keys[0].start
	for _, k := range keys {
		lo, hi = min(lo, k.start), max(hi, k.start)
	}
	const digit = 11
	tmp := make([]key, len(keys))
	var count [1 << digit]uint32
	for shift := 0; shift < 64 && (hi-lo)>>shift > 0; shift += digit {
		clear(count[:])
		for i := range keys {
			count[(keys[i].start-lo)>>shift&(1<<digit-1)]++
		}
		sum := uint32(0)
		for i, c := range count {
			count[i] = sum
			sum += c
		}
		for _, k := range keys {
			d := (k.start - lo) >> shift & (1<<digit - 1)
			tmp[count[d]] = k
			count[d]++
		}
		keys, tmp = tmp, keys
	}
	return keys
}
