package shadow

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// window is how many bytes below the CFA are read at once: the return address and what is saved right below it.
const window = 64

// allSlots are the general registers and the program counter.
var allSlots = uint64(1)<<(general+1) - 1

// check compares what the row at the instruction that comes next recovers with the truth.
func (th *thread) check() {
	s, now := th.site, &th.regs
	if s.stepper == nil {
		s.mod.NoInfo++
		return
	}
	if !s.compare {
		return
	}
	f := th.cur.top()
	switch {
	case f == nil && !th.cur.root, f != nil && f.kind == unknown, f != nil && now.sp() > f.cfa:
		s.mod.Unknown++
		return
	}
	s.mod.Compared++
	th.t.compared++
	o := th.apply(f)
	d := th.differs(f, o)
	if d == 0 {
		return
	}
	th.win = nil // another thread may have written to it
	if o = th.apply(f); th.differs(f, o) == 0 {
		return
	}
	if f != nil && f.inner && len(th.cur.frames) > 1 {
		// A call into the function itself may have been a way to push: then the caller's caller is meant.
		if th.differs(&th.cur.frames[len(th.cur.frames)-2], o) == 0 {
			s.mod.Compared--
			s.mod.Unknown++
			return
		}
	}
	th.t.wrong(th, f, o, d)
}

// apply applies the row. The result is in th.t.state.
func (th *thread) apply(f *frame) rows.Outcome {
	st, now := &th.t.state, &th.regs
	st.Start(now.pc, allSlots)
	copy(st.Snap[:], now.r[:general])
	st.Snap[general] = now.pc
	m := &th.t.mem
	m.Next, m.Tags = th.proc.mem, host.Tags
	if m.Addresses = 0; th.proc.signs != 0 {
		m.Addresses = th.proc.signs&-th.proc.signs - 1
	}
	m.Lo, m.Bytes = 0, nil
	if f != nil {
		if th.win == nil || th.winAt != f.cfa-window {
			th.winAt = f.cfa - window
			if readMemory(th.proc.pid, th.winAt, th.winBuf[:]) == window {
				th.win = th.winBuf[:]
			}
		}
		m.Lo, m.Bytes = th.winAt, th.win
	}
	return th.site.stepper.Apply(th.site.rule, st, m)
}

// wrongRA is the return address's bit in what a row gets wrong, which has a bit for each register by slot. The stack pointer's is the CFA's.
var wrongRA = uint64(1) << general

// differs returns what the row gets wrong. A register that it says is lost is not wrong.
func (th *thread) differs(f *frame, o rows.Outcome) (d uint64) {
	if f == nil {
		if o == rows.OK {
			d = wrongRA // there is no caller
		}
		return d
	}
	if o != rows.OK {
		return wrongRA
	}
	st, m := &th.t.state, &th.t.mem
	if f.kind == interrupted {
		want, ok := f.intr.context(th.proc)
		if ok && st.PC != want.pc {
			d |= wrongRA
		}
		for i := 0; ok && i < general; i++ {
			d |= th.reg(i, want.r[i], m)
		}
		return d
	}
	if st.PC != f.ra {
		d |= wrongRA
	}
	d |= th.reg(stackPointer, f.cfa, m)
	if th.site.mod.isGo {
		return d // Go has no callee-saved registers
	}
	for i, r := range saved {
		d |= th.reg(int(r), f.saved[i], m)
	}
	return d
}

// reg returns slot i's bit if the state has another value than want.
func (th *thread) reg(i int, want uint64, m *rows.Memory) uint64 {
	st := &th.t.state
	bit := uint64(1) << i
	if st.Known&bit == 0 {
		return 0
	}
	if v, o := st.Get(arch.Slot(i), m); o == rows.OK && v == want {
		return 0
	}
	return bit
}
