package modules

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// TestReread: code of a file that is not mapped any more is what it was, up to the end of its segment; where the path has another file, there is none.
func TestReread(t *testing.T) {
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sh")
	write := func() {
		t.Helper()
		if err := os.WriteFile(path+".new", b, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	write()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	c := Interpreted().code(path, img)
	if len(c.Segments) == 0 {
		t.Fatalf("the code of %s has no segments: %+v", path, c)
	}
	s := c.Segments[0]
	var r reread
	defer r.keep("", nil)
	for _, v := range []arch.Vaddr{s.Vaddr, s.Vaddr + 100, s.Vaddr + arch.Vaddr(s.Size) - 3} {
		var was, is [8]byte
		n := textOf(img, v, was[:])
		if again, ok := r.at(path, img.File(), c.Segments, v, is[:]); !ok || again != n || !bytes.Equal(was[:n], is[:n]) {
			t.Errorf("%#x: %d bytes, %v: %x; want %d: %x", v, again, ok, is, n, was)
		}
	}
	var to [8]byte
	if n, ok := r.at(path, img.File(), c.Segments, s.Vaddr+arch.Vaddr(s.Size), to[:]); ok {
		t.Errorf("there is code behind the segment, at %#x: %x; want none", uint64(s.Vaddr)+s.Size, to[:n])
	}
	write()
	if n, ok := r.at(path, img.File(), c.Segments, s.Vaddr, to[:]); ok {
		t.Errorf("another file at %s, of the same %d bytes, was read: at %#x is %x; want nothing", path, len(b), uint64(s.Vaddr), to[:n])
	}
}
