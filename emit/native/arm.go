package native

import (
	"github.com/unspool/unspool/arch"

	. "github.com/unspool/unspool/emit/native/arm64"
)

// arm writes code for AArch64.
type arm struct {
	*Asm
	*generator
	gets      map[arch.Slot]Label
	getOrder  []arch.Slot
	heads     map[armHead]Label
	headOrder []armHead
	chains    map[string]Label
}

func newArm(g *generator) *arm {
	return &arm{Asm: &Asm{}, generator: g, gets: map[arch.Slot]Label{}, heads: map[armHead]Label{}, chains: map[string]Label{}}
}

func (g *arm) assemble() ([]byte, []uint32) { return g.Bytes(g.start) }

func (g *arm) maxSize() int { return MaxSize }

// Registers with a part of their own throughout. Scratch are x10, x12 and x15; x17 and x30 hold the links of routines.
const (
	armState = X0
	armMem   = X1
	armSize  = X8  // the CFA, less the register it is relative to
	armValue = X9  // of a register or an expression; the CFA; the number of a rule
	armRead  = X11 // an address to read, then what was read; the return address
	armWhy   = X14 // an outcome: 0 where a routine succeeded
	armLink  = X16 // where the entry point returns to; in a frame, which has that, the frame's code
)

const (
	armSP = 31
	armRA = 30
)

func armField(off int32) Mem { return At(armState, off) }

func armVal(slot arch.Slot) Mem { return armField(offVal + 8*int32(slot)) }

// addTo is dst = x + v, for a number of any size. It may use x12.
func (g *arm) addTo(dst, x Reg, v int64) {
	switch {
	case v == 0:
		if dst != x {
			g.Mov(dst, x)
		}
	case Arith(uint64(v)):
		g.AddImm(dst, x, uint64(v))
	case Arith(uint64(-v)):
		g.SubImm(dst, x, uint64(-v))
	default:
		g.Imm(X12, uint64(v))
		g.RR(ADD, dst, x, X12)
	}
}

// part is the address of a part of the file.
func (g *arm) part(dst Reg, i int, add int32) {
	at := g.parts[i] + add
	g.Page(dst, int64(at>>12))
	if low := at & 0xfff; low != 0 {
		g.AddImm(dst, dst, uint64(low))
	}
}

// exits writes what wide rules and simple ones share.
func (g *arm) exits() {
	g.Set(g.noRule)
	g.Imm(X0, 2)
	g.Ret(armLink)
	g.Set(g.fail)
	g.Mov32(X0, armWhy)
	g.Ret(armLink)
	g.Set(g.wideExit)
	g.region(frameBP)
	g.AddImm(SP, X29, 0)
	g.PopPair(X29, armLink, 16)
	g.region(frameNone)
	g.Mov32(X0, armWhy)
	g.Ret(armLink)
}

// cie and cfi describe the frames: the CFA is sp, sp+16, or x29+16; the return address is in x30 or x16, or saved behind x29.
func (g *arm) cie() []byte {
	return []byte{1, 'z', 'R', 0, 1, 0x78, armRA, 1, pcrelSdata4, cfaDefCFA, armSP, 0, cfaRegister, armRA, byte(armLink)}
}

func (g *arm) cfi(_, now frameKind) []byte {
	switch now {
	case framePushed:
		return []byte{cfaDefCFA, armSP, 16, cfaOffset | 29, 2, cfaOffset | armRA, 1}
	case frameBP:
		return []byte{cfaDefCFA, 29, 16, cfaOffset | 29, 2, cfaOffset | armRA, 1}
	case frameEntry:
		return []byte{cfaDefCFA, armSP, 0, cfaRestore | 29, cfaSameValue, armRA}
	}
	return []byte{cfaDefCFA, armSP, 0, cfaRestore | 29, cfaRegister, armRA, byte(armLink)}
}
