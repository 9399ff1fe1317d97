package module

import (
	"debug/pe"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// coffObjects are object files that clang++-19 made of "int ext(int); struct S { ~S(); int a[40]; }; inline int both(int a) { S s; return ext(a) + s.a[a]; }
// int one(int a) { return both(a) + both(a + 1); } int twice(int a) { return 2 * a; } int last(int a) { char b[64]; b[a & 63] = ext(a); return
// ext(b[a & 31]); }" with -O2 -fexceptions -fno-inline -mno-incremental-linker-compatible, for Windows. There are two sections of one name.
func coffObjects(t testing.TB) (out [][]byte) {
	for _, machine := range []string{"x86_64", "arm64"} {
		b, err := os.ReadFile(filepath.Join("testdata", machine+".coff.o"))
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, b)
	}
	return out
}

// judgeCOFF compares sections, symbols and what relocations of data lead to with what Go's debug/pe reads. It returns how many relocations there were.
func judgeCOFF(t *testing.T, path string) (applied int) {
	img, err := Open(path)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer img.Close()
	ref, err := pe.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ref.Close()
	if img.Linked() || KindOf(path) != ObjectFile || img.Format() != "COFF" || len(img.Sections()) != len(ref.Sections) || img.SectionsErr() != nil {
		t.Errorf("%s: %d sections, want %d; %v", path, len(img.Sections()), len(ref.Sections), img.SectionsErr())
		return 0
	}
	at := map[string]uint64{}
	if err := img.Symbols(func(s Symbol) bool { at[strings.Clone(s.Name)] = uint64(s.Value); return true }); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	for _, s := range ref.Symbols {
		if s.SectionNumber <= 0 || s.StorageClass != 2 || img.secs[s.SectionNumber-1].Perm == 0 {
			continue
		}
		if want := uint64(img.secs[s.SectionNumber-1].Addr) + uint64(s.Value); at[s.Name] != want {
			t.Errorf("%s: symbol %s is at %#x, want %#x", path, s.Name, at[s.Name], want)
		}
	}
	end := arch.Vaddr(firstPlace)
	for i := range img.secs {
		s, r := &img.secs[i], ref.Sections[i]
		name, _, _ := strings.Cut(s.Name, "#")
		if name != r.Name || s.Size != uint64(r.Size) || !s.Empty && s.Off != uint64(r.Offset) {
			t.Errorf("%s: section %d: %+v, want %+v", path, i, s, r.SectionHeader)
		}
		if s.Perm == 0 || s.Size == 0 {
			continue
		}
		if s.Addr < end || img.Section(s.Name) != s {
			t.Errorf("%s: section %s is at %#x; the one before ends at %#x", path, s.Name, uint64(s.Addr), uint64(end))
		}
		if got, off := img.Place(s.Addr + 1); got != s.Name || off != 1 && s.Size > 0 {
			t.Errorf("%s: section %s is called %s+%#x", path, s.Name, got, off)
		}
		end = s.Addr + arch.Vaddr(s.Size) + 1
		b, bad, err := img.Relocate(s)
		if err != nil || len(bad) > 0 {
			t.Errorf("%s: section %s: %v, %v", path, s.Name, err, bad)
			continue
		}
		raw, _ := r.Data()
		for _, x := range r.Relocs {
			size, from := coffField(img.machine, x.Type)
			if size != 4 {
				continue
			}
			got := binary.LittleEndian.Uint32(b[x.VirtualAddress:]) - binary.LittleEndian.Uint32(raw[x.VirtualAddress:])
			if from > 0 {
				got += uint32(s.Addr) + x.VirtualAddress + uint32(from)
			}
			sym := ref.COFFSymbols[x.SymbolTableIndex]
			full, _ := sym.FullName(ref.StringTable)
			want := sym.Value
			if sym.SectionNumber > 0 {
				want += uint32(img.secs[sym.SectionNumber-1].Addr)
			} else if name, off := img.Place(arch.Vaddr(got)); name == full && off == 0 {
				want = got
			}
			if got != want {
				t.Errorf("%s: %s+%#x: relocation %d leads to %#x, want %#x, %s", path, s.Name, x.VirtualAddress, x.Type, got, want, full)
			}
			applied++
		}
	}
	return applied
}

func TestCOFF(t *testing.T) {
	applied := 0
	for _, machine := range []string{"x86_64", "arm64"} {
		applied += judgeCOFF(t, filepath.Join("testdata", machine+".coff.o"))
	}
	if applied < 20 {
		t.Errorf("%d relocations", applied)
	}
}

// TestCOFFCompiled: as TestCOFF, of more than 65,535 relocations in a section, and of sections with long names.
func TestCOFFCompiled(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19")
	dir := t.TempDir()
	source := filepath.Join(dir, "a.c")
	text := "extern int x; int *const many[] = {" + strings.Repeat("&x,", 70_000) + "};\n__attribute__((section(\".a_long_name_of_a_section\"))) int far = 3;\n" +
		"int ext(int); int f(int a) { volatile int b[9]; b[a] = 1; return ext(a) + b[3] + far; }\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, triple := range []string{"x86_64-pc-windows-msvc", "aarch64-pc-windows-msvc", "x86_64-w64-mingw32", "i386-pc-windows-msvc", "i686-w64-mingw32", "thumbv7-pc-windows-msvc"} {
		object := filepath.Join(dir, triple+".o")
		oracle.Run(t, "clang-19", "--target="+triple, "-O1", "-g", "-ffunction-sections", "-c", "-o", object, source)
		if judgeCOFF(t, object) == 0 {
			t.Errorf("%s: few relocations", triple)
		}
		img, err := Open(object)
		if err != nil {
			t.Fatal(err)
		}
		many := 0
		for i := range img.secs {
			if img.pe.relocs[i].n != 70_000 {
				continue
			}
			b, bad, err := img.Relocate(&img.secs[i])
			if err != nil || len(bad) > 0 {
				t.Fatalf("%s: Relocate of section %d = %v, %v, want no errors", triple, i, bad, err)
			}
			word := int(img.machine.WordSize())
			for ; len(b) > 0; b = b[word:] {
				if name, off := img.Place(arch.Vaddr(number(b[:word], img.order))); strings.TrimPrefix(name, "_") == "x" && off == 0 { // i386 has the underscore
					many++
				}
			}
		}
		if many != 70_000 {
			t.Errorf("%s: %d of 70,000 pointers", triple, many)
		}
		img.Close()
	}
}

// TestCOFFDamaged: relocations that cannot be applied are listed; sections that share bytes or relocations are refused.
func TestCOFFDamaged(t *testing.T) {
	b := coffObjects(t)[0]
	img, err := New("f", b)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{10, 30, int(img.pe.symtab + coffSymbol*img.pe.nsyms - 1)} {
		if _, err := New("f", b[:n]); !errors.Is(err, ErrTruncated) {
			t.Errorf("%d of %d bytes: %v", n, len(b), err)
		}
	}
	image := append([]byte(nil), b...)
	image[16] = 1 // it has an optional header
	if _, err := New("f", image); !errors.Is(err, ErrFormat) {
		t.Errorf("an image without its DOS header: %v", err)
	}
	s := img.Section(".pdata")
	at := img.pe.relocs[s.index].at
	le := binary.LittleEndian
	for _, c := range []struct {
		off, symbol uint32
		typ         uint16
		cause       error
		text        string
	}{
		{0x10000, 0, 3, ErrMalformed, ".pdata+0x10000: relocation 3: outside of the section: malformed"},
		{0, 0xffff, 3, ErrMalformed, ".pdata+0x0: relocation 3: symbol 65535 of"},
		{0, 0, 10, ErrUnsupported, ".pdata+0x0: relocation 10: in unwind information: unsupported"},
	} {
		d := append([]byte(nil), b...)
		le.PutUint32(d[at:], c.off)
		le.PutUint32(d[at+4:], c.symbol)
		le.PutUint16(d[at+8:], c.typ)
		x, err := New("f", d)
		if err != nil {
			t.Fatal(err)
		}
		_, bad, err := x.Relocate(x.Section(".pdata"))
		if err != nil || len(bad) != 1 || !errors.Is(&bad[0], c.cause) || !strings.HasPrefix(bad[0].Error(), c.text) {
			t.Errorf("got %v %v, want %s", bad, err, c.text)
		}
	}
	for i := range 100_000 {
		y := *s
		y.index += 1000 * (i + 1)
		img.pe.relocs = append(img.pe.relocs, make([]relocs, y.index+1-len(img.pe.relocs))...)
		img.pe.relocs[y.index] = img.pe.relocs[s.index]
		if _, _, err := img.Relocate(&y); err != nil {
			if !errors.Is(err, ErrMalformed) {
				t.Error(err)
			}
			return
		}
		if i > 1000 {
			t.Fatalf("%d copies of a section of %d bytes take more than the file, of %d; want an error of Relocate before", i, s.Size, len(b))
		}
	}
}

// big makes an object file with a long header of one with a short header: all that lies behind the header moves, and symbols get longer.
func big(b []byte) []byte {
	le := binary.LittleEndian
	h, _ := readCOFFHead(b)
	const moved = coffBigHeader - coffHeader
	out := make([]byte, coffBigHeader, len(b)+moved+2*int(h.nsyms))
	copy(out, "\x00\x00\xff\xff\x02\x00")
	le.PutUint16(out[6:], h.machine)
	copy(out[12:], bigClass)
	le.PutUint32(out[44:], uint32(h.sections))
	le.PutUint32(out[48:], uint32(h.symtab)+moved)
	le.PutUint32(out[52:], uint32(h.nsyms))
	out = append(out, b[coffHeader:h.symtab]...)
	for i := range h.sections {
		s := out[coffBigHeader+peSection*i:]
		for _, field := range []int{20, 24} { // its contents, its relocations
			if v := le.Uint32(s[field:]); v != 0 {
				le.PutUint32(s[field:], v+moved)
			}
		}
	}
	at := h.symtab
	for aux := 0; at < h.symtab+coffSymbol*h.nsyms; at += coffSymbol {
		s := b[at:][:coffSymbol]
		if aux > 0 {
			out, aux = append(append(out, s...), 0, 0), aux-1
			continue
		}
		out = append(append(out, s[:12]...), s[12], s[13], 0, 0)
		if s[13] == 0xff {
			out[len(out)-2], out[len(out)-1] = 0xff, 0xff
		}
		out, aux = append(out, s[14:]...), int(s[17])
	}
	return append(out, b[at:]...)
}

// TestCOFFBig: an object file with a long header is the same as one with a short header..
func TestCOFFBig(t *testing.T) {
	for i, b := range coffObjects(t) {
		x, err := New("short", b)
		if err != nil {
			t.Fatal(err)
		}
		long := big(b)
		y, err := New("long", long)
		if err != nil {
			t.Fatal(err)
		}
		if x.Machine() != y.Machine() || len(x.Sections()) != len(y.Sections()) || y.Format() != "COFF" || y.Linked() || len(x.Starts()) != len(y.Starts()) || !Known(long) {
			t.Errorf("object %d: %d sections, want %d", i, len(y.Sections()), len(x.Sections()))
		}
		for k := range x.Sections() {
			s, r := &x.Sections()[k], &y.Sections()[k]
			a, _, _ := x.Relocate(s)
			c, bad, err := y.Relocate(r)
			if s.Name != r.Name || s.Addr != r.Addr || string(a) != string(c) || len(bad) > 0 || err != nil {
				t.Errorf("object %d: section %s at %#x is %s at %#x: %v %v", i, s.Name, uint64(s.Addr), r.Name, uint64(r.Addr), bad, err)
			}
		}
		symbols := func(img *Image) (list []string) {
			if err := img.Symbols(func(s Symbol) bool { list = append(list, fmt.Sprint(s)); return true }); err != nil {
				t.Error(err)
			}
			for i := range 40 {
				name, off := img.Place(img.layout.undef + arch.Vaddr(undefRoom*i))
				list = append(list, fmt.Sprint(name, off > 0))
			}
			return list
		}
		if got, want := symbols(y), symbols(x); !slices.Equal(got, want) || len(got) < 44 {
			t.Errorf("object %d: symbols\n got %q\nwant %q", i, got, want)
		}
		for n := range long {
			New("cut", long[:n:n])
		}
	}
	imported := []byte("\x00\x00\xff\xff\x00\x00\x64\x86" + strings.Repeat("\x00", 60)) // of a library: it has no code
	if Known(imported) {
		t.Errorf("Known takes an import for an object file: %.16x", imported)
	}
}

// TestCOFFBigJudge: clang's object file with more than 65,279 sections has a long header. Its functions are where llvm-nm has them.
func TestCOFFBigJudge(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "clang-19", "llvm-nm-19")
	dir := t.TempDir()
	source, object := filepath.Join(dir, "a.s"), filepath.Join(dir, "a.o")
	text := ".altmacro\n.macro one n\n\t.section .text$a\\n,\"xr\"\n\t.globl f\\n\nf\\n:\n\tcall\text\n\tret\n.endm\n.set i, 0\n.rept 66000\n\tone %i\n\t.set i, i+1\n.endr\n"
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "clang-19", "--target=x86_64-pc-windows-msvc", "-c", "-o", object, source)
	img, err := Open(object)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if img.pe.symbol != coffBigSymbol || KindOf(object) != ObjectFile || len(img.Sections()) < 66_000 {
		t.Fatalf("%d sections, symbols of %d bytes", len(img.Sections()), img.pe.symbol)
	}
	got := map[string]string{}
	img.Symbols(func(s Symbol) bool {
		name, off := img.Place(s.Value)
		got[strings.Clone(s.Name)] = fmt.Sprint(name, "+", off)
		return true
	})
	n := 0
	for line := range strings.Lines(string(oracle.Run(t, "llvm-nm-19", "--defined-only", object))) {
		f := strings.Fields(line)
		if len(f) != 3 || f[1] != "T" {
			continue
		}
		n++
		if want := ".text$a" + f[2][1:] + "+0"; got[f[2]] != want {
			t.Fatalf("%s is at %s, want %s", f[2], got[f[2]], want)
		}
	}
	if n != 66_000 {
		t.Errorf("%d functions", n)
	}
	t.Logf("%d sections, %d functions", len(img.Sections()), n)
}
