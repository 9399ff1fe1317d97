package annotate

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
)

// A decoder decodes instructions of one machine.
type decoder interface {
	// decode decodes the instruction at the beginning of code, which lies at pc. ok is false if it is not known; its
	// length may be known all the same, and how it is shown: else n is 0 and the text "".
	decode(code []byte, pc arch.Vaddr) (x decoded, ok bool)
}

// A decoded is what a decoder says of an instruction.
type decoded struct {
	n         int // bytes
	text      string
	target    arch.Vaddr
	hasTarget bool
	branch    bool // target is where it may go on
}

// Syntaxes are the values of Options.Syntax.
var Syntaxes = []string{"intel", "gnu", "go"}

// newDecoder returns the decoder of a machine; nil if there is none.
func newDecoder(m *arch.Machine, syntax string) decoder {
	switch m {
	case arch.AMD64:
		return amd64{syntax}
	case arch.ARM64:
		return arm64{syntax}
	}
	return nil
}

// disassemble makes the instructions of all parts.
func (b *builder) disassemble(m *profile.Module) {
	if b.img == nil || len(b.parts) == 0 {
		return
	}
	b.a.Syntax = cmp.Or(b.Syntax, Syntaxes[0])
	d := newDecoder(b.img.Machine(), b.a.Syntax)
	if d == nil {
		b.note("instructions of %s cannot be decoded", b.img.Machine().Name)
		return
	}
	for i := range b.parts {
		p := &b.parts[i]
		code := b.img.Tail(p.lo)
		if size := p.hi - p.lo; uint64(len(code)) >= uint64(size) {
			b.part(d, p, code[:size])
		} else {
			b.note("the code at %#x is not in the file", uint64(p.lo))
		}
	}
	switch b.a.Unknown {
	case 0:
	case 1:
		b.note("one unknown instruction is shown as bytes")
	default:
		b.note("%d unknown instructions are shown as bytes", b.a.Unknown)
	}
	b.weigh()
	for i := range b.a.Insts {
		x := &b.a.Insts[i]
		if x.HasTarget {
			x.TargetName = b.name(m, x.Target)
		}
	}
}

// part appends the instructions of one part.
func (b *builder) part(d decoder, p *part, code []byte) {
	first := len(b.a.Insts)
	var starts []arch.Vaddr // where instructions are known to begin; made when it is needed
	for at := 0; at < len(code); {
		v := p.lo + arch.Vaddr(at)
		x, ok := d.decode(code[at:], v)
		if !ok {
			b.a.Unknown++
			if x.n == 0 {
				if starts == nil {
					starts = b.starts(p, b.a.Insts[first:])
				}
				x.n = min(gap(starts, v, p.hi), 8)
			}
			if x.text == "" {
				x.text = bytesText(code[at : at+x.n])
			}
		}
		row := p.line(v)
		b.a.Insts = append(b.a.Insts, Inst{
			Addr: v, Off: uint64(at), Bytes: fmt.Sprintf("% x", code[at:at+x.n]), Text: x.text,
			Target: x.target, HasTarget: x.hasTarget, Jump: x.branch && x.target >= p.lo && x.target < p.hi,
			File: row.File, Line: row.Line, Unknown: !ok,
		})
		at += x.n
	}
	if first < len(b.a.Insts) {
		b.a.Insts[first].In = p.in
	}
}

// starts returns the addresses in p where an instruction is known to begin: rows of the line table, and targets of the
// branches so far.
func (b *builder) starts(p *part, before []Inst) []arch.Vaddr {
	s := []arch.Vaddr{}
	for i := range p.lines {
		s = append(s, p.lines[i].Addr)
	}
	for i := range before {
		if before[i].Jump {
			s = append(s, before[i].Target)
		}
	}
	slices.Sort(s)
	return s
}

// gap returns the number of bytes from v to the next start, or 1 if there is none.
func gap(starts []arch.Vaddr, v, hi arch.Vaddr) int {
	i, ok := slices.BinarySearch(starts, v)
	if ok {
		for i < len(starts) && starts[i] == v {
			i++
		}
	}
	if i < len(starts) && starts[i] < hi && starts[i]-v < 16 {
		return int(starts[i] - v)
	}
	return 1
}

func bytesText(b []byte) string {
	s := ".byte "
	for i, c := range b {
		if i > 0 {
			s += ", "
		}
		s += fmt.Sprintf("%#02x", c)
	}
	return s
}

// weigh gives each instruction the weight of the samples at it. A return address less one is in the call.
func (b *builder) weigh() {
	for off, w := range b.sums.offs {
		v, ok := b.addrs[off]
		if !ok {
			continue
		}
		i, exact := slices.BinarySearchFunc(b.a.Insts, v, func(x Inst, v arch.Vaddr) int { return cmp.Compare(x.Addr, v) })
		if !exact {
			i--
		}
		if i < 0 {
			continue
		}
		if x := &b.a.Insts[i]; uint64(v-x.Addr) < uint64(len(x.Bytes)+1)/3 {
			x.Self += w.self
			x.Total += w.total
		}
	}
}

// name returns the name of an address: "main+0x10".
func (b *builder) name(m *profile.Module, v arch.Vaddr) string {
	if b.Symbol == nil {
		return ""
	}
	s, off := b.Symbol(m, v)
	if s != "" && off != 0 {
		s += fmt.Sprintf("+%#x", off)
	}
	return s
}
