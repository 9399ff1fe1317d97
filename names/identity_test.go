package names

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
)

// TestIdentify: without a build ID, a file is the recorded one if this host maps it under the recorded device and inode. Where numbers may be
// others, in a recording of another host or from before this host was started, it is the recorded one by its inode, or by its age, with a doubt.
func TestIdentify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	is := mapFile(path) // what a recording has of it
	if is.inode == 0 {
		t.Fatal("no mapping of the file")
	}
	later, earlier := time.Now().Add(time.Hour), time.Now().Add(-time.Hour)
	before, after := time.Unix(1, 0), time.Now().Add(2*time.Hour) // this host was started then
	other := fileNumbers{is.maj, is.min + 1, is.inode + 1}
	inode := module.Inode(other.maj, other.min, other.inode, 0)
	for _, c := range []struct {
		what     string
		path     string
		here     bool
		written  time.Time
		booted   time.Time
		recorded fileNumbers
		want     string
		doubts   int
	}{
		{"its numbers", path, true, later, before, is, "", 0},
		{"its numbers, written to since", path, true, earlier, before, is, module.Another, 0},
		{"its inode on another device", path, true, later, before, fileNumbers{is.maj, is.min + 1, is.inode}, "", 1},
		{"its inode on another device, changed since", path, true, earlier, before, fileNumbers{is.maj, is.min + 1, is.inode}, module.Another, 0},
		{"another inode", path, true, later, before, fileNumbers{is.maj, is.min, is.inode + 1}, module.Inode(is.maj, is.min, is.inode+1, 0), 0},
		{"a namesake that is older than the recording", path, true, later, before, other, inode, 0},
		{"a namesake that is younger", path, true, earlier, before, other, inode, 0},
		{"no device recorded", path, true, later, before, fileNumbers{0, 0, is.inode}, "", 0},

		{"another start, its inode", path, true, later, after, fileNumbers{is.maj, is.min + 1, is.inode}, "", 0},
		{"another start, another inode", path, true, later, after, fileNumbers{is.maj, is.min, is.inode + 1}, module.Another, 0},
		{"another start, another device, not changed since", path, true, later, after, other, "", 1},
		{"another start, another device, changed since", path, true, earlier, after, other, module.Another, 0},

		{"another host, its inode", path, false, time.Time{}, before, fileNumbers{is.maj, is.min + 1, is.inode}, "", 0},
		{"another host, another device", path, false, later, before, other, module.Another, 0},
		{"written nobody knows when, its inode", path, true, time.Time{}, before, is, "", 0},
		{"written nobody knows when, another device", path, true, time.Time{}, before, other, module.Another, 0},
		{"nothing there", path + "x", true, later, before, other, inode, 0},
		{"another start, nothing there", path + "x", true, later, after, other, "", 0},
		{"no file", "[vdso]", true, later, before, other, "", 0},
	} {
		doubts := 0
		id := Identity{Here: func() bool { return c.here }, Written: c.written, Doubt: func(string) { doubts++ }, booted: c.booted}
		for range 2 {
			if got := id.Identify(c.path, c.recorded.maj, c.recorded.min, c.recorded.inode, 0); got != c.want {
				t.Errorf("%s: %q, want %q", c.what, got, c.want)
			}
		}
		if doubts != 2*c.doubts {
			t.Errorf("%s: %d doubts in two calls, want %d in each", c.what, doubts, c.doubts)
		}
	}
	var id Identity
	if up := time.Since(id.boot()); up < 0 || up > 100*365*24*time.Hour {
		t.Errorf("this host was started %v ago", up)
	}
}

// TestIdentifyMounts: a file of another mount at the path of one of this host's is another one, although that one is older than the recording.
func TestIdentifyMounts(t *testing.T) {
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, who may mount")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "prog")
	var is [2]fileNumbers
	for i := range is {
		if err := unix.Mount("none", dir, "tmpfs", 0, ""); err != nil {
			oracle.Lacks(t, "a mount of tmpfs: "+err.Error())
		}
		defer unix.Unmount(dir, unix.MNT_DETACH)
		for _, name := range []string{"first", "second", "prog"}[2*i:] { // numbered in their order
			if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		is[i] = mapFile(path)
	}
	for i, want := range []string{module.Inode(is[0].maj, is[0].min, is[0].inode, 0), ""} {
		id := Identity{Here: func() bool { return true }, Written: time.Now().Add(time.Hour)}
		if got := id.Identify(path, is[i].maj, is[i].min, is[i].inode, 0); got != want {
			t.Errorf("mount %d: %q, want %q; %+v", i, got, want, is)
		}
	}
}

// TestIdentifyStamp: a recording of this program's has a stamp of each file, which tells it from what was written into the file before the recording ended.
func TestIdentifyStamp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	is := mapFile(path)
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	stamp := procfs.Stamp(&st)
	for _, c := range []struct {
		what string
		gen  uint64
		want string
	}{
		{"its stamp", stamp, ""}, {"another stamp", stamp ^ 1, module.Inode(is.maj, is.min, is.inode, stamp^1)}, {"a stamp of nothing", procfs.NoStamp, module.Inode(is.maj, is.min, is.inode, procfs.NoStamp)},
		{"a generation", 7, ""}, {"none", 0, ""},
	} {
		id := Identity{Here: func() bool { return true }, Written: time.Now().Add(time.Hour), booted: time.Unix(1, 0)}
		if got := id.Identify(path, is.maj, is.min, is.inode, c.gen); got != c.want {
			t.Errorf("%s: %q, want %q", c.what, got, c.want)
		}
	}
}
