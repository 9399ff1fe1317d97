package procroot

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// TestOpen: files of a process with another root directory and process numbers of its own; links do not lead out of there.
func TestOpen(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	outside := filepath.Join(t.TempDir(), "outside")
	os.WriteFile(outside, nil, 0o600)
	write("file", "in there")
	os.Symlink("/file", filepath.Join(root, "link"))
	os.Symlink("../../../../file", filepath.Join(root, "up"))
	os.Symlink(outside, filepath.Join(root, "out"))
	if err := unix.Mkfifo(filepath.Join(root, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}

	pid := oracle.Contained(t, root, "a", "#include <unistd.h>\nint main(void) { char c; write(1, \"\", 1); return read(0, &c, 1); }\n")
	for name, want := range map[string]string{"/file": "in there", "/link": "in there", "/up": "in there"} {
		f, err := Open(pid, name)
		if err != nil {
			t.Error(err)
			continue
		}
		if b, err := io.ReadAll(f); string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
		f.Close()
	}
	for _, name := range []string{"/out", "/nothing", "/", "/fifo"} {
		if f, err := Open(pid, name); err == nil {
			t.Errorf("%s leads to %s", name, f.Name())
		}
	}
	if Same(pid) || !Same(os.Getpid()) || !Same(1<<30) {
		t.Errorf("Same of %d, %d, 1<<30 = %v, %v, %v, want false, true, true", pid, os.Getpid(), Same(pid), Same(os.Getpid()), Same(1<<30))
	}
	if pids := Others(); !slices.ContainsFunc(pids, func(p int) bool { a, _ := ID(p); b, ok := ID(pid); return ok && a == b }) {
		t.Errorf("the process is not among %v", pids)
	}
	if Inner(pid) != 1 || Inner(os.Getpid()) < 1 || Inner(1<<30) != 1<<30 {
		t.Errorf("Inner of %d, %d, 1<<30 = %d, %d, %d, want 1, > 0, 1<<30", pid, os.Getpid(), Inner(pid), Inner(os.Getpid()), Inner(1<<30))
	}
}
