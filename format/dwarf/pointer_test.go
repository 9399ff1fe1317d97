package dwarf

import (
	"errors"
	"fmt"
	"testing"

	"github.com/unspool/unspool/arch"
)

// pointerFormats are the low four bits of an encoding: the bytes of a value, for a word of so many bytes.
var pointerFormats = []struct {
	format byte
	size   func(word int) int // 0: LEB128
	signed bool
}{
	{DW_EH_PE_absptr, func(w int) int { return w }, false},
	{DW_EH_PE_uleb128, nil, false},
	{DW_EH_PE_udata2, func(int) int { return 2 }, false},
	{DW_EH_PE_udata4, func(int) int { return 4 }, false},
	{DW_EH_PE_udata8, func(int) int { return 8 }, false},
	{DW_EH_PE_signed, func(w int) int { return w }, true},
	{DW_EH_PE_sleb128, nil, true},
	{DW_EH_PE_sdata2, func(int) int { return 2 }, true},
	{DW_EH_PE_sdata4, func(int) int { return 4 }, true},
	{DW_EH_PE_sdata8, func(int) int { return 8 }, true},
}

// encode returns v in a format.
func (l *listing) encode(format byte, v int64) []byte {
	for _, f := range pointerFormats {
		if f.format != format {
			continue
		}
		switch {
		case f.size != nil:
			return l.num(f.size(l.size()), uint64(v))
		case f.signed:
			return sleb(v)
		default:
			return uleb(uint64(v))
		}
	}
	panic("BUG: no such format")
}

// TestPointers reads pointers of every encoding, for both sizes of addresses and both byte orders.
func TestPointers(t *testing.T) {
	bs := bases{field: 0x10000, text: 0x2000, data: 0x3000, fn: 0x4000}
	for _, word := range []int{4, 8} {
		for _, big := range []bool{false, true} {
			l := &listing{word: word, big: big}
			in := l.sections()
			// Indirect pointers lead to the address that has all bits of where it is turned over.
			in.Memory = func(at arch.Vaddr, n int) ([]byte, bool) { return l.num(n, ^uint64(at)), at != 0xdead }
			f := New(in)
			for _, pf := range pointerFormats {
				for rel, base := range map[byte]uint64{DW_EH_PE_absptr: 0, DW_EH_PE_pcrel: 0x10003, DW_EH_PE_textrel: 0x2000,
					DW_EH_PE_datarel: 0x3000, DW_EH_PE_funcrel: 0x4000} {
					for _, indirect := range []byte{0, DW_EH_PE_indirect} {
						values := []int64{0, 1, 0x7f, 0x80, 0x1234, 0x7fff}
						if pf.signed {
							values = append(values, -1, -0x41, -0x1234)
						}
						for _, v := range values {
							enc := pf.format | rel | indirect
							raw := l.encode(pf.format, v)
							r := reader{data: append([]byte{9, 9, 9}, raw...), big: big}
							r.end = len(r.data)
							want := pointer{v: uint64(v) + base}
							if word == 4 {
								want.v &= 1<<32 - 1
							}
							if indirect != 0 {
								want.v = ^want.v
							}
							if word == 4 {
								want.v &= 1<<32 - 1
							}
							if v == 0 {
								want = pointer{null: true} // before anything is added
							}
							name := fmt.Sprintf("encoding %#02x of %d, %d bytes an address, big-endian %v", enc, v, word, big)
							got, at, err := f.encoded(&r, 3, enc, word, &bs)
							if err != nil || got != want || at != len(r.data) {
								t.Errorf("%s\n got %+v to %d, %v\nwant %+v to %d", name, got, at, err, want, len(r.data))
							}
							r.end--
							if _, _, err := f.encoded(&r, 3, enc, word, &bs); !errors.Is(err, ErrTruncated) {
								t.Errorf("%s, one byte short: %v", name, err)
							}
						}
					}
				}
			}
		}
	}
}

func TestPointersAside(t *testing.T) {
	for _, word := range []int{4, 8} {
		l := &listing{word: word}
		f := l.frames()
		for start := range 9 {
			// Aligned, by the address: so much in front of it.
			bs := bases{field: 0x10000 - uint64(start)}
			pad := start % word
			r := reader{data: append(make([]byte, pad), l.num(word, 0x1234)...)}
			r.end = len(r.data)
			bs.field = uint64(word*4 - pad)
			if p, at, err := f.encoded(&r, 0, DW_EH_PE_aligned, word, &bs); err != nil || p.v != 0x1234 || at != pad+word {
				t.Errorf("aligned after %d: %#x to %d, %v", pad, p.v, at, err)
			}
		}
		r := reader{data: make([]byte, 16), end: 16}
		r.data[0] = 1
		if p, at, err := f.encoded(&r, 3, DW_EH_PE_omit, word, &bases{}); err != nil || !p.null || at != 3 {
			t.Errorf("omitted: %+v to %d, %v", p, at, err)
		}
		for _, enc := range []byte{0x05, 0x06, 0x07, 0x0d, 0x0e, 0x0f, 0x60, 0x70, 0x51, 0xd0} {
			if _, _, err := f.encoded(&r, 0, enc, word, &bases{}); !errors.Is(err, ErrMalformed) {
				t.Errorf("encoding %#02x: %v", enc, err)
			}
		}
		if _, _, err := f.encoded(&r, 0, DW_EH_PE_indirect, word, &bases{}); !errors.Is(err, ErrUnsupported) {
			t.Errorf("indirect without memory: %v", err)
		}
	}
	f := New(Sections{Memory: func(arch.Vaddr, int) ([]byte, bool) { return nil, false }})
	r := reader{data: []byte{1, 0, 0, 0, 0, 0, 0, 0}, end: 8}
	if _, _, err := f.encoded(&r, 0, DW_EH_PE_indirect, 8, &bases{}); !errors.Is(err, ErrMalformed) {
		t.Errorf("indirect to nowhere: %v", err)
	}
}

// TestLEB128 pairs bytes with numbers, padded ones and those that are too large with them.
func TestLEB128(t *testing.T) {
	const most = "ffffffffffffffffff"
	for _, c := range []struct {
		hex    string
		u      uint64
		s      int64
		uN, sN bool // no such number
	}{
		{hex: "00"}, {hex: "02", u: 2, s: 2}, {hex: "7f", u: 127, s: -1}, {hex: "ff00", u: 127, s: 127}, {hex: "8001", u: 128, s: 128},
		{hex: "807f", u: 16256, s: -128}, {hex: "e58e26", u: 624485, s: 624485},
		{hex: "808000"}, {hex: "8180808080808080808080808000", u: 1, s: 1}, // padded
		{hex: "ffffffffffffffffffffffffff7f", s: -1, uN: true},
		{hex: most + "01", u: 1<<64 - 1, sN: true}, {hex: most + "00", u: 1<<63 - 1, s: 1<<63 - 1},
		{hex: "8080808080808080807f", s: -1 << 63, uN: true}, {hex: most + "7f", s: -1, uN: true},
		{hex: most + "02", uN: true, sN: true}, {hex: most + "8101", uN: true, sN: true},
		{hex: "", uN: true, sN: true}, {hex: "80", uN: true, sN: true}, {hex: most, uN: true, sN: true},
	} {
		b := unhex(t, c.hex)
		r := reader{data: append(b, 0), end: len(b)}
		if u, at, err := r.uleb(0); (err != nil) != c.uN || err == nil && (u != c.u || at != len(b)) {
			t.Errorf("uleb %s: got %#x to %d, %v", c.hex, u, at, err)
		}
		if s, at, err := r.sleb(0); (err != nil) != c.sN || err == nil && (s != c.s || at != len(b)) {
			t.Errorf("sleb %s: got %d to %d, %v", c.hex, s, at, err)
		}
	}
	for _, at := range []int{-1, 1 << 62, -1 << 63} {
		r := reader{data: make([]byte, 8), end: 8}
		if _, _, err := r.uleb(at); err == nil {
			t.Errorf("a number at %d", at)
		}
		if _, _, err := r.fixed(at, 8); err == nil {
			t.Errorf("a number at %d", at)
		}
	}
}
