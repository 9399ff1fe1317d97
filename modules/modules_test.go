package modules

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

func TestModule(t *testing.T) {
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	for name, s := range map[string]*Set{"compact": New(), "native": Native(), "rows": Interpreted()} {
		m := s.Module("/bin/sh", "")
		if s.Module("/bin/sh", "") != m {
			t.Errorf("%s: one file, two modules", name)
		}
		c := m.Code()
		if c == nil || c.Err != nil || c.Stepper == nil || c.Machine == nil {
			t.Fatalf("%s: %+v", name, c)
		}
		found := false
		for off := uint64(0); off < 1<<20 && !found; off += 16 {
			if v, ok := c.Vaddr(off); ok {
				_, found = c.Stepper.Find(v)
			}
		}
		if !found {
			t.Errorf("%s: no rule for any address", name)
		}
		if len(s.Errors()) != 0 || s.CacheErr() != nil {
			t.Errorf("%s: %v, %v", name, s.Errors(), s.CacheErr())
		}
	}
}

// Programs have odd names and places.
func TestPlaces(t *testing.T) {
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	shm, err := os.MkdirTemp("/dev/shm", "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	s := New()
	for _, path := range []string{filepath.Join(shm, "sh"), filepath.Join(t.TempDir(), "jit-1.dump"), filepath.Join(t.TempDir(), "sh (deleted)")} {
		if err := os.WriteFile(path, sh, 0o700); err != nil {
			t.Fatal(err)
		}
		if c := s.Module(path, "").Code(); c == nil || c.Err != nil || c.Stepper == nil {
			t.Errorf("%s: %+v", path, c)
		}
	}
}

// What cannot be used says why, and what has no file is no error.
func TestUnusable(t *testing.T) {
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("garbage ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	s := New()
	for _, path := range []string{"//anon", "[heap]", "", "/memfd:x (deleted)", "/dev/zero", "/dev/shm/x (deleted)", filepath.Join(t.TempDir(), "jit-1.dump"), "/SYSV00000000"} {
		if c := s.Module(path, "").Code(); c != nil {
			t.Errorf("%q: %+v, want nothing", path, c)
		}
	}
	if len(s.Errors()) != 0 {
		t.Errorf("Errors = %v, want none: nothing of these is a file", s.Errors())
	}
	for _, x := range []struct{ path, id, want string }{
		{"/nonexistent", "", "no such file"},
		{garbage, "", "not an ELF, Mach-O or PE file"},
		{"/bin/sh", "0123456789abcdef", "the file has changed"},
	} {
		c := s.Module(x.path, x.id).Code()
		if c == nil || c.Err == nil || !strings.Contains(c.Err.Error(), x.want) || c.Stepper != nil {
			t.Errorf("%s: %+v, want an error with %q", x.path, c, x.want)
		}
	}
	if len(s.Errors()) != 3 {
		t.Errorf("%d errors, want 3", len(s.Errors()))
	}
}

// A file that only a container has is found there, if it is the one that was recorded.
func TestContainer(t *testing.T) {
	oracle.Long(t)
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	root := t.TempDir()
	pid := oracle.Contained(t, root, "only-in-there", "#include <unistd.h>\nint main(void) { write(1, \"\", 1); char c; return read(0, &c, 1); }\n")
	img, err := module.Open(filepath.Join(root, "only-in-there"))
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	s, id := New(), hex.EncodeToString(img.BuildID())
	m := s.Module("/only-in-there", id)
	m.Mapped(int32(pid))
	if c := m.Code(); c == nil || c.Err != nil || c.Stepper == nil {
		t.Errorf("%+v", c)
	}
	if _, in, err := s.Files.Find(m.Path, id, 0); in != pid || err != nil {
		t.Errorf("in process %d, not %d; %v", in, pid, err)
	}
	if _, in, err := s.Files.Find("/bin/sh", "", 0); in != 0 || err != nil {
		t.Errorf("/bin/sh is in process %d; %v", in, err)
	}
	st := &img.File().Stat_t
	inode := func(n uint64) string { return module.Inode(unix.Major(st.Dev), unix.Minor(st.Dev), n, 0) }
	m = s.Module("/only-in-there", inode(st.Ino))
	if c := m.Code(); c == nil || c.Err != nil || c.Stepper == nil {
		t.Errorf("by inode: %+v", c)
	}
	for _, other := range []string{"", strings.Repeat("ab", 20), inode(st.Ino + 1), module.Another} {
		if c := s.Module("/only-in-there", other).Code(); c == nil || c.Err == nil || !errors.Is(c.Err, fs.ErrNotExist) {
			t.Errorf("build ID or inode %q: %+v", other, c)
		}
	}
}

// The vDSO is read from this process's memory.
func TestVDSO(t *testing.T) {
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	c := New().Module("[vdso]", "").Code()
	if _, err := module.VDSO(); errors.Is(err, module.ErrUnsupported) {
		oracle.Lacks(t, "a vDSO")
	}
	if c == nil || c.Err != nil || c.Stepper == nil {
		t.Fatalf("the vDSO: %+v", c)
	}
	if v, ok := c.Vaddr(0); !ok || v != arch.Vaddr(0) {
		t.Errorf("offset 0 is at %#x, %v", v, ok)
	}
}

// TestAgain: code that was unloaded is read again, but not while somebody has it. A mapped table takes nothing of the budget.
func TestAgain(t *testing.T) {
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	s := New()
	defer s.Close()
	m := s.Module("/bin/sh", "")
	unload := func(c *unwind.Code) {
		t.Helper()
		if !m.Unload(c) { // it was asked for meanwhile
			m.Unload(c)
		}
		if m.Loaded() != nil {
			t.Fatalf("after Unload of code %p of %s, code %p is loaded; want none", c, m.Path, m.Loaded())
		}
	}
	c := m.Code()
	unload(c)
	if again := m.Code(); again != c {
		t.Errorf("%p was read again, though %p is in use", again, c)
	}
	table := c.Stepper.(*compact.Table).Bytes()
	if size, mapped := codeSize(c), os.Geteuid() == 0; pages.Mapped(table) != mapped || mapped && size != codeCost || !mapped && size != codeCost+int64(len(table)) {
		t.Errorf("code with a table of %d bytes takes %d; the table is mapped: %v", len(table), size, pages.Mapped(table))
	}
	gone := make(chan bool)
	runtime.AddCleanup(c, func(gone chan bool) { close(gone) }, gone)
	unload(c)
	c = nil
	s.Files.Close() // its budget has who would unload the code
	for left := 10; ; left-- {
		runtime.GC()
		select {
		case <-gone:
		case <-time.After(100 * time.Millisecond):
			if left > 0 {
				continue
			}
			t.Errorf("code of %s was unloaded, and nobody has it: it stays after 11 collections", m.Path)
		}
		break
	}
	if c := m.Code(); c == nil || c.Err != nil || c.Stepper == nil {
		t.Errorf("read again: %+v", c)
	}
}

// TestClose: however many Sets come and go, memory that is mapped and files that are open stay as they were.
func TestClose(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("UNSPOOL_CACHE", cache)
	paths := []string{"/bin/sh", "/bin/ls", "/bin/cat", "/bin/date", "/bin/sleep"}
	mapped := map[string]bool{}
	for _, path := range paths {
		file, err := filepath.EvalSymlinks(path)
		if err != nil {
			t.Fatal(err)
		}
		mapped[file] = true
	}
	count := func() (maps, files int) {
		b, err := os.ReadFile("/proc/self/maps")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			// The heap, and what the run time maps beside it, grow as they like; files of earlier tests go when the collector finds them.
			if f := strings.Fields(line); len(f) == 6 && (mapped[f[5]] || strings.HasPrefix(f[5], cache)) || len(f) == 5 && strings.Contains(f[1], "x") {
				maps++
			}
		}
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return maps, len(fds)
	}
	for _, stepper := range Steppers {
		var maps, files int
		const rounds = 5
		for round := range rounds {
			s, err := ByName(stepper)
			if err != nil {
				t.Fatal(err)
			}
			before, _ := count()
			loaded := 0
			for _, path := range paths {
				if c := s.Module(path, "").Code(); c != nil && c.Stepper != nil {
					loaded++
				}
			}
			if now, _ := count(); loaded < len(paths) || now < before+loaded {
				t.Fatalf("%s: %d of %d files have code; %d mappings, and %d before", stepper, loaded, len(paths), now, before)
			}
			if err := s.Close(); err != nil {
				t.Fatalf("%s: %v", stepper, err)
			}
			switch m, f := count(); {
			case round == 0:
				maps, files = m, f
			case m > maps || f > files:
				t.Fatalf("%s: after %d rounds %d mappings of files and %d descriptors; after the first %d and %d", stepper, round+1, m, f, maps, files)
			}
		}
		// A Set that was closed makes its modules anew.
		s, _ := ByName(stepper)
		for range 2 {
			if c := s.Module("/bin/sh", "").Code(); c == nil || c.Err != nil || c.Stepper == nil {
				t.Errorf("%s: %+v", stepper, c)
			}
			s.Close()
		}
	}
}

// TestTextWritten: code is not read from a file that somebody has written another program into, and is again when the program is there again.
func TestTextWritten(t *testing.T) {
	oracle.Long(t)
	t.Setenv("UNSPOOL_CACHE", t.TempDir())
	path := filepath.Join(t.TempDir(), "prog")
	put := func(from string) {
		t.Helper()
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put("/bin/sh")
	img, err := module.Open("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	s := New()
	defer s.Close()
	c := s.Module(path, hex.EncodeToString(img.BuildID())).Code()
	if c == nil || c.Err != nil {
		t.Fatalf("%+v", c)
	}
	at := c.Segments[0].Vaddr
	until := func(want int) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			if n := c.Text(at, make([]byte, 8)); n == want {
				return
			} else if time.Now().After(end) {
				t.Fatalf("%d bytes of code, want %d", n, want)
			}
		}
	}
	until(8)
	put("/bin/ls")
	until(0)
	put("/bin/sh")
	until(8)
}
