package dwarf

import (
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A listing is a section of call frame information put together by hand. Its zero value is .debug_frame of
// a 64-bit little-endian machine.
type listing struct {
	b    []byte
	eh   bool
	big  bool
	wide bool   // entries in the 64-bit format
	word int    // bytes of an address; 0 is 8
	addr uint64 // of the section
	mach *arch.Machine
}

func (l *listing) order() binary.ByteOrder {
	if l.big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

func (l *listing) size() int {
	if l.word == 0 {
		return 8
	}
	return l.word
}

// num returns v in n bytes.
func (l *listing) num(n int, v uint64) []byte {
	var b [8]byte
	if l.big {
		binary.BigEndian.PutUint64(b[:], v)
		return b[8-n:]
	}
	binary.LittleEndian.PutUint64(b[:], v)
	return b[:n]
}

// entry appends an entry and returns its offset. For an FDE, cie is the offset of its CIE; for a CIE it is -1.
func (l *listing) entry(cie int, body ...byte) int {
	off := len(l.b)
	width := 4
	if l.wide && !l.eh {
		width = 8
	}
	if l.wide {
		l.b = append(l.b, 0xff, 0xff, 0xff, 0xff)
		l.b = append(l.b, l.num(8, uint64(width+len(body)))...)
	} else {
		l.b = append(l.b, l.num(4, uint64(width+len(body)))...)
	}
	id := uint64(cie)
	switch {
	case l.eh && cie == -1:
		id = 0
	case l.eh:
		id = uint64(len(l.b) - cie)
	}
	l.b = append(l.b, l.num(width, id)...)
	l.b = append(l.b, body...)
	return off
}

// A cieHead is what a CIE says before its instructions. Its zero value is version 1, code alignment factor 1,
// data alignment factor -8, return address column 16.
type cieHead struct {
	version byte
	aug     string
	first   []byte // in front of the code alignment factor
	caf     []byte
	daf     []byte
	ra      []byte
	data    []byte // behind the return address column: augmentation data with its length
}

func (h cieHead) bytes() []byte {
	or := func(b []byte, v ...byte) []byte {
		if b == nil {
			return v
		}
		return b
	}
	b := []byte{max(h.version, 1)}
	b = append(append(b, h.aug...), 0)
	b = append(b, h.first...)
	b = append(b, or(h.caf, 1)...)
	b = append(b, or(h.daf, 0x78)...)
	b = append(b, or(h.ra, 16)...)
	return append(b, h.data...)
}

// cie appends a CIE. Without instructions it gets those of x86-64: cfa=rsp+8, ra=c-8.
func (l *listing) cie(h cieHead, insns ...byte) int {
	if insns == nil {
		insns = []byte{DW_CFA_def_cfa, 7, 8, DW_CFA_offset + 16, 1}
	}
	return l.entry(-1, append(h.bytes(), insns...)...)
}

// fde appends an FDE whose addresses have no encoding.
func (l *listing) fde(cie int, lo, size uint64, insns ...byte) int {
	b := append([]byte(nil), l.num(l.size(), lo)...)
	b = append(b, l.num(l.size(), size)...)
	return l.entry(cie, append(b, insns...)...)
}

func (l *listing) section() Section {
	name := ".debug_frame"
	if l.eh {
		name = ".eh_frame"
	}
	return Section{Name: name, Addr: arch.Vaddr(l.addr), Data: l.b}
}

func (l *listing) sections() Sections {
	in := Sections{Machine: l.mach, Order: l.order(), AddrSize: l.size()}
	if in.Machine == nil {
		in.Machine = arch.AMD64
	}
	if l.eh {
		in.EHFrame = []Section{l.section()}
	} else {
		in.DebugFrame = []Section{l.section()}
	}
	return in
}

func (l *listing) frames() *Frames { return New(l.sections()) }

// unhex decodes hex digits; blanks between them do not count.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lines returns a table's text without its first line, the rows separated by " | ".
func lines(t testing.TB, x *rows.Table) string {
	t.Helper()
	var b strings.Builder
	if err := x.WriteText(&b); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(b.String(), "\n")
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", " | ")
}

// sound fails the test for every damage.
func sound(t testing.TB, ds []Damage) {
	t.Helper()
	for _, d := range ds {
		t.Errorf("damage: %v", d)
	}
}

// built returns the text of the table of all that f has, which must not be damaged.
func built(t testing.TB, f *Frames) string {
	t.Helper()
	x, ds := f.Build(Both)
	sound(t, ds)
	return lines(t, x)
}

// sleb and uleb encode LEB128 numbers.
func uleb(v uint64) (b []byte) {
	for ; v >= 0x80; v >>= 7 {
		b = append(b, byte(v)|0x80)
	}
	return append(b, byte(v))
}

func sleb(v int64) (b []byte) {
	for {
		c := byte(v & 0x7f)
		if v >>= 7; v == 0 && c&0x40 == 0 || v == -1 && c&0x40 != 0 {
			return append(b, c)
		}
		b = append(b, c|0x80)
	}
}
