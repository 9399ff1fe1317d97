package annotate

import (
	"os"
	"path/filepath"
	"strings"
	stdatomic "sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
)

// open returns a directory that everybody may search.
func open(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestSources(t *testing.T) {
	dir := open(t)
	write := func(name, s string) string {
		p := filepath.Join(dir, name)
		os.MkdirAll(filepath.Dir(p), 0o755)
		if err := os.WriteFile(p, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	a := write("a.c", "a")
	write("root/src/a.c", "rooted")
	write("moved/b.c", "b")
	binary := write("binary", "\x7fELF\x00")
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	s := Sources{Root: dir + "/root", Paths: [][2]string{{"/old", dir + "/moved"}}}
	for _, c := range []struct{ path, text, err string }{
		{a, "a", ""},
		{"/src/a.c", "rooted", ""},
		{"src/../src/a.c", "rooted", ""},
		{"../../src/a.c", "rooted", ""},
		{"/old/b.c", "b", ""},
		{"/older/b.c", "", "no such file"},
		{"relative.c", "", "not an absolute path"},
		{binary, "", "not text"},
		{fifo, "", "not a regular file"},
		{"/dev/zero", "", "not a regular file"},
		{dir, "", "not a regular file"},
		{"/proc/self/environ", "", "a file of /proc"},
	} {
		b, err := s.Read(&profile.Module{Kernel: true}, c.path)
		if string(b) != c.text || (err != nil) != (c.err != "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("Read(%q) = %q, %v; want %q, %s", c.path, b, err, c.text, c.err)
		}
	}
}

const secret = "for root only\n"

// foreign makes a directory of user 12345 with a module, and a file of root's that only root may read.
func foreign(t *testing.T) (dir string, m *profile.Module, hidden string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top := open(t)
	dir, hidden = filepath.Join(top, "user"), filepath.Join(top, "root.c")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m = &profile.Module{Path: filepath.Join(dir, "prog")}
	for name, mode := range map[string]os.FileMode{m.Path: 0o755, filepath.Join(dir, "own.c"): 0o600, hidden: 0o600} {
		text := secret
		if name != hidden {
			text = "own\n"
		}
		if err := os.WriteFile(name, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		if name != hidden {
			chown(t, name)
		}
	}
	chown(t, dir)
	return dir, m, hidden
}

func chown(t *testing.T, name string) {
	t.Helper()
	if err := os.Lchown(name, 12345, 12345); err != nil {
		t.Fatal(err)
	}
}

// TestSourcesOwner reads for a user's module what the user may read, and nothing else, whatever links lead there.
func TestSourcesOwner(t *testing.T) {
	dir, m, hidden := foreign(t)
	private := filepath.Join(filepath.Dir(dir), "private") // what is in it is open, itself it is not
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(private, "in.c"), []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	shared := filepath.Join(filepath.Dir(dir), "shared.c")
	if err := os.WriteFile(shared, []byte("own\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link.c": hidden, "up.c": "../root.c", "in.c": private, "all.c": shared, "loop.c": "loop.c"} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var s Sources
	for _, c := range []struct{ path, err string }{
		{filepath.Join(dir, "own.c"), ""},
		{filepath.Join(dir, "all.c"), ""},
		{shared, ""},
		{hidden, "user 12345"},
		{filepath.Join(dir, "link.c"), "user 12345"},
		{filepath.Join(dir, "up.c"), "user 12345"},
		{filepath.Join(private, "in.c"), "user 12345"},
		{filepath.Join(dir, "in.c", "in.c"), "user 12345"},
		{filepath.Join(dir, "loop.c"), "too many levels"},
		{"/etc/shadow", "not the name of a source file"},
		{"/proc/self/fd/0/x.c", "not a directory"},
	} {
		b, err := s.Read(m, c.path)
		if c.err == "" && (err != nil || string(b) != "own\n") || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %q, %v; want %q", c.path, b, err, c.err)
		}
	}
	// Root's module may show what root may read; one that is nobody's, what everybody may; and one in a user's directory what the user may.
	file := filepath.Join(dir, "theirs")
	if err := os.WriteFile(file, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(filepath.Dir(dir), "link")
	if err := os.Symlink("/proc/self/exe", link); err != nil {
		t.Fatal(err)
	}
	chown(t, link)
	for _, c := range []struct {
		module string
		may    bool
	}{{"/", true}, {"/nowhere/prog", false}, {"[anon]", false}, {file, false}, {link, false}} {
		if b, err := s.Read(&profile.Module{Path: c.module}, hidden); (err == nil) != c.may {
			t.Errorf("for %s: %q, %v", c.module, b, err)
		}
		if _, err := s.Read(&profile.Module{Path: c.module}, shared); err != nil {
			t.Errorf("for %s: %v", c.module, err)
		}
	}
}

// TestSourcesSwapped swaps a link while it is read: what is judged is what is read.
func TestSourcesSwapped(t *testing.T) {
	oracle.Long(t)
	dir, m, hidden := foreign(t)
	link, good, evil := filepath.Join(dir, "a.c"), filepath.Join(dir, "good.c"), filepath.Join(dir, "evil.c")
	for name, to := range map[string]string{link: "own.c", good: "own.c", evil: hidden} {
		if err := os.Symlink(to, name); err != nil {
			t.Fatal(err)
		}
	}
	var over stdatomic.Bool
	done := make(chan int)
	go func() {
		n := 0
		for ; !over.Load(); n++ {
			unix.Renameat2(unix.AT_FDCWD, evil, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		}
		done <- n
	}()
	var s Sources
	read, refused := 0, 0
	for range 5000 {
		b, err := s.Read(m, link)
		switch {
		case string(b) == secret:
			t.Fatalf("root's file was read after %d others and %d refusals", read, refused)
		case err == nil && string(b) == "own\n":
			read++
		default:
			refused++
		}
	}
	over.Store(true)
	if n := <-done; read == 0 || refused == 0 {
		t.Errorf("%d read, %d refused, %d swaps: the race was not run", read, refused, n)
	}
}
