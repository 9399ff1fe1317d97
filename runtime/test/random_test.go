package test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// A place is a file that is mapped for random walks, and program counters in it where something changes.
type place struct {
	m   oracle.Map
	pcs []uint64 // run-time addresses
}

// places maps some files and lists the starts of their rows.
func places(t *testing.T) (all []place) {
	at := uint64(0x7f0000000000)
	for _, path := range []string{"/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/x86_64-linux-gnu/libm.so.6",
		"/usr/lib/x86_64-linux-gnu/libcrypto.so.3", "/usr/lib/x86_64-linux-gnu/libstdc++.so.6"} {
		img := openImage(t, path)
		if img == nil {
			continue
		}
		ref := ehRows(t, path)
		for _, s := range img.Segments() {
			if s.Kind != module.Loaded || s.Perm&module.Exec == 0 {
				continue
			}
			lo, off := at+uint64(s.Vaddr)&^0xfff, s.Off&^0xfff
			hi := (at + uint64(s.Vaddr) + s.MemSize + 0xfff) &^ 0xfff
			p := place{m: oracle.Map{Lo: lo, Hi: hi, Off: off, Path: path}}
			for _, r := range ref.Rows {
				p.pcs = append(p.pcs, at+uint64(r.Lo))
			}
			for range 2000 {
				p.pcs = append(p.pcs, lo+rand.New(rand.NewPCG(1, at)).Uint64N(hi-lo))
			}
			if plt := img.Section(".plt"); plt != nil {
				for a := plt.Addr; a < plt.Addr+arch.Vaddr(plt.Size); a += 3 {
					p.pcs = append(p.pcs, at+uint64(a))
				}
			}
			all = append(all, p)
		}
		at += 0x10000000
	}
	return all
}

// snapshots makes stacks that are full of program counters and of addresses in the stack, so that walks go far.
func snapshots(r *rand.Rand, all []place, n int) (out []oracle.Snapshot) {
	pc := func() uint64 {
		p := &all[r.IntN(len(all))]
		return p.pcs[r.IntN(len(p.pcs))] + uint64(r.IntN(3))
	}
	for range n {
		base := uint64(0x7ffc00000000)
		s := oracle.Snapshot{Base: base, Stack: make([]byte, 512+8*r.IntN(512))}
		here := func() uint64 { return base + uint64(r.IntN(len(s.Stack)+64))&^7 }
		value := func() uint64 {
			switch r.IntN(12) {
			case 0:
				return r.Uint64()
			case 1:
				return uint64(r.IntN(3))
			case 2, 3, 4:
				return here()
			}
			return pc()
		}
		for i := 0; i < len(s.Stack); i += 8 {
			binary.LittleEndian.PutUint64(s.Stack[i:], value())
		}
		for i := range s.Regs {
			s.Regs[i] = value()
		}
		s.Regs[6], s.Regs[7], s.Regs[16] = here(), base, pc()
		if r.IntN(20) == 0 {
			s.Regs[16] = value()
		}
		out = append(out, s)
	}
	return out
}

// unset says whether stock goes on from where the chains part by a variable that it has not set. After a step by the
// frame pointer it has lost the stack pointer, and for a program counter that cannot be read it takes what lies in the
// variable for it.
func unset(a, b []uint64, all []place, s *oracle.Snapshot) bool {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	code := func(pc uint64) bool {
		return slices.ContainsFunc(all, func(p place) bool { return p.m.Lo <= pc && pc < p.m.Hi })
	}
	for i, blind := 0, false; i < n; i++ {
		if blind && !code(a[i]) && a[i]-s.Base+8 > uint64(len(s.Stack)) {
			return true
		}
		blind = blind || !code(a[i]-1)
	}
	return false
}

// walked returns the chains of snapshots, by a walker that knows the mappings of all places.
func walked(t *testing.T, w *oracle.Walker, all []place, snaps []oracle.Snapshot) []oracle.Chain {
	t.Helper()
	for _, p := range all {
		if err := w.Map(0, p.m); err != nil {
			t.Fatal(err)
		}
	}
	chains, err := w.Walk(snaps)
	if err != nil {
		t.Fatal(err)
	}
	return chains
}

// TestStrictRandom: in strict mode, walks through stacks of random contents are those of Debian's library, without its
// cache, to the frame and to the reason of their end.
func TestStrictRandom(t *testing.T) {
	all := places(t)
	snaps := snapshots(rand.New(rand.NewPCG(9, 10)), all, 30_000)
	walk := func(snaps []oracle.Snapshot) []oracle.Chain {
		return walked(t, oracle.LibunwindUncached(t), all, snaps)
	}
	t.Setenv("LD_LIBRARY_PATH", "")
	stock := walk(snaps)
	t.Setenv("LD_LIBRARY_PATH", dropIn(t, "gcc"))
	t.Setenv("UNSPOOL_STRICT", "1")
	ours := walk(snaps)
	t.Setenv("LD_LIBRARY_PATH", "")
	frames, bad, undecided := 0, map[string]int{}, 0
	same := func(a, b *oracle.Chain) bool {
		return slices.Equal(a.PC, b.PC) && slices.Equal(a.Exact, b.Exact) && a.Stop == b.Stop
	}
	for i := range stock {
		a, b := &ours[i], &stock[i]
		frames += len(b.PC)
		if same(a, b) {
			continue
		}
		if unset(a.PC, b.PC, all, &snaps[i]) {
			undecided++
			continue
		}
		why := fmt.Sprintf("stop %q, stock %q", a.Stop, b.Stop)
		if bad[why]++; bad[why] <= 2 {
			t.Errorf("stack %d: %s\n got  %#x %v\n want %#x %v\n regs %#x", i, why, a.PC, a.Exact, b.PC, b.Exact, snaps[i].Regs)
		}
	}
	t.Logf("%d stacks, %d frames; differences: %v; %d more in which stock reads an unset variable", len(stock), frames, bad, undecided)
}
