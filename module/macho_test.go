package module

import (
	"bytes"
	"debug/macho"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// smallMachO is a program with two sections, one of them without bytes, four symbols, an ID and an entry point.
func smallMachO(is64 bool, o binary.AppendByteOrder, typ uint32) []byte {
	var b []byte
	u32 := func(v ...uint32) {
		for _, v := range v {
			b = o.AppendUint32(b, v)
		}
	}
	word := func(v ...uint64) {
		for _, v := range v {
			if is64 {
				b = o.AppendUint64(b, v)
			} else {
				b = o.AppendUint32(b, uint32(v))
			}
		}
	}
	name := func(s string) { b = append(b, s+strings.Repeat("\x00", 16-len(s))...) }
	const text = 0x400
	magic, cmd, cpu, seg, sec, nlist, base := uint32(0xfeedface), uint32(lcSegment), uint32(cpuX86), uint32(56), uint32(68), uint64(12), uint64(0x1000)
	if is64 {
		magic, cmd, cpu, seg, sec, nlist, base = 0xfeedfacf, lcSegment64, cpuX86|cpu64, 72, 80, 16, 0x1_0000_0000
	}
	u32(magic, cpu, 3, typ, 4, seg+2*sec+24+24+24, 0)
	if is64 {
		u32(0)
	}
	u32(cmd, seg+2*sec)
	name("__TEXT")
	word(base, 0x2000, 0, text+0x100)
	u32(5, 5, 2, 0)
	for i, s := range []string{"__text", "__bss"} {
		name(s)
		name("__TEXT")
		word(base+text+0x40*uint64(i), 0x40)
		u32(uint32(text*(1-i)), 2, 0, 0, []uint32{sInstructions, sZerofill}[i], 0, 0)
		if is64 {
			u32(0)
		}
	}
	names := "\x00_main\x00data\x00_undefined\x00"
	u32(lcSymtab, 24, text+0x40, 4, text+0x40+4*uint32(nlist), uint32(len(names)))
	u32(lcUUID, 24)
	b = append(b, "0123456789abcdef"...)
	u32(lcMain, 24)
	b = o.AppendUint64(o.AppendUint64(b, text+4), 0)
	b = append(b, make([]byte, text+0x40-len(b))...)
	for _, s := range []struct {
		name      uint32
		typ, sect byte
		v         uint64
	}{{1, nSect | nExt, 1, base + text}, {7, nSect, 2, base + text + 0x40}, {12, nExt, 0, 0}, {1, 0x24, 1, base + text}} {
		u32(s.name)
		b = o.AppendUint16(append(b, s.typ, s.sect), 0)
		word(s.v)
	}
	return append(b, names...)
}

// universal puts programs into one file.
func universal(all ...[]byte) []byte {
	o := binary.BigEndian
	b := o.AppendUint32([]byte("\xca\xfe\xba\xbe"), uint32(len(all)))
	at := uint32(0x100)
	for _, x := range all {
		lo := binary.LittleEndian
		b = o.AppendUint32(o.AppendUint32(b, lo.Uint32(x[4:])), lo.Uint32(x[8:]))
		b = o.AppendUint32(o.AppendUint32(o.AppendUint32(b, at), uint32(len(x))), 8)
		at += (uint32(len(x)) + 0xff) &^ 0xff
	}
	for _, x := range all {
		b = append(append(b, make([]byte, -len(b)&0xff)...), x...)
	}
	return b
}

// machoSeeds are small Mach-O files of every form.
func machoSeeds() (out [][]byte) {
	for _, is64 := range []bool{false, true} {
		for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			out = append(out, smallMachO(is64, o, mhExecute))
		}
	}
	o := binary.LittleEndian
	return append(out, smallMachO(true, o, mhObject), universal(smallMachO(true, o, mhDylib), smallMachO(false, o, mhDylib)))
}

// TestMachO: what a small file says, in both classes and byte orders.
func TestMachO(t *testing.T) {
	for _, is64 := range []bool{false, true} {
		for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			img, err := New("f", smallMachO(is64, o, mhExecute))
			if err != nil {
				t.Fatal(err)
			}
			m, base := arch.EM_386, arch.Vaddr(0x1000)
			if is64 {
				m, base = arch.EM_X86_64, 0x1_0000_0000
			}
			var got strings.Builder
			fmt.Fprintln(&got, img.Format(), img.Is64() == is64, img.Order().String() == o.String(), img.Linked(), img.Machine().ELF == uint16(m), img.Entry()-base, img.ID(), img.SectionsErr())
			for _, s := range img.Segments() {
				fmt.Fprintf(&got, "segment %d %d %#x %#x %#x %#x\n", s.Kind, s.Perm, s.Vaddr-base, s.MemSize, s.Off, s.Size)
			}
			for _, s := range img.Sections() {
				b, err := img.Data(&s)
				fmt.Fprintf(&got, "section %q %q %d %#x %#x %v %d %v\n", s.Name, s.Common(), s.Perm, s.Addr&0xfff, s.Size, s.Empty, len(b), err)
			}
			err = img.Symbols(func(s Symbol) bool {
				fmt.Fprintf(&got, "symbol %s %#x %d %d %d\n", s.Name, s.Value-base, s.Kind, s.Bind, s.Section)
				return true
			})
			table, ok := img.SymbolTable(false)
			fmt.Fprintln(&got, err, ok, table.Len(), string(table.Names[table.At(1).Name:][:4]), table.At(2))
			want := `Mach-O true true true true 1028 30313233343536373839616263646566 <nil>
segment 1 5 0x0 0x2000 0x0 0x500
section "" "" 0 0x0 0x0 false 0 <nil>
section "__TEXT,__text" ".text" 5 0x400 0x40 false 64 <nil>
section "__TEXT,__bss" ".bss" 4 0x440 0x40 true 0 <nil>
symbol main 0x400 2 1 1
symbol data 0x440 1 0 2
<nil> true 3 main {7 1 0 2 %d 0}
`
			if want = fmt.Sprintf(want, base+0x440); got.String() != want {
				t.Errorf("64 bits %v, %v:\n%s\nwant\n%s", is64, o, got.String(), want)
			}
			if img.Section(".text") != img.Section("__TEXT,__text") || img.Section(".text") == nil || img.Section("__text") != nil {
				t.Errorf("64 bits %v, %v: sections are not found by both names\n.text: %+v\n__TEXT,__text: %+v, want the same\n__text: %+v, want none",
					is64, o, img.Section(".text"), img.Section("__TEXT,__text"), img.Section("__text"))
			}
		}
	}
	object, err := New("f", smallMachO(true, binary.LittleEndian, mhObject))
	if err != nil || object.Linked() {
		t.Errorf("an object file: linked %v, %v", object.Linked(), err)
	}
}

// TestUniversal: the program for this machine is taken, or the first; the others can be had, and errors have offsets in the whole file.
func TestUniversal(t *testing.T) {
	x64 := smallMachO(true, binary.LittleEndian, mhDylib)
	arm := bytes.Clone(x64)
	arm[4] = cpuARM
	arm[8] = arm64e
	i386 := smallMachO(false, binary.LittleEndian, mhDylib)
	b := universal(i386, x64, arm)
	img, err := New("f", b)
	if err != nil {
		t.Fatal(err)
	}
	list := img.Slices()
	if len(list) != 3 || list[0].Name != "i386" || list[1].Name != "x86_64" || list[2].Name != "arm64e" || list[0].Taken {
		t.Fatalf("slices %+v", list)
	}
	for _, s := range list {
		x, err := img.Slice(s)
		if err != nil || x.Machine().ELF != s.machine || uint64(x.Size()) != s.Size {
			t.Errorf("%s: %v", s.Name, err)
		}
		if s.Taken && x.Machine() != img.Machine() {
			t.Errorf("%s is taken, and the image is of %s", s.Name, img.Machine().Name)
		}
	}
	if img, err := New("f", universal(i386)); err != nil || img.Machine().ELF != arch.EM_386 || !img.Slices()[0].Taken {
		t.Errorf("a file with one program of another machine: %v", err)
	}
	for _, c := range []struct {
		b     []byte
		cause error
		text  string
	}{
		{[]byte("\xca\xfe\xba\xbe\x00\x00\x00\x37"), ErrFormat, "f+0x0: universal header: not an ELF, Mach-O or PE file"}, // Java 11
		{b[:40], ErrTruncated, "f+0x0: universal header: truncated"},
		{b[:0x100], ErrMalformed, "f+0x8: none of 3 programs is there: malformed"},
		{append(universal(i386)[:0x104], make([]byte, 2000)...), ErrUnsupported, "f+0x104: processor 0x0: unsupported"},
		{i386[:20], ErrTruncated, "f+0x0: header: truncated"},
		{i386[:40], ErrTruncated, "f+0x1c: load commands of 0x108 bytes: truncated"},
	} {
		_, err := New("f", c.b)
		var e *Error
		if !errors.Is(err, c.cause) || !errors.As(err, &e) || err.Error() != c.text {
			t.Errorf("got %v, want %s", err, c.text)
		}
	}
}

// TestMachOLinked: programs and libraries are linked, object files and classes of Java are not.
func TestMachOLinked(t *testing.T) {
	o := binary.LittleEndian
	for i, c := range []struct {
		b    []byte
		want FileKind
	}{
		{smallMachO(true, o, mhExecute), LinkedFile}, {smallMachO(false, binary.BigEndian, mhDylib), LinkedFile}, {smallMachO(true, o, mhObject), ObjectFile},
		{universal(smallMachO(true, o, mhExecute)), LinkedFile}, {universal(smallMachO(true, o, mhObject)), ObjectFile},
		{[]byte("\xca\xfe\xba\xbe\x00\x00\x00\x37 and a class of Java"), UnknownFile},
	} {
		path := filepath.Join(t.TempDir(), "f")
		if err := os.WriteFile(path, c.b, 0o644); err != nil {
			t.Fatal(err)
		}
		if got := KindOf(path); got != c.want {
			t.Errorf("%d: %v, want %v", i, got, c.want)
		}
	}
}

// TestMachOStd: shipped libraries and programs, as debug/macho reads them.
func TestMachOStd(t *testing.T) {
	files := oracle.MachO(t, oracle.Few(3, 100))
	if len(files) < oracle.Few(3, 43) {
		t.Errorf("%d files", len(files))
	}
	for _, path := range files {
		img, err := Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		if len(img.Slices()) == 0 {
			sameAsStdMachO(t, path, img)
		}
		for _, s := range img.Slices() {
			x, err := img.Slice(s)
			if err != nil {
				t.Error(err)
				continue
			}
			sameAsStdMachO(t, path+" "+s.Name, x)
		}
		img.Close()
	}
}

func sameAsStdMachO(t *testing.T, path string, img *Image) {
	t.Helper()
	ref, err := macho.NewFile(bytes.NewReader(img.Bytes()))
	if err != nil {
		t.Errorf("%s: debug/macho: %v", path, err)
		return
	}
	if err := img.SectionsErr(); err != nil || img.Machine().ELF != machoMachine(uint32(ref.Cpu)) || img.Linked() != (ref.Type != macho.TypeObj) {
		t.Errorf("%s: %v %v", path, img.Machine(), err)
	}
	segs := img.Segments()
	for _, l := range ref.Loads {
		switch l := l.(type) {
		case *macho.Segment:
			if len(segs) == 0 {
				t.Fatalf("%s: segment %s is missing", path, l.Name)
			}
			s := segs[0]
			segs = segs[1:]
			if s.macho != l.Name || uint64(s.Vaddr) != l.Addr || s.MemSize != l.Memsz || s.Off != l.Offset || s.Size != l.Filesz || s.Perm != machoPerm(l.Prot) {
				t.Errorf("%s: %+v, want %+v", path, s, l.SegmentHeader)
			}
		case macho.LoadBytes:
			if b := l.Raw(); img.Order().Uint32(b) == lcUUID && !bytes.Equal(b[8:24], img.BuildID()) {
				t.Errorf("%s: ID % x, want % x", path, img.BuildID(), b[8:24])
			}
		}
	}
	if len(segs) > 0 || len(ref.Sections)+1 != len(img.Sections()) {
		t.Fatalf("%s: %d segments and %d sections too many", path, len(segs), len(img.Sections())-1-len(ref.Sections))
	}
	for i, want := range ref.Sections {
		s := img.Sections()[i+1]
		if s.Name != want.Seg+","+want.Name || uint64(s.Addr) != want.Addr || s.Size != want.Size || s.Off != uint64(want.Offset) && !s.Empty {
			t.Errorf("%s: %+v, want %+v", path, s, want.SectionHeader)
		}
		if b, err := img.Data(&s); err != nil {
			t.Error(err)
		} else if ref, err := io.ReadAll(want.Open()); !s.Empty && (err != nil || !bytes.Equal(b, ref)) {
			t.Errorf("%s: the bytes of %s differ: %v", path, s.Name, err)
		}
	}
	var want []macho.Symbol
	if ref.Symtab != nil {
		for _, s := range ref.Symtab.Syms {
			if s.Type&nStab == 0 && (s.Type&nType == nSect || s.Type&nType == nAbs) {
				want = append(want, s)
			}
		}
	}
	i := 0
	err = img.Symbols(func(s Symbol) bool {
		name := ""
		if i < len(want) { // debug/macho has left out the underscore of names with a dot
			if name = want[i].Name; !strings.Contains(name, ".") {
				name = strings.TrimPrefix(name, "_")
			}
		}
		if i >= len(want) || s.Name != name || uint64(s.Value) != want[i].Value || want[i].Sect != 0 && int(s.Section) != int(want[i].Sect) {
			t.Errorf("%s: symbol %d: %+v", path, i, s)
			return false
		}
		i++
		return true
	})
	if err != nil || i != len(want) {
		t.Errorf("%s: %d of %d symbols: %v", path, i, len(want), err)
	}
	if table, _ := img.SymbolTable(false); len(want) > 0 && table.Len() != len(want)+1 {
		t.Errorf("%s: a table of %d symbols, want %d", path, table.Len()-1, len(want))
	}
}
