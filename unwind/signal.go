package unwind

import (
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
