package dwarf

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"runtime"
	"slices"
	"sync"

	"github.com/unspool/unspool/arch"
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
		run := func() { cs[i].all(items[len(items)*i/n : len(items)*(i+1)/n]) }
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
			ds.add(s, late[i].off, nil, malformed(late[i].id, "FDE without CIE: there is none at %#x", late[i].cieOff))
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
	used []rows.SetID // by state: its set in out, or unused
	cies map[int]*cie

	last   *cie // the CIE of the FDE before, and where it starts
	lastAt start
	starts map[*cie]start

	buf   []rows.Row
	stack []state // of remember_state; one byte of input pushes one
	damages
}

// unused marks a state that has no row yet.
const unused = ^rows.SetID(0)

// newCompiler returns a compiler for s, whose hash table starts with 2^size slots.
func newCompiler(s *section, size uint, work, space int) *compiler {
	return &compiler{
		section: s, a: newAutomaton(s.in.Machine, size, work, space),
		out: rows.NewBuilder(s.in.Machine), starts: map[*cie]start{},
	}
}

// A start is the state after a CIE's instructions.
type start struct {
	state state
	err   error
}

// all compiles items.
func (c *compiler) all(items []item) {
	var f fde
	for i, it := range items {
		if i == len(items)/16 {
			c.out.Grow(16*c.out.Len(), len(items)-i) // as the first sixteenth, so the others, and one to spare
		}
		if c.last == nil || !c.quick(it.off, c.last, &f) {
			h, err := c.head(it.off)
			if err == nil {
				c.last = c.cies[h.cieOff]
				c.lastAt = c.start(c.last)
				err = c.fde(&f, &h, c.last)
			}
			if err != nil {
				panic("BUG: an FDE that could be read cannot be: " + err.Error())
			}
		}
		if err := c.compile(&f); err != nil {
			c.add(c.section, it.off, &f, err)
		}
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
	if _, err := c.run(f.cie, f.insns, f.end, f.lo, c.lastAt.state, false); err != nil {
		return err
	}
	c.out.Range(arch.Vaddr(f.lo), arch.Vaddr(f.hi), c.buf)
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
		s, err := c.run(x, x.insns, x.end, 0, c.a.state(stateKey{base, c.a.context(ctx)}), true)
		if err != nil {
			at.err = in("CIE", err)
		} else {
			ctx.initial, ctx.inCIE = c.a.keys[s].set, false
			at.state = c.a.state(stateKey{ctx.initial, c.a.context(ctx)})
		}
	}
	c.starts[x] = at
	return at
}

// set returns a state's set in c.out.
func (c *compiler) set(s state) rows.SetID {
	if int(s) < len(c.used) && c.used[s] != unused {
		return c.used[s]
	}
	return c.use(s)
}

// use makes a state's set one of c.out's.
func (c *compiler) use(s state) rows.SetID {
	for len(c.used) < len(c.a.keys) {
		c.used = append(c.used, unused)
	}
	set := c.a.sets.Set(c.a.keys[s].set)
	if set.Gap() {
		c.used[s] = rows.GapID
	} else {
		c.used[s] = c.out.Intern(*set)
	}
	return c.used[s]
}

// run executes the instructions in data[at:end] from a state and leaves the rows in c.buf. The first row
// is at lo. It returns the last state.
func (c *compiler) run(x *cie, at, end int, lo uint64, s state, inCIE bool) (state, error) {
	data := c.data
	caf := x.caf
	loc, last := lo, unused // last: the set of the last row
	buf := c.buf[:0]
	c.stack = c.stack[:0]
	plan := &plans[0]
	if c.big {
		plan = &plans[1]
	}
	table, shift := c.a.table, c.a.shift&63
	for at < end {
		var w uint64 // eight bytes from here on
		if at+8 <= len(data) {
			w = binary.LittleEndian.Uint64(data[at:])
		} else {
			var tail [8]byte
			copy(tail[:], data[at:])
			w = binary.LittleEndian.Uint64(tail[:])
		}
		p := &plan[w&0xff]
		if p.kind == planAdvance {
			if int(p.size) > end-at {
				return 0, in(OpName(byte(w), c.in.Machine), truncated(at, "number"))
			}
			if delta := w >> (p.shift & 63) & uint64(p.mask) * caf; delta != 0 {
				set := c.set(s)
				if set != last {
					buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: set})
					last = set
				}
				if loc += delta; loc < delta || inCIE {
					return 0, c.badAdvance(at, inCIE)
				}
			}
			if at += int(p.size); at >= end {
				break
			}
			w >>= 8 * p.size & 63 // at least five bytes are left
			p = &plan[w&0xff]
		}
		switch p.kind {
		case planStep:
			n := 0
			if p.args == 1 {
				z := stops(w)
				n = bits.TrailingZeros64(z&(z-1))>>3 + 1
			} else {
				n = lebEnd(w, p.args)
			}
			if n <= maxKey && n <= end-at {
				key := w&(1<<(8*uint(n)&63)-1) | uint64(s)<<(8*maxKey)
				if i := key * hashMul >> shift; i < uint64(len(table)) && table[i].key == key {
					s = table[i].to
					at += n
					continue
				}
				if to, ok := c.a.find(key); ok {
					s = to
					at += n
					continue
				}
			}
			var i Instruction
			next, err := c.decode(&i, x, at, end)
			if err == nil {
				s, err = c.a.step(s, data[at:next], &i)
			}
			if err != nil {
				return 0, err
			}
			table, shift = c.a.table, c.a.shift&63
			at = next
		case planAdvance:
		case planNop:
			for at++; at < end && data[at] == DW_CFA_nop; at++ {
			}
		case planPush:
			c.stack = append(c.stack, s)
			at++
		case planPop:
			n := len(c.stack) - 1
			if n < 0 {
				return 0, in("DW_CFA_restore_state", malformed(at, "empty stack"))
			}
			s, c.stack = c.stack[n], c.stack[:n]
			at++
		default:
			var i Instruction
			next, err := c.decode(&i, x, at, end)
			if err != nil {
				return 0, err
			}
			delta := uint64(0)
			switch i.Op {
			case DW_CFA_advance_loc2, DW_CFA_advance_loc4, DW_CFA_MIPS_advance_loc8:
				delta = uint64(i.Args[0])
			case DW_CFA_set_loc:
				if delta = uint64(i.Args[0]) - loc; uint64(i.Args[0]) < loc {
					return 0, in("DW_CFA_set_loc", malformed(at, "back to %#x from %#x", uint64(i.Args[0]), loc))
				}
			default:
				if s, err = c.a.step(s, data[at:next], &i); err != nil {
					return 0, err
				}
			}
			if delta != 0 {
				if set := c.set(s); set != last {
					buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: set})
					last = set
				}
				if loc += delta; loc < delta || inCIE {
					return 0, c.badAdvance(at, inCIE)
				}
			}
			at = next
		}
	}
	if !inCIE {
		if set := c.set(s); set != last {
			buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: set})
		}
	}
	c.buf = buf
	return s, nil
}

func (c *compiler) badAdvance(at int, inCIE bool) error {
	if inCIE {
		return malformed(at, "advance in a CIE")
	}
	return malformed(at, "advance beyond the address space")
}

// decode reads the instruction at offset at.
func (c *compiler) decode(i *Instruction, x *cie, at, end int) (next int, err error) {
	r := c.reader(end)
	return c.instruction(i, &r, at, x)
}
