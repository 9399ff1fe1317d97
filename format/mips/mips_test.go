package mips

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

var update = flag.Bool("update", false, "write the golden files again")

// builds are the files in testdata, of one source: the arguments of the assembler and of the linker.
var builds = []struct{ name, golden, as, ld string }{
	{"mips", "o32", "-EB -32 -mips32r2", "-EB -m elf32btsmip"},
	{"mipsel", "o32", "-EL -32 -mips32r2", "-EL -m elf32ltsmip"},
	{"mipsn32", "n64", "-EB -n32 -mips64r2", "-EB -m elf32btsmipn32"},
	{"mips64el", "n64", "-EL -64 -mips64r2", "-EL -m elf64ltsmip"},
}

// assemble makes an object and a shared object of a source.
func assemble(t testing.TB, src, as, ld string) (obj, so string) {
	t.Helper()
	oracle.Need(t, "mipsel-linux-gnu-as", "mipsel-linux-gnu-ld")
	dir := t.TempDir()
	obj, so = filepath.Join(dir, "a.o"), filepath.Join(dir, "a.so")
	oracle.Run(t, "mipsel-linux-gnu-as", append(strings.Fields(as), "-o", obj, src)...)
	oracle.Run(t, "mipsel-linux-gnu-ld", append(strings.Fields(ld), "-shared", "-Ttext=0x4000", "--eh-frame-hdr", "-o", so, obj)...)
	return obj, so
}

// open returns the tables of a file.
func open(t testing.TB, path string) *Index {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	x, err := Open(img)
	if err != nil || x == nil {
		t.Fatalf("Open(%s) = %v, %v", path, x, err)
	}
	return x
}

// text lists a file's entries, one to a line, with addresses from the beginning of the code.
func text(x *Index) string {
	var out strings.Builder
	base := x.code[0].Lo
	x.Entries(func(e *Entry, err error) bool {
		fmt.Fprintf(&out, "%#x-%#x %s %d", uint64(e.Lo-base), uint64(e.Hi-base), e.Kind, e.Routine)
		if e.Personality != 0 {
			fmt.Fprintf(&out, " by %#x", uint64(e.Personality-base))
		}
		set, n := rows.Set{}, 0
		if err == nil {
			set, n, err = x.Decode(e)
		}
		switch {
		case e.Kind == FDE:
			out.WriteByte('\n')
		case err != nil:
			msg := err.Error()
			fmt.Fprintf(&out, "%s\n", msg[strings.LastIndex(msg, ": opcodes")+1:])
		default:
			fmt.Fprintf(&out, " [% x] %s\n", e.Code[:n], set.Text(x.machine))
		}
		return true
	})
	return out.String()
}

// TestGolden: the files in testdata, of one source, read the same in both byte orders, and as the golden file of their word size says. -update makes
// all of them.
func TestGolden(t *testing.T) {
	made := map[string]string{}
	for _, b := range builds {
		path, golden := "testdata/opcodes-"+b.name, "testdata/"+b.golden+".golden"
		if *update {
			oracle.Need(t, "mipsel-linux-gnu-strip")
			_, so := assemble(t, "testdata/opcodes.s", b.as, b.ld+" -z max-page-size=16")
			oracle.Run(t, "mipsel-linux-gnu-strip", "-s", "-o", path, so)
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		x := open(t, path)
		if x.machine.Name != b.name {
			t.Errorf("%s is of %s", path, x.machine.Name)
		}
		got := text(x)
		if *update && made[golden] == "" {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			made[golden] = got
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s:\n%s\nwant\n%s", b.name, got, want)
		}
		tab, errs := x.Rows()
		entries, bad := 0, 0
		x.Entries(func(e *Entry, _ error) bool {
			entries++
			lo, hi, ok := x.Bounds(e.Lo)
			if !ok && e.Lo < e.Hi || ok && (lo != e.Lo || hi != e.Hi) {
				t.Errorf("Bounds(%#x) = %#x, %#x, %v; want %#x", uint64(e.Lo), uint64(lo), uint64(hi), ok, uint64(e.Hi))
			}
			set, _, err := x.Decode(e)
			if err != nil {
				bad++
			}
			if have := tab.At(e.Lo); e.Lo < e.Hi && have.Text(x.machine) != set.Text(x.machine) {
				t.Errorf("%#x: row %s, entry %s", uint64(e.Lo), have.Text(x.machine), set.Text(x.machine))
			}
			return true
		})
		if entries < 50 || len(errs) != bad || bad < 8 {
			t.Errorf("%d errors of %d damaged entries, of %d: %v", len(errs), bad, entries, errs)
		}
		if tab.Origin(tab.Rows[0].Lo) != rows.FromMIPS {
			t.Errorf("origin %v", tab.Origin(tab.Rows[0].Lo))
		}
	}
}

// TestSpecification: what the specification's table of opcodes says, byte by byte.
func TestSpecification(t *testing.T) {
	for _, c := range []struct {
		code       string
		inline     bool
		o32, n64   string
		cause      error
		at, length int // of an error; of the opcodes
	}{
		{code: "", inline: true, o32: "cfa=r29+0  sync-only", n64: "cfa=r29+0  sync-only"},
		{code: "\x00", inline: true, o32: "cfa=r29+8  sync-only", n64: "cfa=r29+16  sync-only", length: 1},
		{code: "\x03\x40\x5c", o32: "cfa=r29+32  r16=c-8  ra=c-4  sync-only", n64: "cfa=r29+64  r16=c-16  ra=c-8  sync-only", length: 3},
		{code: "\x03\x49\x5c", o32: "cfa=r29+32  r16=c-16  r17=c-12  r30=c-8  ra=c-4  sync-only", n64: "cfa=r29+64  r16=c-32  r17=c-24  r30=c-16  ra=c-8  sync-only", length: 3},
		{code: "\x52\x01\x5c", o32: "cfa=r18+16  sync-only", n64: "cfa=r18+32  sync-only", length: 3},
		{code: "\x58\x02\x5c", o32: "cfa=r29+1048  sync-only", n64: "cfa=r29+2096  sync-only", length: 3},
		{code: "\x01\x59\x81\x5c", o32: "cfa=r29+16  r16=c-8  r17=c-4  sync-only", n64: "cfa=r29+32  r16=c-16  r17=c-8  sync-only", length: 4},
		{code: "\x01\x59\x01\x5c", o32: "cfa=r29+16  r0=c-8  r1=c-4  sync-only", n64: "cfa=r29+32  r0=c-16  r1=c-8  sync-only", length: 4},
		{code: "\x01\x5a\xa1\x5c", o32: "cfa=r29+16  r52=c-8  r53=c-4  sync-only", n64: "cfa=r29+32  r52=c-16  r53=c-8  sync-only", length: 4},
		{code: "\x5e\x01\x5b\x00\x5c", o32: "cfa=r29+8  sync-only", n64: "cfa=r29+16  sync-only", length: 5},
		{code: "\x5d", o32: "gap", n64: "gap", length: 1},
		{code: "\x5d\x5d\x01", inline: true, o32: "gap", n64: "gap", length: 1}, // the end of the index
		{code: "\x5e\x01\x5c", o32: "cfa=r30+16  sync-only", n64: "cfa=r30+32  sync-only", length: 3},
		{code: "\x5f\x5f\x5c", o32: "cfa=r29+0  sync-only", n64: "cfa=r29+0  sync-only", length: 3},
		{code: "\x01\x61\x5c", o32: "cfa=r29+16  r52=c-8  r53=c-4  sync-only", n64: "cfa=r29+32  r52=c-16  r53=c-8  sync-only", length: 3},
		{code: "\x03\x6f\x5c", o32: "cfa=r29+32  r16=c-24  r17=c-20  r21=c-16  r22=c-12  r23=c-8  ra=c-4  sync-only",
			n64: "cfa=r29+64  r16=c-48  r17=c-40  r21=c-32  r22=c-24  r23=c-16  ra=c-8  sync-only", length: 3},
		{code: "\x03\x70\x5c", o32: "cfa=r29+32  r16=c-12  r28=c-8  ra=c-4  sync-only", n64: "cfa=r29+64  r16=c-24  r28=c-16  ra=c-8  sync-only", length: 3},
		{code: "\x03\x78\x5c", o32: "cfa=r29+32  r16=c-16  r28=c-12  r30=c-8  ra=c-4  sync-only", n64: "cfa=r29+64  r16=c-32  r28=c-24  r30=c-16  ra=c-8  sync-only", length: 3},
		{code: "\x03\x40\x61\x01\x5c", o32: "cfa=r29+48  r16=c-24  ra=c-20  r52=c-32  r53=c-28  sync-only", n64: "cfa=r29+96  r16=c-48  ra=c-40  r52=c-64  r53=c-56  sync-only", length: 5},
		{code: "", cause: ErrTruncated},
		{code: "\x03\x40", cause: ErrTruncated, at: 2},
		{code: "\x03\x58\x80", cause: ErrTruncated, at: 1},
		{code: "\x03\x59", cause: ErrTruncated, at: 1},
		{code: "\x03\x5a", inline: true, cause: ErrTruncated, at: 1},
		{code: "\x58\xff\xff\xff\xff\xff\x00\x5c", cause: ErrMalformed},
		{code: "\x58" + strings.Repeat("\x80", 20) + "\x00\x5c", cause: ErrMalformed},
		{code: strings.Repeat("\x58\xff\xff\xff\x7f", 8) + "\x5c", cause: ErrMalformed},
		{code: "\x59\xff\x5c", cause: ErrMalformed},
		{code: "\x5a\xff\x5c", cause: ErrMalformed},
		{code: "\x40\x5e\x5c", cause: ErrUnsupported, at: 1},
		{code: "\x40\x01\x40\x5c", cause: ErrUnsupported, at: 2},
		{code: "\x00\x80\x5c", cause: ErrReserved, at: 1},
		{code: "\xff", cause: ErrReserved},
		{code: strings.Repeat("\x5f", maxCode) + "\x5c", cause: ErrMalformed, at: maxCode},
	} {
		for _, l := range []layout{o32, n64} {
			want, m := c.o32, arch.MIPS
			if l == n64 {
				want, m = c.n64, arch.MIPS64
			}
			set, n, err := decode([]byte(c.code), l, c.inline)
			if c.cause != nil {
				if !errors.Is(err, c.cause) && !(l == n64 && errors.Is(err, ErrMalformed)) || c.at != 0 && n != c.at {
					t.Errorf("% x: %v at %d, want %v at %d", c.code, err, n, c.cause, c.at)
				}
				continue
			}
			if got := set.Text(m); err != nil || got != want || n != c.length {
				t.Errorf("% x: %s, %d, %v; want %s, %d", c.code, got, n, err, want, c.length)
			}
		}
	}
}

// built returns an index and tables at 0x1000 and 0x2000. A pair has two words; of an inline one, the second is in the order of its bytes.
func built(order byteOrder, pairs [][2]uint32, table string) *Index {
	b := []byte{version, pcrel | sdata4, 0, 0, 0, 0, 0, 0}
	order.PutUint32(b[countAt:], uint32(len(pairs)))
	for _, p := range pairs {
		second := byteOrder(order)
		if p[0]&1 == 0 {
			second = binary.BigEndian
		}
		b = second.AppendUint32(order.AppendUint32(b, p[0]), p[1])
	}
	x := &Index{machine: arch.MIPSMachine(arch.O32, order == binary.BigEndian), order: order, mask: 1<<32 - 1, tail: func(arch.Vaddr) []byte { return nil }, named: true,
		room: uint64(len(b) + len(table)), tables: []part{{name: extab, addr: 0x2000, data: []byte(table)}},
		code: module.Ranges{{Lo: 0x4000, Hi: 0x5000}}, frames: module.Ranges{{Lo: 0x3000, Hi: 0x3100}}}
	if err := x.linked(part{name: hdrName, addr: 0x1000, data: b}); err != nil {
		panic(err)
	}
	return x
}

type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

// at is a pair's word at the place of pair i, word 0 or 1, for an address.
func at(i, word int, to uint32) uint32 { return to - 0x1008 - uint32(8*i+4*word) }

// TestDamage: each damaged entry costs itself only, and its error has a place.
func TestDamage(t *testing.T) {
	for _, order := range []byteOrder{binary.LittleEndian, binary.BigEndian} {
		x := built(order, [][2]uint32{
			{at(0, 0, 0x4000), 0x0103405c},
			{at(1, 0, 0x4010), 0x0203405c},               // inline, of routine 2
			{at(2, 0, 0x4020), 0x0103405f},               // whole, without an end
			{at(3, 0, 0x4030) | 1, at(3, 1, 0x2008)},     // cut off
			{at(4, 0, 0x4040) | 1, at(4, 1, 0x6000)},     // nowhere
			{at(5, 0, 0x4050) | 1, at(5, 1, 0x2002)},     // routine 4
			{at(6, 0, 0x4060), 0x01035e80},               // reserved
			{at(7, 0, 0x4070) | 1, at(7, 1, 0x3010) | 1}, // an FDE
			{at(8, 0, 0x4080) | 1, at(8, 1, 0x6010) | 1}, // an FDE outside of .eh_frame
			{at(9, 0, 0x40b0), 0x0103405c},               // the next is before it
			{at(10, 0, 0x40a0) | 1, at(10, 1, 0x2006)},   // the address of its routine is cut off
			{at(11, 0, 0x40c0), 0x0103415c},              // good
			{at(12, 0, 0x40d0), 0x015d5d01},              // no unwind
			{at(13, 0, 0x40e0) | 1, at(13, 1, 0x2004)},   // good
			{at(14, 0, 0x4200), 0x015d5d01},
		}, "\x01\x5c\x04\x5c\x01\x5c\x00\x01\x01\x02")
		tab, errs := x.Rows()
		var got []string
		for _, err := range errs {
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrReserved) {
				t.Errorf("%v", err)
				continue
			}
			got = append(got, fmt.Sprintf("%s+%#x", e.Section, e.Off))
		}
		want := ".eh_frame_hdr+0x14 .gnu_extab+0xa .eh_frame_hdr+0x28 .gnu_extab+0x2 .eh_frame_hdr+0x3f .eh_frame_hdr+0x4c .eh_frame_hdr+0x50 .gnu_extab+0x6"
		if strings.Join(got, " ") != want {
			t.Errorf("errors\n%s, want\n%s\n%v", strings.Join(got, " "), want, errs)
		}
		var out bytes.Buffer
		tab.WriteText(&out)
		if want := "4000  cfa=r29+32  r16=c-8  ra=c-4  sync-only\n4010  gap\n4020  cfa=r29+32  r16=c-8  ra=c-4  sync-only\n4030  gap\n" +
			"40c0  cfa=r29+32  r16=c-12  r17=c-8  ra=c-4  sync-only\n40d0  gap\n40e0  cfa=r29+0  sync-only\n4200  gap\n"; !strings.HasSuffix(out.String(), want) {
			t.Errorf("rows\n%s, want\n%s", out.String(), want)
		}
	}
}

// TestHeader: a header that counts more pairs than there are, and one that is cut off, are damage; fewer pairs hide the others.
func TestHeader(t *testing.T) {
	for _, c := range []struct {
		name, hdr string
		pairs     int
		want      string
	}{
		{"cut off", "\x02\x1b\x00\x00\x01\x00", -1, ".eh_frame_hdr+0x0: a header of 6 bytes: truncated"},
		{"too many", "\x02\x1b\x00\x00\xff\xff\xff\xff\x00\x30\x00\x00\x01\x5c\x5c\x5c\x01", 1, ".eh_frame_hdr+0x4: 4294967295 pairs, with room for 1: truncated"},
		{"fewer", "\x02\x1b\x00\x00\x01\x00\x00\x00\x00\x30\x00\x00\x01\x5c\x5c\x5c\x08\x30\x00\x00\x01\x5c\x5c\x5c", 1, "<nil>"},
		{"none", "\x02\x1b\x00\x00\x00\x00\x00\x00", 0, "<nil>"},
	} {
		x := built(binary.LittleEndian, nil, "")
		x.index = nil
		err := x.linked(part{name: hdrName, addr: 0x1000, data: []byte(c.hdr)})
		if fmt.Sprint(err) != c.want {
			t.Errorf("%s: %v, want %s", c.name, err, c.want)
		}
		n := 0
		x.Entries(func(e *Entry, err error) bool {
			if n++; err != nil || e.Lo != 0x4008 || e.Hi != 0x5000 {
				t.Errorf("%s: %+v, %v", c.name, e, err)
			}
			return true
		})
		if n != c.pairs && c.pairs >= 0 {
			t.Errorf("%s: %d pairs", c.name, n)
		}
	}
	for _, hdr := range []string{"", "\x01\x1b\x03\x3b"} {
		if isIndex([]byte(hdr)) {
			t.Errorf("% x is no index of version 2", hdr)
		}
	}
}

// TestUnapplied: what depends on a relocation that could not be applied is damage, and nothing else.
func TestUnapplied(t *testing.T) {
	x := built(binary.LittleEndian, [][2]uint32{
		{at(0, 0, 0x4000), 0x0103405c}, // ends where nobody knows
		{1, at(1, 1, 0x2000)},          // begins there
		{at(2, 0, 0x4020) | 1, at(2, 1, 0x2000)},
		{at(3, 0, 0x4030) | 1, 0},                // has a table somewhere
		{at(4, 0, 0x4040) | 1, at(4, 1, 0x2008)}, // the relocation is in its opcodes
		{at(5, 0, 0x4050) | 1, at(5, 1, 0x2010)}, // of its routine
		{at(6, 0, 0x4060), 0x0103415c},
	}, "\x01\x00\x5c\x00\x00\x00\x00\x00"+"\x01\x01\x00\x00\x00\x00\x5c\x00"+"\x00\x00\x00\x00\x00\x02\x5c\x00")
	reloc := func(section string, off uint64) module.RelocError {
		return module.RelocError{Section: section, Off: off, Type: "R_MIPS_PC32", Msg: "symbol 9 is in no section", Err: module.ErrMalformed}
	}
	x.index[0].bad = []module.RelocError{reloc(hdrName, 0x10), reloc(hdrName, 0x24)}
	x.tables[0].bad = []module.RelocError{reloc(extab, 4), reloc(extab, 10), reloc(extab, 0x11)}
	tab, errs := x.Rows()
	const why = "relocation R_MIPS_PC32: symbol 9 is in no section: malformed"
	want := "[.eh_frame_hdr+0x10: function 0x4000: " + why + " .eh_frame_hdr+0x10: " + why + " .eh_frame_hdr+0x24: " + why + " .gnu_extab+0xa: function 0x4040: " + why + "]"
	if got := fmt.Sprint(errs); got != want {
		t.Errorf("errors\n%s, want\n%s", got, want)
	}
	var got bytes.Buffer
	tab.WriteText(&got)
	if want := "machine mipsel\norigin 4020 mips-compact\n4020  cfa=r29+8  sync-only\n4030  gap\n4050  cfa=r29+24  sync-only\n" +
		"4060  cfa=r29+32  r16=c-12  r17=c-8  ra=c-4  sync-only\n5000  gap\n"; got.String() != want {
		t.Errorf("rows\n%swant\n%s", &got, want)
	}
}

// TestSegment: without sections, the program header leads to the index. Entries that need .eh_frame are errors then.
func TestSegment(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-objcopy-19")
	for _, b := range builds {
		path := filepath.Join(t.TempDir(), "stripped")
		oracle.Run(t, "llvm-objcopy-19", "--strip-sections", "testdata/opcodes-"+b.name, path)
		var got [2]string
		var failed [2]int
		for i, path := range []string{"testdata/opcodes-" + b.name, path} {
			tab, errs := open(t, path).Rows()
			got[i], failed[i] = fmt.Sprint(tab.Rows), len(errs)
		}
		if got[0] != got[1] || len(got[0]) < 500 || failed[1] != failed[0]+1 {
			t.Errorf("%s: with sections %d errors and\n%s, without %d and\n%s", b.name, failed[0], got[0], failed[1], got[1])
		}
	}
}

// TestRepeated: many functions with tables that overlap cost no more than the sections' bytes allow: room counts the opcodes that are decoded.
func TestRepeated(t *testing.T) {
	const n = 5000
	pairs := make([][2]uint32, n)
	for i := range pairs {
		pairs[i] = [2]uint32{at(i, 0, 0x1000_0000+16*uint32(i)) | 1, at(i, 1, 0x100_0000+2*uint32(i))}
	}
	x := built(binary.LittleEndian, pairs, strings.Repeat("\x01\x5f", n)+strings.Repeat("\x5f", 100)+"\x5c")
	x.tables[0].addr = 0x100_0000
	tab, errs := x.Rows()
	if len(errs) != maxErrors+1 || len(tab.Sets) > 200 {
		t.Errorf("%d errors, %d sets", len(errs), len(tab.Sets))
	}
	// Different opcodes at each place: the room of the sections' bytes ends.
	x = built(binary.LittleEndian, pairs, strings.Repeat("\x01\x59\x80\x59\x88\x59\x90\x59\x98\x59\xa0\x59\xa8\x59\xb0\x59\xb8", n/8)+"\x5c")
	x.tables[0].addr, x.room = 0x100_0000, 100
	if _, errs = x.Rows(); len(errs) != maxErrors+1 {
		t.Errorf("%d errors", len(errs))
	}
}

func FuzzIndex(f *testing.F) {
	for _, b := range builds {
		img, err := module.Open("testdata/opcodes-" + b.name)
		if err != nil {
			f.Fatal(err)
		}
		x, err := Open(img)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(x.index[0].data), bytes.Clone(x.tables[0].data), uint32(x.index[0].addr), uint32(x.tables[0].addr), b.as[1] == 'B', b.golden == "n64")
		img.Close()
	}
	f.Fuzz(func(t *testing.T, index, table []byte, at, tables uint32, big, wide bool) {
		x := built(binary.LittleEndian, nil, "")
		if big {
			x.order = binary.BigEndian
		}
		x.machine = arch.MIPSMachine(arch.O32, big)
		if wide {
			x.machine, x.mask = arch.MIPSMachine(arch.N64, big), ^uint64(0)
		}
		x.index, x.tables = nil, []part{{name: extab, addr: arch.Vaddr(tables), data: table}}
		x.linked(part{name: hdrName, addr: arch.Vaddr(at), data: index})
		x.index = append(x.index, part{name: entryName, addr: arch.Vaddr(at), data: index})
		x.room = uint64(len(index) + len(table))
		tab, errs := x.Rows()
		if n := len(index)/4 + 2; len(tab.Rows) > 2*n || len(errs) > n {
			t.Errorf("%d rows and %d errors of %d entries", len(tab.Rows), len(errs), n)
		}
		for i := range tab.Sets {
			if s := &tab.Sets[i]; !s.Gap() && (s.CFA.Off < 0 || s.CFA.Off > maxOffset || s.Flags != rows.SyncOnly) {
				t.Errorf("%s", s.Text(x.machine))
			}
		}
		x.Entries(func(e *Entry, err error) bool {
			if err == nil {
				if set, n, err := x.Decode(e); err == nil && (n > maxCode+2 || n > len(e.Code) || len(set.Rules) > numR) {
					t.Errorf("%d bytes of opcodes of %d, %d rules", n, len(e.Code), len(set.Rules))
				}
			}
			x.Bounds(e.Lo)
			return true
		})
		x.Sum(new(bytes.Buffer))
	})
}
