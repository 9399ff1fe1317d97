package module

import (
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestRanges: an address is in the range that has it, and in none between two or behind the last.
func TestRanges(t *testing.T) {
	list := Ranges{{0x10, 0x20}, {0x30, 0x40}, {0x40, 0x41}}
	for v, want := range map[arch.Vaddr]arch.Vaddr{0: 0, 0x10: 0x20, 0x1f: 0x20, 0x20: 0, 0x2f: 0, 0x30: 0x40, 0x40: 0x41, 0x41: 0} {
		if got := list.End(v); got != want {
			t.Errorf("End(%#x) = %#x, want %#x", uint64(v), uint64(got), uint64(want))
		}
	}
	if got := Ranges(nil).End(1); got != 0 {
		t.Errorf("without ranges, End(1) = %#x, want 0", uint64(got))
	}
}

// TestRelocErrors: the first relocation in a part of a section is found.
func TestRelocErrors(t *testing.T) {
	list := RelocErrors{{Off: 4}, {Off: 8}, {Off: 8, Type: "second"}, {Off: 20}}
	for _, c := range []struct{ lo, hi, want uint64 }{{0, 4, 0}, {0, 5, 4}, {4, 8, 4}, {5, 9, 8}, {9, 20, 0}, {9, 21, 20}, {21, 100, 0}} {
		got := list.In(c.lo, c.hi)
		if (got == nil) != (c.want == 0) || got != nil && (got.Off != c.want || got.Type != "") {
			t.Errorf("In(%d, %d) = %+v, want one at %d", c.lo, c.hi, got, c.want)
		}
	}
}
