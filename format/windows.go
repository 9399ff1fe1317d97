package format

import (
	"slices"

	"github.com/unspool/unspool/format/pe"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The names of sources.
const (
	PData = ".pdata" // of Windows, in whatever section
	Leaf  = "leaf"   // no entry of .pdata: such functions leave the stack alone
)

// windows adds what Windows unwinds by. Its directory comes first, for the reason that .eh_frame comes first elsewhere: programs unwind by it.
// Go's programs unwind by their own table, and their directory has one frame for each whole function: there, it fills gaps. The rule for code without an entry comes last. It is a demand on compilers, which hand-written code may break, so each table that knows
// better wins.
func (u *Unwind) windows(img *module.Image) {
	t := pe.Open(img)
	if t == nil {
		return
	}
	u.sums = append(u.sums, t.Sum)
	at := 0
	if slices.ContainsFunc(u.Sources, func(s Source) bool { return s.Name == PCLNTab }) {
		at = len(u.Sources)
	}
	u.Sources = slices.Insert(u.Sources, at, Source{
		Name: PData, Size: t.Size(), Bounds: t.Bounds,
		Rows: func() (*rows.Table, []error) {
			r, errs := t.Rows()
			return r.From(rows.FromWindows), errs
		},
	})
	u.Sources = append(u.Sources, Source{
		Name: Leaf,
		Rows: func() (*rows.Table, []error) { return t.Leaves().From(rows.Synthesised), nil },
	})
}
