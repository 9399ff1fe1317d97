// Package rowstest makes tables, sets and expressions of every kind for tests: those that compilers make, and nonsense. Check checks tables that others make.
package rowstest

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Check fails where a table is not as rows.Table promises.
func Check(t testing.TB, x *rows.Table) {
	t.Helper()
	for i, r := range x.Rows {
		switch {
		case i > 0 && (r.Lo <= x.Rows[i-1].Lo || r.Set == x.Rows[i-1].Set), i == 0 && r.Set == rows.GapID, int(r.Set) >= len(x.Sets):
			t.Fatalf("row %d, %+v, follows %+v", i, r, x.Rows[max(i-1, 0)])
		case i == len(x.Rows)-1 && r.Set != rows.GapID:
			t.Fatalf("the last row is no gap: %+v", r)
		}
	}
}

// Table makes a table of up to n functions from r, with rules of every kind.
func Table(r *rand.Rand, mach *arch.Machine, n int) *rows.Table {
	b := rows.NewBuilder(mach)
	at := uint64(r.IntN(5)) * 0x1000
	if r.IntN(4) == 0 {
		at += 1 << 32
	}
	if r.IntN(16) == 0 {
		at = -uint64(r.IntN(1 << 20))
	}
	unit := uint64(1)
	if r.IntN(3) == 0 {
		unit = 4
	}
	sets := make([]rows.SetID, 1+r.IntN(600))
	for i := range sets {
		sets[i] = b.Intern(Set(r, mach))
	}
	for range n {
		switch r.IntN(12) {
		case 0:
			at += uint64(r.IntN(1<<10)) * unit
		case 1:
			if r.IntN(8) == 0 {
				at += uint64(r.IntN(1<<24)) * unit
			}
		}
		size := uint64(1+r.IntN(700)) * unit
		b.Begin(arch.Vaddr(at), arch.Vaddr(at+size))
		for p := at; p < at+size; p += uint64(1+r.IntN(1+r.IntN(60))) * unit {
			b.Row(arch.Vaddr(p), sets[r.IntN(1+r.IntN(len(sets)))])
		}
		at += size
	}
	t := rows.Build(b)
	if len(t.Rows) > 0 && r.IntN(2) == 0 {
		o := rows.Origin(1 + r.IntN(8))
		t = t.From(o)
		for i := 1 + r.IntN(40); i+1 < len(t.Rows); i += 1 + r.IntN(40) {
			o = (o + 1 + rows.Origin(r.IntN(5))) % 7
			t.Origins = append(t.Origins, rows.OriginRange{Lo: t.Rows[i].Lo, Origin: o})
		}
	}
	return t
}

// sideBySide returns where registers of a frame are saved as compilers for a machine that saves many do it: one behind the other, and vector
// registers in a run, up or down. Some frames are large. It returns nil for other frames, of which there are some.
func sideBySide(r *rand.Rand, mach *arch.Machine, nonsense bool, cfa *rows.CFA) map[arch.Reg]int64 {
	if mach.Vectors == 0 || nonsense || r.IntN(4) == 0 {
		return nil
	}
	at := map[arch.Reg]int64{}
	low := -8 * int64(r.IntN(300))
	if r.IntN(4) == 0 {
		cfa.Off = 16 * int64(r.IntN(20_000))
		low = -cfa.Off + 8*int64(r.IntN(300))
	}
	saves := append(slices.Clone(mach.CalleeSaved), mach.RA)
	n := len(saves) - 1 - mach.Vectors
	pos := low
	for _, i := range r.Perm(n + 1) {
		if i == n {
			i = len(saves) - 1
		}
		if r.IntN(3) != 0 {
			at[saves[i]] = pos
			pos += 8 * int64(1+r.IntN(8)/7)
		}
	}
	if r.IntN(2) == 0 {
		pos, step := low+8*int64(r.IntN(22)-9), int64(8-16*r.IntN(2))
		for _, reg := range saves[n : n+mach.Vectors] {
			if r.IntN(2) == 0 {
				at[reg] = pos
			}
			pos += step
		}
	}
	return at
}

// Set makes a set: often one that a compiler would make, sometimes nonsense.
func Set(r *rand.Rand, mach *arch.Machine) rows.Set {
	off := func() int64 {
		switch r.IntN(8) {
		case 0:
			return int64(r.Uint64())
		case 1:
			return int64(int32(r.Uint32()))
		case 2:
			return int64(r.IntN(4096)) - 2048
		}
		return int64(r.IntN(256)-128) * 8
	}
	reg := func() arch.Reg {
		if r.IntN(8) == 0 {
			return arch.Reg(r.IntN(100))
		}
		return arch.Reg(r.IntN(33))
	}
	s := rows.Set{RA: mach.RA}
	s.CFA = rows.CFA{Kind: rows.CFAReg, Reg: []arch.Reg{mach.SP, mach.FP}[r.IntN(2)], Off: int64(r.IntN(200)) * 8}
	nonsense := r.IntN(4) == 0
	if nonsense {
		s.CFA = rows.CFA{Kind: rows.CFAKind(r.IntN(int(rows.NumCFAKinds))), Reg: reg(), Off: off(), Off2: off(), Expr: Expr(r, r.IntN(200) == 0)}
		s.Flags = rows.Flags(r.IntN(1<<rows.NumFlags)) &^ rows.SyncOnly // of which no step knows
		if r.IntN(4) == 0 {
			if s.RA = reg(); !mach.RAInReg && mach.Slot(s.RA) == arch.NoSlot {
				s.RA = mach.RA
			}
		}
	}
	side := sideBySide(r, mach, nonsense, &s.CFA)
	for of := range arch.Reg(80) {
		rule := rows.Rule{Of: of, Kind: rows.Offset, Off: -8 * int64(1+r.IntN(100))}
		switch {
		case side != nil:
			off, ok := side[of]
			if !ok {
				continue
			}
			rule.Off = off
		case of == mach.RA:
			if rule.Off = -8; mach.RAInReg && r.IntN(2) == 0 {
				continue
			}
		case nonsense && r.IntN(4) != 0 || !nonsense && r.IntN(3) != 0:
			continue
		case !nonsense && (mach.SavedSlots()>>(mach.Slot(of)&63)&1 == 0 || of == mach.SP):
			continue
		}
		if nonsense {
			rule = rows.Rule{Of: of, Kind: rows.Kind(r.IntN(int(rows.NumKinds))), Reg: reg(), Off: off(), Expr: Expr(r, r.IntN(200) == 0)}
		}
		s.Rules = append(s.Rules, rule)
	}
	return s
}

// Expr makes an expression: often one that can be evaluated, sometimes bytes that are none. With jumps, it may have
// loops without an end, which take long to give up, and jumps into operations.
func Expr(r *rand.Rand, jumps bool) string {
	var b []byte
	if r.IntN(16) == 0 {
		for range r.IntN(12) {
			b = append(b, byte(r.Uint32()))
		}
		return string(b)
	}
	for range r.IntN(14) {
		b = op(r, b, jumps)
	}
	return string(b)
}

var plain = []byte{
	rows.DW_OP_deref, rows.DW_OP_dup, rows.DW_OP_drop, rows.DW_OP_over, rows.DW_OP_swap, rows.DW_OP_rot, rows.DW_OP_abs, rows.DW_OP_and,
	rows.DW_OP_div, rows.DW_OP_minus, rows.DW_OP_mod, rows.DW_OP_mul, rows.DW_OP_neg, rows.DW_OP_not, rows.DW_OP_or, rows.DW_OP_plus,
	rows.DW_OP_shl, rows.DW_OP_shr, rows.DW_OP_shra, rows.DW_OP_xor, rows.DW_OP_eq, rows.DW_OP_ge, rows.DW_OP_gt, rows.DW_OP_le,
	rows.DW_OP_lt, rows.DW_OP_ne, rows.DW_OP_nop,
}

func op(r *rand.Rand, b []byte, jumps bool) []byte {
	switch n := r.IntN(12); {
	case n < 3: // a register
		return append(b, rows.DW_OP_breg0+byte(r.IntN(20)), byte(r.IntN(128)))
	case n == 3:
		return append(b, rows.DW_OP_lit0+byte(r.IntN(32)))
	case n == 4:
		return append(b, rows.DW_OP_bregx, byte(r.IntN(80)), byte(r.IntN(128)))
	case n == 5:
		b = append(b, [...]byte{rows.DW_OP_const8u, rows.DW_OP_addr, rows.DW_OP_const8s}[r.IntN(3)])
		return binary.LittleEndian.AppendUint64(b, r.Uint64()>>r.IntN(64))
	case n == 6:
		b = append(b, [...]byte{rows.DW_OP_const4s, rows.DW_OP_const4u}[r.IntN(2)])
		return binary.LittleEndian.AppendUint32(b, r.Uint32())
	case n == 7:
		return append(b, [...]byte{rows.DW_OP_const1u, rows.DW_OP_const1s, rows.DW_OP_pick, rows.DW_OP_deref_size}[r.IntN(4)], byte(r.IntN(10)))
	case n == 8:
		return append(b, [...]byte{rows.DW_OP_plus_uconst, rows.DW_OP_constu, rows.DW_OP_consts}[r.IntN(3)], 0x80|byte(r.IntN(128)), byte(r.IntN(128)))
	case n < 10 && jumps:
		b = append(b, [...]byte{rows.DW_OP_bra, rows.DW_OP_skip}[r.IntN(2)])
		return binary.LittleEndian.AppendUint16(b, uint16(r.IntN(24)-12))
	}
	return append(b, plain[r.IntN(len(plain))])
}
