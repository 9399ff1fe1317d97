package compact

import (
	"fmt"
	"runtime"
	"slices"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Verify proves that t means what ref says: the same rows; both ends of each row select its rule; each
// rule is the set's, and does what rows.Step does on adversarial states of registers and memory, which
// come from seed. The error can be pasted into an issue.
func Verify(t *Table, ref *rows.Table, seed uint64) error {
	v := &verifier{t: t, ref: ref, ids: make([]uint32, len(ref.Sets)), seen: make([]bool, len(ref.Sets)), trials: rows.NewTrials(seed)}
	if t.machine != ref.Machine {
		return fmt.Errorf("compact table: for %s, not %s", t.machine.Name, ref.Machine.Name)
	}
	if err := v.ends(); err != nil {
		return err
	}
	if err := v.rows(); err != nil {
		return err
	}
	return v.sets()
}

// sets compares all rules, on all processors where there are many.
func (v *verifier) sets() error {
	var ids []rows.SetID
	for id, seen := range v.seen {
		if seen {
			ids = append(ids, rows.SetID(id))
		}
	}
	n := max(1, min(runtime.GOMAXPROCS(0), len(ids)/64))
	errs := make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		part := ids[len(ids)*i/n : len(ids)*(i+1)/n]
		run := func() {
			for _, id := range part {
				if errs[i] = v.set(id); errs[i] != nil {
					return
				}
			}
		}
		if i == n-1 {
			run()
		} else {
			wg.Go(run)
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

type verifier struct {
	t      *Table
	ref    *rows.Table
	ids    []uint32 // the rule of each set
	seen   []bool
	trials *rows.Trials
}

// ends looks up the first and the last address of each row.
func (v *verifier) ends() error {
	if len(v.ref.Rows) == 0 || v.ref.Rows[0].Lo > 0 {
		if id, ok := v.t.Find(0); ok {
			return fmt.Errorf("Find(0)\n got  rule %d\n want none", id)
		}
	}
	for i, r := range v.ref.Rows {
		hi := v.ref.Hi(i)
		if i+1 < len(v.ref.Rows) {
			hi--
		}
		if i == 0 && r.Lo > 0 {
			if id, ok := v.t.Find(r.Lo - 1); ok {
				return fmt.Errorf("Find(%#x)\n got  rule %d\n want none (before the first row)", uint64(r.Lo-1), id)
			}
		}
		for _, pc := range [2]arch.Vaddr{r.Lo, hi} {
			id, ok := v.t.Find(pc)
			switch {
			case ok != (r.Set != rows.GapID), ok && v.seen[r.Set] && id != v.ids[r.Set]:
				return v.mismatch(pc, id, ok, i)
			case ok && !v.seen[r.Set]:
				v.seen[r.Set], v.ids[r.Set] = true, id
			}
		}
	}
	return nil
}

func (v *verifier) mismatch(pc arch.Vaddr, id uint32, ok bool, row int) error {
	got := v.t.Set(id)
	r := v.ref.Rows[row]
	return fmt.Errorf("Find(%#x)\n got  rule %d, %v: %s\n want %s (row %d, [%#x, %#x))", uint64(pc), id, ok, got.Text(v.ref.Machine),
		v.ref.Sets[r.Set].Text(v.ref.Machine), row, uint64(r.Lo), uint64(v.ref.Hi(row)))
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
func (v *verifier) set(sid rows.SetID) error {
	id := v.ids[sid]
	mach := v.ref.Machine
	ref := &v.ref.Sets[sid]
	got, want := v.t.Set(id), v.t.sh.normal(ref, nil)
	if !equalSets(&got, &want) {
		return fmt.Errorf("rule %d\n got  %s\n want %s\n (%#v, not %#v)", id, got.Text(mach), want.Text(mach), got, want)
	}
	if g, w := v.t.Signal(id), ref.Flags&rows.Signal != 0; g != w {
		return fmt.Errorf("Signal(%d)\n got  %v\n want %v (%s)", id, g, w, ref.Text(mach))
	}
	return v.trials.Check(mach, ref, id, v.t.Apply)
}

func equalSets(a, b *rows.Set) bool {
	return a.CFA == b.CFA && a.RA == b.RA && a.Flags == b.Flags &&
		(slices.Equal(a.Rules, b.Rules))
}
