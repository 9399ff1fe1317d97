package unwind

import (
	"testing"

	"github.com/unspool/unspool/arch"
)

// The caller of an injected function has an exact PC: here it begins a row.
func TestInjected(t *testing.T) {
	for _, row := range []string{"400000  cfa=rsp+8  ra=c-8", "400000  cfa=rsp+8  ra=[DW_OP_breg7 RSP+0]"} { // the first is plain
		space, code := world(t, row, "400100  cfa=rsp+8  ra=c-8", "400110  cfa=rsp+16  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap")
		code.Injected = []Range{{0x400000, 0x400010}}
		s := snap(space, 0x400000, 0x400110, 0xbad, 0x400201)
		if got, want := chain(NewWalker(0).Walk(s, nil)), "400000:start 400110:cfi 400200:cfi outermost"; got != want {
			t.Errorf("%s\n got %s\nwant %s", row, got, want)
		}
	}
}

// Where it is nowhere, what it has called is found by this stack, whatever stack was walked before.
func TestInjectedNowhere(t *testing.T) {
	for _, row := range []string{"400000  cfa=rsp+8  ra=c-8", "400000  cfa=rsp+8  ra=[DW_OP_breg7 RSP+0]"} {
		space, code := world(t, row, "400100  cfa=rsp+8  ra=c-8", "400200  cfa=rsp+8  ra=u", "400300  gap")
		code.Injected = []Range{{0x400000, 0x400010}}
		withText(code, map[arch.Vaddr]string{0x400210: call})
		w := NewWalker(0)
		for _, before := range []uint64{0x400215, 0x400201} {
			for ra, want := range map[uint64]string{0x400215: "400000:start 0:cfi 400214:call outermost", 0x400201: "400000:start bad-return"} {
				w.Walk(snap(space, 0, before), nil)
				if got := chain(w.Walk(snap(space, 0x400000, 0, ra), nil)); got != want {
					t.Errorf("%s, after %#x\n got %s\nwant %s", row, before, got, want)
				}
			}
		}
	}
}
