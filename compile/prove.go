package compile

import (
	"fmt"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/rows"
)

// A Proof has the proven counts of a file.
type Proof struct{ Rows, Rules, Damaged int }

// Prove proves that the compact table of a file is equal to its unwind information, and with code that machine code is, in each layout and
// with each way of reading memory. The error of a file without unwind information is ErrNoRows.
func Prove(path string, code bool) (Proof, error) {
	img, f, err := Open(path)
	if err != nil {
		return Proof{}, err
	}
	defer img.Close()
	ref, damage := f.Rows()
	if len(ref.Rows) == 0 {
		return Proof{}, ErrNoRows
	}
	b, err := compact.Emit(ref)
	if err != nil {
		return Proof{}, fmt.Errorf("%s: %w", path, err)
	}
	t, err := compact.Load(b)
	if err == nil {
		err = compact.Verify(t, ref, 1)
	}
	if err == nil && code {
		err = proveNative(ref)
	}
	if err != nil {
		return Proof{}, fmt.Errorf("%s: %w", path, err)
	}
	s := t.Stats()
	return Proof{s.Rows, s.Rules, len(damage)}, nil
}

func proveNative(ref *rows.Table) error {
	for _, l := range []native.Layout{native.Page, native.Tree} {
		for _, d := range []native.Deref{native.Self, native.Callback, native.Slice} {
			b, err := native.Emit(ref, native.Options{Layout: l, Deref: d})
			if err != nil {
				return err
			}
			c, err := native.Load(b)
			if err != nil {
				return err
			}
			err = native.Verify(c, ref, 1)
			c.Close()
			if err != nil {
				return fmt.Errorf("%v, %v: %w", l, d, err)
			}
		}
	}
	return nil
}
