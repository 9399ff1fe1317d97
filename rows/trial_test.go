package rows

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestCheckBytes: a rule that was found to be right is not tried again; another set, rule or machine is, and so is what was wrong.
func TestCheckBytes(t *testing.T) {
	sets := []Set{
		{CFA: CFA{Kind: CFAReg, Reg: arch.AMD64.SP, Off: 8}, RA: arch.AMD64.RA, Rules: []Rule{{Of: arch.AMD64.RA, Kind: Offset, Off: -8}}},
		{CFA: CFA{Kind: CFAReg, Reg: arch.AMD64.SP, Off: 16}, RA: arch.AMD64.RA, Rules: []Rule{{Of: arch.AMD64.RA, Kind: Offset, Off: -8}}},
	}
	calls := 0
	trials := NewTrials(3)
	check := func(set int, rule string, does int) error {
		return trials.CheckBytes(arch.AMD64, &sets[set], 0, []byte(rule), func(_ uint32, s *State, m *Memory) Outcome {
			calls++
			return Step(arch.AMD64, &sets[does], s, m)
		})
	}
	for i, x := range []struct {
		set, does int
		rule      string
		ok, tried bool
	}{
		{0, 0, "a", true, true}, {0, 0, "a", true, false}, {0, 0, "b", true, true}, {1, 1, "a", true, true}, {1, 1, "a", true, false},
		{0, 1, "c", false, true}, {0, 1, "c", false, true}, {1, 0, "b", false, true},
	} {
		calls = 0
		if err := check(x.set, x.rule, x.does); (err == nil) != x.ok || (calls > 0) != x.tried {
			t.Errorf("check %d: %v, after %d trials, want right %v, tried %v", i, err, calls, x.ok, x.tried)
		}
	}
	if a, b, c := SharedTrials(5), SharedTrials(5), SharedTrials(6); a != b || a == c {
		t.Errorf("SharedTrials(5) is %p, then %p, want the same; SharedTrials(6) is %p, want another", a, b, c)
	}
}

// TestProofText: sets and rules that differ are written differently.
func TestProofText(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	small := func() int64 { return int64(r.IntN(3)) }
	text := func() string { return string(bytes.Repeat([]byte{2}, r.IntN(3))) }
	known := map[string]string{}
	for range 20000 {
		s := Set{CFA: CFA{Kind: CFAKind(small()), Reg: arch.Reg(small()), Off: small() - 1, Off2: small(), Expr: text()}, RA: arch.Reg(small()), Flags: Flags(small())}
		for range r.IntN(3) {
			s.Rules = append(s.Rules, Rule{Of: arch.Reg(small()), Kind: Kind(small()), Reg: arch.Reg(small()), Off: small(), Expr: text()})
		}
		rule := text()
		key := string(appendProof(nil, &s, []byte(rule)))
		full := fmt.Sprintf("%#v %q", s, rule)
		if was, ok := known[key]; ok && was != full {
			t.Fatalf("one text\n of   %s\n and  %s", was, full)
		}
		known[key] = full
	}
}
