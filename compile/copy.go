package compile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/term"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/ehframe"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/emit/sframe"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/store"
)

// An added is what a copy of a file has besides.
type added struct {
	bytes []byte // the copy
	from  int    // where what was added begins; 0: the whole is new
	text  string // what it is
}

// A copier makes a copy.
type copier func(img *module.Image, f *format.Unwind, t *rows.Table) (added, error)

// copies make copies, by what they add.
var copies = map[string]copier{
	"sframe": func(img *module.Image, f *format.Unwind, t *rows.Table) (added, error) {
		return addSFrame(img, f, t, 3)
	},
	"sframe2": func(img *module.Image, f *format.Unwind, t *rows.Table) (added, error) {
		return addSFrame(img, f, t, 2)
	},
	"eh_frame": addEHFrame,
}

// copierOf returns what adds what emit names; nil: nothing does.
func copierOf(emit string) copier {
	if v, ok := orcVersion(emit); ok {
		return func(img *module.Image, _ *format.Unwind, t *rows.Table) (added, error) { return addORC(img, t, v) }
	}
	return copies[emit]
}

// Copies says whether Copy adds what emit names.
func Copies(emit string) bool { return copierOf(emit) != nil }

// Copy writes a copy of a program or library to out. The copy has in addition what emit names: an SFrame section of version 3 or 2 ("sframe",
// "sframe2"), which says what all unwind information of the file does. "eh_frame" adds .eh_frame to a file without it; of PE and Mach-O, which have no room for it, it
// makes an ELF file that has nothing else. "orc" and "orc-6.12" add ORC to an object file. Copy returns what the copy has, in words. With an error can come a copy: damaged
// entries are missing in it.
func Copy(ctx context.Context, path, out, emit string) (text string, err error) {
	return copyOf(ctx, path, out, copierOf(emit))
}

// Embed writes a copy of a program or library to out that has its machine code in it: an eh_elf file, which eh_elf.h finds there. It returns what the
// copy has, in words.
func Embed(ctx context.Context, path, out string, o native.Options) (text string, err error) {
	return copyOf(ctx, path, out, func(img *module.Image, f *format.Unwind, _ *rows.Table) (added, error) {
		if img.Format() != "ELF" {
			return added{}, errors.New("a file of another format than ELF has no room for machine code")
		}
		o.ID = img.ID()
		code, loaded, err := store.BuildNative(f, o)
		if code == nil {
			return added{}, err
		}
		defer loaded.Close()
		b, err := native.Embed(img.Bytes(), code)
		text := fmt.Sprintf("%s of machine code", printable.Bytes(int64(len(code))))
		if n := f.Size(format.EHFrame) + f.IndexSize(); n > 0 {
			text += fmt.Sprintf(", beside %s of .eh_frame and its index", printable.Bytes(int64(n)))
		}
		return added{b, len(img.Bytes()), text}, err
	})
}

// copyOf writes what a copier makes.
func copyOf(ctx context.Context, path, out string, c copier) (text string, err error) {
	st, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	var a added
	var damage []error
	var unread error // names the file already
	if err := module.Guard(func() (err error) {
		img, f, err := Open(path)
		if err != nil {
			unread = err
			return nil
		}
		defer img.Close()
		if holes := img.Size() - img.Reach(); holes > 0 { // they would be in memory, and on disk
			return fmt.Errorf("the file has %s of holes: no copy is made", printable.Bytes(holes))
		}
		t, errs := f.Rows()
		if damage = errs; len(t.Rows) == 0 {
			return ErrNoRows
		}
		a, err = c(img, f, t)
		return err
	}); err != nil || unread != nil {
		if unread == nil {
			unread = fmt.Errorf("%s: %w", path, errors.Join(append(damage, err)...))
		}
		return "", unread
	}
	w, err := outfile.Create(ctx, out, outfile.Options{Private: true, Inputs: []os.FileInfo{st}})
	if err != nil {
		return "", err
	}
	if err := a.write(w, st.Mode().Perm()&^0o022); err != nil {
		return "", errors.Join(err, w.Discard())
	}
	if err := w.Commit(); err != nil {
		return "", err
	}
	for i := range damage {
		damage[i] = fmt.Errorf("%s: %w", path, damage[i])
	}
	return printable.Line(out) + ": " + a.text, errors.Join(damage...)
}

// write writes a copy. A file of its own gets a hole where the copy has zeros behind the file's bytes, and becomes executable when it is whole.
func (a *added) write(w *outfile.File, mode os.FileMode) error {
	b := a.bytes
	if w.Through() {
		if term.IsTerminal(int(w.Fd())) {
			return errors.New("a program is binary: give -o FILE, or pipe it")
		}
		_, err := w.Write(b)
		return err
	}
	if _, err := w.Write(b[:a.from]); err != nil {
		return err
	}
	b = bytes.TrimLeft(b[a.from:], "\x00")
	if _, err := w.Seek(int64(len(a.bytes)-len(b)), io.SeekStart); err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	return w.Chmod(mode)
}

// addSFrame adds an SFrame section.
func addSFrame(img *module.Image, f *format.Unwind, t *rows.Table, version int) (added, error) {
	b, s, err := sframe.Add(img.Bytes(), t, version, f.Bounds)
	if err != nil {
		return added{}, err
	}
	text := fmt.Sprintf("%s in %s", printable.Count(uint64(s.Rows), "row", "rows"), printable.Bytes(int64(len(s.Bytes))))
	if n := f.Size(format.EHFrame) + f.IndexSize(); n > 0 {
		text += fmt.Sprintf(", beside %s of .eh_frame and its index", printable.Bytes(int64(n)))
	}
	return added{b, len(img.Bytes()), text + leftOutText(s.Left)}, nil
}

// leftOutText says what a copy lacks.
func leftOutText(list []rows.Loss) (text string) {
	for _, l := range list {
		text += fmt.Sprintf("\n  left out: %s of code: %s", printable.Bytes(int64(l.Bytes)), l.Reason)
	}
	return text
}

// addEHFrame adds .eh_frame and its index.
func addEHFrame(img *module.Image, f *format.Unwind, t *rows.Table) (a added, err error) {
	var s *ehframe.Section
	if img.Format() == "ELF" {
		a.bytes, s, err = ehframe.Add(img.Bytes(), t, f.Bounds)
		a.from = len(img.Bytes())
	} else {
		a.bytes, s, err = besides(img, f, t)
	}
	if err != nil {
		return added{}, err
	}
	a.text = fmt.Sprintf("%s in %s of .eh_frame and %s of its index", printable.Count(uint64(s.Rows), "row", "rows"),
		printable.Bytes(int64(len(s.Bytes))), printable.Bytes(int64(len(s.Index))))
	if s.CallsOnly > 0 {
		a.text += fmt.Sprintf("\n  right at calls only, which .eh_frame cannot say: %s", printable.Count(uint64(s.CallsOnly), "row", "rows"))
	}
	a.text += leftOutText(s.Left)
	return a, nil
}

// besides makes an ELF file with the rows of an image of another format.
func besides(img *module.Image, f *format.Unwind, t *rows.Table) ([]byte, *ehframe.Section, error) {
	if !img.Linked() {
		return nil, nil, errors.New("an object file: its code has no addresses yet")
	}
	var code []ehframe.Range
	for _, s := range img.Segments() {
		if s.Kind == module.Loaded && s.Perm&module.Exec != 0 && s.MemSize > 0 && uint64(s.Vaddr)+s.MemSize > uint64(s.Vaddr) {
			code = append(code, ehframe.Range{Lo: s.Vaddr, Hi: s.Vaddr + arch.Vaddr(s.MemSize)})
		}
	}
	slices.SortFunc(code, func(a, b ehframe.Range) int { return cmp.Compare(a.Lo, b.Lo) })
	for i := range code {
		if i > 0 && code[i].Lo < code[i-1].Hi {
			return nil, nil, errors.New("parts of the code overlap")
		}
	}
	return ehframe.File(t, code, f.Bounds)
}
