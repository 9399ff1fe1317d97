package procfs

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFilled: holes are not counted, nor is space that was never written.
func TestFilled(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		what     string
		size     int64
		at       []int64
		allocate bool
		most     int64
	}{{"dense", 1 << 16, []int64{0}, false, 1 << 16}, {"a hole", 20 << 30, []int64{0}, false, 1 << 20}, {"two pieces", 20 << 30, []int64{0, 10 << 30}, false, 2 << 20},
		{"allocated", 8 << 20, []int64{0}, true, 1 << 20}} {
		f, err := os.Create(filepath.Join(dir, c.what))
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range c.at {
			f.WriteAt(make([]byte, 1<<16), at)
		}
		if err := f.Truncate(c.size); err != nil {
			t.Skipf("this test lacks a file system for a sparse file: %v", err)
		}
		if c.allocate && unix.Fallocate(int(f.Fd()), 0, 0, c.size) != nil {
			continue
		}
		f.Sync()
		n, err := Filled(f)
		if err != nil || n < 1<<16*int64(len(c.at)) || n > c.most {
			t.Errorf("%s: %d bytes, %v; want at most %d", c.what, n, err, c.most)
		}
		if at, _ := f.Seek(0, 1); at != 0 {
			t.Errorf("%s: the file's offset is now %d", c.what, at)
		}
		f.Close()
	}
}

// TestReadable and private: the modes of a file, and of the directories that lead to it, as the kernel judges them.
func TestReadable(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test lacks the right to give files away: run it as root")
	}
	top, err := os.MkdirTemp("/tmp", "readable")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	for _, c := range []struct {
		what              string
		dir, file         os.FileMode
		uid, gid          int
		readable, private bool
	}{
		{"all", 0o755, 0o644, 0, 0, true, true},
		{"root's directory", 0o700, 0o644, 0, 0, false, true},
		{"root's file", 0o755, 0o600, 0, 0, false, true},
		{"their own", 0o755, 0o400, 65534, 0, true, false},
		{"their own, not for them", 0o755, 0o044, 65534, 65534, false, false},
		{"their group's", 0o755, 0o640, 0, 65534, true, true},
		{"not for their group", 0o755, 0o604, 0, 65534, false, true},
		{"written by others", 0o755, 0o646, 0, 0, true, false},
		{"in a directory of all", 0o777, 0o644, 0, 0, true, false},
		{"in a sticky directory", 0o777 | os.ModeSticky, 0o644, 0, 0, true, true},
	} {
		dir := filepath.Join(top, c.what)
		path := filepath.Join(dir, "x")
		os.Mkdir(dir, 0o755)
		os.WriteFile(path, []byte("x"), 0o600)
		os.Chown(path, c.uid, c.gid)
		os.Chmod(path, c.file)
		os.Chmod(dir, c.dir)
		os.Chmod(top, 0o755)
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if got := Readable(f, 65534, 65534); got != c.readable {
			t.Errorf("%s: readable %v", c.what, got)
		}
		if got := Private(f); got != c.private {
			t.Errorf("%s: private %v", c.what, got)
		}
		os.Remove(path)
		if Private(f) || Readable(f, 65534, 65534) || !Readable(f, 0, 0) {
			t.Errorf("%s: the judgement of a file without a name", c.what)
		}
		f.Close()
	}
}

// TestProcFiles: those of /proc have modes that do not say who may read what is in them.
func TestProcFiles(t *testing.T) {
	for _, path := range []string{"/proc/kallsyms", "/proc/self/mountinfo", "/proc/self/mem"} {
		if f, err := Open(path); err == nil {
			f.Close()
			t.Errorf("%s was opened", path)
		}
	}
	f, err := Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}
