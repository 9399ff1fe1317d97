package compact

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/rows/rowstest"
)

// TestSlots holds the slots that Apply has as constants against arch, and that tables of x86-64 are applied by them.
func TestSlots(t *testing.T) {
	m := arch.AMD64
	if m.Slot(m.SP) != sixSP || m.Slot(m.RA) != sixRA {
		t.Errorf("the stack pointer has slot %d, want %d; the return address has slot %d, want %d", m.Slot(m.SP), sixSP, m.Slot(m.RA), sixRA)
	}
	if got := string(shapeOf(m).slots); got != sixSlots {
		t.Errorf("the saves of x86-64 have slots %x, not %x", got, sixSlots)
	}
	if tab := emit(t, rows.Build(rows.NewBuilder(m))); !tab.six {
		t.Errorf("tables of x86-64 are applied by the loop: slots %x, want %x; stack pointer in slot %d, want %d; scale %d, want 8; return address in a register %v, want false",
			tab.sh.slots, sixSlots, tab.sp, sixSP, tab.sh.scale, m.RAInReg)
	}
}

// TestAnyMachine makes tables for machines with other saves than today's: so many that a mask has one, two, four and eight bytes, in units
// of four bytes, with a return address that a call pushes and one in a register. The C reader agrees.
func TestAnyMachine(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "cc")
	upTo := func(m *arch.Machine, n int) (saved []arch.Reg) {
		for r := arch.Reg(0); len(saved) < n; r++ {
			if r != m.SP && r != m.RA && m.Slot(r) != arch.NoSlot {
				saved = append(saved, r)
			}
		}
		return saved
	}
	r := rand.New(rand.NewPCG(11, 12))
	var refs []*rows.Table
	var tables []*Table
	for _, c := range []struct {
		base               *arch.Machine
		saves, scale       int
		big                bool
		wantSize, wantMask int
	}{
		{arch.AMD64, 0, 4, false, 16, 1}, {arch.AMD64, 6, 4, false, 16, 1}, {arch.AMD64, 7, 4, false, 32, 1}, {arch.AMD64, 8, 4, false, 32, 2},
		{arch.AMD64, 15, 4, true, 32, 2}, {arch.ARM64, 3, 4, false, 16, 1}, {arch.ARM64, 15, 8, true, 32, 2}, {arch.ARM64, 16, 4, false, 32, 4},
		{arch.ARM64, 31, 4, false, 64, 4}, {arch.ARM64, 32, 4, false, 64, 8}, {arch.ARM64, 40, 8, false, 64, 8},
	} {
		m := arch.Like(c.base, upTo(c.base, c.saves), c.scale)
		m.BigEndian = c.big
		ref := rowstest.Table(r, m, 40)
		// In units of four bytes, half of the places are no multiples of eight.
		b := rows.NewBuilder(m)
		b.Begin(0x1000, 0x1100)
		for i := range 64 {
			s := rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: int64(4 * i)}}
			for k, reg := range shapeOf(m).saves {
				if reg == m.RA && !m.RAInReg || (i>>(k%6))&1 != 0 {
					s.Rules = append(s.Rules, rows.Rule{Of: reg, Kind: rows.Offset, Off: int64(c.scale * (i - k - 60))})
				}
			}
			slices.SortFunc(s.Rules, func(a, b rows.Rule) int { return int(a.Of) - int(b.Of) })
			b.Row(0x1000+arch.Vaddr(4*i), b.Intern(s))
		}
		for i, ref := range []*rows.Table{ref, rows.Build(b)} {
			bytes, err := Emit(ref)
			if err != nil {
				t.Fatal(err)
			}
			ct, err := loadFor(bytes, func(uint16) *arch.Machine { return m })
			if err == nil {
				err = Verify(ct, ref, 3)
			}
			if err != nil {
				t.Fatalf("%s, %d saves of %d bytes: %v", m.Name, c.saves, c.scale, err)
			}
			if ct.sh.size != c.wantSize || ct.sh.mask != c.wantMask || int(bytes[hdrRuleSize]) != c.wantSize || bytes[hdrTraits]&traitBigEndian != 0 != c.big {
				t.Errorf("%s, %d saves of %d bytes: rules of %d bytes with masks of %d, traits %#x; want %d, %d, big-endian %v",
					m.Name, c.saves, c.scale, ct.sh.size, ct.sh.mask, bytes[hdrTraits], c.wantSize, c.wantMask, c.big)
			}
			if s := ct.Stats(); i == 1 && s.Wide > 0 {
				t.Errorf("%s, %d saves of %d bytes: %d of %d rules do not fit", m.Name, c.saves, c.scale, s.Wide, s.Rules)
			}
			if _, err := Load(bytes); err == nil {
				t.Errorf("%s, %d saves of %d bytes: taken for a table of %s", m.Name, c.saves, c.scale, c.base.Name)
			}
			refs, tables = append(refs, ref), append(tables, ct)
		}
	}
	askC(t, refs, tables)
}

// TestVariants: the tables of machines that share a number are loaded as those of the right one.
func TestVariants(t *testing.T) {
	seen := map[*arch.Machine]bool{}
	for _, m := range arch.MIPS.Variants() {
		b := rows.NewBuilder(m)
		b.Range(0x1000, 0x1010, []rows.Row{{Lo: 0x1000, Set: b.Intern(rows.Set{RA: m.RA, CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: 32},
			Rules: []rows.Rule{{Of: 16, Kind: rows.Offset, Off: -16}, {Of: m.RA, Kind: rows.Offset, Off: -8}}})}})
		ref := rows.Build(b)
		bytes, err := Emit(ref)
		if err != nil {
			t.Fatal(err)
		}
		ct, err := Load(bytes)
		if err != nil {
			t.Fatal(err)
		}
		if ct.machine != m || seen[m] {
			t.Errorf("a table of %s is loaded as one of %s", m.Name, ct.machine.Name)
		}
		if err := Verify(ct, ref, 3); err != nil {
			t.Errorf("%s: %v", m.Name, err)
		}
		seen[m] = true
	}
	if len(seen) != 6 {
		t.Errorf("%d machines", len(seen))
	}
}
