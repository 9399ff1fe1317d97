// Package mips reads the compact exception tables of MIPS programs, from bytes to rows: the index, and the opcodes in it and in .gnu_extab. The index
// is .eh_frame_hdr, of version 2. In files that are not linked it is .eh_frame_entry, without a header.
//
// It implements Compact Exception Tables for MIPS ABIs (Itanium C++ ABI, MIPSCompactEH): its index, its unwind data and its frame unwind opcodes,
// in both byte orders, for o32, n32 and n64. A pair of the index has opcodes, or the address of unwind data, or that of an FDE: the FDE's rows are
// those of .eh_frame, so here is a gap. The tables of exceptions behind the opcodes are not read.
//
// The tables are made for exceptions, so the rows hold at calls only (rows.SyncOnly). A pair holds up to the next one. A register that no opcode
// names is unchanged. Linkers put "no unwind" behind code with tables; it makes a gap, and no end of the stack. An opcode for floating-point
// registers puts the one with the greater number higher. In big-endian o32 code, a store of a pair puts it lower: no opcode says so, and rows follow the
// opcodes.
//
// A damaged entry costs itself only. Bytes never cause a panic; the size of the sections bounds work and memory.
package mips

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
	hdrName   = ".eh_frame_hdr"
	entryName = ".eh_frame_entry"
	extab     = ".gnu_extab"
	ehFrame   = ".eh_frame"
)

// The header of a linked index: the version, the encoding of pointers in unwind data, two bytes of zero, and the number of pairs.
const (
	version  = 2
	countAt  = 4
	hdrSize  = 8
	pairSize = 8
)

// The causes of an Error, besides those of opcodes.
var (
	ErrTruncated = errors.New("truncated")
	ErrMalformed = errors.New("malformed")
)

// An Error is something wrong in an entry, or in the header.
type Error struct {
	Section string
	Off     uint64
	Lo      arch.Vaddr // of the function; 0 for the header
	Msg     string
	Err     error
}

func (e *Error) Error() string {
	if e.Lo == 0 {
		return fmt.Sprintf("%s+%#x: %s: %v", e.Section, e.Off, e.Msg, e.Err)
	}
	return fmt.Sprintf("%s+%#x: function %#x: %s: %v", e.Section, e.Off, uint64(e.Lo), e.Msg, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// A part is the contents of a section. Those of an index are pairs from the offset first on.
type part struct {
	name   string
	addr   arch.Vaddr
	data   []byte
	bad    module.RelocErrors
	first  int
	linked bool
}

// An Index is the tables of an image. It is valid as long as the image is open, and safe for concurrent use.
type Index struct {
	machine *arch.Machine
	order   binary.ByteOrder
	mask    uint64 // of addresses
	enc     byte   // of the pointers in unwind data
	index   []part // one; in files that are not linked one for each section of code
	tables  []part
	frames  []module.Range // .eh_frame
	named   bool           // there are sections
	tail    func(arch.Vaddr) []byte
	code    module.Ranges
	room    uint64 // bytes that have tables: opcodes of tables that do not overlap take no more
}

// isIndex says whether the contents of .eh_frame_hdr are an index of compact tables. All others are for DWARF.
func isIndex(hdr []byte) bool { return len(hdr) > 0 && hdr[0] == version }

// Open returns the tables of an image; nil if it has none. The index is a section, or in a file without sections a segment (PT_GNU_EH_FRAME). With an error,
// it returns what could be read.
func Open(img *module.Image) (*Index, error) {
	if img.Machine().ELF != arch.EM_MIPS {
		return nil, nil
	}
	x := &Index{machine: img.Machine(), order: img.Order(), mask: 1<<32 - 1, enc: pcrel | sdata4, tail: img.Tail}
	if img.Is64() {
		x.mask = ^uint64(0)
	}
	var errs []error
	secs := img.Sections()
	x.named = len(secs) > 0
	for i := range secs {
		s := &secs[i]
		isHdr, isEntry := s.Name == hdrName, strings.HasPrefix(s.Name, entryName)
		switch {
		case s.Perm == 0 || s.Empty || s.Perm&module.Exec != 0:
		case s.Name == ehFrame:
			x.frames = append(x.frames, module.Range{Lo: s.Addr, Hi: s.Addr + arch.Vaddr(s.Size)})
		case isHdr, isEntry, strings.HasPrefix(s.Name, extab):
			b, bad, err := img.Relocate(s)
			if err != nil {
				errs = append(errs, err)
				continue
			}
			p := part{name: s.Name, addr: s.Addr, data: b, bad: bad}
			switch {
			case isHdr && isIndex(b):
				errs = append(errs, x.linked(p))
			case isHdr:
				continue
			case isEntry:
				x.index = append(x.index, p)
			default:
				x.tables = append(x.tables, p)
			}
			x.room += uint64(len(b))
		}
	}
	for _, s := range img.Segments() {
		if s.Kind == module.Loaded {
			x.room += s.Size
		}
		if s.Kind == module.UnwindIndex && !x.named {
			b, err := img.Contents(&s)
			if isIndex(b) {
				errs = append(errs, err, x.linked(part{name: hdrName, addr: s.Vaddr, data: b}))
			}
		}
	}
	if len(x.index) == 0 {
		return nil, nil
	}
	x.code = img.Code()
	return x, errors.Join(errs...)
}

// Encodings of pointers (LSB core 5.0, section 10.5.1): the formats of four and eight bytes, and what they are relative to.
const (
	udata4, udata8 = 3, 4
	sdata4, sdata8 = 11, 12
	pcrel          = 0x10
)

// linked appends the index with a header, cut to the pairs that it counts.
func (x *Index) linked(p part) error {
	if len(p.data) < hdrSize {
		return &Error{p.name, 0, 0, fmt.Sprintf("a header of %d bytes", len(p.data)), ErrTruncated}
	}
	x.enc, p.first, p.linked = p.data[1], hdrSize, true
	n, room := uint64(x.order.Uint32(p.data[countAt:])), uint64(len(p.data)-hdrSize)/pairSize
	p.data = p.data[:hdrSize+pairSize*min(n, room)]
	x.index = append(x.index, p)
	if n > room {
		return &Error{p.name, countAt, 0, fmt.Sprintf("%d pairs, with room for %d", n, room), ErrTruncated}
	}
	return nil
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
	Inline Kind = iota // opcodes in the index
	Table              // unwind data in .gnu_extab
	FDE                // an FDE in .eh_frame
)

var kindNames = [...]string{"inline", "table", "fde"}

func (k Kind) String() string { return kindNames[k] }

// An Entry is what the tables say of a function, or of several in a row.
type Entry struct {
	Lo, Hi      arch.Vaddr
	Kind        Kind
	Routine     uint8      // of Inline and Table: the number of the personality routine; 0 for one with an address
	Personality arch.Vaddr // the address, if it is known
	FDE         arch.Vaddr // of Kind FDE
	Code        []byte     // opcodes from the first one on, and of Kind Table what follows them

	Section string // where the opcodes are
	Off     uint64

	cut *module.RelocError // ends Code: it could not be applied
}

// Entries calls yield with all entries, in file order, until it returns false. With an error, Lo and Hi are set as far as they are known.
func (x *Index) Entries(yield func(e *Entry, err error) bool) {
	var e Entry
	for i := range x.index {
		p := &x.index[i]
		at := p.first
		for ; at+pairSize <= len(p.data); at += pairSize {
			e = Entry{Section: p.name, Off: uint64(at)}
			err := x.entry(p, at, &e)
			if !yield(&e, err) {
				return
			}
		}
		if n := len(p.data) - at; n > 0 {
			e = Entry{Section: p.name, Off: uint64(at)}
			if !yield(&e, x.errorf(&e, ErrTruncated, "%d bytes of a pair", n)) {
				return
			}
		}
	}
}

func (x *Index) errorf(e *Entry, cause error, format string, args ...any) error {
	return &Error{e.Section, e.Off, e.Lo, fmt.Sprintf(format, args...), cause}
}

// unapplied is the error of an entry that depends on a relocation.
func (x *Index) unapplied(e *Entry, r *module.RelocError) error {
	return &Error{r.Section, r.Off, e.Lo, fmt.Sprintf("relocation %s: %s", r.Type, r.Msg), r.Err}
}

// word decodes an address that is relative to its own place, and its lowest bit, which is no part of it: code and places are even.
func (x *Index) word(p *part, at int) (v arch.Vaddr, odd bool) {
	u := (uint64(p.addr) + uint64(at) + uint64(int64(int32(x.order.Uint32(p.data[at:]))))) & x.mask
	return arch.Vaddr(u &^ 1), u&1 != 0
}

// lo returns where the code of a pair begins.
func (x *Index) lo(p *part, at int) arch.Vaddr {
	v, _ := x.word(p, at)
	return v
}

// entry reads the pair at an offset of a part of the index.
func (x *Index) entry(p *part, at int, e *Entry) error {
	if r := p.bad.In(uint64(at), uint64(at+pairSize)); r != nil {
		return x.unapplied(e, r)
	}
	lo, odd := x.word(p, at)
	e.Lo, e.Hi = lo, x.code.End(lo)
	if next := at + pairSize; next+pairSize <= len(p.data) {
		if r := p.bad.In(uint64(next), uint64(next+4)); r != nil { // without it, the next function would have this one's rules
			e.Hi = e.Lo
			return x.unapplied(e, r)
		}
		next := x.lo(p, next)
		if next < e.Lo {
			return x.errorf(e, ErrMalformed, "the next pair is for %#x", uint64(next))
		}
		if e.Hi == 0 || next < e.Hi || p.linked {
			e.Hi = next
		}
	}
	e.Hi = max(e.Hi, e.Lo)
	if !odd {
		e.Kind, e.Off, e.Routine = Inline, e.Off+4, p.data[at+4]
		if e.Routine != 1 {
			return x.errorf(e, ErrMalformed, "inline opcodes for personality routine %d", e.Routine)
		}
		e.Off++
		e.Code = p.data[at+5 : at+pairSize]
		return nil
	}
	v, odd := x.word(p, at+4)
	if odd {
		e.Kind, e.FDE, e.Off = FDE, v, e.Off+4
		switch {
		case !x.named:
			return x.errorf(e, ErrUnsupported, "its FDE at %#x is in %s, which only section headers tell", uint64(v), ehFrame)
		case !slices.ContainsFunc(x.frames, func(s module.Range) bool { return s.Lo <= v && v < s.Hi }):
			return x.errorf(e, ErrMalformed, "its FDE at %#x is not in %s", uint64(v), ehFrame)
		}
		return nil
	}
	return x.table(e, v)
}

// table reads the head of an entry's unwind data, at an address.
func (x *Index) table(e *Entry, v arch.Vaddr) error {
	e.Kind = Table
	b, p := x.at(v, e)
	if len(b) == 0 {
		return x.errorf(e, ErrTruncated, "its table at %#x is outside of the file", uint64(v))
	}
	e.Routine, b = b[0], b[1:]
	head := 1
	switch {
	case e.Routine > 3:
		return x.errorf(e, ErrMalformed, "personality routine %d", e.Routine)
	case e.Routine == 0:
		var n int
		switch x.enc & 15 {
		case udata4, sdata4:
			n = 4
		case udata8, sdata8:
			n = 8
		default:
			return x.errorf(e, ErrUnsupported, "a personality routine's address in encoding %#02x", x.enc)
		}
		if len(b) < n {
			return x.errorf(e, ErrTruncated, "the table ends in its routine's address")
		}
		if x.enc == pcrel|sdata4 && (p == nil || p.bad.In(e.Off+1, e.Off+5) == nil) {
			e.Personality = arch.Vaddr((uint64(v) + 1 + uint64(int64(int32(x.order.Uint32(b))))) & x.mask)
		}
		b, head = b[n:], 1+n
	}
	e.Off += uint64(head)
	e.Code = b
	if p != nil {
		if e.cut = p.bad.In(e.Off, e.Off+uint64(len(b))); e.cut != nil { // what follows the opcodes may have some
			e.Code = b[:e.cut.Off-e.Off]
		}
	}
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

// Decode returns what an entry's opcodes say: the gap where they refuse to unwind, and where an FDE has the rules. It returns how many bytes the opcodes take.
func (x *Index) Decode(e *Entry) (rows.Set, int, error) {
	if e.Kind == FDE {
		return rows.Set{}, 0, nil
	}
	set, n, err := decode(e.Code, layoutOf(x.machine), e.Kind == Inline)
	switch {
	case e.cut != nil && errors.Is(err, ErrTruncated):
		return set, n, x.unapplied(e, e.cut)
	case err != nil:
		return set, n, &Error{e.Section, e.Off + uint64(n), e.Lo, fmt.Sprintf("opcodes % x", e.Code[:min(len(e.Code), n+3, 16)]), err}
	}
	return set, n, nil
}

// maxErrors bounds the errors of a table; the last one counts the others.
const maxErrors = 1000

// Rows makes the rows of all functions. Each entry that could not be read is missing in the table and is an error, up to maxErrors.
func (x *Index) Rows() (*rows.Table, []error) {
	b := rows.NewBuilder(x.machine)
	seen := map[string]rows.SetID{} // by opcodes: few functions save the same as no other
	left := x.room
	var errs []error
	failed := 0
	fail := func(err error) {
		if failed++; failed <= maxErrors {
			errs = append(errs, err)
		}
	}
	x.Entries(func(e *Entry, err error) bool {
		var set rows.Set
		var n int
		if err == nil {
			set, n, err = x.Decode(e)
		}
		if err != nil {
			fail(err)
			return true
		}
		if set.Gap() {
			return true
		}
		id, ok := seen[string(e.Code[:n])]
		if !ok {
			if uint64(n) > left {
				fail(x.errorf(e, ErrMalformed, "the tables overlap"))
				return true
			}
			left -= uint64(n)
			id = b.Intern(set)
			seen[string(e.Code[:n])] = id
		}
		b.Range(e.Lo, e.Hi, []rows.Row{{Lo: e.Lo, Set: id}})
		return true
	})
	if failed > maxErrors {
		errs = append(errs, fmt.Errorf("%s: %w: %d more entries", hdrName, module.ErrMalformed, failed-maxErrors))
	}
	return rows.Build(b).From(rows.FromMIPS), errs
}

// Bounds returns the range of the entry that has an address.
func (x *Index) Bounds(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	for i := range x.index {
		p := &x.index[i]
		first, last := 0, (len(p.data)-p.first)/pairSize // the first entry behind pc
		for first < last {
			if mid := (first + last) / 2; x.lo(p, p.first+pairSize*mid) <= pc {
				first = mid + 1
			} else {
				last = mid
			}
		}
		if first == 0 {
			continue
		}
		var e Entry
		_ = x.entry(p, p.first+pairSize*(first-1), &e) // what its opcodes are does not matter
		if e.Lo <= pc && pc < e.Hi {
			return e.Lo, e.Hi, true
		}
	}
	return 0, 0, false
}

// Sum writes to w all that rows are made of.
func (x *Index) Sum(w io.Writer) {
	fmt.Fprintln(w, "mips-compact", x.machine.Name, x.order, x.mask, x.enc, x.code, x.frames, x.named)
	for _, p := range x.index {
		fmt.Fprintln(w, p.name, p.addr, p.first, p.linked, len(p.data))
		w.Write(p.data)
		for i := range p.bad {
			fmt.Fprintln(w, p.bad[i].Off)
		}
	}
	x.Entries(func(e *Entry, err error) bool {
		if err == nil && e.Kind == Table {
			_, n, _ := x.Decode(e)
			code := e.Code[:min(n, len(e.Code))]
			fmt.Fprintln(w, e.Lo, len(code))
			w.Write(code)
		}
		return true
	})
}
