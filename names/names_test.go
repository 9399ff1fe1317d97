package names

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/symbol"
)

// TestGone: a program that was walked has names as long as it is open, whatever becomes of its file.
func TestGone(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	t.Setenv("DEBUGINFOD_URLS", "")
	dir := t.TempDir()
	source, path := filepath.Join(dir, "a.c"), filepath.Join(dir, "a")
	build := func(text string) {
		t.Helper()
		os.Remove(path)
		if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("gcc", "-g", "-Wl,--build-id", "-o", path, source).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	build("int was_here(int a) { return a * 2; }\nint main(int n, char **v) { return was_here(n); }\n")
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	tab := symbol.New(symbol.Options{})
	defer tab.Close()
	at, _, ok := tab.Module(path, "").FuncRange("was_here")
	off, found := img.VaddrToOff(at)
	if !ok || !found {
		t.Fatalf("no was_here: %#x, %v", at, ok)
	}
	id := hex.EncodeToString(img.BuildID())
	for what, gone := range map[string]func(){"deleted": func() { os.Remove(path) }, "built again": func() { build("int is_here;\nint main() { return is_here; }\n") }} {
		build("int was_here(int a) { return a * 2; }\nint main(int n, char **v) { return was_here(n); }\n")
		mods := modules.Interpreted()
		m := mods.Module(path, id)
		if c := m.Code(); c == nil || c.Err != nil {
			t.Fatalf("%+v", c)
		}
		gone()
		n := New(Options{Mods: mods})
		n.Lines = true
		var names [1]profile.Name
		if n.User(m, []uint64{off}, names[:]); names[0].Func != "was_here" || len(names[0].Source) != 1 || names[0].Source[0].Line != 1 {
			t.Errorf("%s: %+v; %q", what, names[0], n.Notes())
		}
		if lo, _, ok := n.Bounds(&profile.Module{Path: path, BuildID: id}, at+1); !ok || lo != at {
			t.Errorf("%s: its bounds begin at %#x, %v", what, lo, ok)
		}
		if err := errors.Join(n.Close(), mods.Files.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestLateDump: a process maps its dump after code of it was asked for.
func TestLateDump(t *testing.T) {
	dump := filepath.Join(t.TempDir(), "jit-1.dump")
	le := binary.LittleEndian
	b := le.AppendUint32([]byte("DTiJ"), 1)
	b = le.AppendUint32(b, 40) // the size of the header
	b = append(b, make([]byte, 28)...)
	b = le.AppendUint32(append(b, 0, 0, 0, 0), 16+40+5) // JIT_CODE_LOAD
	for _, v := range []uint64{1, 0, 0x7000, 0x7000, 0x100, 1} {
		b = le.AppendUint64(b, v)
	}
	if err := os.WriteFile(dump, append(b, "late\x00"...), 0o600); err != nil {
		t.Fatal(err)
	}
	n := New(Options{})
	defer n.Close()
	pid := int32(os.Getpid())
	var names [1]profile.Name
	if n.made.name(pid, []uint64{0x7010}, names[:]); names[0].Func != "" {
		t.Fatalf("before: %v", names[0])
	}
	mapped := &source.Record{Type: source.RecordMmap2, PID: pid, Filename: []byte(dump)}
	n.Observe(mapped)
	other := New(Options{Elsewhere: true}) // of another machine's recording
	defer other.Close()
	other.Observe(mapped)
	if other.made.name(pid, []uint64{0x7010}, names[:]); names[0].Func != "" || len(other.Notes()) != 1 {
		t.Errorf("a dump of another machine's process is one of this machine: %v, %q", names[0], other.Notes())
	}
	if n.made.name(pid, []uint64{0x7010}, names[:]); names[0].Func != "late" {
		t.Errorf("after: %v, %q", names[0], n.Notes())
	}
}
