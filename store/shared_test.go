package store

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

var update = flag.Bool("update", false, "write runtime/store.h")

// TestHeader: the drop-ins look where this package does.
func TestHeader(t *testing.T) {
	want := fmt.Sprintf(`/* Made by "go test ./store -run TestHeader -update" of package store, which names these. Do not edit. */
#ifndef UNSPOOL_STORE_H
#define UNSPOOL_STORE_H

#define US_STORE_VAR   %q /* the variable that names other directories */
#define US_STORE_DIRS  "%s:%s" /* of all users */
#define US_STORE_MAGIC %#xu /* ends a table's file */

#endif
`, SharedVar, MachineDir, PackageDir, magic)
	const path = "../runtime/store.h"
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s: %v\n got %s\nwant %s", path, err, got, want)
	}
}

// asRoot says that a test writes what only root can.
func asRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, who writes the store of all users")
	}
}

// machineDir makes the store of all users in a directory, with the tables of files, and has all Stores that are opened in this test look there.
func machineDir(t testing.TB, paths ...string) (dir string) {
	t.Helper()
	asRoot(t)
	dir = filepath.Join(t.TempDir(), "machine")
	fill := openMachine(t, dir)
	for _, path := range paths {
		keepAt(t, fill, path)
	}
	if err := fill.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv(SharedVar, dir)
	return dir
}

func openMachine(t testing.TB, dir string) *Machine {
	t.Helper()
	m, err := OpenMachine(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

// keepAt compiles a file into the machine's store.
func keepAt(t testing.TB, m *Machine, path string) (name string) {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	name, _, _, err = m.Keep(img)
	if err != nil {
		t.Fatal(err)
	}
	m.Made(path, img, name)
	return name
}

// nowhere is a Store of a user whose cache cannot be used.
func nowhere(t *testing.T) *Store {
	t.Helper()
	s, err := Open("/proc/unspool")
	if err == nil {
		t.Fatal("Open takes /proc/unspool, where nothing can be written; want an error")
	}
	return s
}

// TestShared: tables of all users are found without a cache of one's own, with an empty one, and by build ID alone. They are those that a user's
// cache gets.
func TestShared(t *testing.T) {
	want := get(t, new(Store), Built)
	dir := machineDir(t, "/bin/sh")
	own := t.TempDir()
	for i, s := range []*Store{nowhere(t), open2(t, own)} {
		if got := get(t, s, Disk); !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("store %d: the table is another: %d bytes, %+v; want %d, %+v", i, len(got.Bytes()), got.Stats(), len(want.Bytes()), want.Stats())
		}
		if want := (Stats{Mapped: 1}); s.Stats() != want || s.Err() != nil {
			t.Errorf("%+v, %v; want %+v", s.Stats(), s.Err(), want)
		}
		if got := s.Kept(shell(t).ID()); got == nil || !bytes.Equal(got.Bytes(), want.Bytes()) {
			t.Errorf("by build ID: %v", got)
		}
	}
	if list, _ := os.ReadDir(own); len(list) != 0 {
		t.Errorf("the user's cache has %v", list)
	}
	for _, e := range []string{dir, tableOf(t, dir)} {
		if st := stat(t, e); st.Mode().Perm()&^0o111 != 0o644 {
			t.Errorf("%s has mode %v: all read it", e, st.Mode())
		}
	}
	if !isMapped(t, tableOf(t, dir)) {
		t.Errorf("%s, a table that all users share, is not mapped", tableOf(t, dir))
	}
	// What is not in it goes into the user's own.
	other := filepath.Join(t.TempDir(), "other")
	poisoned(t, "/bin/sh", other)
	s := open2(t, own)
	if _, from, err := s.Table(openFile(t, other)); from != Built || err != nil {
		t.Errorf("%v, %v", from, err)
	}
	if onlyFile(t, own); len(readDir(t, dir)) != 3 { // the table, its link, the lock
		t.Errorf("the store of all users has %v", readDir(t, dir))
	}
}

// TestSharedElsewhere: a copy of a file, such as one in a container, has the table without a link to it; and the user's cache remembers it.
func TestSharedElsewhere(t *testing.T) {
	defer func() { settled = settledBefore }()
	settled = 0
	dir := machineDir(t, "/bin/sh")
	b, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for _, owner := range []int{0, 65534} {
		path := filepath.Join(t.TempDir(), "sh")
		if err := errors.Join(os.WriteFile(path, b, 0o755), os.Chown(path, owner, owner)); err != nil {
			t.Fatal(err)
		}
		own := t.TempDir()
		for range 2 {
			s := open2(t, own)
			if _, from, err := s.Table(openFile(t, path)); from != Disk || err != nil {
				t.Errorf("owner %d: %v, %v", owner, from, err)
			}
		}
		if n := len(readDir(t, own)); n != map[bool]int{true: 1, false: 0}[owner == 0] {
			t.Errorf("owner %d: the user's cache has %v", owner, readDir(t, own))
		}
	}
	// A package's tables are found so, too.
	packaged := filepath.Join(t.TempDir(), "tables")
	p, err := OpenPackage(packaged)
	if err != nil {
		t.Fatal(err)
	}
	name, size, from, err := p.Keep(shell(t))
	if err != nil || from != Built || size == 0 {
		t.Fatalf("%s, %d bytes, %v, %v", name, size, from, err)
	}
	if name != filepath.Base(onlyFile(t, packaged)) || name != filepath.Base(tableOf(t, dir)) {
		t.Errorf("a package calls it %s", name)
	}
	t.Setenv(SharedVar, "relative:/nowhere:"+packaged)
	get(t, nowhere(t), Disk)
	t.Setenv(SharedVar, "")
	get(t, nowhere(t), Built)
	// Root's store links to it, and does not make it again.
	t.Setenv(SharedVar, dir+"2:"+packaged)
	m := openMachine(t, "")
	if got := keepAt(t, m, "/bin/sh"); got != name || m.Stats().Built != 0 || len(readDir(t, dir+"2")) != 2 {
		t.Errorf("%s, %+v, %v", got, m.Stats(), readDir(t, dir+"2"))
	}
}

var settledBefore = settled

// TestSharedDistrusted: what others than root could have made is not taken: files, the directory, directories above it, and links.
func TestSharedDistrusted(t *testing.T) {
	base := machineDir(t, "/bin/sh")
	other := filepath.Join(t.TempDir(), "good")
	table := tableOf(t, base)
	good, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	above := filepath.Dir(base)
	for _, c := range []struct {
		what     string
		do, undo func() error
		taken    bool
	}{
		{"root's", func() error { return nil }, nil, true},
		{"a file of another user", func() error { return os.Chown(table, 1, 0) }, func() error { return os.Chown(table, 0, 0) }, false},
		{"a file that a group writes", func() error { return os.Chmod(table, 0o664) }, func() error { return os.Chmod(table, 0o644) }, false},
		{"a file that all write", func() error { return os.Chmod(table, 0o646) }, func() error { return os.Chmod(table, 0o644) }, false},
		{"a directory of another user", func() error { return os.Chown(base, 1, 0) }, func() error { return os.Chown(base, 0, 0) }, false},
		{"a directory that a group writes", func() error { return os.Chmod(base, 0o775) }, func() error { return os.Chmod(base, 0o755) }, false},
		{"a sticky directory that all write", func() error { return os.Chmod(base, 0o777|os.ModeSticky) }, func() error { return os.Chmod(base, 0o755) }, false},
		{"below a directory of another user", func() error { return os.Chown(above, 1, 0) }, func() error { return os.Chown(above, 0, 0) }, false},
		{"below a directory that all write", func() error { return os.Chmod(above, 0o777) }, func() error { return os.Chmod(above, 0o755) }, false},
		{"below a sticky directory that all write", func() error { return os.Chmod(above, 0o777|os.ModeSticky) }, func() error { return os.Chmod(above, 0o755) }, true},
		{"a link to a directory", func() error { return errors.Join(os.Rename(base, base+"2"), os.Symlink(base+"2", base)) },
			func() error { return errors.Join(os.Remove(base), os.Rename(base+"2", base)) }, false},
		{"a link to a file", func() error { return errors.Join(os.Rename(table, other), os.Symlink(other, table)) },
			func() error { return errors.Join(os.Remove(table), os.Rename(other, table)) }, false},
		{"a FIFO", func() error { return errors.Join(os.Rename(table, other), unix.Mkfifo(table, 0o644)) },
			func() error { return errors.Join(os.Remove(table), os.Rename(other, table)) }, false},
		{"a cut file", func() error { return errors.Join(os.Remove(table), os.WriteFile(table, good[:len(good)/2], 0o644)) }, nil, false},
		{"an empty file", func() error { return errors.Join(os.Remove(table), os.WriteFile(table, nil, 0o644)) }, nil, false},
		{"a damaged file", func() error {
			b := bytes.Clone(good)
			b[len(b)/2] ^= 1
			return errors.Join(os.Remove(table), os.WriteFile(table, b, 0o644))
		}, nil, false},
		{"root's again", func() error { return errors.Join(os.Remove(table), os.WriteFile(table, good, 0o644)) }, nil, true},
	} {
		if err := c.do(); err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		want := Built
		if c.taken {
			want = Disk
		}
		s := nowhere(t)
		tab, from, err := s.Table(shell(t))
		if tab == nil || from != want || err != nil {
			t.Errorf("%s: %v, %v; want %v", c.what, from, err, want)
		}
		if got := nowhere(t).Kept(shell(t).ID()); (got != nil) != c.taken {
			t.Errorf("%s: by build ID: %v", c.what, got != nil)
		}
		if c.undo != nil {
			if err := c.undo(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSharedOpened: it is the directory that was opened that is judged: not what another one, by the same path, would be.
func TestSharedOpened(t *testing.T) {
	base := machineDir(t, "/bin/sh")
	fd, err := openShared(base)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	name := filepath.Base(tableOf(t, base))
	if err := errors.Join(os.Rename(base, base+"2"), os.Mkdir(base, 0o755), os.WriteFile(filepath.Join(base, name), []byte("another"), 0o644)); err != nil {
		t.Fatal(err)
	}
	if got, err := loadAt(fd, name); got == nil || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// TestNativeShared: machine code is found like tables.
func TestNativeShared(t *testing.T) {
	dir := machineDir(t)
	m := openMachine(t, dir)
	getNative(t, m.Store, walking, Built)
	getNative(t, nowhere(t), walking, Disk)
	getNative(t, open2(t, t.TempDir()), walking, Disk)
	if err := os.Chmod(tableOf(t, dir), 0o666); err != nil {
		t.Fatal(err)
	}
	getNative(t, nowhere(t), walking, Built)
}

// TestMapped: a table that only root can change is mapped, once for all Stores; it stays what it is when its file is replaced, and when it is gone.
// Its pages are not in memory before they are read.
func TestMapped(t *testing.T) {
	big := ""
	for _, path := range []string{"/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/aarch64-linux-gnu/libc.so.6"} {
		if _, err := os.Stat(path); err == nil {
			big = path
		}
	}
	if big == "" {
		oracle.Lacks(t, "libc.so.6 in its place")
	}
	dir := machineDir(t, big)
	path := tableOf(t, dir)
	table := func() *compact.Table {
		tab, from, err := nowhere(t).Table(openFile(t, big))
		if from != Disk || err != nil {
			t.Fatalf("%v, %v", from, err)
		}
		return tab
	}
	a, b := table(), table()
	if &a.Bytes()[0] != &b.Bytes()[0] || !isMapped(t, path) {
		t.Errorf("the table's bytes are at %p, then at %p, want the same; %s is mapped: %v, want true", &a.Bytes()[0], &b.Bytes()[0], path, isMapped(t, path))
	}
	if n := resident(t, path); n > 64 {
		t.Errorf("%d KiB are in memory, of %d", n, len(a.Bytes())>>10)
	}
	before := bytes.Clone(a.Bytes())
	os.Remove(path)
	keepAt(t, openMachine(t, dir), big)
	if !bytes.Equal(a.Bytes(), before) || !bytes.Equal(table().Bytes(), before) {
		t.Errorf("since its file was replaced, the table has changed: it is as before %v, and so is another that is opened now %v; want true, true",
			bytes.Equal(a.Bytes(), before), bytes.Equal(table().Bytes(), before))
	}
	os.RemoveAll(dir)
	runtime.GC()
	if !bytes.Equal(a.Bytes(), before) {
		got, same := a.Bytes(), 0
		for same < min(len(got), len(before)) && got[same] == before[same] {
			same++
		}
		t.Errorf("since its file is gone, the table has changed: %d bytes, want %d, of which the first %d are the same", len(got), len(before), same)
	}
}

// TestNotMapped: files for which there is no room any more are read.
func TestNotMapped(t *testing.T) {
	had := mappings.bytes
	defer func() { mappings.bytes = had }()
	mappings.bytes = maxMapBytes
	dir := machineDir(t, "/bin/sh")
	get(t, nowhere(t), Disk)
	if isMapped(t, tableOf(t, dir)) {
		t.Errorf("%s is mapped, although %d bytes of %d are in use", tableOf(t, dir), mappings.bytes, int64(maxMapBytes))
	}
}

// tableOf returns the path of the one table, or machine code, in a directory.
func tableOf(t testing.TB, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "*-own-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v; want one table", dir, found, err)
	}
	return found[0]
}

func readDir(t testing.TB, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

func openFile(t testing.TB, path string) *module.Image {
	t.Helper()
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func isMapped(t testing.TB, path string) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(b, []byte(" "+path+"\n"))
}

// resident returns how many KiB of a mapped file are in this process's memory.
func resident(t testing.TB, path string) (kib int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	_, after, ok := strings.Cut(string(b), " "+path+"\n")
	_, after, ok2 := strings.Cut(after, "\nRss:")
	if !ok || !ok2 {
		t.Fatalf("%s is not mapped", path)
	}
	fmt.Sscan(after, &kib)
	return kib
}
