package module

import (
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// copyTo puts what is in a file into another one, in place where there is one.
func copyTo(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestChanged: a file that somebody writes to after it was opened is not the file that was opened, though its mapping follows.
func TestChanged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prog")
	copyTo(t, "/bin/ls", path)
	var l Locator
	defer l.Close()
	first, _, err := l.Find(path, "", 0)
	if err != nil {
		t.Fatal(err)
	}
	was := hex.EncodeToString(first.BuildID())
	first, _, err = l.Find(path, was, 0)
	if err != nil || first.Changed() {
		t.Fatalf("just opened: changed %v; %v", first.Changed(), err)
	}
	later := time.Now().Add(time.Second) // the clock of files may stand still for a while
	os.Chtimes(path, later, later)
	touched, _, err := l.Find(path, was, 0)
	if err != nil || touched == first || !first.Changed() || touched.Changed() {
		t.Errorf("touched: opened again %v, changed %v; %v", touched != first, first.Changed(), err)
	}
	copyTo(t, "/bin/sh", path)
	var other *ReplacedError
	if img, _, err := l.Find(path, was, 0); img != nil || !errors.As(err, &other) {
		t.Fatalf("another program was written into it: %v, %v", img, err)
	}
	if is, _, err := l.Find(path, other.Have, 0); err != nil || is.Changed() || hex.EncodeToString(is.BuildID()) != other.Have {
		t.Errorf("the other program: %v", err)
	}
	if !touched.Changed() {
		t.Error("what was open says that it has not changed")
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	copyTo(t, "/bin/ls", path) // another inode, or this one again
	if img, _, err := l.Find(path, was, 0); err != nil || hex.EncodeToString(img.BuildID()) != was {
		t.Errorf("the first program again, as another file: %v", err)
	}
}

// TestInode: a file that was recorded without a build ID is told from others by its device and inode.
func TestInode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "prog")
	copyTo(t, "/bin/ls", path)
	img, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	m, ok := mappingOf(img.b)
	if !ok {
		t.Fatal("the kernel does not say what is mapped")
	}
	st := &img.File().Stat_t
	var l Locator
	defer l.Close()
	for _, c := range []struct {
		what, id string
		replaced bool
	}{
		{"as mapped", Inode(m.Maj, m.Min, m.Inode, procfs.Stamp(st)), false},
		{"by stat", Inode(unix.Major(st.Dev), unix.Minor(st.Dev), st.Ino, 0), false},
		{"another inode", Inode(m.Maj, m.Min, m.Inode+1, 0), true},
		{"written to since", Inode(m.Maj, m.Min, m.Inode, procfs.Stamp(st)+1), true},
		{"another device", Inode(m.Maj, m.Min+1, m.Inode, 0), true},
	} {
		img, _, err := l.Find(path, c.id, os.Getpid())
		var other *ReplacedError
		if (img == nil) != c.replaced || errors.As(err, &other) != c.replaced {
			t.Errorf("%s, %s: found %v, %v", c.what, c.id, img != nil, err)
		}
	}
	for id, want := range map[string]bool{"": false, Another: false, Inode(1, 2, 3, 0): false, "0123456789abcdef": true} {
		if IsBuildID(id) != want {
			t.Errorf("%q is a build ID: %v, want %v", id, !want, want)
		}
	}
}

// TestLayered: on an overlay, a file counts as the recorded one unless another is at hand that surely is.
func TestLayered(t *testing.T) {
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, who may mount")
	}
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, name := range []string{"lower", "upper", "work", "merged"} {
		if err := os.Mkdir(at(name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	copyTo(t, "/bin/ls", at("lower/prog"))
	copyTo(t, "/bin/sh", at("lower/other"))
	if err := unix.Mount("overlay", at("merged"), "overlay", 0, "lowerdir="+at("lower")+",upperdir="+at("upper")+",workdir="+at("work")); err != nil {
		t.Skipf("this kernel lacks overlays of this file system: %v", err)
	}
	defer unix.Unmount(at("merged"), unix.MNT_DETACH)
	numbers := func(path string) string {
		img, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		return Inode(unix.Major(img.File().Dev), unix.Minor(img.File().Dev), img.File().Ino, 0)
	}
	var l Locator
	defer l.Close()
	path := at("merged/prog")
	for what, id := range map[string]string{"of the layer below": numbers(at("lower/prog")), "of the overlay": numbers(path), "nobody's": Inode(1, 2, 3, 0)} {
		if img, _, err := l.Find(path, id, 0); err != nil || img.Name() != path {
			t.Errorf("%s: %v", what, err)
		}
	}
	if img, _, err := l.Find(at("lower/prog"), numbers(at("lower/other")), 0); img != nil || err == nil {
		t.Errorf("on the file system below, another file is found: %v", err)
	}
}
