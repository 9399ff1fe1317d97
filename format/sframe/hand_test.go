package sframe

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// A hand is a section by hand: what the specification says of bytes that no assembler here writes.
type hand struct {
	version, flags, abi byte
	order               binary.AppendByteOrder
	fp, ra              int8
	aux                 int
	funcs               []handFunc
}

type handFunc struct {
	start  int64 // from the section, or from its field
	size   uint32
	info   byte
	info2  byte
	repeat byte
	num    int
	rows   []byte
}

func (h *hand) bytes() []byte {
	o := h.order
	var fdes, fres []byte
	n := 0
	for _, f := range h.funcs {
		if h.version == 3 {
			fdes = o.AppendUint32(o.AppendUint32(o.AppendUint64(fdes, uint64(f.start)), f.size), uint32(len(fres)))
			fres = append(o.AppendUint16(fres, uint16(f.num)), f.info, f.info2, f.repeat)
		} else {
			fdes = o.AppendUint32(o.AppendUint32(o.AppendUint32(o.AppendUint32(fdes, uint32(f.start)), f.size), uint32(len(fres))), uint32(f.num))
			if fdes = append(fdes, f.info); h.version == 2 {
				fdes = append(fdes, f.repeat, 0, 0)
			}
		}
		fres = append(fres, f.rows...)
		n += f.num
	}
	b := append(o.AppendUint16(nil, magic), h.version, h.flags, h.abi, byte(h.fp), byte(h.ra), byte(h.aux))
	for _, v := range []int{len(h.funcs), n, len(fres), 0, len(fdes)} {
		b = o.AppendUint32(b, uint32(v))
	}
	return append(append(append(b, make([]byte, h.aux)...), fdes...), fres...)
}

// read gives the rows of a section at 0x2000 in one line, and its errors.
func read(t testing.TB, b []byte, m *arch.Machine) (string, []error) {
	t.Helper()
	s, err := parse(b, 0x2000, m)
	if err != nil {
		return "", []error{err}
	}
	tab, errs := (&Table{machine: m, sections: []*section{s}}).Rows()
	var w strings.Builder
	if err := tab.WriteText(&w); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(strings.TrimSpace(w.String()), "\n")
	return strings.ReplaceAll(text, "\n", " | "), errs
}

var byHand = []struct {
	name string
	hand
	m      *arch.Machine
	want   string
	errors []string
}{
	{"version 1", hand{version: 1, abi: abiAMD64, order: binary.LittleEndian, ra: -8, aux: 3, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 2, rows: []byte{0, 3, 8, 4, 5, 16, 0xf0}}}}, arch.AMD64,
		"1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1004  cfa=rsp+16  rbp=c-16  ra=c-8  partial | 1010  gap", nil},
	// The flag says nothing in version 1.
	{"version 1, flag 4", hand{version: 1, flags: 4, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 1, rows: []byte{0, 3, 8}}}}, arch.AMD64,
		"1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1010  gap", nil},
	{"erratum 1: starts from their fields", hand{version: 2, flags: 5, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000 - 28, size: 16, num: 1, rows: []byte{0, 3, 8}},
		{start: -0xf00 - 48, size: 16, num: 1, rows: []byte{0, 3, 24}}}}, arch.AMD64,
		"1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1010  gap | 1100  cfa=rsp+24  rbp=s  ra=c-8  partial | 1110  gap", nil},
	{"erratum 2: no words", hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 2, rows: []byte{0, 3, 8, 2, 1}}}}, arch.AMD64,
		"1000  cfa=rsp+8  rbp=s  ra=c-8  partial | 1002  cfa=none  ra=u  partial | 1010  gap", nil},
	{"version 1 has rows with words only", hand{version: 1, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 2, rows: []byte{0, 3, 8, 2, 1}}}}, arch.AMD64,
		"", []string{".sframe+0x30: a row without words: malformed"}},
	{"version 3: no rows", hand{version: 3, flags: 4, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000 - 28, size: 16, info: 0x80}}}, arch.AMD64,
		"1000  cfa=none  ra=u  signal  partial | 1010  gap", nil},
	{"s390x: a register's number is odd", hand{version: 2, abi: abiS390, order: binary.BigEndian, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 4, rows: []byte{0, 3, 0, 2, 5, 0, 33, 6, 7, 21, 0xd0, 35, 10, 7, 21, 0, 0xb8}}}}, s390,
		"1000  cfa=r15+160  r11=s  ra=s  r15=v-160  partial | 1002  cfa=r15+160  r11=s  ra=r16  r15=v-160  partial | " +
			"1006  cfa=r15+328  r11=r17  ra=c-48  r15=v-160  partial | 100a  cfa=r15+328  r11=c-72  ra=s  r15=v-160  partial | 1010  gap", nil},
	{"AArch64, big-endian, words of 2 and 4 bytes", hand{version: 2, abi: abiARM64Big, order: binary.BigEndian, funcs: []handFunc{
		{start: -0x1000, size: 0x20000, info: 2 | infoKeyB, num: 2, rows: []byte{0, 0, 0, 0, 0xa7, 2, 0, 0xff, 0, 0xff, 8, 0, 1, 0, 4, 0x42, 0, 1, 0, 0}}}}, arch.ARM64,
		"1000  cfa=sp+512  x29=c-248  ra=c-256  ra-signed  b-key  partial | 11004  cfa=x29+65536  x29=s  ra=s  b-key  partial | 21000  gap", nil},
	{"a lazy linkage table", hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 64, info: infoMask, repeat: 16, num: 2, rows: []byte{0, 3, 8, 11, 3, 16}}}}, arch.AMD64,
		"1000  cfa=DW_OP_breg7 RSP+8, DW_OP_breg16 RIP+0, DW_OP_lit15, DW_OP_and, DW_OP_lit11, DW_OP_ge, DW_OP_lit3, DW_OP_shl, DW_OP_plus  rbp=s  ra=c-8  partial | 1040  gap", nil},
	{"rows that repeat, from the second byte of a block", hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 20, info: infoMask, repeat: 8, num: 3, rows: []byte{1, 3, 8, 4, 3, 32, 9, 3, 64}}}}, arch.AMD64,
		"1001  cfa=rsp+8  rbp=s  ra=c-8  partial | 1004  cfa=rsp+32  rbp=s  ra=c-8  partial | 1008  gap | 1009  cfa=rsp+8  rbp=s  ra=c-8  partial | " +
			"100c  cfa=rsp+32  rbp=s  ra=c-8  partial | 1010  gap | 1011  cfa=rsp+8  rbp=s  ra=c-8  partial | 1014  gap", nil},
	{"rows that repeat up to the last address", hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x2100, size: 0xf8, info: infoMask, repeat: 128, num: 2, rows: []byte{0, 3, 8, 4, 3, 32}}}}, arch.AMD64,
		"ffffffffffffff00  cfa=rsp+8  rbp=s  ra=c-8  partial | ffffffffffffff04  cfa=rsp+32  rbp=s  ra=c-8  partial | " +
			"ffffffffffffff80  cfa=rsp+8  rbp=s  ra=c-8  partial | ffffffffffffff84  cfa=rsp+32  rbp=s  ra=c-8  partial | fffffffffffffff8  gap", nil},
	{"flexible rules that are none", hand{version: 3, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 16, info2: 1, num: 1, rows: []byte{0, 2<<1 | 1, 2, 8}},                      // the CFA from itself
		{start: -0x1000, size: 16, info2: 1, num: 1, rows: []byte{0, 3<<1 | 1, 0x39, 8, 2}},                // half a rule
		{start: -0x1000, size: 16, info2: 1, num: 1, rows: []byte{0, 7<<1 | 1, 0x39, 8, 2, 8, 2, 16, 2}},   // a fourth rule
		{start: -0x1000, size: 16, info2: 2, num: 1, rows: []byte{0, 7<<1 | 1, 0x39, 8}}}}, arch.AMD64, "", // another type
		[]string{".sframe+0x61: a CFA from no register: control word 0x2: malformed", ".sframe+0x6a: a control word without an offset: truncated",
			".sframe+0x74: 1 words too many: malformed", ".sframe+0x80: a function of type 2: unsupported"}},
	{"flexible rules", hand{version: 3, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 16, info2: 1, num: 3, rows: []byte{
			0, 4<<1 | 1, 0x39, 8, 2, 0xf0, // CFA=rsp+8, RA=*(CFA-16)
			4, 6<<1 | 1, 0x53, 0xf8, 0x19, 0, 0x1b, 24, // CFA=*(r10-8), RA=rbx, FP=*(rbx+24)
			8, 5<<1 | 1, 0x39, 16, 0, 0x31, 8}}}}, arch.AMD64, // CFA=rsp+16, FP=rbp+8
		"1000  cfa=rsp+8  rbp=s  ra=c-16  partial | 1004  cfa=DW_OP_breg10 R10-8, DW_OP_deref  rbp=[DW_OP_breg3 RBX+24]  ra=rbx  partial | " +
			"1008  cfa=rsp+16  rbp=DW_OP_breg6 RBP+8  ra=c-8  partial | 1010  gap", nil},
	{"each function stands for itself", hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, ra: -8, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 2, rows: []byte{0, 3, 8, 0, 3, 16}},    // twice the same start
		{start: -0xff0, size: 16, num: 1, rows: []byte{0, 9, 8, 0, 0, 0}},      // four words
		{start: -0xfe0, size: 16, num: 1, info: 3, rows: []byte{0, 3, 8}},      // starts of 8 bytes
		{start: -0xfd0, size: 16, num: 1, rows: []byte{0, 0x63, 8}},            // words of 8 bytes
		{start: -0xfc0, size: 16, num: 1, info: 0x10, rows: []byte{0, 3, 8}},   // blocks of 0 bytes
		{start: -0xfb0, size: 16, num: 2, rows: []byte{0, 3, 8, 30, 3, 16}},    // behind its end
		{start: -0xfa0, size: 16, num: 2, rows: []byte{0, 3, 8}}}}, arch.AMD64, // cut off
		"1050  cfa=rsp+8  rbp=s  ra=c-8  partial | 1060  gap", []string{
			".sframe+0xab: a row at 0x0 behind one at 0x0: malformed",
			".sframe+0xae: a row of 4 words: malformed",
			".sframe+0xb4: rows of type 3: unsupported",
			".sframe+0xb8: words of size 3: malformed",
			".sframe+0x6c: rows that repeat after 0 bytes: malformed",
			".sframe+0xc6: a row: truncated"}},
	{"a row must have a return address", hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, funcs: []handFunc{
		{start: -0x1000, size: 16, num: 1, rows: []byte{0, 3, 8}}}}, arch.AMD64,
		"", []string{".sframe+0x30: a row without a return address: malformed"}},
	{"another machine", hand{version: 2, abi: abiARM64Little, order: binary.LittleEndian}, arch.AMD64, "", []string{".sframe+0x4: ABI 2 in a file for x86_64: malformed"}},
	{"version 4", hand{version: 4, abi: abiAMD64, order: binary.LittleEndian}, arch.AMD64, "", []string{".sframe+0x2: version 4: unsupported"}},
}

// TestByHand reads sections by hand.
func TestByHand(t *testing.T) {
	for _, c := range byHand {
		got, errs := read(t, c.bytes(), c.m)
		if want := c.want; got != want && !(want == "" && got == "machine "+c.m.Name) {
			t.Errorf("%s\n got %s\nwant %s", c.name, got, want)
		}
		var text []string
		for _, err := range errs {
			text = append(text, err.Error())
		}
		if got, want := strings.Join(text, "\n"), strings.Join(c.errors, "\n"); got != want {
			t.Errorf("%s: errors\n got %s\nwant %s", c.name, got, want)
		}
	}
}

// TestShared says how much work a section may make whose functions share their rows.
func TestShared(t *testing.T) {
	h := hand{version: 2, abi: abiAMD64, order: binary.LittleEndian, ra: -8}
	shared := make([]byte, 0, 300)
	for i := range 100 {
		shared = append(shared, byte(2*i), 3, byte(8+i))
	}
	for i := range 1000 {
		h.funcs = append(h.funcs, handFunc{start: int64(i) * 256, size: 256, num: 100})
	}
	h.funcs[0].rows = shared
	b := h.bytes()
	for i := range h.funcs { // all of them have the first one's
		binary.LittleEndian.PutUint32(b[headerSize+20*i+8:], 0)
	}
	s, err := parse(b, 0, arch.AMD64)
	if err != nil {
		t.Fatal(err)
	}
	tab, errs := (&Table{machine: arch.AMD64, sections: []*section{s}}).Rows()
	if len(tab.Rows) > 500 || len(errs) != 996 {
		t.Errorf("%d rows, %d errors", len(tab.Rows), len(errs))
	}
	// And one whose rows repeat.
	h.funcs = []handFunc{{size: 1 << 31, info: infoMask, repeat: 3, num: 2, rows: []byte{0, 3, 8, 1, 3, 16}}}
	if got, errs := read(t, h.bytes(), arch.AMD64); len(errs) != 1 || !errors.Is(errs[0], module.ErrUnsupported) {
		t.Errorf("rows that repeat: %d bytes, %v", len(got), errs)
	}
}

// FuzzTable holds tables of any bytes against what all tables keep, and their size against the bytes.
func FuzzTable(f *testing.F) {
	ms := []*arch.Machine{arch.AMD64, arch.ARM64, s390}
	for _, c := range byHand {
		b := c.bytes()
		f.Add(b)
		f.Add(b[:len(b)-1])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, m := range ms {
			s, err := parse(b, 0x2000, m)
			if err != nil {
				continue
			}
			x := &Table{machine: m, sections: []*section{s}}
			x.ranges = x.sort
			tab, errs := x.Rows()
			if n := len(tab.Rows); n > 1<<18+64*len(b) {
				t.Errorf("%d rows of %d bytes", n, len(b))
			}
			if len(errs) > s.count+1 || len(errs) > maxErrors+1 {
				t.Errorf("%d errors of %d entries", len(errs), s.count)
			}
			for i, r := range tab.Rows {
				if i > 0 && r.Lo <= tab.Rows[i-1].Lo {
					t.Fatalf("row %d at %#x, behind %#x", i, uint64(r.Lo), uint64(tab.Rows[i-1].Lo))
				}
				if set := &tab.Sets[r.Set]; r.Set != rows.GapID && set.Flags&rows.Partial == 0 {
					t.Errorf("%s is not partial", set.Text(m))
				}
				if lo, hi, ok := x.Bounds(r.Lo); r.Set != rows.GapID && i < 100 && (!ok || r.Lo < lo || r.Lo >= hi) {
					// Another function with a greater start and without rows may have it.
					if _, found := slicesFind(x.ranges(), r.Lo); !found {
						t.Errorf("Bounds(%#x) = %#x, %#x, %v", uint64(r.Lo), uint64(lo), uint64(hi), ok)
					}
				}
			}
		}
	})
}

// slicesFind returns a range that has an address.
func slicesFind(all []span, pc arch.Vaddr) (span, bool) {
	for _, s := range all {
		if s.lo <= pc && pc < s.hi {
			return s, true
		}
	}
	return span{}, false
}
