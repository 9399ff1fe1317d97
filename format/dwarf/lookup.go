package dwarf

import (
	"cmp"
	"fmt"
	"slices"
	"sort"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A hdr is the search table of .eh_frame_hdr (LSB core 5.0, section 10.6): sorted pairs of a function's
// start and its FDE's address.
type hdr struct {
	frames *Frames
	r      reader
	bases  bases
	table  int  // offset of the first pair
	count  int  // of pairs; 0 where the table was left out
	enc    byte // of the table
	size   int  // bytes of a number in the table
	ehAddr uint64
}

// openHdr decodes the head of the table.
func (f *Frames) openHdr(s Section) (*hdr, error) {
	h := &hdr{frames: f, r: reader{data: s.Data, end: len(s.Data), big: f.big}}
	h.bases = bases{field: uint64(s.Addr), data: uint64(s.Addr), text: uint64(f.in.Text)}
	fail := func(what string, err error) (*hdr, error) {
		d := Damage{Section: s.Name, Err: fmt.Errorf("%s: %w", what, err)}
		if e, ok := err.(*fault); ok {
			d.Off, d.Err = uint64(e.off), fmt.Errorf("%s: %w", what, e.err)
		}
		return nil, d
	}
	if len(s.Data) < 4 {
		return fail("head", truncated(0, "head"))
	}
	if v := s.Data[0]; v != 1 {
		return fail("version", unsupported(0, "version %d", v))
	}
	p, at, err := f.encoded(&h.r, 4, s.Data[1], f.in.AddrSize, &h.bases)
	if err != nil {
		return fail("pointer to .eh_frame", err)
	}
	h.ehAddr = p.v
	h.enc = s.Data[3]
	if s.Data[2] == DW_EH_PE_omit || h.enc == DW_EH_PE_omit {
		return h, nil
	}
	n, at, err := f.encoded(&h.r, at, s.Data[2], f.in.AddrSize, &h.bases)
	if err != nil {
		return fail("count", err)
	}
	switch h.enc & 0x0f {
	case DW_EH_PE_absptr, DW_EH_PE_signed:
		h.size = f.in.AddrSize
	case DW_EH_PE_udata2, DW_EH_PE_sdata2:
		h.size = 2
	case DW_EH_PE_udata4, DW_EH_PE_sdata4:
		h.size = 4
	case DW_EH_PE_udata8, DW_EH_PE_sdata8:
		h.size = 8
	default:
		return fail("table encoding", unsupported(3, "%#02x", h.enc))
	}
	if k := h.enc & 0xf0; k != DW_EH_PE_datarel && k != DW_EH_PE_absptr && k != DW_EH_PE_pcrel {
		return fail("table encoding", unsupported(3, "%#02x", h.enc))
	}
	if room := uint64(len(s.Data)-at) / uint64(2*h.size); n.v > room {
		return fail("count", malformed(at, "%d pairs, with room for %d", n.v, room))
	}
	h.table, h.count = at, int(n.v)
	return h, nil
}

// number returns one of a pair's numbers.
func (h *hdr) number(i, which int) uint64 {
	at := h.table + (2*i+which)*h.size
	v, _, err := h.r.number(at, h.enc&0x0f, h.frames.in.AddrSize)
	if err != nil {
		panic("BUG: a pair outside of the table")
	}
	switch h.enc & 0x70 {
	case DW_EH_PE_datarel:
		v += h.bases.data
	case DW_EH_PE_pcrel:
		v += h.bases.field + uint64(at)
	}
	return v & h.frames.mask
}

// find returns the pair with the greatest start that is not above pc: of several such the first.
func (h *hdr) find(pc uint64) (i int, ok bool) {
	i = sort.Search(h.count, func(i int) bool { return h.number(i, 0) > pc }) - 1
	for i > 0 && h.number(i-1, 0) == h.number(i, 0) {
		i--
	}
	return i, i >= 0
}

// An index finds FDEs without .eh_frame_hdr: all of one kind's, sorted by start.
type index struct {
	once sync.Once
	fdes []indexed
}

type indexed struct {
	lo, hi uint64
	top    uint64 // the greatest hi of this and all before
	s      *section
	off    int
}

// index returns the index of which, built on the first call.
func (f *Frames) index(which Which) *index {
	x := &f.indexes[which-1]
	x.once.Do(func() {
		for _, s := range f.sections(which) {
			s.walk(func(h *head) bool {
				if h.kind != isFDE {
					return true
				}
				var d fde
				c, err := s.cieOf(h)
				if err == nil {
					err = s.fde(&d, h, c)
				}
				if err == nil && !d.dead && d.lo < d.hi {
					x.fdes = append(x.fdes, indexed{lo: d.lo, hi: d.hi, s: s, off: h.off})
				}
				return true
			}, func(int, error) {})
		}
		slices.SortStableFunc(x.fdes, func(a, b indexed) int { return cmp.Compare(a.lo, b.lo) })
		top := uint64(0)
		for i := range x.fdes {
			top = max(top, x.fdes[i].hi)
			x.fdes[i].top = top
		}
	})
	return x
}

// find returns the FDE that holds at pc, and the range around pc in which no other one does: [lo, hi).
// Without an FDE, the range is the gap.
func (x *index) find(pc uint64) (e *indexed, lo, hi uint64) {
	n := sort.Search(len(x.fdes), func(i int) bool { return x.fdes[i].lo > pc })
	hi = ^uint64(0)
	if n < len(x.fdes) {
		hi = x.fdes[n].lo
	}
	i := n - 1
	for ; i >= 0 && x.fdes[i].top > pc; i-- {
		c := &x.fdes[i]
		if c.hi <= pc {
			lo = max(lo, c.hi)
			continue
		}
		// Of several with this start, the first that contains pc.
		for k := i - 1; k >= 0 && x.fdes[k].lo == c.lo; k-- {
			if x.fdes[k].hi > pc {
				c = &x.fdes[k]
			} else {
				lo = max(lo, x.fdes[k].hi)
			}
		}
		return c, max(lo, c.lo), min(hi, c.hi)
	}
	if i >= 0 {
		lo = max(lo, x.fdes[i].top)
	}
	return nil, lo, hi
}

// cieOf returns the CIE of the FDE whose head is h.
func (s *section) cieOf(h *head) (*cie, error) {
	c, err := s.cieAt(h.cieOff)
	if err != nil {
		return nil, noCIE(h)
	}
	return c, nil
}

func noCIE(h *head) error {
	return malformed(h.id, "FDE without CIE: there is none at %#x", h.cieOff)
}

// cieAt returns the CIE at an offset.
func (s *section) cieAt(off int) (*cie, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.cies[off]; c != nil {
		return c, nil
	}
	h, err := s.head(off)
	if err != nil {
		return nil, err
	}
	if h.kind != isCIE {
		return nil, malformed(off, "no CIE")
	}
	c := s.cie(&h)
	if s.cies == nil {
		s.cies = map[int]*cie{}
	}
	if len(s.cies) < maxCachedCIEs {
		s.cies[off] = c
	}
	return c, nil
}

const maxCachedCIEs = 1 << 14

// Lookup returns the rules of one function, without reading other functions: from .eh_frame if it has any for pc, else from .debug_frame. It
// uses .eh_frame_hdr; an index of all FDEs is made once where that is missing, or does not know pc.
//
// The table equals that of Build(Both) at pc and between its own first and last row; beyond them it
// says nothing. It is empty where there is no information. (A search table is believed: where it leaves out an FDE that
// lies inside another one, the outer one holds, as for the program itself.) An FDE that contains pc but cannot be read
// is an error; Build reports such an FDE and goes on as if it were not there.
func (f *Frames) Lookup(pc arch.Vaddr) (*rows.Table, error) {
	if t, err := f.lookupHdr(uint64(pc)); t != nil || err != nil {
		return t, err
	}
	lo, hi := uint64(0), ^uint64(0)
	for _, which := range []Which{EHFrame, DebugFrame} {
		e, l, h := f.index(which).find(uint64(pc))
		lo, hi = max(lo, l), min(hi, h)
		if e == nil {
			continue
		}
		t, err := e.s.table(e.off, lo, hi)
		if err != nil || !t.At(pc).Gap() {
			return t, err
		}
	}
	return rows.Build(rows.NewBuilder(f.in.Machine)), nil
}

// lookupHdr is Lookup through .eh_frame_hdr. It returns nil where that cannot tell.
func (f *Frames) lookupHdr(pc uint64) (*rows.Table, error) {
	s, off, d, hi := f.findHdr(pc)
	if s == nil {
		return nil, nil
	}
	t, err := s.table(off, d.lo, hi)
	if err == nil && t.At(arch.Vaddr(pc)).Gap() {
		return nil, nil
	}
	return t, err
}

// findHdr finds the FDE of pc through .eh_frame_hdr, its offset in its section, and where the next one starts, if
// that is before its end. It returns a nil section where the table cannot tell.
func (f *Frames) findHdr(pc uint64) (in *section, off int, d fde, hi uint64) {
	if f.hdr == nil {
		return nil, 0, d, 0
	}
	i, ok := f.hdr.find(pc)
	if !ok {
		return nil, 0, d, 0
	}
	at := f.hdr.number(i, 1)
	for _, s := range f.eh {
		if at-s.addr >= uint64(len(s.data)) {
			continue
		}
		h, err := s.head(int(at - s.addr))
		if err != nil || h.kind != isFDE {
			return nil, 0, d, 0
		}
		c, err := s.cieOf(&h)
		if err != nil || s.fde(&d, &h, c) != nil || d.dead || d.lo != f.hdr.number(i, 0) || pc >= d.hi {
			return nil, 0, d, 0
		}
		hi = d.hi
		for i++; i < f.hdr.count; i++ {
			if next := f.hdr.number(i, 0); next > d.lo {
				hi = min(hi, next)
				break
			}
		}
		if pc >= hi {
			return nil, 0, d, 0 // the table is not sorted
		}
		return s, h.off, d, hi
	}
	return nil, 0, d, 0
}

// Unindexed calls yield with the range of each FDE of .eh_frame to whose start .eh_frame_hdr leads nobody, by address, until it returns false. Whoever
// trusts the search table finds nothing there: libgcc, for one. Without a search table, there are none.
func (f *Frames) Unindexed(yield func(lo, hi arch.Vaddr) bool) {
	if f.hdr == nil || f.hdr.count == 0 {
		return
	}
	for _, e := range f.index(EHFrame).fdes {
		if s, _, _, _ := f.findHdr(e.lo); s == nil && !yield(arch.Vaddr(e.lo), arch.Vaddr(e.hi)) {
			return
		}
	}
}

// Bounds returns the range of the FDE that holds at pc: a function's, or a part of one, as far as unwind information
// tells. It is for naming code without symbols.
func (f *Frames) Bounds(which Which, pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	if which&EHFrame != 0 {
		if s, _, d, _ := f.findHdr(uint64(pc)); s != nil {
			return arch.Vaddr(d.lo), arch.Vaddr(d.hi), true
		}
	}
	for _, kind := range []Which{EHFrame, DebugFrame} {
		if which&kind == 0 {
			continue
		}
		if e, _, _ := f.index(kind).find(uint64(pc)); e != nil {
			return arch.Vaddr(e.lo), arch.Vaddr(e.hi), true
		}
	}
	return 0, 0, false
}

// table compiles the FDE at off and returns its rows in [lo, hi).
func (s *section) table(off int, lo, hi uint64) (*rows.Table, error) {
	h, err := s.head(off)
	if err != nil {
		return nil, err
	}
	c := newCompiler(s, 6, minWork, minSpace)
	if c.last, err = s.cieOf(&h); err != nil {
		return nil, err
	}
	var f fde
	c.lastAt = c.start(c.last)
	if err = s.fde(&f, &h, c.last); err == nil {
		err = c.compile(&f)
	}
	if err != nil {
		c.add(s, off, &f, err)
		return nil, c.list[0]
	}
	c.out.Clip(arch.Vaddr(lo), arch.Vaddr(hi))
	return rows.Build(c.out), nil
}
