package rows

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// randomExpr returns an expression of operations that decode, with their numbers in their shortest form.
func randomExpr(rnd *rand.Rand) string {
	var b []byte
	for range rnd.IntN(6) {
		switch rnd.IntN(4) {
		case 0:
			b = appendBreg(b, arch.Reg(rnd.IntN(80)), rnd.Int64N(1<<40)-1<<39)
		case 1:
			b = append(b, DW_OP_lit0+byte(rnd.IntN(32)))
		default:
			codes := make([]int, 0, len(opTable))
			for c := range opTable {
				codes = append(codes, int(c))
			}
			slices.Sort(codes)
			c := byte(codes[rnd.IntN(len(codes))])
			if c == DW_OP_bregx {
				continue
			}
			b = append(b, c)
			switch k := opTable[c].arg; k {
			case opULEB:
				b = appendULEB(b, rnd.Uint64())
			case opSLEB:
				b = appendSLEB(b, int64(rnd.Uint64()))
			default:
				for range opSizes[k] {
					b = append(b, byte(rnd.Uint32()))
				}
			}
		}
	}
	return string(b)
}

// randomSet returns a Set of any kinds of rules.
func randomSet(rnd *rand.Rand, m *arch.Machine) Set {
	off := func() int64 { return int64(rnd.Uint64()) >> rnd.IntN(64) }
	reg := func() arch.Reg { return arch.Reg(rnd.IntN(100)) }
	s := Set{RA: m.RA, Flags: Flags(rnd.IntN(64) >> rnd.IntN(7))}
	if rnd.IntN(4) == 0 {
		s.RA = reg()
	}
	switch rnd.IntN(4) {
	case 0:
		s.CFA = LowerCFA(randomExpr(rnd), m)
	case 1:
		e := appendBreg(nil, reg()&31, off())
		s.CFA = LowerCFA(string(append(e, DW_OP_deref)), m)
	case 2:
	default:
		s.CFA = CFA{Kind: CFAReg, Reg: reg(), Off: off()}
	}
	for r := arch.Reg(0); r < 100; r += 1 + arch.Reg(rnd.IntN(30)) {
		x := Rule{Of: r, Kind: Kind(rnd.IntN(int(NumKinds)))}
		switch x.Kind {
		case Offset, ValOffset:
			x.Off = off()
		case Register:
			x.Reg = reg()
		case RegOffset, RegDeref:
			x.Reg, x.Off = reg()&31, off()
		case Expr, ValExpr:
			x.Expr = randomExpr(rnd)
			x = LowerRule(x)
		}
		s.Rules = append(s.Rules, x)
	}
	if s.Gap() && s.Flags == 0 {
		return Set{}
	}
	return s
}

// TestTextOfAll: a Set's text says all of it.
func TestTextOfAll(t *testing.T) {
	for seed := range uint64(5000) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		m := []*arch.Machine{arch.AMD64, arch.ARM64}[seed&1]
		s := randomSet(rnd, m)
		text := s.Text(m)
		back, err := ParseSet(text, m)
		if err != nil {
			t.Fatalf("seed %d: ParseSet(%q): %v", seed, text, err)
		}
		if !equalSets(&back, &s) {
			t.Fatalf("seed %d: %s\n got %+v\nwant %+v", seed, text, back, s)
		}
	}
}

// TestStepLeaves: a step that fails changes nothing, and one that succeeds does not touch the snapshot; it is the
// same each time.
func TestStepLeaves(t *testing.T) {
	ok := 0
	for seed := range uint64(5000) {
		rnd := rand.New(rand.NewPCG(seed, 6))
		m := []*arch.Machine{arch.AMD64, arch.ARM64}[seed&1]
		set := randomSet(rnd, m)
		if rnd.IntN(2) == 0 { // so that some succeed
			set.CFA = CFA{Kind: CFAReg, Reg: m.SP, Off: int64(8 * rnd.IntN(16))}
			set.Rules = append(slices.DeleteFunc(set.Rules, func(r Rule) bool { return r.Of >= 16 }), Rule{Of: m.RA, Kind: Offset, Off: 8})
			set.RA = m.RA
		}
		mem := &Memory{Lo: 0x1000, Bytes: make([]byte, 256)}
		for i := range mem.Bytes {
			mem.Bytes[i] = byte(rnd.Uint32())
		}
		s := start(m, 0x401000+uint64(rnd.IntN(16)), 0x1000)
		for i := range s.Snap {
			if rnd.IntN(2) == 0 {
				s.Val[i], s.InReg = 0x1000+uint64(rnd.IntN(256)), s.InReg&^(1<<i)
				s.InMem |= uint64(rnd.IntN(2)) << i
			}
			if rnd.IntN(8) == 0 {
				s.Known &^= 1 << i
			}
		}
		before := *s
		o := Step(m, &set, s, mem)
		if after := *s; o != OK {
			if after.Fault = before.Fault; after != before {
				t.Fatalf("seed %d: %s: %v, but the state has changed", seed, set.Text(m), o)
			}
			continue
		}
		ok++
		again := before
		if o := Step(m, &set, &again, mem); o != OK || !again.Equal(s) || s.Snap != before.Snap {
			t.Fatalf("seed %d: %s: another result the second time: %v", seed, set.Text(m), o)
		}
	}
	if ok < 500 {
		t.Errorf("%d steps of 5000 succeeded", ok)
	}
}

// TestStepUnknown: hostile columns and machines that cannot be walked give an outcome.
func TestStepUnknown(t *testing.T) {
	mem := &Memory{Lo: 0x1000, Bytes: make([]byte, 64)}
	set := Set{CFA: CFA{Kind: CFAReg, Reg: 7, Off: 16}, RA: 200, Rules: []Rule{{Of: 200, Kind: Offset, Off: -8}}}
	if o := Step(arch.AMD64, &set, start(arch.AMD64, 0, 0x1000), mem); o != OK {
		t.Errorf("a return address column that is no register: %v", o)
	}
	for _, em := range []uint16{4242, 0} {
		s := &State{Known: ^uint64(0)}
		if o := Step(arch.ByELF(em), &set, s, mem); o != NoRule {
			t.Errorf("machine %d: %v", em, o)
		}
	}
}

// TestOverlayOfAll compares Overlay with its definition, address by address.
func TestOverlayOfAll(t *testing.T) {
	random := func(rnd *rand.Rand) *Table {
		b := NewBuilder(arch.AMD64)
		for a := rnd.IntN(16); a < 64; a += rnd.IntN(16) {
			hi := a + 1 + rnd.IntN(16)
			b.Begin(arch.Vaddr(a), arch.Vaddr(hi))
			for ; a < hi; a += 1 + rnd.IntN(8) {
				b.Row(arch.Vaddr(a), b.Intern(set(rnd.IntN(4))))
			}
		}
		t := Build(b)
		if len(t.Rows) > 0 && rnd.IntN(4) > 0 {
			o := Origin(rnd.IntN(3) + 1)
			t = t.From(o)
			for a := int(t.Rows[0].Lo) + 1 + rnd.IntN(16); a < int(t.Rows[len(t.Rows)-1].Lo); a += 1 + rnd.IntN(16) {
				o = (o + 1 + Origin(rnd.IntN(3))) % 5
				t.Origins = append(t.Origins, OriginRange{arch.Vaddr(a), o})
			}
		}
		return t
	}
	for seed := range uint64(2000) {
		rnd := rand.New(rand.NewPCG(seed, 7))
		a, b := random(rnd), random(rnd)
		both := a.Overlay(b)
		for pc := arch.Vaddr(0); pc < 100; pc++ {
			want, from := a.At(pc), a.Origin(pc)
			if want.Gap() {
				want, from = b.At(pc), b.Origin(pc)
			}
			if got := both.Origin(pc); got != from && !want.Gap() {
				t.Fatalf("seed %d: origin at %d\n got %s\nwant %s\nof %v over %v: %v", seed, pc, got, from, a.Origins, b.Origins, both.Origins)
			}
			if got := both.At(pc); !equalSets(got, want) {
				t.Fatalf("seed %d: at %d\n got %s\nwant %s", seed, pc, got.Text(arch.AMD64), want.Text(arch.AMD64))
			}
		}
		for i, r := range both.Origins {
			if i == 0 && r.Lo != both.Rows[0].Lo || i > 0 && (r.Lo <= both.Origins[i-1].Lo || r.Origin == both.Origins[i-1].Origin) {
				t.Fatalf("seed %d: origins %v", seed, both.Origins)
			}
		}
	}
}

// reads counts what is read.
type reads struct{ n int }

func (r *reads) Read8(uint64) (uint64, bool) { r.n++; return 1, true }

// TestExprEnds: an expression that loops ends after maxExprSteps.
func TestExprEnds(t *testing.T) {
	for _, e := range []string{
		"\x2f\xfd\xff",                            // skip to itself
		"\x31\x28\xfc\xff",                        // lit1, bra back
		"\x31\x06\x13\x2f\xfa\xff",                // lit1, deref, drop, skip back
		strings.Repeat("\x31", 65),                // more than the stack holds
		strings.Repeat("\x96", maxExprSteps+1),    // too many
		"\x31" + strings.Repeat("\x12\x13", 3000), // the same
	} {
		r := &reads{}
		s := start(arch.AMD64, 0, 0)
		if _, o := Eval(arch.AMD64, e, s, &Memory{Next: r}, 0, false); o != BadExpr || r.n > maxExprSteps {
			t.Errorf("% x…: %v after %d reads", e[:min(len(e), 10)], o, r.n)
		}
	}
	r := &reads{}
	if v, o := Eval(arch.AMD64, "\x31"+strings.Repeat("\x96", maxExprSteps-1), start(arch.AMD64, 0, 0), &Memory{Next: r}, 0, false); o != OK || v != 1 {
		t.Errorf("an expression of %d operations: %d, %v", maxExprSteps, v, o)
	}
}
