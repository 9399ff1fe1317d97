package compact

import (
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Verify proves t equal to ref: the same rows, of the same origins; both ends of each row select its rule; each rule is the set's, and does what rows.Step does on
// adversarial states of registers and memory, which come from seed. The error can be pasted into an issue.
func Verify(t *Table, ref *rows.Table, seed uint64) error {
	if t.machine.ELF != ref.Machine.ELF {
		return fmt.Errorf("compact table: for %s, not %s", t.machine.Name, ref.Machine.Name)
	}
	v := &verifier{t: t, ref: ref, trials: rows.SharedTrials(seed)}
	var err error
	if v.ids, err = rows.Prove(ref, t.Find, v.set); err != nil {
		return err
	}
	if got, want := slices.Collect(t.Origins()), ref.Origins; !slices.Equal(got, want) {
		return fmt.Errorf("origins\n got  %v\n want %v", got, want)
	}
	return v.rows()
}

type verifier struct {
	t      *Table
	ref    *rows.Table
	ids    []uint32 // the rule of each set
	trials *rows.Trials
}

// rows compares the two lists. Neighbours that have one rule are one row.
func (v *verifier) rows() (err error) {
	i, last := 0, uint32(0)
	next := func() (rows.Row, bool) {
		for ; i < len(v.ref.Rows); i++ {
			r := v.ref.Rows[i]
			if id := v.ids[r.Set]; id != last {
				last = id
				i++
				return r, true
			}
		}
		return rows.Row{}, false
	}
	v.t.Rows(func(lo arch.Vaddr, id uint32, gap bool) bool {
		r, ok := next()
		if !ok || r.Lo != lo || v.ids[r.Set] != id || gap != (r.Set == rows.GapID) {
			err = fmt.Errorf("row %d\n got  %#x rule %d, gap %v\n want %#x rule %d, %v", i-1, uint64(lo), id, gap, uint64(r.Lo), v.ids[r.Set], ok)
			return false
		}
		return true
	})
	if r, ok := next(); ok && err == nil {
		err = fmt.Errorf("row %d\n got  none\n want %#x rule %d", i-1, uint64(r.Lo), v.ids[r.Set])
	}
	return err
}

// set compares the rule for a set with it, by content and by what it does.
func (v *verifier) set(sid rows.SetID, id uint32) error {
	mach := v.ref.Machine
	ref := &v.ref.Sets[sid]
	got, want := v.t.Set(id), v.t.sh.normal(ref, nil)
	if !equalSets(&got, &want) {
		return fmt.Errorf("rule %d\n got  %s\n want %s\n (%#v, not %#v)", id, got.Text(mach), want.Text(mach), got, want)
	}
	if g, w := v.t.Signal(id), ref.Flags&rows.Signal != 0; g != w {
		return fmt.Errorf("Signal(%d)\n got  %v\n want %v (%s)", id, g, w, ref.Text(mach))
	}
	if id != 0 && !v.t.isWide(id) {
		return v.trials.CheckBytes(mach, ref, id, v.t.rule(id), v.t.Apply)
	}
	return v.trials.Check(mach, ref, id, v.t.Apply)
}

func equalSets(a, b *rows.Set) bool {
	return a.CFA == b.CFA && a.RA == b.RA && a.Flags == b.Flags &&
		(slices.Equal(a.Rules, b.Rules))
}
