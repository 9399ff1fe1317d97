package compile

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/csource"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/module"
)

const spin = "../testdata/root/opt/spin"

func TestFiles(t *testing.T) {
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "text"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	var skipped []string
	got, err := Files([]string{"../testdata", empty, spin, filepath.Join(empty, "text")}, func(err error) { skipped = append(skipped, err.Error()) })
	if want := []string{spin, spin, filepath.Join(empty, "text")}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Files = %q, %v, want %q", got, err, want)
	}
	if want := []string{empty + ": no ELF executables or shared objects"}; !slices.Equal(skipped, want) {
		t.Errorf("skipped %q, want %q", skipped, want)
	}
	if _, err := Files([]string{filepath.Join(empty, "none")}, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestMapped(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if files, err := Mapped(os.Getpid()); err != nil || !slices.Contains(files, self) {
		t.Errorf("Mapped = %q, %v, want %s among them", files, err, self)
	}
}

// Each file is worked on once, what is done with the results needs no lock, and nothing begins when the context has ended.
func TestEach(t *testing.T) {
	var files, done []string
	for i := range 100 {
		files = append(files, fmt.Sprint(i))
	}
	failed := 0
	work := func(path string) (string, error) {
		if strings.HasSuffix(path, "7") {
			return path, errors.New(path)
		}
		return path, nil
	}
	err := Each(t.Context(), files, work, func(path string, err error) {
		if done = append(done, path); err != nil {
			failed++
		}
	})
	slices.Sort(files)
	slices.Sort(done)
	if err != nil || failed != 10 || !slices.Equal(done, files) {
		t.Errorf("Each: %v, %d failed, done with %q", err, failed, done)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	err = Each(ctx, files, work, func(string, error) { n++; cancel() })
	if !errors.Is(err, context.Canceled) || n == 0 || n > 50 {
		t.Errorf("interrupted: %v, %d done", err, n)
	}
}

func TestCompiler(t *testing.T) {
	img, err := module.Open(spin)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	for emit, ending := range map[string]string{"table": ".unspool", "native": ".eh_elf.so", "c": ".c"} {
		c := Compiler{Emit: emit, Dir: t.TempDir(), Native: native.Options{Layout: native.Page, Deref: native.Self}}
		r, err := c.File(spin)
		made, rerr := os.ReadFile(filepath.Join(c.Dir, img.ID()+ending))
		if err != nil || rerr != nil || r.Size != int64(len(made)) || r.Size == 0 || r.Source != 0x80 || r.Found {
			t.Errorf("%s: %+v, %v: %d bytes, %v", emit, r, err, len(made), rerr)
		}
		if emit == "table" {
			if _, err := compact.Load(made); err != nil {
				t.Error(err)
			}
		}
		c.Dir = filepath.Join(c.Dir, "none")
		if _, err := c.File(spin); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v, want %v", emit, err, os.ErrNotExist)
		}
	}
}

// TestTally: each file is counted as one thing, and what is damaged in it does not matter.
func TestTally(t *testing.T) {
	var got Tally
	bad := errors.New("bad")
	for _, r := range []struct {
		Result
		err error
	}{{Result{Size: 5, Source: 10}, nil}, {Result{Size: 6, Source: 20, Found: true}, bad}, {Result{}, nil}, {Result{}, bad}, {Result{Size: 1, Source: 2}, bad}} {
		got.Add(r.Result, r.err)
	}
	if want := (Tally{Made: 2, Found: 1, None: 1, Size: 12, Source: 32}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

// TestCOptions: C is laid out, and reads memory, as machine code with the same options does.
func TestCOptions(t *testing.T) {
	for _, o := range []native.Options{{Layout: native.Page, Deref: native.Self}, {Layout: native.Tree, Deref: native.Callback}, {Layout: native.Inline, Deref: native.Slice}} {
		c := cOptions(o)
		if c.Deref.String() != o.Deref.String() || (c.Layout == csource.Switch) != (o.Layout == native.Inline) {
			t.Errorf("%v, %v: %v, %v", o.Layout, o.Deref, c.Layout, c.Deref)
		}
	}
}

// TestRows: the rows of a file are there by source, and a file without any says so.
func TestRows(t *testing.T) {
	all, damage, err := Rows(spin)
	if err != nil || len(damage) > 0 || len(all.Rows) == 0 {
		t.Fatalf("%v, %v, %v", all, damage, err)
	}
	if one, _, err := Rows(spin, ".eh_frame"); err != nil || len(one.Rows) != len(all.Rows) {
		t.Errorf(".eh_frame: %v, %v", one, err)
	}
	if _, _, err := Rows(spin, ".debug_frame"); !errors.Is(err, ErrNoRows) || err.Error() != spin+": no call frame information" {
		t.Errorf(".debug_frame: %v", err)
	}
	if _, _, err := Rows("compile_test.go"); err == nil {
		t.Error("a text has rows")
	}
}

func TestProveAndMeasure(t *testing.T) {
	for _, code := range []bool{false, true} {
		p, err := Prove(spin, code)
		if err != nil || p.Rows == 0 || p.Rules == 0 || p.Damaged != 0 {
			t.Errorf("Prove = %+v, %v", p, err)
		}
	}
	s, err := Measure(spin)
	if err != nil || s.File != spin || s.FDEs != 4 || s.CIEs != 2 || s.EHFrame != 0x80 || s.Opcodes["DW_CFA_undefined"] != 1 {
		t.Errorf("Measure = %+v, %v", s, err)
	}
	sum := Sum([]*Stats{s, s})
	if sum.Files != 2 || sum.Rows != 2*s.Rows || sum.Table != 2*s.Table || sum.Ratio != s.Ratio || sum.Opcodes["DW_CFA_undefined"] != 2 {
		t.Errorf("Sum = %+v", sum)
	}
	if _, err := Measure("compile_test.go"); err == nil {
		t.Error("a text is measured")
	}
}
