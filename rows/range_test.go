package rows

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestRange compares Range, over one Builder and over several, with Begin and Row: the rows, and the sets' numbers.
func TestRange(t *testing.T) {
	text := func(x *Table) string {
		var b strings.Builder
		if err := x.WriteText(&b); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	for seed := range uint64(5000) {
		rnd := rand.New(rand.NewPCG(seed, 2))
		plain := NewBuilder(arch.AMD64)
		parts := []*Builder{NewBuilder(arch.AMD64)}
		n := rnd.IntN(8)
		los := make([]int, n)
		for i := range los {
			los[i] = rnd.IntN(64)
		}
		if rnd.IntN(4) > 0 {
			slices.Sort(los)
		}
		disjoint := rnd.IntN(2) == 0
		for i, lo := range los {
			hi := lo + 1 + rnd.IntN(16)
			if disjoint && i+1 < n && los[i+1] > lo {
				hi = min(hi, los[i+1])
			}
			if rnd.IntN(3) == 0 {
				parts = append(parts, NewBuilder(arch.AMD64))
			}
			b := parts[len(parts)-1]
			plain.Begin(arch.Vaddr(lo), arch.Vaddr(hi))
			var rs []Row
			for a := lo; a < hi+2; a++ {
				if a == lo || rnd.IntN(4) == 0 {
					s := set(1 + rnd.IntN(3))
					plain.Row(arch.Vaddr(a), plain.Intern(s))
					if id := b.Intern(s); len(rs) == 0 || rs[len(rs)-1].Set != id {
						rs = append(rs, Row{arch.Vaddr(a), id})
					}
				}
			}
			b.Range(arch.Vaddr(lo), arch.Vaddr(hi), rs)
		}
		one, several := Build(plain), Build(parts...)
		if want, got := text(one), text(several); got != want {
			t.Fatalf("seed %d: %d builders:\n got %s\nwant %s", seed, len(parts), got, want)
		}
		if !slices.Equal(several.Rows, one.Rows) || len(several.Sets) != len(one.Sets) {
			t.Fatalf("seed %d: %d builders: the sets have other numbers:\n got %v\nwant %v", seed, len(parts), several.Rows, one.Rows)
		}
	}
}
