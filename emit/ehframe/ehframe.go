// Package ehframe writes a module's rows as .eh_frame and .eh_frame_hdr. It puts both into a copy of an ELF file, or into a file beside an image of
// another format. Tools that know only DWARF can then walk stripped Go programs, and code of Windows and macOS.
//
// The format is DWARF 5, section 6.4, with what the Linux Standard Base changes of it ("Exception Frames"). Who handles exceptions is not written. What the
// format cannot say is left out, and counted by reason: a reader finds nothing there, and nothing wrong. Package format/dwarf reads the format.
package ehframe

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Section is an .eh_frame section with its index, and what it does not say.
type Section struct {
	Bytes, Index []byte
	Addr, At     arch.Vaddr  // where both must be loaded: Bytes at Addr, and Index at At
	Functions    int         // FDEs; a function of several parts has several
	Rows         int         // rows that the table has, of those the section says
	CallsOnly    int         // of these, rows that are right at calls only, which the format has no word for
	Left         []rows.Loss // by reason, the most addresses first
}

// Constants of the format, by the names of its documents.
const (
	ehPCRel4     = 0x1b // DW_EH_PE_pcrel | DW_EH_PE_sdata4
	ehCount4     = 0x03 // DW_EH_PE_udata4
	ehTable4     = 0x3b // DW_EH_PE_datarel | DW_EH_PE_sdata4
	ptGNUEHFrame = 0x6474e550
	shtProgbits  = 1
	align        = 8 // of the section, in bytes
	entryAlign   = 4 // of its entries, as assemblers have it
	indexHeader  = 12
	indexEntry   = 8
)

// Emit returns the section that says what t does; its index is to be loaded at addr, aligned to 4 bytes, and the section behind it. Each function gets
// entries of its own; without bounds, only gaps part functions. The same input gives the same bytes.
func Emit(t *rows.Table, addr arch.Vaddr, bounds rows.Bounds) (*Section, error) {
	m := t.Machine
	if m.WordSize() != 8 || m.BigEndian {
		return nil, fmt.Errorf("call frame information for %s is not written", m.Name)
	}
	e := emitter{m: m, left: rows.Losses{}}
	e.table(t, bounds)
	e.measure(t)
	e.begin()
	if err := e.lay(addr); err != nil {
		return nil, err
	}
	e.Left = e.left.List()
	return &e.Section, nil
}

// An emitter has the functions of a section.
type emitter struct {
	Section
	m         *arch.Machine
	code      int64 // code alignment factor
	data      int64 // data alignment factor, as a positive number
	kinds     []kind
	functions []function
	left      rows.Losses
}

// A kind is what a CIE says of all its rows.
type kind struct {
	ra    arch.Reg
	flags rows.Flags // of those that are augmentations, and Partial
	hasRA bool       // the return address has a rule, where it needs one

	begin rows.Set // after the CIE's instructions
	at    int      // of the CIE in the section
	count map[string]first
}

// A first is how functions of a kind begin, and how many do.
type first struct {
	n   int
	cfa rows.CFA
	ra  rows.Rule
}

// A function is a range of rows of one kind.
type function struct {
	lo, hi arch.Vaddr
	kind   int
	rows   []row
}

type row struct {
	lo  arch.Vaddr
	set *rows.Set
}

// measure finds the factors: the largest powers of two that all distances and offsets are multiples of.
func (e *emitter) measure(t *rows.Table) {
	e.code, e.data = 4, 8
	for i := range e.functions {
		for _, r := range e.functions[i].rows {
			for uint64(r.lo-e.functions[i].lo)%uint64(e.code) != 0 {
				e.code /= 2
			}
		}
	}
	for i := range t.Sets {
		for c := &t.Sets[i].CFA; c.Kind == rows.CFAReg && c.Off < 0 && c.Off%e.data != 0; {
			e.data /= 2
		}
		for _, r := range t.Sets[i].Rules {
			if r.Kind == rows.Offset || r.Kind == rows.ValOffset {
				for r.Off%e.data != 0 {
					e.data /= 2
				}
			}
		}
	}
}

// kindOf returns the number of the kind of a set, or why the format cannot say the set.
func (e *emitter) kindOf(s *rows.Set) (n int, reason string) {
	if s.CFA.Kind == rows.CFANone && !s.Outermost() {
		return 0, "no CFA"
	}
	if s.Flags&rows.RASignPC != 0 {
		return 0, "a return address signed with the program counter"
	}
	if s.RA > 255 {
		return 0, "a return address column of more than a byte"
	}
	_, hasRA := s.Rule(s.RA)
	k := kind{ra: s.RA, flags: s.Flags & (rows.Signal | rows.BKey | rows.Tagged | rows.Partial), hasRA: hasRA && !e.m.RAInReg}
	n = slices.IndexFunc(e.kinds, func(o kind) bool { return o.ra == k.ra && o.flags == k.flags && o.hasRA == k.hasRA })
	if n < 0 {
		n = len(e.kinds)
		k.count = map[string]first{}
		e.kinds = append(e.kinds, k)
	}
	return n, ""
}

// table makes functions of all rows.
func (e *emitter) table(t *rows.Table, bounds rows.Bounds) {
	kinds, reasons := make([]int, len(t.Sets)), make([]string, len(t.Sets))
	for i := range t.Sets {
		if rows.SetID(i) != rows.GapID {
			kinds[i], reasons[i] = e.kindOf(&t.Sets[i])
		}
	}
	var last *function // the one that goes on
	for p := range t.Pieces(bounds) {
		s, reason := &t.Sets[p.Set], reasons[p.Set]
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
			if s.Flags&rows.SyncOnly != 0 {
				e.CallsOnly++
			}
		}
		if p.Begins || last == nil || last.kind != kinds[p.Set] || p.Hi-last.lo > math.MaxUint32 {
			e.functions = append(e.functions, function{lo: p.Lo, kind: kinds[p.Set]})
			last = &e.functions[len(e.functions)-1]
		}
		last.rows = append(last.rows, row{p.Lo, s})
		last.hi = p.Hi
	}
}

// begin gives each kind the rules that most of its functions begin with.
func (e *emitter) begin() {
	for i := range e.functions {
		f := &e.functions[i]
		s := f.rows[0].set
		var ra rows.Rule
		if e.kinds[f.kind].hasRA {
			ra, _ = s.Rule(s.RA)
		}
		if s.CFA.Kind != rows.CFAReg || s.CFA.Off < 0 || ra.Kind != rows.Undefined && ra.Kind != rows.Offset {
			continue
		}
		id := fmt.Sprint(s.CFA, ra)
		c := e.kinds[f.kind].count[id]
		e.kinds[f.kind].count[id] = first{c.n + 1, s.CFA, ra}
	}
	for i := range e.kinds {
		k := &e.kinds[i]
		var most first
		for _, c := range k.count {
			// Of two that are as frequent, any, but always the same.
			if c.n > most.n || c.n == most.n && fmt.Sprint(c.cfa, c.ra) < fmt.Sprint(most.cfa, most.ra) {
				most = c
			}
		}
		k.begin = rows.Set{RA: k.ra, CFA: most.cfa}
		for r := range e.m.Regs() {
			switch {
			case r == k.ra && k.hasRA && most.n > 0:
				k.begin.Rules = append(k.begin.Rules, most.ra)
			case k.flags&rows.Partial == 0 && slices.Contains(e.m.CalleeSaved, r) && !slices.Contains(target(e.m).CalleeSaved, r):
				// A call preserves it, which it does not by ELF's convention.
				k.begin.Rules = append(k.begin.Rules, rows.Rule{Of: r, Kind: rows.SameValue})
			case k.flags&rows.Partial != 0 && r != e.m.SP && r != k.ra && e.m.Slot(r) != arch.NoSlot && r != e.m.PC:
				k.begin.Rules = append(k.begin.Rules, rows.Rule{Of: r, Kind: rows.Undefined})
			}
		}
	}
}

// lay writes all entries. They are sorted, as rows are.
func (e *emitter) lay(addr arch.Vaddr) error {
	le := binary.LittleEndian
	e.At, e.Functions = addr, len(e.functions)
	e.Addr = (addr + arch.Vaddr(indexHeader+indexEntry*len(e.functions)) + align - 1) &^ (align - 1)
	e.Index = append(e.Index, 1, ehPCRel4, ehCount4, ehTable4)
	e.Index = le.AppendUint32(e.Index, uint32(e.Addr-addr-4))
	e.Index = le.AppendUint32(e.Index, uint32(len(e.functions)))
	for i := range e.kinds {
		e.cie(&e.kinds[i])
	}
	for i := range e.functions {
		f := &e.functions[i]
		k := &e.kinds[f.kind]
		if len(e.Bytes) > math.MaxInt32-1<<20 {
			return fmt.Errorf("a section of %d bytes", len(e.Bytes))
		}
		at := len(e.Bytes)
		field := e.Addr + arch.Vaddr(at+8)
		start, index := int64(f.lo-field), int64(f.lo-e.At)
		if start != int64(int32(start)) || index != int64(int32(index)) {
			return fmt.Errorf("a function at %#x is too far from a section at %#x", uint64(f.lo), uint64(e.Addr))
		}
		e.Index = le.AppendUint32(le.AppendUint32(e.Index, uint32(index)), uint32(e.Addr+arch.Vaddr(at)-e.At))
		b := le.AppendUint32(e.Bytes, 0)
		b = le.AppendUint32(b, uint32(len(b)-k.at))
		b = le.AppendUint32(le.AppendUint32(b, uint32(start)), uint32(f.hi-f.lo))
		b = append(b, 0) // no augmentation data
		e.Bytes = ended(e.program(b, f, k), at)
	}
	e.Bytes = le.AppendUint32(e.Bytes, 0)
	return nil
}

// program appends the instructions of a function.
func (e *emitter) program(b []byte, f *function, k *kind) []byte {
	w := writer{e: e, begin: &k.begin}
	var steps []step
	var open []int // steps whose rules can be returned to: none is between a remember_state and its restore_state
	latest := map[*rows.Set]int{}
	from := &k.begin
	for _, r := range f.rows {
		w.b = nil
		w.from(from, r.set)
		from = r.set
		s := step{lo: r.lo, b: w.b}
		i := len(steps)
		if j, ok := latest[r.set]; ok && len(w.b) > 2 {
			steps[j].remember = true
			s.b = []byte{cfaRestoreState}
			for ; open[len(open)-1] != j; open = open[:len(open)-1] {
				if x := f.rows[open[len(open)-1]].set; latest[x] == open[len(open)-1] {
					delete(latest, x)
				}
			}
		}
		open = append(open, i)
		latest[r.set] = i
		steps = append(steps, s)
	}
	pc := f.lo
	for i := range steps {
		s := &steps[i]
		if s.remember {
			s.b = append(s.b, cfaRememberState)
		}
		if len(s.b) > 0 && s.lo > pc {
			b = advance(b, uint64(s.lo-pc)/uint64(e.code))
			pc = s.lo
		}
		b = append(b, s.b...)
	}
	return b
}

// A step is the instructions of a row.
type step struct {
	lo       arch.Vaddr
	b        []byte
	remember bool // a later row returns to it
}

// cie writes a CIE.
func (e *emitter) cie(k *kind) {
	le := binary.LittleEndian
	k.at = len(e.Bytes)
	b := le.AppendUint32(le.AppendUint32(e.Bytes, 0), 0)
	b = append(b, 1, 'z', 'R')
	for _, x := range []struct {
		flag rows.Flags
		c    byte
	}{{rows.Signal, 'S'}, {rows.BKey, 'B'}, {rows.Tagged, 'G'}} {
		if k.flags&x.flag != 0 {
			b = append(b, x.c)
		}
	}
	b = append(b, 0)
	b = binary.AppendUvarint(b, uint64(e.code))
	b = appendSleb(b, -e.data)
	b = append(b, byte(k.ra), 1, ehPCRel4)
	w := writer{e: e, begin: &rows.Set{RA: k.ra}, b: b}
	w.from(&rows.Set{RA: k.ra}, &k.begin)
	e.Bytes = ended(w.b, k.at)
}

// ended pads the entry that begins at an offset with DW_CFA_nop, and writes its length.
func ended(b []byte, at int) []byte {
	for (len(b)-at)%entryAlign != 0 {
		b = append(b, 0)
	}
	binary.LittleEndian.PutUint32(b[at:], uint32(len(b)-at-4))
	return b
}
