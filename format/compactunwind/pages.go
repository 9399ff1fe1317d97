package compactunwind

import (
	"iter"
	"sort"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Kinds of second-level pages.
const (
	regularPage    = 2
	compressedPage = 3
)

const (
	headerSize = 28
	indexSize  = 12 // of an entry of the index
)

func (t *Table) u32(at uint64) (uint32, bool) {
	if at > uint64(len(t.b)) || uint64(len(t.b))-at < 4 {
		return 0, false
	}
	return t.order.Uint32(t.b[at:]), true
}

// array returns the numbers of an array of records, as many of these as the section has; ok is false where that are fewer than n.
func (t *Table) array(off, n uint32, size uint64) (list []byte, ok bool) {
	if uint64(off) > uint64(len(t.b)) {
		return nil, n == 0
	}
	room := (uint64(len(t.b)) - uint64(off)) / size
	return t.b[off:][:min(uint64(n), room)*size], uint64(n) <= room
}

// A header is the beginning of a linked file's section.
type header struct {
	common, personalities []byte // numbers of 4 bytes
	index                 []byte
}

// header reads the section's header.
func (t *Table) header(es *errors) (h header, ok bool) {
	if len(t.b) < headerSize {
		es.add(t, 0, "header: %w", module.ErrTruncated)
		return h, false
	}
	f := func(i uint64) uint32 { v, _ := t.u32(4 * i); return v }
	if v := f(0); v != 1 {
		es.add(t, 0, "version %d: %w", v, module.ErrUnsupported)
		return h, false
	}
	for i, x := range []struct {
		what string
		to   *[]byte
		size uint64
	}{{"common encodings", &h.common, 4}, {"personalities", &h.personalities, 4}, {"index entries", &h.index, indexSize}} {
		off, n := f(uint64(1+2*i)), f(uint64(2+2*i))
		if *x.to, ok = t.array(off, n, x.size); !ok {
			es.add(t, uint64(4+8*i), "%d %s at %#x: %w", n, x.what, off, module.ErrTruncated)
		}
	}
	return h, true
}

// entries yields what the section says of each function; what cannot be read goes to es. lsdas says that language-specific data are looked for.
func (t *Table) entries(es *errors, lsdas bool) iter.Seq[Entry] {
	if t.object {
		return func(yield func(Entry) bool) { t.objectEntries(es, yield) }
	}
	return func(yield func(Entry) bool) {
		h, ok := t.header(es)
		if !ok {
			return
		}
		left := len(t.b) / 4 // an entry takes 4 bytes or more, unless pages overlap
		for ; len(h.index) >= 2*indexSize; h.index = h.index[indexSize:] {
			p := page{Table: t, es: es, header: &h, withLSDA: lsdas,
				lo: t.order.Uint32(h.index), off: t.order.Uint32(h.index[4:]), lsdas: t.order.Uint32(h.index[8:]),
				hi: t.order.Uint32(h.index[indexSize:]), lsdaEnd: t.order.Uint32(h.index[indexSize+8:])}
			if p.off != 0 && !p.entries(&left, yield) {
				return
			}
		}
	}
}

// A page is a second-level page, with what its entry of the index says.
type page struct {
	*Table
	*header
	es             *errors
	lo, hi         uint32 // of its functions
	off            uint32 // in the section
	lsdas, lsdaEnd uint32 // in the section: pairs of a function and its data
	withLSDA       bool
}

// entries yields the page's entries; false if yield had enough, or if no more are to be read.
func (p *page) entries(left *int, yield func(Entry) bool) bool {
	at := uint64(p.off)
	kind, ok := p.u32(at)
	counts, ok2 := p.u32(at + 4)
	if !ok || !ok2 {
		p.es.add(p.Table, at, "page: %w", module.ErrTruncated)
		return true
	}
	first, n := at+uint64(counts&0xffff), int(counts>>16)
	size, own := uint64(8), []byte(nil)
	switch kind {
	case regularPage:
	case compressedPage:
		size = 4
		encodings, ok := p.u32(at + 8)
		if !ok {
			p.es.add(p.Table, at, "page: %w", module.ErrTruncated)
			return true
		}
		if own, ok = p.array(p.off+encodings&0xffff, encodings>>16, 4); !ok {
			p.es.add(p.Table, at+8, "%d encodings: %w", encodings>>16, module.ErrTruncated)
		}
	default:
		p.es.add(p.Table, at, "page of kind %d: %w", kind, module.ErrUnsupported)
		return true
	}
	if room := (uint64(len(p.b)) - min(first, uint64(len(p.b)))) / size; uint64(n) > room {
		p.es.add(p.Table, at+4, "%d entries: %w", n, module.ErrTruncated)
		n = int(room)
	}
	if n > *left {
		p.es.add(p.Table, at, "pages overlap: %w", module.ErrMalformed)
		return false
	}
	*left -= n
	// function returns where entry i begins, from the file's header on.
	function := func(i int) uint32 {
		v := p.order.Uint32(p.b[first+uint64(i)*size:])
		if kind == compressedPage {
			return p.lo + v&0xffffff
		}
		return v
	}
	next := p.hi
	if n > 0 {
		next = function(0)
	}
	for i := range n {
		off := first + uint64(i)*size
		lo := next
		if next = p.hi; i+1 < n {
			next = function(i + 1)
		}
		var encoding uint32
		if kind == regularPage {
			encoding = p.order.Uint32(p.b[off+4:])
		} else {
			k := int(p.b[off+3]) // the byte with the highest value: Apple's machines are little-endian
			all := p.common
			if k >= len(p.common)/4 {
				all, k = own, k-len(p.common)/4
			}
			if k >= len(all)/4 {
				p.es.add(p.Table, off, "function %#x: encoding %d of %d: %w", uint64(p.base)+uint64(lo), p.b[off+3], (len(p.common)+len(own))/4, module.ErrMalformed)
				continue
			}
			encoding = p.order.Uint32(all[4*k:])
		}
		// Some linkers count only __text, and end the last page before functions of other sections; the code between has no entry.
		end := next
		switch {
		case lo < p.hi && p.hi < end:
			end = p.hi
		case lo >= p.hi && i == n-1:
			end = p.sectionEnd(lo)
		}
		if end < lo {
			p.es.add(p.Table, off, "function %#x ends at %#x: %w", uint64(p.base)+uint64(lo), uint64(p.base)+uint64(end), module.ErrMalformed)
			continue
		}
		e := Entry{Lo: p.base + arch.Vaddr(lo), Hi: p.base + arch.Vaddr(end), Encoding: encoding, Off: off}
		if k := encoding >> personalityShift & personalityMask; k > 0 {
			if int(k) <= len(p.personalities)/4 {
				e.Personality = p.base + arch.Vaddr(p.order.Uint32(p.personalities[4*(k-1):]))
			} else {
				p.es.add(p.Table, off, "function %#x: personality %d of %d: %w", uint64(e.Lo), k, len(p.personalities)/4, module.ErrMalformed)
			}
		}
		if encoding&hasLSDA != 0 && p.withLSDA {
			e.LSDA, e.HasLSDA = p.lsda(lo)
		}
		if !yield(e) {
			return false
		}
	}
	return true
}

// sectionEnd returns the end of the section of code that a function is in; 0 if there is none.
func (t *Table) sectionEnd(function uint32) uint32 {
	for i := range t.sections {
		s := &t.sections[i]
		if lo := t.base + arch.Vaddr(function); s.Perm&module.Exec != 0 && lo-s.Addr < arch.Vaddr(s.Size) {
			return uint32(s.Addr + arch.Vaddr(s.Size) - t.base)
		}
	}
	return 0
}

// lsda returns the language-specific data of a function.
func (p *page) lsda(function uint32) (arch.Vaddr, bool) {
	if p.lsdaEnd < p.lsdas {
		return 0, false
	}
	list, _ := p.array(p.lsdas, (p.lsdaEnd-p.lsdas)/8, 8)
	i := sort.Search(len(list)/8, func(i int) bool { return p.order.Uint32(list[8*i:]) >= function })
	if 8*i >= len(list) || p.order.Uint32(list[8*i:]) != function {
		return 0, false
	}
	return p.base + arch.Vaddr(p.order.Uint32(list[8*i+4:])), true
}

// objectEntries yields the records of an object file: where the function begins, its length, its encoding, who handles its exceptions, and its
// language-specific data.
func (t *Table) objectEntries(es *errors, yield func(Entry) bool) {
	word := 4
	if t.is64 {
		word = 8
	}
	pointer := func(b []byte) arch.Vaddr {
		if t.is64 {
			return arch.Vaddr(t.order.Uint64(b))
		}
		return arch.Vaddr(t.order.Uint32(b))
	}
	size := 3*word + 8
	b := t.b
	for off := uint64(0); len(b) >= size; b, off = b[size:], off+uint64(size) {
		if r := t.bad.In(off, off+uint64(size)); r != nil {
			es.add(t, r.Off, "relocation %s: %s: %w", r.Type, r.Msg, r.Err)
			continue
		}
		rest := b[word:]
		e := Entry{Lo: pointer(b), Encoding: t.order.Uint32(rest[4:]), Personality: pointer(rest[8:]), LSDA: pointer(rest[8+word:]), Off: off}
		if e.Hi = e.Lo + arch.Vaddr(t.order.Uint32(rest)); e.Hi < e.Lo {
			es.add(t, off, "function %#x of %#x bytes: %w", uint64(e.Lo), t.order.Uint32(rest), module.ErrMalformed)
			continue
		}
		e.HasLSDA = e.LSDA != 0
		if !yield(e) {
			return
		}
	}
	if len(b) > 0 {
		es.add(t, uint64(len(t.b)-len(b)), "record: %w", module.ErrTruncated)
	}
}
