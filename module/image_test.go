package module

import (
	"bytes"
	"compress/zlib"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/klauspost/compress/zstd"
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestForms: both classes and byte orders, and addresses that are not offsets.
func TestForms(t *testing.T) {
	for _, is64 := range []bool{false, true} {
		for _, o := range []binary.AppendByteOrder{binary.LittleEndian, binary.BigEndian} {
			b := small(is64, o)
			img, err := New("small", b)
			if err != nil {
				t.Fatalf("%v %v: %v", is64, o, err)
			}
			if img.Is64() != is64 || img.Order().String() != o.String() || img.Machine() != arch.AMD64 || img.typ != elf.ET_DYN || img.Entry() != 0x1234 || img.Interp() != "/lib/ld.so" {
				t.Errorf("%v %v: header: %v %v %v %v %v %q", is64, o, img.Is64(), img.Order(), img.Machine(), img.typ, img.Entry(), img.Interp())
			}
			if !bytes.Equal(img.BuildID(), smallID) || img.ID() != hex.EncodeToString(smallID) {
				t.Errorf("%v %v: build ID %x, ID %s", is64, o, img.BuildID(), img.ID())
			}
			if got, ok := img.At(0x700008, 3); !ok || string(got) != "the" {
				t.Errorf("At(0x700008) = %q, %v", got, ok)
			}
			data := img.Section(".data")
			if off, ok := img.VaddrToOff(0x700008); !ok || off != data.Off+8 {
				t.Errorf("VaddrToOff(0x700008) = %#x, %v, want %#x", off, ok, data.Off+8)
			}
			if v, ok := img.OffToVaddr(data.Off + 8); !ok || v != 0x700008 {
				t.Errorf("OffToVaddr = %#x, %v", v, ok)
			}
			for _, v := range []arch.Vaddr{0, 0x400fff, 0x401040, 0x6fffff, 0x70001a, ^arch.Vaddr(0)} { // 0x70001a: zeros that the file does not have
				if off, ok := img.VaddrToOff(v); ok {
					t.Errorf("VaddrToOff(%#x) = %#x", v, off)
				}
				if img.Tail(v) != nil {
					t.Errorf("Tail(%#x) is something", v)
				}
			}
			if b, ok := img.At(0x40103f, 2); ok {
				t.Errorf("%v %v: At(0x40103f, 2) = % x, true; want false: the segment ends at 0x401040", is64, o, b)
			}
			if b, ok := img.At(0x401000, -1); ok {
				t.Errorf("At(0x401000, -1) = % x, true; want false", b)
			}
			var got []Symbol
			if err := img.Symbols(func(s Symbol) bool { got = append(got, s); return true }); err != nil {
				t.Error(err)
			}
			if want := append([]Symbol{{}}, smallSyms...); !reflect.DeepEqual(got, want) {
				t.Errorf("symbols %v, want %v", got, want)
			}
			n := 0
			img.Symbols(func(Symbol) bool { n++; return false })
			if n != 1 {
				t.Errorf("%d symbols after the first was enough", n)
			}
		}
	}
}

// TestBuildID: by segment, by section, hashed where there is none.
func TestBuildID(t *testing.T) {
	o := binary.LittleEndian
	b := small(true, o)
	for _, c := range []struct {
		what string
		edit func(b []byte)
		want string
	}{
		{"segment", func(b []byte) { clear(b[40:48]); clear(b[60:64]) }, hex.EncodeToString(smallID)},
		{"section", func(b []byte) { clear(b[32:40]); clear(b[56:58]) }, hex.EncodeToString(smallID)},
		{"none", func(b []byte) { copy(b, bytes.ReplaceAll(b, []byte("GNU\x00"), []byte("ANY\x00"))) }, ""},
	} {
		b := bytes.Clone(b)
		c.edit(b)
		img, err := New(c.what, b)
		if err != nil {
			t.Fatalf("New of a file whose build ID is in its %s: %v", c.what, err)
		}
		if got := hex.EncodeToString(img.BuildID()); got != c.want {
			t.Errorf("%s: build ID %q, want %q", c.what, got, c.want)
		}
		if c.want == "" {
			is, ids := img.ID(), map[string]bool{}
			for i := range b[64:] { // each byte of what is read makes another name, the same bytes the same
				again := bytes.Clone(b)
				again[64+i] ^= 0x80
				if img, err := New(c.what, again); err == nil {
					ids[img.ID()] = true
				}
			}
			if same, _ := New(c.what, bytes.Clone(b)); same.ID() != is || !strings.HasPrefix(is, "sha256-") || len(ids) < len(b)/4 {
				t.Errorf("%s: ID %s and %s, and %d others of %d bytes", c.what, is, same.ID(), len(ids), len(b))
			}
		}
	}
}

// TestGoBuildID: Go's linker marks what it makes, as this test's own program.
func TestGoBuildID(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	img := openFile(t, self)
	if id := img.GoBuildID(); len(id) < 20 || bytes.Count(id, []byte("/")) < 1 {
		t.Errorf("this program's is %q", id)
	}
	for i, b := range seeds() {
		if img, err := New("seed", b); err == nil && img.GoBuildID() != nil {
			t.Errorf("seed %d: %q", i, img.GoBuildID())
		}
	}
}

// TestErrors: each names the file and the offset, and has a cause.
func TestErrors(t *testing.T) {
	b := small(true, binary.LittleEndian)
	edit := func(at int, v ...byte) []byte { c := bytes.Clone(b); copy(c[at:], v); return c }
	for _, c := range []struct {
		b     []byte
		cause error
		text  string
	}{
		{nil, ErrFormat, "f+0x0: header: not an ELF, Mach-O or PE file"},
		{[]byte("#!/bin/sh\n"), ErrFormat, "f+0x0: header: not an ELF, Mach-O or PE file"},
		{b[:10], ErrTruncated, "f+0x0: header: truncated"},
		{b[:63], ErrTruncated, "f+0x0: header: truncated"},
		{edit(4, 3), ErrUnsupported, "f+0x4: class 3: unsupported"},
		{edit(5, 0), ErrUnsupported, "f+0x5: byte order 0: unsupported"},
		{edit(54, 1, 0), ErrMalformed, "f+0x40: program header size 1: malformed"},
		{edit(56, 0xf0, 0xff), ErrTruncated, "f+0x40: 65520 program headers: truncated"},
	} {
		img, err := New("f", c.b)
		var e *Error
		if img != nil || !errors.Is(err, c.cause) || !errors.As(err, &e) || err.Error() != c.text {
			t.Errorf("got %v, want %s", err, c.text)
		}
	}
	// A damaged section header costs that section.
	c := bytes.Clone(b)
	shoff := binary.LittleEndian.Uint64(c[40:])
	binary.LittleEndian.PutUint64(c[shoff+6*64+24:], 1<<62)
	img, err := New("f", c)
	if err != nil {
		t.Fatal(err)
	}
	want := fmt.Sprintf("f+%#x: section 6 .symtab of 0x48 bytes: truncated", uint64(1<<62))
	if err := img.Symbols(func(Symbol) bool { return true }); err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
	if b, err := img.Data(img.Section(".text")); err != nil || len(b) != 64 {
		t.Errorf("the section next to a damaged one: %v", err)
	}
	// Damaged section headers leave the program headers, and what is said of them.
	word := func(at int, v uint64) []byte { return edit(at, binary.LittleEndian.AppendUint64(nil, v)...) }
	for _, c := range []struct {
		b     []byte
		cause error
		text  string
	}{
		{b, nil, ""},
		{word(40, 0), nil, ""},
		{word(40, 1<<62), ErrTruncated, "f+0x4000000000000000: section headers: truncated"},
		{b[:shoff], ErrTruncated, fmt.Sprintf("f+%#x: section headers: truncated", shoff)},
		{b[:len(b)-1], ErrTruncated, fmt.Sprintf("f+%#x: 9 section headers: truncated", shoff)},
		{edit(58, 63), ErrMalformed, fmt.Sprintf("f+%#x: section header size 63: malformed", shoff)},
		{word(int(shoff)+8*64+24, 1<<62), ErrTruncated, "f+0x4000000000000000: section names: truncated"},
	} {
		img, err := New("f", c.b)
		if err != nil {
			t.Fatal(err)
		}
		if err := img.SectionsErr(); c.cause == nil && err != nil || c.cause != nil && (!errors.Is(err, c.cause) || err.Error() != c.text) {
			t.Errorf("SectionsErr() = %v, want %s", err, c.text)
		}
		if len(img.Segments()) != 4 {
			t.Errorf("%s: %d segments, want 4", c.text, len(img.Segments()))
		}
	}
	// So do bytes of a segment behind the end.
	cut := img.Segments()[3]
	cut.Size = uint64(len(b))
	want = fmt.Sprintf("f+%#x: segment PT_LOAD of %#x bytes: truncated", cut.Off, len(b))
	if got, err := img.Contents(&cut); err == nil || err.Error() != want || !bytes.Equal(got, c[cut.Off:]) {
		t.Errorf("Contents: %d bytes, %v, want %s", len(got), err, want)
	}
	if img, err := Open(t.TempDir()); err == nil {
		t.Errorf("Open takes %s, a directory, and has %d bytes of it; want an error", img.Name(), len(img.Bytes()))
	}
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err == nil {
		if _, err := Open(fifo); err == nil || !strings.Contains(err.Error(), "not a regular file") {
			t.Errorf("FIFO: %v", err)
		}
	}
}

// TestExtended: more sections than the header can count.
func TestExtended(t *testing.T) {
	o := binary.LittleEndian
	e := synth{is64: true, order: o, typ: elf.ET_REL, machine: elf.EM_X86_64, pad: 70_000}
	e.secs = []synthSection{{name: ".first", typ: elf.SHT_PROGBITS, data: []byte("x")}}
	b := e.bytes()
	img, err := New("many", b)
	if err != nil {
		t.Fatal(err)
	}
	if n := len(img.Sections()); n != 70_003 {
		t.Errorf("%d sections, want 70003", n)
	}
	if img.Section(".first") == nil || img.Section(".shstrtab") == nil {
		t.Errorf(".first is %v, .shstrtab is %v; want both", img.Section(".first"), img.Section(".shstrtab"))
	}
	ref, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	sameAsStd(t, "many", img, ref)
}

// TestCompressed: what objcopy and clang compress comes out as it was.
func TestCompressed(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "objcopy")
	dir := t.TempDir()
	src, plain := filepath.Join(dir, "a.c"), filepath.Join(dir, "plain")
	var text strings.Builder
	for i := range 200 {
		fmt.Fprintf(&text, "int function%d(int a, int b) { return a*b+%d; }\n", i, i)
	}
	text.WriteString("int main(void) { return function1(1, 2); }\n")
	os.WriteFile(src, []byte(text.String()), 0o600)
	run(t, "gcc", "-g", "-o", plain, src)
	want := openFile(t, plain)
	compare := func(path string) {
		t.Helper()
		img := openFile(t, path)
		packed := 0
		for _, s := range want.Sections() {
			if !strings.HasPrefix(s.Name, ".debug_") {
				continue
			}
			got := img.Section(s.Name)
			if got == nil {
				t.Errorf("%s: no %s", path, s.Name)
				continue
			}
			if got.Compressed || strings.HasPrefix(got.Name, ".zdebug_") {
				packed++
			}
			a, err1 := want.Data(&s)
			b, err2 := img.Data(got)
			if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
				t.Errorf("%s %s: %v %v, %d bytes, want %d", path, s.Name, err1, err2, len(b), len(a))
			}
		}
		if packed == 0 {
			t.Errorf("%s: nothing is compressed", path)
		}
	}
	for _, kind := range []string{"zlib", "zlib-gnu", "zstd"} {
		out := filepath.Join(dir, kind)
		if b, err := exec.Command("objcopy", "--compress-debug-sections="+kind, plain, out).CombinedOutput(); err != nil {
			t.Logf("objcopy cannot do %s: %s", kind, b)
			continue
		}
		compare(out)
	}
	if _, err := exec.LookPath("clang-19"); err == nil {
		for _, kind := range []string{"zlib", "zstd"} {
			a, b := filepath.Join(dir, kind+".o"), filepath.Join(dir, kind+"-plain.o")
			run(t, "clang-19", "-g", "-c", "-gz="+kind, "-o", a, src)
			run(t, "clang-19", "-g", "-c", "-o", b, src)
			want = openFile(t, b)
			compare(a)
		}
	}
}

// TestBombs: what a compressed section may expand to is bounded by the file's size.
func TestBombs(t *testing.T) {
	o := binary.LittleEndian
	zeros := io.LimitReader(zeroReader{}, 64<<20)
	var z, zs bytes.Buffer
	w := zlib.NewWriter(&z)
	io.Copy(w, zeros)
	w.Close()
	enc, _ := zstd.NewWriter(&zs)
	io.Copy(enc, io.LimitReader(zeroReader{}, 64<<20))
	enc.Close()
	chdr := func(kind, size uint64) []byte {
		return o.AppendUint64(o.AppendUint64(o.AppendUint64(nil, kind), size), 1)
	}
	section := func(data ...[]byte) synthSection {
		return synthSection{name: ".debug_info", typ: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, data: bytes.Join(data, nil)}
	}
	wide := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0xa0} // a window of 1 GiB
	for _, c := range []struct {
		what string
		sec  synthSection
		want string
	}{
		{"zlib, promise kept", section(chdr(1, 64<<20), z.Bytes()), "would expand"},
		{"zstd, promise kept", section(chdr(2, 64<<20), zs.Bytes()), "would expand"},
		{"zlib, promise too small", section(chdr(1, 100), z.Bytes()), "after 100 bytes"},
		{"zstd, promise too small", section(chdr(2, 100), zs.Bytes()), "after 100 bytes"},
		{"promise absurd", section(chdr(1, 1<<63), z.Bytes()[:100]), "would expand"},
		{"zstd window", section(chdr(2, 100), wide, make([]byte, 64)), "decompressed 0 of 100 bytes"},
		{"cut", section(chdr(1, 1<<20), z.Bytes()[:40]), "unexpected EOF"},
		{"kind", section(chdr(9, 1000)), "compression 9: unsupported"},
		{"header", section([]byte{1, 0, 0}), "compression header: truncated"},
		{"old", synthSection{name: ".zdebug_info", typ: elf.SHT_PROGBITS, data: append([]byte("ZLIB\xff\xff\xff\xff\xff\xff\xff\xff"), z.Bytes()[:64]...)}, "would expand"},
	} {
		e := synth{is64: true, order: o, secs: []synthSection{c.sec}}
		img, err := New("bomb", e.bytes())
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err = img.Data(img.Section(".debug_info"))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), "bomb+0x") {
			t.Errorf("%s: %v", c.what, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 24<<20 {
			t.Errorf("%s: %d bytes allocated", c.what, n)
		}
	}
	// Many sections share one budget.
	e := synth{is64: true, order: o}
	three := section(chdr(1, 3<<20), deflate(make([]byte, 3<<20)))
	e.secs = []synthSection{three, three, three, three}
	img, _ := New("bombs", e.bytes())
	good := 0
	for i := range img.secs {
		if b, err := img.Data(&img.secs[i]); err == nil && len(b) == 3<<20 {
			good++
		}
	}
	if good == 0 || good == 4 {
		t.Errorf("%d of 4 sections of 3 MiB from a file of %d bytes", good, img.Size())
	}
}

type zeroReader struct{}

func (zeroReader) Read(b []byte) (int, error) { clear(b); return len(b), nil }

func deflate(b []byte) []byte {
	var out bytes.Buffer
	w := zlib.NewWriter(&out)
	w.Write(b)
	w.Close()
	return out.Bytes()
}

// TestNoSections: what the program headers tell is enough for the dynamic symbols.
func TestNoSections(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "readelf")
	dir := t.TempDir()
	src := filepath.Join(dir, "a.c")
	os.WriteFile(src, []byte("int puts(const char *);\nint one(void) { return puts(\"1\"); }\nint two(void) { return one(); }\n"), 0o600)
	builds := [][]string{{"gcc"}, {"gcc", "-Wl,--hash-style=sysv"}, {"gcc", "-Wl,--hash-style=gnu"}}
	if _, err := exec.LookPath("aarch64-linux-gnu-gcc"); err == nil {
		builds = append(builds, []string{"aarch64-linux-gnu-gcc"})
	}
	for i, cc := range builds {
		lib := filepath.Join(dir, fmt.Sprint(i, ".so"))
		run(t, cc[0], append(cc[1:], "-shared", "-fPIC", "-nostdlib", "-o", lib, src)...)
		whole := openFile(t, lib)
		b, err := os.ReadFile(lib)
		if err != nil {
			t.Fatal(err)
		}
		clear(b[40:48]) // e_shoff
		cut, err := New(lib, b)
		if err != nil {
			t.Fatal(err)
		}
		if cut.Sections() != nil || !bytes.Equal(cut.BuildID(), whole.BuildID()) || whole.BuildID() == nil {
			t.Errorf("%v: %d sections, build ID %x, want %x", cc, len(cut.Sections()), cut.BuildID(), whole.BuildID())
		}
		names := func(img *Image) (out []string) {
			img.Symbols(func(s Symbol) bool {
				if s.Dynamic {
					out = append(out, fmt.Sprintf("%s %#x %d %v %v", s.Name, s.Value, s.Size, s.Kind, s.Bind))
				}
				return true
			})
			return out
		}
		if a, b := names(whole), names(cut); len(a) < 4 || !reflect.DeepEqual(a, b) {
			t.Errorf("%v: dynamic symbols\n got %q\nwant %q", cc, b, a)
		}
	}
}

// TestVDSO: it opens, names its functions and has a build ID.
func TestVDSO(t *testing.T) {
	img, err := VDSO()
	if errors.Is(err, ErrUnsupported) {
		oracle.Lacks(t, "a vDSO")
	}
	if err != nil {
		t.Fatal(err)
	}
	found := false
	img.Symbols(func(s Symbol) bool {
		found = found || strings.Contains(s.Name, "clock_gettime")
		return true
	})
	if !found || img.BuildID() == nil {
		t.Errorf("clock_gettime: %v, build ID %x", found, img.BuildID())
	}
	// By its program headers alone, too.
	b := bytes.Clone(img.Bytes())
	clear(b[40:48])
	img, err = New("[vdso]", b)
	if err != nil {
		t.Fatal(err)
	}
	found = false
	var all []string
	img.Symbols(func(s Symbol) bool {
		found = found || strings.Contains(s.Name, "clock_gettime")
		all = append(all, s.Name)
		return true
	})
	if !found {
		t.Errorf("without section headers: no clock_gettime, but %q", all)
	}
}

// TestTruncatedLater: a file that shrinks while it is mapped is an error of the guarded work.
func TestTruncatedLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	b := append(small(true, binary.LittleEndian), make([]byte, 1<<20)...)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	for what, f := range map[string]func() error{
		"ID":      func() error { img.hash(); return nil },
		"Symbols": func() error { return img.Symbols(func(Symbol) bool { return true }) },
		"read":    func() error { _ = bytes.Count(img.Bytes(), []byte{1}); return nil },
	} {
		if err := Guard(f); !errors.Is(err, ErrTruncated) {
			t.Errorf("%s: %v", what, err)
		}
	}
	want := errors.New("its own")
	if err := Guard(func() error { return want }); err != want {
		t.Errorf("Guard = %v, want %v", err, want)
	}
	defer func() {
		if p := recover(); p != "other" {
			t.Errorf("Guard swallowed a panic that is none of its business: recovered %v, want other", p)
		}
	}()
	Guard(func() error { panic("other") })
}

// TestClosed: a closed image is empty.
func TestClosed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	os.WriteFile(path, small(true, binary.LittleEndian), 0o600)
	img, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(img.Close(), img.Close()); err != nil {
		t.Error(err)
	}
	exercise(img)
}

// TestConcurrent: an image is safe for concurrent use. The race detector judges.
func TestConcurrent(t *testing.T) {
	o := binary.LittleEndian
	data := deflate(bytes.Repeat([]byte("abc"), 1000))
	hdr := o.AppendUint64(o.AppendUint64(o.AppendUint64(nil, 1), 3000), 1)
	e := synth{is64: true, order: o, secs: []synthSection{{name: ".debug_x", typ: elf.SHT_PROGBITS, flags: elf.SHF_COMPRESSED, data: append(hdr, data...)}}}
	img, err := New("f", e.bytes())
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			exercise(img)
			if b, err := img.Data(img.Section(".debug_x")); err != nil || len(b) != 3000 {
				t.Errorf("%d bytes, %v", len(b), err)
			}
		})
	}
	wg.Wait()
}

func openFile(t testing.TB, path string) *Image {
	t.Helper()
	img, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	oracle.Run(t, name, args...)
}

func TestKindOf(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		head string
		want FileKind
	}{
		"exec":    {"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00", LinkedFile},
		"shared":  {"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00", LinkedFile},
		"big":     {"\x7fELF\x01\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03", LinkedFile},
		"object":  {"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00", ObjectFile},
		"core":    {"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00", UnknownFile},
		"short":   {"\x7fELF\x02\x01\x01", UnknownFile},
		"text":    {"#!/bin/sh\necho hello world\n", UnknownFile},
		"lib.a":   {archiveMagic, ArchiveFile},
		"thin.a":  {thinMagic, ArchiveFile},
		"vmlinuz": {string(bzImage([]byte("payload"), 9)), ExpandedFile},
		"m.ko.xz": {"\xfd7zXZ\x00", ExpandedFile},
		"m.xz":    {"\xfd7zXZ\x00", UnknownFile},
		"e.ko.xz": {"", UnknownFile},
		"m.ko.gz": {"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x00", ObjectFile},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(c.head), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := KindOf(path); got != c.want || IsLinked(path) != (got == LinkedFile) || IsArchive(path) != (got == ArchiveFile) {
			t.Errorf("KindOf(%s) = %v, want %v", name, got, c.want)
		}
	}
}
