package csource

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

func sleb(b []byte, v int64) []byte {
	for {
		c := byte(v & 0x7f)
		if v >>= 7; v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}

func uleb(b []byte, v uint64) []byte {
	for ; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

// numbers are those at which arithmetic has its edges.
var numbers = []int64{0, 1, 2, 7, 31, 63, 64, 65, 127, 128, 4096, 1 << 31, 1<<31 - 1, -1 << 31, 1 << 32, -1, -2, -63, -64, -65, -1 << 63, 1<<63 - 1, arenaLo + 0x8000}

// anyNumber appends an operation that pushes a number.
func anyNumber(r *rand.Rand, b []byte) []byte {
	n := numbers[r.IntN(len(numbers))]
	switch r.IntN(6) {
	case 0:
		return append(b, rows.DW_OP_lit0+byte(r.IntN(32)))
	case 1:
		return append(b, rows.DW_OP_const1s, byte(r.Uint32()))
	case 2:
		return append(b, rows.DW_OP_const2u, byte(r.Uint32()), byte(r.Uint32()))
	case 3:
		return le.AppendUint64(append(b, rows.DW_OP_const8u), uint64(n))
	case 4:
		return uleb(append(b, rows.DW_OP_constu), uint64(n))
	}
	return sleb(append(b, rows.DW_OP_consts), n)
}

var (
	binary2 = []byte{rows.DW_OP_and, rows.DW_OP_div, rows.DW_OP_minus, rows.DW_OP_mod, rows.DW_OP_mul, rows.DW_OP_or, rows.DW_OP_plus, rows.DW_OP_shl,
		rows.DW_OP_shr, rows.DW_OP_shra, rows.DW_OP_xor, rows.DW_OP_eq, rows.DW_OP_ge, rows.DW_OP_gt, rows.DW_OP_le, rows.DW_OP_lt, rows.DW_OP_ne}
	unary = []byte{rows.DW_OP_abs, rows.DW_OP_neg, rows.DW_OP_not, rows.DW_OP_deref, rows.DW_OP_dup, rows.DW_OP_nop}
	stack = []byte{rows.DW_OP_drop, rows.DW_OP_over, rows.DW_OP_swap, rows.DW_OP_rot, rows.DW_OP_dup}
)

// randomExpr makes an expression: mostly one that computes something, with branches in both directions.
func randomExpr(r *rand.Rand) string {
	var b []byte
	if r.IntN(4) > 0 {
		b = anyNumber(r, anyNumber(r, b))
	}
	for range r.IntN(14) {
		switch r.IntN(12) {
		case 0, 1:
			b = sleb(append(b, rows.DW_OP_breg0+byte(r.IntN(32))), numbers[r.IntN(len(numbers))]>>r.IntN(64))
		case 2, 3:
			b = anyNumber(r, b)
		case 4, 5, 6:
			b = append(b, binary2[r.IntN(len(binary2))])
		case 7:
			b = append(b, unary[r.IntN(len(unary))])
		case 8:
			b = append(b, stack[r.IntN(len(stack))])
		case 9:
			switch r.IntN(4) {
			case 0:
				b = append(b, rows.DW_OP_pick, byte(r.IntN(6)))
			case 1:
				b = append(b, rows.DW_OP_deref_size, byte(r.IntN(10)))
			case 2:
				b = uleb(append(b, rows.DW_OP_plus_uconst), uint64(numbers[r.IntN(len(numbers))]))
			case 3:
				b = sleb(uleb(append(b, rows.DW_OP_bregx), uint64(r.IntN(90))), int64(r.IntN(100)))
			}
		case 10:
			b = le.AppendUint16(append(b, []byte{rows.DW_OP_bra, rows.DW_OP_bra, rows.DW_OP_skip}[r.IntN(3)]), uint16(r.IntN(40)-20))
		case 11:
			if r.IntN(10) == 0 {
				b = append(b, byte(r.Uint32()))
			}
		}
	}
	return string(b)
}

func ops(b ...byte) string { return string(b) }

// nasty are expressions at the evaluator's limits, and those that compilers of C may take amiss.
var nasty = []string{
	"",
	"\xff",
	"\x31\xff",
	ops(rows.DW_OP_skip, 0xfd, 0xff), // to itself
	ops(rows.DW_OP_lit0+1, rows.DW_OP_bra, 0xfc, 0xff),                                                                                           // back for ever
	ops(rows.DW_OP_lit0+1, rows.DW_OP_skip, 0xfc, 0xff),                                                                                          // grows
	ops(rows.DW_OP_dup, rows.DW_OP_dup, rows.DW_OP_skip, 0xfb, 0xff),                                                                             // grows
	ops(rows.DW_OP_drop, rows.DW_OP_skip, 0xfc, 0xff),                                                                                            // shrinks
	ops(rows.DW_OP_lit0+9, rows.DW_OP_lit0+1, rows.DW_OP_minus, rows.DW_OP_dup, rows.DW_OP_bra, 0xfa, 0xff),                                      // counts
	ops(rows.DW_OP_const2u, 0xff, 0x03, rows.DW_OP_lit0+1, rows.DW_OP_minus, rows.DW_OP_dup, rows.DW_OP_bra, 0xfa, 0xff),                         // 1,023 times 4
	ops(rows.DW_OP_const2u, 0xff, 0x03, rows.DW_OP_lit0+1, rows.DW_OP_minus, rows.DW_OP_dup, rows.DW_OP_bra, 0xfa, 0xff, 0x96, 0x96, 0x96),       // 4,096
	ops(rows.DW_OP_const2u, 0xff, 0x03, rows.DW_OP_lit0+1, rows.DW_OP_minus, rows.DW_OP_dup, rows.DW_OP_bra, 0xfa, 0xff, 0x96, 0x96, 0x96, 0x96), // 4,097
	ops(rows.DW_OP_lit0+5, rows.DW_OP_lit0, rows.DW_OP_bra, 0x01, 0, rows.DW_OP_dup, rows.DW_OP_drop),                                            // overlaps in depth
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_lit0+8, rows.DW_OP_and, rows.DW_OP_bra, 1, 0, rows.DW_OP_lit0+3),                                       // one or no value at the end
	ops(rows.DW_OP_lit0+2, rows.DW_OP_skip, 1, 0, rows.DW_OP_const1u, rows.DW_OP_lit0+4),                                                         // into an operand
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_bra, 1, 0, rows.DW_OP_const1u, rows.DW_OP_lit0+4, rows.DW_OP_lit0+7),                                   // both
	ops(rows.DW_OP_lit0+1, rows.DW_OP_const1u, 63, rows.DW_OP_shl, rows.DW_OP_const1s, 0xff, rows.DW_OP_div),                                     // overflows
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_const1s, 0xff, rows.DW_OP_div),
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_lit0, rows.DW_OP_div),
	ops(rows.DW_OP_skip, 0, 0),
	ops(rows.DW_OP_skip, 0xff, 0x7f),
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_dup, rows.DW_OP_bra, 0, 0x80),
	ops(rows.DW_OP_lit0, rows.DW_OP_deref),
	ops(rows.DW_OP_const1u, 200, rows.DW_OP_deref_size, 4),
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_deref_size, 0),
	ops(rows.DW_OP_breg0+7, 0, rows.DW_OP_deref_size, 8, rows.DW_OP_breg0+6, 0, rows.DW_OP_deref_size, 1, rows.DW_OP_plus),
	ops(rows.DW_OP_pick, 0, rows.DW_OP_pick, 1, rows.DW_OP_pick, 2),
	ops(rows.DW_OP_lit0+1, rows.DW_OP_pick, 200),
	ops(rows.DW_OP_lit0+1, rows.DW_OP_lit0+2, rows.DW_OP_lit0+3, rows.DW_OP_rot, rows.DW_OP_minus, rows.DW_OP_mul),
	ops(rows.DW_OP_bregx, 80, 0),
	ops(rows.DW_OP_bregx, 33, 0),
	ops(rows.DW_OP_breg0+16, 1, rows.DW_OP_bregx, 32, 1),
	strings.Repeat("\x31", 64),
	strings.Repeat("\x31", 65),
	strings.Repeat("\x31", 63) + "\x14\x14\x22",
	"\x31" + strings.Repeat("\x96", maxSteps-1),
	"\x31" + strings.Repeat("\x96", maxSteps),
}

// edgeExprs apply each operation to each pair of edges.
func edgeExprs() []string {
	var out []string
	for _, op := range binary2 {
		for i, n := range numbers {
			e := sleb([]byte{rows.DW_OP_consts}, n)
			e = sleb(append(e, rows.DW_OP_consts), numbers[(i*7+int(op))%len(numbers)])
			out = append(out, string(append(e, op)))
		}
	}
	return out
}

// randomSet makes a set of any kinds of rules; a kind one often succeeds.
func randomSet(r *rand.Rand, m *arch.Machine, expr func() string) rows.Set {
	off := func() int64 {
		switch r.IntN(8) {
		case 0:
			return int64(r.Uint64())
		case 1:
			return numbers[r.IntN(len(numbers))]
		}
		return int64(r.IntN(256)-128) * 8
	}
	reg := func() arch.Reg {
		if r.IntN(8) == 0 {
			return arch.Reg(r.IntN(100))
		}
		return arch.Reg(r.IntN(33))
	}
	s := rows.Set{RA: m.RA, Flags: rows.Flags(r.IntN(1<<rows.NumFlags) >> r.IntN(rows.NumFlags+1))}
	if r.IntN(6) == 0 {
		s.RA = reg()
	}
	s.CFA = rows.CFA{Kind: rows.CFAReg, Reg: []arch.Reg{m.SP, m.FP}[r.IntN(2)], Off: int64(r.IntN(200)) * 8}
	if r.IntN(2) == 0 {
		s.CFA = rows.CFA{Kind: rows.CFAKind(r.IntN(int(rows.NumCFAKinds))), Reg: reg(), Off: off(), Off2: off(), Expr: expr()}
		if s.CFA.Kind == rows.CFAPLT && r.IntN(2) == 0 {
			s.CFA.Off2 = int64(r.IntN(20) - 2)
		}
	}
	for of := arch.Reg(r.IntN(4)); of < 100; of += 1 + arch.Reg(r.IntN(12)) {
		if of != s.RA {
			s.Rules = append(s.Rules, rows.Rule{Of: of, Kind: rows.Kind(r.IntN(int(rows.NumKinds))), Reg: reg(), Off: off(), Expr: expr()})
		}
	}
	switch r.IntN(3) {
	case 0:
		s.Rules = append(s.Rules, rows.Rule{Of: s.RA, Kind: rows.Offset, Off: -8})
	case 1:
		s.Rules = append(s.Rules, rows.Rule{Of: s.RA, Kind: rows.Kind(r.IntN(int(rows.NumKinds))), Reg: reg(), Off: off(), Expr: expr()})
	}
	if r.IntN(3) == 0 && s.RA != m.SP {
		s.Rules = append(slices.DeleteFunc(s.Rules, func(x rows.Rule) bool { return x.Of == m.SP }),
			rows.Rule{Of: m.SP, Kind: rows.Kind(r.IntN(int(rows.NumKinds))), Reg: reg(), Off: off(), Expr: expr()})
	}
	return s
}

// synthetic makes a table of rules of every kind, with expressions at every edge.
func synthetic(m *arch.Machine, seed uint64, n int) *rows.Table {
	r := rand.New(rand.NewPCG(seed, 1))
	b := rows.NewBuilder(m)
	at := arch.Vaddr(seed << 28)
	add := func(s rows.Set) {
		slices.SortFunc(s.Rules, func(a, b rows.Rule) int { return int(a.Of) - int(b.Of) })
		b.Begin(at, at+5)
		b.Row(at, b.Intern(s))
		at += arch.Vaddr(5 + r.IntN(2)*r.IntN(300))
	}
	plain := rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: 16}
	for _, e := range nasty {
		add(rows.Set{RA: m.RA, CFA: plain, Rules: []rows.Rule{{Of: 12, Kind: rows.Expr, Expr: e}, {Of: m.RA, Kind: rows.Offset, Off: -8}}})
		if len(e) < 200 {
			add(rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: e}, Rules: []rows.Rule{{Of: m.RA, Kind: rows.ValExpr, Expr: e}}})
			add(rows.Set{RA: m.RA, CFA: plain, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Expr, Expr: e}, {Of: m.RA + 1, Kind: rows.ValExpr, Expr: e}}})
		}
	}
	edges := edgeExprs()
	for i := 0; i < len(edges); i += 8 { // eight registers at once
		s := rows.Set{RA: m.RA, CFA: plain, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -8}}}
		for of, e := range edges[i:min(i+8, len(edges))] {
			s.Rules = append(s.Rules, rows.Rule{Of: arch.Reg(of), Kind: rows.ValExpr, Expr: e})
		}
		add(s)
	}
	for k := range rows.NumKinds { // each kind for a saved register, the stack pointer, and the return address
		for _, of := range []arch.Reg{3, m.FP, m.SP, m.RA} {
			s := rows.Set{RA: m.RA, CFA: plain, Rules: []rows.Rule{{Of: of, Kind: k, Reg: m.FP, Off: -8, Expr: "\x77\x08"}}}
			if of != m.RA {
				s.Rules = append(s.Rules, rows.Rule{Of: m.RA, Kind: rows.Offset, Off: -8})
			}
			add(s)
			s.Flags = rows.Signal | rows.RASigned
			add(s)
		}
	}
	exprs := make([]string, n)
	for i := range exprs {
		exprs[i] = randomExpr(r)
	}
	for range n {
		add(randomSet(r, m, func() string { return exprs[r.IntN(len(exprs))] }))
	}
	return rows.Build(b)
}

// TestSynthetic holds rules of all kinds against rows.Step, with the compilers watching for undefined behaviour.
func TestSynthetic(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "clang-19")
	for i, m := range []*arch.Machine{arch.AMD64, arch.ARM64} {
		ref := synthetic(m, uint64(i+1), oracle.Few(50, 150))
		for d := range numDerefs {
			t.Run(fmt.Sprint(m.Name, " ", d), func(t *testing.T) {
				agree(t, ref, Options{Deref: d}, [2][numDerefs]build{{gccSan, clangSan, gcc2}, {clang1, gccSan, clangSan}}[i][d])
			})
		}
		agree(t, ref, Options{Layout: Switch, Deref: Slice}, gcc0)
	}
	b := rows.NewBuilder(arch.AMD64)
	b.Begin(0, 1)
	b.Row(0, b.Intern(rows.Set{RA: 16, CFA: rows.CFA{Kind: rows.CFAExpr, Expr: "\x77\x00\x12\x28\x06\x00" + strings.Repeat("\x96", maxSteps)}, // 4,093 operations, or too many
		Rules: []rows.Rule{{Of: 16, Kind: rows.ValOffset}}}))
	agree(t, rows.Build(b), Options{Deref: Slice}, gcc0)
	unknown := *arch.MIPS64
	unknown.StepKnown = false
	agree(t, synthetic(&unknown, 3, 10), Options{Deref: Slice}, gcc0)
	agree(t, rows.Build(rows.NewBuilder(arch.AMD64)), Options{Deref: Slice}, clang1)
}

// TestSameAgain: the same table gives the same bytes.
func TestSameAgain(t *testing.T) {
	ref := synthetic(arch.ARM64, 1, 100)
	for l := range numLayouts {
		var a, b bytes.Buffer
		for _, w := range []*bytes.Buffer{&a, &b} {
			if err := Emit(w, ref, Options{Layout: l}); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("layout %v: other bytes the second time", l)
		}
	}
}
