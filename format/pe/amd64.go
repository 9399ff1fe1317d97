package pe

import (
	"cmp"
	"fmt"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Operations of unwind codes ("x64 exception handling", "Unwind operation code").
const (
	UWOP_PUSH_NONVOL     = 0
	UWOP_ALLOC_LARGE     = 1
	UWOP_ALLOC_SMALL     = 2
	UWOP_SET_FPREG       = 3
	UWOP_SAVE_NONVOL     = 4
	UWOP_SAVE_NONVOL_FAR = 5
	UWOP_EPILOG          = 6 // version 2 only
	UWOP_SPARE_CODE      = 7
	UWOP_SAVE_XMM128     = 8
	UWOP_SAVE_XMM128_FAR = 9
	UWOP_PUSH_MACHFRAME  = 10
)

// Flags of an UNWIND_INFO.
const (
	UNW_FLAG_EHANDLER  = 1
	UNW_FLAG_UHANDLER  = 2
	UNW_FLAG_CHAININFO = 4
)

// maxChain bounds how many entries a chain has; Windows itself stops there, too.
const maxChain = 32

// An amd64Info is an UNWIND_INFO.
type amd64Info struct {
	at       uint32 // its address
	version  uint8
	flags    uint8
	prolog   uint8 // bytes
	frame    uint8 // the frame register; 0: none
	frameOff int64 // its distance from the stack pointer, in bytes
	codes    img32 // two bytes each
	chained  entry // with UNW_FLAG_CHAININFO
	handler  uint32
}

// An amd64Code is one unwind code, with what it has in its next slots.
type amd64Code struct {
	off  uint8 // where its instruction ends
	op   uint8
	info uint8
	n    int64 // bytes: of an allocation, or where a register is saved; of UWOP_EPILOG, how far from the end
}

// slots says how many slots an operation takes with this info; 0 where there is no such operation.
func slots(version, op, info uint8) int {
	switch op {
	case UWOP_PUSH_NONVOL, UWOP_ALLOC_SMALL, UWOP_SET_FPREG:
		return 1
	case UWOP_SAVE_NONVOL, UWOP_SAVE_XMM128:
		return 2
	case UWOP_SAVE_NONVOL_FAR, UWOP_SAVE_XMM128_FAR:
		return 3
	case UWOP_ALLOC_LARGE:
		if info <= 1 {
			return 2 + int(info)
		}
	case UWOP_EPILOG:
		if version == 2 {
			return 1
		}
	case UWOP_PUSH_MACHFRAME:
		if info <= 1 {
			return 1
		}
	}
	return 0
}

// readInfo reads the UNWIND_INFO at an address.
func (t *Table) readInfo(r *reader, rva uint32) (x amd64Info, err error) {
	if err := r.spend(rva, readCost); err != nil {
		return x, err
	}
	b := img32(r.tail(rva))
	if len(b) < 4 {
		return x, t.wrong(rva, ErrTruncated, "unwind information")
	}
	x = amd64Info{at: rva, version: b[0] & 7, flags: b[0] >> 3, prolog: b[1], frame: b[3] & 15, frameOff: 16 * int64(b[3]>>4)}
	switch x.version {
	case 1, 2:
	case 3:
		return x, t.wrong(rva, ErrUnsupported, "version 3 (APX) of unwind information")
	default:
		return x, t.wrong(rva, ErrUnsupported, "version %d of unwind information", x.version)
	}
	n := 2 * int(b[2])
	if len(b) < 4+n {
		return x, t.wrong(rva, ErrTruncated, "%d unwind codes", b[2])
	}
	x.codes = b[4 : 4+n]
	b = b[min(4+(n+3)&^3, len(b)):]
	switch {
	case x.flags&UNW_FLAG_CHAININFO != 0:
		if len(b) < 12 {
			return x, t.wrong(rva, ErrTruncated, "chained entry")
		}
		x.chained = entry{begin: b.at(0), end: b.at(4), data: b.at(8)}
	case x.flags&(UNW_FLAG_EHANDLER|UNW_FLAG_UHANDLER) != 0 && len(b) >= 4:
		x.handler = b.at(0)
	}
	return x, nil
}

// code reads the unwind code in slot i, and returns the slot behind it.
func (x *amd64Info) code(t *Table, i int) (c amd64Code, next int, err error) {
	c = amd64Code{off: x.codes[2*i], op: x.codes[2*i+1] & 15, info: x.codes[2*i+1] >> 4}
	n := slots(x.version, c.op, c.info)
	at := x.at + 4 + 2*uint32(i)
	if n == 0 {
		return c, 0, t.wrong(at, ErrMalformed, "unwind code %d with %d", c.op, c.info)
	}
	if 2*(i+n) > len(x.codes) {
		return c, 0, t.wrong(at, ErrTruncated, "unwind code %d", c.op)
	}
	switch n {
	case 2:
		c.n = int64(x.codes.half(2*i + 2))
	case 3:
		c.n = int64(x.codes.at(2*i + 2))
	}
	switch c.op {
	case UWOP_ALLOC_SMALL:
		c.n = 8*int64(c.info) + 8
	case UWOP_ALLOC_LARGE, UWOP_SAVE_NONVOL:
		if n == 2 {
			c.n *= 8
		}
	case UWOP_SAVE_XMM128:
		c.n *= 16
	case UWOP_EPILOG:
		c.n = int64(c.off) | int64(c.info)<<8
	}
	return c, i + n, nil
}

// resolve returns the entry that an entry stands for: bit 0 of its address says that an entry lies there.
func (t *Table) resolve(r *reader, e entry) (entry, error) {
	for n := 0; e.data&1 != 0; n++ {
		at := e.data &^ 1
		if err := r.spend(at, readCost); err != nil {
			return e, err
		}
		b := img32(r.tail(at))
		if len(b) < 12 {
			return e, t.wrong(at, ErrTruncated, "entry that another one leads to")
		}
		if n >= maxChain {
			return e, t.wrong(at, ErrMalformed, "more than %d entries lead to each other", maxChain)
		}
		e = entry{begin: b.at(0), end: b.at(4), data: b.at(8)}
	}
	return e, nil
}

// next returns the entry that an entry of x86-64 leads to, in place of a record or through one; ok is false where the record is the last.
func (t *Table) next(r *reader, e entry) (_ entry, ok bool) {
	if b := img32(r.tail(e.data &^ 1)); t.size == 12 && e.data&1 != 0 && len(b) >= 12 {
		return entry{begin: b.at(0), end: b.at(4), data: b.at(8)}, true
	}
	if t.size == 8 || e.data&1 != 0 {
		return e, false
	}
	x, err := t.readInfo(r, e.data)
	return x.chained, err == nil && x.flags&UNW_FLAG_CHAININFO != 0
}

// primary returns where the function begins that an entry is a part of.
func (t *Table) primary(r *reader, e entry) (uint32, error) {
	for range maxChain {
		var err error
		if e, err = t.resolve(r, e); err != nil {
			return 0, err
		}
		x, err := t.readInfo(r, e.data)
		if err != nil {
			return 0, err
		}
		if x.flags&UNW_FLAG_CHAININFO == 0 {
			return e.begin, nil
		}
		e = x.chained
	}
	return 0, t.wrong(e.data, ErrMalformed, "a chain of more than %d entries", maxChain)
}

// amd64Regs are DWARF's numbers of the general registers, by Windows's.
var amd64Regs = [16]arch.Reg{0, 2, 1, 3, 7, 6, 4, 5, 8, 9, 10, 11, 12, 13, 14, 15}

const (
	rsp  = 7
	rip  = 16
	xmm0 = 17
	nReg = 33
)

// lost are the registers that a call does not preserve.
var lost = []arch.Reg{0, 1, 2, 8, 9, 10, 11}

// A place is an address: a register's value and a number of bytes.
type place struct {
	reg arch.Reg
	off int64
}

// A frame is what unwinding some codes comes to: where the stack pointer is then, and where registers are saved.
type frame struct {
	sp    place
	base  place // what saved registers are counted from
	mach  bool  // sp is where the processor has put rip, cs, flags, rsp and ss
	mask  uint64
	saved [nReg]place
}

// save says that a register is saved at a place. Codes are undone from the last instruction to the first: the oldest value wins.
func (f *frame) save(r arch.Reg, at place) {
	f.saved[r] = at
	f.mask |= 1 << r
}

// undo undoes one code.
func (f *frame) undo(x *amd64Info, c amd64Code) bool {
	if f.mach {
		return c.op == UWOP_EPILOG // nothing was done before
	}
	r := amd64Regs[c.info]
	switch c.op {
	case UWOP_PUSH_NONVOL:
		f.save(r, f.sp)
		f.sp.off += 8
	case UWOP_ALLOC_LARGE, UWOP_ALLOC_SMALL:
		f.sp.off += c.n
	case UWOP_SET_FPREG:
		if x.frame == 0 {
			return false
		}
		f.sp = place{amd64Regs[x.frame], -x.frameOff}
	case UWOP_SAVE_NONVOL, UWOP_SAVE_NONVOL_FAR:
		f.save(r, place{f.base.reg, f.base.off + c.n})
	case UWOP_SAVE_XMM128, UWOP_SAVE_XMM128_FAR:
		f.save(xmm0+arch.Reg(c.info), place{f.base.reg, f.base.off + c.n})
	case UWOP_PUSH_MACHFRAME:
		f.sp.off += 8 * int64(c.info)
		f.mach = true
	}
	return true
}

// set returns the rules that f comes to. They are appended to buf.
func (f *frame) set(buf []rows.Rule) rows.Set {
	s := rows.Set{CFA: rows.CFA{Kind: rows.CFAReg, Reg: f.sp.reg, Off: f.sp.off + 8}, RA: rip}
	mask := f.mask
	if f.mach {
		s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: f.sp.reg, Off: f.sp.off + 24}
		s.Flags = rows.Signal
		for _, r := range lost { // of an interrupted function, what no rule names is kept
			mask |= 1 << r
		}
	}
	for r := arch.Reg(0); r < nReg; r++ {
		at := f.saved[r]
		switch {
		case r == rip && f.mach:
			buf = append(buf, rows.Rule{Of: rip, Kind: rows.RegDeref, Reg: f.sp.reg, Off: f.sp.off})
		case r == rip:
			buf = append(buf, rows.Rule{Of: rip, Kind: rows.Offset, Off: -8})
		case mask>>r&1 == 0 || r == rsp:
		case f.mask>>r&1 == 0:
			buf = append(buf, rows.Rule{Of: r, Kind: rows.Undefined})
		case !f.mach && at.reg == f.sp.reg:
			buf = append(buf, rows.Rule{Of: r, Kind: rows.Offset, Off: at.off - s.CFA.Off})
		default:
			buf = append(buf, rows.Rule{Of: r, Kind: rows.RegDeref, Reg: at.reg, Off: at.off})
		}
	}
	s.Rules = buf
	return s
}

// An amd64 makes the rows of functions, one after the other.
type amd64 struct {
	t          *Table
	b          *rows.Builder
	code, info *reader

	overlay
	codes []amd64Code // of the function's own UNWIND_INFO
	rules []rows.Rule
	seq   []step // the instructions of what may be an epilogue
}

func newAMD64(t *Table, info *reader) *amd64 {
	return &amd64{t: t, b: rows.NewBuilder(t.machine), code: t.reader(), info: info}
}

// rows returns a function's rows. They are valid until the next call.
func (a *amd64) rows(first *entry) ([]rows.Row, error) {
	e, err := a.t.resolve(a.info, *first)
	if err != nil {
		return nil, err
	}
	begin, end := first.begin, first.end
	x, err := a.t.readInfo(a.info, e.data)
	if err != nil {
		return nil, err
	}
	if err := a.info.spend(x.at, len(x.codes)/2); err != nil {
		return nil, err
	}
	a.codes = a.codes[:0]
	for i := 0; 2*i < len(x.codes); {
		c, next, err := x.code(a.t, i)
		if err != nil {
			return nil, err
		}
		a.codes = append(a.codes, c)
		i = next
	}
	epilogs := len(a.codes)
	for i, c := range a.codes {
		if c.op != UWOP_EPILOG {
			epilogs = i
			break
		}
	}
	tail := a.codes[:epilogs]
	a.codes = a.codes[epilogs:]

	// In the prologue, a row for each instruction that a code is of; behind it, all of them have run.
	a.reset()
	body := begin + uint32(x.prolog)
	for pc := begin; pc < body && pc < end; {
		next := body
		for _, c := range a.codes {
			if at := begin + uint32(c.off); at > pc && at < next {
				next = at
			}
		}
		id, err := a.unwind(&x, int(pc-begin))
		if err != nil {
			return nil, err
		}
		a.under(a.t.base+arch.Vaddr(pc), id)
		pc = next
	}
	id, err := a.unwind(&x, -1)
	if err != nil {
		return nil, err
	}
	if body < end {
		a.under(a.t.base+arch.Vaddr(body), id)
	}
	if err := cmp.Or(a.epilogs(&x, begin, end, tail), a.info.spend(x.at, 0)); err != nil {
		return nil, err
	}
	return a.merge(a.t.base + arch.Vaddr(end)), nil
}

// unwind returns the set that holds so many bytes behind the beginning of a function, in its prologue; with -1 behind the prologue.
func (a *amd64) unwind(x *amd64Info, off int) (rows.SetID, error) {
	f := frame{sp: place{rsp, 0}, base: place{rsp, 0}}
	// Before its prologue has set the frame register, a function has none; a chained part begins with it.
	if x.frame != 0 {
		set := off < 0 || x.flags&UNW_FLAG_CHAININFO != 0
		for _, c := range a.codes {
			set = set || c.op == UWOP_SET_FPREG && int(c.off) <= off
		}
		if set {
			f.base = place{amd64Regs[x.frame], -x.frameOff}
		}
	}
	if err := a.info.spend(x.at, readCost+len(a.codes)); err != nil {
		return 0, err
	}
	for i, c := range a.codes {
		if off >= 0 && int(c.off) > off {
			continue
		}
		if !f.undo(x, c) {
			return 0, a.t.wrong(x.at, ErrMalformed, "unwind code %d: operation %d cannot be here", i, c.op)
		}
	}
	parent := *x
	for n := 0; parent.flags&UNW_FLAG_CHAININFO != 0; n++ {
		if n >= maxChain {
			return 0, a.t.wrong(x.at, ErrMalformed, "a chain of more than %d entries", maxChain)
		}
		e, err := a.t.resolve(a.info, parent.chained)
		if err != nil {
			return 0, err
		}
		if parent, err = a.t.readInfo(a.info, e.data); err != nil {
			return 0, fmt.Errorf("chained: %w", err)
		}
		if err := a.info.spend(x.at, len(parent.codes)/2); err != nil {
			return 0, err
		}
		for i := 0; 2*i < len(parent.codes); {
			c, next, err := parent.code(a.t, i)
			if err != nil {
				return 0, fmt.Errorf("chained: %w", err)
			}
			if !f.undo(&parent, c) {
				return 0, a.t.wrong(parent.at, ErrMalformed, "slot %d: operation %d cannot be here", i, c.op)
			}
			i = next
		}
	}
	s := f.set(a.rules[:0])
	a.rules = s.Rules
	return a.b.Intern(s), nil
}
