package ptrace

import (
	"encoding/binary"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestParse reads the registers of each machine, whatever this one is: words that are told apart by their place.
func TestParse(t *testing.T) {
	for _, c := range []struct {
		m                 *arch.Machine
		pc, sp, fp        int // words
		tls               uint64
		mode32, otherMode uint64 // of word 17
	}{
		{arch.AMD64, 16, 19, 4, 1021, 0x23, 0x33},
		{arch.ARM64, 32, 31, 29, 0, 0, 0},
	} {
		words := func(change func(b []byte)) []byte {
			b := make([]byte, 8*c.m.UserRegs.Words)
			for i := range len(b) / 8 {
				binary.LittleEndian.PutUint64(b[8*i:], uint64(1000+i))
			}
			if change != nil {
				change(b)
			}
			return b
		}
		var r Registers
		if !r.parse(c.m, words(nil)) {
			t.Fatalf("%s: no registers", c.m.Name)
		}
		want := Registers{PC: uint64(1000 + c.pc), SP: uint64(1000 + c.sp), TLS: c.tls, Known: 1<<(c.m.PC+1) - 1}
		fp := r.Regs[c.m.Slot(c.m.FP)]
		if r.PC != want.PC || r.SP != want.SP || r.TLS != want.TLS || r.Known != want.Known || fp != uint64(1000+c.fp) {
			t.Errorf("%s: got %+v\nwant %+v, and the frame pointer %d", c.m.Name, r, want, 1000+c.fp)
		}
		if new(Registers).parse(c.m, words(nil)[8:]) {
			t.Errorf("%s: registers of fewer words, as 32-bit code has them", c.m.Name)
		}
		if c.mode32 != 0 {
			mode := func(v uint64) []byte {
				return words(func(b []byte) { binary.LittleEndian.PutUint64(b[8*17:], v) })
			}
			if new(Registers).parse(c.m, mode(c.mode32)) || !new(Registers).parse(c.m, mode(c.otherMode)) {
				t.Errorf("%s: 32-bit code is not told by its segment", c.m.Name)
			}
		}
		if c.m.UserRegs.Words > maxWords {
			t.Errorf("%s: %d words, more than maxWords", c.m.Name, c.m.UserRegs.Words)
		}
	}
}
