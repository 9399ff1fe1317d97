package native

import (
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// prove emits a table with options, loads it, and runs it against the reference.
func prove(t testing.TB, ref *rows.Table, o Options) {
	t.Helper()
	c := emitted(t, ref, o)
	defer c.Close()
	if err := Verify(c, ref, 1); err != nil {
		t.Fatalf("%v %v: %v", o.Layout, o.Deref, err)
	}
}

// eachMachine calls f for each machine whose code can be executed here. Code for another one is interpreted.
func eachMachine(t *testing.T, f func(t *testing.T, m *arch.Machine)) {
	for _, m := range arch.Machines() {
		if callable(m) || targets[m].interpreted {
			t.Run(m.Name, func(t *testing.T) { f(t, m) })
		}
	}
}

// TestRandom proves tables with rules of every kind, sense and nonsense.
func TestRandom(t *testing.T) {
	oracle.Long(t)
	eachMachine(t, testRandom)
}

func testRandom(t *testing.T, m *arch.Machine) {
	r := rand.New(rand.NewPCG(1, 2))
	n := 40
	if m == arch.ARM64 {
		n = 10 // interpreted, or under qemu-user: slower
	}
	if testing.Short() {
		n /= 5
	}
	for range n {
		ref := rowstest.Table(r, m, r.IntN(200))
		for l := range Inline {
			for d := range numDerefs {
				prove(t, ref, Options{Layout: l, Deref: d})
			}
		}
	}
	for range 1 + n/8 {
		ref := rowstest.Table(r, m, r.IntN(20))
		for d := range numDerefs {
			prove(t, ref, Options{Layout: Inline, Deref: d})
		}
	}
}

// oneSet returns a table of one row.
func oneSet(m *arch.Machine, s rows.Set) *rows.Table {
	b := rows.NewBuilder(m)
	b.Begin(0x1000, 0x2000)
	b.Row(0x1000, b.Intern(s))
	return rows.Build(b)
}

// TestExpressions proves many expressions, as the CFA and as registers.
func TestExpressions(t *testing.T) {
	oracle.Long(t)
	eachMachine(t, testExpressions)
}

func testExpressions(t *testing.T, m *arch.Machine) {
	r := rand.New(rand.NewPCG(3, 4))
	n := 12
	if m == arch.ARM64 {
		n = 4
	}
	for range n {
		b := rows.NewBuilder(m)
		b.Begin(0x1000, 0x3000)
		for i := range arch.Vaddr(200) {
			s := rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: 16}, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -8}}}
			switch r.IntN(3) {
			case 0:
				s.CFA = rows.CFA{Kind: rows.CFAExpr, Expr: rowstest.Expr(r, r.IntN(8) == 0)}
			case 1:
				s.Rules = append([]rows.Rule{{Of: 3, Kind: rows.Expr, Expr: rowstest.Expr(r, r.IntN(8) == 0)}, {Of: 6, Kind: rows.ValExpr, Expr: rowstest.Expr(r, r.IntN(8) == 0)}}, s.Rules...)
			case 2:
				s.Rules[0] = rows.Rule{Of: m.RA, Kind: rows.Expr, Expr: rowstest.Expr(r, r.IntN(8) == 0)}
			}
			b.Row(0x1000+i, b.Intern(s))
		}
		ref := rows.Build(b)
		for d := range numDerefs {
			prove(t, ref, Options{Deref: d})
		}
	}
}

// TestLoops proves a rule whose expressions do as many operations as they may, and each reads as many words as it can.
func TestLoops(t *testing.T) {
	oracle.Long(t)
	eachMachine(t, func(t *testing.T, m *arch.Machine) {
		loop := string([]byte{rows.DW_OP_breg0 + byte(m.SP)}) + "\x00\x23\x08\x12\x06\x13\x2f\xf8\xff" // the words above the stack pointer
		s := rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: 16}, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -8}}}
		for r := arch.Reg(7); r > 0; r-- {
			if r != m.SP {
				s.Rules = append([]rows.Rule{{Of: r, Kind: rows.ValExpr, Expr: loop}}, s.Rules...)
			}
		}
		prove(t, oneSet(m, s), Options{Deref: Slice})
	})
}

// FuzzExpression proves single expressions.
func FuzzExpression(f *testing.F) {
	r := rand.New(rand.NewPCG(5, 6))
	for range 20 {
		f.Add([]byte(rowstest.Expr(r, r.IntN(8) == 0)))
	}
	f.Fuzz(func(t *testing.T, e []byte) {
		if len(e) > 200 {
			return
		}
		for _, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
			ref := oneSet(m, rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: string(e)},
				Rules: []rows.Rule{{Of: 3, Kind: rows.Expr, Expr: string(e)}, {Of: m.RA, Kind: rows.ValExpr, Expr: string(e)}}})
			for d := range numDerefs {
				prove(t, ref, Options{Deref: d})
			}
		}
	})
}
