package format

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/compactunwind"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// CompactUnwind is the name of Apple's compact unwind information.
const CompactUnwind = "__unwind_info"

// compactUnwindSource returns the source that a Mach-O file's compact unwind information is; nil where there is none. It comes behind DWARF, whose
// rows hold at every address. Linkers leave out the FDEs of functions that have an encoding, and functions without an encoding have an FDE.
func compactUnwindSource(img *module.Image) (*Source, func(io.Writer), error) {
	t, err := compactunwind.Open(img)
	if t == nil {
		return nil, nil, err
	}
	return &Source{Name: CompactUnwind, Size: t.Size(), Bounds: t.Bounds, Rows: func() (*rows.Table, []error) {
		x, damage := t.Rows()
		return x.From(rows.FromCompactUnwind), damage
	}}, t.Sum, nil
}

// swapsRegisters says whether an image's __eh_frame has its own numbers of registers: on i386, Apple's compilers number the stack pointer 5 and the frame
// pointer 4 there, and in __debug_frame as everybody does (LLVM: X86RegisterInfo.td, the flavours of i386; GCC: config/i386/darwin.h).
func swapsRegisters(img *module.Image) bool {
	return img.Format() == "Mach-O" && img.Machine().ELF == arch.EM_386
}

// swapped returns t with these two registers exchanged. Rows with an expression are left out, and an error counts them.
func swapped(t *rows.Table, errs []error) (*rows.Table, []error) {
	swap := func(r arch.Reg) arch.Reg {
		if r == 4 || r == 5 {
			return 9 - r
		}
		return r
	}
	b := rows.NewBuilder(t.Machine)
	ids := make([]rows.SetID, len(t.Sets))
	lost := make([]bool, len(t.Sets))
	for i, s := range t.Sets {
		if !s.Gap() {
			s.CFA.Reg = swap(s.CFA.Reg)
		}
		s.Rules = slices.Clone(s.Rules)
		lost[i] = s.CFA.Expr != ""
		for j := range s.Rules {
			r := &s.Rules[j]
			lost[i] = lost[i] || r.Expr != ""
			r.Of, r.Reg = swap(r.Of), swap(r.Reg)
		}
		slices.SortFunc(s.Rules, func(a, b rows.Rule) int { return cmp.Compare(a.Of, b.Of) })
		ids[i] = b.Intern(s)
	}
	n := 0
	for i, r := range t.Rows {
		if lost[r.Set] {
			n++
		} else if r.Set != rows.GapID {
			b.Range(r.Lo, t.Hi(i), []rows.Row{{Lo: r.Lo, Set: ids[r.Set]}})
		}
	}
	if n > 0 {
		errs = append(errs, fmt.Errorf("__TEXT,__eh_frame: %d rows have expressions, whose registers i386 numbers in its own way: %w", n, module.ErrUnsupported))
	}
	return rows.Build(b), errs
}
