package unwind

import (
	"bytes"
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// stepCall leaves a place to which a call has led, and which has not used the stack yet, or no more: w.state is that of the place.
func (w *Walker) stepCall(s *Snapshot) bool {
	ra, sp, ok := w.called(s, 0)
	if ok {
		w.state.Known &= s.Machine.SavedSlots()
		w.caller(s.Machine, ra, sp)
	}
	return ok
}

// stepEdge leaves a place in code without information whose instructions say where the return address is: arch.Edge. There, a frame
// pointer would leave out the caller. w.state is that of the place, in a frame that has called nobody.
func (w *Walker) stepEdge(s *Snapshot) bool {
	st, m := &w.state, s.Machine
	e, ok := m.Edge(w.around(s, st.PC))
	if !ok {
		return false
	}
	fp, o := st.Get(m.Slot(m.SP), &s.Mem)
	ra, sp, ok := w.called(s, e.Off)
	if o != rows.OK || !ok {
		return false
	}
	st.Known &= m.SavedSlots()
	if slot := m.Slot(m.FP); e.FP >= 0 {
		st.Known |= 1 << slot
		st.InMem |= 1 << slot
		st.InReg &^= 1 << slot
		st.Val[slot] = fp + uint64(e.FP)
	}
	w.caller(m, ra, sp)
	return true
}

// leaf says whether the function at pc, in code without information, keeps no frame of its own: the frame pointer is its caller's. The
// return address that the frame pointer leads to is behind a call of the function that has the frame. If the word at the stack pointer
// is a return address in that function, and nearer to its beginning than pc, that one is the caller.
func (w *Walker) leaf(s *Snapshot, regs *pair, pc, sp uint64) bool {
	_, _, ra, o := w.record(s, regs, sp)
	if o != rows.OK || s.Machine.RAInReg {
		return false
	}
	owner, ok := s.Machine.Target(w.before(s, ra), ra)
	if !ok {
		return false
	}
	top, ok := s.Mem.Load(sp)
	return ok && owner <= top && top-owner <= arch.MaxFunction && pc-owner > top-owner
}

// entered says whether the place is the first instruction of a function: its rule begins there, or the call before the return address in the link
// register leads there. w.state is that of the place.
func (w *Walker) entered(s *Snapshot, e *rest, m *Mapping) bool {
	st := &w.state
	if v, ok := m.Vaddr(arch.Addr(st.PC)); ok {
		if before, ok := e.code.Stepper.Find(v - 1); !ok || before != e.rule {
			return true
		}
	}
	ra, o := st.Get(s.Machine.Slot(s.Machine.RA), &s.Mem)
	if o != rows.OK {
		return false
	}
	to, ok := s.Machine.Target(w.before(s, ra&^s.Machine.ModeBits), ra)
	return ok && to == st.PC
}

// around returns the code before pc and from there on, by its module, or as memory has it.
func (w *Walker) around(s *Snapshot, pc uint64) (before, at []byte) {
	mapping := s.Space.Find(arch.Addr(pc))
	if mapping == nil {
		return nil, nil
	}
	before, at = w.code[:arch.MaxCall], w.code[arch.MaxCall:]
	if v, ok := mapping.Vaddr(arch.Addr(pc)); ok && mapping.Module.Code().Text != nil {
		text := mapping.Module.Code().Text
		n := arch.MaxCall
		for n > 0 && text(v-arch.Vaddr(n), before[:n]) != n { // fewer where the code begins
			n--
		}
		return before[:n], at[:text(v, at)]
	}
	if !s.Machine.Plain() { // memory is words there, not code
		return nil, nil
	}
	x, ok := s.Mem.Load(pc - arch.MaxCall)
	if !ok {
		before = before[:0]
	}
	binary.LittleEndian.PutUint64(w.code[:], x)
	n := 0
	for ; n < len(at); n += 8 {
		if x, ok = s.Mem.Load(pc + uint64(n)); !ok {
			break
		}
		binary.LittleEndian.PutUint64(at[n:], x)
	}
	return before, at[:n]
}

// called returns the return address that the call to such a place has left, if there is a call before it, and the
// stack pointer that the caller had. off is where the return address is, from the stack pointer, or with a link register where the
// caller's stack pointer is. w.state is that of the place.
func (w *Walker) called(s *Snapshot, off uint64) (ra, sp uint64, ok bool) {
	st, m := &w.state, s.Machine
	sp, o := st.Get(m.Slot(m.SP), &s.Mem)
	if o != rows.OK {
		return 0, 0, false
	}
	sp += off
	if m.RAInReg {
		if ra, o = st.Get(m.Slot(m.RA), &s.Mem); o != rows.OK {
			return 0, 0, false
		}
		ra, _ = unsigned(s, ra&^m.ModeBits)
	} else {
		if ra, ok = s.Mem.Load(sp); !ok {
			return 0, 0, false
		}
		sp += m.CallPush
	}
	return ra, sp, m.AfterCall(w.before(s, ra))
}

// before returns the last bytes of the code before ra, by its module, or as memory has it; fewer, or none, where there are no
// more.
func (w *Walker) before(s *Snapshot, ra uint64) []byte {
	if b := w.codeBefore(s.Space, arch.Addr(ra)); b != nil {
		return b
	}
	if s.Space.Find(arch.Addr(ra-1)) == nil || !s.Machine.Plain() {
		return nil
	}
	if x, ok := s.Mem.Load(ra - arch.MaxCall); ok {
		binary.LittleEndian.PutUint64(w.text[:], x)
		return w.text[:arch.MaxCall]
	}
	return nil
}

// codeBefore returns the last bytes of the code before an address, by its module; none where that has none.
func (w *Walker) codeBefore(space *Space, ra arch.Addr) []byte {
	mapping := space.Find(ra - 1)
	if mapping == nil {
		return nil
	}
	v, ok := mapping.Vaddr(ra - 1)
	if !ok || mapping.Module.Code().Text == nil {
		return nil
	}
	text := mapping.Module.Code().Text
	for n := arch.MaxCall; n > 1; n-- { // fewer where the code begins
		if b := w.text[:n]; text(v+1-arch.Vaddr(n), b) == n {
			return b
		}
	}
	return nil
}

// place says whether the return address ra is a place that no call has led to, but somebody who wrote its address: the context
// of makecontext, or the kernel. Then the code before it is another's, or there is none.
func (w *Walker) place(space *Space, ra arch.Addr) bool {
	here := space.Find(ra)
	if here == nil {
		return false
	}
	if space.Find(ra-1) == nil {
		return true
	}
	b := w.codeBefore(space, ra)
	return b != nil && !here.Module.Code().Machine.AfterCall(b)
}

// afterSyscall says whether v lies in a gap of the information that begins with a system call, and how far behind that.
// C libraries end the information there where a system call makes a thread: it returns twice, and what was true before is
// not true of the new thread. The code up to the return uses no stack.
func (w *Walker) afterSyscall(c *Code, v arch.Vaddr) (n uint32, ok bool) {
	call := c.Machine.Syscall.Code
	if c.Stepper == nil || c.Text == nil || len(call) == 0 {
		return 0, false
	}
	var b [4]byte
	for n := arch.Vaddr(0); n <= arch.MaxAfterSyscall && n < v; n++ {
		if c.Text(v-n, b[:len(call)]) != len(call) || !bytes.Equal(b[:len(call)], call) {
			continue
		}
		_, in := c.Stepper.Find(v - n)
		_, before := c.Stepper.Find(v - n - 1)
		if !in && before {
			return uint32(n), true
		}
	}
	return 0, false
}

// newThread says whether the thread has just been made by the system call behind which it is: what the call has returned is 0. Nobody
// has called the thread. w.state is that of the place.
func (w *Walker) newThread(m *arch.Machine, mem *rows.Memory) bool {
	v, o := w.state.Get(m.Slot(m.Syscall.Result), mem)
	return o == rows.OK && v == 0
}
