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

// TestInjectedARM64: with a link register, Go's handler pushes that register before it has the return address there. The interrupted code, which
// keeps no frame, has it back, and the stack pointer too.
func TestInjectedARM64(t *testing.T) {
	const stale = 0x400300
	for _, row := range []string{"400000  cfa=sp+16  x30=c-16  sp=c+0", "400000  cfa=sp+16  x30=c-16"} { // Go's, and one that is plain
		for _, called := range []string{"400100  cfa=sp+0  x30=s  sp=c+0", "400100  cfa=sp+16  x30=c-8"} { // without a frame, and with one
			space := worldOf(t, arch.ARM64, row, "400010  gap", called, "400200  cfa=sp+0  x30=u", "400300  gap")
			code := space.Mappings()[0].Module.Code()
			code.Injected = []Range{{0x400000, 0x400010}}
			s := snap(space, 0x400004, 0x400100, 0, 0x400204, stale, stale, 0x400204, stale)
			s.Machine, s.Known = arch.ARM64, 1<<33-1
			s.Regs[31] = stackLo
			if got, want := chain(NewWalker(0).Walk(s, nil)), "400004:start 400100:cfi 400203:cfi outermost"; got != want {
				t.Errorf("%s, %s\n got %s\nwant %s", row, called, got, want)
			}
		}
	}
}
