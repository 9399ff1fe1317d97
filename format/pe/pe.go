// Package pe reads the unwind information of Windows's images and object files (PE/COFF), which is all that Windows itself unwinds by: the exception directory,
// and what its entries lead to. x86-64 has versions 1 and 2 ("x64 exception handling"), AArch64 and 32-bit Arm,
// whose code is Thumb, packed words and full records ("ARM64 exception handling", "ARM exception handling"). Version 3, for APX, is refused by name. Frames with scalable vectors have a CFA that depends on
// the vectors' length.
//
// An image goes in, rows come out, for each program counter: prologues and epilogues included. Version 1 does not say where epilogues are. There
// the code decides, as it does for Windows: what leads to a return by the few instructions that epilogues may have, is one.
//
// Code without an entry belongs to leaf functions, which leave the stack and the preserved registers alone: both conventions demand an entry of
// all others. Leaves says where such code is. Handlers has the exception handlers, and what the usual ones of C and C++ read.
//
// Damage costs its entry only. Bytes never cause a panic; the size of the directory and of the code bounds work and memory.
package pe

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The causes of a Damage.
var (
	ErrTruncated   = errors.New("truncated")
	ErrMalformed   = errors.New("malformed")
	ErrUnsupported = errors.New("unsupported")
)

// Damage is something wrong with an entry: the rows of its function are missing.
type Damage struct {
	Section string // with the bytes at fault
	Off     uint64 // in it
	Err     error
}

func (d Damage) Error() string { return fmt.Sprintf("%s+%#x: %v", d.Section, d.Off, d.Err) }
func (d Damage) Unwrap() error { return d.Err }

// A Table is the unwind information of an image. It is valid as long as the image is open, and safe for concurrent use.
type Table struct {
	img     *module.Image
	machine *arch.Machine
	base    arch.Vaddr // what all addresses in the tables count from
	dirs    []dir      // the exception directory; of an object file, its parts, one or more
	size    int        // bytes of an entry
	entries []entry    // by their begin; of several with one begin, the first of the directory comes first
	sorted  bool       // the directory is: Windows searches by halves
	errs    []error    // what is wrong with the directory as a whole
}

// An entry is a function, or a part of one. Addresses are relative to the image.
type entry struct {
	begin, end uint32
	data       uint32 // its unwind information, or where it is
	at         uint32 // where it is
	err        error  // why its end is not known: end is begin then
}

// A dir is an exception directory, or a part of one.
type dir struct {
	at uint32
	b  []byte
}

// Open returns the unwind information of an image; nil where there is none, or where it is another machine's. A directory that the file is too
// short for is damage of the table.
func Open(img *module.Image) *Table {
	t := &Table{img: img, machine: img.Machine()}
	switch t.machine {
	case arch.WindowsAMD64:
		t.size = 12
	case arch.WindowsARM64:
		t.size = 8
	case arch.ARM:
		if t.size = 8; img.Format() != "PE" && img.Format() != "COFF" {
			return nil
		}
	default:
		return nil
	}
	if !img.Linked() {
		t.object()
	}
	for i := range img.Segments() {
		switch s := &img.Segments()[i]; s.Kind {
		case module.Headers:
			t.base = s.Vaddr
		case module.Functions:
			d := dir{at: uint32(s.Vaddr - t.base)}
			d.b, _ = img.Contents(s)
			if n := uint64(len(d.b)); n < s.Size {
				t.errs = append(t.errs, t.wrong(d.at+uint32(n), ErrTruncated, "an exception directory of %d bytes", s.Size))
			}
			if s.Size > 0 {
				t.dirs = []dir{d}
			}
		}
	}
	if len(t.dirs) == 0 && len(t.errs) == 0 {
		return nil
	}
	t.read()
	return t
}

// object takes the parts of the directory from an object file: all sections that a linker makes one of. An entry with a relocation that cannot be
// applied is left out.
func (t *Table) object() {
	for i := range t.img.Sections() {
		s := &t.img.Sections()[i]
		dirs := strings.HasPrefix(s.Name, ".pdata")
		if s.Perm == 0 || s.Size == 0 || !dirs && !strings.HasPrefix(s.Name, ".xdata") {
			continue
		}
		b, bad, err := t.img.Relocate(s)
		if err != nil {
			if len(t.errs) < maxErrors {
				t.errs = append(t.errs, Damage{s.Name, 0, err})
			}
			continue
		}
		if dirs && len(bad) > 0 {
			b = slices.Clone(b)
		}
		for i := range bad {
			if len(t.errs) < maxErrors {
				t.errs = append(t.errs, Damage{s.Name, bad[i].Off, &bad[i]})
			}
			if at := int(bad[i].Off) / t.size * t.size; dirs && at+t.size <= len(b) {
				clear(b[at:][:t.size])
			}
		}
		if dirs {
			t.dirs = append(t.dirs, dir{uint32(s.Addr), b})
		}
	}
}

// contents returns what a segment has in the file; in an object file, with its relocations applied.
func (t *Table) contents(s *module.Segment) []byte {
	if !t.img.Linked() {
		return t.img.Tail(s.Vaddr)
	}
	b, _ := t.img.Contents(s)
	return b
}

// read reads the directory. Entries of zeros end nothing: linkers leave some.
func (t *Table) read() {
	t.entries = make([]entry, 0, t.Size()/uint64(t.size))
	t.sorted = true
	code := t.reader()
	for _, d := range t.dirs {
		t.readDir(d, code)
	}
	if !t.sorted {
		slices.SortStableFunc(t.entries, func(a, b entry) int { return cmp.Compare(a.begin, b.begin) })
	}
}

func (t *Table) readDir(d dir, code *reader) {
	le := img32(d.b)
	for at := 0; at+t.size <= len(le); at += t.size {
		e := entry{begin: le.at(at), at: d.at + uint32(at)}
		if t.size == 12 {
			e.end, e.data = le.at(at+4), le.at(at+8)
		} else if e.data = le.at(at + 4); e.begin|e.data != 0 {
			var n uint32
			if t.machine == arch.ARM {
				e.begin &^= 1 // it is Thumb code
				n, e.err = t.armLength(code, e.at, e.data, 2)
			} else {
				n, e.err = t.armLength(code, e.at, e.data, 4)
			}
			e.end = e.begin + n
		}
		if e.begin|e.end|e.data == 0 {
			continue
		}
		if n := len(t.entries); n > 0 && e.begin < t.entries[n-1].begin {
			t.sorted = false
		}
		t.entries = append(t.entries, e)
	}
}

// img32 are bytes with 32-bit little-endian words.
type img32 []byte

func (b img32) at(i int) uint32 {
	return uint32(b[i]) | uint32(b[i+1])<<8 | uint32(b[i+2])<<16 | uint32(b[i+3])<<24
}

func (b img32) half(i int) uint16 { return uint16(b[i]) | uint16(b[i+1])<<8 }

// Size is how many bytes the directory has. What its entries lead to is not counted.
func (t *Table) Size() (n uint64) {
	for _, d := range t.dirs {
		n += uint64(len(d.b))
	}
	return n
}

// Sum writes to w all that rows are made of: the directory and, of the file, all that its sections have, as unwind records and code may lie
// anywhere.
func (t *Table) Sum(w io.Writer) {
	for _, d := range t.dirs {
		fmt.Fprintln(w, t.machine.ELF, uint64(t.base), d.at, len(d.b))
		w.Write(d.b)
	}
	used := t.used()
	for i := range t.img.Segments() {
		s := &t.img.Segments()[i]
		if s.Kind != module.Loaded {
			continue
		}
		var b []byte
		if s.Perm&module.Write == 0 || s.Perm&module.Exec != 0 || used == nil || used[i] {
			b = t.contents(s)
		}
		fmt.Fprintln(w, uint64(s.Vaddr), s.Perm, s.Size, s.MemSize, len(b))
		w.Write(b)
	}
}

// used returns which segments the entries, the records and the code lie in; nil where finding out takes too long, and for an object file.
func (t *Table) used() []bool {
	if !t.img.Linked() {
		return nil
	}
	in, r := make([]bool, len(t.img.Segments())), t.reader()
	read := func(rva uint32) {
		if r.tail(rva) != nil {
			in[r.in] = true
		}
	}
	for _, e := range t.entries {
		read(e.begin)
		for more := t.size == 12 || e.data&3 == 0; more; {
			if r.spend(e.data, readCost) != nil {
				return nil
			}
			read(e.data &^ 1)
			e, more = t.next(r, e)
		}
	}
	return in
}

// Bounds returns the range of the function, or of the part of one, that has an address.
func (t *Table) Bounds(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	e := t.find(uint64(pc - t.base))
	if e == nil {
		return 0, 0, false
	}
	return t.base + arch.Vaddr(e.begin), t.base + arch.Vaddr(e.end), true
}

// find returns the entry that has an address; nil where there is none.
func (t *Table) find(rva uint64) *entry {
	i, _ := slices.BinarySearchFunc(t.entries, rva, func(e entry, v uint64) int {
		if uint64(e.begin) <= v {
			return -1
		}
		return 1
	})
	for n := 0; i > 0 && n < 16; n++ { // of entries with one begin, which only a damaged directory has many of
		i--
		e := &t.entries[i]
		if rva < uint64(e.end) {
			return e
		}
		if i > 0 && t.entries[i-1].begin != e.begin {
			break
		}
	}
	return nil
}

// A reader reads what lies at addresses of the image. It remembers where it was: for one goroutine.
type reader struct {
	t    *Table
	lo   uint32
	last []byte // from lo on
	in   int    // the segment that has last, of a linked file
	work int64  // steps that it may still take: hostile entries share long records and chains. Real images take a quarter of them at most
}

// readCost is how many steps it takes to read a record or an entry; wrongCost, to say what is wrong with one.
const readCost, wrongCost = 16, 256

func (t *Table) reader() *reader { return &reader{t: t, work: 1<<20 + 4*t.img.Reach()} }

// spend takes steps off the work that is left; the error says that nothing is.
func (r *reader) spend(rva uint32, steps int) error {
	if r.work -= int64(steps); r.work < 0 {
		return r.t.wrong(rva, ErrMalformed, "too much unwind information: functions share it")
	}
	return nil
}

// tail returns what the image has from an address on, up to the end of its section; nil where there is nothing.
func (r *reader) tail(rva uint32) []byte {
	if off := uint64(rva - r.lo); rva >= r.lo && off < uint64(len(r.last)) {
		return r.last[off:]
	}
	v := r.t.base + arch.Vaddr(rva)
	if !r.t.img.Linked() {
		b := r.t.img.Tail(v)
		if b != nil {
			r.lo, r.last = rva, b
		}
		return b
	}
	for i := range r.t.img.Segments() {
		s := &r.t.img.Segments()[i]
		if s.Kind != module.Loaded || uint64(v-s.Vaddr) >= s.Size {
			continue
		}
		b, _ := r.t.img.Contents(s)
		if off := uint64(v - s.Vaddr); off < uint64(len(b)) {
			r.lo, r.last, r.in = rva-uint32(off), b, i
			return b[off:]
		}
	}
	return nil
}

// wrong returns an error with the place at fault.
func (t *Table) wrong(rva uint32, cause error, format string, args ...any) error {
	d := Damage{Section: "image", Off: uint64(rva), Err: fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), cause)}
	if !t.img.Linked() {
		if name, off := t.img.Place(arch.Vaddr(rva)); name != "" {
			d.Section, d.Off = name, off
		}
		return d
	}
	secs := t.img.Sections()
	for i := range secs {
		if off := uint64(t.base + arch.Vaddr(rva) - secs[i].Addr); secs[i].Perm != 0 && off < secs[i].Size {
			d.Section, d.Off = secs[i].Name, off
			break
		}
	}
	return d
}

// maxErrors bounds the errors of a table; the last one counts the others.
const maxErrors = 1000

// Rows makes the rows of all functions that have an entry. Each entry that could not be read is missing and is an error, up to maxErrors.
func (t *Table) Rows() (*rows.Table, []error) {
	r, errs, _ := t.build()
	return r, errs
}

// build is Rows; left is how many steps it could still have taken.
func (t *Table) build() (r *rows.Table, errs []error, left int64) {
	errs = slices.Clone(t.errs)
	if !t.sorted && t.img.Linked() { // linkers sort
		errs = append(errs, t.wrong(t.dirs[0].at, ErrMalformed, "the exception directory is not sorted"))
	}
	info, failed := t.reader(), 0
	var b *rows.Builder
	var fn func(e *entry) ([]rows.Row, error)
	fail := func(err error) {
		if failed++; failed <= maxErrors {
			errs = append(errs, err)
		}
	}
	switch t.machine {
	case arch.WindowsARM64:
		a := newARM64(t, info)
		b, fn = a.b, a.rows
	case arch.ARM:
		a := newARM(t, info, fail)
		b, fn = a.b, a.rows
	default:
		a := newAMD64(t, info)
		b, fn = a.b, a.rows
	}
	b.Grow(4*len(t.entries), len(t.entries))
	budget := t.img.Reach() // of code that is looked at: entries may overlap
	for i := range t.entries {
		e := &t.entries[i]
		err := e.err
		if n := int64(e.end) - int64(e.begin); err == nil && n <= 0 {
			err = t.wrong(e.at, ErrMalformed, "function [%#x, %#x)", e.begin, e.end)
		} else if budget -= n; err == nil && budget < 0 {
			err = t.wrong(e.at, ErrMalformed, "the functions have more code than the file")
		}
		var list []rows.Row
		if err == nil {
			list, err = fn(e)
		}
		if err != nil {
			fail(err)
			continue
		}
		b.Range(t.base+arch.Vaddr(e.begin), t.base+arch.Vaddr(e.end), list)
	}
	if failed > maxErrors {
		errs = append(errs, t.wrong(t.dirs[0].at, ErrMalformed, "%d more entries", failed-maxErrors))
	}
	return rows.Build(b), errs, info.work
}

// Leaves makes the rows of code without an entry, in executable sections: there the caller is where it was at the function's first
// instruction. Code whose entry is damaged has none, and so has all code where a part of the directory is missing.
func (t *Table) Leaves() *rows.Table {
	b := rows.NewBuilder(t.machine)
	if len(t.errs) > 0 {
		return rows.Build(b)
	}
	set := rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: t.machine.SP, Off: int64(t.machine.CallPush)}, RA: t.machine.RA}
	if !t.machine.RAInReg {
		set.Rules = []rows.Rule{{Of: t.machine.RA, Kind: rows.Offset, Off: -int64(t.machine.CallPush)}}
	}
	leaf := []rows.Row{{Set: b.Intern(set)}}
	add := func(lo, hi arch.Vaddr) {
		if lo < hi {
			leaf[0].Lo = lo
			b.Range(lo, hi, leaf)
		}
	}
	type span struct{ lo, hi arch.Vaddr }
	var code []span
	for _, s := range t.img.Segments() {
		if s.Kind == module.Loaded && s.Perm&module.Exec != 0 {
			code = append(code, span{s.Vaddr, s.Vaddr + arch.Vaddr(max(s.Size, s.MemSize))})
		}
	}
	slices.SortFunc(code, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	i := 0
	for _, s := range code {
		at := s.lo
		for ; i < len(t.entries) && t.base+arch.Vaddr(t.entries[i].begin) < s.hi; i++ {
			e := &t.entries[i]
			add(at, t.base+arch.Vaddr(e.begin))
			end := s.hi // where a damaged entry's function ends at the latest
			if e.begin < e.end {
				end = t.base + arch.Vaddr(e.end)
			} else if i+1 < len(t.entries) {
				end = t.base + arch.Vaddr(t.entries[i+1].begin)
			}
			at = max(at, end)
		}
		add(at, s.hi)
	}
	return rows.Build(b)
}
