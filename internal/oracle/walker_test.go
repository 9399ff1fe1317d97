package oracle

import (
	"bytes"
	"encoding/binary"
	"os/exec"
	"testing"
)

// testimony reads what c/witness.c writes: snapshots of one space, and what is known of their chains.
func testimony(t *testing.T) (maps []Map, snaps []Snapshot, known [][]uint64) {
	out, err := exec.Command(Program(t, "witness")).Output()
	if err != nil {
		t.Fatal(err)
	}
	r := bytes.NewReader(out)
	u64 := func() (v uint64) {
		if err := binary.Read(r, binary.LittleEndian, &v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	data := func(n uint64) []byte {
		b := make([]byte, n)
		if _, err := r.Read(b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for range u64() {
		m := Map{Lo: u64(), Hi: u64(), Off: u64()}
		n := u64()
		m.Path = string(data((n + 7) &^ 7)[:n])
		maps = append(maps, m)
	}
	for r.Len() > 0 {
		s := Snapshot{Space: 1}
		for i := range s.Regs {
			s.Regs[i] = u64()
		}
		s.Base = u64()
		s.Stack = data(u64())
		k := make([]uint64, u64())
		for i := range k {
			k[i] = u64()
		}
		snaps, known = append(snaps, s), append(known, k)
	}
	return maps, snaps, known
}

// contains says whether all of part occur in whole, in their order.
func contains(whole, part []uint64) bool {
	for _, v := range whole {
		if len(part) > 0 && v == part[0] {
			part = part[1:]
		}
	}
	return len(part) == 0
}

// TestWalkers holds the judges themselves against a process that knows its stack.
func TestWalkers(t *testing.T) {
	Long(t)
	for _, start := range []func(testing.TB) *Walker{Dwfl, Libunwind, LibunwindUncached, LibunwindTuned} {
		w := start(t)
		t.Run(w.Name, func(t *testing.T) {
			maps, snaps, known := testimony(t)
			if len(snaps) != 3 {
				t.Fatalf("%d points, want 3", len(snaps))
			}
			if err := w.Map(1, maps...); err != nil {
				t.Fatal(err)
			}
			chains, err := w.Walk(snaps)
			if err != nil {
				t.Fatal(err)
			}
			for i, c := range chains {
				if !contains(c.PC, known[i]) || !c.Exact[0] {
					t.Errorf("point %d: got %#x, stop %q\nwant, among others, %#x", i, c.PC, c.Stop, known[i])
				}
				if n := len(c.PC) - len(known[i]); n < 2 {
					t.Errorf("point %d: %d frames besides those known, want 2: %#x, stop %q", i, n, c.PC, c.Stop)
				}
			}
			frames, took, err := w.Time(snaps, 3)
			if err != nil {
				t.Fatal(err)
			}
			if want := len(chains[0].PC) + len(chains[1].PC) + len(chains[2].PC); frames != want || len(took) != 3 {
				t.Errorf("Time: %d frames in %v, want %d in three", frames, took, want)
			}
		})
	}
}
