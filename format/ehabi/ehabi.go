// Package ehabi reads the unwind tables of 32-bit Arm programs, from bytes to rows: the index .ARM.exidx, and what it leads to in .ARM.extab.
//
// It implements the Exception Handling ABI for the Arm Architecture (EHABI32), sections 6 (index), 7 (entries) and 10 (opcodes), in both byte
// orders: inline entries, the three compact models, and the generic model as GNU's personality routines lay it out, which is how GCC and LLVM
// write it for all languages. Another routine may lay its data out as it likes; no table says so.
//
// The tables are made for exceptions, so the rows hold at calls only (rows.SyncOnly). An entry holds up to the next one. Linkers write
// EXIDX_CANTUNWIND for all code without tables, C and assembler mostly. It makes a gap, and no end of the stack.
//
// A damaged entry costs itself only. Bytes never cause a panic; the size of the sections bounds work and memory.
package ehabi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The names of the sections.
const (
	exidx = ".ARM.exidx"
	extab = ".ARM.extab"
)

// The causes of an Error.
var (
	ErrTruncated = errors.New("truncated")
	ErrMalformed = errors.New("malformed")
	ErrSpare     = errors.New("a spare opcode") // of section 10: unwinding fails there
)

// An Error is something wrong in an entry.
type Error struct {
	Section string
	Off     uint64
	Lo      arch.Vaddr // of the function
	Msg     string
	Err     error
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s+%#x: function %#x: %s: %v", e.Section, e.Off, uint64(e.Lo), e.Msg, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// A part is the contents of a section.
type part struct {
	name string
	addr arch.Vaddr
	data []byte
	bad  module.RelocErrors
}

// An Index is the tables of an image. It is valid as long as the image is open, and safe for concurrent use.
type Index struct {
	machine *arch.Machine
	order   binary.ByteOrder
	index   []part // one; in files that are not linked one for each section of code
	tables  []part
	tail    func(arch.Vaddr) []byte // the loaded contents from an address on
	code    module.Ranges
	room    uint64 // bytes that have tables: opcodes of tables that do not overlap take no more
}

// Open returns the tables of an image; nil if it has none. The index is a section, or in a file without sections a segment (PT_ARM_EXIDX). With an
// error, it returns what could be read.
func Open(img *module.Image) (*Index, error) {
	if img.Machine().ELF != arch.EM_ARM {
		return nil, nil
	}
	x := &Index{machine: img.Machine(), order: img.Order(), tail: img.Tail}
	var errs []error
	secs := img.Sections()
	for i := range secs {
		s := &secs[i]
		switch isIndex := strings.HasPrefix(s.Name, exidx); {
		case s.Perm == 0 || s.Empty || s.Perm&module.Exec != 0:
		case isIndex, strings.HasPrefix(s.Name, extab):
			b, bad, err := img.Relocate(s)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			if p := (part{s.Name, s.Addr, b, bad}); isIndex {
				x.index = append(x.index, p)
			} else {
				x.tables = append(x.tables, p)
			}
			x.room += uint64(len(b))
		}
	}
	for _, s := range img.Segments() {
		if s.Kind == module.Loaded {
			x.room += s.Size
		}
		if s.Kind == module.ArmIndex && len(x.index) == 0 {
			b, err := img.Contents(&s)
			if err != nil {
				errs = append(errs, err)
			}
			x.index = []part{{exidx, s.Vaddr, b, nil}}
		}
	}
	if len(x.index) == 0 {
		return nil, errors.Join(errs...)
	}
	x.code = img.Code()
	return x, errors.Join(errs...)
}

// Size returns how many bytes the sections have.
func (x *Index) Size() (n uint64) {
	for _, p := range slices.Concat(x.index, x.tables) {
		n += uint64(len(p.data))
	}
	return n
}

// A Kind says how an entry is written.
type Kind uint8

const (
	CantUnwind Kind = iota // EXIDX_CANTUNWIND: it says nothing
	Inline                 // in the index
	Compact                // in .ARM.extab, for one of the ABI's own personality routines
	Generic                // in .ARM.extab, for another routine
)

var kindNames = [...]string{"cantunwind", "inline", "compact", "generic"}

func (k Kind) String() string { return kindNames[k] }

// An Entry is what the tables say of a function, or of several in a row.
type Entry struct {
	Lo, Hi      arch.Vaddr
	Kind        Kind
	Model       uint8      // of Inline and Compact: the number of the ABI's routine, 0 to 2
	Personality arch.Vaddr // of Generic: the routine
	Code        []byte     // opcodes, in the order of their execution; valid until the next entry

	Section string // where the opcodes are
	Off     uint64
}

// Entries calls yield with all entries, in file order, until it returns false. With an error, Lo and Hi are set as far as they are known.
func (x *Index) Entries(yield func(e *Entry, err error) bool) {
	var e Entry
	var buf []byte
	for i := range x.index {
		p := &x.index[i]
		for at := 0; at+8 <= len(p.data); at += 8 {
			e = Entry{Section: p.name, Off: uint64(at)}
			err := x.entry(p, at, &e, &buf)
			if !yield(&e, err) {
				return
			}
		}
		if n := len(p.data) % 8; n > 0 {
			e = Entry{Section: p.name, Off: uint64(len(p.data) - n)}
			if !yield(&e, x.errorf(&e, e.Off, ErrTruncated, "%d bytes of an entry", n)) {
				return
			}
		}
	}
}

func (x *Index) errorf(e *Entry, off uint64, cause error, format string, args ...any) error {
	return &Error{e.Section, off, e.Lo, fmt.Sprintf(format, args...), cause}
}

// unapplied is the error of an entry that depends on a relocation.
func (x *Index) unapplied(e *Entry, r *module.RelocError) error {
	return &Error{r.Section, r.Off, e.Lo, fmt.Sprintf("relocation %s: %s", r.Type, r.Msg), r.Err}
}

// prel31 decodes an address that is relative to its own place (section 5).
func prel31(w uint32, at arch.Vaddr) arch.Vaddr {
	return arch.Vaddr(uint32(at) + uint32(int32(w<<1)>>1))
}

// thumb is the bit of a function's address that says that its code is Thumb.
const thumb = 1

// lo returns where the code of an entry begins.
func (x *Index) lo(p *part, at int) arch.Vaddr {
	return prel31(x.order.Uint32(p.data[at:]), p.addr+arch.Vaddr(at)) &^ thumb
}

// entry reads the entry at an offset of a part of the index. buf is room for its opcodes.
func (x *Index) entry(p *part, at int, e *Entry, buf *[]byte) error {
	if r := p.bad.In(uint64(at), uint64(at)+8); r != nil {
		return x.unapplied(e, r)
	}
	e.Lo = x.lo(p, at)
	if x.order.Uint32(p.data[at:])>>31 != 0 {
		return x.errorf(e, e.Off, ErrMalformed, "bit 31 of its address is set")
	}
	e.Hi = x.code.End(e.Lo)
	if at+16 <= len(p.data) {
		if r := p.bad.In(uint64(at)+8, uint64(at)+12); r != nil { // without it, the next function would have this one's rules
			e.Hi = e.Lo
			return x.unapplied(e, r)
		}
		next := x.lo(p, at+8)
		if next < e.Lo {
			return x.errorf(e, e.Off, ErrMalformed, "the next entry is for %#x", uint64(next))
		}
		if e.Hi == 0 || next < e.Hi || p.name == exidx { // linked: there is code up to the next entry
			e.Hi = next
		}
	}
	if e.Hi == 0 {
		e.Hi = e.Lo
	}
	w := x.order.Uint32(p.data[at+4:])
	place := p.addr + arch.Vaddr(at+4)
	switch {
	case w == 1:
		e.Kind = CantUnwind
		return nil
	case w>>31 != 0:
		e.Kind, e.Model, e.Off = Inline, uint8(w>>24&15), e.Off+4
		if w>>28 != 8 {
			return x.errorf(e, e.Off, ErrMalformed, "%#08x is neither an inline entry nor the place of one", w)
		}
		if e.Model != 0 {
			return x.errorf(e, e.Off, ErrMalformed, "an inline entry for routine %d", e.Model)
		}
		*buf = append((*buf)[:0], byte(w>>16), byte(w>>8), byte(w))
		e.Code = *buf
		return nil
	}
	return x.table(e, prel31(w, place), buf)
}

// table reads an entry's table in .ARM.extab.
func (x *Index) table(e *Entry, v arch.Vaddr, buf *[]byte) error {
	b, p := x.at(v, e)
	start := e.Off
	if len(b) < 4 {
		return x.errorf(e, e.Off, ErrTruncated, "its table at %#x is outside of the file", uint64(v))
	}
	w := x.order.Uint32(b)
	code := (*buf)[:0]
	more := uint32(0)
	switch {
	case w>>31 == 0:
		e.Kind, e.Personality = Generic, prel31(w, v)&^thumb
		if len(b) < 8 {
			return x.errorf(e, e.Off, ErrTruncated, "the table ends behind its routine")
		}
		b = b[4:]
		e.Off += 4
		w = x.order.Uint32(b)
		more, code = w>>24, append(code, byte(w>>16), byte(w>>8), byte(w))
	case w>>28 != 8 || w>>24&15 > 2:
		return x.errorf(e, e.Off, ErrMalformed, "%#08x is no table of a known model", w)
	default:
		e.Kind, e.Model = Compact, uint8(w>>24&15)
		if e.Model == 0 {
			code = append(code, byte(w>>16), byte(w>>8), byte(w))
		} else {
			more, code = w>>16&255, append(code, byte(w>>8), byte(w))
		}
	}
	if b = b[4:]; uint64(len(b)) < 4*uint64(more) {
		return x.errorf(e, e.Off, ErrTruncated, "%d words more in %d bytes", more, len(b))
	}
	if p != nil {
		if r := p.bad.In(start, e.Off+4+4*uint64(more)); r != nil {
			return x.unapplied(e, r)
		}
	}
	for range more {
		code = binary.BigEndian.AppendUint32(code, x.order.Uint32(b))
		b = b[4:]
	}
	*buf, e.Code = code, code
	return nil
}

// at returns the contents from an address on, and their section if they are in one. It sets where they are.
func (x *Index) at(v arch.Vaddr, e *Entry) ([]byte, *part) {
	for i := range x.tables {
		if p := &x.tables[i]; uint64(v-p.addr) < uint64(len(p.data)) {
			e.Section, e.Off = p.name, uint64(v-p.addr)
			return p.data[v-p.addr:], p
		}
	}
	b := x.tail(v)
	if len(b) > 0 {
		e.Section, e.Off = "memory", uint64(v)
	}
	return b, nil
}

// maxErrors bounds the errors of a table; the last one counts the others.
const maxErrors = 1000

// Rows makes the rows of all functions. Each entry that could not be read is missing in the table and is an error, up to maxErrors.
func (x *Index) Rows() (*rows.Table, []error) {
	b := rows.NewBuilder(x.machine)
	type decoded struct {
		id  rows.SetID
		err error
	}
	seen := map[string]decoded{} // by opcodes: few functions save the same as no other
	left := x.room
	var errs []error
	failed := 0
	fail := func(err error) {
		if failed++; failed <= maxErrors {
			errs = append(errs, err)
		}
	}
	x.Entries(func(e *Entry, err error) bool {
		if err != nil {
			fail(err)
			return true
		}
		if e.Kind == CantUnwind {
			return true
		}
		d, ok := seen[string(e.Code)]
		if !ok {
			if uint64(len(e.Code)) > left {
				fail(x.errorf(e, e.Off, ErrMalformed, "the tables overlap"))
				return true
			}
			left -= uint64(len(e.Code))
			set, err := Decode(e.Code)
			if d.err = err; err == nil {
				d.id = b.Intern(set)
			}
			seen[string(e.Code)] = d
		}
		switch {
		case d.err != nil:
			fail(x.errorf(e, e.Off, d.err, "opcodes % x", e.Code[:min(len(e.Code), 16)]))
		case d.id != rows.GapID:
			b.Range(e.Lo, e.Hi, []rows.Row{{Lo: e.Lo, Set: d.id}})
		}
		return true
	})
	if failed > maxErrors {
		errs = append(errs, fmt.Errorf("%s: %w: %d more entries", ".ARM.exidx", module.ErrMalformed, failed-maxErrors))
	}
	return rows.Build(b).From(rows.FromEHABI), errs
}

// Bounds returns the range of the entry that has an address.
func (x *Index) Bounds(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	for i := range x.index {
		p := &x.index[i]
		n := len(p.data) / 8
		first, last := 0, n // the first entry behind pc
		for first < last {
			if mid := (first + last) / 2; x.lo(p, 8*mid) <= pc {
				first = mid + 1
			} else {
				last = mid
			}
		}
		if first == 0 {
			continue
		}
		var e Entry
		var buf []byte
		_ = x.entry(p, 8*(first-1), &e, &buf) // what its opcodes are does not matter
		if e.Lo <= pc && pc < e.Hi {
			return e.Lo, e.Hi, true
		}
	}
	return 0, 0, false
}

// Sum writes to w all that rows are made of.
func (x *Index) Sum(w io.Writer) {
	fmt.Fprintln(w, exidx, x.order, x.code)
	for _, p := range x.index {
		fmt.Fprintln(w, p.name, p.addr, len(p.data))
		w.Write(p.data)
		for i := range p.bad {
			fmt.Fprintln(w, p.bad[i].Off)
		}
	}
	x.Entries(func(e *Entry, err error) bool {
		if err == nil && e.Kind >= Compact {
			fmt.Fprintln(w, e.Lo, len(e.Code))
			w.Write(e.Code)
		}
		return true
	})
}
