// Package sframe writes the rows of a module as an SFrame section, of version 2 or 3, for x86-64 and AArch64, and puts it into a copy of an ELF
// file.
//
// The format says how the CFA, the return address and the frame pointer are found (binutils: libsframe/doc/sframe-spec.texi). What it cannot say
// is left out, and counted by reason: a reader finds nothing there, and nothing wrong. Package format/sframe reads the format.
package sframe

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Section is an SFrame section, and what it does not say.
type Section struct {
	Bytes     []byte
	Addr      arch.Vaddr  // where it must be loaded
	Functions int         // entries; a function of several parts has several
	Rows      int         // rows that the table has, of those the section says
	Left      []rows.Loss // by reason, the most addresses first
}

// Constants of the format, by the specification's names.
const (
	magic       = 0xdee2
	headerSize  = 28
	fSorted     = 1 // SFRAME_F_FDE_SORTED
	fStartPCRel = 4 // SFRAME_F_FDE_FUNC_START_PCREL
	abiARM64    = 2 // SFRAME_ABI_AARCH64_ENDIAN_LITTLE
	abiAMD64    = 3 // SFRAME_ABI_AMD64_ENDIAN_LITTLE
	infoMask    = 0x10
	infoKeyB    = 0x20
	infoSignal  = 0x80
	freSP       = 0x01
	freSigned   = 0x80
	ctlReg      = 1
	ctlDeref    = 2
	ctlShift    = 3
	maxRows     = math.MaxUint16 // of an entry, in version 3
	pltBlock    = 16             // bytes of an entry of a lazy procedure linkage table
)

// Emit returns the section of version 2 or 3 that says what t does, to be loaded at addr. Each function gets an entry of its own; without bounds,
// only gaps part functions. The same input gives the same bytes.
func Emit(t *rows.Table, version int, addr arch.Vaddr, bounds rows.Bounds) (*Section, error) {
	if version != 2 && version != 3 {
		return nil, fmt.Errorf("SFrame of version %d is not written", version)
	}
	e := emitter{Section: &Section{Addr: addr}, m: t.Machine, version: version, left: rows.Losses{}}
	switch t.Machine.ELF {
	case arch.EM_X86_64:
		e.abi, e.fixedRA = abiAMD64, -int64(t.Machine.CallPush)
	case arch.EM_AARCH64:
		e.abi = abiARM64
	default:
		return nil, fmt.Errorf("SFrame for %s is not written", t.Machine.Name)
	}
	e.table(t, bounds)
	if err := e.lay(); err != nil {
		return nil, err
	}
	e.Left = e.left.List()
	return e.Section, nil
}

// An emitter has the entries of a section.
type emitter struct {
	*Section
	m        *arch.Machine
	version  int
	abi      uint8
	fixedRA  int64
	left     rows.Losses
	entries  []*entry
	contents []content // by set
}

// An entry is a range of rows with one kind of encoding.
type entry struct {
	lo, hi arch.Vaddr
	info   uint8 // but the width of starts
	flex   bool
	plt    bool
	rows   []row
}

type row struct {
	at arch.Vaddr
	*content
}

// table makes entries of all rows.
func (e *emitter) table(t *rows.Table, bounds rows.Bounds) {
	e.contents = make([]content, len(t.Sets))
	for i := range t.Sets {
		if rows.SetID(i) != rows.GapID {
			e.contents[i] = e.contentOf(&t.Sets[i])
		}
	}
	var last *entry // the one that goes on
	for p := range t.Pieces(bounds) {
		s := &e.contents[p.Set]
		reason := s.reason
		if s.plt && (p.Lo%pltBlock != 0 || p.Hi-p.Lo < pltBlock) {
			reason = "a linkage table that is not aligned"
		}
		if p.Hi-p.Lo > math.MaxUint32 {
			reason = "a row of 4 GiB and more"
		}
		if reason != "" {
			e.left.Add(reason, p)
			last = nil
			continue
		}
		if p.First {
			e.Rows++
		}
		if p.Begins || last == nil || last.info != s.info || s.plt || last.plt || len(last.rows) == maxRows || p.Hi-last.lo > math.MaxUint32 {
			last = &entry{lo: p.Lo, info: s.info, plt: s.plt}
			e.entries = append(e.entries, last)
		}
		last.rows = append(last.rows, row{p.Lo, s})
		last.flex = last.flex || s.flexOnly
		last.hi = p.Hi
	}
}

// lay writes all entries. They are sorted, as rows are.
func (e *emitter) lay() error {
	le := binary.LittleEndian
	fdeSize := 20
	if e.version == 3 {
		fdeSize = 16
	}
	var fdes, fres []byte
	num := 0
	for i, x := range e.entries {
		field := e.Addr // what the start counts from
		if e.version == 3 {
			field += arch.Vaddr(headerSize + fdeSize*i)
		}
		start := int64(x.lo - field)
		if e.version == 2 && start != int64(int32(start)) {
			return fmt.Errorf("a function at %#x is too far from a section at %#x", uint64(x.lo), uint64(e.Addr))
		}
		if len(fres) > math.MaxUint32-1<<20 {
			return fmt.Errorf("a section of %d bytes", len(fres))
		}
		at := uint32(len(fres))
		encoded, count, info := x.encode(e.abi)
		num += count
		repeat := byte(0)
		if x.plt {
			repeat = pltBlock
		}
		if e.version == 3 {
			fdes = le.AppendUint32(le.AppendUint32(le.AppendUint64(fdes, uint64(start)), uint32(x.hi-x.lo)), at)
			info2 := byte(0)
			if x.flex {
				info2 = 1
			}
			fres = append(le.AppendUint16(fres, uint16(count)), info, info2, repeat)
		} else {
			fdes = le.AppendUint32(le.AppendUint32(le.AppendUint32(le.AppendUint32(fdes, uint32(start)), uint32(x.hi-x.lo)), at), uint32(count))
			fdes = append(fdes, info, repeat, 0, 0)
		}
		fres = append(fres, encoded...)
	}
	flags := byte(fSorted)
	if e.version == 3 {
		flags |= fStartPCRel
	}
	b := append(le.AppendUint16(nil, magic), byte(e.version), flags, e.abi, 0, byte(e.fixedRA), 0)
	for _, v := range []int{len(e.entries), num, len(fres), 0, len(fdes)} {
		b = le.AppendUint32(b, uint32(v))
	}
	e.Bytes, e.Functions = slices.Concat(b, fdes, fres), len(e.entries)
	return nil
}

// encode returns the rows of an entry, their number, and its info byte.
func (x *entry) encode(abi uint8) (b []byte, n int, info uint8) {
	width := uint8(0)
	switch span := uint64(x.rows[len(x.rows)-1].at - x.lo); {
	case span > math.MaxUint16:
		width = 2
	case span > math.MaxUint8:
		width = 1
	}
	info = x.info | width
	add := func(at uint64, s *content, off int64) {
		switch width {
		case 0:
			b = append(b, byte(at))
		case 1:
			b = binary.LittleEndian.AppendUint16(b, uint16(at))
		default:
			b = binary.LittleEndian.AppendUint32(b, uint32(at))
		}
		b = s.encode(b, x.flex, off)
		n++
	}
	if x.plt {
		s := x.rows[0].content
		if s.pushed > 0 {
			add(0, s, 0)
		}
		if s.pushed < pltBlock {
			add(uint64(s.pushed), s, 8)
		}
		return b, n, info | infoMask
	}
	var last *content
	for _, r := range x.rows {
		if last != nil && last.same(r.content) {
			continue // they differ in other registers
		}
		add(uint64(r.at-x.lo), r.content, 0)
		last = r.content
	}
	return b, n, info
}
