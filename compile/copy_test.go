package compile

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// put writes a file.
func put(t *testing.T, path string, b []byte, mode os.FileMode) {
	t.Helper()
	if err := os.WriteFile(path, b, mode); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCopyTruncated copies a file that somebody truncates meanwhile: that is an error, or the copy was made before.
func TestCopyTruncated(t *testing.T) {
	dir := t.TempDir()
	path, out := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	b := get(t, "/bin/ls")
	put(t, path, b, 0o755)
	if _, err := Copy(context.Background(), path, out, "sframe"); err != nil {
		t.Fatal(err)
	}
	whole := get(t, out)
	n, last := 0, error(nil)
	for i := range 60 {
		put(t, path, b, 0o755)
		done := make(chan error)
		go func() {
			time.Sleep(time.Duration(i) * 50 * time.Microsecond)
			done <- os.Truncate(path, 4096)
		}()
		_, err := Copy(context.Background(), path, out, "sframe")
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if errors.Is(err, module.ErrTruncated) {
			n++
		} else if made := get(t, out); err == nil && !bytes.Equal(made, whole) {
			t.Errorf("copy %d has no error and %d bytes; a copy of the whole file has %d", i, len(made), len(whole))
		}
		last = err
	}
	if n == 0 {
		t.Errorf("none of 60 copies met the end of a file that was truncated meanwhile; the error of the last is %v", last)
	}
}

// TestCopyEHFrame: of a PE image comes an ELF file with its rows; a file with .eh_frame and an object file are refused.
func TestCopyEHFrame(t *testing.T) {
	out := filepath.Join(t.TempDir(), "a.elf")
	image := "../format/pe/testdata/arm64.dll"
	text, err := Copy(context.Background(), image, out, "eh_frame")
	if !strings.Contains(text, " rows in ") || !strings.Contains(text, " of .eh_frame and ") {
		t.Errorf("%q, %v", text, err)
	}
	whole, _ := Prove(image, false)
	p, err := Prove(out, false)
	if err != nil || p.Rows != whole.Rows || p.Rows < 50 {
		t.Errorf("%d rows, %v; the image has %d", p.Rows, err, whole.Rows)
	}
	for path, want := range map[string]string{"/bin/ls": "the file has .eh_frame", "../module/testdata/x86_64.coff.o": "an object file: its code has no addresses yet"} {
		if _, err := Copy(context.Background(), path, out, "eh_frame"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", path, err, want)
		}
	}
}

// TestEmbed: the copy of a program has its machine code, and runs.
func TestEmbed(t *testing.T) {
	out := filepath.Join(t.TempDir(), "ls")
	text, err := Embed(context.Background(), "/bin/ls", out, native.Options{Deref: native.Self})
	if err != nil || !strings.Contains(text, " of machine code, beside ") {
		t.Errorf("%q, %v", text, err)
	}
	if a, err := exec.Command(out, "/").Output(); err != nil || len(a) == 0 {
		t.Errorf("%q, %v", a, err)
	}
	if _, err := Embed(context.Background(), "../format/pe/testdata/amd64.dll", out, native.Options{}); err == nil || !strings.Contains(err.Error(), "another format than ELF") {
		t.Errorf("a PE image: %v", err)
	}
}

// TestCopyPlaces writes copies to files of several modes and kinds.
func TestCopyPlaces(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	put(t, at("a.c"), []byte("static char big[40 << 20];\nint main(int argc, char **argv) { big[argc] = 1; return big[argc + 1]; }\n"), 0o600)
	if out, err := exec.Command("gcc", "-O1", "-o", at("a"), at("a.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	ctx := context.Background()
	copied := func(from, to string) {
		t.Helper()
		if _, err := Copy(ctx, from, to, "sframe"); err != nil {
			t.Fatal(err)
		}
	}
	// What .bss takes in memory is a hole in a file, and zeros elsewhere.
	copied(at("a"), at("file"))
	want := get(t, at("file"))
	var st unix.Stat_t
	if err := unix.Stat(at("file"), &st); err != nil || st.Size < 40<<20 || st.Blocks*512 > 1<<20 {
		t.Errorf("%d bytes on disk of %d, %v", st.Blocks*512, st.Size, err)
	}
	if err := exec.Command(at("file")).Run(); err != nil {
		t.Error(err)
	}
	// A file with holes of its own is not copied.
	put(t, at("holes"), get(t, at("a")), 0o755)
	if err := os.Truncate(at("holes"), 1<<30); err != nil {
		t.Fatal(err)
	}
	if _, err := Copy(ctx, at("holes"), at("no"), "sframe"); err == nil || !strings.Contains(err.Error(), " of holes: no copy is made") {
		t.Errorf("a file with holes: %v", err)
	}

	// Others get no right that they lack, and none to write.
	for _, c := range []struct{ from, to os.FileMode }{{0o600, 0o600}, {0o755, 0o755}, {0o777, 0o755}, {0o4750, 0o750}, {0o400, 0o400}} {
		put(t, at("private"), get(t, at("a")), 0o600)
		if err := unix.Chmod(at("private"), uint32(c.from)); err != nil {
			t.Fatal(err)
		}
		if os.Geteuid() == 0 {
			if err := os.Lchown(at("private"), 65534, 65534); err != nil {
				t.Fatal(err)
			}
			unix.Chmod(at("private"), uint32(c.from)) // chown takes the set-user-ID bit
		}
		copied(at("private"), at("copy"))
		if err := unix.Stat(at("copy"), &st); err != nil || os.FileMode(st.Mode&0o7777) != c.to || st.Uid != uint32(os.Geteuid()) {
			t.Errorf("mode %o of user %d, %v, of a file of mode %o", st.Mode, st.Uid, err, c.from)
		}
	}
	os.Remove(at("private"))

	// A descriptor's file keeps its mode and what it has; a descriptor that appends does.
	for _, flags := range []int{0, os.O_APPEND} {
		put(t, at("through"), []byte("before"), 0o640)
		f, err := os.OpenFile(at("through"), os.O_RDWR|flags, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Seek(6, 0); err != nil {
			t.Fatal(err)
		}
		copied(at("a"), fmt.Sprintf("/dev/fd/%d", f.Fd()))
		f.Close()
		if !bytes.Equal(get(t, at("through")), append([]byte("before"), want...)) {
			t.Errorf("flags %#x: the file is not the copy", flags)
		}
		if st, err := os.Stat(at("through")); err != nil || st.Mode() != 0o640 {
			t.Errorf("flags %#x: %v, %v", flags, st.Mode(), err)
		}
	}
	if err := syscall.Mkfifo(at("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	var through error
	read := make(chan []byte)
	go func() {
		var b []byte
		b, through = os.ReadFile(at("fifo"))
		read <- b
	}()
	copied(at("a"), at("fifo"))
	if b := <-read; through != nil || !bytes.Equal(b, want) {
		same := 0
		for same < min(len(b), len(want)) && b[same] == want[same] {
			same++
		}
		t.Errorf("what comes through a FIFO is not the copy: %d bytes, want %d, of which the first %d are the same; %v", len(b), len(want), same, through)
	}
	if st, err := os.Stat(at("fifo")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("the FIFO: %v, %v", st.Mode(), err)
	}
	// Nobody reads a program on a terminal.
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		oracle.Lacks(t, "/dev/ptmx")
	}
	defer master.Close()
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil || unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0) != nil {
		oracle.Lacks(t, "/dev/pts")
	}
	if _, err := Copy(ctx, at("a"), fmt.Sprintf("/dev/pts/%d", n), "sframe"); err == nil || !strings.Contains(err.Error(), "a program is binary") {
		t.Errorf("a terminal: %v", err)
	}
	// Nothing else is left.
	for _, name := range []string{"no", "private"} {
		if _, err := os.Lstat(at(name)); err == nil {
			t.Errorf("%s is there", name)
		}
	}
	left, err := filepath.Glob(at(".*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left: %q, %v", left, err)
	}
}

// TestCopyWhole watches a copy while it is written: it can be run when it is whole, and not before.
func TestCopyWhole(t *testing.T) {
	dir := t.TempDir()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_ATTRIB|unix.IN_MOVED_TO); err != nil {
		t.Fatal(err)
	}
	if _, err := Copy(context.Background(), "/bin/ls", filepath.Join(dir, "a"), "sframe"); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1<<16)
	n, err := unix.Read(fd, b)
	if err != nil {
		t.Fatal(err)
	}
	var masks []uint32
	for b = b[:n]; len(b) >= unix.SizeofInotifyEvent; b = b[unix.SizeofInotifyEvent+binary.NativeEndian.Uint32(b[12:]):] {
		if m := binary.NativeEndian.Uint32(b[4:]); len(masks) == 0 || masks[len(masks)-1] != m {
			masks = append(masks, m)
		}
	}
	if want := []uint32{unix.IN_CREATE, unix.IN_MODIFY, unix.IN_ATTRIB, unix.IN_MOVED_TO}; !slices.Equal(masks, want) {
		t.Errorf("events %#x, want %#x", masks, want)
	}
}
