// Package orc writes the unwind tables that Linux carries for itself from rows: the contents of .orc_unwind and .orc_unwind_ip (Linux,
// Documentation/arch/x86/orc-unwinder.rst; arch/x86/include/asm/orc_types.h of each version).
//
// An entry says how to find the caller's stack pointer, frame pointer and instruction pointer. Rules of other registers are left out: Linux
// does without. What an entry cannot say is refused, never cut off: offsets have 16 bits, and few registers have numbers. Add puts both sections
// into a copy of an object file.
package orc

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Version is the beginning of a version of Linux.
type Version struct{ Major, Minor int }

// ErrUnsupported is the cause of errors.
var ErrUnsupported = errors.New("unsupported")

// A Table is the ORC of some rows.
type Table struct {
	Addrs   []arch.Vaddr // of the entries, ascending
	Entries []byte       // .orc_unwind

	// Refused are the ranges whose rules no entry can say. Their entries say that nothing is known.
	Refused []Refusal
}

// A Refusal says why nothing is said of a range.
type Refusal struct {
	Lo, Hi arch.Vaddr
	Reason string
}

// IPs returns the contents of .orc_unwind_ip, in a section at an address: where each entry holds, relative to the field that says so.
func (t *Table) IPs(at arch.Vaddr) ([]byte, error) {
	b := make([]byte, 0, 4*len(t.Addrs))
	for i, a := range t.Addrs {
		d := int64(a - at - arch.Vaddr(4*i))
		if d != int64(int32(d)) {
			return nil, fmt.Errorf("entry %d, of %#x: %w: it is 2 GiB or more from its field at %#x", i, uint64(a), ErrUnsupported, uint64(at)+uint64(4*i))
		}
		b = binary.LittleEndian.AppendUint32(b, uint32(d))
	}
	return b, nil
}

// A layout has the numbers and bits of some versions.
type layout struct {
	since Version

	// Numbers of what the stack pointer and the frame pointer are based on.
	sp, fp, prevSP, spIndirect, fpIndirect uint16
	others                                 map[arch.Reg]uint16 // of the stack pointer only

	// What stands behind the bases.
	end, call, regs, partial uint16
	signal                   uint16 // the caller was interrupted; 0: regs and partial say so
	before                   bool   // spIndirect is the word at sp+offset, not the word at sp, plus the offset
}

var (
	before71 = layout{sp: 5, fp: 4, prevSP: 1, spIndirect: 9, fpIndirect: 8, others: map[arch.Reg]uint16{1: 2, 5: 3, 10: 6, 13: 7}} // rdx, rdi, r10, r13
	since71  = layout{sp: 3, fp: 4, prevSP: 8, spIndirect: 9, fpIndirect: 10, others: map[arch.Reg]uint16{0: 1, 1: 2, 5: 5, 10: 6, 13: 7}}
)

// layouts are in the order of versions, the newest first.
var layouts = func() []layout {
	of := func(l layout, major, minor int, end, call, regs, partial, signal uint16) layout {
		l.since = Version{major, minor}
		l.end, l.call, l.regs, l.partial, l.signal = end, call, regs, partial, signal
		return l
	}
	all := []layout{
		of(since71, 7, 1, 1, 2, 3, 4, 8),
		of(before71, 6, 4, 1, 2, 3, 4, 8),
		of(before71, 6, 3, 8, 0, 1, 2, 4),
		of(before71, 5, 12, 4, 0, 1, 2, 0),
		of(before71, 4, 19, 4, 0, 1, 2, 0),
		of(before71, 4, 14, 0, 0, 1, 2, 0),
	}
	all[4].before, all[5].before = true, true
	return all
}()

// Emit writes the rows of x86-64's code for a version of Linux. Neighbours that come to the same entry share it.
func Emit(t *rows.Table, v Version) (*Table, error) {
	if t.Machine != arch.AMD64 {
		return nil, fmt.Errorf("%w: ORC of machine %s", ErrUnsupported, t.Machine.Name)
	}
	for i := range layouts {
		if l := &layouts[i]; v.Major > l.since.Major || v.Major == l.since.Major && v.Minor >= l.since.Minor {
			return l.emit(t), nil
		}
	}
	return nil, fmt.Errorf("%w: ORC of Linux %d.%d", ErrUnsupported, v.Major, v.Minor)
}

// An entry is what an entry's six bytes have.
type entry struct {
	sp, fp int16
	bits   uint16
}

func (l *layout) emit(t *rows.Table) *Table {
	entries, reasons := make([]entry, len(t.Sets)), make([]string, len(t.Sets))
	for i := range t.Sets {
		var err error
		if entries[i], err = l.entry(t.Machine, &t.Sets[i]); err != nil {
			reasons[i] = err.Error()
		}
	}
	out := &Table{}
	var last entry
	for i, r := range t.Rows {
		if reason := reasons[r.Set]; reason != "" {
			n := len(out.Refused)
			if n > 0 && out.Refused[n-1].Hi == r.Lo && out.Refused[n-1].Reason == reason {
				out.Refused[n-1].Hi = t.Hi(i)
			} else {
				out.Refused = append(out.Refused, Refusal{r.Lo, t.Hi(i), reason})
			}
		}
		if e := entries[r.Set]; i == 0 || e != last {
			out.Addrs = append(out.Addrs, r.Lo)
			out.Entries = binary.LittleEndian.AppendUint16(out.Entries, uint16(e.sp))
			out.Entries = binary.LittleEndian.AppendUint16(out.Entries, uint16(e.fp))
			out.Entries = binary.LittleEndian.AppendUint16(out.Entries, e.bits)
			last = e
		}
	}
	return out
}

// ptRegs are the offsets in struct pt_regs (asm/ptrace.h), by the numbers of registers. The processor pushes what is at iret and behind.
var ptRegs = [17]int64{0: 80, 1: 96, 2: 88, 3: 40, 4: 104, 5: 112, 6: 32, 7: 152, 8: 72, 9: 64, 10: 56, 11: 48, 12: 24, 13: 16, 14: 8, 15: 0, 16: 128}

const iret = 128

// entry returns what says the rules of a set, or the reason why nothing does.
func (l *layout) entry(m *arch.Machine, s *rows.Set) (e entry, err error) {
	switch {
	case s.Gap():
		return entry{}, nil
	case s.Outermost():
		return entry{bits: l.end << 8}, nil
	case s.Flags&rows.SyncOnly != 0:
		return e, errors.New("right at call sites only")
	case s.RA != m.RA:
		return e, fmt.Errorf("the return address is in column %s", m.RegName(s.RA))
	}
	refuse := func(format string, args ...any) {
		if err == nil {
			err = fmt.Errorf(format, args...)
		}
	}
	short := func(what string, v int64) int16 {
		if v != int64(int16(v)) {
			refuse("%s is at offset %d", what, v)
		}
		return int16(v)
	}
	const cfa = "the CFA"
	number := uint16(0)
	switch c := &s.CFA; {
	case c.Kind == rows.CFAReg && c.Reg == m.SP:
		number, e.sp = l.sp, short(cfa, c.Off)
	case c.Kind == rows.CFAReg && c.Reg == m.FP:
		number, e.sp = l.fp, short(cfa, c.Off)
	case c.Kind == rows.CFAReg && l.others[c.Reg] != 0:
		number, e.sp = l.others[c.Reg], short(cfa, c.Off)
	case c.Kind == rows.CFARegDeref && c.Reg == m.FP && c.Off2 == 0:
		number, e.sp = l.fpIndirect, short(cfa, c.Off)
	case c.Kind == rows.CFARegDeref && c.Reg == m.SP && l.before && c.Off2 == 0:
		number, e.sp = l.spIndirect, short(cfa, c.Off)
	case c.Kind == rows.CFARegDeref && c.Reg == m.SP && !l.before && c.Off == 0:
		number, e.sp = l.spIndirect, short(cfa, c.Off2)
	default:
		refuse("the CFA is %s", s.CFACell(m))
	}
	typ, isRegs, reason := l.typ(m, s)
	if reason != nil {
		refuse("%w", reason)
	}
	const frame = "the frame pointer"
	switch r, ok := s.Rule(m.FP); {
	case isRegs && r.Kind == rows.Offset && r.Off == ptRegs[m.FP]:
	case r.Kind == rows.Offset && ok:
		number, e.fp = number|l.prevSP<<4, short(frame, r.Off)
	case r.Kind == rows.RegDeref && r.Reg == m.FP:
		number, e.fp = number|l.fp<<4, short(frame, r.Off)
	case r.Kind == rows.SameValue && ok && !isRegs, !ok && !isRegs && s.Flags&rows.Partial == 0: // a call preserves it
	case !ok:
		refuse("%s is lost", frame)
	default:
		refuse("%s is %s", frame, r.Cell(m))
	}
	if err != nil {
		return entry{}, err
	}
	e.bits = number | typ<<8
	return e, nil
}

// typ returns what stands behind the bases, and whether all registers are in a struct pt_regs.
func (l *layout) typ(m *arch.Machine, s *rows.Set) (typ uint16, isRegs bool, err error) {
	ra, _ := s.Rule(m.RA)
	stack, ok := s.Rule(m.SP)
	if !ok {
		stack = rows.Rule{Of: m.SP, Kind: rows.ValOffset}
	}
	signal := s.Flags&rows.Signal != 0
	known := false // the type says which flag it has
	at := func(r rows.Rule, off int64) bool { return r.Kind == rows.Offset && r.Off == off }
	switch {
	case at(ra, -int64(m.CallPush)) && stack.Kind == rows.ValOffset && stack.Off == 0:
		typ = l.call
	case at(ra, ptRegs[m.RA]-iret) && at(stack, ptRegs[m.SP]-iret):
		typ, known = l.partial, true
	case at(ra, ptRegs[m.RA]) && at(stack, ptRegs[m.SP]):
		typ, known, isRegs = l.regs, true, true
		for r, off := range ptRegs {
			if rule, _ := s.Rule(arch.Reg(r)); arch.Reg(r) != m.FP && !at(rule, off) {
				return 0, true, fmt.Errorf("%s is not in struct pt_regs", m.RegName(arch.Reg(r)))
			}
		}
	case stack.Kind != rows.ValOffset || stack.Off != 0:
		return 0, false, errors.New("the stack pointer is " + stack.Cell(m))
	default:
		return 0, false, errors.New("the return address is " + ra.Cell(m))
	}
	switch {
	case l.signal != 0 && signal:
		typ |= l.signal
	case l.signal == 0 && signal != known:
		return 0, isRegs, errors.New("before Linux 6.3, the type says whether the caller was interrupted")
	}
	return typ, isRegs, nil
}
