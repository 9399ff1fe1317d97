package csource

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// states is how many states of registers and memory each rule is tried on.
const states = 32

// The arena is a piece of memory that C has at the same address: what the code for the own process reads.
const (
	arenaLo   = 1 << 40
	arenaSize = 1 << 16
)

var arena = func() (b [arenaSize]byte) {
	for i := 0; i < len(b); i += 8 {
		le.PutUint64(b[i:], number(mix(uint64(i))))
	}
	return b
}()

// number makes a value that is likely to lead somewhere: into the arena's middle, or to an edge.
func number(h uint64) uint64 {
	small := int64(int8(h >> 8))
	mid := arenaLo + arenaSize/2 + h>>16&0x3ff8 - 0x2000
	switch h & 15 {
	case 0:
		return 1<<63 + uint64(small)
	case 1:
		return uint64(small)
	case 2:
		return mix(h)
	case 3, 4:
		return mid + h>>40&7 // misaligned
	}
	return mid
}

// A trial is a state, and memory: part of the arena, and single words around it, of which some are missing.
type trial struct {
	seed  uint64
	k     int
	deref Deref

	state    rows.State
	lo, size uint64
	holes    bool
	words    []cWord
	outside  bool // something was read that the own process does not have
}

// Read8 implements rows.Reader for what is not in the slice.
func (t *trial) Read8(addr uint64) (uint64, bool) {
	if t.deref == Self {
		t.outside = true
		return 0, false
	}
	h := mix(addr ^ t.seed)
	if t.holes && h>>60 < 4 {
		return 0, false
	}
	for _, w := range t.words {
		if w.Addr == addr {
			return w.Value, true
		}
	}
	v := number(mix(h))
	t.words = append(t.words, cWord{addr, v, 1})
	return v, true
}

func (t *trial) memory() rows.Memory {
	off := t.lo - arenaLo
	return rows.Memory{Lo: t.lo, Bytes: arena[off : off+t.size], Next: t}
}

// setUp makes the trial of its seed and number. The first ones are kind, so that every rule succeeds on some.
func (t *trial) setUp(mach *arch.Machine, set *rows.Set) {
	h := t.seed
	next := func() uint64 { h = mix(h + 1); return h }
	t.holes, t.words, t.outside = t.k >= states/4, nil, false
	t.lo, t.size = arenaLo, arenaSize
	if t.deref != Self {
		t.lo += next() & 0x7fff
		t.size = next() % (arenaSize / 2) >> (t.k & 16)
	}
	s := &t.state
	*s = rows.State{PC: next(), CFA: next(), Fault: next()}
	for i := range s.Val {
		s.Snap[i] = number(next())
		switch s.Val[i] = number(next()); t.k & 3 {
		case 0:
			s.Val[i] = uint64(i)
		case 1:
			s.Val[i] = next() & (arch.NumSlots - 1)
		}
	}
	s.Known = ^uint64(0)
	switch t.k & 3 {
	case 0:
		s.InReg = ^uint64(0)
	case 1:
		s.InReg = next()
	case 2:
		s.InMem, s.InReg = next(), next()
	case 3:
		s.InMem, s.InReg = next(), next()
		s.Known = next()
		s.Known |= next()
	}
	if slot := mach.Slot(set.CFA.Reg); t.k&4 != 0 && slot != arch.NoSlot && set.CFA.Kind != rows.CFAExpr {
		// However large the offset, the CFA is in the arena.
		s.Val[slot] = arenaLo + arenaSize/2 + next()&0xff8 - uint64(set.CFA.Off)
		s.Known |= 1 << slot
		s.InMem &^= 1 << slot
		s.InReg &^= 1 << slot
	}
}

// mix is a bijection that spreads every bit (the finalizer of SplitMix64).
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
