package profile

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSortSpots compares sortSpots with the standard library's stable sort, for offsets that differ in few bytes, in all, and not at all.
func TestSortSpots(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, n := range []int{0, 1, 255, 256, 257, 5000} {
		for _, mask := range []uint64{0, 0xff, 0xfff0, 0xff00ff00, 1<<40 - 1, ^uint64(0)} {
			s := make([]spot, n)
			for i := range s {
				s[i] = spot{0x1234_5678_9abc_def0&^mask | r.Uint64()&mask, uint32(i)}
			}
			want := slices.Clone(s)
			slices.SortStableFunc(want, func(a, b spot) int { return cmp.Compare(a.off, b.off) })
			if got := sortSpots(s, make([]spot, n)); !slices.Equal(got, want) {
				t.Errorf("%d offsets that differ in %#x:\n got %x\nwant %x", n, mask, got, want)
			}
		}
	}
}
