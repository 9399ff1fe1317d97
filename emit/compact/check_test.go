package compact

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows/rowstest"
)

// TestCheckRows: checkRows, which looks at eight rows at once, minds the same rows as checkGranule, which looks at them one by one.
func TestCheckRows(t *testing.T) {
	r := rand.New(rand.NewPCG(24, 1))
	wrong, right := 0, 0
	for i, ref := range []func() ([]byte, error){
		func() ([]byte, error) { return Emit(rowstest.Table(r, arch.AMD64, 40)) },
		func() ([]byte, error) { return Emit(rowstest.Table(r, arch.ARM64, 40)) },
		func() ([]byte, error) { return Emit(manyRules(arch.AMD64, 240)) },
		func() ([]byte, error) { return Emit(manyRules(arch.AMD64, 300)) }, // has escapes
	} {
		b, err := ref()
		if err != nil {
			t.Fatal(err)
		}
		good, err := Load(b)
		if err != nil {
			t.Fatal(err)
		}
		check := func(what string) {
			bad, nesc := 0, 0
			for i := range good.nspans {
				s := good.span(i)
				for g := range s.lastGranule() + 1 {
					blk, at := good.block(uint64(s.granule)+g, s.region+uint32(g>>(regionBits-granuleBits)))
					if err := good.checkGranule(int(at), len(blk)/2, &nesc); err != nil {
						bad++
					}
				}
			}
			if err := good.checkRows(); bad > 0 && err == nil {
				t.Fatalf("table %d, %s: %d granules are bad, and checkRows minds none", i, what, bad)
			} else if what == "as made" && err != nil {
				t.Fatalf("table %d: %v", i, err)
			}
			if bad > 0 {
				wrong++
			} else {
				right++
			}
		}
		check("as made")
		whole := good.body
		for range 4000 {
			good.body = bytes.Clone(whole)
			at := r.IntN(len(whole) - rowsPad)
			good.body[at] += byte(1 + r.IntN(255))
			check("a byte changed")
		}
	}
	if wrong < 1000 || right < 1000 {
		t.Errorf("%d changes are errors, %d are not: too few of one kind", wrong, right)
	}
}
