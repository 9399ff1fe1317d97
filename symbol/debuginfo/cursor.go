package debuginfo

import (
	"bytes"
	"encoding/binary"
)

// A cursor reads a section. A read beyond the end sets bad, gives 0, and moves to the end: loops over a cursor end.
type cursor struct {
	b   []byte
	off int
	big bool
	bad bool
}

// cursorAt reads b from off to end.
func cursorAt(b []byte, off, end uint64, big bool) cursor {
	end = min(end, uint64(len(b)))
	if off > end {
		return cursor{b: b[:end], off: int(end), big: big, bad: true}
	}
	return cursor{b: b[:end], off: int(off), big: big}
}

func (c *cursor) fail() {
	c.bad, c.off = true, len(c.b)
}

func (c *cursor) more() bool { return c.off < len(c.b) }

func (c *cursor) skip(n uint64) {
	if n > uint64(len(c.b)-c.off) {
		c.fail()
		return
	}
	c.off += int(n)
}

func (c *cursor) u8() uint8 {
	if c.off >= len(c.b) {
		c.fail()
		return 0
	}
	c.off++
	return c.b[c.off-1]
}

// uint reads an unsigned integer of n bytes, 1 to 8.
func (c *cursor) uint(n int) uint64 {
	if n > len(c.b)-c.off {
		c.fail()
		return 0
	}
	b := c.b[c.off : c.off+n]
	c.off += n
	switch {
	case n == 1:
		return uint64(b[0])
	case n == 4 && !c.big:
		return uint64(binary.LittleEndian.Uint32(b))
	case n == 8 && !c.big:
		return binary.LittleEndian.Uint64(b)
	}
	v := uint64(0)
	for i := range b {
		if c.big {
			v = v<<8 | uint64(b[i])
		} else {
			v |= uint64(b[i]) << (8 * (i & 7))
		}
	}
	return v
}

// uleb reads an unsigned LEB128 (DWARF 5, section 7.6). Bits above the 64th are lost.
func (c *cursor) uleb() uint64 {
	if c.off < len(c.b) && c.b[c.off] < 0x80 {
		c.off++
		return uint64(c.b[c.off-1])
	}
	v := uint64(0)
	for shift := uint(0); ; shift += 7 {
		if c.off >= len(c.b) {
			c.fail()
			return 0
		}
		x := c.b[c.off]
		c.off++
		v |= uint64(x&0x7f) << shift
		if x < 0x80 {
			return v
		}
	}
}

// sleb reads a signed LEB128.
func (c *cursor) sleb() int64 {
	v := int64(0)
	for shift := uint(0); ; {
		if c.off >= len(c.b) {
			c.fail()
			return 0
		}
		x := c.b[c.off]
		c.off++
		v |= int64(x&0x7f) << shift
		shift += 7
		if x < 0x80 {
			if x&0x40 != 0 && shift < 64 {
				v |= -1 << shift
			}
			return v
		}
	}
}

// str reads a string that ends with a NUL.
func (c *cursor) str() []byte {
	n := bytes.IndexByte(c.b[c.off:], 0)
	if n < 0 {
		c.fail()
		return nil
	}
	s := c.b[c.off : c.off+n]
	c.off += n + 1
	return s
}

// length reads an initial length (section 7.4) and returns it with the size of offsets: 4 or 8.
func (c *cursor) length() (n uint64, offSize uint8) {
	n = c.uint(4)
	switch {
	case n == 0xffffffff:
		return c.uint(8), 8
	case n >= 0xfffffff0:
		c.fail()
	}
	return n, 4
}
