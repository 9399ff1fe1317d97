package rows

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

func init() { checkPasses = true }

// set returns a Set that differs for each n.
func set(n int) Set {
	return Set{CFA: CFA{Kind: CFAReg, Reg: 7, Off: int64(8 * n)}, RA: 16, Rules: []Rule{{Of: 16, Kind: Offset, Off: -8}}}
}

// TestOverlaps compares the sweep with the definition, address by address, on random nests of ranges.
func TestOverlaps(t *testing.T) {
	const top = 64
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		b := NewBuilder(arch.AMD64)
		type rng struct {
			lo, hi int
			at     [top]SetID
		}
		var all []rng
		for range rnd.IntN(8) {
			r := rng{lo: rnd.IntN(1 + rnd.IntN(top)), hi: rnd.IntN(top + 1)} // low starts, so that some are equal
			b.Begin(arch.Vaddr(r.lo), arch.Vaddr(r.hi))
			id := GapID
			for a := r.lo; a < r.hi; a++ {
				if a == r.lo || rnd.IntN(4) == 0 {
					id = b.Intern(set(1 + rnd.IntN(3)))
					b.Row(arch.Vaddr(a), id)
				}
				r.at[a] = id
			}
			all = append(all, r)
		}
		want := [top]*Set{}
		for a := range want {
			want[a] = &Set{}
			best := -1
			for _, r := range all {
				if r.lo <= a && a < r.hi && r.lo > best {
					best, want[a] = r.lo, b.Set(r.at[a])
				}
			}
		}
		text := make([]string, top)
		for a := range want {
			text[a] = want[a].Text(arch.AMD64)
		}
		tab := Build(b)
		for a := range want {
			if got := tab.At(arch.Vaddr(a)).Text(arch.AMD64); got != text[a] {
				t.Fatalf("seed %d: At(%d)\n got %s\nwant %s\nranges %+v", seed, a, got, text[a], all)
			}
		}
	}
}

func TestOverlay(t *testing.T) {
	parse := func(lines ...string) *Table {
		tab, err := ParseText(strings.NewReader("machine x86_64\n" + strings.Join(lines, "\n")))
		if err != nil {
			t.Fatal(err)
		}
		return tab
	}
	a := parse("10  cfa=rsp+8", "20  gap", "30  cfa=rsp+16", "40  gap")
	b := parse("18  cfa=rsp+80", "28  cfa=rsp+88", "38  cfa=rsp+96", "48  gap")
	var got strings.Builder
	if err := a.Overlay(b).WriteText(&got); err != nil {
		t.Fatal(err)
	}
	want := "machine x86_64\n10  cfa=rsp+8\n20  cfa=rsp+80\n28  cfa=rsp+88\n30  cfa=rsp+16\n40  cfa=rsp+96\n48  gap\n"
	if got.String() != want {
		t.Errorf("Overlay\n got %s\nwant %s", got.String(), want)
	}
}

func TestRowOrder(t *testing.T) {
	b := NewBuilder(arch.AMD64)
	one, two := b.Intern(set(1)), b.Intern(set(2))
	b.Begin(16, 32)
	b.Row(8, one)  // below the range
	b.Row(16, one) // superseded
	b.Row(16, two)
	b.Row(20, one)
	b.Row(24, one) // says nothing new
	b.Row(32, two) // beyond it
	b.Begin(40, 48)
	b.Row(40, one)
	b.Drop()
	var got strings.Builder
	if err := Build(b).WriteText(&got); err != nil {
		t.Fatal(err)
	}
	want := "machine x86_64\n10  cfa=rsp+16  ra=c-8\n14  cfa=rsp+8  ra=c-8\n20  gap\n"
	if got.String() != want {
		t.Errorf("got %s\nwant %s", got.String(), want)
	}
}
