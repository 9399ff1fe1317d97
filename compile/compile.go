package compile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/csource"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/store"
)

// A Compiler compiles files into a store or a directory. It is safe for concurrent use.
type Compiler struct {
	Emit   string         // "table", "native" or "c"
	Native native.Options // of "native", and of "c", which has two layouts: a page is a tree there

	// Store keeps tables and machine code by build ID, where Dir is empty.
	Store *store.Store

	// Dir gets BUILDID.unspool, BUILDID.eh_elf.so or BUILDID.c, made anew: a build ID does not say that what is there is of this file.
	Dir string

	// Registers names the registers that machine code and C in Dir recover; empty: all. The stack pointer and the return address are among them. All
	// others are lost in callers. A file with a rule that needs another register that calls preserve is refused.
	Registers []string

	// Functions puts a section of functions and handlers of exceptions behind tables in Dir.
	Functions bool
}

// Check refuses settings that contradict each other, of which layout and deref are names that native.ParseLayout and ParseDeref take. "" as deref is what
// suits the output: self in Dir, slice for walkers. embed says that the output is for Embed. C goes to the current directory if Dir is empty. Errors call
// settings by the names of the command's flags.
func (c *Compiler) Check(layout, deref string, embed bool) (err error) {
	if deref == "" && c.Dir == "" {
		deref = "slice"
	}
	if c.Native.Layout, err = native.ParseLayout(layout); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if c.Native.Deref, err = native.ParseDeref(cmp.Or(deref, "self")); err != nil {
		return fmt.Errorf("--%w", err)
	}
	switch {
	case embed && c.Emit != "native":
		return errors.New("--embed goes with --emit native")
	case c.Functions && (c.Emit != "table" || c.Dir == ""):
		return errors.New("--functions is for tables that -o writes")
	case len(c.Registers) > 0 && (c.Emit == "table" || c.Dir == "" && c.Emit == "native" || embed):
		return errors.New("--registers is for machine code and C that -o writes")
	case !slices.Contains([]string{"table", "native", "c"}, c.Emit):
		return fmt.Errorf("--emit is table, native, c, sframe, sframe2, eh_frame, orc or orc-VERSION, not %q", c.Emit)
	case c.Emit == "c":
		c.Dir = cmp.Or(c.Dir, ".")
	}
	return nil
}

// Begin makes Dir, or opens the store of this user. It is called before File.
func (c *Compiler) Begin() (err error) {
	if c.Dir != "" {
		return caps.Raised(func() error { return os.MkdirAll(c.Dir, 0o777) })
	}
	c.Store, err = store.Open("")
	return err
}

// A Result describes the output made from a file.
type Result struct {
	Size   int64 // 0: the file has no unwind information
	Source int64 // size of its unwind information
	Found  bool  // it was in the store
}

// A Tally counts what was made of files.
type Tally struct {
	Made, Found, None int   // files: compiled, found in the store, without unwind information
	Size, Source      int64 // of all
}

// Add counts what File returned. A file of which nothing was made, because of an error, is none of them.
func (t *Tally) Add(r Result, err error) {
	switch {
	case r.Size == 0 && err != nil:
	case r.Size == 0:
		t.None++
	case r.Found:
		t.Found++
	default:
		t.Made++
	}
	t.Size += r.Size
	t.Source += r.Source
}

// Text says what was made, in the form that emit names; "" where all files were errors.
func (t *Tally) Text(emit string) string {
	compiled := t.Made + t.Found
	if compiled+t.None == 0 {
		return ""
	}
	out := printable.Count(uint64(compiled), "file", "files") + " compiled"
	if compiled > 0 {
		what := map[string]string{"table": "tables", "native": "machine code", "c": "C"}[emit]
		out += fmt.Sprintf(": %s of %s from %s of unwind information", printable.Bytes(t.Size), what, printable.Bytes(t.Source))
	}
	if t.Found > 0 {
		out += fmt.Sprintf("; %d were there already", t.Found)
	}
	if t.None > 0 {
		out += fmt.Sprintf("; %d without unwind information", t.None)
	}
	return out
}

// Shared says what was made of files for all users.
func (t *Tally) Shared() string {
	return fmt.Sprintf("%s compiled, %d were there, %d without unwind information: %s of tables", printable.Count(uint64(t.Made), "file", "files"), t.Found, t.None,
		printable.Bytes(t.Size))
}

// File compiles a file. With an error can come a Result: what is damaged in the file is missing from it.
func (c *Compiler) File(path string) (Result, error) {
	img, f, err := Open(path)
	if err != nil {
		return Result{}, err
	}
	defer img.Close()
	n, found, err := c.compile(img, f)
	r := Result{Size: int64(n)}
	if n > 0 {
		r.Found = found
		for _, src := range f.Sources {
			if !src.Spare {
				r.Source += int64(src.Size)
			}
		}
	}
	if err != nil {
		return r, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// cOptions returns the options of C that mean what those of machine code do.
func cOptions(o native.Options) csource.Options {
	c := csource.Options{Deref: [...]csource.Deref{native.Self: csource.Self, native.Callback: csource.Callback, native.Slice: csource.Slice}[o.Deref], Layout: csource.Tree}
	if o.Layout == native.Inline {
		c.Layout = csource.Switch
	}
	return c
}

// compile returns the size of what it made, or found in the store.
func (c *Compiler) compile(img *module.Image, f *format.Unwind) (size int, found bool, err error) {
	write := func(ending string, b []byte) error {
		return outfile.WriteFile(filepath.Join(c.Dir, img.ID()+ending), b, outfile.Options{})
	}
	switch {
	case c.Emit == "c":
		ref, _ := f.Rows()
		if len(ref.Rows) == 0 {
			return 0, false, nil
		}
		if ref, err = c.rows(ref); err != nil {
			return 0, false, err
		}
		var buf bytes.Buffer
		if err = csource.Emit(&buf, ref, cOptions(c.Native)); err != nil {
			return 0, false, err
		}
		return buf.Len(), false, write(".c", buf.Bytes())
	case c.Emit == "table" && c.Dir == "":
		t, from, err := c.Store.Table(img)
		if t != nil {
			size = len(t.Bytes())
		}
		return size, from != store.Built, errors.Join(err, c.Store.Err())
	case c.Emit == "native" && c.Dir == "":
		code, from, err := c.Store.Native(img, c.Native)
		if code != nil {
			size = len(code.Bytes())
		}
		return size, from != store.Built, errors.Join(err, c.Store.Err())
	case c.Emit == "table":
		b, _, err := store.Build(f)
		if b == nil {
			return 0, false, err
		}
		size = len(b)
		if c.Functions {
			var ferr error
			if b, ferr = compact.AppendFunctions(b, f.Handlers()); ferr != nil {
				return 0, false, ferr
			}
		}
		return size, false, errors.Join(err, write(".unspool", b))
	}
	o := c.Native
	o.ID = img.ID()
	build := store.BuildNative
	if len(c.Registers) > 0 {
		build = c.nativeOf
	}
	b, code, err := build(f, o)
	if b == nil {
		return 0, false, err
	}
	defer code.Close()
	return len(b), false, errors.Join(err, write(".eh_elf.so", b))
}

// nativeOf makes machine code as store.BuildNative does, of the registers that c names.
func (c *Compiler) nativeOf(f *format.Unwind, o native.Options) ([]byte, *native.Code, error) {
	ref, damage := f.Rows()
	var lost error
	if len(damage) > 0 {
		lost = fmt.Errorf("%d damaged entries; the first: %w", len(damage), damage[0])
	}
	if len(ref.Rows) == 0 {
		return nil, nil, lost
	}
	ref, err := c.rows(ref)
	if err != nil {
		return nil, nil, err
	}
	b, err := native.Emit(ref, o)
	if err != nil {
		return nil, nil, err
	}
	code, err := native.Load(b)
	if err != nil {
		return nil, nil, fmt.Errorf("BUG: %w", err)
	}
	if err := native.Verify(code, ref, 1); err != nil {
		code.Close()
		return nil, nil, fmt.Errorf("BUG: %w", err)
	}
	return b, code, lost
}

// rows returns what of t is to be compiled.
func (c *Compiler) rows(t *rows.Table) (*rows.Table, error) {
	if len(c.Registers) == 0 {
		return t, nil
	}
	keep, err := registersOf(t.Machine, c.Registers)
	if err != nil {
		return nil, err
	}
	return only(t, keep)
}
