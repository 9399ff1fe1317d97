package dwarf

import (
	"cmp"
	"encoding/binary"
	"runtime"
	"slices"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// Build makes the table of all functions. The rows of .debug_frame fill the gaps of .eh_frame, with
// Both. What could not be read is missing in the table and reported.
func (f *Frames) Build(which Which) (*rows.Table, []Damage) {
	if which == Both {
		eh, d := f.Build(EHFrame)
		debug, d2 := f.Build(DebugFrame)
		return eh.Overlay(debug), append(d, d2...)
	}
	var bs []*rows.Builder
	var ds []Damage
	for _, s := range f.sections(which) {
		b, d := s.build(runtime.GOMAXPROCS(0))
		bs = append(bs, b...)
		ds = append(ds, d...)
	}
	if len(bs) == 0 {
		bs = append(bs, rows.NewBuilder(f.in.Machine))
	}
	return rows.Build(bs...), ds
}

// An item is an FDE that waits to be compiled.
type item struct {
	lo  uint64 // its start
	off int
}

// minShare is how many FDEs are worth a goroutine.
const minShare = 2000

// build compiles all FDEs of s, on at most procs goroutines, in the order of their addresses: so they need no
// sorting afterwards. The builders are in that order too.
func (s *section) build(procs int) ([]*rows.Builder, []Damage) {
	ds := damages{}
	items, cies := s.items(&ds)
	n := max(1, min(procs, len(items)/minShare))
	work, space := (minWork+maxWork*len(s.data))/n, (minSpace+maxSpace*len(s.data))/n
	cs := make([]*compiler, n)
	var wg sync.WaitGroup
	for i := range cs {
		cs[i] = newCompiler(s, 12, work, space)
		cs[i].cies = cies
		run := func() {
			// A file that shrinks while it is mapped faults: the caller may be guarded against that, a goroutine is not.
			err := module.Guard(func() error {
				part := items[len(items)*i/n : len(items)*(i+1)/n]
				if i == 0 {
					cs[i].room(items) // the others' rows will be appended to it
				} else {
					cs[i].room(part)
				}
				cs[i].all(part)
				return nil
			})
			if err != nil {
				cs[i].add(s, 0, nil, err)
			}
		}
		if i == n-1 {
			run()
		} else {
			wg.Go(run)
		}
	}
	wg.Wait()
	bs := make([]*rows.Builder, n)
	for i, c := range cs {
		bs[i] = c.out
		ds.join(&c.damages)
	}
	return bs, ds.all()
}

// items reads the heads of all entries and returns the FDEs, sorted by start (of several with one start,
// the first in the section is the first), and the CIEs.
func (s *section) items(ds *damages) ([]item, map[int]*cie) {
	items := make([]item, 0, len(s.data)/48)
	cies := map[int]*cie{}
	var late []head // FDEs before their CIE: in .debug_frame that is allowed
	var f fde
	add := func(h *head, c *cie) {
		if err := s.fde(&f, h, c); err != nil {
			ds.add(s, h.off, &f, err)
		} else if !f.dead && f.lo < f.hi {
			items = append(items, item{f.lo, h.off})
		}
	}
	var last *cie
	s.walk(func(h *head) bool {
		if h.kind == isCIE {
			last = s.cie(h)
			cies[h.off] = last
			if last.err != nil {
				ds.add(s, h.off, nil, last.err)
			}
		} else if last = cies[h.cieOff]; last != nil {
			add(h, last)
		} else {
			late = append(late, *h)
		}
		for last != nil && s.quick(h.end, last, &f) { // most entries
			items = append(items, item{f.lo, f.off})
			h.end = f.end
		}
		return true
	}, func(off int, err error) { ds.add(s, off, nil, err) })
	for i := range late {
		if c := cies[late[i].cieOff]; c != nil {
			add(&late[i], c)
		} else {
			ds.add(s, late[i].off, nil, noCIE(&late[i]))
		}
	}
	return sortItems(items, len(late) > 0), cies
}

// sortItems sorts by start, then by offset.
func sortItems(items []item, byOff bool) []item {
	if byOff {
		slices.SortFunc(items, func(a, b item) int { return cmp.Compare(a.off, b.off) })
	}
	least, most, sorted := ^uint64(0), uint64(0), true
	for i := range items {
		lo := items[i].lo
		sorted = sorted && lo >= most
		least, most = min(least, lo), max(most, lo)
	}
	if sorted {
		return items
	}
	// A radix sort: it is stable, and takes three passes for most programs.
	const digit = 11
	from, to := items, make([]item, len(items))
	for shift := uint(0); (most-least)>>shift != 0 && shift < 64; shift += digit {
		var at [1 << digit]int
		for i := range from {
			at[(from[i].lo-least)>>shift&(1<<digit-1)]++
		}
		sum := 0
		for d := range at {
			at[d], sum = sum, sum+at[d]
		}
		for i := range from {
			d := (from[i].lo - least) >> shift & (1<<digit - 1)
			to[at[d]] = from[i]
			at[d]++
		}
		from, to = to, from
	}
	return from
}

// Budgets for an automaton: for edges that are computed, and for distinct sets that are kept; in bytes of
// sets, a constant and a multiple of the section's size.
const (
	minWork, maxWork   = 1 << 28, 64
	minSpace, maxSpace = 1 << 25, 8
)

// A compiler makes the rows of FDEs. It is for one goroutine.
type compiler struct {
	*section
	a    *automaton
	out  *rows.Builder
	cies map[int]*cie

	last   *cie // the CIE of the FDE before, and where it starts
	lastAt start
	starts map[*cie]start

	buf   []rows.Row // what run leaves
	end   state
	stack []state // of remember_state; one byte of input pushes one
	damages
}

// newCompiler returns a compiler for s, whose automaton starts with 2^size slots.
func newCompiler(s *section, size uint, work, space int) *compiler {
	out := rows.NewBuilder(s.in.Machine)
	return &compiler{section: s, a: newAutomaton(out, size, work, space), out: out, starts: map[*cie]start{}}
}

// A start is the state after a CIE's instructions.
type start struct {
	state state
	err   error
}

// room makes room for the rows of items. Growing to a million rows step by step would copy them several times: a sample
// says how many come.
func (c *compiler) room(items []item) {
	var f fde
	n, sample := 0, 1+min(len(items)/256, 63)
	for i := 0; i < len(items); i += sample {
		c.open(items[i], &f)
		if c.lastAt.err == nil {
			c.run(&f, c.lastAt.state)
			n += len(c.buf) + 1
		}
	}
	c.out.Grow(n*sample*9/8, len(items))
}

// all compiles items.
func (c *compiler) all(items []item) {
	var f fde
	for _, it := range items {
		c.open(it, &f)
		err := c.compile(&f)
		if err == nil {
			err = c.lost(&f)
		}
		if err != nil {
			c.add(c.section, it.off, &f, err)
		}
	}
}

// open decodes the head of an FDE that items has listed.
func (c *compiler) open(it item, f *fde) {
	if c.last != nil && c.quick(it.off, c.last, f) {
		return
	}
	h, err := c.head(it.off)
	if err == nil {
		c.last = c.cies[h.cieOff]
		c.lastAt = c.start(c.last)
		err = c.fde(f, &h, c.last)
	}
	if err != nil {
		panic("BUG: an FDE that could be read cannot be: " + err.Error())
	}
}

// compile adds the rows of f, whose CIE is c.last.
func (c *compiler) compile(f *fde) error {
	if f.dead || f.lo == f.hi {
		return nil
	}
	if c.lastAt.err != nil {
		return c.lastAt.err
	}
	if err := c.run(f, c.lastAt.state); err != nil {
		return err
	}
	c.out.Range(arch.Vaddr(f.lo), arch.Vaddr(f.hi), c.buf)
	return nil
}

// lost returns an error if the instructions of f, whose rows compile has added, change the offset of a CFA that is an expression. The rows
// behind such an instruction have no CFA.
func (c *compiler) lost(f *fde) error {
	if !c.a.lost || !slices.ContainsFunc(c.buf, func(r rows.Row) bool { return c.out.Set(r.Set).CFA.Kind == rows.CFANone }) {
		return nil
	}
	m := move{at: f.insns, s: c.lastAt.state, loc: f.lo}
	c.stack = c.stack[:0]
	for m.at < f.end {
		at := m.at
		op := c.data[at]
		switch op {
		case DW_CFA_remember_state:
			c.stack = append(c.stack, m.s)
			m.at++
			continue
		case DW_CFA_restore_state:
			k := len(c.stack) - 1
			m.s, c.stack = c.stack[k], c.stack[:k]
			m.at++
			continue
		}
		if err := c.rare(f, &m); err != nil {
			return err
		}
		if (op == DW_CFA_def_cfa_offset || op == DW_CFA_def_cfa_offset_sf) && c.out.Set(m.s.set()).CFA.Kind == rows.CFANone {
			return in(OpName(op, nil), malformed(at, noRegisterAndOffset))
		}
	}
	return nil
}

// start returns the state after the instructions of x.
func (c *compiler) start(x *cie) start {
	at, ok := c.starts[x]
	if ok {
		return at
	}
	at.err = x.err
	if x.err == nil {
		base := c.a.sets.Intern(rows.Set{RA: x.ra, Flags: x.flags})
		ctx := context{daf: x.daf, initial: base, inCIE: true, word: uint8(x.addrSize)}
		// It is run as if it were an FDE, without room for an advance.
		f := fde{cie: x, insns: x.insns, end: x.end}
		if err := c.run(&f, c.a.state(stateKey{set: base, context: c.a.context(ctx)})); err != nil {
			at.err = in("CIE", err)
		} else if len(c.buf) > 1 {
			at.err = malformed(x.off, "advance in a CIE")
		} else {
			k := c.a.keys[c.end.number()]
			ctx.initial, ctx.inCIE = k.set, false
			k.context = c.a.context(ctx)
			at.state = c.a.state(k)
		}
	}
	c.starts[x] = at
	return at
}

// run executes f's instructions from a state. It leaves the rows in c.buf, the first one at f.lo, and the last
// state in c.end.
//
// It is written for the two or three instructions that make nearly all of every file: they have branches of
// their own, so that the processor can guess where the next instruction starts, and what remains to be waited
// for is one load an edge.
func (c *compiler) run(f *fde, s state) error {
	const none = ^rows.SetID(0)
	data := c.data
	at, end := f.insns, f.end
	caf := f.cie.caf
	loc, last := f.lo, none // last: the set of the last row
	table := c.a.table
	mask := uint64(len(table) - 1)
	buf := c.buf[:0]
	c.stack = c.stack[:0]
	for at < end {
		from := at
		var w uint64 // eight bytes from here on
		if b := data[at:]; len(b) >= 8 {
			w = binary.LittleEndian.Uint64(b)
		} else {
			w = tail(b)
		}
		delta := uint64(0)
		if b := byte(w); b&0xc0 == DW_CFA_advance_loc {
			delta = uint64(b&0x3f) * caf
			at, w = at+1, w>>8
		} else if b == DW_CFA_advance_loc1 && end-at >= 2 {
			delta = w >> 8 & 0xff * caf
			at, w = at+2, w>>16
		} else if b == DW_CFA_advance_loc2 && end-at >= 3 && !c.big {
			delta = w >> 8 & 0xffff * caf
			at, w = at+3, w>>24
		}
		if delta != 0 {
			if s.set() != last {
				last = s.set()
				buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: last})
			}
			if loc += delta; loc < delta {
				return malformed(from, "advance beyond the address space")
			}
		}
		if at >= end {
			break
		}

		// At least five bytes are left in w.
		var n uint
		var ins uint64
		switch b := byte(w); {
		case w&pushMask == push && end-at >= 4:
			n, ins = 4, w&0xffffffff
		case b == DW_CFA_def_cfa_offset || b&0xc0 == DW_CFA_offset:
			if n, ins = 2, w&0xffff; w&0x8000 != 0 {
				if n, ins = 3, w&0xffffff; w&0x800000 != 0 {
					if n = lebEnd(w, 1); n <= maxKey {
						ins = w & insMask[n&7]
					}
				}
			}
		case b&0xc0 == DW_CFA_restore:
			n, ins = 1, w&0xff
		default:
			switch p := plans[b]; p.kind {
			case planNop:
				for at++; at < end && data[at] == DW_CFA_nop; at++ {
				}
				continue
			case planPush:
				c.stack = append(c.stack, s)
				at++
				continue
			case planPop:
				k := len(c.stack) - 1
				if k < 0 {
					return in("DW_CFA_restore_state", malformed(at, "empty stack"))
				}
				s, c.stack = c.stack[k], c.stack[:k]
				at++
				continue
			case planStep:
				if n = lebEnd(w, p.args); n <= maxKey {
					ins = w & insMask[n&7]
				}
			case planAdvance:
				if delta != 0 {
					continue // the one before has been seen to
				}
				n = maxKey + 1
			default:
				n = maxKey + 1
			}
		}
		if n <= maxKey && int(n) <= end-at {
			if i := slot(ins, s) & mask; i < uint64(len(table)) && table[i].key == key(ins, s) {
				s = table[i].to
				at += int(n)
				continue
			}
			if to, ok := c.a.find(ins, s); ok {
				s = to
				at += int(n)
				continue
			}
		}
		m := move{at: at, s: s, loc: loc}
		if err := c.rare(f, &m); err != nil {
			return err
		}
		if w&pushMask == push && end-at >= 4 {
			if err := c.rare(f, &m); err != nil {
				return err
			}
			c.a.insert(ins, s, m.s) // which was not found
		}
		if loc != m.loc && s.set() != last {
			last = s.set()
			buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: last})
		}
		at, s, loc = m.at, m.s, m.loc
		table = c.a.table
		mask = uint64(len(table) - 1)
	}
	if s.set() != last {
		buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: s.set()})
	}
	c.buf, c.end = buf, s
	return nil
}

// push is two instructions with operands of a byte each, DW_CFA_def_cfa_offset and DW_CFA_offset: what a push of a register needs. They are one
// edge.
const pushMask, push = 0x80c080ff, 0x0080000e

// A move is what run knows before and after an instruction.
type move struct {
	at  int
	s   state
	loc uint64
}

// rare executes an instruction for run: an edge that is new or has a long key, or a way to advance that
// compilers do not use.
func (c *compiler) rare(f *fde, m *move) error {
	var i Instruction
	r := c.reader(f.end)
	next, err := c.instruction(&i, &r, m.at, f.cie, f.lo)
	if err != nil {
		return err
	}
	switch i.Op {
	case DW_CFA_set_loc:
		lo := uint64(i.Args[0])
		if lo < m.loc {
			return in("DW_CFA_set_loc", malformed(m.at, "back to %#x from %#x", lo, m.loc))
		}
		m.loc = lo
	case DW_CFA_advance_loc, DW_CFA_advance_loc1, DW_CFA_advance_loc2, DW_CFA_advance_loc4, DW_CFA_MIPS_advance_loc8:
		delta := uint64(i.Args[0])
		if m.loc += delta; m.loc < delta {
			return malformed(m.at, "advance beyond the address space")
		}
	default:
		if m.s, err = c.a.step(m.s, c.data[m.at:next], &i); err != nil {
			return err
		}
	}
	m.at = next
	return nil
}

// tail is the bytes at the end of a section, with zeros behind them.
func tail(b []byte) uint64 {
	var w [8]byte
	copy(w[:], b)
	return binary.LittleEndian.Uint64(w[:])
}
