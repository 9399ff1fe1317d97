package kept

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestWrite: what was written is read and mapped as it was; what is no regular file, too long, or behind a link is not read, and nothing waits.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	Write(path, []byte("old"))
	Write(path, []byte("ab"), nil, []byte("cd"))
	if b, err := Read(path, 4); err != nil || string(b) != "abcd" {
		t.Errorf("Read = %q, %v", b, err)
	}
	b, unmap, err := Map(path, 4)
	if err != nil || !bytes.Equal(b, []byte("abcd")) {
		t.Fatalf("Map = %q, %v", b, err)
	}
	Write(path, []byte("efgh")) // does not change what is mapped
	if string(b) != "abcd" {
		t.Errorf("mapped, and then written anew: %q", b)
	}
	unmap()
	Write(filepath.Join(dir, "missing", "a"), []byte("lost"))
	os.Symlink("a", filepath.Join(dir, "link"))
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	Write(filepath.Join(dir, "empty"))
	for _, name := range []string{"link", "fifo", ".", "none"} {
		if b, err := Read(filepath.Join(dir, name), 100); err == nil {
			t.Errorf("Read(%s) = %q", name, b)
		}
	}
	if b, err := Read(path, 3); err == nil {
		t.Errorf("4 bytes, of which 3 may be read: %q", b)
	}
	if b, _, err := Map(filepath.Join(dir, "empty"), 100); err == nil {
		t.Errorf("Map of an empty file = %q", b)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".new-*")); left != nil {
		t.Errorf("left: %v", left)
	}
}

// TestPrune: the files go that were not used for longest, and no others.
func TestPrune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "[with] signs*")
	os.Mkdir(dir, 0o700)
	for i := range 5 {
		path := filepath.Join(dir, fmt.Sprint("x-", i))
		Write(path, make([]byte, 10))
		at := time.Now().Add(time.Duration(i-10) * time.Hour)
		os.Chtimes(path, at, at)
	}
	Write(filepath.Join(dir, "y-0"), make([]byte, 100))
	if _, err := Read(filepath.Join(dir, "x-1"), 10); err != nil { // is used
		t.Fatal(err)
	}
	Prune(dir, "x-", 39)
	var left []string
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{"x-1", "x-3", "x-4", "y-0"}; !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
	Prune(dir, "x-", 1000)
	Prune(filepath.Join(dir, "none"), "x-", 0)
	if more, _ := os.ReadDir(dir); len(more) != len(left) {
		t.Errorf("removed although there was room: %d of %d are left", len(more), len(left))
	}
}

// TestSweep: what a killed process left of a file goes when it is old, and nothing else does; to make room has the same effect.
func TestSweep(t *testing.T) {
	for name, sweep := range map[string]func(dir string){"Sweep": Sweep, "Prune": func(dir string) { Prune(dir, "x-", 1000) }} {
		dir := t.TempDir()
		for name, age := range map[string]time.Duration{".new-1": 0, ".new-2": 2 * abandoned, ".new": 2 * abandoned, "x-new": 2 * abandoned} {
			Write(filepath.Join(dir, name), []byte("x"))
			at := time.Now().Add(-age)
			os.Chtimes(filepath.Join(dir, name), at, at)
		}
		os.Mkdir(filepath.Join(dir, ".new-3"), 0o700)
		old := time.Now().Add(-2 * abandoned)
		os.Chtimes(filepath.Join(dir, ".new-3"), old, old)
		sweep(dir)
		var left []string
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			left = append(left, e.Name())
		}
		if want := []string{".new", ".new-1", ".new-3", "x-new"}; !slices.Equal(left, want) {
			t.Errorf("%s: left: %v, want %v", name, left, want)
		}
	}
}

// TestReadEnding: a file that ends otherwise is not read, however long it is.
func TestReadEnding(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	for text, want := range map[string]bool{"whole, end": true, "end": true, "nd": false, "": false, "end ": false, "whole": false} {
		Write(path, []byte(text))
		if b, err := ReadEnding(path, 100, []byte("end")); (err == nil) != want || want && string(b) != text {
			t.Errorf("%q: %q, %v", text, b, err)
		}
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skipf("this test lacks a file system for a sparse file: %v", err)
	}
	if b, err := ReadEnding(path, 1<<40, []byte("end")); err == nil {
		t.Errorf("%d bytes of a hole", len(b))
	}
}

// TestHoles: a file of any length can be made of nothing. It is refused before it takes memory. The same length of data is read and mapped, and so
// is a file with some holes: a file system that compresses makes them of zeros.
func TestHoles(t *testing.T) {
	const size = 4 << 20
	path := filepath.Join(t.TempDir(), "a")
	end := []byte("end")
	whole := append(bytes.Repeat([]byte{1}, size-len(end)), end...)
	Write(path, whole)
	if b, err := ReadEnding(path, size, end); err != nil || !bytes.Equal(b, whole) {
		t.Fatalf("%d bytes of data: %d are read, %v", size, len(b), err)
	}
	if b, unmap, err := Map(path, size); err != nil || !bytes.Equal(b, whole) {
		t.Fatalf("%d bytes of data: %d are mapped, %v", size, len(b), err)
	} else {
		unmap()
	}
	const part = 1 << 20
	for _, c := range []struct {
		what  string
		parts []int // those that are data, before the end
		read  bool
	}{
		{"a hole at the beginning", nil, false},
		{"a hole in the middle", []int{0}, false},
		{"two holes", []int{1}, false},
		{"a small hole at the beginning", []int{1, 2}, true},
		{"a small hole in the middle", []int{0, 1}, true},
	} {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		f.WriteAt(end, size-int64(len(end)))
		for _, n := range c.parts {
			f.WriteAt(whole[:part], int64(n)*part)
		}
		want, _ := os.ReadFile(path)
		at, err := f.Seek(0, unix.SEEK_HOLE)
		f.Close()
		if err != nil || at == size {
			t.Skipf("this test lacks a file system for a sparse file: %v", err)
		}
		if b, err := ReadEnding(path, size, end); (err == nil) != c.read || c.read && !bytes.Equal(b, want) {
			t.Errorf("%s: %d bytes are read, %v", c.what, len(b), err)
		}
		if b, unmap, err := Map(path, size); (err == nil) != c.read || c.read && !bytes.Equal(b, want) {
			t.Errorf("%s: %d bytes are mapped, %v", c.what, len(b), err)
		} else if err == nil {
			unmap()
		}
	}
}
