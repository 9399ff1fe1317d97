package dwarf

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// hdrBase is where the tests put .eh_frame_hdr, and ehBase .eh_frame.
const hdrBase, ehBase = 0x8000, 0x9000

// withHdr returns an .eh_frame with so many functions of 0x20 bytes, 0x40 apart from 0x1000 on, each with a CFA
// of its own, and the pairs of its search table.
func withHdr(n int, big bool, word int) (l *listing, pairs [][2]uint64) {
	l = &listing{eh: true, addr: ehBase, big: big, word: word}
	cie := l.cie(cieHead{})
	for i := range n {
		lo := uint64(0x1000 + 0x40*i)
		off := l.fde(cie, lo, 0x20, DW_CFA_advance_loc+4, DW_CFA_def_cfa_offset, byte(16+i))
		pairs = append(pairs, [2]uint64{lo, ehBase + uint64(off)})
	}
	return l, pairs
}

// hdr appends an .eh_frame_hdr of the given encodings.
func (l *listing) hdr(ehEnc, countEnc, tableEnc byte, count int, pairs [][2]uint64) *Section {
	b := []byte{1, ehEnc, countEnc, tableEnc}
	put := func(enc byte, v uint64) {
		if enc == DW_EH_PE_omit {
			return
		}
		switch enc & 0x70 {
		case DW_EH_PE_pcrel:
			v -= hdrBase + uint64(len(b))
		case DW_EH_PE_datarel:
			v -= hdrBase
		}
		b = append(b, l.encode(enc&0x0f, int64(v))...)
	}
	put(ehEnc, ehBase)
	if countEnc != DW_EH_PE_omit {
		b = append(b, l.encode(countEnc&0x0f, int64(count))...)
	}
	for _, p := range pairs {
		put(tableEnc, p[0])
		put(tableEnc, p[1])
	}
	return &Section{Name: ".eh_frame_hdr", Addr: hdrBase, Data: b}
}

// edges yields the addresses where withHdr's rows begin and end, and some between.
func edges(yield func(arch.Vaddr) bool) {
	for lo := arch.Vaddr(0xfc0); lo < 0x1300; lo += 0x40 {
		for _, d := range []arch.Vaddr{0, 3, 4, 0x1f, 0x20, 0x3f} {
			if !yield(lo + d) {
				return
			}
		}
	}
}

// TestHdr looks functions up through tables of every encoding, and sees that they were used.
func TestHdr(t *testing.T) {
	for variant := range 4 {
		big, word := variant&1 != 0, 4+variant>>1*4
		l, pairs := withHdr(9, big, word)
		for _, enc := range []byte{0x1b, 0x3b, 0x0b, 0x1c, 0x3c, 0x0c, 0x03, 0x04, 0x00, 0x10, 0x30, 0x08, 0x3a, 0x02, 0x33} {
			if format := enc & 0x0f; (format == 3 || format == 4) && enc&0x70 != 0 && enc != 0x33 {
				continue
			}
			for _, countEnc := range []byte{0x03, 0x01, 0x09, 0x02, 0x04, 0x00} {
				in := l.sections()
				if enc == 0x02 && ehBase+len(l.b) > 0xffff {
					t.Fatalf("variant %d, encoding %#02x: .eh_frame, of %d bytes at %#x, ends above 0xffff: its addresses do not fit", variant, enc, len(l.b), ehBase)
				}
				if enc == 0x33 && word == 8 {
					continue // unsigned offsets wrap at the machine's width, which only four bytes reach
				}
				in.Hdr = l.hdr(enc, countEnc, enc, len(pairs), pairs)
				f := New(in)
				if f.hdr == nil || f.hdr.count != len(pairs) || f.hdr.ehAddr != ehBase {
					t.Errorf("encodings %#02x, %#02x: %+v, %v", enc, countEnc, f.hdr, f.hdrErr)
					continue
				}
				x, ds := f.Build(Both)
				sound(t, ds)
				agree(t, f, x, edges)
				for i, p := range pairs {
					if s, off, d, _ := f.findHdr(p[0] + 5); s == nil || uint64(off) != p[1]-ehBase || d.lo != p[0] {
						t.Errorf("encodings %#02x, %#02x: pair %d was not found", enc, countEnc, i)
					}
				}
			}
		}
	}
}

// TestUnindexed: functions whose pair is missing, leads to an empty FDE of the same start, or to another function's, are named, and no others.
func TestUnindexed(t *testing.T) {
	l, pairs := withHdr(9, false, 8)
	for i, size := range []uint64{0, 0x20} { // as lld keeps the first of one start, which is empty
		off := l.fde(0, 0x1400, size, DW_CFA_advance_loc+4, DW_CFA_def_cfa_offset, byte(64+i))
		if i == 0 {
			pairs = append(pairs, [2]uint64{0x1400, ehBase + uint64(off)})
		}
	}
	pairs[5][1] = pairs[6][1]
	pairs = slices.Delete(pairs, 2, 3)
	in := l.sections()
	for _, c := range []struct {
		hdr  *Section
		want string
	}{
		{l.hdr(0x1b, 0x03, 0x3b, len(pairs), pairs), "[1080 1140 1400]"},
		{l.hdr(0x1b, DW_EH_PE_omit, DW_EH_PE_omit, 0, nil), "[]"},
		{nil, "[]"},
	} {
		in.Hdr = c.hdr
		f := New(in)
		got := []arch.Vaddr{}
		for lo, hi := range f.Unindexed {
			if hi != lo+0x20 {
				t.Errorf("[%#x, %#x)", lo, hi)
			}
			got = append(got, lo)
		}
		if text := fmt.Sprintf("%x", got); text != c.want {
			t.Errorf("%s, want %s", text, c.want)
		}
		for range f.Unindexed {
			break
		}
	}
}

// TestBadHdr: whatever the table says, Lookup finds what Build finds.
func TestBadHdr(t *testing.T) {
	l, pairs := withHdr(9, false, 8)
	swapped := append([][2]uint64(nil), pairs...)
	swapped[2], swapped[6] = swapped[6], swapped[2]
	lying := append([][2]uint64(nil), pairs...)
	for i := range lying {
		lying[i][1] = pairs[(i+1)%len(pairs)][1]
	}
	nowhere := append([][2]uint64(nil), pairs...)
	for i := range nowhere {
		nowhere[i][1] += 1 << 20
	}
	amidst := append([][2]uint64(nil), pairs...)
	for i := range amidst {
		amidst[i][1] += 8
	}
	good := l.hdr(0x1b, 0x03, 0x3b, len(pairs), pairs)
	edit := func(at int, v ...byte) *Section {
		s := *good
		s.Data = append([]byte(nil), s.Data...)
		copy(s.Data[at:], v)
		return &s
	}
	for _, c := range []struct {
		name  string
		hdr   *Section
		cause error // of not using it at all
		text  string
	}{
		{"no table", l.hdr(0x1b, DW_EH_PE_omit, DW_EH_PE_omit, 0, nil), nil, ""},
		{"count, but no table", l.hdr(0x1b, 0x03, DW_EH_PE_omit, 9, nil), nil, ""},
		{"empty table", l.hdr(0x1b, 0x03, 0x3b, 0, nil), nil, ""},
		{"half the pairs", l.hdr(0x1b, 0x03, 0x3b, 4, pairs), nil, ""},
		{"every other pair", l.hdr(0x1b, 0x03, 0x3b, 5, [][2]uint64{pairs[0], pairs[2], pairs[4], pairs[6], pairs[8]}), nil, ""},
		{"not sorted", l.hdr(0x1b, 0x03, 0x3b, 9, swapped), nil, ""},
		{"another function's FDE", l.hdr(0x1b, 0x03, 0x3b, 9, lying), nil, ""},
		{"FDEs outside of the section", l.hdr(0x1b, 0x03, 0x3b, 9, nowhere), nil, ""},
		{"FDEs amidst entries", l.hdr(0x1b, 0x03, 0x3b, 9, amidst), nil, ""},
		{"the CIE for an FDE", l.hdr(0x1b, 0x03, 0x3b, 1, [][2]uint64{{0x1000, ehBase}}), nil, ""},
		{"every pair twice", l.hdr(0x1b, 0x03, 0x3b, 18, double(pairs)), nil, ""},
		{"too many pairs", edit(8, 10), ErrMalformed, "+0xc: count: malformed: 10 pairs, with room for 9"},
		{"4,294,967,295 pairs", edit(8, 0xff, 0xff, 0xff, 0xff), ErrMalformed, "count"},
		{"version 2", edit(0, 2), ErrUnsupported, "+0x0: version: unsupported: version 2"},
		{"pointer of no format", edit(1, 0x0f), ErrMalformed, "+0x4: pointer to .eh_frame"},
		{"count of no format", edit(2, 0x0f), ErrMalformed, "+0x8: count"},
		{"table of no format", edit(3, 0x0f), ErrUnsupported, "+0x3: table encoding"},
		{"table of LEB128", edit(3, 0x01), ErrUnsupported, "+0x3: table encoding"},
		{"indirect table", edit(3, 0xbb), ErrUnsupported, "+0x3: table encoding"},
		{"table relative to the text", edit(3, 0x2b), ErrUnsupported, "+0x3: table encoding"},
		{"three bytes", &Section{Name: ".eh_frame_hdr", Data: []byte{1, 0x1b, 3}}, ErrTruncated, "+0x0: head"},
		{"half a pointer", &Section{Name: ".eh_frame_hdr", Data: good.Data[:6]}, ErrTruncated, "+0x4: pointer to .eh_frame"},
		{"half a count", &Section{Name: ".eh_frame_hdr", Data: good.Data[:10]}, ErrTruncated, "+0x8: count"},
		{"nothing", &Section{Name: ".eh_frame_hdr"}, ErrTruncated, "head"},
	} {
		in := l.sections()
		in.Hdr = c.hdr
		f := New(in)
		if c.cause == nil && f.hdrErr != nil || c.cause != nil && (f.hdr != nil || !errors.Is(f.hdrErr, c.cause) || !strings.Contains(f.hdrErr.Error(), c.text)) {
			t.Errorf("%s: got %v, want %v … %s", c.name, f.hdrErr, c.cause, c.text)
		}
		x, ds := f.Build(Both)
		sound(t, ds)
		agree(t, f, x, edges)
		if t.Failed() {
			t.Fatalf("a .eh_frame_hdr with %s is not read as wanted", c.name)
		}
	}
}

func double(pairs [][2]uint64) (out [][2]uint64) {
	for _, p := range pairs {
		out = append(out, p, p)
	}
	return out
}

// TestHdrGarbage: tables of random bytes behind a sound head are of no use, and do no harm.
func TestHdrGarbage(t *testing.T) {
	l, pairs := withHdr(9, false, 8)
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		in := l.sections()
		in.Hdr = l.hdr(0x1b, 0x03, 0x3b, 9, pairs)
		for range 1 + rnd.IntN(20) {
			in.Hdr.Data[12+rnd.IntN(len(in.Hdr.Data)-12)] = byte(rnd.Uint32())
		}
		f := New(in)
		x, _ := f.Build(Both)
		if agree(t, f, x, edges); t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// TestOpenSection: without section headers .eh_frame's end is not known.
func TestOpenSection(t *testing.T) {
	for _, after := range [][]byte{nil, {0, 0, 0, 0}, {0, 0, 0, 0, 1, 2, 3}, []byte("text that is no entry"), {0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9}} {
		l, _ := withHdr(3, false, 8)
		x, _ := l.frames().Build(Both)
		in := l.sections()
		in.EHFrame[0].Open = true
		in.EHFrame[0].Data = append(in.EHFrame[0].Data, after...)
		f := New(in)
		if got, want := built(t, f), lines(t, x); got != want {
			t.Errorf("with % x behind it\n got %s\nwant %s", after, got, want)
		}
		agree(t, f, x, everyPC(0xff0, 0x10d0))
	}
}

func TestSizes(t *testing.T) {
	l, pairs := withHdr(2, false, 8)
	in := l.sections()
	in.Hdr = l.hdr(0x1b, 0x03, 0x3b, 2, pairs)
	in.DebugFrame = []Section{{Data: make([]byte, 7)}, {Data: make([]byte, 8)}}
	f := New(in)
	if got, want := f.Sizes(), (Sizes{uint64(len(l.b)), uint64(len(in.Hdr.Data)), 15}); got != want || f.Machine() != arch.AMD64 {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := fmt.Sprint(Damage{Section: ".eh_frame", Off: 0x1f8, IsFDE: true, PC: 0x4011d0, Err: errors.New("empty stack")}); got != ".eh_frame+0x1f8: FDE 0x4011d0: empty stack" {
		t.Errorf("the Damage prints %q, want .eh_frame+0x1f8: FDE 0x4011d0: empty stack", got)
	}
}
