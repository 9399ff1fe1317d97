package native

import (
	"github.com/unspool/unspool/arch"

	. "github.com/unspool/unspool/emit/native/amd64" // an assembler reads better without its name before every word
)

// x86 writes code for x86-64.
type x86 struct {
	*Asm
	*generator
	gets     map[getKey]Label
	getOrder []getKey
}

func newX86(g *generator) *x86 {
	return &x86{Asm: &Asm{}, generator: g, gets: map[getKey]Label{}}
}

func (g *x86) assemble() ([]byte, []uint32) { return g.Bytes() }

func (g *x86) maxSize() int { return maxSize }

// The registers that code keeps its values in. A step has the state in rdi and the memory in rsi throughout; rax
// is the CFA where it is known. Scratch are rcx, rdx and r8 to r11.
const (
	rState = RDI
	rMem   = RSI
)

// Slots that have a part of their own to play.
const (
	slotSP = 7
	slotRA = 16
)

func field(off int32) Mem { return At(rState, off) }

func val(slot arch.Slot) Mem { return field(offVal + 8*int32(slot)) }

// bit returns the byte of a mask that has a slot's bit, and the bit.
func bit(mask int32, slot arch.Slot) (Mem, byte) {
	return field(mask + int32(slot/8)), 1 << (slot % 8)
}

// cie and cfi describe the frames: the CFA is rsp+8, rsp+16, or rbp+16.
func (g *x86) cie() []byte {
	return []byte{1, 'z', 'R', 0, 1, 0x78, 16, 1, pcrelSdata4, cfaDefCFA, 7, 8, cfaOffset | 16, 1}
}

func (g *x86) cfi(was, now frameKind) []byte {
	switch {
	case now == framePushed:
		return []byte{cfaDefCFA, 7, 16, cfaOffset | 6, 2}
	case now == frameBP && was == framePushed:
		return []byte{cfaDefRegister, 6}
	case now == frameBP:
		return []byte{cfaDefCFA, 6, 16, cfaOffset | 6, 2}
	}
	return []byte{cfaDefCFA, 7, 8, cfaRestore | 6}
}
