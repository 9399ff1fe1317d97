package store

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
)

var walking = native.Options{Layout: native.Page, Deref: native.Slice}

// getNative returns the shell's machine code, which must come from want and be of o.
func getNative(t *testing.T, s *Store, o native.Options, want Origin) *native.Code {
	t.Helper()
	img := shell(t)
	c, from, err := s.Native(img, o)
	if err != nil || c == nil {
		t.Fatalf("Native: %v, %v", c, err)
	}
	if from != want || c.ID() != img.ID() || c.Layout() != o.Layout || c.Deref() != o.Deref {
		t.Fatalf("Native: from %v, %s, %v, %v; want from %v, %s, %v, %v", from, c.ID(), c.Layout(), c.Deref(), want, img.ID(), o.Layout, o.Deref)
	}
	return c
}

func stat(t *testing.T, path string) fs.FileInfo {
	t.Helper()
	st, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

// TestKeepsNative: machine code is made once, and what comes from disk is proven as what was built.
func TestKeepsNative(t *testing.T) {
	dir := t.TempDir()
	s := open2(t, dir)
	built := getNative(t, s, walking, Built)
	path := onlyFile(t, dir)
	first := stat(t, path)
	if first.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, want 0600", first.Mode())
	}
	getNative(t, s, walking, Memory)
	defer runtime.KeepAlive(built)
	again := open2(t, dir)
	mapped := getNative(t, again, walking, Disk)
	if now := stat(t, path); !os.SameFile(first, now) || !first.ModTime().Equal(now.ModTime()) {
		t.Errorf("the file was written again: %v, %v", first.ModTime(), now.ModTime())
	}
	if want := (Stats{Mapped: 1}); again.Stats() != want {
		t.Errorf("%+v, want %+v", again.Stats(), want)
	}
	if !bytes.Equal(built.Bytes(), mapped.Bytes()) {
		got, want, same := mapped.Bytes(), built.Bytes(), 0
		for same < min(len(got), len(want)) && got[same] == want[same] {
			same++
		}
		t.Errorf("what is mapped is not what was built: %d bytes, want %d, of which the first %d are the same", len(got), len(want), same)
	}
	f, err := format.Open(shell(t))
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := f.Rows()
	if err := native.Verify(mapped, ref, 1); err != nil {
		t.Error(err)
	}
	// Another kind is another file, and so is the table.
	getNative(t, again, native.Options{Layout: native.Tree, Deref: native.Self}, Built)
	get(t, again, Built)
	if list, err := filepath.Glob(filepath.Join(dir, "*-own-*")); err != nil || len(list) != 3 {
		t.Errorf("the cache holds %v, %v; want three files", list, err)
	}
}

// TestRefusesNative: a file that is damaged, of another module, or that others could have written is made again.
func TestRefusesNative(t *testing.T) {
	dir := t.TempDir()
	getNative(t, open2(t, dir), walking, Built)
	path := onlyFile(t, dir)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := format.Open(shell(t))
	if err != nil {
		t.Fatal(err)
	}
	foreign := func(o native.Options) []byte {
		b, c, err := BuildNative(f, o)
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		return b
	}
	id := shell(t).ID()
	write := func(b []byte) func() error {
		return func() error {
			os.Remove(path)
			return os.WriteFile(path, b, 0o600)
		}
	}
	flipped := func(at int) func() error {
		b := bytes.Clone(good)
		b[at] ^= 0x10
		return write(b)
	}
	for _, c := range []struct {
		what string
		do   func() error
	}{
		{"empty", write(nil)},
		{"cut", write(good[:len(good)/2])},
		{"longer", write(append(bytes.Clone(good), 0))},
		{"the first byte changed", flipped(0)},
		{"a byte of its code changed", flipped(len(good) / 2)},
		{"the last byte changed", flipped(len(good) - 1)},
		{"of another module", write(foreign(native.Options{Layout: walking.Layout, Deref: walking.Deref, ID: "00" + id[2:]}))},
		{"of another layout", write(foreign(native.Options{Layout: native.Tree, Deref: walking.Deref, ID: id}))},
		{"of another memory kind", write(foreign(native.Options{Layout: walking.Layout, Deref: native.Self, ID: id}))},
		{"writable by the group", func() error { return os.Chmod(path, 0o620) }},
		{"writable by all", func() error { return os.Chmod(path, 0o602) }},
		{"a link to a good file", func() error {
			other := filepath.Join(t.TempDir(), "good")
			return errors.Join(os.WriteFile(other, good, 0o600), os.Remove(path), os.Symlink(other, path))
		}},
		{"a FIFO", func() error { return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600)) }},
		{"another user's", func() error { return os.Chown(path, os.Geteuid()+1, -1) }},
	} {
		t.Run(c.what, func(t *testing.T) {
			if err := c.do(); errors.Is(err, fs.ErrPermission) {
				t.Skipf("this test lacks the right to give a file away: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			bad := stat(t, path)
			s := open2(t, dir)
			getNative(t, s, walking, Built)
			if want := (Stats{Built: 1, Rejected: 1}); s.Stats() != want {
				t.Errorf("%+v, want %+v", s.Stats(), want)
			}
			now := stat(t, path)
			if os.SameFile(bad, now) || now.Mode() != 0o600 {
				t.Errorf("the bad file is still there, or the new one has mode %v, want 0600", now.Mode())
			}
			if b, err := os.ReadFile(path); err != nil || !bytes.Equal(b, good) {
				t.Errorf("what was made again is not what was there: %v", err)
			}
			getNative(t, open2(t, dir), walking, Disk)
		})
	}
}

// TestUnkeptNative: a cache that cannot be written costs time only.
func TestUnkeptNative(t *testing.T) {
	unkept := func(t *testing.T, s *Store, cause error) {
		t.Helper()
		had := getNative(t, s, walking, Built)
		defer runtime.KeepAlive(had)
		if want := (Stats{Built: 1, Unkept: 1}); s.Stats() != want || !errors.Is(s.Err(), cause) {
			t.Errorf("%+v, %v; want %+v, %v", s.Stats(), s.Err(), want, cause)
		}
		getNative(t, s, walking, Memory)
	}
	t.Run("refused", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir)
		if err == nil {
			t.Errorf("Open takes %s, of mode %v, which all may write to; want an error", dir, stat(t, dir).Mode())
		}
		had := getNative(t, s, walking, Built)
		getNative(t, s, walking, Memory)
		runtime.KeepAlive(had)
		if list, _ := os.ReadDir(dir); len(list) != 0 {
			t.Errorf("it holds %v", list)
		}
	})
	t.Run("removed", func(t *testing.T) {
		dir := t.TempDir()
		s := open2(t, dir)
		if err := os.Remove(dir); err != nil {
			t.Fatal(err)
		}
		unkept(t, s, fs.ErrNotExist)
	})
	t.Run("not to be written", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.Chmod(dir, 0o500); err != nil {
			t.Fatal(err)
		}
		cause := error(fs.ErrPermission)
		if os.Geteuid() == 0 { // modes do not bind root
			if err := unix.Mount("none", dir, "tmpfs", unix.MS_RDONLY, "size=4k,mode=700"); err != nil {
				t.Skipf("this test lacks the right to mount a file system: %v", err)
			}
			defer unix.Unmount(dir, unix.MNT_DETACH)
			cause = unix.EROFS
		}
		unkept(t, open2(t, dir), cause)
	})
}

// TestNoneNative: a module without unwind information has no machine code.
func TestNoneNative(t *testing.T) {
	img, err := module.New("none", bareELF())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if c, from, err := open2(t, dir).Native(img, walking); c != nil || from != None || err != nil {
		t.Errorf("Native: %v, %v, %v; want nothing", c, from, err)
	}
	if list, _ := os.ReadDir(dir); len(list) != 0 {
		t.Errorf("the cache holds %v", list)
	}
}
