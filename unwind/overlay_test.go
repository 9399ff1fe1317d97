package unwind

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestOverlay: maps that are laid at once make the same space as one after the other.
func TestOverlay(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mods := []*Module{{Path: "a"}, {Path: "b"}, nil}
	for range 20_000 {
		some := func(n int) (maps []Mapping) {
			for range r.IntN(n) {
				lo := arch.Addr(r.IntN(40))
				maps = append(maps, Mapping{Lo: lo, Hi: lo + arch.Addr(r.IntN(12)), Off: r.Uint64N(100), Module: mods[r.IntN(3)]})
			}
			return maps
		}
		lay := func(s *Space, maps []Mapping) *Space {
			for _, m := range maps {
				if m.Module == nil {
					s = s.Without(m.Lo, m.Hi)
				} else {
					s = s.With(m)
				}
			}
			return s
		}
		base := lay(NewSpace(), some(8))
		maps := some(8)
		want, got := lay(base, maps), base.Overlay(maps)
		if !slices.Equal(want.Mappings(), got.Mappings()) {
			t.Fatalf("%v\nover %v\n got %v\nwant %v", maps, base.Mappings(), got.Mappings(), want.Mappings())
		}
	}
}
