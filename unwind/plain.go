package unwind

import (
	"encoding/binary"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Nearly all rules are plain: the CFA is the stack pointer or the frame pointer plus a number, and the return address
// lies at a number from it: right below it where a call pushes it, in the function's frame where a call leaves it in a register. To follow such a rule two registers are enough. So a Walker carries those two, and the whole
// rows.State only where some rule needs more: then it catches up, frame by frame, with what the plain rules say of the
// other registers. What comes out is the same; the saved registers of a stack that nobody asks for cost nothing.

// A plain is what is known of a rule that is plain.
type plain struct {
	off    int32 // of the CFA from its register
	fp     int16 // where the frame pointer is saved, from the CFA; 0 where it is as it was
	ra     int16 // where the return address is, from the CFA
	kind   plainKind
	signed bool // the return address is
}

type plainKind uint8

const (
	plainUnknown   plainKind = iota // not looked at yet
	plainNot                        // any other rule
	plainSP                         // CFA = SP + off
	plainFP                         // CFA = FP + off
	plainSPOutmost                  // CFA = SP + off, and there is no caller
	plainFPOutmost
)

// plainOf returns s as a plain rule of machine m, if it is one.
func plainOf(s *rows.Set, m *arch.Machine) plain {
	not := plain{kind: plainNot}
	c := &s.CFA
	const harmless = rows.RASigned | rows.RASignPC | rows.BKey | rows.Tagged
	if !m.StepKnown || m.ModeBits|m.SPBelow != 0 || s.RA != m.RA || s.Flags&^harmless != 0 || c.Kind != rows.CFAReg || c.Off != int64(int32(c.Off)) {
		return not
	}
	p := plain{kind: plainSP, off: int32(c.Off), signed: s.Flags&(rows.RASigned|rows.RASignPC) != 0}
	switch c.Reg {
	case m.SP:
	case m.FP:
		p.kind = plainFP
	default:
		return not
	}
	if s.Outermost() {
		p.kind += plainSPOutmost - plainSP
		return p
	}
	ra, ok := s.Rule(m.RA)
	if !ok || ra.Kind != rows.Offset || ra.Off != int64(int16(ra.Off)) {
		return not
	}
	p.ra = int16(ra.Off)
	if _, ok := s.Rule(m.SP); ok {
		return not
	}
	switch fp, ok := s.Rule(m.FP); {
	case !ok || fp.Kind == rows.SameValue:
	case fp.Kind == rows.Offset && fp.Off == int64(int16(fp.Off)) && fp.Off != 0:
		p.fp = int16(fp.Off)
	default:
		return not
	}
	return p
}

// A setter is a Stepper that can say what a rule is.
type setter interface {
	Set(id uint32) rows.Set
}

// maxPlains bounds the rules of one module that a Walker remembers, and maxCodes the modules. Each keeps the code of its module, 5 KB, in memory.
const maxPlains, maxCodes = 1 << 16, 1 << 8

// plain returns rule id of c as a plain one.
func (w *Walker) plain(c *Code, id uint32) plain {
	if c != w.last {
		w.last, w.lasts = c, w.plains[c]
	}
	if uint64(id) < uint64(len(w.lasts)) && w.lasts[id].kind != plainUnknown {
		return w.lasts[id]
	}
	st, ok := c.Stepper.(setter)
	if !ok || id >= maxPlains {
		return plain{kind: plainNot}
	}
	if int(id) >= len(w.lasts) {
		if w.lasts == nil && len(w.plains) >= maxCodes {
			clear(w.plains)
		}
		w.lasts = append(w.lasts, make([]plain, int(id)+64-len(w.lasts))...)
		w.plains[c] = w.lasts
	}
	set := st.Set(id)
	w.lasts[id] = plainOf(&set, c.Machine)
	return w.lasts[id]
}

// A pair is the two registers that plain rules need.
type pair struct {
	sp    uint64
	fp    uint64 // the frame pointer, or its address
	known bool   // sp is known; without it no rule is followed as a plain one
	hasFP bool
	fpMem bool // fp is where the frame pointer is
}

// take fills the pair from the registers of a state.
func (p *pair) take(m *arch.Machine, st *rows.State, mem *rows.Memory) {
	v, o := st.Get(m.Slot(m.SP), mem)
	p.sp, p.known = v, o == rows.OK
	fp := m.Slot(m.FP)
	p.hasFP, p.fpMem, p.fp = st.Known>>fp&1 != 0, st.InMem>>fp&1 != 0, st.Val[fp]
	if st.InReg>>fp&1 != 0 {
		p.fp = st.Snap[p.fp&(arch.NumSlots-1)]
	}
}

// frame returns the frame pointer. fault is set where it cannot be read.
func (p *pair) frame(mem *rows.Memory, fault *uint64) (uint64, rows.Outcome) {
	if !p.hasFP {
		return 0, rows.LostRegister
	}
	if !p.fpMem {
		return p.fp, rows.OK
	}
	v, ok := mem.Load(p.fp)
	if !ok {
		*fault = p.fp
		return 0, rows.Unreadable
	}
	return v, rows.OK
}

// A run is what follow knows of a frame, and how many it has found.
type run struct {
	pair
	pc   uint64
	last *site // of the frame below
	warm uint64
	tag  uint32
	room int // for so many frames
	n    int
}

// follow appends frames to which calls have led, from that of r on, as long as their sites are known, their rules are plain and lead a
// little way up, and all that they need is in the captured stack. It is what Walk does with such a frame, and nearly all are such: the
// loop waits for nothing that it can foresee. r is then the first frame that Walk itself has to look at.
func (w *Walker) follow(r *run, mem *rows.Memory, frames []Frame) []Frame {
	b, lo := mem.Bytes, mem.Lo
	pc, sp, fp, warm, last := r.pc, r.sp, r.fp, r.warm, r.last
	for r.n < r.room {
		e := &w.cache[last.next%numSites]
		if e.pc != pc || e.tag != r.tag {
			var i uint16
			if e, i = w.lookup(pc, r.tag); e == nil {
				break
			}
			last.next = i
		}
		if e.flags&^siteSigned != 0 || e.plain-plainSP > plainFP-plainSP {
			break
		}
		if off := sp - lo; off < uint64(len(b)) && off+fetchAhead/2 > warm {
			warm = fetchFrom(b, max(warm, off), off+fetchAhead)
		}
		up := sp
		if e.plain == plainFP {
			if !r.hasFP {
				break
			}
			if up = fp; r.fpMem {
				off := fp - lo
				if off >= uint64(len(b)) || uint64(len(b))-off < 8 {
					break
				}
				up = binary.LittleEndian.Uint64(b[off:])
			}
		}
		up += uint64(int64(e.off))
		off := up + uint64(int64(e.ra)) - lo
		if off >= uint64(len(b)) || uint64(len(b))-off < 8 || up-sp-1 >= arch.MaxPiece {
			break
		}
		frames = append(frames, Frame{PC: arch.Addr(pc), How: HowCFI, Mapping: e.mapping})
		if e.fp != 0 {
			fp, r.hasFP, r.fpMem = up+uint64(int64(e.fp)), true, true
		}
		sp, pc, last = up, binary.LittleEndian.Uint64(b[off:]), e
		if e.flags != 0 {
			pc = mem.Unsigned(pc)
		}
		r.n++
	}
	r.pc, r.sp, r.fp, r.warm, r.last = pc, sp, fp, warm, last
	return frames
}

// catchUp brings the state from the frame that it is at to the last of frames.
func (w *Walker) catchUp(s *Snapshot, frames []Frame) rows.Outcome {
	st := &w.state
	if w.at < 0 {
		st.Start(s.PC, s.Known)
		copy(st.Snap[:], s.Regs[:])
		w.at = 0
	}
	var from site
	for ; w.at < len(frames)-1; w.at++ {
		f := &frames[w.at]
		in := w.find(s.Space, uint64(f.PC), tagOf(s.Space, f.Exact), &from)
		e := w.rest[from.next%numSites]
		e.made(uint64(f.PC), f.Exact, in.mapping, s.Time)
		if e.kind != siteCFI {
			return rows.NoRule
		}
		if o := w.apply(&e, s.Machine, &s.Mem, f.How.alive()); o != rows.OK {
			return o // memory has changed since
		}
	}
	return rows.OK
}
