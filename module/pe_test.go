package module

import (
	"bytes"
	"debug/pe"
	"encoding/hex"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// goldenPE is a small DLL.
const goldenPE = "../format/pe/testdata/amd64.dll"

// TestPE compares headers, sections and COFF symbols with what Go's debug/pe reads, exports and the debug directory with llvm-readobj.
func TestPE(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "llvm-readobj-19", "clang-19", "lld-link-19")
	dir := t.TempDir()
	paths := []string{goldenPE}
	for _, c := range []struct {
		triple string
		args   []string
	}{{"x86_64-pc-windows-msvc", []string{"/debug"}}, {"aarch64-pc-windows-msvc", nil}, {"i386-pc-windows-msvc", nil}, {"x86_64-w64-mingw32", []string{"/debug:symtab,dwarf"}}, {"thumbv7-pc-windows-msvc", nil}} {
		obj, dll := filepath.Join(dir, "a.o"), filepath.Join(dir, c.triple+".dll")
		src := "__declspec(dllexport) int data = 4; int zeros[3000]; __declspec(dllexport) int f(int a) { return a + data + zeros[a]; } static int g(int a) { return f(a) + 1; } int (*volatile p)(int) = g;\n" +
			"__attribute__((section(\".a_long_name_of_a_section\"))) int far = 3;\n"
		clang := exec.Command("clang-19", "--target="+c.triple, "-O1", "-g", "-c", "-x", "c", "-o", obj, "-")
		clang.Stdin = strings.NewReader(src)
		if out, err := clang.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		link := append([]string{"/dll", "/noentry", "/nodefaultlib", "/out:" + dll, obj}, c.args...)
		oracle.Run(t, "lld-link-19", link...)
		paths = append(paths, dll)
	}
	symbols, exports, ids := 0, 0, 0
	for _, path := range paths {
		img, err := Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		ref, err := pe.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		var base, entry uint64
		var rva, size uint32
		switch o := ref.OptionalHeader.(type) {
		case *pe.OptionalHeader64:
			base, entry, rva = o.ImageBase, o.ImageBase+uint64(o.AddressOfEntryPoint), o.DataDirectory[3].VirtualAddress
			size = o.SizeOfImage
		case *pe.OptionalHeader32:
			base, entry, rva = uint64(o.ImageBase), uint64(o.ImageBase)+uint64(o.AddressOfEntryPoint), o.DataDirectory[3].VirtualAddress
			size = o.SizeOfImage
		}
		machine := map[uint16]string{0x8664: "x86_64-windows", 0xaa64: "aarch64-windows", 0x14c: "i386", 0x1c4: "arm"}[ref.Machine]
		if uint64(img.Entry()) != entry || img.Machine().Name != machine || !img.Linked() || !IsLinked(path) || img.Format() != "PE" || len(img.Sections()) != len(ref.Sections) || img.SectionsErr() != nil {
			t.Errorf("%s: entry %#x, want %#x; machine %s, want %s; %d sections, want %d; %v", path, img.Entry(), entry, img.Machine().Name, machine, len(img.Sections()), len(ref.Sections), img.SectionsErr())
		}
		if stamp, have, ok := img.Stamp(); stamp != ref.TimeDateStamp || have != size || !ok {
			t.Errorf("%s: Stamp: %#x, %#x, %v; want %#x, %#x", path, stamp, have, ok, ref.TimeDateStamp, size)
		}
		for i, s := range img.Sections() {
			r := ref.Sections[i]
			want := uint64(min(r.Size, r.VirtualSize))
			if s.Name != r.Name || uint64(s.Addr) != base+uint64(r.VirtualAddress) || !s.Empty && (s.Off != uint64(r.Offset) || s.Size != want) || s.Empty != (r.Size == 0) {
				t.Errorf("%s: section %d: %+v, want %+v", path, i, s, r.SectionHeader)
			}
			if b, ok := img.At(s.Addr, int(min(s.Size, 16))); !s.Empty && (!ok || len(b) == 0) {
				t.Errorf("%s: section %s is not at its address", path, s.Name)
			}
		}
		var table *Segment
		for i := range img.Segments() {
			if s := &img.Segments()[i]; s.Kind == Functions {
				table = s
			}
		}
		if (table != nil) != (rva != 0) || table != nil && uint64(table.Vaddr) != base+uint64(rva) {
			t.Errorf("%s: the exception directory is at %v, want %#x", path, table, rva)
		}
		got := map[string]uint64{}
		dynamic := map[string]uint64{}
		if err := img.Symbols(func(s Symbol) bool {
			if s.Dynamic {
				dynamic[strings.Clone(s.Name)] = uint64(s.Value)
			} else {
				got[strings.Clone(s.Name)] = uint64(s.Value)
			}
			return true
		}); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		for _, s := range ref.Symbols {
			if s.SectionNumber <= 0 || s.StorageClass != 2 && s.StorageClass != 3 || s.Name == ref.Sections[s.SectionNumber-1].Name {
				continue
			}
			symbols++
			if v, ok := got[s.Name]; !ok || v != base+uint64(ref.Sections[s.SectionNumber-1].VirtualAddress)+uint64(s.Value) && s.StorageClass == 2 {
				t.Errorf("%s: symbol %s: %#x, %v; want %+v", path, s.Name, v, ok, s)
			}
		}
		out := oracle.Run(t, "llvm-readobj-19", "--coff-exports", "--coff-debug-directory", path)
		for _, m := range regexp.MustCompile(`(?s)Export \{.*?Name: (\w+)\n.*?RVA: 0x([0-9A-F]+)\n`).FindAllStringSubmatch(string(out), -1) {
			exports++
			if v := dynamic[m[1]]; fmt.Sprintf("%X", v-base) != m[2] {
				t.Errorf("%s: export %s is at %#x, want %s", path, m[1], v, m[2])
			}
		}
		if m := regexp.MustCompile(`PDBGUID: \{([0-9A-F-]+)\}\n\s*PDBAge: (\d+)`).FindStringSubmatch(string(out)); m != nil {
			ids++
			want := strings.ToLower(strings.ReplaceAll(m[1], "-", "")) + "0000000" + m[2]
			if id := hex.EncodeToString(img.BuildID()); id != want || img.ID() != want {
				t.Errorf("%s: ID %s, want %s", path, id, want)
			}
		} else if img.BuildID() != nil || !strings.HasPrefix(img.ID(), "sha256-") {
			t.Errorf("%s: ID %s", path, img.ID())
		}
		ref.Close()
		img.Close()
	}
	if symbols == 0 || exports == 0 || ids == 0 {
		t.Errorf("%d symbols, %d exports, %d IDs", symbols, exports, ids)
	}
	t.Logf("%d symbols, %d exports, %d IDs", symbols, exports, ids)
}

// TestLoadedPE: an image read from memory is that of its file, and each section is where its address is. What memory lacks is an error.
func TestLoadedPE(t *testing.T) {
	img, err := Open(goldenPE)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	stamp, size, _ := img.Stamp()
	base, b := img.pe.base, make([]byte, size)
	for _, s := range img.load {
		copy(b[s.Vaddr-base:], img.b[s.Off:s.Off+s.Size])
	}
	got, err := LoadedPE("memory", bytes.Clone(b))
	if err != nil {
		t.Fatal(err)
	}
	if time, in, ok := got.Stamp(); time != stamp || in != size || !ok || !bytes.Equal(got.BuildID(), img.BuildID()) || len(got.secs) != len(img.secs) || len(img.secs) == 0 {
		t.Fatalf("Stamp %#x, %#x, %v, want %#x, %#x; build ID %x, want %x; %d sections, want %d", time, in, ok, stamp, size, got.BuildID(), img.BuildID(), len(got.secs), len(img.secs))
	}
	for i, s := range got.secs {
		w := img.secs[i]
		if s.Name != w.Name || s.Addr != w.Addr || s.Perm != w.Perm || s.Off != uint64(s.Addr-base) || s.Size < w.Size || !bytes.Equal(b[s.Off:][:w.Size], img.b[w.Off:][:w.Size]) {
			t.Errorf("section %d: %+v, of the file %+v", i, s, w)
		}
	}
	for n := range b { // up to the last section
		if cut, err := LoadedPE("cut", bytes.Clone(b[:n])); (err == nil) != (n > int(img.secs[len(img.secs)-1].Addr-base)) {
			t.Fatalf("%#x of %#x bytes: %v, %v; the last section is at %#x", n, len(b), cut, err, img.secs[len(img.secs)-1].Addr-base)
		}
	}
	elf, err := VDSO()
	if err != nil {
		oracle.Lacks(t, err.Error())
	}
	if _, err := LoadedPE("[vdso]", bytes.Clone(elf.b)); !errors.Is(err, ErrFormat) {
		t.Errorf("LoadedPE of ELF: %v, want %v", err, ErrFormat)
	}
	if time, in, ok := elf.Stamp(); ok {
		t.Errorf("ELF has the stamp %#x, %#x", time, in)
	}
}

// TestByCOFF: each machine of a PE image has a number of its own, or ELF's description.
func TestByCOFF(t *testing.T) {
	for machine, name := range map[uint16]string{0x8664: "x86_64-windows", 0xaa64: "aarch64-windows", 0x14c: "i386", 0x1c4: "arm", 0x200: "machine-512"} {
		if got := arch.ByCOFF(machine).Name; got != name {
			t.Errorf("%#x: %s, want %s", machine, got, name)
		}
	}
}
