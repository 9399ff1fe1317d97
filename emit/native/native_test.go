package native

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

const (
	libc = "/lib/x86_64-linux-gnu/libc.so.6"
	ld   = "/lib64/ld-linux-x86-64.so.2"
)

// readTable returns the rows of a file.
func readTable(t testing.TB, path string) *rows.Table {
	t.Helper()
	img, err := module.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		oracle.Lacks(t, path)
	} else if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	ref, _ := f.Build(dwarf.Both)
	return ref
}

// all calls f for each layout and memory kind.
func all(t *testing.T, f func(t *testing.T, o Options)) {
	for l := range numLayouts {
		for d := range numDerefs {
			o := Options{Layout: l, Deref: d, ID: "0123456789abcdef"}
			t.Run(l.String()+" "+d.String(), func(t *testing.T) { f(t, o) })
		}
	}
}

// emitted returns a table's code, loaded; mustLoad closes it at the end of the test.
func emitted(t testing.TB, ref *rows.Table, o Options) *Code {
	t.Helper()
	b, err := Emit(ref, o)
	if err != nil {
		t.Fatal(err)
	}
	c, err := Load(b)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustLoad(t testing.TB, ref *rows.Table, o Options) *Code {
	t.Helper()
	c := emitted(t, ref, o)
	t.Cleanup(func() { c.Close() })
	return c
}

// TestVerify runs the code of real modules, in every layout and with every memory kind.
func TestVerify(t *testing.T) {
	for _, path := range []string{ld, libc} {
		ref := readTable(t, path)
		all(t, func(t *testing.T, o Options) {
			if o.Layout == Inline && path == libc {
				return // as ld.so, and long: every row has a rule of its own
			}
			c := mustLoad(t, ref, o)
			if err := Verify(c, ref, 1); err != nil {
				t.Fatal(err)
			}
			t.Logf("%s: %d bytes, of them %d of code", path, len(c.Bytes()), c.TextSize())
		})
	}
}

// TestStateLayout holds the offsets in the emitted code against the structures they stand for.
func TestStateLayout(t *testing.T) {
	var s rows.State
	var m slice
	var w word
	for _, x := range []struct {
		name      string
		got, want uintptr
	}{
		{"PC", unsafe.Offsetof(s.PC), offPC}, {"CFA", unsafe.Offsetof(s.CFA), offCFA}, {"Known", unsafe.Offsetof(s.Known), offKnown},
		{"InMem", unsafe.Offsetof(s.InMem), offInMem}, {"InReg", unsafe.Offsetof(s.InReg), offInReg}, {"Val", unsafe.Offsetof(s.Val), offVal},
		{"Snap", unsafe.Offsetof(s.Snap), offSnap}, {"Fault", unsafe.Offsetof(s.Fault), offFault},
		{"lo", unsafe.Offsetof(m.lo), sliceLo}, {"size", unsafe.Offsetof(m.size), sliceSize}, {"bytes", unsafe.Offsetof(m.bytes), sliceBytes},
		{"words", unsafe.Offsetof(m.words), sliceWords}, {"n", unsafe.Offsetof(m.n), sliceN}, {"more", unsafe.Offsetof(m.more), sliceMore},
		{"addr", unsafe.Offsetof(w.addr), wordAddr}, {"value", unsafe.Offsetof(w.value), wordValue}, {"ok", unsafe.Offsetof(w.ok), wordOK},
		{"a word", unsafe.Sizeof(w), wordSize}, {"an info", unsafe.Sizeof(info{}), infoSize},
	} {
		if x.got != x.want {
			t.Errorf("%s: at %d\n want %d", x.name, x.got, x.want)
		}
	}
}

// TestTools shows a file to readelf, objdump and gdb.
func TestTools(t *testing.T) {
	oracle.Need(t, "readelf", "objdump")
	ref := readTable(t, ld)
	b, err := Emit(ref, Options{ID: "0123"})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "x.eh_elf.so")
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("readelf", "-aW", path).CombinedOutput()
	if err != nil || bytes.Contains(out, []byte("Warning")) || bytes.Contains(out, []byte("Error")) {
		t.Errorf("readelf: %v\n%s", err, out)
	}
}
