package dwarf

import (
	"github.com/unspool/unspool/arch"
)

// An Entry is one CIE or FDE with its place in the section.
type Entry struct {
	Section string
	Off     uint64 // of the entry
	Size    uint64 // bytes, the length field included
	DWARF64 bool
	CIE     CIE // an FDE's, or the entry itself
	FDE     FDE
	IsFDE   bool

	s        *section
	c        *cie
	from, to int
}

// A CIE has the common part of FDEs (DWARF 5, section 6.4.1).
type CIE struct {
	Off          uint64
	Version      byte
	Augmentation string
	AddrSize     int
	CodeAlign    uint64
	DataAlign    int64
	RA           arch.Reg
	FDEEncoding  byte
	LSDAEncoding byte // DW_EH_PE_omit without 'L'

	// Personality is the handler's address, or where that is kept if PersonalityEncoding has
	// DW_EH_PE_indirect; 0 without 'P'.
	Personality         arch.Vaddr
	PersonalityEncoding byte
}

// An FDE is one function's entry.
type FDE struct {
	Lo, Hi  arch.Vaddr
	Dead    bool // the linker discarded the function: Build leaves the entry out
	LSDA    arch.Vaddr
	HasLSDA bool
}

// Entries calls yield with every CIE and FDE in file order until it returns false. Entries that cannot be
// read are left out and reported; the instructions of those that can may still be damaged.
func (f *Frames) Entries(which Which, yield func(Entry) bool) []Damage {
	var all []Damage
	for _, kind := range []Which{EHFrame, DebugFrame} {
		if which&kind == 0 {
			continue
		}
		for _, s := range f.sections(kind) {
			ds, more := s.entries(yield)
			if all = append(all, ds...); !more {
				return all
			}
		}
	}
	return all
}

func (s *section) entries(yield func(Entry) bool) (all []Damage, more bool) {
	ds := damages{}
	more = true
	s.walk(func(h *head) bool {
		e := Entry{Section: s.name, Off: uint64(h.off), Size: uint64(h.end - h.off), DWARF64: h.wide, s: s, to: h.end}
		if h.kind == isCIE {
			c, err := s.cieAt(h.off)
			if err == nil {
				err = c.err
			}
			if err != nil {
				ds.add(s, h.off, nil, err)
				return true
			}
			e.CIE, e.c, e.from = c.public(), c, c.insns
		} else {
			var d fde
			c, err := s.cieOf(h)
			if err == nil {
				err = s.fde(&d, h, c)
			}
			if err != nil {
				ds.add(s, h.off, nil, err)
				return true
			}
			e.IsFDE, e.CIE, e.c, e.from = true, c.public(), c, d.insns
			e.FDE = FDE{Lo: arch.Vaddr(d.lo), Hi: arch.Vaddr(d.hi), Dead: d.dead}
			e.FDE.LSDA, e.FDE.HasLSDA = s.lsda(&d)
		}
		more = yield(e)
		return more
	}, func(off int, err error) { ds.add(s, off, nil, err) })
	return ds.all(), more
}

func (c *cie) public() CIE {
	p := CIE{
		Off: uint64(c.off), Version: c.version, Augmentation: c.aug, AddrSize: c.addrSize,
		CodeAlign: c.caf, DataAlign: c.daf, RA: c.ra, FDEEncoding: c.fdeEnc, LSDAEncoding: c.lsdaEnc,
		PersonalityEncoding: c.persEnc,
	}
	if !c.pers.null {
		p.Personality = arch.Vaddr(c.pers.v)
	}
	return p
}

// Raw returns the bytes of the entry's instructions, with the padding behind them.
func (e *Entry) Raw() []byte { return e.s.data[e.from:e.to] }

// Instructions decodes the entry's instructions in order, padding included, until yield returns false.
// It stops at the first that cannot be read, with a Damage.
func (e *Entry) Instructions(yield func(*Instruction) bool) error {
	r := e.s.reader(e.to)
	var i Instruction
	for at := e.from; at < e.to; {
		next, err := e.s.instruction(&i, &r, at, e.c, uint64(e.FDE.Lo))
		if err != nil {
			ds := damages{}
			ds.add(e.s, int(e.Off), nil, err)
			d := ds.list[0]
			d.IsFDE, d.PC = e.IsFDE, e.FDE.Lo
			return d
		}
		if !yield(&i) {
			return nil
		}
		at = next
	}
	return nil
}
