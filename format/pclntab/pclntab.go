// Package pclntab reads what every Go program carries for its own run time, stripped or not: a table of its functions, and of each how far
// the stack pointer lies below the CFA, by PC. That is all there is to a Go frame: the linker makes .debug_frame of the same numbers.
//
// It reads the layouts of Go 1.18 and 1.20, the second of which is that of Go 1.26 too, of 64-bit little-endian programs (Go:
// internal/abi/symtab.go; runtime/symtab.go: pcHeader, functab, _func, step). Damage costs the function that it is in. Bytes never cause
// a panic, and work and memory are bounded by the table's size.
package pclntab

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The values of pcHeader.magic: since Go 1.18, and since Go 1.20.
const (
	magic118 = 0xfffffff0
	magic120 = 0xfffffff1
)

const (
	header   = 8 + 8*8 // bytes
	maxFuncs = 1 << 22
	maxName  = 64 // of functions that are of interest
)

// A Table is a program's pclntab. It is valid as long as its image is open, and safe for concurrent use.
type Table struct {
	machine *arch.Machine
	bytes   []byte
	n       uint64 // functions
	text    uint64 // what their addresses count from
	quantum uint64 // least size of an instruction
	flags   int    // where a function's flags are in its description

	names, numbers, funcs []byte
}

// Open returns the table of an image; nil where there is none that can be read.
func Open(img *module.Image) *Table {
	s := img.Section(".gopclntab")
	if s == nil {
		if s = img.Section(".data.rel.ro.gopclntab"); s == nil {
			return nil
		}
	}
	b, err := img.Data(s)
	if err != nil || !img.Is64() || img.Order() != binary.LittleEndian {
		return nil
	}
	return parse(img, b)
}

func parse(img *module.Image, b []byte) *Table {
	if len(b) < header || b[6] == 0 || b[7] != 8 {
		return nil
	}
	if magic := le.Uint32(b); magic != magic118 && magic != magic120 {
		return nil
	}
	// Its words: the count of functions, of files, the text's start, and offsets of names, units, files, numbers, functions.
	word := func(i int) uint64 { return le.Uint64(b[8+8*i:]) }
	part := func(i int) []byte { return b[min(word(i), uint64(len(b))):] }
	t := &Table{machine: img.Machine(), bytes: b, n: word(0), text: word(2), quantum: uint64(b[6]), flags: 33, names: part(3), numbers: part(6), funcs: part(7)}
	if le.Uint32(b) == magic120 {
		t.flags += 4 // behind the line at which the function starts
	}
	if t.text == 0 {
		t.text = textOf(img)
	}
	if t.n > maxFuncs || uint64(len(t.funcs)) < 8*t.n+4 {
		return nil
	}
	return t
}

var le = binary.LittleEndian

// Sum writes to w all that rows are made of.
func (t *Table) Sum(w io.Writer) {
	fmt.Fprintln(w, t.machine.ELF, t.text, len(t.bytes))
	w.Write(t.bytes)
}

// function returns where function i starts, where the next one does, and its description (runtime._func), from the name on.
func (t *Table) function(i uint64) (lo, hi arch.Vaddr, desc []byte) {
	a, b, at := le.Uint32(t.funcs[8*i:]), le.Uint32(t.funcs[8*i+8:]), uint64(le.Uint32(t.funcs[8*i+4:]))
	least := uint64(4 + t.flags + 1)
	if b <= a || uint64(len(t.funcs)) < least || at > uint64(len(t.funcs))-least {
		return 0, 0, nil
	}
	return arch.Vaddr(t.text + uint64(a)), arch.Vaddr(t.text + uint64(b)), t.funcs[at+4:]
}

// Funcs calls each with the functions whose names are short. Between some of them is padding, which belongs to the one before it.
func (t *Table) Funcs(each func(name string, lo, hi arch.Vaddr)) {
	for i := range t.n {
		lo, hi, desc := t.function(i)
		if desc == nil {
			continue
		}
		off := uint64(le.Uint32(desc))
		if off >= uint64(len(t.names)) {
			continue
		}
		name := t.names[off:min(off+maxName, uint64(len(t.names)))]
		if end := bytes.IndexByte(name, 0); end > 0 {
			each(string(name[:end]), lo, hi)
		}
	}
}

// Rows returns the rows of all functions; none for machines on which Go keeps its stack otherwise than on x86-64 and AArch64.
func (t *Table) Rows() *rows.Table {
	b := rows.NewBuilder(t.machine)
	if !t.machine.StepKnown {
		return rows.Build(b)
	}
	type state struct {
		below int32
		top   bool
	}
	sets := map[state]rows.SetID{}
	var fn []rows.Row
	// Functions share their numbers, but on average there are few of them.
	for i, left := uint64(0), len(t.bytes)/4; i < t.n && left > 0; i++ {
		lo, hi, desc := t.function(i)
		if desc == nil {
			continue
		}
		const topFrame = 1 // abi.FuncFlagTopFrame: nobody calls it. The linker says so where the return address is in a register
		top := t.machine.RAInReg && desc[t.flags]&topFrame != 0
		fn = fn[:0]
		end, ok := t.steps(le.Uint32(desc[12:]), lo, hi, func(at arch.Vaddr, below int32) bool {
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
		return rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: m.SP, Off: below + 8}, RA: m.RA, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Offset, Off: -8}}}
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
	if off == 0 || uint64(off) >= uint64(len(t.numbers)) {
		return 0, false
	}
	b, number, at := t.numbers[off:], int32(-1), lo
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
		if n <= 0 || insts == 0 || insts > uint64(hi-at)/t.quantum {
			return 0, false
		}
		b = b[n:]
		number += int32(uint32(d)>>1) ^ -int32(d&1)
		if !each(at, number) {
			return 0, false
		}
		at += arch.Vaddr(insts * t.quantum)
	}
}

// textOf returns where a program's Go code begins. Since Go 1.26 the table does not say so; the linker's description of the
// module does (runtime.moduledata), or, in a program that is relocated when it is loaded, the section.
func textOf(img *module.Image) uint64 {
	s := img.Section(".text")
	if s == nil {
		return 0
	}
	const text = 8 + 6*24 + 3*8 // in a moduledata: a pointer, six slices, the table to find functions by, lowest and highest PC
	if m := img.Section(".go.module"); m != nil {
		if b, err := img.Data(m); err == nil && len(b) >= text+8 {
			if v := le.Uint64(b[text:]); v-uint64(s.Addr) < s.Size {
				return v
			}
		}
	}
	return uint64(s.Addr)
}
