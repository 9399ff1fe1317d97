// Package dwarf reads call frame information, from bytes to rows: the sections .eh_frame and .debug_frame, and the search table
// .eh_frame_hdr.
//
// It implements DWARF 5, section 6.4, with versions 1, 3 and 4 of the CIE, in the 32-bit and the 64-bit format. Version 5, of a draft, is read
// as version 4. It implements the Linux Standard Base's .eh_frame and .eh_frame_hdr (LSB core 5.0, sections 10.5 and 10.6), with every pointer
// encoding and augmentation. It knows the instructions added by GNU, LLVM, MIPS and the Arm architecture. It reads data of any machine and
// byte order.
//
// It also reads the exception tables that .eh_frame leads to (.gcc_except_table), by the Itanium C++ ABI: "Exception Handling Tables".
//
// A damaged entry costs itself only, and is reported as a Damage. Bytes never cause a panic; the size of the sections bounds work and memory.
//
// The package does not evaluate rules: rows defines their meaning.
package dwarf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Which selects among the two places where a binary keeps call frame information.
type Which uint8

const (
	EHFrame    Which = 1 << iota // .eh_frame, which is loaded with the program
	DebugFrame                   // .debug_frame, which is for debuggers
	Both       = EHFrame | DebugFrame
)

// A Section is the contents of one section.
type Section struct {
	Name string
	Addr arch.Vaddr // link-time address of Data[0]; 0 for a section that is not loaded
	Data []byte

	// Open says that Data may go on behind the section's end, because the file has no section headers:
	// a terminator ends it, and so does the first entry that cannot be one.
	Open bool

	// Unapplied are the relocations of Data that could not be applied, sorted by place. The entries that have them are damaged.
	Unapplied module.RelocErrors
}

// Sections are the parts of a binary that New needs.
type Sections struct {
	Machine  *arch.Machine
	Order    binary.ByteOrder
	AddrSize int // bytes of a target address: 4 or 8

	EHFrame    []Section // in file order
	DebugFrame []Section
	Hdr        *Section  // .eh_frame_hdr, or nil
	Exceptions []Section // .gcc_except_table

	Text arch.Vaddr // base of DW_EH_PE_textrel: the start of .text
	GOT  arch.Vaddr // base of DW_EH_PE_datarel

	// Place names an address by a section and an offset, in a file that is not linked, and is nil for all others. Relocations have been applied
	// to the sections then: a function at 0 was discarded, however its address is encoded.
	Place func(v arch.Vaddr) (section string, off uint64)

	// Memory returns n bytes of the loaded image, for DW_EH_PE_indirect. It may be nil.
	Memory func(at arch.Vaddr, n int) ([]byte, bool)
}

// Frames are the call frame information of one binary. They are safe for concurrent use.
type Frames struct {
	in     Sections
	big    bool
	mask   uint64 // of an address
	eh     []*section
	debug  []*section
	except []*section

	hdr     *hdr // nil where there is none, or a damaged one
	hdrErr  error
	indexes [2]index // of eh and debug

	indirect atomic.Bool // a pointer of the sections led to Memory
}

// A section is one Section on its way to rows.
type section struct {
	*Frames
	name string
	addr uint64
	data []byte
	eh   bool
	open bool
	bad  module.RelocErrors

	mu   sync.Mutex
	cies map[int]*cie // by offset; those that Lookup has met
}

// New returns the call frame information of the given sections. They are read as needed and must not
// change.
func New(in Sections) *Frames {
	f := &Frames{in: in, mask: ^uint64(0), big: in.Order == binary.BigEndian}
	if in.Machine == nil {
		f.in.Machine = arch.ByELF(0)
	}
	if in.AddrSize == 4 {
		f.mask = 1<<32 - 1
	} else {
		f.in.AddrSize = 8
	}
	add := func(to *[]*section, from []Section, eh bool) {
		for _, s := range from {
			*to = append(*to, &section{Frames: f, name: s.Name, addr: uint64(s.Addr), data: s.Data, eh: eh, open: s.Open, bad: s.Unapplied})
		}
	}
	add(&f.eh, in.EHFrame, true)
	add(&f.debug, in.DebugFrame, false)
	add(&f.except, in.Exceptions, false)
	if in.Hdr != nil {
		f.hdr, f.hdrErr = f.openHdr(*in.Hdr)
	}
	return f
}

// sections returns those of one kind.
func (f *Frames) sections(which Which) []*section {
	switch which {
	case EHFrame:
		return f.eh
	case DebugFrame:
		return f.debug
	}
	return nil
}

// Sizes are the bytes that sections take, after decompression.
type Sizes struct{ EHFrame, EHFrameHdr, DebugFrame uint64 }

// Sizes returns the sizes of the sections. That of a section whose end is not known is an upper bound.
func (f *Frames) Sizes() Sizes {
	var z Sizes
	for _, s := range f.eh {
		z.EHFrame += uint64(len(s.data))
	}
	for _, s := range f.debug {
		z.DebugFrame += uint64(len(s.data))
	}
	if f.in.Hdr != nil {
		z.EHFrameHdr = uint64(len(f.in.Hdr.Data))
	}
	return z
}

// Sum writes to w all that rows are made of, but what Memory was asked for: Indirect says whether it was.
func (f *Frames) Sum(w io.Writer) {
	fmt.Fprintln(w, f.in.Machine.ELF, f.big, f.in.AddrSize, f.in.Text, f.in.GOT)
	for i, all := range [][]*section{f.eh, f.debug} {
		for _, s := range all {
			fmt.Fprintln(w, i, s.name, s.addr, s.open, len(s.data))
			w.Write(s.data)
		}
	}
}

// Indirect says whether rows that were made depend on what Memory returned (DW_EH_PE_indirect).
func (f *Frames) Indirect() bool { return f.indirect.Load() }

// Machine returns the machine that the data is of.
func (f *Frames) Machine() *arch.Machine { return f.in.Machine }

// The three causes of damage; every Damage wraps one of them.
var (
	ErrTruncated   = errors.New("truncated")
	ErrMalformed   = errors.New("malformed")
	ErrUnsupported = errors.New("unsupported")
)

// A Damage describes an unreadable entry, and its place.
type Damage struct {
	Section string
	Off     uint64     // where in the section
	Entry   uint64     // offset of the entry that is lost, or of the first one
	IsFDE   bool       // the entry is an FDE, of the function at PC
	PC      arch.Vaddr // set with IsFDE
	Place   string     // of PC, in a file that is not linked
	Err     error
}

// Error prints like ".eh_frame+0x1f8: FDE 0x4011d0: DW_CFA_restore_state: malformed: empty stack".
func (d Damage) Error() string {
	if d.IsFDE {
		pc := d.Place
		if pc == "" {
			pc = fmt.Sprintf("%#x", uint64(d.PC))
		}
		return fmt.Sprintf("%s+%#x: FDE %s: %v", d.Section, d.Off, pc, d.Err)
	}
	return fmt.Sprintf("%s+%#x: %v", d.Section, d.Off, d.Err)
}

// Unwrap returns the cause.
func (d Damage) Unwrap() error { return d.Err }

// A fault is an error at an offset of the section at hand.
type fault struct {
	off int
	err error
}

func (e *fault) Error() string { return fmt.Sprintf("+%#x: %v", e.off, e.err) }
func (e *fault) Unwrap() error { return e.err }

func truncated(off int, what string) error {
	return &fault{off, fmt.Errorf("%w %s", ErrTruncated, what)}
}

func malformed(off int, format string, args ...any) error {
	return &fault{off, fmt.Errorf("%w: "+format, append([]any{ErrMalformed}, args...)...)}
}

func unsupported(off int, format string, args ...any) error {
	return &fault{off, fmt.Errorf("%w: "+format, append([]any{ErrUnsupported}, args...)...)}
}

// in prefixes an error's text, keeping its offset.
func in(what string, err error) error {
	if f, ok := err.(*fault); ok {
		return &fault{f.off, fmt.Errorf("%s: %w", what, f.err)}
	}
	return fmt.Errorf("%s: %w", what, err)
}

// maxDamages bounds how many damages of one section are told apart; the last one counts the others.
const maxDamages = 1000

// damages collects what is wrong with a section.
type damages struct {
	list []Damage
	more int
}

func (ds *damages) add(s *section, entry int, f *fde, err error) {
	if len(ds.list) == maxDamages {
		ds.more++
		return
	}
	d := Damage{Section: s.name, Off: uint64(entry), Entry: uint64(entry), Err: err}
	if e, ok := err.(*fault); ok {
		d.Off, d.Err = uint64(e.off), e.err
	}
	if f != nil {
		d.IsFDE, d.PC = true, arch.Vaddr(f.lo)
		if s.in.Place != nil {
			if section, off := s.in.Place(d.PC); section != "" {
				d.Place = fmt.Sprintf("%s+%#x", section, off)
			}
		}
	}
	ds.list = append(ds.list, d)
}

func (ds *damages) join(o *damages) {
	n := min(len(o.list), maxDamages-len(ds.list))
	ds.list = append(ds.list, o.list[:n]...)
	ds.more += o.more + len(o.list) - n
}

func (ds *damages) all() []Damage {
	if ds.more > 0 {
		last := ds.list[len(ds.list)-1]
		last.IsFDE = false
		last.Err = fmt.Errorf("%w: and %d more like the one before", ErrMalformed, ds.more)
		return append(ds.list[:len(ds.list):len(ds.list)], last)
	}
	return ds.list
}

func wrapf(cause error, format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{cause}, args...)...)
}
