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
	saved [maxSaved]uint64
	intr  *interrupt
}

// An interrupt is a moment at which a signal's handler began.
type interrupt struct {
	regs  regs
	at    uint64 // where the registers are that the kernel has saved, and the handler may change: Saved of arch.Signal counts from there
	stack uint64 // id of the one that was interrupted
	depth int    // frames of it
}

// context returns the registers with which the interrupted function will go on.
func (in *interrupt) context(p *process) (r regs, ok bool) {
	var b [1024]byte
	lo, hi := slices.Min(host.Signal.Saved), slices.Max(host.Signal.Saved)+8
	if readMemory(p.pid, in.at+uint64(lo), b[:hi-lo]) < int(hi-lo) {
		return r, false
	}
	for i, off := range host.Signal.Saved {
		v := binary.LittleEndian.Uint64(b[off-lo:])
		if i < general {
			r.r[i] = v
		} else {
			r.pc = v
		}
	}
	return r, true
}

// A stack is a piece of memory that functions have their frames in, and the frames: the outermost first. The truth about
// whoever is below the first is unknown, unless the stack is a process's first.
type stack struct {
	id     uint64 // the same in a copy that a forked child has
	frames []frame
	lo     uint64 // the stack pointer when it was left
	base   uint64 // the highest stack pointer seen, at least
	out    bool   // the stack pointer was set to above the innermost frame: the next jump or return leads out of it
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
	s.popBelow(b.sp())
	s.out = false
	if len(s.frames) >= maxFrames {
		s.frames = slices.Delete(s.frames, 0, maxFrames/2)
		s.root = false
	}
	ra := b.pc + uint64(x.size)
	if x.direct && x.rel == 0 && th.popsAt(ra) {
		return // call 1f; 1: pop: to know its own address
	}
	f := frame{ra: ra, cfa: b.sp(), inner: x.direct && x.rel >= 0 && x.rel < 64}
	for i, r := range saved {
		f.saved[i] = b.r[r]
	}
	s.push(f)
}

// popsAt says whether the instruction at pc takes the return address of a call to there. It may be the next function instead, which the call is meant
// for where the caller does not go on. On a machine whose calls leave the address in a register, nothing can tell.
func (th *thread) popsAt(pc uint64) bool {
	if link >= 0 {
		return true
	}
	var b [2]byte
	n := readMemory(th.proc.pid, pc, b[:])
	return n > 0 && b[0]&0xf8 == 0x58 || n > 1 && b[0]&0xfe == 0x40 && b[1]&0xf8 == 0x58
}

// left drops the frames that a return or a jump has left, on a machine whose calls leave the return address in a register: the stack pointer
// alone does not tell, as functions that use no stack have that of their caller.
func (th *thread) left(now *regs) {
	s, sp := th.cur, now.sp()
	s.popBelow(sp)
	out := s.out
	s.out = false
	for i := len(s.frames) - 1; i >= 0 && s.frames[i].cfa == sp; i-- {
		f := &s.frames[i]
		if f.kind == unknown && !th.proc.afterCall(now.pc) {
			return // the function that has changed the stack goes on there: swapcontext
		}
		if f.kind == unknown || f.kind == called && f.ra == now.pc {
			s.frames = s.frames[:i]
			return
		}
	}
	f := s.top()
	if f == nil || f.cfa != sp || f.kind != called {
		return
	}
	// Either the function goes on, or another in its place, which needs the return address where calls leave it. Or this is longjmp, to
	// behind the call of setjmp.
	if out || th.proc.unsigned(now.r[link]) != f.ra && th.proc.afterCall(now.pc) {
		s.popTo(sp)
	}
}

// returns says whether memory still has the return address of a function that is active on a stack that was left, at sp.
func (th *thread) returns(f *frame, sp uint64) bool {
	if link < 0 {
		return th.proc.holds(f.cfa-host.CallPush, f.ra)
	}
	b := make([]byte, min(f.cfa-sp, maxDepth)&^7)
	if len(b) == 0 || readMemory(th.proc.pid, sp, b) < len(b) {
		return false
	}
	for ; len(b) > 0; b = b[8:] {
		if th.proc.unsigned(binary.LittleEndian.Uint64(b)) == f.ra {
			return true
		}
	}
	return false
}

// pushed says whether a signal's handler has made it look as if the interrupted function had called another (Go's preemption).
func (th *thread) pushed(now, was *regs) bool {
	if link < 0 {
		return now.sp() == was.sp()-host.CallPush && th.proc.holds(now.sp(), was.pc)
	}
	return now.sp() == was.sp()-host.GoPush && now.r[link] == was.pc && th.proc.holds(now.sp(), was.r[link])
}

// moved follows the stack pointer from one place to another far away, or to where a register said.
func (th *thread) moved(from, to uint64) {
	cur := th.cur
	if to > from && to <= cur.base {
		f := cur.top()
		cur.out = cur.out || f != nil && to > f.cfa
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
	if f := s.top(); !exact || f != nil && f.kind == called && !th.returns(f, sp) {
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
	from, sp := th.cur, now.sp()+host.CallPush
	in := &interrupt{regs: *b, at: sp, stack: from.id, depth: len(from.frames)}
	sigframe := frame{kind: interrupted, ra: b.pc, cfa: b.sp(), intr: in}
	for i, r := range saved {
		sigframe.saved[i] = b.r[r]
	}
	if b.sp()-sp > signalGap {
		th.proc.park(from, b.sp())
		th.cur = th.proc.newStack(sp + signalGap)
		sigframe.cfa = sp + signalGap // on this stack
		th.proc.stackAt(sp)           // its last use is over
	}
	th.cur.push(sigframe)
	restorer, ok := uint64(0), true
	if link >= 0 {
		restorer = now.r[link]
	} else {
		restorer, ok = th.proc.mem.Read8(now.sp())
	}
	if !ok {
		th.cur.push(frame{kind: unknown, cfa: sp})
		return
	}
	f := frame{kind: called, ra: restorer, cfa: sp}
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
		th.moved(b.sp(), now.sp())
		th.cur.popTo(now.sp())
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
		th.cur = th.proc.newStack(now.sp())
	}
	was := &in.regs
	switch {
	case now.sp() == was.sp() && (now.pc == was.pc || now.pc == was.pc+uint64(host.Syscall.Restart)):
	case th.pushed(now, was):
		f := frame{ra: was.pc, cfa: now.sp() + host.CallPush}
		for i, r := range saved {
			f.saved[i] = now.r[r]
		}
		th.cur.push(f)
	default:
		th.moved(was.sp(), now.sp())
		th.cur.popTo(now.sp())
		th.cur.push(frame{kind: unknown, cfa: now.sp()})
	}
}
