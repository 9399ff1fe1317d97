// Package sframe reads SFrame sections, from bytes to rows: the section .sframe, or what the program header PT_GNU_SFRAME leads to.
//
// It implements the SFrame format (binutils: libsframe/doc/sframe-spec.texi), version 1, version 2 with both errata, and version 3 with flexible
// entries; for x86-64, AArch64 and s390x, in both byte orders. The format says how the CFA, the return address and the frame pointer are found,
// at each program counter, and nothing of other registers: its rows are partial.
//
// A damaged entry costs itself only. Bytes never cause a panic; the size of the sections bounds work and memory.
package sframe

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Constants of the format, by the specification's names. An entry for a function is an FDE; a row of it is an FRE.
const (
	magic      = 0xdee2
	headerSize = 28 // without the auxiliary header

	fFuncStartPCRel = 4 // SFRAME_F_FDE_FUNC_START_PCREL, of version 2, erratum 1, and version 3

	abiARM64Big    = 1 // SFRAME_ABI_AARCH64_ENDIAN_BIG
	abiARM64Little = 2 // SFRAME_ABI_AARCH64_ENDIAN_LITTLE
	abiAMD64       = 3 // SFRAME_ABI_AMD64_ENDIAN_LITTLE
	abiS390        = 4 // SFRAME_ABI_S390X_ENDIAN_BIG
)

// name is the section's name.
const name = ".sframe"

// A Table is the SFrame sections of an image. It is valid as long as its image is open, and safe for concurrent use.
type Table struct {
	machine  *arch.Machine
	sections []*section
	ranges   func() []span
}

// A section is one SFrame section.
type section struct {
	data    []byte // up to the end that the header gives
	addr    arch.Vaddr
	order   binary.ByteOrder
	version uint8
	pcRel   bool // a function's start counts from the field that has it; else from the section
	abi     uint8
	fixedFP int64 // from the CFA, to the caller's frame pointer; 0: each row says where it is
	fixedRA int64 // the same, of the return address
	fdes    part  // entries of fixed size
	fres    part
	count   int // of entries

	bad map[uint64]error // relocations that could not be applied, by the offsets of their fields
}

// A part is a piece of a section.
type part struct {
	off  int
	data []byte
}

// An Error is damage at an offset of a section. Err is one of module's causes of errors, with what was read.
type Error struct {
	Off uint64
	Err error
}

func (e *Error) Error() string { return fmt.Sprintf("%s+%#x: %v", name, e.Off, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

func damage(off int, cause error, format string, args ...any) *Error {
	return &Error{uint64(off), fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), cause)}
}

// Open returns the SFrame sections of an image; nil where it has none. With an error, it returns those that can be read.
func Open(img *module.Image) (*Table, error) {
	t := &Table{machine: img.Machine()}
	var first error
	add := func(b []byte, addr arch.Vaddr, bad []module.RelocError, err error) {
		if err == nil && len(b) == 0 {
			return
		}
		var s *section
		if err == nil {
			s, err = parse(b, addr, t.machine)
		}
		if err == nil {
			s.pcRel = s.pcRel || !img.Linked() // the relocations of an object file make all starts so
			s.bad = map[uint64]error{}
			for i := range bad {
				s.bad[bad[i].Off] = &bad[i]
			}
			t.sections = append(t.sections, s)
		} else if first == nil {
			first = fmt.Errorf("%s: %w", img.Name(), err)
		}
	}
	secs := img.Sections()
	for i := range secs {
		if secs[i].Name == name {
			b, bad, err := img.Relocate(&secs[i])
			add(b, secs[i].Addr, bad, err)
		}
	}
	if !slices.ContainsFunc(secs, func(s module.Section) bool { return s.Name == name }) {
		segs := img.Segments()
		for i := range segs {
			if segs[i].Kind == module.SFrame && segs[i].Size > 0 {
				b, err := img.Contents(&segs[i])
				add(b, segs[i].Vaddr, nil, err)
			}
		}
	}
	if len(t.sections) == 0 && first == nil {
		return nil, nil
	}
	t.ranges = sync.OnceValue(t.sort)
	return t, first
}

// New reads a section that is loaded at addr.
func New(b []byte, addr arch.Vaddr, m *arch.Machine) (*Table, error) {
	s, err := parse(b, addr, m)
	if err != nil {
		return nil, err
	}
	t := &Table{machine: m, sections: []*section{s}}
	t.ranges = sync.OnceValue(t.sort)
	return t, nil
}

// parse reads the header of a section. What follows the parts that the header names is no part of the section: a segment may be longer.
func parse(b []byte, addr arch.Vaddr, m *arch.Machine) (*section, error) {
	if len(b) < headerSize {
		return nil, damage(0, module.ErrTruncated, "a header of %d bytes", len(b))
	}
	s := &section{addr: addr, order: binary.LittleEndian, version: b[2], abi: b[4], fixedFP: int64(int8(b[5])), fixedRA: int64(int8(b[6]))}
	if s.order.Uint16(b) != magic {
		s.order = binary.BigEndian
	}
	if s.order.Uint16(b) != magic {
		return nil, damage(0, module.ErrMalformed, "magic number %#04x", s.order.Uint16(b))
	}
	if s.version < 1 || s.version > 3 {
		return nil, damage(2, module.ErrUnsupported, "version %d", s.version)
	}
	s.pcRel = b[3]&fFuncStartPCRel != 0 && s.version > 1
	of := map[uint8]uint16{abiARM64Big: arch.EM_AARCH64, abiARM64Little: arch.EM_AARCH64, abiAMD64: arch.EM_X86_64, abiS390: arch.EM_S390}
	if em, ok := of[s.abi]; !ok {
		return nil, damage(4, module.ErrUnsupported, "ABI %d", s.abi)
	} else if em != m.ELF {
		return nil, damage(4, module.ErrMalformed, "ABI %d in a file for %s", s.abi, m.Name)
	}
	u32 := func(at int) uint64 { return uint64(s.order.Uint32(b[at:])) }
	body := uint64(headerSize) + uint64(b[7])
	cut := func(from, size uint64, what string, at int) (part, error) {
		lo := body + from
		if lo > uint64(len(b)) || size > uint64(len(b))-lo {
			return part{}, damage(at, module.ErrTruncated, "%s at %#x, of %#x bytes", what, lo, size)
		}
		return part{int(lo), b[lo : lo+size]}, nil
	}
	var err error
	s.count = int(u32(8))
	if s.fdes, err = cut(u32(20), uint64(s.count)*uint64(s.fdeSize()), fmt.Sprintf("%d entries", s.count), 8); err != nil {
		return nil, err
	}
	if s.fres, err = cut(u32(24), u32(16), "rows", 16); err != nil {
		return nil, err
	}
	s.data = b[:max(s.fdes.off+len(s.fdes.data), s.fres.off+len(s.fres.data), int(min(body, uint64(len(b)))))]
	return s, nil
}

// fdeSize is the size of an entry in the array of entries.
func (s *section) fdeSize() int { return []int{1: 17, 2: 20, 3: 16}[s.version] }

// An fde says which function an entry is for, and where its rows are.
type fde struct {
	lo, hi arch.Vaddr
	fres   []byte // from its first row on
	off    int    // of the first row, in the section
	num    int    // of rows
	info   uint8
	flex   bool // rows have control words
	repeat uint64
}

// Bits of an entry's info byte.
const (
	infoWidth  = 0x0f // 0, 1, 2: a row's start has 1, 2, 4 bytes
	infoMask   = 0x10 // SFRAME_FDE_TYPE_PCMASK: rows repeat
	infoKeyB   = 0x20 // SFRAME_AARCH64_PAUTH_KEY_B
	infoSignal = 0x80 // version 3
)

// entry reads entry i.
func (s *section) entry(i int) (f fde, err *Error) {
	at := i * s.fdeSize()
	b, off := s.fdes.data[at:][:s.fdeSize()], s.fdes.off+at
	if bad := s.bad[uint64(off)]; bad != nil {
		return f, &Error{uint64(off), bad}
	}
	base := s.addr
	if s.pcRel {
		base += arch.Vaddr(off)
	}
	u32 := func(at int) uint64 { return uint64(s.order.Uint32(b[at:])) }
	var start, size, rows uint64
	if s.version == 3 {
		start, size, rows = s.order.Uint64(b), u32(8), u32(12)
	} else {
		start, size, rows = uint64(int64(int32(u32(0)))), u32(4), u32(8)
	}
	f.lo = base + arch.Vaddr(start)
	f.hi = f.lo + arch.Vaddr(size)
	if f.hi < f.lo {
		return f, damage(off, module.ErrMalformed, "a function at %#x, of %#x bytes", uint64(f.lo), size)
	}
	if rows > uint64(len(s.fres.data)) {
		return f, damage(off, module.ErrTruncated, "rows at %#x, of %#x bytes", rows, len(s.fres.data))
	}
	f.off, f.fres = s.fres.off+int(rows), s.fres.data[rows:]
	switch s.version {
	case 1:
		f.num, f.info, f.repeat = int(u32(12)), b[16], 16
	case 2:
		f.num, f.info, f.repeat = int(u32(12)), b[16], uint64(b[17])
	case 3: // the attributes are in front of the rows
		const attr = 5
		if len(f.fres) < attr {
			return f, damage(f.off, module.ErrTruncated, "attributes of a function")
		}
		f.num, f.info, f.repeat = int(s.order.Uint16(f.fres)), f.fres[2], uint64(f.fres[4])
		switch kind := f.fres[3] & 0x1f; kind {
		case 0:
		case 1:
			f.flex = true
		default:
			return f, damage(f.off+3, module.ErrUnsupported, "a function of type %d", kind)
		}
		f.off, f.fres = f.off+attr, f.fres[attr:]
	}
	if f.info&infoWidth > 2 {
		return f, damage(f.off, module.ErrUnsupported, "rows of type %d", f.info&infoWidth)
	}
	if f.info&infoMask != 0 && f.repeat == 0 {
		return f, damage(off, module.ErrMalformed, "rows that repeat after 0 bytes")
	}
	return f, nil
}

// Sum writes to w all that rows are made of.
func (t *Table) Sum(w io.Writer) {
	for _, s := range t.sections {
		fmt.Fprintln(w, name, t.machine.ELF, uint64(s.addr), s.pcRel, len(s.data))
		w.Write(s.data)
	}
}

// Size is the size of the sections, in bytes.
func (t *Table) Size() (n uint64) {
	for _, s := range t.sections {
		n += uint64(len(s.data))
	}
	return n
}

// A span is the range of a function.
type span struct{ lo, hi arch.Vaddr }

// sort returns the ranges of all functions, by their start.
func (t *Table) sort() (all []span) {
	for _, s := range t.sections {
		for i := range s.count {
			if f, err := s.entry(i); err == nil && f.lo < f.hi {
				all = append(all, span{f.lo, f.hi})
			}
		}
	}
	slices.SortStableFunc(all, func(a, b span) int {
		switch {
		case a.lo < b.lo:
			return -1
		case a.lo > b.lo:
			return 1
		}
		return 0
	})
	return all
}

// Bounds returns the range of the function with the greatest start not above an address, if it reaches so far.
func (t *Table) Bounds(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	all := t.ranges()
	i := sort.Search(len(all), func(i int) bool { return all[i].lo > pc }) - 1
	if i < 0 || pc >= all[i].hi {
		return 0, 0, false
	}
	return all[i].lo, all[i].hi, true
}
