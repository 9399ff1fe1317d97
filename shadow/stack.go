package shadow

import (
	"encoding/binary"
	"slices"
)

// A frameKind says what is known of a frame's caller.
type frameKind uint8

const (
	called      frameKind = iota // by a call: return address, CFA, callee-saved registers
	interrupted                  // by a signal: all registers
	unknown                      // nothing: the stack was switched here
)

// A frame is an active function, or one that a signal interrupted, and the truth about its caller: what the registers will
// be when it returns.
type frame struct {
	kind  frameKind
	inner bool   // called from within its own function: it may not be a call at all (call 1f; 1: pop)
	ra    uint64 // where it returns to; of an interrupted frame: where it goes on
	cfa   uint64 // the caller's stack pointer
	saved [len(saved)]uint64
	intr  *interrupt
}

// An interrupt is a moment at which a signal's handler began.
type interrupt struct {
	regs  regs
	at    uint64 // the address of the context that the kernel has saved, and the handler may change
	stack uint64 // id of the one that was interrupted
	depth int    // frames of it
}

// context returns the registers with which the interrupted function will go on.
func (in *interrupt) context(p *process) (r regs, ok bool) {
	// Field gregs of a ucontext_t, whose order is that of struct sigcontext (asm/sigcontext.h).
	order := [...]int{r8, r9, r10, r11, r12, r13, r14, r15, rdi, rsi, rbp, rbx, rdx, rax, rcx, rsp}
	const gregs = 40
	var b [8 * (len(order) + 1)]byte
	if readMemory(p.pid, in.at+gregs, b[:]) < len(b) {
		return r, false
	}
	for i, to := range order {
		r.r[to] = binary.LittleEndian.Uint64(b[8*i:])
	}
	r.pc = binary.LittleEndian.Uint64(b[8*len(order):])
	return r, true
}

// A stack is a piece of memory that functions have their frames in, and the frames: the outermost first. The truth about
// whoever is below the first is unknown, unless the stack is a process's first.
type stack struct {
	id     uint64 // the same in a copy that a forked child has
	frames []frame
	lo     uint64 // the stack pointer when it was left
	base   uint64 // the highest stack pointer seen, at least
	root   bool   // the first frame has no caller
	region span   // of a thread's own stack: its mapping; of others empty
}

// A span is [lo, hi) in an address space.
type span struct{ lo, hi uint64 }

func (s span) has(a uint64) bool { return s.lo <= a && a < s.hi }

// clone returns a copy that can go on by itself.
func (s *stack) clone() *stack {
	c := *s
	c.frames = slices.Clone(s.frames)
	return &c
}

// top returns the innermost frame, or nil.
func (s *stack) top() *frame {
	if len(s.frames) == 0 {
		return nil
	}
	return &s.frames[len(s.frames)-1]
}

func (s *stack) push(f frame) { s.frames = append(s.frames, f) }

// popTo drops the frames whose CFA is at or below sp: they have been left.
func (s *stack) popTo(sp uint64) {
	n := len(s.frames)
	for n > 0 && s.frames[n-1].cfa <= sp {
		n--
	}
	s.frames = s.frames[:n]
}

// popBelow drops the frames whose CFA is below sp.
func (s *stack) popBelow(sp uint64) {
	if sp > 0 {
		s.popTo(sp - 1)
	}
}

// maxStacks bounds the stacks of a process that are remembered; the one left longest ago is forgotten.
const maxStacks = 1 << 14

// maxFrames bounds the frames of a stack: below them the truth is unknown again.
const maxFrames = 1 << 20

// called makes the frame of a function that the instruction before, at b, has called.
func (th *thread) called(b *regs, x *inst) {
	s := th.cur
	s.popBelow(b.r[rsp])
	if len(s.frames) >= maxFrames {
		s.frames = slices.Delete(s.frames, 0, maxFrames/2)
		s.root = false
	}
	ra := b.pc + uint64(x.size)
	if x.direct && x.rel == 0 {
		return // call 1f; 1: pop: pushes its own address
	}
	f := frame{ra: ra, cfa: b.r[rsp], inner: x.direct && x.rel > 0 && x.rel < 64}
	for i, r := range saved {
		f.saved[i] = b.r[r]
	}
	s.push(f)
}

// moved follows the stack pointer from one place to another far away, or to where a register said.
func (th *thread) moved(from, to uint64) {
	cur := th.cur
	if to > from && to <= cur.base {
		return // frames are being left
	}
	s := th.proc.stackAt(to)
	if s == nil && cur.region.has(to) && cur.region.has(from) {
		return // room is made
	}
	if s == nil {
		s = th.proc.newStack(to)
	}
	th.proc.park(cur, from)
	th.enter(s, to)
}

// enter makes s, which was left before or is new, the thread's stack, at sp. Who goes on there is known after the next
// return or jump: until then the truth is not.
func (th *thread) enter(s *stack, sp uint64) {
	exact := sp == s.lo
	n := len(s.frames)
	for n > 0 && s.frames[n-1].cfa <= sp {
		n--
		exact = exact || s.frames[n].cfa == sp
	}
	s.frames = s.frames[:n]
	if f := s.top(); !exact || f != nil && f.kind == called && !th.proc.holds(f.cfa-8, f.ra) {
		s.frames = s.frames[:0] // the memory has had another use since
		s.root = false
	}
	s.push(frame{kind: unknown, cfa: sp})
	s.base = max(s.base, sp)
	th.cur = s
}

// newStack returns a stack that has not been seen before.
func (p *process) newStack(base uint64) *stack {
	p.t.lastStack++
	return &stack{id: p.t.lastStack, base: base}
}

// park remembers a stack that a thread leaves with its stack pointer at sp.
func (p *process) park(s *stack, sp uint64) {
	s.lo = sp
	p.stacks = append(p.stacks, s)
	if len(p.stacks) > maxStacks {
		p.stacks = slices.Delete(p.stacks, 0, maxStacks/4)
	}
}

// stackAt takes the stack that sp lies in out of those that were left; nil if there is none.
func (p *process) stackAt(sp uint64) *stack {
	for i := len(p.stacks) - 1; i >= 0; i-- {
		if s := p.stacks[i]; s.lo <= sp && sp <= s.base {
			p.stacks = slices.Delete(p.stacks, i, i+1)
			return s
		}
	}
	return nil
}

// signalGap is how far below an interrupted frame the kernel puts a signal's, at most, in bytes: the red zone, and the
// processor's extended state, which has 11 KiB with AMX.
const signalGap = 1 << 15

// entered makes the frames of a signal handler whose first instruction comes next. b are the registers at the interrupt.
func (th *thread) entered(b, now *regs) {
	from, sp := th.cur, now.r[rsp]
	in := &interrupt{regs: *b, at: sp + 8, stack: from.id, depth: len(from.frames)}
	sigframe := frame{kind: interrupted, ra: b.pc, cfa: b.r[rsp], intr: in}
	for i, r := range saved {
		sigframe.saved[i] = b.r[r]
	}
	if b.r[rsp]-sp > signalGap {
		th.proc.park(from, b.r[rsp])
		th.cur = th.proc.newStack(sp + signalGap)
		sigframe.cfa = sp + 8 + signalGap // on this stack
		th.proc.stackAt(sp)               // its last use is over
	}
	restorer, ok := th.proc.mem.Read8(sp)
	th.cur.push(sigframe)
	if !ok {
		th.cur.push(frame{kind: unknown, cfa: sp + 8})
		return
	}
	f := frame{kind: called, ra: restorer, cfa: sp + 8}
	for i, r := range saved {
		f.saved[i] = now.r[r]
	}
	th.cur.push(f)
}

// returned follows rt_sigreturn from registers b to now.
func (th *thread) returned(b, now *regs) {
	s := th.cur
	n := len(s.frames)
	for n > 0 && s.frames[n-1].kind != interrupted {
		n--
	}
	if n == 0 {
		th.moved(b.r[rsp], now.r[rsp])
		th.cur.popTo(now.r[rsp])
		return
	}
	in := s.frames[n-1].intr
	if in.stack == s.id {
		s.frames = s.frames[:n-1]
	} else if i := slices.IndexFunc(th.proc.stacks, func(o *stack) bool { return o.id == in.stack }); i >= 0 {
		th.cur = th.proc.stacks[i]
		th.cur.frames = th.cur.frames[:min(in.depth, len(th.cur.frames))]
		th.proc.stacks = slices.Delete(th.proc.stacks, i, i+1)
	} else {
		th.cur = th.proc.newStack(now.r[rsp])
	}
	was := &in.regs
	switch {
	case now.r[rsp] == was.r[rsp] && (now.pc == was.pc || now.pc == was.pc-2):
	case now.r[rsp] == was.r[rsp]-8 && th.proc.holds(now.r[rsp], was.pc):
		// The handler has made it look as if the interrupted function had called another (Go's preemption).
		f := frame{ra: was.pc, cfa: was.r[rsp]}
		for i, r := range saved {
			f.saved[i] = now.r[r]
		}
		th.cur.push(f)
	default:
		th.moved(was.r[rsp], now.r[rsp])
		th.cur.popTo(now.r[rsp])
		th.cur.push(frame{kind: unknown, cfa: now.r[rsp]})
	}
}
