package format

import (
	"fmt"
	"slices"

	"github.com/unspool/unspool/format/dwarf"
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
	u.handlers = func(yield func(*Handler, *Exceptions) bool) []error { return handlers(img, t, yield) }
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

// A Handler is what Windows calls for a function when an exception goes through it.
type Handler = pe.Handler

// The kinds of what is done about an exception in a Handler's scopes.
const (
	Except       = pe.Except
	Finally      = pe.Finally
	CatchCxx     = pe.Catch
	CleanupCxx   = pe.Cleanup
	TerminateCxx = pe.Terminate
)

// WindowsHandlers calls yield with the functions that Windows calls a handler for, by address, until it returns false. The exception table is that of GCC's and
// LLVM's personality routines, or nil. It returns what could not be read.
func (u *Unwind) WindowsHandlers(yield func(*Handler, *Exceptions) bool) []error {
	if u.handlers == nil {
		return nil
	}
	return u.handlers(yield)
}

func handlers(img *module.Image, t *pe.Table, yield func(*Handler, *Exceptions) bool) (errs []error) {
	in := dwarf.Sections{Machine: img.Machine(), Order: img.Order(), AddrSize: int(img.Machine().WordSize()), Memory: img.At}
	if !img.Linked() {
		in.Place = img.Place
	}
	// Each section of its own: object files have thousands, and linkers put them where they like.
	frames, sections := map[string]*dwarf.Frames{}, map[string]*module.Section{}
	for i := range img.Sections() {
		sections[img.Sections()[i].Name] = &img.Sections()[i]
	}
	within := func(name string) *dwarf.Frames {
		f := frames[name]
		if f == nil {
			in := in
			if s := sections[name]; s != nil {
				if b, bad, err := img.Relocate(s); err == nil {
					in.Exceptions = []dwarf.Section{{Name: s.Name, Addr: s.Addr, Data: b, Unapplied: bad}}
				}
			}
			f = dwarf.New(in)
			frames[name] = f
		}
		return f
	}
	left, failed, more := 1<<18+4*int(img.Reach()), []error(nil), 0
	errs = t.Handlers(func(h *pe.Handler) bool {
		var x *Exceptions
		if h.LSDA {
			var err error
			fn := dwarf.FDE{Lo: h.Lo, Hi: h.Hi, LSDA: h.Data, HasLSDA: true}
			if x, err = within(h.Section).ReadLSDA(fn, h.Addr, &left); err != nil {
				if len(failed) < maxFailed {
					failed = append(failed, err)
				} else {
					more++
				}
				return true
			}
		}
		return yield(h, x)
	})
	if more > 0 {
		failed = append(failed, fmt.Errorf("%d more exception tables: %w", more, dwarf.ErrMalformed))
	}
	return append(errs, failed...)
}

// maxFailed bounds the errors of exception tables; another one counts the rest.
const maxFailed = 1000
