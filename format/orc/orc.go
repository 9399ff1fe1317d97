// Package orc reads the unwind tables that Linux carries for itself, in vmlinux and in modules: .orc_unwind, .orc_unwind_ip and .orc_header (Linux,
// Documentation/arch/x86/orc-unwinder.rst; the layouts are in arch/x86/include/asm/orc_types.h and
// arch/loongarch/include/asm/orc_types.h of each version). objtool makes them from the instructions, so they hold at every program counter, also in
// assembly.
//
// An entry says where three registers of the caller are: stack pointer, frame pointer, instruction pointer. All others are lost, unless
// the entry leads to a struct pt_regs. Damage costs the range of the entry around it. Bytes never cause a panic; the size of the tables bounds work
// and memory.
package orc

import (
	"encoding/binary"
	"fmt"
	"io"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// The sections.
const (
	unwind   = ".orc_unwind"    // entries
	unwindIP = ".orc_unwind_ip" // the address of each: 4 bytes, relative to themselves
	header   = ".orc_header"    // which layout entries have
)

// A Table makes rows of an image's ORC. It is valid as long as its image is open, and safe for concurrent use.
type Table struct {
	machine *arch.Machine
	layout  *layout
	entries []byte
	ips     []byte
	addr    arch.Vaddr         // of ips
	bad     module.RelocErrors // of ips, sorted
	place   func(arch.Vaddr) (section string, off uint64)
	code    module.Ranges
}

// Damage is something wrong in a section.
type Damage struct {
	Section string
	Off     uint64
	Err     error
}

func (d Damage) Error() string { return fmt.Sprintf("%s+%#x: %v", d.Section, d.Off, d.Err) }
func (d Damage) Unwrap() error { return d.Err }

// Open returns the table of an image; nil if it has none. An error names what makes the table unreadable, above all entries of a layout that is
// not known.
func Open(img *module.Image) (*Table, error) {
	s, ip := img.Section(unwind), img.Section(unwindIP)
	if s == nil || ip == nil || s.Size == 0 {
		return nil, nil
	}
	t := &Table{machine: img.Machine(), addr: ip.Addr, place: img.Place}
	var err error
	if t.layout, err = layoutOf(img); err == nil {
		t.entries, err = img.Data(s)
	}
	if err == nil {
		t.ips, t.bad, err = img.Relocate(ip)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", img.Name(), unwind, err)
	}
	t.code = img.Code()
	return t, nil
}

// Size is that of the entries and their addresses, in bytes.
func (t *Table) Size() uint64 { return uint64(len(t.entries) + len(t.ips)) }

// Layout names the versions of Linux that write entries like the table's.
func (t *Table) Layout() string { return t.layout.name }

// Sum writes to w all that rows are made of.
func (t *Table) Sum(w io.Writer) {
	fmt.Fprintln(w, "orc", t.machine.ELF, t.layout.name, uint64(t.addr), t.code, len(t.entries), len(t.ips))
	w.Write(t.entries)
	w.Write(t.ips)
	for _, r := range t.bad {
		fmt.Fprintln(w, r.Off)
	}
}

// n is how many entries there are.
func (t *Table) n() int { return min(len(t.ips)/4, len(t.entries)/t.layout.size) }

// at returns the address of entry i.
func (t *Table) at(i int) arch.Vaddr {
	return t.addr + arch.Vaddr(4*i) + arch.Vaddr(int64(int32(binary.LittleEndian.Uint32(t.ips[4*i:]))))
}

// placed says whether the address of entry i is known: in a module, a relocation has written it.
func (t *Table) placed(i int) bool {
	return len(t.bad) == 0 || t.bad.In(uint64(4*i), uint64(4*i+4)) == nil
}

// bits returns entry i.
func (t *Table) bits(i int) uint64 {
	b := t.entries[i*t.layout.size:]
	v := uint64(binary.LittleEndian.Uint32(b)) | uint64(binary.LittleEndian.Uint16(b[4:]))<<32
	if t.layout.size == 8 {
		v |= uint64(binary.LittleEndian.Uint16(b[6:])) << 48
	}
	return v
}

// Entries calls yield with the entries that can be read and their addresses, in the order of the file, until it returns false.
func (t *Table) Entries(yield func(at arch.Vaddr, e Entry) bool) {
	for i := range t.n() {
		if e, err := t.layout.decode(t.bits(i)); err == nil && t.placed(i) && !yield(t.at(i), e) {
			return
		}
	}
}

// maxErrors bounds how many damaged entries are told apart, and how many relocations; the last error of each counts the others.
const maxErrors = 1000

// Rows returns the rows of all entries. Each entry that cannot be read is an error, up to maxErrors.
func (t *Table) Rows() (*rows.Table, []error) {
	var damage []error
	n := t.n()
	if n != len(t.ips)/4 || len(t.ips)%4 != 0 || len(t.entries) != n*t.layout.size {
		damage = append(damage, Damage{unwind, uint64(n * t.layout.size),
			fmt.Errorf("%w: %d bytes of entries and %d bytes of their addresses", module.ErrMalformed, len(t.entries), len(t.ips))})
	}
	for i := range t.bad[:min(len(t.bad), maxErrors)] {
		damage = append(damage, &t.bad[i])
	}
	if more := len(t.bad) - maxErrors; more > 0 {
		damage = append(damage, Damage{unwindIP, 0, fmt.Errorf("%w: %d more relocations", module.ErrMalformed, more)})
	}
	damaged := 0
	b := rows.NewBuilder(t.machine)
	sets := map[uint64]rows.SetID{} // by the bits of entries
	out := make([]rows.Row, 0, n)
	last, lastSet, lastAt := ^uint64(0), rows.GapID, arch.Vaddr(0)
	add := func(i int, at arch.Vaddr) {
		bits := t.bits(i)
		if bits != last {
			id, ok := sets[bits]
			if !ok {
				e, err := t.layout.decode(bits)
				var set rows.Set
				if err == nil {
					set, err = t.set(&e)
				}
				if id = b.Intern(set); err == nil {
					sets[bits] = id
				} else if damaged++; damaged <= maxErrors {
					damage = append(damage, Damage{unwind, uint64(i * t.layout.size), fmt.Errorf("entry of %s: %w", t.name(at), err)})
				}
			}
			last, lastSet = bits, id
			if !ok && id == rows.GapID {
				last = ^uint64(0) // each damaged entry is one
			}
		}
		lastAt = at
		// Of several entries for one address the last holds.
		k := len(out)
		if k > 0 && out[k-1].Lo == at {
			out, k = out[:k-1], k-1
		}
		if k == 0 || out[k-1].Set != lastSet {
			out = append(out, rows.Row{Lo: at, Set: lastSet})
		}
	}
	if t.sorted() {
		for i := range n {
			add(i, t.at(i))
		}
	} else if err := t.order(add); err != nil {
		damage = append(damage, Damage{unwindIP, 0, err})
	}
	if more := damaged - maxErrors; more > 0 {
		damage = append(damage, Damage{unwind, 0, fmt.Errorf("%w: %d more entries", module.ErrMalformed, more)})
	}
	if k := len(out); k > 0 {
		b.Range(out[0].Lo, t.end(lastAt), out)
	}
	return rows.Build(b), damage
}

// name returns an address as people read it.
func (t *Table) name(at arch.Vaddr) string {
	if section, off := t.place(at); section != "" {
		return fmt.Sprintf("%s+%#x", section, off)
	}
	return fmt.Sprintf("%#x", uint64(at))
}

// sorted says whether entries are in the order of their addresses, which are all known.
func (t *Table) sorted() bool {
	if len(t.bad) > 0 {
		return false
	}
	before := arch.Vaddr(0)
	for i := range t.n() {
		at := t.at(i)
		if at < before {
			return false
		}
		before = at
	}
	return true
}

// order sorts the entries of a module as Linux does when it loads the module: objtool has written them section by section. An entry of no type is
// behind a section, and may have the address of the next one: there, the other entry holds. It calls each with the entries in order.
func (t *Table) order(each func(i int, at arch.Vaddr)) error {
	n := t.n()
	low, high := ^arch.Vaddr(0), arch.Vaddr(0)
	for i := range n {
		if t.placed(i) {
			low, high = min(low, t.at(i)), max(high, t.at(i))
		}
	}
	// Keys: the address, whether the entry has a type, the index. Addresses are at most 2 GiB away, unless they wrap around.
	const indexBits, addrBits = 29, 34
	if n > 1<<indexBits || high > low && high-low >= 1<<addrBits {
		return fmt.Errorf("%w: %d entries from %#x to %#x", module.ErrUnsupported, n, uint64(low), uint64(high))
	}
	last, none := ^uint64(0), false
	keys := make([]uint64, 0, n)
	for i := range n {
		if !t.placed(i) {
			continue
		}
		typed := uint64(1)
		if bits := t.bits(i); bits != last {
			e, err := t.layout.decode(bits)
			last, none = bits, err == nil && e.Type == None
		}
		if none {
			typed = 0
		}
		keys = append(keys, uint64(t.at(i)-low)<<(indexBits+1)|typed<<indexBits|uint64(i))
	}
	slices.Sort(keys)
	for _, k := range keys {
		i := int(k & (1<<indexBits - 1))
		each(i, t.at(i))
	}
	return nil
}

// end returns where the last entry's range ends: with its section.
func (t *Table) end(last arch.Vaddr) arch.Vaddr {
	return max(last+1, t.code.End(last))
}

// Offsets in struct pt_regs of x86-64 (asm/ptrace.h), by the numbers of registers.
var amd64Regs = [17]int64{0: 80, 1: 96, 2: 88, 3: 40, 4: 104, 5: 112, 6: 32, 7: 152, 8: 72, 9: 64, 10: 56, 11: 48, 12: 24, 13: 16, 14: 8, 15: 0, 16: 128}

// amd64Iret is the offset in struct pt_regs of what the processor pushes when it is interrupted: rip, cs, rflags, rsp, ss.
const amd64Iret = 128

// Offsets in struct pt_regs of LoongArch (asm/ptrace.h): the registers, by number, and where the interrupted code goes on.
const (
	loongRegs = 32
	loongERA  = 8*loongRegs + 8
)

// set returns the rules of an entry. Linux's unwinder (arch/*/kernel/unwind_orc.c) says what an entry means: the caller's stack pointer
// comes first and is the CFA, and struct pt_regs or what the processor pushes are there, if the type says so.
func (t *Table) set(e *Entry) (rows.Set, error) {
	m := t.machine
	s := rows.Set{RA: m.RA, Flags: rows.Partial}
	if e.Signal {
		s.Flags |= rows.Signal
	}
	switch e.Type {
	case None: // Linux stops, and calls the stack unreliable
		return rows.Set{}, nil
	case End: // Linux stops, and the stack is whole
		return rows.Set{RA: m.RA, Rules: []rows.Rule{{Of: m.RA, Kind: rows.Undefined}}}, nil
	}
	off := int64(e.SPOffset)
	base, ok := t.register(e.SP)
	switch {
	case ok:
		s.CFA = rows.CFA{Kind: rows.CFAReg, Reg: base, Off: off}
	case e.SP == SPIndirect && t.layout.before:
		s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: m.SP, Off: off}
	case e.SP == SPIndirect:
		s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: m.SP, Off2: off}
	case e.SP == FPIndirect:
		s.CFA = rows.CFA{Kind: rows.CFARegDeref, Reg: m.FP, Off: off}
	default:
		return rows.Set{}, fmt.Errorf("%w: the stack pointer is based on nothing", module.ErrMalformed)
	}
	fill := t.amd64
	if t.layout.ra {
		fill = t.loong
	}
	if err := fill(&s, e); err != nil {
		return rows.Set{}, err
	}
	return s, nil
}

// register returns the register that a base is.
func (t *Table) register(b Base) (arch.Reg, bool) {
	switch b {
	case SP:
		return t.machine.SP, true
	case FP:
		return t.machine.FP, true
	}
	r, ok := map[Base]arch.Reg{AX: 0, DX: 1, DI: 5, R10: 10, R13: 13}[b]
	return r, ok
}

// amd64 adds the rules of an entry of x86-64.
func (t *Table) amd64(s *rows.Set, e *Entry) error {
	m := t.machine
	fp := rows.Rule{Of: m.FP, Kind: rows.SameValue}
	switch e.FP {
	case Undefined:
		if e.Type == Regs {
			fp = rows.Rule{Of: m.FP, Kind: rows.Offset, Off: amd64Regs[m.FP]}
		}
	case PrevSP:
		fp = rows.Rule{Of: m.FP, Kind: rows.Offset, Off: int64(e.FPOffset)}
	case FP:
		fp = rows.Rule{Of: m.FP, Kind: rows.RegDeref, Reg: m.FP, Off: int64(e.FPOffset)}
	default:
		return fmt.Errorf("%w: the frame pointer is based on another register", module.ErrMalformed)
	}
	switch e.Type {
	case Call:
		s.Rules = []rows.Rule{fp, {Of: m.RA, Kind: rows.Offset, Off: -8}}
	case Regs:
		s.Flags &^= rows.Partial
		for r, off := range amd64Regs {
			s.Rules = append(s.Rules, rows.Rule{Of: arch.Reg(r), Kind: rows.Offset, Off: off})
		}
		s.Rules[m.FP] = fp
	case Partial:
		s.Rules = []rows.Rule{fp, {Of: m.SP, Kind: rows.Offset, Off: amd64Regs[m.SP] - amd64Iret}, {Of: m.RA, Kind: rows.Offset}}
	}
	return nil
}

// loong adds the rules of an entry of LoongArch.
func (t *Table) loong(s *rows.Set, e *Entry) error {
	m := t.machine
	saved := func(r arch.Reg, b Base, off int16) (rows.Rule, error) {
		switch b {
		case Undefined:
			return rows.Rule{Of: r, Kind: rows.SameValue}, nil
		case PrevSP:
			return rows.Rule{Of: r, Kind: rows.Offset, Off: int64(off)}, nil
		}
		return rows.Rule{}, fmt.Errorf("%w: %s is based on another register", module.ErrMalformed, m.RegName(r))
	}
	switch e.Type {
	case Call:
		ra, err := saved(m.RA, e.RA, e.RAOffset)
		if err != nil {
			return err
		}
		fp, err := saved(m.FP, e.FP, e.FPOffset)
		s.Rules = []rows.Rule{ra, fp}
		return err
	case Regs:
		s.Flags &^= rows.Partial
		s.RA = m.PC
		for r := arch.Reg(1); r < loongRegs; r++ { // register 0 is zero
			s.Rules = append(s.Rules, rows.Rule{Of: r, Kind: rows.Offset, Off: 8 * int64(r)})
		}
		s.Rules = append(s.Rules, rows.Rule{Of: m.PC, Kind: rows.Offset, Off: loongERA})
		return nil
	}
	return fmt.Errorf("%w: only a part of the registers", module.ErrMalformed)
}
