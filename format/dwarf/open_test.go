package dwarf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// withoutSections returns a file whose header does not lead to its section headers.
func withoutSections(b []byte) []byte {
	b = bytes.Clone(b)
	clear(b[0x28:0x30]) // e_shoff
	clear(b[0x3c:0x40]) // e_shnum, e_shstrndx
	return b
}

// TestCut: what a truncated file has lost is an error with a position, and what it has left is read.
func TestCut(t *testing.T) {
	whole := openImage(t, compileC(t))
	all := whole.Bytes()
	segs := whole.Segments()
	segment := func(is func(module.Segment) bool) module.Segment { return segs[slices.IndexFunc(segs, is)] }
	hdr := segment(func(s module.Segment) bool { return s.Kind == module.UnwindIndex })
	load := segment(func(s module.Segment) bool {
		return s.Kind == module.Loaded && s.Off <= hdr.Off && hdr.Off+hdr.Size <= s.Off+s.Size
	})
	eh := whole.Section(".eh_frame")
	if eh.Off < load.Off || eh.Off+eh.Size > load.Off+load.Size || eh.Off < hdr.Off+hdr.Size {
		t.Fatalf(".eh_frame at %#x does not lie behind .eh_frame_hdr in its segment", eh.Off)
	}
	shoff := binary.LittleEndian.Uint64(all[0x28:])
	cutHdr := fmt.Sprintf(`cut\+%#x: segment PT_GNU_EH_FRAME of %#x bytes: truncated`, hdr.Off, hdr.Size)
	cutLoad := fmt.Sprintf(`cut\+%#x: segment PT_LOAD of %#x bytes: truncated`, load.Off, load.Size)
	cutHeaders := fmt.Sprintf(`cut\+%#x: .*section headers: truncated`, shoff)
	want, _ := openFrames(t, whole).Build(Both)
	const none, some, every = 0, 1, 2
	for _, c := range []struct {
		what     string
		sections bool
		keep     uint64
		err      string
		rows     int
	}{
		{"behind the program headers", false, 0x40 + 0x38*uint64(len(segs)), cutHdr, none},
		{"at .eh_frame_hdr", false, hdr.Off, cutHdr, none},
		{"in its pointer", false, hdr.Off + 6, cutHdr, none},
		{"in its table", false, hdr.Off + hdr.Size - 1, cutHdr, none},
		{"at .eh_frame", false, eh.Off, cutLoad, none},
		{"in its second half", false, eh.Off + eh.Size/2, cutLoad, some},
		{"at its terminator", false, eh.Off + eh.Size - 4, cutLoad, every},
		{"in its segment's last byte", false, load.Off + load.Size - 1, cutLoad, every},
		{"behind its segment", false, load.Off + load.Size, "^$", every},
		{"not", false, uint64(len(all)), "^$", every},
		{"at .eh_frame_hdr, with section headers", true, hdr.Off, cutHeaders, none},
		{"in .eh_frame, with section headers", true, eh.Off + eh.Size/2, cutHeaders, some},
		{"at the section headers", true, shoff, cutHeaders, every},
		{"in the first section header", true, shoff + 63, cutHeaders, every},
		{"in the last section header", true, uint64(len(all)) - 1, cutHeaders, every},
		{"not, with section headers", true, uint64(len(all)), "^$", every},
	} {
		b := all
		if !c.sections {
			b = withoutSections(all)
		}
		img, err := module.New("cut", b[:c.keep:c.keep])
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(img)
		text := ""
		if err != nil {
			text = err.Error()
		}
		if !regexp.MustCompile(c.err).MatchString(text) || err != nil && !errors.Is(err, module.ErrTruncated) {
			t.Errorf("cut %s: %v, want %s", c.what, err, c.err)
		}
		got, _ := f.Build(Both)
		ok := len(got.Rows) == 0
		switch c.rows {
		case some:
			ok = len(got.Rows) > 0 && len(got.Rows) < len(want.Rows)
		case every:
			ok = lines(t, got) == lines(t, want)
		}
		if !ok {
			t.Errorf("cut %s: %d rows of %d", c.what, len(got.Rows), len(want.Rows))
		}
	}
	for n := 0; n < len(all); n += 1 + len(all)/499 {
		img, err := module.New("cut", all[:n:n])
		if err == nil {
			_, err = Open(img)
		}
		if err == nil {
			t.Errorf("cut to %d of %d bytes, and nothing said", n, len(all))
		}
	}
}

// TestWrongHeaders: program headers and a .eh_frame_hdr that lead nowhere.
func TestWrongHeaders(t *testing.T) {
	whole := openImage(t, compileC(t))
	segs := whole.Segments()
	at := slices.IndexFunc(segs, func(s module.Segment) bool { return s.Kind == module.UnwindIndex })
	hdr := segs[at].Off
	ph := 0x40 + 0x38*uint64(at)
	for _, c := range []struct {
		what string
		off  uint64
		b    []byte
		err  string
	}{
		{"version", hdr, []byte{9}, `f: .eh_frame_hdr\+0x0: version: unsupported`},
		{"pointer to .eh_frame", hdr + 4, []byte{0, 0, 0, 0x70}, `f: .eh_frame_hdr\+0x4: malformed: no segment has .eh_frame, at 0x7`},
		{"offset of the segment", ph + 8, []byte{0, 0, 0, 0, 0, 0, 0, 0x80}, `f\+0x80+: segment PT_GNU_EH_FRAME of .*: truncated`},
		{"size of the segment", ph + 32, bytes.Repeat([]byte{0xff}, 8), `f\+.*: segment PT_GNU_EH_FRAME of 0xffffffffffffffff bytes: truncated`},
	} {
		b := withoutSections(whole.Bytes())
		copy(b[c.off:], c.b)
		img, err := module.New("f", b)
		if err != nil {
			t.Fatal(err)
		}
		f, err := Open(img)
		if err == nil || !regexp.MustCompile(c.err).MatchString(err.Error()) || f == nil {
			t.Errorf("%s: %v, want %s", c.what, err, c.err)
		}
	}
}

// TestWithout: files without unwind information stay without an error.
func TestWithout(t *testing.T) {
	oracle.Need(t, "gcc", "objcopy", "eu-strip")
	dir := t.TempDir()
	source, bare := filepath.Join(dir, "a.c"), filepath.Join(dir, "bare")
	if err := os.WriteFile(source, []byte("void _start(void) { for (;;); }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	prog, debug, eu := compileC(t, "-g"), filepath.Join(dir, "debug"), filepath.Join(dir, "eu")
	for _, c := range [][]string{
		{"gcc", "-nostdlib", "-static", "-fno-asynchronous-unwind-tables", "-o", bare, source},
		{"objcopy", "--only-keep-debug", prog, debug},
		{"eu-strip", "-o", prog + ".stripped", "-f", eu, prog},
	} {
		oracle.Run(t, c[0], c[1:]...)
	}
	for _, path := range []string{bare, debug, eu} {
		img := openImage(t, path)
		images := []*module.Image{img}
		if path == bare {
			stripped, err := module.New("stripped", withoutSections(img.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			images = append(images, stripped)
		}
		for _, img := range images {
			f := openFrames(t, img)
			if x, ds := f.Build(Both); len(x.Rows) != 0 || len(ds) != 0 || f.Sizes() != (Sizes{}) {
				t.Errorf("%s: %d rows, %v, %+v", img.Name(), len(x.Rows), ds, f.Sizes())
			}
		}
	}
}
