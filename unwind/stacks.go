package unwind

import (
	"math/bits"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A stack grows down, so a caller's frame is above. But a program can have several: coroutines, stacks that grow in pieces
// (-fsplit-stack), what is called on a stack of its own. A frame whose caller is on another stack can lead down as well as up. Such
// a walk ends, because a loop goes down somewhere, and goes there again with the same program counter.

// stacks are the stacks of a walk.
type stacks struct {
	low   uint64 // where the piece at hand begins
	n     int
	moves [arch.MaxMoves]struct{ pc, cfa uint64 } // where the walk went down
}

func (k *stacks) start(cfa uint64) { k.low, k.n = cfa, 0 }

// move goes from a frame whose caller's is at cfa on to one at up, which is not right above. It says whether that can be.
func (k *stacks) move(cfa, up, pc uint64) bool {
	if up <= cfa {
		if up >= k.low || up&7 != 0 || k.n == arch.MaxMoves {
			return false
		}
		for i := range k.n {
			if k.moves[i].pc == pc && k.moves[i].cfa == up {
				return false
			}
		}
		k.moves[k.n].pc, k.moves[k.n].cfa = pc, up
		k.n++
	}
	k.low = up
	return true
}

// apply applies the rule of a site to the state. Where alive is set, the frame at hand has called nobody: a register that
// it has saved may lie below its stack pointer, because the function has taken it back, and the rule has not followed (compilers
// say nothing of the last instructions). What lies there is the function's own only in the red zone. So where it is lower, or
// cannot be read, as in a copy of a stack, the register has its value still, or again.
func (w *Walker) apply(e *rest, m *arch.Machine, mem *rows.Memory, alive bool) rows.Outcome {
	st := &w.state
	if e.moved != 0 {
		v, o := st.Get(m.Slot(e.moved), mem)
		if o != rows.OK {
			return o
		}
		slot := m.Slot(m.SP)
		st.InMem, st.InReg, st.Val[slot] = st.InMem&^(1<<slot), st.InReg&^(1<<slot), v
	}
	if !alive || e.signal || e.moved != 0 {
		return e.code.Stepper.Apply(e.rule, st, mem)
	}
	sp, o := st.Get(m.Slot(m.SP), mem)
	if o != rows.OK {
		return e.code.Stepper.Apply(e.rule, st, mem)
	}
	val, known, inMem, inReg := st.Val, st.Known, st.InMem, st.InReg
	if o := e.code.Stepper.Apply(e.rule, st, mem); o != rows.OK {
		return o
	}
	for set := st.Known & st.InMem & m.SavedSlots(); set != 0; set &= set - 1 {
		slot := bits.TrailingZeros64(set)
		if at := st.Val[slot]; at < sp && !located(known&inMem, &val, at) && gone(m, mem, sp, at) {
			only := uint64(1) << slot
			st.Known = st.Known&^only | known&only
			st.InMem = st.InMem&^only | inMem&only
			st.InReg = st.InReg&^only | inReg&only
			st.Val[slot] = val[slot]
		}
	}
	return rows.OK
}

// located says whether a register was at an address before: its value is not on the frame's own stack, but where the kernel has
// saved it for a signal handler.
func located(inMem uint64, val *[arch.NumSlots]uint64, at uint64) bool {
	for ; inMem != 0; inMem &= inMem - 1 {
		if val[bits.TrailingZeros64(inMem)] == at {
			return true
		}
	}
	return false
}

// gone says whether a saved register is not to be had from at, where the stack pointer is sp.
func gone(m *arch.Machine, mem *rows.Memory, sp, at uint64) bool {
	if at >= sp {
		return false
	}
	if sp-at > m.RedZone {
		return true
	}
	_, ok := mem.Load(at)
	return !ok
}
