package store

import (
	"bytes"
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/module"
)

// poisoned copies a program, and changes its unwind information without its size: the CFA's offset in each CIE.
func poisoned(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	s := f.Section(".eh_frame")
	if s == nil {
		t.Fatalf("no .eh_frame among %d sections", len(f.Sections))
	}
	frames := b[s.Offset:][:s.Size]
	n := bytes.Count(frames, []byte{0x0c, 7, 8})
	if n == 0 {
		t.Skip("this test lacks a CIE of x86-64 that begins with DW_CFA_def_cfa: rsp+8")
	}
	copy(frames, bytes.ReplaceAll(frames, []byte{0x0c, 7, 8}, []byte{0x0c, 7, 40}))
	if err := os.WriteFile(to, b, 0o700); err != nil {
		t.Fatal(err)
	}
}

// TestPoisoned: a file with another's build ID, whose unwind information differs and has the same size, is in nobody's way: whoever owns it,
// whichever comes first, now or on disk, and when the real one is gone.
func TestPoisoned(t *testing.T) {
	real := "/bin/sh"
	bad := filepath.Join(t.TempDir(), "bad")
	poisoned(t, real, bad)
	open := func(path string) *module.Image {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { img.Close() })
		return img
	}
	want, _, err := new(Store).Table(open(real))
	if err != nil {
		t.Fatal(err)
	}
	wrong, _, err := new(Store).Table(open(bad))
	if err != nil || bytes.Equal(wrong.Bytes(), want.Bytes()) || open(bad).ID() != open(real).ID() {
		t.Fatalf("the poison does not work: %v", err)
	}
	for _, owner := range []int{0, 65534} {
		if os.Geteuid() == 0 {
			os.Chown(bad, owner, owner)
		}
		os.Chtimes(bad, time.Now(), time.Now())
		dir := t.TempDir()
		for range 3 { // of one process, and of later ones
			s := open2(t, dir)
			for path, is := range map[string]*compact.Table{bad: wrong, real: want} {
				if got, _, err := s.Table(open(path)); err != nil || !bytes.Equal(got.Bytes(), is.Bytes()) {
					t.Errorf("owner %d: %s has the table of another, %v", owner, path, err)
				}
			}
		}
		if os.Geteuid() == 0 && owner != 0 {
			if got := open2(t, dir).Kept(open(real).ID()); got == nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
				t.Errorf("owner %d: what is kept of %s is another's", owner, real)
			}
		}
	}
}

// TestRemembered: the hash of a file that nobody else can change is read once; a change in place, with the old time and size, is noticed; and a
// link in the cache that leads elsewhere is not followed.
func TestRemembered(t *testing.T) {
	defer func(d time.Duration) { settled = d }(settled)
	settled = time.Hour // no file here is so old
	// A change is later than the last one by the kernel's clock of files, whose ticks are at most 10 ms.
	const tick = 20 * time.Millisecond
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "program")
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	table := func() *compact.Table {
		t.Helper()
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		if !img.File().Private {
			t.Skip("this test lacks a temporary directory that is this user's and root's alone")
		}
		tab, _, err := open2(t, dir).Table(img)
		if err != nil {
			t.Fatal(err)
		}
		return tab
	}
	links := func() []string { l, _ := filepath.Glob(filepath.Join(dir, "at-*")); return l }
	want := bytes.Clone(table().Bytes())
	if l := links(); len(l) != 0 {
		t.Fatalf("a file that has just changed is remembered: %v", l)
	}
	settled = 0
	time.Sleep(tick)
	table()
	l := links()
	if len(l) != 1 {
		t.Fatalf("links %v, want one", l)
	}
	name, _ := os.Readlink(l[0])
	st, _ := os.Stat(path)
	poisoned(t, path, path)
	os.Chtimes(path, st.ModTime(), st.ModTime())
	if got := table(); bytes.Equal(got.Bytes(), want) {
		t.Errorf("a change of %s in place was not noticed: the table is the old one, of %d bytes, which %q leads to", path, len(want), links())
	}
	for _, to := range []string{"../" + filepath.Base(dir) + "/" + name, "/etc/passwd", "", strings.Replace(name, "-own-", "-own-0", 1), strings.Repeat("0", 40) + name[40:]} {
		os.Remove(path)
		os.WriteFile(path, b, 0o700)
		time.Sleep(tick)
		for _, l := range links() {
			os.Remove(l)
		}
		table()
		for _, l := range links() {
			os.Remove(l)
			os.Symlink(to, l)
		}
		if got := table(); !bytes.Equal(got.Bytes(), want) {
			t.Errorf("a link to %q", to)
		}
	}
}

// TestCutRemembered: of a file that cannot be opened whole, each call says so, though its table is on disk: no link remembers its hash.
func TestCutRemembered(t *testing.T) {
	defer func(d time.Duration) { settled = d }(settled)
	settled = 0
	dir, path := t.TempDir(), filepath.Join(t.TempDir(), "program")
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b[:len(b)-100], 0o700); err != nil { // the section headers are cut
		t.Fatal(err)
	}
	for _, from := range []Origin{Built, Disk} {
		img, err := module.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		if tab, got, err := open2(t, dir).Table(img); tab == nil || got != from || err == nil {
			t.Errorf("table %v, %v, error %v", tab != nil, got, err)
		}
	}
	if l, _ := filepath.Glob(filepath.Join(dir, "at-*")); len(l) != 0 {
		t.Errorf("remembered: %v", l)
	}
}
