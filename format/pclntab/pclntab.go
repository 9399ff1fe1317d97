// Package pclntab reads the table that every Go program carries for its own run time, stripped or not. For each function, the table has the
// distance of the stack pointer below the CFA, by PC. A Go frame needs no more: the linker makes .debug_frame of the same numbers.
//
// Header reads the layouts of Go 1.2, 1.16, 1.18 and 1.20; Go 1.26 still has the last one. Package symbol/gosym finds names and lines through
// it. Rows are made from the last two layouts, in 64-bit little-endian programs (Go: internal/abi/symtab.go; runtime/symtab.go: pcHeader,
// functab, _func, step; "Go 1.2 Runtime Symbol Information"). Damage costs the function around it. Bytes never cause a panic; the size of the
// table bounds work and memory.
package pclntab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

const maxName = 64 // of functions that are of interest

// A Table makes rows of a program's pclntab. It is valid as long as its image is open, and safe for concurrent use.
type Table struct {
	*Header
	machine *arch.Machine
	flags   int // where a function's flags are in its description
}

// Open returns the table of an image; nil where there is none that rows can be made of. Searching a whole file takes 80 ms for 100 MB. So
// a file without section headers is not searched where another linker than Go's made it, and left its own unwind information.
func Open(img *module.Image) *Table {
	foreign := func(s module.Segment) bool { return s.Kind == module.UnwindIndex }
	if len(img.Sections()) == 0 && slices.ContainsFunc(img.Segments(), foreign) && img.GoBuildID() == nil {
		return nil
	}
	h, err := Find(img)
	if h == nil || err != nil {
		return nil
	}
	return newTable(h, img.Machine())
}

func newTable(h *Header, m *arch.Machine) *Table {
	if !h.relative() || h.PtrSize != 8 || h.Order != binary.LittleEndian {
		return nil
	}
	t := &Table{h, m, 33}
	if h.Version == Go120 {
		t.flags += 4 // behind the line at which the function starts
	}
	return t
}

// Sum writes to w all that rows are made of.
func (t *Table) Sum(w io.Writer) {
	fmt.Fprintln(w, t.machine.ELF, t.Text, len(t.Bytes))
	w.Write(t.Bytes)
}

// function returns where function i starts, where the next one does, and its description; nil where that is damaged.
func (t *Table) function(i int) (lo, hi arch.Vaddr, desc []byte) {
	lo, hi, desc = t.Start(i), t.Start(i+1), t.Desc(i)
	if hi <= lo || len(desc) <= t.flags {
		return 0, 0, nil
	}
	return lo, hi, desc
}

// Funcs calls each with the functions whose names are short. Between some of them is padding, which belongs to the one before it.
func (t *Table) Funcs(each func(name string, lo, hi arch.Vaddr)) {
	for i := range t.N {
		lo, hi, desc := t.function(i)
		if desc == nil {
			continue
		}
		off := uint64(t.U32(desc, 0))
		if off >= uint64(len(t.Names)) {
			continue
		}
		name := t.Names[off:min(off+maxName, uint64(len(t.Names)))]
		if end := bytes.IndexByte(name, 0); end > 0 {
			each(string(name[:end]), lo, hi)
		}
	}
}

// Rows returns the rows of all functions; none for machines on which Go keeps its stack otherwise than on x86-64 and AArch64.
func (t *Table) Rows() *rows.Table {
	b := rows.NewBuilder(t.machine)
	if t.machine.GoArch == "" {
		return rows.Build(b)
	}
	type state struct {
		below int32
		top   bool
	}
	sets := map[state]rows.SetID{}
	var fn []rows.Row
	// Functions share their numbers, but on average there are few of them.
	for i, left := 0, len(t.Bytes)/4; i < t.N && left > 0; i++ {
		lo, hi, desc := t.function(i)
		if desc == nil {
			continue
		}
		const topFrame = 1 // abi.FuncFlagTopFrame: nobody calls it. The linker says so where the return address is in a register
		top := t.machine.RAInReg && desc[t.flags]&topFrame != 0
		fn = fn[:0]
		end, ok := t.steps(t.U32(desc, 12), lo, hi, func(at arch.Vaddr, below int32) bool {
			id, ok := sets[state{below, top}]
			if !ok {
				id = b.Intern(set(t.machine, int64(below), top))
				sets[state{below, top}] = id
			}
			if n := len(fn); n == 0 || fn[n-1].Set != id {
				fn = append(fn, rows.Row{Lo: at, Set: id})
			}
			left--
			return left > 0
		})
		if ok {
			b.Range(lo, end, fn)
		}
	}
	return rows.Build(b)
}

// set is what holds where the stack pointer lies so many bytes below where it was at the function's entry: on x86-64 above the return address,
// which the call has pushed; elsewhere the function keeps that at its stack pointer, if it has a frame. top says that nobody called it.
func set(m *arch.Machine, below int64, top bool) rows.Set {
	if !m.RAInReg {
		return rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: below + int64(m.CallPush)}, RA: m.RA, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -int64(m.CallPush)}}}
	}
	ra := rows.Rule{Of: m.RA, Kind: rows.SameValue}
	switch {
	case top:
		ra.Kind = rows.Undefined
	case below > 0:
		ra = rows.Rule{Of: m.RA, Kind: rows.Offset, Off: -below}
	}
	return rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: below}, RA: m.RA, Rules: []rows.Rule{ra, {Of: m.SP, Kind: rows.ValOffset}}}
}

// steps calls each with the numbers at an offset: from which PC on which holds. They are pairs of differences, of the number (zigzag, the
// first from -1) and of the PC in instructions, until a difference of 0 (runtime/symtab.go: step). It returns where the last one ends, which is
// the function's end; ok is false where there are none, or a damaged one.
func (t *Table) steps(off uint32, lo, hi arch.Vaddr, each func(at arch.Vaddr, number int32) bool) (end arch.Vaddr, ok bool) {
	if off == 0 || uint64(off) >= uint64(len(t.Numbers)) {
		return 0, false
	}
	b, number, at := t.Numbers[off:], int32(-1), lo
	for {
		d, n := binary.Uvarint(b)
		if n <= 0 || d > 1<<32-1 {
			return 0, false
		}
		if d == 0 && at != lo {
			return at, true
		}
		b = b[n:]
		insts, n := binary.Uvarint(b)
		if n <= 0 || insts == 0 || insts > uint64(hi-at)/t.Quantum {
			return 0, false
		}
		b = b[n:]
		number += int32(uint32(d)>>1) ^ -int32(d&1)
		if !each(at, number) {
			return 0, false
		}
		at += arch.Vaddr(insts * t.Quantum)
	}
}
