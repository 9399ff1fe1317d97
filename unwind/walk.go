package unwind

import (
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// DefaultDepth is the limit of frames that a Walker has unless told otherwise.
const DefaultDepth = 4096

// A Snapshot is a thread at one moment: its registers, what memory is known, and its address space.
type Snapshot struct {
	Machine *arch.Machine
	Space   *Space
	Time    uint64 // ns of the monotonic clock; 0 where that is not known
	PC      uint64
	Known   uint64                // set of slots whose value is in Regs
	Signs   uint64                // the bits of a signed return address that its signature may use; 0 where that is not known
	Regs    [arch.NumSlots]uint64 // by slot
	Mem     rows.Memory           // the window is the captured stack

	// ZeroEnds says that code that nobody has called has 0 for its return address in this process, whatever the machine's is (32-bit Windows).
	ZeroEnds bool
}

// A Walker walks stacks. It remembers the result at each PC of a Space, so one Walker should serve many stacks; it is for one goroutine at a
// time.
type Walker struct {
	Return uint64 // where the last stack stopped with BadReturn: the address that is in no code

	depth   int
	machine *arch.Machine // of the stack at hand
	state   rows.State
	at      int // the frame of the stack at hand that state belongs to; -1 where it is not set yet
	plains  map[*Code][]plain
	last    *Code   // whose plains were asked for last
	lasts   []plain // they
	stacks  stacks
	text    [16]byte // instructions that are looked at
	code    [arch.MaxCall + arch.MaxEdge]byte
	cache   *[numSites]site
	rest    *[numSites]rest
	epoch   uint64 // of the spaces that sites belong to
	newest  uint64 // of them
	held    int    // mappings of new spaces, since sites were forgotten
	mask    uint16 // of the numbers of sites that are in use
	missed  int    // since it is that
	start   site   // its next is where the last stack began
}

// A site is what is known about a PC of a Space, as far as plain rules need it: two sites share a cache line.
type site struct {
	pc      uint64
	mapping *Mapping
	tag     uint32 // of the Space, and whether pc is exact: tagOf; 0 is none
	off     int32  // of its plain rule
	fp, ra  int16
	plain   plainKind
	flags   siteFlags

	// next is where in the cache the caller was the last time. It is a guess: with it the processor goes on to the
	// caller's site before it has read the return address, which then only confirms it. Measured: half the time.
	next uint16
}

// The rest is what other rules need to know about a site.
type rest struct {
	code   *Code // of siteCFI
	rule   uint32
	kind   siteKind
	signal bool
	moved  arch.Reg // in Code.Moved: the register that has the stack pointer; else 0
	forks  bool     // in Code.Forks, and no call has led there
}

type siteFlags uint8

const (
	siteExact   siteFlags = 1 << iota // no call has led there: the place is pc itself, though it was found as a return address
	siteInject                        // in Code.Injected
	siteReturns                       // the code there is what signal handlers return to: if the stack has what the kernel leaves for one, kind does not count
	siteBegins                        // exact, and what begins there is another function than before
	siteSigned                        // its rule is plain, and the return address signed
	siteNowhere                       // in no executable mapping: kind is siteUnmapped
	sitePlain                         // with siteReturns: handlers without SA_SIGINFO do
	siteLost                          // with siteReturns: the code is not at hand, and only the stack tells
)

type siteKind uint8

const (
	siteUnmapped  siteKind = iota // in no executable mapping
	siteCFI                       // code and rule are set
	siteTerminal                  // no caller, by the place
	sitePLT                       // a PLT stub without information; rule is how many bytes it has pushed
	siteBlind                     // mapped, without information
	siteSyscall                   // the same, behind a system call that begins it; rule is the distance from that
	siteMade                      // code that its process made: its rule, if it has one, is another at another time; code is set
	siteSync                      // code and rule are set, but the rule holds at calls only, and nobody was called
	siteSigReturn                 // no site's own: its returns, where a handler does return to it
)

// The cache holds this many sites, in sets of the two that share a cache line. Measured on a compiler's recording, of 9,600 sites: 98.7 %
// of frames hit, 97 % where a site has one place only. Their 1 MiB fits the second-level cache of most machines.
const (
	cacheBits = 15
	numSites  = 1 << cacheBits

	// firstMask is the first Walker.mask: a small recording does not touch pages of all sites, which takes longer than its walks.
	firstMask = 1<<10 - 1
)

// NewWalker returns a Walker that stops after depth frames; 0 means DefaultDepth.
func NewWalker(depth int) *Walker {
	if depth <= 0 {
		depth = DefaultDepth
	}
	return &Walker{depth: depth, cache: new([numSites]site), rest: new([numSites]rest), mask: firstMask, plains: map[*Code][]plain{}}
}

// maxTag is how many spaces have tags of their own. When spaces of another epoch come, all sites are forgotten.
const maxTag = 1<<31 - 1

// tagOf returns the tag of an address in a space: never 0.
func tagOf(s *Space, exact bool) uint32 {
	tag := uint32(s.id%maxTag+1) << 1
	if exact {
		tag |= 1
	}
	return tag
}

// maxHeld is how many mappings new spaces may have until all sites are forgotten: each site keeps its whole space in memory.
const maxHeld = 1 << 18

// enter makes sites of the space at hand usable: tags tell spaces of one epoch apart.
func (w *Walker) enter(s *Space) {
	if s.id > w.newest {
		w.newest = s.id
		w.held += len(s.Mappings())
	}
	if epoch := s.id / maxTag; epoch != w.epoch || w.held > maxHeld {
		w.epoch, w.held = epoch, 0
		clear(w.cache[:])
		clear(w.rest[:])
	}
}

// Forget forgets what w knows of all places, and so lets go of spaces and code that nothing else has.
func (w *Walker) Forget() {
	clear(w.cache[:])
	clear(w.rest[:])
	clear(w.plains)
	w.last, w.lasts, w.held = nil, nil, 0
}

// lookup returns the site of pc with tag, and where in the cache it is; nil where it is not known, and then where it may be put.
func (w *Walker) lookup(pc uint64, tag uint32) (*site, uint16) {
	i := uint16((pc^uint64(tag)<<40)*0x9e3779b97f4a7c15>>(64-cacheBits)) & w.mask % numSites
	e, o := &w.cache[i], &w.cache[i^1]
	if e.pc == pc && e.tag == tag {
		return e, i
	}
	if o.pc == pc && o.tag == tag {
		return o, i ^ 1
	}
	if e.tag != 0 && (o.tag == 0 || w.missed&1 != 0) {
		i ^= 1
	}
	return nil, i
}

// find returns what is known about pc in the space of tag, and remembers for the frame below, from, where that is. The
// result is valid until the next call.
func (w *Walker) find(space *Space, pc uint64, tag uint32, from *site) *site {
	e, i := w.lookup(pc, tag)
	if e == nil {
		if w.missed++; w.missed > int(w.mask)/2 && w.mask < numSites-1 {
			w.mask, w.missed = w.mask<<2|3, 0 // what is remembered stays where it is: some of it is found out again
		}
		e = &w.cache[i%numSites]
		w.resolve(space, arch.Addr(pc), tag&1 != 0, e, &w.rest[i%numSites])
		e.pc, e.tag = pc, tag
	}
	from.next = i
	return e
}

// resolve finds out about pc from the modules.
func (w *Walker) resolve(space *Space, pc arch.Addr, exact bool, e *site, r *rest) {
	*e, *r = site{flags: siteNowhere}, rest{}
	here := exact // the place is pc itself
	if !exact {
		if w.place(space, pc) {
			e.flags, here = e.flags|siteExact, true
		} else {
			pc-- // a return address: the call before it is what counts
		}
	}
	m := space.Find(pc)
	if m == nil {
		return
	}
	e.mapping, e.flags, r.kind = m, e.flags&^siteNowhere, siteBlind
	v, ok := m.Vaddr(pc)
	if !ok {
		if m.lost() && !exact {
			e.flags |= siteReturns | siteLost
		}
		return
	}
	c := m.Module.Code()
	if c.Machine != nil && c.Machine != w.machine { // a file of the same name, for another machine
		return
	}
	if c.Made != nil && c.Stepper != nil {
		r.code, r.kind = c, siteMade
		return
	}
	for _, x := range c.Terminal {
		if x.Lo <= v && v < x.Hi {
			r.kind = siteTerminal
			return
		}
	}
	if c.Stepper != nil {
		id, ok := c.Stepper.Find(v)
		if ok && here && c.Stepper.SyncOnly(id) {
			if ok = false; w.machine.SyncInside {
				r.code, r.rule, r.kind = c, id, siteSync
			}
		}
		if ok {
			r.code, r.rule, r.kind, r.signal = c, id, siteCFI, c.Stepper.Signal(id)
			p := w.plain(c, id)
			e.plain, e.off, e.fp, e.ra = p.kind, p.off, p.fp, p.ra
			if p.signed {
				e.flags |= siteSigned
			}
			if slices.ContainsFunc(c.Injected, func(x Range) bool { return x.Lo <= v && v < x.Hi }) {
				e.flags |= siteInject
			}
			for i := range c.Moved {
				if x := &c.Moved[i]; x.Lo <= v && v < x.Hi {
					r.moved, e.plain = x.SP, plainNot
				}
			}
			if exact && slices.ContainsFunc(c.Forks, func(x Range) bool { return x.Lo <= v && v < x.Hi }) {
				r.forks, e.plain = true, plainNot
			}
			came := e.flags&siteExact != 0
			if came && !r.signal {
				if returns := w.sigReturn(c, v, false); returns != 0 {
					e.flags, e.plain = e.flags|returns, plainNot
				}
			}
			if came && !r.signal {
				if before, ok := c.Stepper.Find(v - 1); !ok || before != id {
					e.flags |= siteBegins
				}
			}
			if !exact && r.signal { // a handler returns there: the kernel has put that address on the stack
				if next, ok := c.Stepper.Find(v + 1); ok && next == id {
					e.flags |= siteExact
				}
			}
			return
		}
	}
	for i := range c.PLT {
		if p := &c.PLT[i]; p.Lo <= v && v < p.Hi && (exact || !w.machine.RAInReg) { // no stub calls: the link register is no caller's
			r.kind, r.rule = sitePLT, p.pushed(c, v)
			return
		}
	}
	if here {
		e.flags |= w.sigReturn(c, v, exact)
	} else {
		e.flags |= w.sigReturn(c, v+1, false)
	}
	if n, ok := w.afterSyscall(c, v); exact && ok {
		r.kind, r.rule = siteSyscall, n
	}
}

// made gives a site of code that its process made the rule that holds at a time. exact says that the place is pc itself.
func (r *rest) made(pc uint64, exact bool, m *Mapping, time uint64) {
	if r.kind != siteMade {
		return
	}
	at := arch.Addr(pc)
	if !exact {
		at--
	}
	r.kind = siteBlind
	v, ok := m.Vaddr(at)
	if !ok {
		return
	}
	if id, ok := r.code.Made(v, time); ok && !(exact && r.code.Stepper.SyncOnly(id)) {
		r.kind, r.rule, r.signal = siteCFI, id, r.code.Stepper.Signal(id)
	}
}

// pushed returns how many bytes the stub at v of p has pushed.
func (p *PLTRange) pushed(c *Code, v arch.Vaddr) uint32 {
	if !p.Lazy || c.Machine.PLT == nil {
		return 0
	}
	return uint32(c.Machine.PLT.Pushed(uint64(v-p.Lo), uint64(p.Hi-p.Lo), func(off uint64, to []byte) int {
		if c.Text == nil {
			return 0
		}
		return c.Text(p.Lo+arch.Vaddr(off), to)
	}))
}

// Walk appends the frames of s to frames, innermost first, and says why there are no more. The result
// has at least one frame. It allocates only to grow frames and to load modules.
func (w *Walker) Walk(s *Snapshot, frames []Frame) ([]Frame, Stop) {
	st, mem, m := &w.state, &s.Mem, s.Machine
	first := len(frames)
	w.at = -1
	regs := pair{
		sp: s.Regs[m.Slot(m.SP)&(arch.NumSlots-1)], known: s.Known>>m.Slot(m.SP)&1 != 0,
		fp: s.Regs[m.Slot(m.FP)&(arch.NumSlots-1)], hasFP: s.Known>>m.Slot(m.FP)&1 != 0,
	}
	pc, exact, how := s.PC, true, HowStart
	cfa := uint64(0) // of the frame below; of frame 0 the stack pointer
	if regs.known {
		cfa = regs.sp
	}
	w.stacks.start(cfa)
	w.machine = m
	w.enter(s.Space)
	s.addresses()
	tags := tagOf(s.Space, false)
	begins := false // the frame below is at the beginning of a function that nobody has called
	left := false   // a frame led to another stack than the captured one
	from := &w.start
	warm := cfa - mem.Lo // how much of the window has been fetched
	for n := 0; ; n++ {
		if n > 0 && how == HowCFI && !exact && regs.sp == cfa && regs.known {
			r := run{pair: regs, pc: pc, last: from, tag: tags, room: w.depth - n, warm: warm}
			if frames = w.follow(&r, mem, frames); r.n > 0 {
				regs, pc, cfa, from, warm = r.pair, r.pc, r.sp, r.last, r.warm
				n, begins = n+r.n, false
			}
		}
		if at := cfa - mem.Lo; at < uint64(len(mem.Bytes)) && at+fetchAhead/2 > warm {
			warm = fetchFrom(mem.Bytes, max(warm, at), at+fetchAhead)
		}
		tag := tags
		if exact {
			tag |= 1
		}
		e := &w.cache[from.next%numSites]
		if e.pc != pc || e.tag != tag {
			e = w.find(s.Space, pc, tag, from)
		}
		below := from
		from = e
		if e.flags&siteNowhere != 0 && n > 0 {
			if begins {
				return frames, Outermost
			}
			if pc == 0 && (m.ZeroEnds || s.ZeroEnds) {
				return frames, Outermost
			}
			if _, _, ok := w.called(s, 0); !exact || !ok {
				w.Return = pc
				return frames, BadReturn
			}
		}
		if n >= w.depth {
			return frames, DepthLimit
		}
		var sig *arch.Signal
		if e.flags&siteReturns != 0 {
			sig = w.handled(e, m, &regs, mem)
		}
		returns := sig != nil
		begins = e.flags&siteBegins != 0 && !returns
		frames = append(frames, Frame{PC: arch.Addr(pc), Exact: exact || e.flags&siteExact != 0 || returns, How: how, Mapping: e.mapping})

		if e.plain > plainNot && regs.known && e.flags&siteInject == 0 {
			up := regs.sp
			if e.plain == plainFP || e.plain == plainFPOutmost {
				v, o := regs.frame(mem, &st.Fault)
				if o != rows.OK {
					return frames, w.stop(o, s, left)
				}
				up = v
			}
			up += uint64(int64(e.off))
			if e.plain >= plainSPOutmost {
				return frames, Outermost
			}
			at := up + uint64(int64(e.ra))
			ra, ok := mem.Load(at)
			if !ok {
				st.Fault = at
				return frames, w.stop(rows.Unreadable, s, left)
			}
			if e.flags&siteSigned != 0 {
				ra = mem.Unsigned(ra)
			}
			if up-cfa-1 >= arch.MaxPiece && !(exact && up == cfa) {
				if !w.stacks.move(cfa, up, ra) {
					return frames, BadCFA
				}
				left = left || up-mem.Lo >= uint64(len(mem.Bytes))
			}
			if e.fp != 0 {
				if at := up + uint64(int64(e.fp)); !how.alive() || !gone(m, mem, regs.sp, at) {
					regs.fp, regs.hasFP, regs.fpMem = at, true, true
				}
			}
			regs.sp, cfa, pc, exact, how = up, up, ra, false, HowCFI
			continue
		}

		here, inject, alive := w.rest[below.next%numSites], e.flags&siteInject != 0, how.alive()
		here.made(pc, exact || e.flags&siteExact != 0, e.mapping, s.Time)
		kind, rule, signal := here.kind, here.rule, here.signal
		if returns {
			kind = siteSigReturn
		}
		if kind == siteCFI || kind == sitePLT {
			if o := w.catchUp(s, frames[first:]); o != rows.OK {
				return frames, w.stop(o, s, left)
			}
		}
		how = HowCFI
		switch kind {
		case siteCFI:
			if here.forks && w.newThread(m, mem) {
				return frames, Outermost
			}
			if o := w.apply(&here, m, mem, alive); o != rows.OK {
				return frames, w.stop(o, s, left)
			}
			if inject && m.GoPush > 0 {
				w.popLink(m)
			}
			if signal {
				how = HowSignal
				left = left || st.CFA-mem.Lo >= uint64(len(mem.Bytes))
			}
		case siteTerminal:
			return frames, Outermost
		case sitePLT:
			how = HowPLT
			if o := w.stepPLT(m, uint64(rule), mem); o != rows.OK {
				return frames, w.stop(o, s, left)
			}
		case siteBlind, siteSync:
			how = HowCall
			alive = alive && w.catchUp(s, frames[first:]) == rows.OK
			if kind == siteSync && alive && w.entered(s, &here, e.mapping) && w.stepCall(s) {
				break
			}
			if kind == siteSync && alive && w.stepSync(s, &here) {
				how = HowSync
				break
			}
			if kind == siteSync && alive && w.stepCall(s) {
				break
			}
			if alive && (w.stepEdge(s) || w.leaf(s, &regs, pc, cfa) && w.stepCall(s)) {
				break
			}
			how = HowFramePointer
			if o := w.stepFP(s, &regs, cfa, alive); o == rows.Outermost {
				return frames, Outermost
			} else if o != rows.OK {
				how = HowCall
				if !alive || m.RAInReg || !w.stepCall(s) {
					if stop := w.stop(o, s, left); stop == Truncated {
						return frames, stop
					}
					return frames, NoInfo
				}
			}
		case siteSyscall:
			how = HowCall
			if w.catchUp(s, frames[first:]) != rows.OK {
				return frames, NoInfo
			}
			if rule > 0 && w.newThread(m, mem) {
				return frames, Outermost
			}
			if !w.stepCall(s) {
				return frames, NoInfo
			}
		case siteSigReturn:
			how = HowSigReturn
			if o := w.stepSigReturn(sig, m, &regs, mem); o != rows.OK {
				return frames, w.stop(o, s, left)
			}
			left = left || st.CFA-mem.Lo >= uint64(len(mem.Bytes))
		default:
			how = HowCall
			if !exact || w.catchUp(s, frames[first:]) != rows.OK || !w.stepCall(s) {
				return frames, NoInfo
			}
		}
		w.at = n + 1

		// An interrupted function, as that of frame 0, may keep its return address in a register and use no stack.
		signal = how.Interrupted()
		regs.take(m, st, mem)
		up := st.CFA
		if signal {
			up = regs.sp
			w.stacks.low = up
		} else if up-cfa-1 >= arch.MaxPiece && !(exact && up == cfa) {
			if !w.stacks.move(cfa, up, st.PC) {
				return frames, BadCFA
			}
			left = left || up-mem.Lo >= uint64(len(mem.Bytes))
		}
		st.PC &^= m.ModeBits
		pc, cfa, exact = st.PC, up, inject || signal
	}
}

// End says how a stack ends whose last known frame is at pc: Outermost if the rules say that there is no caller, else NoInfo. Nothing else is known
// of the frame.
func (w *Walker) End(m *arch.Machine, space *Space, pc arch.Addr) Stop {
	if !m.StepKnown {
		return NoInfo
	}
	// A walk with nothing but a stack pointer gets nowhere unless the rules say that there is nowhere to go.
	s := Snapshot{Machine: m, Space: space, PC: uint64(pc)}
	sp := m.Slot(m.SP)
	s.Known, s.Regs[sp] = 1<<sp, 1<<32
	var buf [4]Frame
	if frames, stop := w.Walk(&s, buf[:0]); stop == Outermost && len(frames) == 1 {
		return Outermost
	}
	return NoInfo
}

// popLink takes back what Go has pushed before it made the interrupted code call a function: the link register, whose place in a frame's rules has the
// return address (runtime/traceback.go: usesLR && injectedCall).
func (w *Walker) popLink(m *arch.Machine) {
	st := &w.state
	ra, sp := m.Slot(m.RA), m.Slot(m.SP)
	at := st.CFA
	st.CFA += m.GoPush
	st.Known |= 1<<ra | 1<<sp
	st.InReg &^= 1<<ra | 1<<sp
	st.InMem = st.InMem&^(1<<sp) | 1<<ra
	st.Val[ra], st.Val[sp] = at, st.CFA
}

// fetchAhead is how many bytes of a captured stack are fetched before they are needed. A step waits for the return address that the
// one before has found; a fetch waits for nothing, so many lines come at once. Measured on recordings of stacks that are in no cache:
// reading a byte of each line instead takes 5 to 35 % longer, because later instructions wait for the reads. To fetch 2 or 4 KiB, or the next
// stack meanwhile, takes longer where most stacks are short.
const fetchAhead = 1 << 10

// fetchFrom fetches the cache lines of b from offset lo to hi. It returns where it ended.
func fetchFrom(b []byte, lo, hi uint64) uint64 {
	hi = min(hi, uint64(len(b)))
	if lo >= hi {
		return lo
	}
	n := (hi - lo + 63) / 64
	fetch(&b[lo], n)
	return lo + 64*n
}

// stop translates the outcome of a step.
func (w *Walker) stop(o rows.Outcome, s *Snapshot, left bool) Stop {
	switch o {
	case rows.Outermost:
		return Outermost
	case rows.NoRule:
		return NoInfo
	case rows.Unreadable:
		n, f := uint64(len(s.Mem.Bytes)), w.state.Fault-s.Mem.Lo
		if n > 0 && f+8 > n && (f < arch.MaxStack || left) {
			return Truncated
		}
		return BadMemory
	}
	return BadCFA
}

// stepPLT leaves a PLT stub that has pushed bytes. Its return address is where the call has put it, above them or in a register, or where the stub has pushed it.
func (w *Walker) stepPLT(m *arch.Machine, pushed uint64, mem *rows.Memory) rows.Outcome {
	st := &w.state
	sp, o := st.Get(m.Slot(m.SP), mem)
	if o != rows.OK {
		return o
	}
	at := sp + pushed
	if m.PLT != nil && m.PLT.RAPushed && pushed > 0 {
		at = sp
	}
	sp += pushed
	var ra uint64
	if m.RAInReg && at == sp {
		if ra, o = st.Get(m.Slot(m.RA), mem); o != rows.OK {
			return o
		}
	} else {
		var ok bool
		if ra, ok = mem.Load(at); !ok {
			st.Fault = at
			return rows.Unreadable
		}
		sp += m.CallPush
	}
	st.Known &= m.SavedSlots()
	w.caller(m, ra, sp)
	return rows.OK
}

// stepFP follows the frame pointer out of code without information, to the record of the caller's frame pointer and the return
// address. The other registers are lost. It refuses where that would leave the stack or the code; rows.Unreadable says that the stack is not
// at hand.
func (w *Walker) stepFP(s *Snapshot, regs *pair, sp uint64, alive bool) rows.Outcome {
	st, m := &w.state, s.Machine
	if m.Record.Chain {
		return w.stepChain(s, regs, alive)
	}
	slot := m.Slot(m.FP)
	fp, up, ra, o := w.record(s, regs, sp)
	if o != rows.OK {
		return o
	}
	st.Known = 1 << slot
	st.InMem &^= 1 << slot
	st.InReg &^= 1 << slot
	st.Val[slot] = up
	w.caller(m, ra, fp+m.Record.Size)
	return rows.OK
}

// stepChain follows the word at the stack pointer to the caller's frame, where the return address is: what stepFP is elsewhere. A frame that has called
// nobody may be its caller's still.
func (w *Walker) stepChain(s *Snapshot, regs *pair, alive bool) rows.Outcome {
	st, m := &w.state, s.Machine
	if !regs.known || alive {
		return rows.NoRule
	}
	up, ok := s.Mem.Load(regs.sp)
	switch {
	case !ok:
		st.Fault = regs.sp
		return rows.Unreadable
	case up == 0:
		return rows.Outermost
	case up <= regs.sp || up-regs.sp > arch.MaxStack || up&(m.WordSize()-1) != 0:
		return rows.NoRule
	}
	ra, ok := s.Mem.Load(up + m.Record.RA)
	if !ok {
		st.Fault = up + m.Record.RA
		return rows.Unreadable
	}
	if ra, ok = unsigned(s, ra); !ok && ra != 0 {
		return rows.NoRule
	}
	st.Known = 0
	w.caller(m, ra, up)
	return rows.OK
}

// stepSync leaves a place by a rule that holds at calls only: w.state is that of the place. The first and last instructions of functions are not what
// the rule was made for. So a return address that is behind no call is not believed.
func (w *Walker) stepSync(s *Snapshot, e *rest) bool {
	st := &w.state
	before := *st
	if e.code.Stepper.Apply(e.rule, st, &s.Mem) == rows.OK {
		st.PC &^= s.Machine.ModeBits
		if s.Machine.AfterCall(w.before(s, st.PC)) {
			return true
		}
	}
	*st = before
	return false
}

// record returns the frame pointer, or where else the record is, and what that says: the caller's frame pointer, and a return address that is in code.
func (w *Walker) record(s *Snapshot, regs *pair, sp uint64) (fp, up, ra uint64, o rows.Outcome) {
	mem, fault := &s.Mem, &w.state.Fault
	fp, o = regs.frame(mem, fault)
	fp += uint64(s.Machine.Record.At)
	if o != rows.OK || s.Machine.Record.Size == 0 || fp < sp || fp-sp > arch.MaxStack || fp&(s.Machine.WordSize()-1) != 0 {
		return 0, 0, 0, rows.NoRule
	}
	*fault = fp
	up, ok := mem.Load(fp)
	if !ok {
		return 0, 0, 0, rows.Unreadable
	}
	*fault = fp + s.Machine.Record.RA
	if ra, ok = mem.Load(*fault); !ok {
		return 0, 0, 0, rows.Unreadable
	}
	if ra, ok = unsigned(s, ra&^s.Machine.ModeBits); !ok {
		return 0, 0, 0, rows.NoRule
	}
	return fp, up, ra, rows.OK
}

// addresses tells the memory what the machine and the process make of an address. Where the process does not say which bits its signatures use,
// addresses get the fewest bits that hold all of its code: a return address has no bit above them, wherever signatures begin.
func (s *Snapshot) addresses() {
	m, mem := s.Machine, &s.Mem
	mem.Tags = m.Tags
	if s.Signs != 0 {
		mem.Addresses = s.Signs&-s.Signs - 1
		return
	}
	if n := s.Space.AddressBits(m); n > 0 {
		mem.Addresses = 1<<n - 1
	}
}

// unsigned returns a return address without the code that may sign it (AArch64: pointer authentication), and whether it is in
// executable memory then.
func unsigned(s *Snapshot, ra uint64) (uint64, bool) {
	if s.Space.Find(arch.Addr(ra-1)) != nil {
		return ra, true
	}
	if len(s.Machine.AddressBits) > 0 {
		ra = s.Mem.Unsigned(ra)
	}
	return ra, s.Space.Find(arch.Addr(ra-1)) != nil
}

// caller makes ra and cfa the PC and stack pointer of the state.
func (w *Walker) caller(m *arch.Machine, ra, cfa uint64) {
	st := &w.state
	st.PC, st.CFA = ra, cfa
	for _, x := range [2]struct {
		slot arch.Slot
		v    uint64
	}{{m.Slot(m.SP), cfa}, {m.Slot(m.RA), ra}} {
		st.Known |= 1 << x.slot
		st.InMem &^= 1 << x.slot
		st.InReg &^= 1 << x.slot
		st.Val[x.slot] = x.v
	}
}
