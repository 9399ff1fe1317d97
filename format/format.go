// Package format gives all unwind information of an image, in order of precedence, whatever its formats. The packages below read one format
// each, from bytes to rows. Only this package decides which formats are read, and which one wins.
package format

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/format/pclntab"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The names of sources.
const (
	EHFrame    = ".eh_frame"    // loaded with the program
	DebugFrame = ".debug_frame" // for debuggers
	PCLNTab    = "pclntab"      // of Go's run time, in whatever section
)

// A Source is one kind of unwind information of an image. Nothing is read before somebody asks for it.
type Source struct {
	Name string
	Size uint64 // bytes, after decompression; an upper bound where the end is not known

	// Spare says that an earlier source is made from this one, and says the same. Unwind.Rows reads a spare source by its name only.
	Spare bool

	// Rows makes the table of all functions, anew with each call. It says its origin. Each entry that could not be read is missing in the table and is an error.
	Rows func() (*rows.Table, []error)

	// Bounds returns the range of the function, or of a part of one, that has an address; nil where the source does not tell.
	Bounds func(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool)
}

// Unwind is the unwind information of an image, which must stay open as long as it is used. It is safe for concurrent use.
type Unwind struct {
	Machine *arch.Machine

	// Sources are in order of precedence: rows of a later source hold only where no earlier one has any.
	Sources []Source

	sums      []func(io.Writer)   // write all that rows are made of
	sections  []rows.SectionStart // of a file that is not linked
	indirect  func() bool
	hdr       uint64
	entries   func(yield func(Entry) bool)
	loaded    func(yield func(Entry) bool) // those of .eh_frame
	except    func(yield func(*Exceptions) bool) []dwarf.Damage
	unindexed func(yield func(lo, hi arch.Vaddr) bool)
	handlers  func(yield func(*Handler, *Exceptions) bool) []error // of Windows; nil elsewhere
}

// An Entry is a CIE or an FDE; an Instruction is one of an entry's call frame instructions. They are for those who count and show them.
type (
	Entry       = dwarf.Entry
	Instruction = dwarf.Instruction
)

// Exceptions are where exceptions go on in a function.
type Exceptions = dwarf.Exceptions

// The kinds of a landing pad's actions.
const (
	Cleanup = dwarf.Cleanup
	Catch   = dwarf.Catch
	Filter  = dwarf.Filter
)

// Open returns the unwind information of an image. An image without any has no Sources. With an error, it returns the part that could be
// read. The error is of .eh_frame and .debug_frame: a source of another format that cannot be read has damage instead of rows.
//
// .eh_frame wins: the program itself unwinds by it. .debug_frame fills its gaps. The linker makes .debug_frame of Go's table, in fewer bytes.
// So Go's table is spare beside it. Formats of few registers come behind these. Arm's tables, Apple's and MIPS's come last: their rows hold at calls only.
func Open(img *module.Image) (*Unwind, error) {
	d, err := dwarf.Open(img)
	sizes := d.Sizes()
	u := &Unwind{Machine: d.Machine(), indirect: d.Indirect, hdr: sizes.EHFrameHdr, sums: []func(io.Writer){d.Sum}}
	for _, s := range img.Starts() {
		u.sections = append(u.sections, rows.SectionStart{Lo: s.Addr, Name: s.Name})
	}
	if len(u.Machine.Variants()) > 1 { // the number in the sums is that of all of them
		u.sums = append(u.sums, func(w io.Writer) { io.WriteString(w, u.Machine.Name) })
	}
	u.entries = func(yield func(Entry) bool) { d.Entries(dwarf.Both, yield) }
	u.loaded = func(yield func(Entry) bool) { d.Entries(dwarf.EHFrame, yield) }
	u.except = d.Exceptions
	u.unindexed = d.Unindexed
	for _, s := range []struct {
		name   string
		which  dwarf.Which
		size   uint64
		origin rows.Origin
	}{{EHFrame, dwarf.EHFrame, sizes.EHFrame, rows.FromEHFrame}, {DebugFrame, dwarf.DebugFrame, sizes.DebugFrame, rows.FromDebugFrame}} {
		if s.size == 0 {
			continue
		}
		u.Sources = append(u.Sources, Source{
			Name: s.name, Size: s.size,
			Rows: func() (*rows.Table, []error) {
				t, damage := d.Build(s.which)
				errs := asErrors(damage)
				if s.which == dwarf.EHFrame && swapsRegisters(img) {
					t, errs = swapped(t, errs)
				}
				return t.From(s.origin), errs
			},
			Bounds: func(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) { return d.Bounds(s.which, pc) },
		})
	}
	if g := pclntab.Open(img); g != nil {
		spare := sizes.DebugFrame > 0
		if !spare {
			u.sums = append(u.sums, g.Sum)
		}
		u.Sources = append(u.Sources, Source{
			Name: PCLNTab, Size: uint64(len(g.Bytes)), Spare: spare,
			Rows: func() (*rows.Table, []error) { return g.Rows().From(rows.FromPCLNTab), nil },
		})
	}
	for _, f := range []struct {
		name string
		open func(*module.Image) (*Source, func(io.Writer), error)
	}{{SFrame, sframeSource}, {ARMExidx, ehabiSource}, {ORC, orcSource}, {CompactUnwind, compactUnwindSource}, {MIPSCompact, mipsSource}} {
		x, sum, bad := f.open(img)
		if x == nil && bad != nil {
			x = &Source{Name: f.name, Rows: func() (*rows.Table, []error) { return rows.Build(rows.NewBuilder(u.Machine)), nil }}
		}
		if x == nil {
			continue
		}
		if bad != nil { // an unreadable source takes nothing from the others
			read := x.Rows
			x.Rows = func() (*rows.Table, []error) {
				t, damage := read()
				return t, append(damage, bad)
			}
		}
		if u.Sources = append(u.Sources, *x); sum != nil {
			u.sums = append(u.sums, sum)
		}
	}
	u.windows(img)
	return u, err
}

func asErrors(damage []dwarf.Damage) (errs []error) {
	for _, d := range damage {
		errs = append(errs, d)
	}
	return errs
}

// Rows makes the table of all functions, of the sources with the given names; of all but spare ones where there are none. Each entry that could not be
// read is an error.
func (u *Unwind) Rows(names ...string) (*rows.Table, []error) {
	t, damage := rows.Build(rows.NewBuilder(u.Machine)), []error(nil)
	for _, s := range u.Sources {
		if len(names) == 0 && !s.Spare || slices.Contains(names, s.Name) {
			more, d := s.Rows()
			t, damage = t.Overlay(more), append(damage, d...)
		}
	}
	if u.sections != nil {
		t = t.In(u.sections)
	}
	return t, damage
}

// Bounds returns the range of the function, or of a part of one, that has an address, as far as unwind information tells. It is for
// naming code without symbols.
func (u *Unwind) Bounds(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	for _, s := range u.Sources {
		if s.Bounds != nil {
			if lo, hi, ok = s.Bounds(pc); ok {
				return lo, hi, true
			}
		}
	}
	return 0, 0, false
}

// Size returns the size of a source, in bytes; 0 if the image lacks it.
func (u *Unwind) Size(name string) uint64 {
	for _, s := range u.Sources {
		if s.Name == name {
			return s.Size
		}
	}
	return 0
}

// IndexSize returns the size of .eh_frame_hdr, the search table of .eh_frame.
func (u *Unwind) IndexSize() uint64 { return u.hdr }

// Unindexed calls yield with the range of each FDE that .eh_frame_hdr does not lead to, by address, until it returns false.
func (u *Unwind) Unindexed(yield func(lo, hi arch.Vaddr) bool) { u.unindexed(yield) }

// Key is a hash of all that rows are made of, but what an indirect pointer leads to: Indirect says whether rows that were made depend on one.
func (u *Unwind) Key() string {
	h := sha256.New()
	for _, sum := range u.sums {
		sum(h)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// Indirect says whether rows that were made depend on bytes of the image that Key does not cover (DW_EH_PE_indirect).
func (u *Unwind) Indirect() bool { return u.indirect() }

// Entries calls yield with the entries of .eh_frame and .debug_frame that can be read, in file order, until it returns false.
func (u *Unwind) Entries(yield func(Entry) bool) { u.entries(yield) }

// Handlers returns the functions, or parts of functions, that .eh_frame describes, and who handles exceptions in them. They are in file order.
func (u *Unwind) Handlers() (list []rows.Function) {
	u.loaded(func(e Entry) bool {
		if e.IsFDE && !e.FDE.Dead {
			list = append(list, rows.Function{Lo: e.FDE.Lo, Hi: e.FDE.Hi, Personality: e.CIE.Personality,
				Indirect: e.CIE.Personality != 0 && e.CIE.PersonalityEncoding&dwarf.DW_EH_PE_indirect != 0, LSDA: e.FDE.LSDA, HasLSDA: e.FDE.HasLSDA})
		}
		return true
	})
	return list
}

// Exceptions calls yield with the exception tables of functions, in the order of .eh_frame, until it returns false. It returns what could not be read.
func (u *Unwind) Exceptions(yield func(*Exceptions) bool) []error { return asErrors(u.except(yield)) }

// Functions returns a walk over the functions that a language's own table in the image names: Go's. It is nil where there is no such
// table. Between some functions is padding, which belongs to the one before it.
func Functions(img *module.Image) func(each func(name string, lo, hi arch.Vaddr)) {
	if t := pclntab.Open(img); t != nil {
		return t.Funcs
	}
	return nil
}

// IsGo says whether an image has Go's runtime: Go's linker has left its ID, or the table of functions that every Go program keeps.
func IsGo(img *module.Image) bool {
	return img.Section(".note.go.buildid") != nil || Functions(img) != nil
}
