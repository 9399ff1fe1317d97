package unwind

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Registers calls each with the registers of each frame that Walk has found of s, innermost first: those whose value is
// known there, and can be read. A call loses all but the callee-saved ones, a signal none. known is the set of slots in regs.
// Memory must not have changed since; if it has, there are fewer calls than frames.
func (w *Walker) Registers(s *Snapshot, frames []Frame, each func(i int, known uint64, regs *[arch.NumSlots]uint64)) {
	st, m, mem := &w.state, s.Machine, &s.Mem
	st.Start(s.PC, s.Known)
	copy(st.Snap[:], s.Regs[:])
	s.addresses()
	w.machine = m
	var regs pair
	for i := range frames {
		f := &frames[i]
		var known uint64
		var vals [arch.NumSlots]uint64
		for slot := range arch.Slot(arch.NumSlots) {
			if v, o := st.Get(slot, mem); o == rows.OK {
				known |= 1 << slot
				vals[slot] = v
			}
		}
		each(i, known, &vals)
		if i == len(frames)-1 {
			return
		}
		var in site
		var e rest
		w.resolve(s.Space, f.PC, f.Exact, &in, &e)
		e.made(uint64(f.PC), f.Exact, in.mapping, s.Time)
		o := rows.NoRule
		switch frames[i+1].How {
		case HowCFI, HowSignal:
			if e.kind == siteCFI {
				o = w.apply(&e, m, mem, f.How.alive())
			}
		case HowPLT:
			o = w.stepPLT(m, uint64(e.rule), mem)
		case HowFramePointer:
			regs.take(m, st, mem)
			o = w.stepFP(s, &regs, vals[m.Slot(m.SP)], f.How.alive())
		case HowSigReturn:
			regs.take(m, st, mem)
			if in.mapping != nil && in.mapping.lost() { // Walk has found it as a return address
				in.flags |= siteLost
			}
			if sig := w.handled(&in, m, &regs, mem); sig != nil {
				o = w.stepSigReturn(sig, m, &regs, mem)
			}
		case HowSync:
			if e.kind == siteSync && w.stepSync(s, &e) {
				o = rows.OK
			}
		case HowCall:
			if e.kind == siteBlind && f.How.alive() && w.stepEdge(s) || w.stepCall(s) {
				o = rows.OK
			}
		}
		if o != rows.OK {
			return
		}
		st.PC &^= m.ModeBits
	}
}
