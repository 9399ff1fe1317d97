package dwarf

import (
	"encoding/binary"
	"runtime"
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

// minShare is how many bytes of a section are worth a goroutine.
const minShare = 128 << 10

// build compiles all FDEs of s, on at most procs goroutines. The builders are in the order of the section.
func (s *section) build(procs int) ([]*rows.Builder, []Damage) {
	// A first pass over the heads finds the CIEs, and where to cut.
	n := max(1, min(procs, len(s.data)/minShare))
	cies := map[int]*cie{}
	cuts := []int{0}
	end := 0
	ds := damages{}
	s.walk(func(h *head) bool {
		if h.kind == isCIE {
			c := s.cie(h)
			cies[h.off] = c
			if c.err != nil {
				ds.add(s, h.off, nil, c.err)
			}
		}
		if len(cuts) < n && h.off >= len(s.data)/n*len(cuts) {
			cuts = append(cuts, h.off)
		}
		end = h.end
		return true
	}, func(off int, err error) { ds.add(s, off, nil, err) })
	cuts = append(cuts, end)

	work, space := (minWork+maxWork*len(s.data))/(len(cuts)-1), (minSpace+maxSpace*len(s.data))/(len(cuts)-1)
	cs := make([]*compiler, len(cuts)-1)
	var wg sync.WaitGroup
	for i := range cs {
		b := rows.NewBuilder(s.in.Machine)
		cs[i] = &compiler{section: s, b: b, a: newAutomaton(b, 12, work, space), cies: cies, starts: map[*cie]start{}}
		run := func() { cs[i].all(cuts[i], cuts[i+1]) }
		if i == len(cs)-1 {
			run()
		} else {
			wg.Go(run)
		}
	}
	wg.Wait()
	bs := make([]*rows.Builder, len(cs))
	for i, c := range cs {
		bs[i] = c.b
		ds.join(&c.damages)
	}
	return bs, ds.all()
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
	b    *rows.Builder
	a    *automaton
	cies map[int]*cie

	last   *cie // the CIE of the FDE before, and where it starts
	lastAt start
	starts map[*cie]start

	buf   []rows.Row
	stack []state // of remember_state; one byte of input pushes one
	damages
}

// A start is the state after a CIE's instructions.
type start struct {
	state state
	err   error
}

// all compiles the FDEs in [off, end).
func (c *compiler) all(off, end int) {
	c.b.Grow((end - off) / 6)
	for off < end {
		h, err := c.head(off)
		if err != nil && h.end == 0 {
			return
		}
		if err == nil && h.kind == isFDE {
			if c.last == nil || c.last.off != h.cieOff {
				c.last = c.cies[h.cieOff]
				if c.last == nil {
					c.add(c.section, h.off, nil, malformed(h.id, "FDE without CIE: there is none at %#x", h.cieOff))
					off = h.end
					continue
				}
				c.lastAt = c.start(c.last)
			}
			var f fde
			if err := c.compile(&f, &h); err != nil {
				c.add(c.section, h.off, &f, err)
			}
		}
		off = h.end
	}
}

// compile adds the rows of the FDE with head h, whose CIE is c.last, and fills in f.
func (c *compiler) compile(f *fde, h *head) error {
	if err := c.fde(f, h, c.last); err != nil {
		return err
	}
	if f.dead || f.lo == f.hi {
		return nil
	}
	if c.lastAt.err != nil {
		return c.lastAt.err
	}
	if _, err := c.run(f.cie, f.insns, f.end, f.lo, c.lastAt.state, false); err != nil {
		return err
	}
	c.b.Range(arch.Vaddr(f.lo), arch.Vaddr(f.hi), c.buf)
	return nil
}

// start returns the state after the instructions of x.
func (c *compiler) start(x *cie) start {
	if at, ok := c.starts[x]; ok {
		return at
	}
	at := start{err: x.err}
	if x.err == nil {
		base := c.b.Intern(rows.Set{RA: x.ra, Flags: x.flags})
		ctx := context{daf: x.daf, initial: base, inCIE: true, word: uint8(x.addrSize)}
		var s state
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

// run executes the instructions in data[at:end] from a state and leaves the rows in c.buf. The first row
// is at lo. It returns the last state.
func (c *compiler) run(x *cie, at, end int, lo uint64, s state, inCIE bool) (state, error) {
	const none = ^rows.SetID(0)
	data := c.data
	caf := x.caf
	loc, last := lo, none // last: the set of the last row
	buf := c.buf[:0]
	c.stack = c.stack[:0]
	table := &plans[0]
	if c.big {
		table = &plans[1]
	}
	for at < end {
		var w uint64 // eight bytes from here on
		if at+8 <= len(data) {
			w = binary.LittleEndian.Uint64(data[at:])
		} else {
			var tail [8]byte
			copy(tail[:], data[at:])
			w = binary.LittleEndian.Uint64(tail[:])
		}
		p := &table[w&0xff]
		delta := uint64(0)
		switch p.kind {
		case planNop:
			at++
			continue
		case planStep:
			n := lebEnd(w, p.args)
			if n <= maxKey && n <= end-at {
				key := w&(1<<(8*uint(n)&63)-1) | uint64(s)<<(8*maxKey)
				if e := &c.a.table[key*hashMul>>(c.a.shift&63)]; e.key == key {
					s = e.to
					at += n
					continue
				}
				if to, ok := c.a.find(key); ok {
					s = to
					at += n
					continue
				}
			}
			next, to, err := c.slow(x, at, end, s)
			if err != nil {
				return 0, err
			}
			at, s = next, to
			continue
		case planPush:
			c.stack = append(c.stack, s)
			at++
			continue
		case planPop:
			n := len(c.stack) - 1
			if n < 0 {
				return 0, in("DW_CFA_restore_state", malformed(at, "empty stack"))
			}
			s, c.stack = c.stack[n], c.stack[:n]
			at++
			continue
		case planAdvance:
			if int(p.size) > end-at {
				return 0, in(OpName(byte(w), c.in.Machine), truncated(at, "number"))
			}
			delta = w >> (p.shift & 63) & p.mask * caf
			at += int(p.size)
		default:
			r := c.reader(end)
			var i Instruction
			next, err := c.instruction(&i, &r, at, x)
			if err != nil {
				return 0, err
			}
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
				at = next
				continue
			}
			at = next
		}
		if delta == 0 {
			continue
		}
		if inCIE {
			return 0, malformed(at, "advance in a CIE")
		}
		if set := c.a.setOf[s]; set != last {
			buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: set})
			last = set
		}
		if loc += delta; loc < delta {
			return 0, malformed(at, "advance beyond the address space")
		}
	}
	if set := c.a.setOf[s]; set != last {
		buf = append(buf, rows.Row{Lo: arch.Vaddr(loc), Set: set})
	}
	c.buf = buf
	return s, nil
}

// slow follows the instruction at offset at through the automaton's slow path.
func (c *compiler) slow(x *cie, at, end int, s state) (next int, to state, err error) {
	r := c.reader(end)
	var i Instruction
	if next, err = c.instruction(&i, &r, at, x); err != nil {
		return 0, 0, err
	}
	to, err = c.a.step(s, c.data[at:next], &i)
	return next, to, err
}
