package unwind

import (
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// sigReturn says whether a signal handler returns to v, which is in code without information: the instructions there are
// looked at. Where exact is false, v is the address before.
func (w *Walker) sigReturn(c *Code, v arch.Vaddr, exact bool) bool {
	sig := c.Machine.Signal
	if sig == nil || c.Text == nil {
		return false
	}
	if !exact {
		_, ok := sig.At(w.text[:c.Text(v+1, w.text[:])])
		return ok
	}
	if _, ok := sig.At(w.text[:c.Text(v, w.text[:])]); ok {
		return true
	}
	// At its last instruction the stack pointer is the same.
	for _, r := range sig.Returns {
		last := len(r) - sig.Call
		if n, ok := sig.At(w.text[:c.Text(v-arch.Vaddr(last), w.text[:])]); ok && n == len(r) {
			return true
		}
	}
	return false
}

// stepSigReturn goes on to where a signal came, with the registers that the kernel has saved.
func (w *Walker) stepSigReturn(m *arch.Machine, regs *pair, mem *rows.Memory) rows.Outcome {
	if !regs.known {
		return rows.LostRegister
	}
	st, sig := &w.state, m.Signal
	var saved uint64
	for r, off := range sig.Saved {
		if off != 0 {
			slot := m.Slot(arch.Reg(r))
			saved |= 1 << slot
			st.Val[slot] = regs.sp + uint64(off)
		}
	}
	at := [2]uint64{regs.sp + uint64(sig.Saved[m.PC]), regs.sp + uint64(sig.Saved[m.SP])}
	var v [2]uint64
	for i := range at {
		var ok bool
		if v[i], ok = mem.Load(at[i]); !ok {
			st.Fault = at[i]
			return rows.Unreadable
		}
	}
	st.PC, st.CFA = v[0], v[1]
	st.Known, st.InMem, st.InReg = saved, saved&^(1<<m.Slot(m.SP)|1<<m.Slot(m.PC)), 0
	st.Val[m.Slot(m.PC)], st.Val[m.Slot(m.SP)] = v[0], v[1]
	return rows.OK
}

// stepCall leaves a place without code, to which a call has led: w.state is that of the place.
func (w *Walker) stepCall(s *Snapshot) bool {
	ra, sp, ok := w.called(s)
	if ok {
		w.state.Known &= s.Machine.SavedSlots()
		w.caller(s.Machine, ra, sp)
	}
	return ok
}

// called returns the return address that the call to a place without code has left, if there is a call before it, and the
// stack pointer that the caller had. w.state is that of the place.
func (w *Walker) called(s *Snapshot) (ra, sp uint64, ok bool) {
	st, m := &w.state, s.Machine
	sp, o := st.Get(m.Slot(m.SP), &s.Mem)
	if o != rows.OK {
		return 0, 0, false
	}
	if m.RAInReg {
		if ra, o = st.Get(m.Slot(m.RA), &s.Mem); o != rows.OK {
			return 0, 0, false
		}
	} else {
		if ra, ok = s.Mem.Load(sp); !ok {
			return 0, 0, false
		}
		sp += 8
	}
	return ra, sp, m.AfterCall(w.before(s, ra))
}

// before returns the last bytes of the code before ra, by its module, or as memory has it; fewer, or none, where there are no
// more.
func (w *Walker) before(s *Snapshot, ra uint64) []byte {
	mapping := s.Space.Find(arch.Addr(ra - 1))
	if mapping == nil {
		return nil
	}
	if v, ok := mapping.Vaddr(arch.Addr(ra - 1)); ok && mapping.Module.Code().Text != nil {
		text := mapping.Module.Code().Text
		for n := arch.MaxCall; n > 1; n-- { // fewer where the code begins
			if b := w.text[:n]; text(v+1-arch.Vaddr(n), b) == n {
				return b
			}
		}
	}
	if x, ok := s.Mem.Load(ra - arch.MaxCall); ok {
		binary.LittleEndian.PutUint64(w.text[:], x)
		return w.text[:arch.MaxCall]
	}
	return nil
}
