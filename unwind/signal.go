package unwind

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// sigReturn says whether the code at v is what signal handlers return to: the instructions there are looked at. running is set where a
// thread is at v itself: it may be at the last of them, or, while the kernel does what they ask for, behind it.
func (w *Walker) sigReturn(c *Code, v arch.Vaddr, running bool) bool {
	sig := c.Machine.Signal
	if sig == nil || c.Text == nil {
		return false
	}
	if _, ok := sig.At(w.text[:c.Text(v, w.text[:])]); ok || !running {
		return ok
	}
	for _, r := range sig.Returns { // the stack pointer is the same
		for _, back := range [2]int{len(r) - sig.Call, len(r)} {
			if n, ok := sig.At(w.text[:c.Text(v-arch.Vaddr(back), w.text[:])]); ok && n == len(r) {
				return true
			}
		}
	}
	return false
}

// handled says whether the stack has what the kernel leaves for a handler, as far as it can be read, where the code says that
// handlers return to it.
func (w *Walker) handled(m *arch.Machine, regs *pair, mem *rows.Memory) bool {
	if !regs.known {
		return true
	}
	at := regs.sp + uint64(m.Signal.Context)
	flags, ok := mem.Load(at)
	if ok && flags > arch.MaxFlags {
		return false
	}
	link, ok := mem.Load(at + 8)
	return !ok || link == 0
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
