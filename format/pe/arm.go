package pe

import (
	"math/bits"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Registers of 32-bit Arm, by DWARF's numbers.
const (
	armSP = 13
	armLR = 14
	armD0 = 256
)

// A thumb undoes an instruction of a prologue, or has the effect of one of an epilogue.
type thumb struct {
	size  uint8  // of the instruction, in bytes; 0: none
	mask  uint16 // r0 to r12 and lr, which are popped
	first uint8  // of the double-precision registers that are popped
	count uint8  // how many
	from  uint8  // the stack pointer is set from this register; 0: from none
	lr    bool   // lr is read from the top of the stack
	pop   int64  // by what the stack pointer rises then
}

// A thumbSequence is the codes of a prologue or of an epilogue.
type thumbSequence struct {
	ops  []thumb
	size int64 // bytes of the instructions
	last int64 // bytes of the branch behind an epilogue's
}

func (q *thumbSequence) add(o thumb) {
	q.ops = append(q.ops, o)
	q.size += int64(o.size)
}

// upTo is the registers from r4 to another one.
func upTo(r uint32) uint16 { return (1<<(r+1) - 1) &^ 0xf }

// armOps reads the codes from an index on ("ARM exception handling", "Unwind codes"), up to the end. What an end says of an instruction is about
// epilogues only.
func (t *Table) armOps(list []thumb, codes []byte, index int, rva uint32) (q thumbSequence, err error) {
	q.ops = list
	for i := index; ; {
		if i >= len(codes) {
			return q, t.wrong(rva+uint32(len(codes))-1, ErrTruncated, "unwind codes without an end")
		}
		c, size := codes[i], 1
		switch {
		case c >= 0x80 && c < 0xc0, c >= 0xe8 && c < 0xf0, c == 0xf5, c == 0xf6:
			size = 2
		case c == 0xf7, c == 0xf9:
			size = 3
		case c == 0xf8, c == 0xfa:
			size = 4
		}
		if i+size > len(codes) {
			return q, t.wrong(rva+uint32(i), ErrTruncated, "unwind code %#x", c)
		}
		v := uint32(0) // the code as a number
		for _, x := range codes[i : i+size] {
			v = v<<8 | uint32(x)
		}
		lr := func(set bool) uint16 {
			if set {
				return 1 << armLR
			}
			return 0
		}
		o := thumb{size: 2}
		switch {
		case c < 0x80: // add sp, #n
			o.pop = int64(c) * 4
		case c < 0xc0: // pop.w {r0-r12, lr}
			o.size, o.mask = 4, uint16(v&0x1fff)|lr(v&0x2000 != 0)
		case c < 0xd0: // mov sp, rN
			if o.from = c & 15; o.from == 0 || o.from >= armSP {
				return q, t.wrong(rva+uint32(i), ErrUnsupported, "unwind code %#x", c)
			}
		case c < 0xd8: // pop {r4-rN, lr}
			o.mask = upTo(uint32(c&3)+4) | lr(c&4 != 0)
		case c < 0xe0: // pop.w {r4-rN, lr}
			o.size, o.mask = 4, upTo(uint32(c&3)+8)|lr(c&4 != 0)
		case c < 0xe8: // vpop {d8-dN}
			o.size, o.first, o.count = 4, 8, c&7+1
		case c < 0xec: // addw sp, #n
			o.size, o.pop = 4, int64(v&0x3ff)*4
		case c < 0xee: // pop {r0-r7, lr}
			o.mask = uint16(v&0xff) | lr(c&1 != 0)
		case c == 0xef && v&0xff < 0x10: // ldr.w lr, [sp], #n
			o.size, o.lr, o.pop = 4, true, int64(v&15)*4
		case c == 0xf5, c == 0xf6: // vpop {dS-dE}
			o.size, o.first = 4, uint8(v>>4&15)
			end := uint8(v & 15)
			if end < o.first {
				return q, t.wrong(rva+uint32(i), ErrMalformed, "unwind code %#x", v)
			}
			if o.count = end - o.first + 1; c == 0xf6 {
				o.first += 16
			}
		case c == 0xf7, c == 0xf8: // add sp, #n
			o.pop = int64(v&(1<<(8*(size-1))-1)) * 4
		case c == 0xf9, c == 0xfa: // add.w sp, #n
			o.size, o.pop = 4, int64(v&(1<<(8*(size-1))-1))*4
		case c == 0xfb: // nop
		case c == 0xfc: // nop.w
			o.size = 4
		case c >= 0xfd: // end
			q.last = int64([...]uint8{2, 4, 0}[c-0xfd])
			return q, nil
		default:
			return q, t.wrong(rva+uint32(i), ErrUnsupported, "unwind code %#x", v)
		}
		q.add(o)
		i += size
	}
}

// An arm makes the rows of functions, one after the other.
type arm struct {
	t    *Table
	b    *rows.Builder
	info *reader
	fail func(error) // is told what costs an epilogue, and not its function; once for each function

	overlay
	pro, epi thumbSequence                       // of the function at hand
	seen     func(start int64, q *thumbSequence) // is told of each epilogue, for tests
	rules    []rows.Rule
	saved    [12]place // r0 to r11
	doubles  [16]place
	lr       place
	has      uint32 // registers that are saved: r0 to r14, and d0 to d15 behind them
	told     bool   // of an epilogue of this function
}

func newARM(t *Table, info *reader, fail func(error)) *arm {
	return &arm{t: t, b: rows.NewBuilder(t.machine), info: info, fail: fail}
}

// rows returns a function's rows. They are valid until the next call.
func (a *arm) rows(e *entry) ([]rows.Row, error) {
	a.reset()
	a.told = false
	if e.data&3 != 0 {
		return a.packed(e)
	}
	b := img32(a.info.tail(e.data))
	x, err := a.t.readRecord(e.data, b)
	if err != nil {
		return nil, err
	}
	scopes, list, codes, rva := x.scopes, b[x.list:], b[x.codes:x.end], e.data+uint32(x.codes)
	read := func(q *thumbSequence, index int) error {
		if err := a.info.spend(e.data, readCost+len(codes)); err != nil {
			return err
		}
		*q, err = a.t.armOps(q.ops[:0], codes, index, rva)
		return err
	}
	if err := read(&a.pro, 0); err != nil {
		return nil, err
	}
	if err := a.prologue(e, b.at(0)>>22&1 != 0); err != nil {
		return nil, err
	}
	if x.single {
		if err := read(&a.epi, scopes); err != nil {
			return nil, err
		}
		if err := a.epilogue(e, int64(e.end-e.begin)-a.epi.size-a.epi.last, always); err != nil {
			return nil, err
		}
		scopes = 0
	}
	for i := range scopes {
		w := list.at(4 * i)
		if err := read(&a.epi, int(w>>24)); err != nil {
			return nil, err
		}
		if err := a.epilogue(e, int64(w&0x3ffff)*2, w>>20&15); err != nil {
			return nil, err
		}
	}
	return a.merge(a.t.base + arch.Vaddr(e.end)), nil
}

// always is the condition of an epilogue that has none (Arm ARM for Armv7-A, section A8.3).
const always = 14

// packed makes the rows of a function that an entry describes whole: it has the canonical prologue and epilogue ("Packed unwind data").
func (a *arm) packed(e *entry) ([]rows.Row, error) {
	d := e.data
	ret, homes, reg, floats, lr, chain, adjust := d>>13&3, d>>15&1 != 0, d>>16&7, d>>19&1 != 0, d>>20&1 != 0, d>>21&1 != 0, int64(d>>22)
	if chain && !lr || ret == 0 && !lr {
		return nil, a.t.wrong(e.at+4, ErrMalformed, "packed unwind data %#x", d)
	}
	folded, unfolded := false, false // the adjustment is part of the push, and of the pop
	if adjust >= 0x3f4 {
		folded, unfolded = adjust&4 != 0, adjust&8 != 0
		adjust = adjust&3 + 1
	}
	ints := uint16(0)
	if !floats {
		ints = upTo(reg + 4)
	}
	if chain {
		ints |= 1 << 11
	}
	low := uint16(0)
	if folded || unfolded { // the last registers of arguments, one for each word
		low = 0xf << (4 - adjust) & 0xf
	}
	pop := func(with bool, more uint16) thumb {
		o := thumb{size: 2, mask: ints | more}
		if with {
			o.mask |= low
		}
		if o.mask&^(0xff|1<<armLR) != 0 {
			o.size = 4
		}
		return o
	}
	room := thumb{size: 2, pop: 4 * adjust}
	if adjust > 0x7f {
		room.size = 4
	}
	double := thumb{size: 4, first: 8, count: uint8(reg) + 1}
	link := uint16(0)
	if lr {
		link = 1 << armLR
	}

	a.pro, a.epi = thumbSequence{ops: a.pro.ops[:0]}, thumbSequence{ops: a.epi.ops[:0]}
	if adjust > 0 && !folded {
		a.pro.add(room)
	}
	if floats && reg != 7 {
		a.pro.add(double)
	}
	switch {
	case chain && ints == 1<<11 && !folded:
		a.pro.add(thumb{size: 2}) // mov r11, sp
	case chain:
		a.pro.add(thumb{size: 4}) // add.w r11, sp, #n
	}
	if o := pop(folded, link); o.mask != 0 {
		a.pro.add(o)
	}
	if homes {
		a.pro.add(thumb{size: 2, pop: 16})
	}

	if adjust > 0 && !unfolded {
		a.epi.add(room)
	}
	if floats && reg != 7 {
		a.epi.add(double)
	}
	if homes && ret == 0 {
		link = 0 // it is loaded at last
	}
	if o := pop(unfolded, link); o.mask != 0 {
		if link != 0 && ret > 0 { // the short form pops pc, but not lr
			o.size = 4
		}
		a.epi.add(o)
	}
	switch {
	case homes && ret == 0:
		a.epi.add(thumb{size: 4, lr: true, pop: 20})
	case homes:
		a.epi.add(thumb{size: 2, pop: 16})
	}
	a.epi.last = [...]int64{0, 2, 4, 0}[ret]

	if err := a.prologue(e, d&3 == 2); err != nil {
		return nil, err
	}
	if ret < 3 {
		if err := a.epilogue(e, int64(e.end-e.begin)-a.epi.size-a.epi.last, always); err != nil {
			return nil, err
		}
	}
	return a.merge(a.t.base + arch.Vaddr(e.end)), nil
}

// prologue adds the rows of the prologue in a.pro, whose last instructions come first, and of what follows. A part of a function has none.
func (a *arm) prologue(e *entry, part bool) error {
	at, n := e.begin, len(a.pro.ops)
	if part {
		n = 0
	}
	for ; n >= 0; n-- { // so many have not run
		id, err := a.unwind(e, a.pro.ops[n:])
		if err != nil {
			return err
		}
		if at < e.end {
			a.under(a.t.base+arch.Vaddr(at), id)
		}
		if n > 0 {
			at += uint32(a.pro.ops[n-1].size)
		}
	}
	return nil
}

// epilogue adds the rows of the epilogue in a.epi, which starts so far from the function's beginning. Where only some of those who come there run
// it, its rows are unknown.
func (a *arm) epilogue(e *entry, start int64, condition uint32) error {
	at := e.data &^ 3
	if e.data&3 != 0 {
		at = e.at
	}
	size := int64(e.end - e.begin)
	if start < 0 || start >= size {
		return a.t.wrong(at, ErrMalformed, "an epilogue of %d bytes at %#x of a function of %#x bytes", a.epi.size, start, size)
	}
	if a.seen != nil {
		a.seen(start, &a.epi)
	}
	pc := a.t.base + arch.Vaddr(e.begin) + arch.Vaddr(start)
	if k := len(a.ends); k > 0 {
		if a.ends[k-1].Lo > pc {
			return a.t.wrong(at, ErrMalformed, "the epilogue at %#x overlaps another", start)
		}
		if a.ends[k-1].Lo == pc {
			a.ends = a.ends[:k-1]
		}
	}
	hi := a.t.base + arch.Vaddr(e.end)
	if condition != always {
		if !a.told {
			a.fail(a.t.wrong(at, ErrUnsupported, "the epilogue at %#x of function %#x runs on condition %d", start, e.begin, condition))
		}
		a.told = true
		a.ends = append(a.ends, rows.Row{Lo: pc, Set: rows.GapID})
		pc += arch.Vaddr(a.epi.size + a.epi.last)
	} else {
		for i := 0; i <= len(a.epi.ops) && pc < hi; i++ {
			if i == len(a.epi.ops) && a.epi.last == 0 { // it has returned
				break
			}
			id, err := a.unwind(e, a.epi.ops[i:])
			if err != nil {
				return err
			}
			a.ends = append(a.ends, rows.Row{Lo: pc, Set: id})
			if i < len(a.epi.ops) {
				pc += arch.Vaddr(a.epi.ops[i].size)
			} else {
				pc += arch.Vaddr(a.epi.last)
			}
		}
	}
	if pc < hi {
		a.ends = append(a.ends, rows.Row{Lo: pc, Set: resume})
	}
	return nil
}

// unwind returns the set of what ops come to.
func (a *arm) unwind(e *entry, ops []thumb) (rows.SetID, error) {
	if err := a.info.spend(e.data&^3, readCost+len(ops)); err != nil {
		return 0, err
	}
	a.has = 0
	at := place{reg: armSP}
	for i := range ops {
		o := &ops[i]
		if o.from > 0 {
			at = place{reg: arch.Reg(o.from)}
		}
		n := int64(0)
		for m := o.mask; m != 0; m &= m - 1 {
			r := bits.TrailingZeros16(m)
			switch where := (place{at.reg, at.off + 4*n}); {
			case r == armLR:
				a.lr, a.has = where, a.has|1<<r
			case r < len(a.saved):
				a.saved[r], a.has = where, a.has|1<<r
			}
			n++
		}
		at.off += 4 * n
		for k := range o.count {
			if r := o.first + k; int(r) < len(a.doubles) {
				a.doubles[r], a.has = place{at.reg, at.off + 8*int64(k)}, a.has|1<<(16+r)
			}
		}
		at.off += 8 * int64(o.count)
		if o.lr {
			a.lr, a.has = at, a.has|1<<armLR
		}
		at.off += o.pop
	}
	s := rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: at.reg, Off: at.off}, RA: armLR}
	list := a.rules[:0]
	rule := func(of arch.Reg, from place) {
		if from.reg == at.reg {
			list = append(list, rows.Rule{Of: of, Kind: rows.Offset, Off: from.off - at.off})
		} else {
			list = append(list, rows.Rule{Of: of, Kind: rows.RegDeref, Reg: from.reg, Off: from.off})
		}
	}
	for r := 4; r < len(a.saved); r++ { // a call preserves no lower ones
		if a.has>>r&1 != 0 {
			rule(arch.Reg(r), a.saved[r])
		}
	}
	if a.has>>armLR&1 != 0 {
		rule(armLR, a.lr)
	}
	for r := 8; r < len(a.doubles); r++ {
		if a.has>>(16+r)&1 != 0 {
			rule(armD0+arch.Reg(r), a.doubles[r])
		}
	}
	s.Rules, a.rules = list, list
	return a.b.Intern(s), nil
}
