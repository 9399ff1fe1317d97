package symbol

import (
	"debug/elf"
	"encoding/binary"
	"math"
	"slices"
	"sort"
	"strings"

	"github.com/unspool/unspool/module"
)

// A source is one symbol table of a file, as it lies in the file.
type source struct {
	syms  []byte
	names []byte
	order binary.ByteOrder
	is64  bool
	secs  []module.Section // of the same file; empty if it has none
	thumb bool             // bit 0 of a function's value is no part of its address
}

// An entry is a decoded symbol.
type entry struct {
	name  uint32
	typ   elf.SymType
	bind  elf.SymBind
	sec   elf.SectionIndex
	value uint64
	size  uint64
}

func (s *source) entsize() int {
	if s.is64 {
		return elf.Sym64Size
	}
	return elf.Sym32Size
}

func (s *source) len() int { return len(s.syms) / s.entsize() }

func (s *source) entry(i int) (e entry) {
	var info byte
	if s.is64 {
		b := s.syms[i*elf.Sym64Size:][:elf.Sym64Size]
		if s.order == binary.LittleEndian {
			le := binary.LittleEndian
			e = entry{name: le.Uint32(b), sec: elf.SectionIndex(le.Uint16(b[6:])), value: le.Uint64(b[8:]), size: le.Uint64(b[16:])}
		} else {
			e = entry{name: s.order.Uint32(b), sec: elf.SectionIndex(s.order.Uint16(b[6:])), value: s.order.Uint64(b[8:]), size: s.order.Uint64(b[16:])}
		}
		info = b[4]
	} else {
		b := s.syms[i*elf.Sym32Size:][:elf.Sym32Size]
		e = entry{name: s.order.Uint32(b), sec: elf.SectionIndex(s.order.Uint16(b[14:])), value: uint64(s.order.Uint32(b[4:])), size: uint64(s.order.Uint32(b[8:]))}
		info = b[12]
	}
	e.typ, e.bind = elf.SymType(info&15), elf.SymBind(info>>4)
	if s.thumb && e.typ != elf.STT_NOTYPE {
		e.value &^= 1
	}
	return e
}

// name returns the name at off in the string table, which it aliases, cut at maxName.
func (s *source) name(off uint32) []byte {
	if uint64(off) >= uint64(len(s.names)) {
		return nil
	}
	b := s.names[off:]
	b = b[:min(len(b), maxName)]
	for i, c := range b {
		if c == 0 {
			return b[:i]
		}
	}
	return b
}

func isFunc(t elf.SymType) bool { return t == elf.STT_FUNC || t == elf.STT_GNU_IFUNC }

// names a function says whether e can name code: a function, or a label in an executable section that is
// neither a mapping symbol ($x, $d: AArch64 ELF, section 5.7) nor local to the assembler (.L).
func (s *source) code(e *entry) bool {
	if e.sec == elf.SHN_UNDEF || e.sec >= elf.SHN_LORESERVE && e.sec != elf.SHN_XINDEX {
		return false
	}
	if isFunc(e.typ) {
		return e.value != 0 || e.size != 0
	}
	if e.typ != elf.STT_NOTYPE || int(e.sec) >= len(s.secs) || s.secs[e.sec].Flags&elf.SHF_EXECINSTR == 0 {
		return false
	}
	n := s.name(e.name)
	if len(n) == 0 || n[0] == '.' && len(n) > 1 && n[1] == 'L' {
		return false
	}
	mapping := n[0] == '$' && len(n) >= 2 && strings.IndexByte("adtx", n[1]) >= 0 && (len(n) == 2 || n[2] == '.' || n[1] == 'x')
	return !mapping
}

// end returns the end of e, at most next where e has no size.
func (s *source) end(e *entry, next uint64) uint64 {
	if e.size > 0 {
		if end := e.value + e.size; end > e.value {
			return end
		}
		return math.MaxUint64
	}
	if int(e.sec) < len(s.secs) && e.sec != elf.SHN_XINDEX {
		sec := &s.secs[e.sec]
		if end := uint64(sec.Addr) + sec.Size; e.value >= uint64(sec.Addr) && e.value < end {
			return min(next, end)
		}
	}
	if next != math.MaxUint64 {
		return next
	}
	return e.value + 1
}

// rank orders symbols of one address; the greatest is shown. As perf has it: no weak symbol where there is
// another, a global one before a local one, few leading underscores, and then the longest name, which
// says most; of equal names without their version, the one without.
func (s *source) rank(e *entry) uint64 {
	n := s.name(e.name)
	lead, base := 0, len(n)
	for lead < len(n) && n[lead] == '_' {
		lead++
	}
	versioned := uint64(1)
	for i, c := range n {
		if c == '@' {
			base, versioned = i, 0
			break
		}
	}
	strong, global := uint64(1), uint64(0)
	if e.bind == elf.STB_WEAK {
		strong = 0
	}
	if e.bind == elf.STB_GLOBAL {
		global = 1
	}
	return strong<<63 | global<<62 | uint64(255-min(lead, 255))<<32 | uint64(base)<<1 | versioned
}

// none marks a span without a name.
const none = math.MaxUint32

// An index says which symbol names an address: spans that start at starts, each up to the next one's
// start, and the number of the symbol of each.
type index struct {
	starts []uint64
	refs   []uint32
}

// find returns the number of the span of v, or -1.
func (x *index) find(v uint64) int {
	i := sort.Search(len(x.starts), func(i int) bool { return x.starts[i] > v }) - 1
	if i < 0 || x.refs[i] == none {
		return -1
	}
	return i
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
	start uint64
	ref   uint32
}

// A member is one of the symbols that start at the same address.
type member struct {
	end  uint64
	rank uint64
	ref  uint32
	size bool // it has a size
	fun  bool // and is a function
}

// build makes the index of all symbols of the sources. Symbols are numbered through, source after source.
//
// Where functions overlap, an address belongs to the one with the greatest start among those that contain it.
// A label, or a function without a size, holds up to the next symbol or the end of its section; one that
// starts inside a function with a size is part of that.
func build(sources []source) *index {
	var keys []key
	base := 0
	for i := range sources {
		s := &sources[i]
		n := s.len()
		if base+n >= none {
			break
		}
		keys = slices.Grow(keys, n)
		for j := range n {
			if e := s.entry(j); s.code(&e) {
				keys = append(keys, key{e.value, uint32(base + j)})
			}
		}
		base += n
	}
	keys = sortKeys(keys)

	x := &index{starts: make([]uint64, 0, len(keys)+len(keys)/4), refs: make([]uint32, 0, len(keys)+len(keys)/4)}
	var open, group []member // open: the functions around the current address, the innermost last
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
		start, next := keys[i].start, uint64(math.MaxUint64)
		j := i + 1
		for j < len(keys) && keys[j].start == start {
			j++
		}
		if j < len(keys) {
			next = keys[j].start
		}
		closeTo(start)
		group = group[:0]
		var best member
		for ; i < j; i++ {
			s, k := at(sources, keys[i].ref)
			e := s.entry(k)
			m := member{end: s.end(&e, next), ref: keys[i].ref, size: e.size > 0, fun: e.size > 0 && isFunc(e.typ)}
			if m.fun {
				cover = max(cover, m.end)
			}
			group = append(group, m)
			if m.size && !best.size || m.fun && !best.fun {
				best = m
			}
		}
		if !best.fun && start < cover {
			continue
		}
		if len(group) > 1 {
			group = choose(sources, group, best)
		}
		open = append(open, group...)
		x.emit(start, open[len(open)-1].ref)
	}
	closeTo(math.MaxUint64)
	return x
}

// choose keeps those of the group that are as good as best, the one to show last.
func choose(sources []source, group []member, best member) []member {
	group = slices.DeleteFunc(group, func(m member) bool { return m.size != best.size || m.fun != best.fun })
	for i := range group {
		s, k := at(sources, group[i].ref)
		e := s.entry(k)
		group[i].rank = s.rank(&e)
	}
	slices.SortStableFunc(group, func(a, b member) int {
		if a.rank != b.rank {
			if a.rank < b.rank {
				return -1
			}
			return 1
		}
		return int(int64(b.ref) - int64(a.ref)) // the first in the table is shown
	})
	return group
}

// at returns the source of symbol number ref, and its place there.
func at(sources []source, ref uint32) (*source, int) {
	k := int(ref)
	for i := range sources {
		s := &sources[i]
		if n := s.len(); k < n {
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
		slices.SortStableFunc(keys, func(a, b key) int {
			if a.start < b.start {
				return -1
			} else if a.start > b.start {
				return 1
			}
			return 0
		})
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
