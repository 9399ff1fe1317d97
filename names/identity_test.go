package names

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/module"
)

// TestIdentify: without a build ID, a file is the recorded one by its inode, or, on this host, by its age where a file system tells other devices.
func TestIdentify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	maj, min, later, earlier := unix.Major(st.Dev), unix.Minor(st.Dev), time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	for _, c := range []struct {
		what    string
		path    string
		here    bool
		written time.Time
		min     uint32
		inode   uint64
		want    string
	}{
		{"its inode", path, false, time.Time{}, min, st.Ino, ""},
		{"another inode", path, true, later, min, st.Ino + 1, module.Another},
		{"another device, not changed since", path, true, later, min + 1, st.Ino + 1, ""},
		{"another device, changed since", path, true, earlier, min + 1, st.Ino + 1, module.Another},
		{"another device, another host", path, false, later, min + 1, st.Ino + 1, module.Another},
		{"another device, written nobody knows when", path, true, time.Time{}, min + 1, st.Ino + 1, module.Another},
		{"nothing there", path + "x", true, later, min, 1, ""},
		{"no file", "[vdso]", true, later, min, 1, ""},
	} {
		if got := Identify(func() bool { return c.here }, c.written)(c.path, maj, c.min, c.inode); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
