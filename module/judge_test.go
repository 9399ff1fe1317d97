package module

import (
	"debug/elf"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

func perm(r, w, x bool) (p Perm) {
	for i, is := range []bool{x, w, r} {
		if is {
			p |= 1 << i
		}
	}
	return p
}

// sameAsStd compares an image with what debug/elf makes of the file.
func sameAsStd(t *testing.T, path string, img *Image, ref *elf.File) {
	t.Helper()
	if img.Is64() != (ref.Class == elf.ELFCLASS64) || img.Order() != ref.ByteOrder || img.typ != ref.Type || img.Linked() != (ref.Type != elf.ET_REL) || img.Machine().ELF != uint16(ref.Machine) || uint64(img.Entry()) != ref.Entry {
		t.Errorf("%s: header differs: %v", path, ref.FileHeader)
	}
	if len(img.Segments()) != len(ref.Progs) || len(img.Sections()) != len(ref.Sections) {
		t.Fatalf("%s: %d segments, %d sections, want %d and %d", path, len(img.Segments()), len(img.Sections()), len(ref.Progs), len(ref.Sections))
	}
	for i, p := range ref.Progs {
		kind := map[elf.ProgType]Kind{elf.PT_LOAD: Loaded, elf.PT_DYNAMIC: Dynamic, elf.PT_INTERP: Interpreter, elf.PT_PHDR: Headers, elf.PT_GNU_EH_FRAME: UnwindIndex, ptGNUSFrame: SFrame}[p.Type]
		want := Segment{kind, perm(p.Flags&elf.PF_R != 0, p.Flags&elf.PF_W != 0, p.Flags&elf.PF_X != 0), p.Off, arch.Vaddr(p.Vaddr), p.Filesz, p.Memsz,
			progHeader{p.Type, p.Flags, p.Align}, ""}
		if got := img.Segments()[i]; got != want {
			t.Errorf("%s: segment %d\n got %+v\nwant %+v", path, i, got, want)
		}
	}
	for i, s := range ref.Sections {
		// For a compressed section, debug/elf has the size of the contents in Size, and their alignment.
		want := Section{s.Name, perm(s.Flags&elf.SHF_ALLOC != 0, s.Flags&elf.SHF_WRITE != 0, s.Flags&elf.SHF_EXECINSTR != 0), arch.Vaddr(s.Addr), s.Offset,
			s.FileSize, s.Entsize, s.Type == elf.SHT_NOBITS, s.Flags&elf.SHF_COMPRESSED != 0, i, sectionHeader{s.Type, s.Flags, s.Link, s.Info, s.Addralign}, machoSectionHeader{}}
		got := inFile(img, img.Sections()[i])
		if i == 0 {
			got.Size, want.Size = 0, 0
		}
		if want.Compressed {
			want.elf.align = got.elf.align // of the contents, too
		}
		if s.Type == elf.SHT_NOBITS {
			want.Size = s.Size
		}
		if got != want {
			t.Errorf("%s: section %d\n got %+v\nwant %+v", path, i, got, want)
		}
	}
	want := map[bool][]elf.Symbol{}
	want[false], _ = ref.Symbols()
	want[true], _ = ref.DynamicSymbols()
	if len(want[false])+len(want[true]) > 20_000 {
		return
	}
	got := map[bool][]Symbol{}
	n := map[bool]int{}
	if err := img.Symbols(func(s Symbol) bool {
		if n[s.Dynamic]++; n[s.Dynamic] > 1 { // debug/elf leaves out the first
			got[s.Dynamic] = append(got[s.Dynamic], s)
		}
		return true
	}); err != nil {
		t.Errorf("%s: %v", path, err)
	}
	for dyn, list := range want {
		if len(got[dyn]) != len(list) {
			t.Errorf("%s: %d symbols, want %d", path, len(got[dyn]), len(list))
			continue
		}
		tab, ok := img.SymbolTable(dyn)
		if ok && tab.Len() != len(list)+1 {
			t.Errorf("%s: a table of %d symbols, want %d", path, tab.Len(), len(list)+1)
			ok = false
		}
		for i, w := range list {
			g := got[dyn][i]
			if ok && !tab.Thumb {
				tab.placed = nil
				e, want := tab.At(i+1), SymbolEntry{0, g.Kind, g.Bind, g.Section, w.Value, w.Size}
				if e.Name = 0; e != want || e.Section.Defined() != (w.Section != elf.SHN_UNDEF && (w.Section < elf.SHN_LORESERVE || w.Section == elf.SHN_XINDEX)) {
					t.Errorf("%s: symbol %d of its table: got %+v, want %+v", path, i+1, e, w)
				}
			}
			if !img.Linked() && w.Section != elf.SHN_UNDEF && int(w.Section) < len(img.secs) {
				w.Value += uint64(img.secs[w.Section].Addr)
			}
			if g.Name != w.Name || uint64(g.Value) != w.Value || g.Size != w.Size || byte(g.Kind) != byte(elf.ST_TYPE(w.Info)) || byte(g.Bind) != byte(elf.ST_BIND(w.Info)) || g.Section != SectionIndex(w.Section) {
				t.Errorf("%s: symbol %d: got %+v, want %+v", path, i, g, w)
			}
		}
	}
}

// inFile returns a section of img as the file has it: one of a file that is not linked has no address there.
func inFile(img *Image, s Section) Section {
	if !img.Linked() {
		s.Addr = 0
	}
	return s
}

// TestStd: files of this machine and of others, as debug/elf reads them.
func TestStd(t *testing.T) {
	oracle.Long(t)
	files := oracle.Spread(oracle.Binaries(t), 300)
	objs, _ := filepath.Glob("/usr/lib/gcc/*/*/*.o")
	more, _ := filepath.Glob("/usr/aarch64-linux-gnu/lib/lib[cm].so.6")
	crts, _ := filepath.Glob("/usr/*/lib/crt1.o")
	files = append(append(append(files, objs...), more...), crts...)
	n := 0
	for _, path := range files {
		ref, err := elf.Open(path)
		if err != nil {
			continue
		}
		img, err := Open(path)
		if err != nil {
			t.Errorf("%v", err)
			ref.Close()
			continue
		}
		sameAsStd(t, path, img, ref)
		img.Close()
		ref.Close()
		n++
	}
	t.Logf("%d files", n)
}

// TestReadelf: headers, program headers, sections and build IDs as readelf prints them.
func TestReadelf(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "readelf")
	files := oracle.Spread(oracle.Binaries(t), 60)
	objs, _ := filepath.Glob("/usr/lib/gcc/*/*/crt*.o")
	debug, _ := filepath.Glob("/usr/lib/debug/.build-id/*/*.debug")
	files = append(append(files, objs...), oracle.Spread(debug, 20)...)
	for _, path := range files {
		img := openFile(t, path)
		out, err := exec.Command("readelf", "-hlSnW", path).Output()
		if err != nil {
			continue
		}
		likeReadelf(t, path, string(out), img)
	}
	t.Logf("%d files", len(files))
}

var (
	idLine  = regexp.MustCompile(`Build ID: ([0-9a-f]+)`)
	secLine = regexp.MustCompile(`(?m)^  \[ *(\d+)\] (.*) ([0-9a-f]{8,16}) ([0-9a-f]{6,}) ([0-9a-f]{6,}) [0-9a-f]{2,} .{3} *(\d+) +(\d+) +(\d+)$`)
	segLine = regexp.MustCompile(`(?m)^  [A-Z0-9_+<>x:a-f ]+? +0x([0-9a-f]{6,}) 0x([0-9a-f]{8,16}) 0x[0-9a-f]{8,16} 0x([0-9a-f]+) 0x([0-9a-f]+) ([R ][W ][E ]) (0x)?([0-9a-f]+)$`)
)

func likeReadelf(t *testing.T, path, out string, img *Image) {
	t.Helper()
	hex64 := func(s string) uint64 { v, _ := strconv.ParseUint(s, 16, 64); return v }
	if m := idLine.FindStringSubmatch(out); m != nil && m[1] != hex.EncodeToString(img.BuildID()) {
		t.Errorf("%s: build ID %x, readelf says %s", path, img.BuildID(), m[1])
	} else if m == nil && img.BuildID() != nil {
		t.Errorf("%s: build ID %x, readelf says none", path, img.BuildID())
	}
	secs := secLine.FindAllStringSubmatch(out, -1)
	if len(secs) != len(img.Sections()) {
		t.Errorf("%s: %d sections, readelf says %d", path, len(img.Sections()), len(secs))
	} else {
		for i, m := range secs {
			s := img.Sections()[i]
			f := strings.Fields(m[2])
			if i > 0 && len(f) > 0 && f[0] != s.Name && len(s.Name) < 17 && !strings.Contains(s.Name, " ") ||
				hex64(m[3]) != uint64(inFile(img, s).Addr) || hex64(m[4]) != s.Off || hex64(m[5]) != s.Size || m[6] != fmt.Sprint(s.elf.link) || m[7] != fmt.Sprint(s.elf.info) {
				t.Errorf("%s: section %+v, readelf says %s", path, s, m[0])
			}
		}
	}
	segs := segLine.FindAllStringSubmatch(out, -1)
	if len(segs) != len(img.Segments()) {
		t.Errorf("%s: %d segments, readelf says %d", path, len(img.Segments()), len(segs))
		return
	}
	for i, m := range segs {
		s := img.Segments()[i]
		flags := ""
		for j, c := range "RWE" {
			if s.Perm&[]Perm{Read, Write, Exec}[j] != 0 {
				flags += string(c)
			} else {
				flags += " "
			}
		}
		if hex64(m[1]) != s.Off || hex64(m[2]) != uint64(s.Vaddr) || hex64(m[3]) != s.Size || hex64(m[4]) != s.MemSize || m[5] != flags || hex64(m[7]) != s.elf.align {
			t.Errorf("%s: segment %+v, readelf says %s", path, s, m[0])
		}
	}
}

// TestSynthetic: what readelf makes of the files that the other tests make up.
func TestSynthetic(t *testing.T) {
	oracle.Need(t, "readelf")
	for i, b := range seeds() {
		path := filepath.Join(t.TempDir(), fmt.Sprint(i))
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		out := oracle.Run(t, "readelf", "-hlSnW", path)
		likeReadelf(t, path, string(out), openFile(t, path))
	}
}
