package module

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// machoObjects are object files that clang-19 made of "int ext(int); struct S { ~S(); }; int one(int a) { S s; return ext(a) + 1; }" with -O2
// -fomit-frame-pointer -femit-dwarf-unwind=always, for macOS.
func machoObjects(t testing.TB) (out [][]byte) {
	for _, machine := range []string{"i386", "x86_64", "arm64"} {
		b, err := os.ReadFile(filepath.Join("testdata", machine+".macho.o"))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// TestMachOObjects: the record of the only function has its address, its personality by name, and its data; a relocation that cannot be applied
// is an error of its own.
func TestMachOObjects(t *testing.T) {
	for _, b := range machoObjects(t) {
		img, err := New("f", b)
		if err != nil {
			t.Fatal(err)
		}
		s := img.Section("__LD,__compact_unwind")
		rec, bad, err := img.Relocate(s)
		if err != nil || len(bad) > 0 {
			t.Fatalf("Relocate of __LD,__compact_unwind = %v, %v, want no errors", bad, err)
		}
		f := img.fields(rec)
		lo := f.word()
		length := f.u32()
		f.u32()
		personality, lsda := f.word(), f.word()
		if section, off := img.Place(0x1000); section != "__TEXT,__text" || off != 0 || lo != 0x1000 || length == 0 {
			t.Errorf("%s: function %#x of %#x bytes; the first section is %s+%#x", img.Machine().Name, lo, length, section, off)
		}
		if lsda != 0 {
			if name, off := img.Place(arch.Vaddr(personality)); name != "__gxx_personality_v0" || off != 0 {
				t.Errorf("%s: personality %s+%#x", img.Machine().Name, name, off)
			}
			if name, _ := img.Place(arch.Vaddr(lsda)); name != "__TEXT,__gcc_except_tab" {
				t.Errorf("%s: data in %s", img.Machine().Name, name)
			}
		}
		found := false
		img.Symbols(func(x Symbol) bool {
			found = found || x.Name == "_Z3onei" && x.Value == 0x1000 && x.Kind == Func
			return true
		})
		if !found {
			t.Errorf("%s: the function has no symbol", img.Machine().Name)
		}
	}
	// Two sections that share their bytes: the second is refused.
	twice := machoObjects(t)[1]
	copyOf, _ := New("f", twice)
	x := copyOf.Section("__LD,__compact_unwind")
	for i := range 100 {
		y := *x
		y.index += 1000 * (i + 1)
		if _, _, err := copyOf.Relocate(&y); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Error(err)
			}
			break
		} else if i == 99 {
			t.Errorf("%d copies of a section of %d bytes take more than the file, of %d; want an error of Relocate before", i+1, x.Size, len(twice))
		}
	}
	b := machoObjects(t)[1]
	img, _ := New("f", b)
	s := img.Section("__LD,__compact_unwind")
	for _, c := range []struct {
		word0, word1 uint32
		cause        error
		text         string
	}{
		{0x1000, 3<<25 | 1<<27, ErrMalformed, "__LD,__compact_unwind+0x1000: relocation 0: outside of the section: malformed"},
		{0, 3<<25 | 1<<27 | 0xffff, ErrMalformed, "__LD,__compact_unwind+0x0: relocation 0: symbol 65535 of"},
		{0, 3<<25 | 9<<28, ErrUnsupported, "__LD,__compact_unwind+0x0: relocation 9: in unwind information: unsupported"},
		{0, 3<<25 | 5<<28, ErrUnsupported, "__LD,__compact_unwind+0x0: relocation 5: minus a section: unsupported"},
	} {
		d := append([]byte(nil), b...)
		binary.LittleEndian.PutUint32(d[s.macho.relocs:], c.word0)
		binary.LittleEndian.PutUint32(d[s.macho.relocs+4:], c.word1)
		img, err := New("f", d)
		if err != nil {
			t.Fatal(err)
		}
		_, bad, err := img.Relocate(img.Section("__LD,__compact_unwind"))
		if err != nil || len(bad) != 1 || !errors.Is(&bad[0], c.cause) || !strings.HasPrefix(bad[0].Error(), c.text) {
			t.Errorf("got %v %v, want %s", bad, err, c.text)
		}
	}
}
