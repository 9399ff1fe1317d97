package outfile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// umask, so that modes are known.
func TestMain(m *testing.M) {
	unix.Umask(0o027)
	os.Exit(m.Run())
}

func put(t *testing.T, path, text string, mode fs.FileMode) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path, []byte(text), 0o600), os.Chmod(path, mode)); err != nil {
		t.Fatal(err)
	}
}

// is checks what a directory holds: "name=text", sorted; a link is "name>target".
func is(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch {
		case e.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(path)
			got = append(got, e.Name()+">"+to)
		case e.Type().IsRegular():
			b, _ := os.ReadFile(path)
			got = append(got, e.Name()+"="+string(b))
		default:
			got = append(got, e.Name())
		}
	}
	if a, b := strings.Join(got, " "), strings.Join(want, " "); a != b {
		t.Errorf("the directory has %q, want %q", a, b)
	}
}

func begun(t *testing.T, path string, o Options) *File {
	t.Helper()
	f, err := Create(context.Background(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "new")
	return f
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	x := filepath.Join(dir, "x")
	f := begun(t, x, Options{})
	if entries, _ := os.ReadDir(dir); len(entries) != 1 || entries[0].Name() == "x" {
		t.Errorf("before it is whole: %v", entries)
	}
	if err := f.Discard(); err != nil {
		t.Error(err)
	}
	is(t, dir)
	if err := begun(t, x, Options{}).Commit(); err != nil {
		t.Error(err)
	}
	is(t, dir, "x=new")

	put(t, x, "old", 0o600)
	f = begun(t, x, Options{})
	is(t, dir, filepath.Base(f.tmp)+"=new", "x=old")
	f.Discard()
	is(t, dir, "x=old")
	f = begun(t, x, Options{})
	DiscardAll()
	is(t, dir, "x=old")
	if err := f.Commit(); err != nil { // the program is about to end
		t.Error(err)
	}
	is(t, dir, "x=old")
}

func TestModes(t *testing.T) {
	for _, c := range []struct {
		there   fs.FileMode // 0: nothing
		private bool
		want    fs.FileMode
	}{{0, false, 0o640}, {0, true, 0o600}, {0o644, true, 0o600}, {0o600, false, 0o600}, {0o666, false, 0o666}, {fs.ModeSetuid | 0o755, false, 0o755}} {
		x := filepath.Join(t.TempDir(), "x")
		if c.there != 0 {
			put(t, x, "old", c.there)
		}
		f := begun(t, x, Options{Private: c.private})
		if st, err := f.Stat(); err != nil || st.Mode() != c.want {
			t.Errorf("%+v: while it is written: %v, %v", c, st.Mode(), err)
		}
		if err := f.Commit(); err != nil {
			t.Error(err)
		}
		if st, err := os.Stat(x); err != nil || st.Mode() != c.want {
			t.Errorf("%+v: %v, %v", c, st.Mode(), err)
		}
	}
}

func TestKeep(t *testing.T) {
	dir := t.TempDir()
	x := filepath.Join(dir, "x")
	f := begun(t, x, Options{Keep: true})
	if err := f.Commit(); err != nil || f.Notes != nil {
		t.Errorf("%v, %q", err, f.Notes)
	}
	put(t, x, "old", 0o600)
	put(t, x+".old", "older", 0o600)
	begun(t, x, Options{Keep: true}).Discard()
	is(t, dir, "x=old", "x.old=older")
	f = begun(t, x, Options{Keep: true})
	if err := f.Commit(); err != nil || len(f.Notes) != 1 || !strings.Contains(f.Notes[0], x+".old") {
		t.Errorf("%v, %q", err, f.Notes)
	}
	is(t, dir, "x=new", "x.old=old")

	// Where the old one cannot be kept, nothing is lost.
	if err := errors.Join(os.Remove(x+".old"), os.Mkdir(x+".old", 0o700)); err != nil {
		t.Fatal(err)
	}
	f = begun(t, x, Options{Keep: true})
	err := f.Commit()
	if err == nil || !strings.Contains(err.Error(), f.tmp) {
		t.Errorf("Commit where %s.old is a directory = %v, want an error that names %s", x, err, f.tmp)
	}
	is(t, dir, f.tmp+"=new", "x=new", "x.old")
}

func TestInput(t *testing.T) {
	dir := t.TempDir()
	x, link := filepath.Join(dir, "x"), filepath.Join(dir, "link")
	put(t, x, "old", 0o600)
	os.Symlink("x", link)
	in, err := os.Open(x)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	st, _ := in.Stat()
	for _, path := range []string{x, link, fmt.Sprint("/dev/fd/", in.Fd())} {
		if _, err := Create(context.Background(), path, Options{Inputs: []fs.FileInfo{st}}); !errors.Is(err, ErrInput) {
			t.Errorf("%s: %v", path, err)
		}
	}
	is(t, dir, "link>x", "x=old")
}

// TestLinks: an own link is followed, also to where nothing is yet; what another user has put there is replaced.
func TestLinks(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "to"), 0o700)
	link := filepath.Join(dir, "to", "link")
	os.Symlink("../there", filepath.Join(dir, "to", "a"))
	os.Symlink("a", link)
	for range 2 {
		if err := begun(t, link, Options{}).Commit(); err != nil {
			t.Fatal(err)
		}
		is(t, dir, "there=new", "to")
		put(t, filepath.Join(dir, "there"), "old", 0o600)
	}
	os.Symlink("loop", filepath.Join(dir, "loop"))
	if _, err := Create(context.Background(), filepath.Join(dir, "loop"), Options{}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Create(loop) = %v, want %v", err, unix.ELOOP)
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be another user")
	}
	theirs := filepath.Join(dir, "theirs")
	os.Mkdir(theirs, 0o755)
	victim := filepath.Join(dir, "there")
	x := filepath.Join(theirs, "x")
	for _, c := range []struct {
		dir, link int // owners
		mode      uint32
		followed  bool
	}{
		{12345, 12345, 0o755, false}, {12345, 0, 0o755, false}, {0, 12345, 0o777, false}, {0, 0, 0o777, false}, {0, 0, 0o775, false},
		{0, 12345, 0o1777, false}, {0, 0, 0o1777, true}, {0, 0, 0o755, true}, {0, 12345, 0o755, false},
	} {
		put(t, victim, "old", 0o600)
		os.Remove(x)
		if err := errors.Join(os.Symlink(victim, x), os.Lchown(x, c.link, 0), os.Chown(theirs, c.dir, 0), unix.Chmod(theirs, c.mode)); err != nil {
			t.Fatal(err)
		}
		f := begun(t, x, Options{})
		if err := f.Commit(); err != nil {
			t.Error(err)
		}
		b, _ := os.ReadFile(victim)
		if st, err := os.Lstat(x); err != nil || (string(b) == "new") != c.followed || st.Mode().IsRegular() == c.followed || len(f.Notes) == 1 == c.followed {
			t.Errorf("%+v: the victim has %q, %v, %v, %q", c, b, st, err, f.Notes)
		}
	}
}

// TestDirectories: another user's link in the place of a directory leads only to what is that user's.
func TestDirectories(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "to"), 0o700)
	link := filepath.Join(dir, "link")
	os.Symlink("loop", filepath.Join(dir, "loop"))
	if _, err := Create(context.Background(), filepath.Join(dir, "loop", "x"), Options{}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("Create(loop/x) = %v, want %v", err, unix.ELOOP)
	}
	put(t, filepath.Join(dir, "file"), "", 0o600)
	if _, err := Create(context.Background(), filepath.Join(dir, "file", "x"), Options{}); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("Create(file/x) = %v, want %v", err, unix.ENOTDIR)
	}
	t.Chdir(dir)
	for _, path := range []string{"x", "./x", "to/../x", "to//../x", "/proc/self/cwd/x", "/proc/thread-self/root" + dir + "/x"} {
		if err := begun(t, path, Options{}).Commit(); err != nil {
			t.Errorf("%s: %v", path, err)
		}
		if err := os.Remove("x"); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: to be another user")
	}
	for _, c := range []struct {
		link, dir int // owners
		to        string
		followed  bool
	}{{0, 0, "to", true}, {0, 12345, "to", true}, {12345, 12345, "./to/", true}, {12345, 0, "to", false}, {12345, 54321, filepath.Join(dir, "to"), false}} {
		os.Remove(link)
		victim := filepath.Join(dir, "to", "x")
		put(t, victim, "old", 0o600)
		if err := errors.Join(os.Symlink(c.to, link), os.Lchown(link, c.link, 0), os.Chown("to", c.dir, 0)); err != nil {
			t.Fatal(err)
		}
		f, err := Create(context.Background(), link+"/../to/../link/x", Options{})
		if err == nil {
			io.WriteString(f, "new")
			f.Commit()
		}
		if b, _ := os.ReadFile(victim); (string(b) == "new") != c.followed || (err == nil) != c.followed {
			t.Errorf("%+v: %q, %v", c, b, err)
		}
	}
}

// TestForbidden: what could not be written before cannot be replaced either.
func TestForbidden(t *testing.T) {
	dir := t.TempDir()
	os.Mkdir(filepath.Join(dir, "dir"), 0o700)
	for path, want := range map[string]error{
		"dir": unix.EISDIR, "dir/": unix.EISDIR, "..": unix.EISDIR, "gone/x": unix.ENOENT, strings.Repeat("x", 300): unix.ENAMETOOLONG,
	} {
		if _, err := Create(context.Background(), filepath.Join(dir)+"/"+path, Options{}); !errors.Is(err, want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %v", path, err, want)
		}
	}
	long := filepath.Join(dir, strings.Repeat("x", 255))
	if err := begun(t, long, Options{}).Commit(); err != nil {
		t.Error(err)
	}
	// A temporary file that somebody has taken away.
	f := begun(t, filepath.Join(dir, "y"), Options{})
	if err := errors.Join(os.Remove(filepath.Join(dir, f.tmp)), os.WriteFile(filepath.Join(dir, f.tmp), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := f.Commit(); err == nil || !strings.Contains(err.Error(), "taken away") {
		t.Errorf("Commit without its temporary file = %v, want that it was taken away", err)
	}
}

// TestThrough: FIFOs and devices are written through, and their errors are told.
func TestThrough(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := Create(ctx, fifo, Options{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nobody reads: %v", err)
	}
	read := make(chan []byte)
	go func() {
		b, _ := os.ReadFile(fifo)
		read <- b
	}()
	f := begun(t, fifo, Options{})
	big := bytes.Repeat([]byte("x"), 1<<20) // more than a pipe holds
	if _, err := f.Write(big); err != nil {
		t.Error(err)
	}
	if err := f.Commit(); err != nil {
		t.Error(err)
	}
	if b := <-read; len(b) != len(big)+3 {
		t.Errorf("%d bytes went through", len(b))
	}
	r, err := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	f = begun(t, fifo, Options{})
	r.Close()
	if _, err := f.Write(big); !errors.Is(err, unix.EPIPE) {
		t.Errorf("nobody reads any more: %v", err)
	}
	f.Discard()
	is(t, dir, "fifo")
	if _, err := Create(context.Background(), fifo, Options{Keep: true}); err == nil {
		t.Errorf("Create with Keep takes %s, a FIFO in the place of the default; want an error", fifo)
	}
	if os.Geteuid() == 0 {
		os.Chown(fifo, 12345, 0)
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		if _, err := Create(ctx, fifo, Options{Private: true}); err == nil || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("another user's FIFO for what is private: %v", err)
		}
		if _, err := Create(ctx, fifo, Options{}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("another user's FIFO for what is not: %v", err)
		}
	}
	full := begun(t, "/dev/full", Options{})
	if _, err := full.Write(big); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("Write to /dev/full = %v, want %v", err, unix.ENOSPC)
	}
	full.Discard()

	// An own descriptor is this one, not its file opened again: what is there stays.
	x, err := os.Create(filepath.Join(dir, "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	x.WriteString("before,")
	f = begun(t, fmt.Sprint("/dev/fd/", x.Fd()), Options{})
	if err := f.Commit(); err != nil {
		t.Error(err)
	}
	is(t, dir, "fifo", "x=before,new")
}

// TestPublish: what is published can be read as it grows, and stays.
func TestPublish(t *testing.T) {
	dir := t.TempDir()
	x := filepath.Join(dir, "x")
	put(t, x, "old", 0o600)
	f := begun(t, x, Options{})
	is(t, dir, f.tmp+"=new", "x=old")
	if err := f.Publish(); err != nil {
		t.Fatal(err)
	}
	is(t, dir, "x=new")
	io.WriteString(f, ", more")
	is(t, dir, "x=new, more")
	if err := f.Commit(); err != nil {
		t.Error(err)
	}
	f = begun(t, x, Options{})
	f.Publish()
	f.Discard()
	is(t, dir, "x=new")
}

// TestNew: what is there stays, be it a link that leads nowhere, or come after the output was begun. Nothing is left behind.
func TestNew(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	begin := func() (*File, error) { return Create(context.Background(), path, Options{New: true}) }
	first, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	second, err := begin()
	if err != nil {
		t.Fatal(err)
	}
	first.WriteString("first")
	second.WriteString("second")
	if err := first.Commit(); err != nil {
		t.Error(err)
	}
	if err := second.Commit(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the second: %v", err)
	}
	if _, err := begin(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the third: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "first" {
		t.Errorf("%q, %v", b, err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("%v, %v", list, err)
	}
	os.Remove(path)
	if err := os.Symlink("nowhere", path); err != nil {
		t.Fatal(err)
	}
	if _, err := begin(); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a link: %v", err)
	}
}
