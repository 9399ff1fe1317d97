package compact

import (
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// TestSigned: rules of all forms strip a signed return address to the bits that the memory says, and read through tags.
func TestSigned(t *testing.T) {
	ref, err := rows.ParseText(strings.NewReader("machine aarch64\n400000  cfa=sp+32  x29=c-32  ra=c-24  ra-signed\n" +
		"400100  cfa=DW_OP_breg19 X19+0, DW_OP_deref, DW_OP_plus_uconst 16  x29=c-16  ra=c-8  ra-signed\n400200  cfa=sp+0  ra-signed-pc\n400300  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	b, err := Emit(ref)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Load(b)
	if err != nil {
		t.Fatal(err)
	}
	const tag, lo, ra, sign = 0xa5 << 56, 0x10000, 0xa_8000_0040_0101, 0xf05 << 52
	for _, at := range []arch.Vaddr{0x400000, 0x400100, 0x400200} {
		for addresses, want := range map[uint64]uint64{0: ra & arch.AddressMask, 1<<48 - 1: ra & arch.AddressMask, 1<<52 - 1: ra} {
			mem := rows.Memory{Next: words{lo: lo, lo + 8: ra | sign, lo + 16: lo}, Addresses: addresses, Tags: true}
			var ours, theirs rows.State
			for _, s := range []*rows.State{&ours, &theirs} {
				s.Start(uint64(at), 1<<33-1)
				s.Snap[31], s.Snap[30], s.Snap[19] = lo, ra|sign, lo+16|tag
			}
			id, ok := c.Find(at)
			if o := c.Apply(id, &ours, &mem); !ok || o != rows.OK || ours.PC != want {
				t.Errorf("%#x, %#x: %v, PC %#x, want %#x", at, addresses, o, ours.PC, want)
			}
			if o := rows.Step(arch.ARM64, ref.At(at), &theirs, &mem); o != rows.OK || !ours.Equal(&theirs) {
				t.Errorf("%#x, %#x: rows.Step comes to %v, PC %#x", at, addresses, o, theirs.PC)
			}
		}
	}
}

// words is memory of these words.
type words map[uint64]uint64

func (w words) Read8(addr uint64) (uint64, bool) { v, ok := w[addr]; return v, ok }
