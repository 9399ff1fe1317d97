package ehabi

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

// text lists a file's entries, one to a line.
func text(x *Index) string {
	var out strings.Builder
	x.Entries(func(e *Entry, err error) bool {
		fmt.Fprintf(&out, "%#x-%#x %s %d", uint64(e.Lo), uint64(e.Hi), e.Kind, e.Model)
		if e.Kind == Generic {
			fmt.Fprintf(&out, " by %#x", uint64(e.Personality))
		}
		if err != nil {
			fmt.Fprintf(&out, " %v\n", err)
			return true
		}
		if e.Kind == CantUnwind {
			out.WriteByte('\n')
			return true
		}
		fmt.Fprintf(&out, " [% x] ", e.Code)
		if set, err := Decode(e.Code); err != nil {
			fmt.Fprintf(&out, "%v\n", err)
		} else {
			fmt.Fprintf(&out, "%s\n", set.Text(x.machine))
		}
		return true
	})
	return out.String()
}

// TestGolden: the files in testdata, of one source, for both byte orders, read the same, and as the golden file says. -update makes all three.
func TestGolden(t *testing.T) {
	const golden = "testdata/opcodes.golden"
	var got [2]string
	for i, name := range []string{"arm", "armeb"} {
		path := "testdata/opcodes-" + name
		if *update {
			oracle.Need(t, "clang-19", "ld.lld-19")
			obj := filepath.Join(t.TempDir(), "a.o")
			for _, cmd := range [][]string{
				{"clang-19", "--target=" + name + "v7-linux-gnueabi", "-c", "-o", obj, "testdata/opcodes.s"},
				{"ld.lld-19", "-shared", "--no-rosegment", "-z", "noseparate-code", "-z", "norelro", "-s", "-o", path, obj},
			} {
				oracle.Run(t, cmd[0], cmd[1:]...)
			}
			if err := os.Chmod(path, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		x, err := Open(img)
		if err != nil || x == nil {
			t.Fatalf("Open(%s) = %v, %v", path, x, err)
		}
		got[i] = text(x)
		tab, errs := x.Rows()
		n := 0
		x.Entries(func(e *Entry, _ error) bool {
			lo, hi, ok := x.Bounds(e.Lo)
			if !ok && e.Lo < e.Hi || ok && (lo != e.Lo || hi != e.Hi) {
				t.Errorf("Bounds(%#x) = %#x, %#x, %v; want %#x", uint64(e.Lo), uint64(lo), uint64(hi), ok, uint64(e.Hi))
			}
			set, err := Decode(e.Code)
			if err != nil || e.Kind == CantUnwind {
				set = rows.Set{}
			}
			if have := tab.At(e.Lo); e.Lo < e.Hi && have.Text(x.machine) != set.Text(x.machine) {
				t.Errorf("%#x: row %s, entry %s", uint64(e.Lo), have.Text(x.machine), set.Text(x.machine))
			}
			if err != nil {
				n++
			}
			return true
		})
		if len(errs) != n || n < 8 {
			t.Errorf("%d errors of %d damaged entries: %v", len(errs), n, errs)
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(got[0]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != string(want) {
			t.Errorf("file %d:\n%s\nwant\n%s", i, got[i], want)
		}
	}
}

// built returns an index and tables at 0x1000 and 0x2000, of words.
func built(order binary.ByteOrder, index, table []uint32) *Index {
	words := func(list []uint32) (b []byte) {
		for _, w := range list {
			b = append(b, 0, 0, 0, 0)
			order.PutUint32(b[len(b)-4:], w)
		}
		return b
	}
	return &Index{
		machine: arch.ByELF(arch.EM_ARM), order: order, tail: func(arch.Vaddr) []byte { return nil },
		room:  uint64(4*len(index) + 4*len(table)),
		index: []part{{exidx, 0x1000, words(index), nil}}, tables: []part{{extab, 0x2000, words(table), nil}}, code: module.Ranges{{Lo: 0x4000, Hi: 0x5000}},
	}
}

// from is prel31: from a place to an address.
func from(place, to uint32) uint32 { return (to - place) & (1<<31 - 1) }

// TestDamage: each damaged entry costs itself only, and its error has a place.
func TestDamage(t *testing.T) {
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		x := built(order, []uint32{
			from(0x1000, 0x4000), 0x80a8b0b0,
			from(0x1008, 0x4010) | 1<<31, 0x80a8b0b0, // no prel31
			from(0x1010, 0x4020), 0x90a8b0b0, // not 0x8…
			from(0x1018, 0x4030), 0x81a8b0b0, // inline, of routine 1
			from(0x1020, 0x4040), from(0x1024, 0x2000), // two words more than there are
			from(0x1028, 0x4050), from(0x102c, 0x3000), // nowhere
			from(0x1030, 0x4060), from(0x1034, 0x2004), // no model
			from(0x1038, 0x4070), 0x80b6b0b0, // spare
			from(0x1040, 0x4080), 0x80b10000, // spare
			from(0x1048, 0x4090), 0x8084008a, // cut off
			from(0x1050, 0x40b0), 0x80a8b0b0, // the next is before it
			from(0x1058, 0x40a0), 0x80b28080, // cut off
			from(0x1060, 0x40c0), 0x80a9b0b0,
			7,
		}, []uint32{0x8103b0b0, 0x8300b0b0})
		tab, errs := x.Rows()
		var got []string
		for _, err := range errs {
			var e *Error
			if !errors.As(err, &e) || !errors.Is(err, ErrTruncated) && !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrSpare) {
				t.Errorf("%v", err)
			}
			got = append(got, fmt.Sprintf("%s+%#x", e.Section, e.Off))
		}
		want := ".ARM.exidx+0x8 .ARM.exidx+0x14 .ARM.exidx+0x1c .ARM.extab+0x0 .ARM.exidx+0x28 .ARM.extab+0x4 .ARM.exidx+0x3c .ARM.exidx+0x44 .ARM.exidx+0x4c .ARM.exidx+0x50 .ARM.exidx+0x5c .ARM.exidx+0x68"
		if strings.Join(got, " ") != want {
			t.Errorf("errors\n%s, want\n%s\n%v", strings.Join(got, " "), want, errs)
		}
		if n := len(tab.Rows); n != 4 || tab.Rows[0].Lo != 0x4000 || tab.Rows[1].Lo != 0x4010 || tab.Rows[2].Lo != 0x40c0 || tab.Rows[3].Lo != 0x5000 {
			t.Errorf("rows %v", tab.Rows)
		}
		if tab.Origin(0x4000) != rows.FromEHABI || tab.At(0x4000).Flags != rows.SyncOnly {
			t.Errorf("origin %v, flags %v", tab.Origin(0x4000), tab.At(0x4000).Flags)
		}
	}
}

// TestSegment: without sections, the program header leads to the index.
func TestSegment(t *testing.T) {
	oracle.Need(t, "llvm-objcopy-19")
	path := filepath.Join(t.TempDir(), "stripped")
	oracle.Run(t, "llvm-objcopy-19", "--strip-sections", "testdata/opcodes-arm", path)
	var got [2][]rows.Row
	for i, path := range []string{"testdata/opcodes-arm", path} {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		x, err := Open(img)
		if err != nil || x == nil {
			t.Fatalf("Open(%s) = %v, %v", path, x, err)
		}
		tab, _ := x.Rows()
		got[i] = tab.Rows
		var sum bytes.Buffer
		if x.Sum(&sum); sum.Len() < 300 {
			t.Errorf("Sum writes %d bytes", sum.Len())
		}
	}
	if fmt.Sprint(got[0]) != fmt.Sprint(got[1]) || len(got[0]) < 30 {
		t.Errorf("with sections\n%v, without\n%v", got[0], got[1])
	}
}

// TestLoads: a stack pointer that was loaded, and one more that was loaded from there, are expressions that Step follows; more than that is damage.
func TestLoads(t *testing.T) {
	if _, err := Decode(bytes.Repeat([]byte{0x82, 0x00}, maxLoads)); !errors.Is(err, ErrMalformed) {
		t.Errorf("%d stack pointers: %v", maxLoads, err)
	}
	set, err := Decode([]byte{0x82, 0x00, 0x01, 0x82, 0x00, 0xa8})
	if err != nil || set.CFA.Kind != rows.CFAExpr {
		t.Fatalf("%v, %v", set, err)
	}
	if got, want := set.Text(arch.ByELF(arch.EM_ARM)), "cfa=DW_OP_breg13 R13+0, DW_OP_deref, DW_OP_consts +8, DW_OP_plus, DW_OP_deref, DW_OP_consts +8, DW_OP_plus  r4=c-8  ra=c-4"; !strings.Contains(got, want) {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestUnapplied: what depends on a relocation that could not be applied is damage, and nothing else.
func TestUnapplied(t *testing.T) {
	x := built(binary.LittleEndian, []uint32{
		from(0x1000, 0x4000), 0x80a8b0b0, // ends where nobody knows
		0, 0x80a9b0b0, // begins there
		from(0x1010, 0x4020), from(0x1014, 0x2000),
		from(0x1018, 0x4030), 0, // has a table somewhere
		from(0x1020, 0x4040), from(0x1024, 0x2008),
		from(0x1028, 0x4050), 0x80aab0b0,
	}, []uint32{0x80abb0b0, 0, 0, 0x00acb0b0})
	reloc := func(section string, off uint64) module.RelocError {
		return module.RelocError{Section: section, Off: off, Type: "R_ARM_PREL31", Msg: "symbol 9 is in no section", Err: module.ErrMalformed}
	}
	x.index[0].bad = []module.RelocError{reloc(exidx, 8), reloc(exidx, 0x1c)}
	x.tables[0].bad = []module.RelocError{reloc(extab, 8)}
	tab, errs := x.Rows()
	want := `[.ARM.exidx+0x8: function 0x4000: relocation R_ARM_PREL31: symbol 9 is in no section: malformed` +
		` .ARM.exidx+0x8: function 0x0: relocation R_ARM_PREL31: symbol 9 is in no section: malformed` +
		` .ARM.exidx+0x1c: function 0x0: relocation R_ARM_PREL31: symbol 9 is in no section: malformed` +
		` .ARM.extab+0x8: function 0x4040: relocation R_ARM_PREL31: symbol 9 is in no section: malformed]`
	if got := fmt.Sprint(errs); got != want {
		t.Errorf("errors\n%s, want\n%s", got, want)
	}
	var got bytes.Buffer
	tab.WriteText(&got)
	if want := "machine arm\norigin 4020 .ARM.exidx\n4020  cfa=r13+20  r4=c-20  r5=c-16  r6=c-12  r7=c-8  ra=c-4  sync-only\n4030  gap\n" +
		"4050  cfa=r13+16  r4=c-16  r5=c-12  r6=c-8  ra=c-4  sync-only\n5000  gap\n"; got.String() != want {
		t.Errorf("rows\n%swant\n%s", &got, want)
	}
}

// TestRepeated: many functions with the same long and bad code, or with tables that overlap, cost no more than the sections' bytes allow: room counts
// the opcodes that are decoded.
func TestRepeated(t *testing.T) {
	const n = 5000
	for _, c := range []struct {
		name        string
		head, words uint32 // of the table
		step        uint32 // bytes between the tables of two functions
		want        string // the error
		sets        int    // at least
	}{
		{"the same bad code", 0x81ffb4b4, 0xb4b4b4b6, 0, "a spare opcode", 1},
		{"overlapping tables", 0x81ff0000, 0x81ff0000, 4, "the tables overlap: malformed", 20},
	} {
		index, table := make([]uint32, 2*n), make([]uint32, n+256)
		for i := range table {
			table[i] = c.words + c.step/4*uint32(i&63|i>>6&63<<8) // vsp = vsp + n
		}
		table[0] = c.head
		for i := range uint32(n) {
			at := 0x1000 + 8*i
			index[2*i], index[2*i+1] = from(at, 0x1000_0000+16*i), from(at+4, 0x100_0000+c.step*i)
		}
		x := built(binary.LittleEndian, index, table)
		x.tables[0].addr = 0x100_0000
		tab, errs := x.Rows()
		if len(errs) != maxErrors+1 || len(tab.Sets) < c.sets || len(tab.Sets) > 100 {
			t.Errorf("%s: %d errors, %d sets", c.name, len(errs), len(tab.Sets))
			continue
		}
		for _, err := range errs[:maxErrors] {
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v", c.name, err)
				break
			}
		}
	}
}

func FuzzIndex(f *testing.F) {
	for _, name := range []string{"arm", "armeb"} {
		img, err := module.Open("testdata/opcodes-" + name)
		if err != nil {
			f.Fatal(err)
		}
		x, err := Open(img)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(bytes.Clone(x.index[0].data), bytes.Clone(x.tables[0].data), uint32(x.index[0].addr), uint32(x.tables[0].addr), name == "armeb")
		img.Close()
	}
	f.Fuzz(func(t *testing.T, index, table []byte, at, tables uint32, big bool) {
		x := built(binary.LittleEndian, nil, nil)
		if big {
			x.order = binary.BigEndian
		}
		x.index, x.tables = []part{{exidx, arch.Vaddr(at), index, nil}}, []part{{extab, arch.Vaddr(tables), table, nil}}
		x.room = uint64(len(index) + len(table))
		tab, errs := x.Rows()
		if n := len(index)/8 + 1; len(tab.Rows) > 2*n || len(errs) > n {
			t.Errorf("%d rows and %d errors of %d entries", len(tab.Rows), len(errs), n)
		}
		x.Entries(func(e *Entry, err error) bool {
			if err == nil && len(e.Code) > 3+4*255 {
				t.Errorf("%d opcodes", len(e.Code))
			}
			x.Bounds(e.Lo)
			return true
		})
		x.Sum(new(bytes.Buffer))
	})
}

// BenchmarkRows reports the time for an entry, from sections to table, and what readelf takes to list one.
func BenchmarkRows(b *testing.B) {
	dir := oracle.Debian(b, "bookworm", "amd64", "armhf-cross", "libc6-armhf-cross", "libstdc++6-armhf-cross")
	path := filepath.Join(dir, "usr/arm-linux-gnueabihf/lib/libstdc++.so.6")
	img, err := module.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer img.Close()
	b.Run("unspool", func(b *testing.B) {
		n := 0
		for b.Loop() {
			x, _ := Open(img)
			t, _ := x.Rows()
			n += len(x.index[0].data) / 8
			if len(t.Rows) < 2000 {
				b.Fatalf("%s has %d rows, want 2000 or more", path, len(t.Rows))
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
	})
	b.Run("readelf", func(b *testing.B) {
		n := 0
		for b.Loop() {
			n += len(readelf(b, path))
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/entry")
	})
}
