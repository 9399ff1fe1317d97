package unwind

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// sigReturn returns the flags of a site whose code at v is what signal handlers return to: the instructions there are looked at. running is set where a
// thread is at v itself: it may be at the last of them, or, while the kernel does what they ask for, behind it.
func (w *Walker) sigReturn(c *Code, v arch.Vaddr, running bool) siteFlags {
	sig := c.Machine.Signal
	if sig == nil || c.Text == nil {
		return 0
	}
	flags := siteReturns
	for ; sig != nil; sig, flags = sig.Plain, siteReturns|sitePlain {
		if _, ok := sig.At(w.text[:c.Text(v, w.text[:])]); ok {
			return flags
		}
		if !running {
			continue
		}
		for _, r := range sig.Returns { // the stack pointer is the same
			call := sig.Call
			if c.Machine.ModeBits != 0 && len(r) < 8 { // Thumb
				call = 2
			}
			for _, back := range [2]int{len(r) - call, len(r)} {
				if n, ok := sig.At(w.text[:c.Text(v-arch.Vaddr(back), w.text[:])]); ok && n == len(r) {
					return flags
				}
			}
		}
	}
	return 0
}

// handled returns what the kernel has left on the stack for a handler, where the code says that handlers return to it, or may: nil where the stack
// has something else, as far as it can be read.
func (w *Walker) handled(e *site, m *arch.Machine, regs *pair, mem *rows.Memory) *arch.Signal {
	sig := m.Signal
	switch {
	case e.flags&sitePlain != 0:
		sig = sig.Plain
	case e.flags&siteLost != 0:
		if sig == nil || !regs.known {
			return nil
		}
		if p := sig.Plain; p != nil && left(p, m, regs.sp, mem, true) {
			return p
		}
	}
	if regs.known && !left(sig, m, regs.sp, mem, e.flags&siteLost != 0) {
		return nil
	}
	return sig
}

// left says whether the stack at sp has a frame of a signal, as far as it can be read; with sure, all of it has to be.
func left(sig *arch.Signal, m *arch.Machine, sp uint64, mem *rows.Memory, sure bool) bool {
	at := sp + uint64(sig.Context)
	switch {
	case sig.Flags != 0:
		flags, ok := mem.Load(at)
		return !sure || ok && flags == uint64(sig.Flags) // QEMU leaves it as it was
	case sig.Self != 0:
		self, ok := mem.Load(sp + uint64(sig.Self))
		return !ok && !sure || ok && self == sp+uint64(sig.To)
	case sig.Same[0] != 0:
		a, ok := mem.Load(sp + uint64(sig.Same[0]))
		b, too := mem.Load(sp + uint64(sig.Same[1]))
		return !(ok && too) && !sure || ok && too && a == b && a != 0
	}
	flags, ok := mem.Load(at)
	if ok && flags > arch.MaxFlags || !ok && sure {
		return false
	}
	link, ok := mem.Load(at + m.WordSize())
	return !ok && !sure || ok && link == 0
}

// stepSigReturn goes on to where a signal came, with the registers that the kernel has saved.
func (w *Walker) stepSigReturn(sig *arch.Signal, m *arch.Machine, regs *pair, mem *rows.Memory) rows.Outcome {
	if !regs.known {
		return rows.LostRegister
	}
	st := &w.state
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
