package gosym

import (
	"encoding/binary"
	"math"
	"sort"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/pclntab"
)

// A Place is an address's place in the source of a function.
type Place struct {
	Func string
	File string
	Line uint32 // 0: not known
}

// Places returns the source places of each address: the innermost inlined call first, the function itself last; nil for an address in no
// function. It is fastest when addrs are sorted.
func (t *Table) Places(addrs []arch.Vaddr) [][]Place {
	out := make([][]Place, len(addrs))
	d := decoder{t: t, left: 1<<24 + len(addrs)<<12, cur: -1, strings: map[[3]uint32]string{}}
	for i, v := range addrs {
		if k, ok := t.index(v); ok {
			out[i] = d.places(k, v)
		}
	}
	return out
}

// A decoder reads the tables of functions, one function after the other.
type decoder struct {
	t    *Table
	left int // steps: tables can overlap, and say that there is more than there is

	cur              int // function
	f                fn
	files, lines, in []run
	strings          map[[3]uint32]string // of names and files, by kind, unit and number
}

// A run is the addresses from the one before it to end, which have one number.
type run struct {
	end uint64 // from the function's start
	val int32
}

func (d *decoder) places(k int, v arch.Vaddr) (out []Place) {
	if k != d.cur {
		d.cur, d.f = k, d.t.fn(k)
		d.files, d.lines, d.in = d.runs(d.files, d.f.file), d.runs(d.lines, d.f.line), d.in[:0]
		if d.f.tree != 0 && d.f.inline != noTree && d.t.Inlined != nil {
			d.in = d.runs(d.in, d.f.tree)
		}
	}
	pc := uint64(v - d.f.entry)
	if n := len(d.lines); n > 0 && pc >= d.lines[n-1].end {
		return nil // padding
	}
	for last := int32(math.MaxInt32); ; {
		p := Place{File: d.file(value(d.files, pc)), Line: uint32(max(value(d.lines, pc), 0))}
		ix := value(d.in, pc)
		name, parent, ok := d.call(ix)
		// A call comes before those that are inlined into it. Where the compiler has removed its code, the table does not say so.
		if !ok || ix >= last || len(out) == maxDepth {
			p.Func = d.name(d.f.nameOff)
			return append(out, p)
		}
		p.Func = d.name(name)
		out = append(out, p)
		pc, last = uint64(parent), ix
	}
}

// maxDepth bounds how deep inlined calls are nested.
const maxDepth = 1 << 8

// call returns an entry of the inlining tree: which function's code it is, and where the call is that it is in place of.
func (d *decoder) call(ix int32) (name, parent uint32, ok bool) {
	if ix < 0 {
		return 0, 0, false
	}
	size, field := uint64(16), uint64(4) // runtime.inlinedCall: the function's kind, name, parentPc, line
	if d.t.Version == pclntab.Go118 {
		size, field = 20, 12 // and the parent's index and kind, file, line, name, parentPc
	}
	at := uint64(d.f.inline) + uint64(ix)*size
	if at+size > uint64(len(d.t.Inlined)) {
		return 0, 0, false
	}
	return d.t.U32(d.t.Inlined, at+field), d.t.U32(d.t.Inlined, at+field+4), true
}

func (d *decoder) name(off uint32) string {
	return d.keep([3]uint32{0, 0, off}, func() string { return d.t.name(off) })
}

func (d *decoder) file(n int32) string {
	if n < 0 {
		return ""
	}
	return d.keep([3]uint32{1, d.f.unit, uint32(n)}, func() string { return d.t.file(d.f.unit, n) })
}

func (d *decoder) keep(k [3]uint32, get func() string) string {
	s, ok := d.strings[k]
	if !ok {
		s = get()
		d.strings[k] = s
	}
	return s
}

// value returns the number of an address; -1 where there is none.
func value(runs []run, pc uint64) int32 {
	i := sort.Search(len(runs), func(i int) bool { return runs[i].end > pc })
	if i == len(runs) {
		return -1
	}
	return runs[i].val
}

// runs decodes a table of numbers: pairs of a difference of values, with its sign in the lowest bit, and one of addresses. A difference of 0
// ends it, except at its start.
func (d *decoder) runs(out []run, off uint32) []run {
	out = out[:0]
	if off == 0 || uint64(off) >= uint64(len(d.t.Numbers)) {
		return out
	}
	b := d.t.Numbers[off:]
	end, val := uint64(0), int32(-1)
	for first := true; d.left > 0; first = false {
		d.left--
		delta, n := binary.Uvarint(b)
		if n <= 0 || delta == 0 && !first {
			break
		}
		b = b[n:]
		step, n := binary.Uvarint(b)
		if n <= 0 {
			break
		}
		b = b[n:]
		z := uint32(delta)
		val += int32(z>>1) ^ -int32(z&1)
		end += step * d.t.Quantum
		out = append(out, run{end, val})
	}
	return out
}
