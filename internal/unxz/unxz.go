// Package unxz decompresses xz files (The .xz File Format, 1.2.0) that hold binaries: blocks of LZMA2, behind x86's filter or none. Output and
// windows are bounded by the caller and by the output itself, whatever the headers promise. Checksums are not verified, but the lengths in the
// index and the footer are: nothing is missing at the end.
package unxz

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/ulikunitz/xz/lzma"
)

// ErrMalformed is the cause of errors in the container.
var ErrMalformed = errors.New("malformed xz")

// Magic is how an xz file begins.
const Magic = "\xfd7zXZ\x00"

// Filters (section 5.3).
const (
	filterX86   = 0x04
	filterLZMA2 = 0x21
)

// maxWindows bounds what the windows of all blocks together may take, in bytes: one block after the other has its own.
const maxWindows = 1 << 30

// Decode returns the contents of the first stream in b: an error, if they are more than limit bytes. What follows the stream is not read.
func Decode(b []byte, limit int) ([]byte, error) {
	if len(b) < 12 || string(b[:6]) != Magic {
		return nil, fmt.Errorf("%w: header", ErrMalformed)
	}
	checks := [16]int{0, 4, 4, 4, 8, 8, 8, 16, 16, 16, 32, 32, 32, 64, 64, 64}
	flags, check := b[6:8], checks[b[7]&15]
	b = b[12:]
	var sizes []uint64 // of each block: in the file without padding, and of what came out
	var out bytes.Buffer
	windows := int64(maxWindows)
	for len(b) > 0 && b[0] != 0 { // 0 starts the index
		head := 4 * (int(b[0]) + 1)
		if len(b) < head {
			return nil, fmt.Errorf("%w: block header", ErrMalformed)
		}
		block, err := readHeader(b[:head])
		if err != nil {
			return nil, err
		}
		window := min(block.window, int64(max(limit, lzma.MinDictCap)))
		if windows -= window; windows < 0 {
			return nil, fmt.Errorf("%w: its blocks ask for too much memory", ErrMalformed)
		}
		in := bytes.NewReader(b[head:])
		r, err := lzma.Reader2Config{DictCap: int(window)}.NewReader2(in)
		if err != nil {
			return nil, err
		}
		began := out.Len()
		if _, err := io.Copy(&out, io.LimitReader(r, int64(limit-out.Len()+1))); err != nil {
			return nil, err
		}
		if out.Len() > limit {
			return nil, fmt.Errorf("%w: it expands to more than %d bytes", ErrMalformed, limit)
		}
		if block.x86 {
			unfilter(out.Bytes()[began:], block.start)
		}
		used := len(b) - in.Len()
		sizes = append(sizes, uint64(used+check), uint64(out.Len()-began))
		used = (used+3)&^3 + check
		b = b[min(used, len(b)):]
	}
	if !ends(b, sizes, flags) {
		return nil, fmt.Errorf("%w: the index or the footer is missing, or has other blocks", ErrMalformed)
	}
	return out.Bytes(), nil
}

// ends says whether b begins with an index of the blocks with these sizes, and a footer (sections 4 and 2.1.2).
func ends(b []byte, sizes []uint64, flags []byte) bool {
	if len(b) == 0 {
		return false
	}
	at := 1
	number := func() uint64 {
		v, n := binary.Uvarint(b[at:])
		at += max(n, 0)
		return v
	}
	if number() != uint64(len(sizes)/2) {
		return false
	}
	for _, size := range sizes {
		if number() != size {
			return false
		}
	}
	at = (at+3)&^3 + 4 // padding and the checksum
	if len(b) < at+12 {
		return false
	}
	footer := b[at : at+12]
	return 4*(uint64(binary.LittleEndian.Uint32(footer[4:]))+1) == uint64(at) && string(footer[8:10]) == string(flags) && string(footer[10:]) == "YZ"
}

// A block is what a block's header says.
type block struct {
	window int64 // bytes
	x86    bool
	start  uint32 // the filter's address of the first byte
}

// readHeader reads a block header (section 3.1).
func readHeader(h []byte) (k block, err error) {
	flags, b := h[1], h[2:max(len(h)-4, 2)]
	number := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			err = fmt.Errorf("%w: block header", ErrMalformed)
			return 0
		}
		b = b[n:]
		return v
	}
	for _, present := range []byte{0x40, 0x80} { // compressed size, uncompressed size
		if flags&present != 0 {
			number()
		}
	}
	for i := range flags&3 + 1 {
		id, size := number(), number()
		if err == nil && size > uint64(len(b)) {
			err = fmt.Errorf("%w: block header", ErrMalformed)
		}
		if err != nil {
			return k, err
		}
		properties, last := b[:size], i == flags&3
		b = b[size:]
		switch {
		case id == filterLZMA2 && last && size == 1:
			n, err := lzma.DecodeDictCap(properties[0])
			if err != nil {
				return k, err
			}
			k.window = max(n, lzma.MinDictCap)
		case id == filterX86 && i == 0 && !last && size == 0:
			k.x86 = true
		case id == filterX86 && i == 0 && !last && size == 4:
			k.x86, k.start = true, binary.LittleEndian.Uint32(properties)
		default:
			return k, fmt.Errorf("%w: filter %#x", ErrMalformed, id)
		}
	}
	return k, nil
}

// unfilter undoes x86's filter in place. The filter makes operands of calls and jumps (e8, e9) absolute where their highest byte is 00 or ff: calls of one function
// then look alike. An operand may hold such a byte itself. So an opcode is left alone if it lies in the operand of another one that was left
// alone and could have been meant.
func unfilter(b []byte, start uint32) {
	sign := func(x byte) bool { return x == 0 || x == 0xff }
	left := uint(0) // bit k: k+1 bytes before is an opcode that was left alone
	for i := 0; i+5 <= len(b); i++ {
		if b[i]&0xfe != 0xe8 {
			left = left << 1 & 7
			continue
		}
		n := bits.Len(left)
		if !sign(b[i+4]) || left&(left-1) != 0 || n > 0 && sign(b[i+4-n]) {
			left = (left<<1 | 1) & 7
			continue
		}
		at := start + uint32(i) + 5
		v := binary.LittleEndian.Uint32(b[i+1:]) - at
		// A highest byte of the other operand that became 00 or ff was not so before: the filter went round once more.
		if n > 0 && sign(byte(v>>(24-8*n))) {
			v = v ^ (1<<(32-8*n) - 1) - at
		}
		binary.LittleEndian.PutUint32(b[i+1:], uint32(int32(v<<7)>>7))
		i, left = i+4, 0
	}
}
