package dwarf

import (
	"bytes"
	"encoding/binary"
	"math"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A head is the start of an entry: its length and what it is.
type head struct {
	off  int // of the entry
	id   int // of the field behind the length: a CIE's mark or an FDE's way to its CIE
	body int // of what follows
	end  int // of the next entry

	kind   entryKind
	wide   bool // 64-bit format
	cieOff int  // of an FDE
}

type entryKind uint8

const (
	isTerminator entryKind = iota
	isCIE
	isFDE
)

// head reads the head of the entry at off. On an error, h.end says where the next entry is, or is 0 if
// that cannot be known.
func (s *section) head(off int) (h head, err error) {
	r := s.reader(len(s.data))
	h.off = off
	n, at, err := r.fixed(off, 4)
	if err != nil {
		return h, in("entry length", err)
	}
	switch {
	case n == 0:
		h.kind, h.end = isTerminator, at
		return h, nil
	case n == 0xffffffff:
		h.wide = true
		if n, at, err = r.fixed(at, 8); err != nil {
			return h, in("entry length", err)
		}
	case n >= 0xfffffff0:
		return h, malformed(off, "entry length %#x is reserved", n)
	}
	if n > uint64(len(s.data)-at) {
		return h, &fault{off, wrapf(ErrTruncated, "entry of %#x bytes, of which %#x are there", n, len(s.data)-at)}
	}
	h.id, h.end = at, at+int(n)
	width, mark := 4, uint64(0)
	if !s.eh {
		mark = 0xffffffff
		if h.wide {
			width, mark = 8, math.MaxUint64
		}
	}
	if int(n) < width {
		return h, malformed(off, "entry of %d bytes", n)
	}
	id := fixed(s.data[at:at+width], s.big)
	h.body = at + width
	if id == mark {
		h.kind = isCIE
		return h, nil
	}
	h.kind = isFDE
	if s.eh { // backwards from the field
		if id > uint64(at) {
			return h, malformed(at, "CIE pointer %#x leads out of the section", id)
		}
		h.cieOff = at - int(id)
	} else {
		if id >= uint64(len(s.data)) {
			return h, malformed(at, "CIE pointer %#x leads out of the section", id)
		}
		h.cieOff = int(id)
	}
	return h, nil
}

func (s *section) reader(end int) reader { return reader{data: s.data, end: end, big: s.big} }

func (s *section) bases(fn uint64) bases {
	return bases{field: s.addr, text: uint64(s.in.Text), data: uint64(s.in.GOT), fn: fn}
}

// walk calls yield for every CIE and FDE in order. What has no readable head goes to bad; the last
// call to bad may mean that the rest of the section is lost.
func (s *section) walk(yield func(h *head) bool, bad func(off int, err error)) {
	var h head
	for off := 0; off < len(s.data); {
		var err error
		h, err = s.head(off)
		switch {
		case err != nil && s.open:
			return
		case err != nil:
			if len(s.data)-off < 4 && allZero(s.data[off:]) {
				return // padding
			}
			bad(off, err)
			if h.end == 0 {
				return
			}
		case h.kind == isTerminator:
			if s.open {
				return
			}
		default:
			if !yield(&h) {
				return
			}
		}
		off = h.end
	}
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}

// relocated returns an error if a relocation between two offsets could not be applied.
func (s *section) relocated(from, to int) error {
	x := s.bad.In(uint64(from), uint64(to))
	if x == nil {
		return nil
	}
	return &fault{int(x.Off), wrapf(ErrUnsupported, "relocation %s: %s", x.Type, x.Msg)}
}

// A cie is a decoded CIE. If err is set, its FDEs are lost.
type cie struct {
	head
	err error

	version  byte
	aug      string
	addrSize int
	segSize  int
	caf      uint64 // code alignment factor
	daf      int64  // data alignment factor
	ra       arch.Reg
	sized    bool // FDEs have sized augmentation data: 'z'
	fdeEnc   byte
	lsdaEnc  byte
	persEnc  byte
	pers     pointer
	flags    rows.Flags
	usual    bool // its FDEs may be of the shape that quick knows
	insns    int  // offset; they go on to end
}

// maxCAF bounds the code alignment factor, so that no advance of four bytes overflows.
const maxCAF = 1 << 24

// maxAug bounds the length of an augmentation, so that a CIE takes a constant time.
const maxAug = 64

// cie decodes the CIE whose head is h.
func (s *section) cie(h *head) (c *cie) {
	c = &cie{head: *h, addrSize: s.in.AddrSize, fdeEnc: DW_EH_PE_absptr, lsdaEnc: DW_EH_PE_omit, persEnc: DW_EH_PE_omit}
	r := s.reader(h.end)
	fail := func(what string, err error) *cie {
		c.err = in("CIE: "+what, err)
		return c
	}
	if err := s.relocated(h.off, h.end); err != nil {
		return fail("head", err)
	}
	v, at, err := r.u8(h.body)
	if err != nil {
		return fail("version", err)
	}
	c.version = byte(v)
	if v != 1 && v != 3 && v != 4 && v != 5 {
		return fail("version", unsupported(h.body, "version %d", v))
	}
	n := bytes.IndexByte(s.data[at:min(h.end, at+maxAug+1)], 0)
	if n < 0 {
		if h.end-at > maxAug {
			return fail("augmentation", unsupported(at, "more than %d letters", maxAug))
		}
		return fail("augmentation", truncated(at, "string"))
	}
	augAt := at
	c.aug = string(s.data[at : at+n])
	at += n + 1
	if c.aug == "eh" { // GCC 2: a pointer to exception data
		if _, at, err = r.fixed(at, c.addrSize); err != nil {
			return fail("exception data", err)
		}
	} else if c.aug != "" && c.aug[0] != 'z' {
		return fail("augmentation", unsupported(augAt, "augmentation %q", c.aug))
	}
	if c.version >= 4 {
		if !r.has(at, 2) {
			return fail("address size", truncated(at, "number"))
		}
		c.addrSize, c.segSize = int(s.data[at]), int(s.data[at+1])
		if c.addrSize != 4 && c.addrSize != 8 && c.addrSize != 2 {
			return fail("address size", unsupported(at, "%d bytes", c.addrSize))
		}
		if c.segSize > 8 {
			return fail("segment selector size", unsupported(at+1, "%d bytes", c.segSize))
		}
		at += 2
	}
	field := at
	if c.caf, at, err = r.uleb(at); err != nil {
		return fail("code alignment factor", err)
	}
	if c.caf > maxCAF {
		return fail("code alignment factor", unsupported(field, "%d", c.caf))
	}
	if c.daf, at, err = r.sleb(at); err != nil {
		return fail("data alignment factor", err)
	}
	if field = at; c.version == 1 {
		v, at, err = r.u8(at)
	} else {
		v, at, err = r.uleb(at)
	}
	if err != nil {
		return fail("return address column", err)
	}
	if v > math.MaxUint16 {
		return fail("return address column", unsupported(field, "register %d", v))
	}
	c.ra = arch.Reg(v)
	if strings.HasPrefix(c.aug, "z") {
		c.sized = true
		if v, at, err = r.uleb(at); err != nil {
			return fail("augmentation length", err)
		}
		if v > uint64(h.end-at) {
			return fail("augmentation length", &fault{at, wrapf(ErrTruncated, "%#x bytes, of which %#x are there", v, h.end-at)})
		}
		c.insns = at + int(v)
		if err := s.augmentation(c, at); err != nil {
			return fail("augmentation "+c.aug, err)
		}
		at = c.insns
	}
	c.insns = at
	c.usual = s.eh && !s.big && c.sized && c.fdeEnc == DW_EH_PE_pcrel|DW_EH_PE_sdata4 && c.addrSize == 8 && c.segSize == 0 && s.in.Place == nil
	return c
}

// augmentation reads c's augmentation data, from at to c.insns, in the order of the letters. An unknown
// letter ends the reading: its data and what follows are skipped by their length.
func (s *section) augmentation(c *cie, at int) (err error) {
	r := s.reader(c.insns)
	var v uint64
	for _, letter := range []byte(c.aug[1:]) {
		switch letter {
		case 'L':
			if v, at, err = r.u8(at); err != nil {
				return err
			}
			c.lsdaEnc = byte(v)
		case 'R':
			if v, at, err = r.u8(at); err != nil {
				return err
			}
			c.fdeEnc = byte(v)
		case 'P':
			if v, at, err = r.u8(at); err != nil {
				return err
			}
			c.persEnc = byte(v)
			// Who handles exceptions does not matter here; that the pointer's size is known does.
			b := s.bases(0)
			direct := c.persEnc
			if direct != DW_EH_PE_omit {
				direct &^= DW_EH_PE_indirect
			}
			if c.pers, at, err = s.encoded(&r, at, direct, c.addrSize, &b); err != nil {
				return err
			}
		case 'S':
			c.flags |= rows.Signal
		case 'B':
			c.flags |= rows.BKey
		case 'G':
			c.flags |= rows.Tagged
		default:
			return nil
		}
	}
	return nil
}

// An fde is a decoded FDE.
type fde struct {
	off    int
	cie    *cie
	lo, hi uint64
	dead   bool // its function was discarded by the linker
	aug    int  // offset of the augmentation data
	insns  int  // offset; they go on to end
	end    int
}

// quick decodes the FDE at off if it is a sound one of CIE c and of the shape that nearly all have: addresses
// relative, of four bytes, little-endian, and not dead nor empty. It says whether it did; head and fde read the
// others, and say what is wrong with them.
func (s *section) quick(off int, c *cie, f *fde) bool {
	if !c.usual || len(s.data)-off < 24 {
		return false
	}
	b := s.data[off : off+24]
	n, id := binary.LittleEndian.Uint32(b), binary.LittleEndian.Uint32(b[4:])
	v, size := int32(binary.LittleEndian.Uint32(b[8:])), binary.LittleEndian.Uint32(b[12:])
	end, insns := off+4+int(n), off+17+int(b[16])
	lo := s.addr + uint64(off) + 8 + uint64(v)
	if n >= 0xfffffff0 || end > len(s.data) || off+4-int(id) != c.off || v == 0 || size == 0 ||
		b[16] >= 0x80 || insns > end || lo+uint64(size) < lo {
		return false
	}
	f.off, f.cie, f.lo, f.hi, f.dead = off, c, lo, lo+uint64(size), false
	f.aug, f.insns, f.end = off+17, insns, end
	return true
}

// fde decodes the FDE whose head is h and whose CIE is c.
func (s *section) fde(f *fde, h *head, c *cie) (err error) {
	*f = fde{off: h.off, cie: c, end: h.end}
	if c.err != nil {
		return malformed(h.off, "FDE of the damaged CIE at %#x", c.off)
	}
	r := reader{data: s.data, end: h.end, big: s.big}
	at := h.body + c.segSize
	var size uint64
	b := s.bases(0)
	var p pointer
	if p, at, err = s.encoded(&r, at, c.fdeEnc, c.addrSize, &b); err != nil {
		return in("FDE: start", err)
	}
	if err := s.relocated(h.off, at); err != nil {
		return in("FDE: start", err)
	}
	f.lo, f.dead = p.v, p.null || s.in.Place != nil && p.v == 0
	if err := s.relocated(at, h.end); err != nil {
		return err
	}
	format := c.fdeEnc & 0x0f
	if format != DW_EH_PE_sleb128 {
		format &^= DW_EH_PE_signed // a size has no sign
	}
	if size, at, err = r.number(at, format, c.addrSize); err != nil {
		return in("FDE: size", err)
	}
	// What a linker leaves of a discarded function in a section that is not loaded.
	if mask := addrMask(c.addrSize); !s.eh && f.lo >= mask-1 {
		f.dead = true
	}
	f.hi = f.lo + size
	if !f.dead && (f.hi < f.lo || f.hi-1 > addrMask(c.addrSize) && size > 0) {
		return malformed(h.body, "FDE of %#x, of %#x bytes, goes beyond the address space", f.lo, size)
	}
	if c.sized {
		var n uint64
		if n, at, err = r.uleb(at); err != nil {
			return in("FDE: augmentation length", err)
		}
		if n > uint64(h.end-at) {
			return &fault{at, wrapf(ErrTruncated, "FDE: augmentation of %#x bytes, of which %#x are there", n, h.end-at)}
		}
		f.aug = at
		at += int(n)
	}
	if at > h.end {
		return truncated(at, "FDE")
	}
	f.insns = at
	return nil
}

// lsda reads the address of f's language-specific data.
func (s *section) lsda(f *fde) (arch.Vaddr, bool) {
	if !f.cie.sized || f.cie.lsdaEnc == DW_EH_PE_omit {
		return 0, false
	}
	r := s.reader(f.insns)
	b := s.bases(f.lo)
	p, _, err := s.encoded(&r, f.aug, f.cie.lsdaEnc&^DW_EH_PE_indirect, f.cie.addrSize, &b)
	if err != nil || p.null {
		return 0, false
	}
	return arch.Vaddr(p.v), true
}
