package symbol

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/symbol/jit"
)

// opened watches files, and says how often one was opened. To look at a file without opening it (O_PATH) is no event.
func opened(t *testing.T, paths ...string) func() int {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	for _, p := range paths {
		if _, err := unix.InotifyAddWatch(fd, p, unix.IN_OPEN); err != nil {
			t.Fatalf("inotify_add_watch(%s): %v", p, err)
		}
	}
	return func() int {
		b := make([]byte, 1<<16)
		n, _ := unix.Read(fd, b)
		return max(n, 0) / unix.SizeofInotifyEvent
	}
}

// TestSpecialFiles: a device, a FIFO or a terminal is not opened, whatever leads to it: a module's name, its debug link, its alternate file, a
// split file, a package, a perf map, a dump. Nor is a file that the owner of what names it may not read.
func TestSpecialFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("this test lacks the right to make devices: run it as root")
	}
	oracle.Need(t, "gcc", "objcopy", "strip")
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	at := func(name string) string { return filepath.Join(dir, name) }
	device, fifo := at("device"), at("fifo")
	if err := unix.Mknod(device, unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))); err != nil {
		t.Skipf("this test lacks the right to make devices: %v", err)
	}
	if err := unix.Mkfifo(fifo, 0o666); err != nil {
		t.Fatal(err)
	}
	ptmx, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("this test lacks pseudo-terminals: %v", err)
	}
	defer ptmx.Close()
	if err := unix.IoctlSetPointerInt(int(ptmx.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(ptmx.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal := filepath.Join("/dev/pts", strconv.Itoa(number))
	if opens := opened(t, fifo); true { // the watch works
		f, _ := os.OpenFile(fifo, os.O_RDONLY|unix.O_NONBLOCK, 0)
		f.Close()
		if n := opens(); n != 1 {
			t.Fatalf("opening %s, a FIFO, is seen %d times, want 1", fifo, n)
		}
	}

	write(t, at("a.c"), "int main(void) { return 0; }\n")
	oracle.Run(t, "gcc", "-g", "-gsplit-dwarf", "-o", at("split"), at("a.c"), "-dumpdir", dir+"/")
	oracle.Run(t, "gcc", "-g", "-o", at("whole"), at("a.c"))
	oracle.Run(t, "strip", "-o", at("bare"), at("whole"))
	write(t, at("link"), "a.debug\x00"+string(binary.LittleEndian.AppendUint32(nil, 0x12345678)))
	oracle.Run(t, "objcopy", "--add-section", ".gnu_debuglink="+at("link"), at("bare"), at("linked"))
	dwos, _ := filepath.Glob(at("*.dwo"))
	if len(dwos) != 1 {
		t.Fatalf("split files %v", dwos)
	}

	for _, special := range []string{device, fifo, terminal} {
		opens := opened(t, special)
		for _, c := range []struct{ what, module, link string }{
			{"a module", at("module"), at("module")},
			{"a deleted module", at("module (deleted)"), at("module (deleted)")},
			{".gnu_debuglink", at("linked"), at("a.debug")},
			{".gnu_debuglink, in .debug", at("linked"), at(".debug/a.debug")},
			{"an alternate file", at("whole"), at("alternate")},
			{"a split file", at("split"), dwos[0]},
			{"a package", at("split"), at("split.dwp")},
		} {
			os.MkdirAll(filepath.Dir(c.link), 0o755)
			os.Remove(c.link)
			if err := os.Symlink(special, c.link); err != nil {
				t.Fatal(err)
			}
			r := New(Options{Files: &module.Locator{DebugDirs: []string{at("nowhere")}}})
			done := make(chan bool)
			go func() {
				tab := r.Module(c.module, "")
				lo, _, _ := tab.FuncRange("main")
				tab.Places([]arch.Vaddr{lo, 0x1000})
				tab.linked(at("alternate"), []byte("its build ID")) // as .gnu_debugaltlink calls it
				tab.Note()
				close(done)
			}()
			select {
			case <-done:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s leads to %s, and nothing comes back", c.what, special)
			}
			if n := opens(); n > 0 {
				t.Errorf("%s leads to %s, which was opened %d times", c.what, special, n)
			}
			r.Close()
			os.Remove(c.link)
		}
		for _, name := range []string{"/tmp/perf-" + strconv.Itoa(os.Getpid()) + ".map", at("jit-1.dump")} {
			os.Remove(name)
			if err := os.Symlink(special, name); err != nil {
				t.Fatal(err)
			}
			code := jit.Open(jit.Seen(os.Getpid()), []string{at("jit-1.dump")})
			code.Lookup([]arch.Addr{0x1000}, jit.Always)
			if n := opens(); n > 0 || code.Note() == "" {
				t.Errorf("%s leads to %s, which was opened %d times; note %q", name, special, n, code.Note())
			}
			os.Remove(name)
		}
	}
}

// TestDebugFileOfOthers: a file's word leads only where its owner may read.
func TestDebugFileOfOthers(t *testing.T) {
	oracle.Long(t)
	if os.Geteuid() != 0 {
		t.Skip("this test lacks the right to give files away: run it as root")
	}
	path := built(t)
	dir, err := os.MkdirTemp("/tmp", "others")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	bare, debug := filepath.Join(dir, "bare"), filepath.Join(dir, "a.debug")
	oracle.Run(t, "objcopy", "--only-keep-debug", path, debug)
	oracle.Run(t, "strip", "-o", bare, path)
	oracle.Run(t, "objcopy", "--add-gnu-debuglink="+debug, bare)
	for _, c := range []struct {
		uid  int
		mode os.FileMode
		want bool
	}{{0, 0o600, true}, {65534, 0o600, false}, {65534, 0o644, true}} {
		os.Chown(bare, c.uid, c.uid)
		os.Chmod(debug, c.mode)
		r := New(Options{Files: &module.Locator{DebugDirs: []string{filepath.Join(dir, "nowhere")}}})
		tab := r.Module(bare, "")
		if _, _, ok := tab.FuncRange("hidden1"); ok != c.want || (tab.Note() == "") != c.want {
			t.Errorf("the file of user %d names one with mode %v: %v, %q", c.uid, c.mode, ok, tab.Note())
		}
		r.Close()
	}
}

// TestLinkToHole: the checksum of a debug file is not computed through a hole, nor after the end.
func TestLinkToHole(t *testing.T) {
	oracle.Long(t)
	path := built(t)
	dir := filepath.Dir(path)
	bare, debug := filepath.Join(dir, "bare"), filepath.Join(dir, "a.debug")
	oracle.Run(t, "objcopy", "--only-keep-debug", path, debug)
	oracle.Run(t, "strip", "-o", bare, path)
	oracle.Run(t, "objcopy", "--add-gnu-debuglink="+debug, bare)
	if err := os.Truncate(debug, 8<<30-1); err != nil {
		t.Skipf("this test lacks a file system for a sparse file: %v", err)
	}
	began := time.Now()
	r := New(Options{Files: &module.Locator{DebugDirs: []string{filepath.Join(dir, "nowhere")}}})
	defer r.Close()
	tab := r.Module(bare, "")
	if _, _, ok := tab.FuncRange("hidden1"); ok || tab.Note() == "" || time.Since(began) > 2*time.Second {
		t.Errorf("names %v, note %q, after %v", ok, tab.Note(), time.Since(began))
	}
}
