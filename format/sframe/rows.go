package sframe

import (
	"cmp"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// maxErrors bounds how many damaged entries of a section are told apart.
const maxErrors = 1000

// Rows makes the table of all functions. Each entry that could not be read is missing in the table and is an error.
func (t *Table) Rows() (*rows.Table, []error) {
	b := rows.NewBuilder(t.machine)
	var errs []error
	for _, s := range t.sections {
		r := &reader{section: s, m: t.machine, b: b}
		// Assemblers and linkers write the rows of each function once: their bytes bound the work, however many entries there are. A row that
		// repeats is not there as often as it counts.
		r.left, r.repeats = 4*len(s.fres.data), 1<<16+16*len(s.data)
		b.Grow(len(s.fres.data)/3, s.count)
		damaged := 0
		for i := range s.count {
			f, err := s.entry(i)
			if err == nil {
				err = r.function(&f)
			}
			if err == nil {
				continue
			}
			if damaged++; damaged <= maxErrors {
				errs = append(errs, err)
			}
		}
		if damaged > maxErrors {
			errs = append(errs, damage(s.fdes.off, module.ErrMalformed, "%d more entries", damaged-maxErrors))
		}
	}
	return rows.Build(b), errs
}

// A reader makes the rows of a section.
type reader struct {
	*section
	m *arch.Machine
	b *rows.Builder

	fn      []rows.Row // of the function at hand
	left    int        // bytes of rows that may be read yet
	repeats int        // rows that may be made of others yet

	// Most rows of a file are alike: their bytes lead to the number of their set.
	known [1 << 10]struct {
		key uint64
		id  rows.SetID
	}
}

// Bits of a row's info byte.
const (
	freSP     = 0x01 // the CFA counts from the stack pointer; else from the frame pointer
	freSigned = 0x80 // fre_mangled_ra_p
)

// function adds the rows of one function, or none if one of them is damaged.
func (r *reader) function(f *fde) *Error {
	r.fn = r.fn[:0]
	if f.lo == f.hi {
		return nil
	}
	if f.num == 0 {
		if r.version == 3 { // nobody called it
			id := r.b.Intern(r.outermost(f))
			r.b.Range(f.lo, f.hi, append(r.fn, rows.Row{Lo: f.lo, Set: id}))
		}
		return nil
	}
	width := 1 << (f.info & infoWidth)
	// What the meaning of a row depends on, besides its own bytes.
	var like uint64
	if f.info&infoKeyB != 0 {
		like |= 1
	}
	if f.info&infoSignal != 0 && r.version == 3 {
		like |= 2
	}
	if f.flex {
		like |= 4
	}
	in, off, last := f.fres, f.off, int64(-1)
	for range f.num {
		if len(in) < width+1 {
			return damage(off, module.ErrTruncated, "a row")
		}
		var start uint64
		switch width {
		case 1:
			start = uint64(in[0])
		case 2:
			start = uint64(r.order.Uint16(in))
		default:
			start = uint64(r.order.Uint32(in))
		}
		info := in[width]
		count, shift := int(info>>1&15), info>>5&3
		n := count << shift
		if shift == 3 {
			return damage(off+width, module.ErrMalformed, "words of size 3")
		}
		in = in[width+1:]
		if len(in) < n {
			return damage(off, module.ErrTruncated, "a row of %d words", count)
		}
		if r.left -= width + 1 + n; r.left < 0 {
			return damage(off, module.ErrMalformed, "more rows than the section has bytes for")
		}
		if int64(start) <= last {
			return damage(off, module.ErrMalformed, "a row at %#x behind one at %#x", start, last)
		}
		last = int64(start)
		rest := in[n:]
		if start >= uint64(f.hi-f.lo) { // it holds nowhere
			in, off = rest, off+width+1+n
			continue
		}
		id := rows.SetID(0)
		if n <= 6 {
			key := uint64(info)<<8 | like<<1 | 1
			for i, c := range in[:n] {
				key |= uint64(c) << (16 + 8*i)
			}
			k := &r.known[key*0x9e3779b97f4a7c15>>54]
			if k.key != key {
				set, err := r.set(f, info, in[:n], off)
				if err != nil {
					return err
				}
				k.key, k.id = key, r.b.Intern(set)
			}
			id = k.id
		} else {
			set, err := r.set(f, info, in[:n], off)
			if err != nil {
				return err
			}
			id = r.b.Intern(set)
		}
		if k := len(r.fn); k == 0 || r.fn[k-1].Set != id {
			r.fn = append(r.fn, rows.Row{Lo: f.lo + arch.Vaddr(start), Set: id})
		}
		in, off = rest, off+width+1+n
	}
	if len(r.fn) == 0 {
		return nil
	}
	if f.info&infoMask != 0 {
		if err := r.repeat(f); err != nil {
			return err
		}
	}
	r.b.Range(r.fn[0].Lo, f.hi, r.fn)
	return nil
}

// repeat makes the rows of a function whose rows hold in each of its blocks anew: of a procedure linkage table.
func (r *reader) repeat(f *fde) *Error {
	r.fn = slices.DeleteFunc(r.fn, func(x rows.Row) bool { return uint64(x.Lo-f.lo) >= f.repeat })
	if len(r.fn) == 0 {
		return damage(f.off, module.ErrMalformed, "no row in the first %d bytes", f.repeat)
	}
	if len(r.fn) == 1 && r.fn[0].Lo == f.lo {
		return nil // the same everywhere
	}
	one, n := r.fn, uint64(f.hi-f.lo)/f.repeat+1
	if len(one) == 2 && one[0].Lo == f.lo && f.repeat == 16 && f.lo%16 == 0 {
		// As the lazy tables of x86-64 are: x, and behind a push x+8.
		x, y := r.b.Set(one[0].Set), r.b.Set(one[1].Set)
		pushed := x.CFA
		pushed.Off += 8
		if x.CFA.Kind == rows.CFAReg && y.CFA == pushed && x.Flags == y.Flags && slices.Equal(x.Rules, y.Rules) {
			set := *x
			set.CFA = rows.CFA{Kind: rows.CFAPLT, Reg: x.CFA.Reg, Off: x.CFA.Off, Off2: int64(one[1].Lo - f.lo)}
			r.fn = append(one[:0], rows.Row{Lo: f.lo, Set: r.b.Intern(set)})
			return nil
		}
	}
	if n > uint64(r.repeats) || uint64(len(one)+1)*n > uint64(r.repeats) {
		return damage(f.off, module.ErrUnsupported, "rows that repeat %d times", n)
	}
	r.repeats -= (len(one) + 1) * int(n)
	head := one[0].Lo > f.lo // the last row of a block holds up to the first of the next
	out := make([]rows.Row, 0, len(one)*int(n))
	size := uint64(f.hi - f.lo) // has 32 bits: offsets do not wrap, as addresses may
	for at := uint64(0); at < size; at += f.repeat {
		block := f.lo + arch.Vaddr(at)
		if head && block > f.lo {
			out = append(out, rows.Row{Lo: block, Set: rows.GapID})
		}
		for _, x := range one {
			if uint64(x.Lo-f.lo) >= size-at {
				break
			}
			if k := len(out); k == 0 || out[k-1].Set != x.Set {
				out = append(out, rows.Row{Lo: block + (x.Lo - f.lo), Set: x.Set})
			}
		}
	}
	r.fn = out
	return nil
}

// outermost is what holds where nobody called the function.
func (r *reader) outermost(f *fde) rows.Set {
	return rows.Set{RA: r.m.RA, Flags: r.flags(f, 0), Rules: []rows.Rule{{Of: r.m.RA, Kind: rows.Undefined}}}
}

func (r *reader) flags(f *fde, info uint8) rows.Flags {
	flags := rows.Partial
	if r.version == 3 && f.info&infoSignal != 0 {
		flags |= rows.Signal
	}
	if r.abi == abiARM64Big || r.abi == abiARM64Little {
		if info&freSigned != 0 {
			flags |= rows.RASigned
		}
		if f.info&infoKeyB != 0 {
			flags |= rows.BKey
		}
	}
	return flags
}

// linkRegister says whether a function's return address starts in a register.
func linkRegister(abi uint8) bool { return abi != abiAMD64 }

// How s390x encodes the CFA's offset: it is at least 160, the size of the area that a caller keeps for its callee's registers, and a multiple
// of 8.
const (
	s390Scale = 8
	s390Area  = 160
)

// set returns what a row says. words are its data words, of the size in info.
func (r *reader) set(f *fde, info uint8, words []byte, off int) (rows.Set, *Error) {
	var w, u [15]int64 // signed and unsigned
	size := 1 << (info >> 5 & 3)
	n := len(words) / size
	for i := range n {
		switch b := words[i*size:]; size {
		case 1:
			w[i], u[i] = int64(int8(b[0])), int64(b[0])
		case 2:
			v := r.order.Uint16(b)
			w[i], u[i] = int64(int16(v)), int64(v)
		default:
			v := r.order.Uint32(b)
			w[i], u[i] = int64(int32(v)), int64(v)
		}
	}
	if n == 0 {
		if r.version == 1 {
			return rows.Set{}, damage(off, module.ErrMalformed, "a row without words")
		}
		return r.outermost(f), nil
	}
	s := rows.Set{RA: r.m.RA, Flags: r.flags(f, info), CFA: rows.CFA{Kind: rows.CFAReg, Reg: r.m.FP, Off: w[0]}}
	if info&freSP != 0 {
		s.CFA.Reg = r.m.SP
	}
	ra, fp := rows.Rule{Of: r.m.RA, Kind: rows.SameValue}, rows.Rule{Of: r.m.FP, Kind: rows.SameValue}
	if r.fixedRA != 0 {
		ra.Kind, ra.Off = rows.Offset, r.fixedRA
	}
	if r.fixedFP != 0 {
		fp.Kind, fp.Off = rows.Offset, r.fixedFP
	}
	if f.flex {
		if err := r.flexible(&s, &ra, &fp, w[:n], u[:n], off); err != nil {
			return s, err
		}
	} else {
		rest := w[1:n]
		for _, x := range []struct {
			rule  *rows.Rule
			fixed int64
		}{{&ra, r.fixedRA}, {&fp, r.fixedFP}} {
			if x.fixed != 0 || len(rest) == 0 {
				continue
			}
			switch v := rest[0]; {
			case r.abi == abiS390 && v&1 != 0:
				x.rule.Kind, x.rule.Reg = rows.Register, arch.Reg(uint64(v)>>1)
			case v != 0: // 0 is a word without a meaning, for the one behind it
				x.rule.Kind, x.rule.Off = rows.Offset, v
			}
			rest = rest[1:]
		}
		if len(rest) > 0 {
			return s, damage(off, module.ErrMalformed, "a row of %d words", n)
		}
	}
	if ra.Kind == rows.SameValue && !linkRegister(r.abi) {
		return s, damage(off, module.ErrMalformed, "a row without a return address")
	}
	s.Rules = []rows.Rule{ra, fp}
	if r.abi == abiS390 {
		s.CFA.Off = s390Scale*s.CFA.Off + s390Area
		s.Rules = append(s.Rules, rows.Rule{Of: r.m.SP, Kind: rows.ValOffset, Off: -s390Area})
	}
	slices.SortFunc(s.Rules, func(a, b rows.Rule) int { return cmp.Compare(a.Of, b.Of) })
	return s, nil
}

// Bits of a control word. The rest is a register's number.
const (
	ctlReg   = 1 // reg_p: the offset counts from a register; else from the CFA
	ctlDeref = 2 // deref_p: the value is in memory there
	ctlShift = 3
)

// flexible reads the rules of the CFA, the return address and the frame pointer, in this order, each a control word and an offset. A control word of 0
// has no offset, and leaves the default.
func (r *reader) flexible(s *rows.Set, ra, fp *rows.Rule, w, u []int64, off int) *Error {
	pair := func() (ctl uint64, reg arch.Reg, at int64, err *Error) {
		if len(u) == 0 || u[0] == 0 {
			if len(u) > 0 {
				w, u = w[1:], u[1:]
			}
			return 0, 0, 0, nil
		}
		if len(u) < 2 {
			return 0, 0, 0, damage(off, module.ErrTruncated, "a control word without an offset")
		}
		if u[0]>>ctlShift > 0xffff {
			return 0, 0, 0, damage(off, module.ErrMalformed, "control word %#x", u[0])
		}
		ctl, reg, at = uint64(u[0]), arch.Reg(u[0]>>ctlShift), w[1]
		w, u = w[2:], u[2:]
		return ctl, reg, at, nil
	}
	ctl, reg, at, err := pair()
	if err != nil {
		return err
	}
	if ctl&ctlReg == 0 {
		return damage(off, module.ErrMalformed, "a CFA from no register: control word %#x", ctl)
	}
	s.CFA = rows.CFA{Kind: rows.CFAReg, Reg: reg, Off: at}
	if ctl&ctlDeref != 0 {
		s.CFA.Kind = rows.CFARegDeref
	}
	for _, rule := range []*rows.Rule{ra, fp} {
		ctl, reg, at, err := pair()
		if err != nil {
			return err
		}
		if ctl == 0 {
			continue
		}
		rule.Off = at
		switch {
		case ctl&ctlReg == 0 && ctl != ctlDeref: // the CFA and an offset would be 0, as is the default
			return damage(off, module.ErrMalformed, "control word %#x", ctl)
		case ctl&(ctlReg|ctlDeref) == ctlReg|ctlDeref:
			rule.Kind, rule.Reg = rows.RegDeref, reg
		case ctl&ctlReg != 0 && at == 0:
			rule.Kind, rule.Reg = rows.Register, reg
		case ctl&ctlReg != 0:
			rule.Kind, rule.Reg = rows.RegOffset, reg
		default:
			rule.Kind = rows.Offset
		}
	}
	if len(u) > 0 {
		return damage(off, module.ErrMalformed, "%d words too many", len(u))
	}
	return nil
}
