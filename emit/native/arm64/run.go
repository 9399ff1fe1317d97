package arm64

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// A Region is memory that code may use.
type Region struct {
	Addr  uint64
	Bytes []byte
	Write bool
	Code  bool
}

// A CPU runs code that an Asm wrote, on any machine: a plain interpreter, for proofs. It knows no other instructions, and no memory but its
// regions.
type CPU struct {
	X       [32]uint64 // x31 is the stack pointer
	Regions []Region

	// Call is what code at other addresses does: it returns false where there is none. x30 has been set.
	Call func(c *CPU, addr uint64) bool

	pc         uint64
	n, z, c, v bool
	vec        [8][2]uint64
	code       Region
	flow       error
}

// maxRun bounds a run, in instructions. A rule has an expression for each of 43 slots at most, an expression does 4,096 operations, and an
// operation takes up to 60 instructions: 11 million. The rest is for the words that operations search, up to 4,096 of one expression.
const maxRun = 1 << 26

// returned is where a run ends: no code lies there.
const returned = 0xdead0000

// Run calls the code at an address, and returns when it does.
func (c *CPU) Run(addr uint64) error {
	c.pc, c.X[30], c.flow = addr, returned, nil
	for range maxRun {
		if c.pc == returned {
			return nil
		}
		off := c.pc - c.code.Addr
		if off >= uint64(len(c.code.Bytes)) || uint64(len(c.code.Bytes))-off < 4 {
			if !c.enter() {
				return fmt.Errorf("no code at %#x", c.pc)
			}
			continue
		}
		at := c.pc
		w := binary.LittleEndian.Uint32(c.code.Bytes[off:])
		c.pc += 4
		if !c.step(w, at) {
			return fmt.Errorf("instruction %08x at %#x is not known", w, at)
		}
		if c.flow != nil {
			return fmt.Errorf("instruction %08x at %#x: %w", w, at, c.flow)
		}
	}
	return fmt.Errorf("more than %d instructions", maxRun)
}

// enter finds the region of the program counter, or makes a call out of the code.
func (c *CPU) enter() bool {
	for _, r := range c.Regions {
		if r.Code && c.pc-r.Addr < uint64(len(r.Bytes)) && c.pc&3 == 0 {
			c.code = r
			return c.pc-r.Addr+4 <= uint64(len(r.Bytes))
		}
	}
	if c.Call == nil || !c.Call(c, c.pc) {
		return false
	}
	c.pc = c.X[30]
	return true
}

// Memory returns n bytes at an address; nil where the code may not use them.
func (c *CPU) Memory(addr uint64, n int, write bool) []byte {
	for i := range c.Regions {
		r := &c.Regions[i]
		if off := addr - r.Addr; off < uint64(len(r.Bytes)) && uint64(len(r.Bytes))-off >= uint64(n) && (r.Write || !write) {
			return r.Bytes[off:][:n]
		}
	}
	return nil
}

func (c *CPU) load(addr uint64, size uint32) (v uint64) {
	b := c.Memory(addr, 1<<size, false)
	if b == nil {
		c.flow = fmt.Errorf("%d bytes at %#x cannot be read", 1<<size, addr)
		return 0
	}
	for i := range b {
		v |= uint64(b[i]) << (8 * i)
	}
	return v
}

func (c *CPU) store(addr, v uint64, size uint32) {
	b := c.Memory(addr, 1<<size, true)
	if b == nil {
		c.flow = fmt.Errorf("%d bytes at %#x cannot be written", 1<<size, addr)
		return
	}
	for i := range b {
		b[i] = byte(v >> (8 * i))
	}
}

// get and set are for operands where 31 is zero.
func (c *CPU) get(r uint32) uint64 {
	if r &= 31; r != 31 {
		return c.X[r]
	}
	return 0
}

func (c *CPU) set(r uint32, v uint64) {
	if r &= 31; r != 31 {
		c.X[r] = v
	}
}

func (c *CPU) subs(x, y uint64) uint64 {
	d := x - y
	c.n, c.z, c.c, c.v = d>>63 != 0, d == 0, x >= y, (x^y)&(x^d)>>63 != 0
	return d
}

func (c *CPU) holds(cond uint32) (ok bool) {
	switch cond & 15 >> 1 {
	case 0:
		ok = c.z
	case 1:
		ok = c.c
	case 2:
		ok = c.n
	case 3:
		ok = c.v
	case 4:
		ok = c.c && !c.z
	case 5:
		ok = c.n == c.v
	case 6:
		ok = c.n == c.v && !c.z
	default:
		return true
	}
	return ok != (cond&1 != 0)
}

// step runs the instruction w, which lies at an address. It returns false for one that no Asm writes.
func (c *CPU) step(w uint32, at uint64) bool {
	d, n, m := w&31, w>>5&31, w>>16&31
	switch w >> 24 {
	case 0x14, 0x15, 0x16, 0x17, 0x94, 0x95, 0x96, 0x97: // b, bl
		if w>>31 != 0 {
			c.X[30] = c.pc
		}
		c.pc = at + uint64(int64(w)<<38>>36)
	case 0x54:
		if c.holds(w) {
			c.pc = at + uint64(int64(w>>5)<<45>>43)
		}
	case 0xb4, 0xb5: // cbz, cbnz
		if c.get(d) == 0 == (w>>24&1 == 0) {
			c.pc = at + uint64(int64(w>>5)<<45>>43)
		}
	case 0x36, 0x37, 0xb6, 0xb7: // tbz, tbnz
		if bit := w>>31<<5 | w>>19&31; c.get(d)>>bit&1 == uint64(w>>24&1) {
			c.pc = at + uint64(int64(w>>5)<<50>>48)
		}
	case 0xd6:
		switch w &^ (31 << 5) {
		case 0xd61f0000, 0xd65f0000: // br, ret
			c.pc = c.get(n)
		case 0xd63f0000: // blr
			to := c.get(n)
			c.X[30], c.pc = c.pc, to
		default:
			return false
		}
	case 0xd5: // xpaclri: the regions' addresses have 48 bits at most
		if w != 0xd50320ff {
			return false
		}
		if c.X[30]>>55&1 == 0 {
			c.X[30] &^= 0x7f << 48
		} else {
			c.X[30] |= 0x7f << 48
		}
	case 0x91, 0xd1, 0xf1: // add, sub, subs of a number
		v := uint64(w >> 10 & 0xfff)
		if w>>22&1 != 0 {
			v <<= 12
		}
		switch {
		case w>>23&1 != 0:
			return false
		case w>>24 == 0x91:
			c.X[d] = c.X[n] + v
		case w>>24 == 0xd1:
			c.X[d] = c.X[n] - v
		default:
			c.set(d, c.subs(c.X[n], v))
		}
	case 0x92, 0xb2, 0xd2, 0xf2:
		return c.number(w)
	case 0xd3, 0x93, 0x53: // ubfm, sbfm
		return c.bitfield(w)
	case 0x10: // adr
		if w&0x00ffffe0 != 0 {
			return false
		}
		c.set(d, at)
	case 0x90, 0xb0, 0xd0, 0xf0: // adrp
		imm := int64(w>>5&0x7ffff<<2|w>>29&3) << 43 >> 43
		c.set(d, at&^0xfff+uint64(imm)<<12)
	case 0x8b, 0xcb, 0xeb, 0x8a, 0xaa, 0xca, 0x0b, 0x4b, 0x2a:
		if w>>22&3 != 0 || w>>21&1 != 0 && w>>24 != 0x8a && w>>24 != 0xaa {
			return false
		}
		x, y := c.get(n), c.get(m)<<(w>>10&63)
		if w>>21&1 != 0 {
			y = ^y
		}
		switch w >> 24 {
		case 0x8b:
			c.set(d, x+y)
		case 0xcb:
			c.set(d, x-y)
		case 0xeb:
			c.set(d, c.subs(x, y))
		case 0x8a:
			c.set(d, x&y)
		case 0xaa:
			c.set(d, x|y)
		case 0xca:
			c.set(d, x^y)
		default:
			if w>>10&63 != 0 {
				return false
			}
			switch w >> 24 {
			case 0x0b:
				c.set(d, uint64(uint32(x+y)))
			case 0x4b:
				c.set(d, uint64(uint32(x-y)))
			default:
				c.set(d, uint64(uint32(x|y)))
			}
		}
	case 0x9a, 0xda, 0x9b:
		return c.arithmetic(w)
	case 0x38, 0x78, 0xb8, 0xf8, 0x39, 0x79, 0xb9, 0xf9:
		size := w >> 30
		addr := c.X[n]
		switch {
		case w>>24&1 != 0:
			addr += uint64(w>>10&0xfff) << size
		case w&0x00200c00 == 0:
			addr += uint64(int64(w>>12) << 55 >> 55)
		case w&0x0020fc00 == 0x00206800 && size == 0 || w&0x0020fc00 == 0x00207800 && size != 0:
			addr += c.get(m) << size
		default:
			return false
		}
		switch w >> 22 & 3 {
		case 0:
			c.store(addr, c.get(d), size)
		case 1:
			c.set(d, c.load(addr, size))
		default:
			return false
		}
	case 0xa8, 0xa9:
		return c.pairs(w)
	default:
		return c.vector(w)
	}
	return true
}

// number runs and, orr, movn, movz and movk of numbers.
func (c *CPU) number(w uint32) bool {
	d, n := w&31, w>>5&31
	if w>>23&1 != 0 {
		shift := w >> 21 & 3 * 16
		v := uint64(w>>5&0xffff) << shift
		switch w >> 24 {
		case 0xd2:
			c.set(d, v)
		case 0x92:
			c.set(d, ^v)
		case 0xf2:
			c.set(d, c.get(d)&^(0xffff<<shift)|v)
		default:
			return false
		}
		return true
	}
	size := uint32(64)
	imms, immr := w>>10&63, w>>16&63
	if w>>22&1 == 0 {
		if imms >= 0x3e {
			return false // no field has so few bits
		}
		size = 1 << (31 - bits.LeadingZeros32(^imms&63))
	}
	ones, rot := imms&(size-1)+1, immr&(size-1)
	f := ^uint64(0) >> (64 - ones)
	f = f>>rot | f<<(size-rot)
	f &= ^uint64(0) >> (64 - size)
	for ; size < 64; size *= 2 {
		f |= f << size
	}
	switch w >> 24 {
	case 0x92:
		c.X[d] = c.get(n) & f
	case 0xb2:
		c.X[d] = c.get(n) | f
	default:
		return false
	}
	return true
}

// bitfield runs the shifts by numbers, and uxth.
func (c *CPU) bitfield(w uint32) bool {
	d, x, immr, imms := w&31, c.get(w>>5), w>>16&63, w>>10&63
	switch {
	case w>>16 == 0x5300 && imms == 15:
		c.set(d, x&0xffff)
	case w>>22 == 0xd3400000>>22 && imms == 63:
		c.set(d, x>>immr)
	case w>>22 == 0xd3400000>>22 && imms+1 == immr:
		c.set(d, x<<(64-immr))
	case w>>22 == 0x93400000>>22 && imms == 63:
		c.set(d, uint64(int64(x)>>immr))
	default:
		return false
	}
	return true
}

// arithmetic runs what takes two or three registers, and has no number.
func (c *CPU) arithmetic(w uint32) bool {
	d, x, y := w&31, c.get(w>>5), c.get(w>>16)
	switch op := w &^ (31 | 31<<5 | 31<<16); {
	case Op(op) == LSL:
		c.set(d, x<<(y&63))
	case Op(op) == LSR:
		c.set(d, x>>(y&63))
	case Op(op) == ASR:
		c.set(d, uint64(int64(x)>>(y&63)))
	case Op(op) == UDIV && y == 0, Op(op) == SDIV && y == 0:
		c.set(d, 0)
	case Op(op) == UDIV:
		c.set(d, x/y)
	case Op(op) == SDIV && int64(y) == -1:
		c.set(d, -x)
	case Op(op) == SDIV:
		c.set(d, uint64(int64(x)/int64(y)))
	case Op(op) == MUL:
		c.set(d, x*y)
	case op&0xffe08000 == 0x9b008000:
		c.set(d, c.get(w>>10)-x*y)
	case op&0xffe00c00 == 0x9a800000:
		if !c.holds(w >> 12) {
			x = y
		}
		c.set(d, x)
	case op&0xffe00c00 == 0x9a800400:
		if !c.holds(w >> 12) {
			x = y + 1
		}
		c.set(d, x)
	case op == 0xdac00000:
		c.set(d, bits.Reverse64(x))
	case op == 0xdac01000:
		c.set(d, uint64(bits.LeadingZeros64(x)))
	default:
		return false
	}
	return true
}

// pairs runs loads and stores of two registers.
func (c *CPU) pairs(w uint32) bool {
	d, n, t := w&31, w>>5&31, w>>10&31
	off := uint64(int64(w>>15) << 57 >> 57 << 3)
	addr := c.X[n] + off
	post := w>>22 == 0xa8c00000>>22
	if post {
		addr = c.X[n]
	}
	switch w >> 22 {
	case 0xa9000000 >> 22, 0xa9800000 >> 22:
		c.store(addr, c.get(d), 3)
		c.store(addr+8, c.get(t), 3)
	case 0xa9400000 >> 22, 0xa8c00000 >> 22:
		x, y := c.load(addr, 3), c.load(addr+8, 3)
		c.set(d, x)
		c.set(t, y)
	default:
		return false
	}
	if post || w>>22 == 0xa9800000>>22 {
		c.X[n] += off
	}
	if n == 31 && c.X[31]&15 != 0 {
		c.flow = fmt.Errorf("the stack pointer is %#x", c.X[31])
	}
	return true
}

// vector runs what searches sixteen bytes at once.
func (c *CPU) vector(w uint32) bool {
	d, n, m := w&31, w>>5&31, w>>16&31
	switch op := w &^ (31 | 31<<5 | 31<<16); {
	case op == 0x3ce06800&^(31<<16) && d < 8:
		addr := c.X[n] + c.get(m)
		b := c.Memory(addr, 16, false)
		if b == nil {
			c.flow = fmt.Errorf("16 bytes at %#x cannot be read", addr)
			return true
		}
		c.vec[d] = [2]uint64{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	case w&^(31|31<<5) == 0x4e010c00 && d < 8:
		v := c.get(n) & 0xff * 0x0101010101010101
		c.vec[d] = [2]uint64{v, v}
	case w&^(31|31<<5|31<<16) == 0x6e203c00 && d < 8 && n < 8 && m < 8:
		var r [2]uint64
		for i := range 128 / 8 {
			s := uint(i % 8 * 8)
			if c.vec[n][i/8]>>s&0xff >= c.vec[m][i/8]>>s&0xff {
				r[i/8] |= 0xff << s
			}
		}
		c.vec[d] = r
	case w&^(31|31<<5) == 0x0f0c8400 && d < 8 && n < 8:
		var r uint64
		for i := range 8 {
			r |= c.vec[n][i/4] >> (16*uint(i%4) + 4) & 0xff << (8 * i)
		}
		c.vec[d] = [2]uint64{r, 0}
	case w&^(31|31<<5) == 0x9e660000 && n < 8:
		c.set(d, c.vec[n][0])
	default:
		return false
	}
	return true
}
