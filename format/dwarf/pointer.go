package dwarf

import (
	"encoding/binary"
	"math/bits"

	"github.com/unspool/unspool/arch"
)

// Pointer encodings (LSB core 5.0, section 10.5.1): a format, what it is relative to, and a flag.
const (
	DW_EH_PE_absptr   = 0x00
	DW_EH_PE_uleb128  = 0x01
	DW_EH_PE_udata2   = 0x02
	DW_EH_PE_udata4   = 0x03
	DW_EH_PE_udata8   = 0x04
	DW_EH_PE_signed   = 0x08
	DW_EH_PE_sleb128  = 0x09
	DW_EH_PE_sdata2   = 0x0a
	DW_EH_PE_sdata4   = 0x0b
	DW_EH_PE_sdata8   = 0x0c
	DW_EH_PE_pcrel    = 0x10
	DW_EH_PE_textrel  = 0x20
	DW_EH_PE_datarel  = 0x30
	DW_EH_PE_funcrel  = 0x40
	DW_EH_PE_aligned  = 0x50
	DW_EH_PE_indirect = 0x80
	DW_EH_PE_omit     = 0xff
)

// A reader decodes numbers in data[:end]. Every method takes an offset, which may be any number, and
// gives the one behind what it read.
type reader struct {
	data []byte
	end  int
	big  bool
}

func (r *reader) has(at, n int) bool { return at >= 0 && at <= r.end && r.end-at >= n }

func (r *reader) u8(at int) (uint64, int, error) {
	if !r.has(at, 1) {
		return 0, at, truncated(at, "byte")
	}
	return uint64(r.data[at]), at + 1, nil
}

// fixed reads an unsigned number of 1, 2, 4 or 8 bytes.
func (r *reader) fixed(at, size int) (uint64, int, error) {
	if !r.has(at, size) {
		return 0, at, truncated(at, "number")
	}
	return fixed(r.data[at:at+size], r.big), at + size, nil
}

func fixed(b []byte, big bool) uint64 {
	switch len(b) {
	case 1:
		return uint64(b[0])
	case 2:
		v := binary.LittleEndian.Uint16(b)
		if big {
			v = bits.ReverseBytes16(v)
		}
		return uint64(v)
	case 4:
		v := binary.LittleEndian.Uint32(b)
		if big {
			v = bits.ReverseBytes32(v)
		}
		return uint64(v)
	case 8:
		v := binary.LittleEndian.Uint64(b)
		if big {
			v = bits.ReverseBytes64(v)
		}
		return v
	}
	panic("BUG: a number of an odd size")
}

// uleb reads an unsigned LEB128 that fits 64 bits, padded or not.
func (r *reader) uleb(at int) (uint64, int, error) {
	var v uint64
	for shift, p := uint(0), at; r.has(p, 1); shift += 7 {
		c := r.data[p]
		p++
		if low := uint64(c & 0x7f); shift >= 64 && low != 0 || shift == 63 && low > 1 {
			return 0, at, malformed(at, "LEB128 number of more than 64 bits")
		} else if shift < 64 {
			v |= low << shift
		}
		if c < 0x80 {
			return v, p, nil
		}
	}
	return 0, at, truncated(at, "LEB128 number")
}

// sleb reads a signed LEB128 that fits 64 bits, padded or not.
func (r *reader) sleb(at int) (int64, int, error) {
	var v int64
	for shift, p := uint(0), at; r.has(p, 1); {
		c := r.data[p]
		p++
		low := int64(c & 0x7f)
		switch {
		case shift < 63:
			v |= low << shift
		case shift == 63: // one bit fits, the other six repeat it
			if low != 0 && low != 0x7f {
				return 0, at, malformed(at, "LEB128 number of more than 64 bits")
			}
			v |= low << 63
		case low != v>>63&0x7f:
			return 0, at, malformed(at, "LEB128 number of more than 64 bits")
		}
		shift += 7
		if c < 0x80 {
			if shift < 64 && c&0x40 != 0 {
				v |= -1 << shift
			}
			return v, p, nil
		}
	}
	return 0, at, truncated(at, "LEB128 number")
}

// A pointer is a decoded DW_EH_PE pointer.
type pointer struct {
	v    uint64
	null bool // the raw value is 0 or the encoding says omit: there is no pointer
}

// bases are what pointers are relative to.
type bases struct {
	field uint64 // link-time address of data[0], for pcrel and aligned
	text  uint64
	data  uint64
	fn    uint64 // start of the function
}

// encoded reads a pointer of encoding enc at offset at. Addresses wrap at the machine's width.
func (f *Frames) encoded(r *reader, at int, enc byte, addrSize int, b *bases) (pointer, int, error) {
	if enc == DW_EH_PE_omit {
		return pointer{null: true}, at, nil
	}
	if enc&0x70 == DW_EH_PE_aligned {
		if pad := -(b.field + uint64(at)) & uint64(addrSize-1); r.has(at, int(pad)) {
			at += int(pad)
		}
		if enc&0x8f != 0 {
			return pointer{}, at, malformed(at, "pointer encoding %#02x", enc)
		}
	}
	start := at
	v, at, err := r.number(at, enc&0x0f, addrSize)
	if err != nil {
		return pointer{}, at, err
	}
	if v == 0 {
		return pointer{null: true}, at, nil
	}
	switch enc & 0x70 {
	case DW_EH_PE_absptr, DW_EH_PE_aligned:
	case DW_EH_PE_pcrel:
		v += b.field + uint64(start)
	case DW_EH_PE_textrel:
		v += b.text
	case DW_EH_PE_datarel:
		v += b.data
	case DW_EH_PE_funcrel:
		v += b.fn
	default:
		return pointer{}, at, malformed(start, "pointer encoding %#02x", enc)
	}
	mask := addrMask(addrSize)
	v &= mask
	if enc&DW_EH_PE_indirect != 0 {
		if f.in.Memory == nil {
			return pointer{}, at, unsupported(start, "indirect pointer to %#x without memory", v)
		}
		f.indirect.Store(true)
		m, ok := f.in.Memory(arch.Vaddr(v), addrSize)
		if !ok || len(m) < addrSize {
			return pointer{}, at, malformed(start, "indirect pointer to %#x, where there is nothing", v)
		}
		v = fixed(m[:addrSize], f.big)
	}
	return pointer{v: v}, at, nil
}

// number reads the raw value of a pointer whose format is the low four bits of its encoding.
func (r *reader) number(at int, format byte, addrSize int) (v uint64, next int, err error) {
	size := 0
	switch format {
	case DW_EH_PE_absptr, DW_EH_PE_signed:
		size = addrSize
	case DW_EH_PE_uleb128:
		return r.uleb(at)
	case DW_EH_PE_sleb128:
		s, next, err := r.sleb(at)
		return uint64(s), next, err
	case DW_EH_PE_udata2, DW_EH_PE_sdata2:
		size = 2
	case DW_EH_PE_udata4, DW_EH_PE_sdata4:
		size = 4
	case DW_EH_PE_udata8, DW_EH_PE_sdata8:
		size = 8
	default:
		return 0, at, malformed(at, "pointer format %#x", format)
	}
	if v, next, err = r.fixed(at, size); err != nil {
		return 0, at, err
	}
	if format&DW_EH_PE_signed != 0 {
		shift := 64 - 8*uint(size)
		v = uint64(int64(v<<shift) >> shift)
	}
	return v, next, nil
}

func addrMask(addrSize int) uint64 {
	if addrSize >= 8 {
		return ^uint64(0)
	}
	return 1<<(8*uint(addrSize)) - 1
}
