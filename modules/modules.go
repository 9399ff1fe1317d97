// Package modules makes walkable code of files. It opens the files that a process maps, and gets their tables from a store. It adds two
// facts that tables lack: where stacks begin, and where procedure linkage tables lie.
package modules

import (
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
	"weak"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/store"
	"github.com/unspool/unspool/unwind"
)

// A Set makes the modules of address spaces. A file that many processes map is one module. It is safe for concurrent use.
type Set struct {
	// Files finds the modules' files and keeps them open. Set its fields, or another Locator, before the first call of Module.
	Files *module.Locator

	store  *store.Store
	opened error // why the store keeps nothing on disk
	kind   kind
	reread reread

	mu       sync.Mutex
	mods     map[[2]string]weak.Pointer[unwind.Module] // those that somebody has
	sweep    int                                       // how many may be known before those are forgotten that nobody has
	errs     []error                                   // of modules, each once
	errTexts map[string]bool                           // their texts
}

// Bounds: from how many modules on those are forgotten that nobody has, and how many errors are kept.
const (
	minSweep = 1 << 10
	maxErrs  = 1 << 10
)

// A kind says what finds and applies rules.
type kind uint8

const (
	compacts kind = iota
	interpreted
	natives
)

// Steppers are the names that ByName takes.
var Steppers = []string{"compact", "native", "rows"}

// ByName returns a Set by the name of its stepper: compact tables (New), machine code (Native), or rows (Interpreted).
func ByName(stepper string) (*Set, error) {
	switch stepper {
	case "compact":
		return New(), nil
	case "native":
		return Native(), nil
	case "rows":
		return Interpreted(), nil
	}
	return nil, fmt.Errorf("%q is none of %s", stepper, strings.Join(Steppers, ", "))
}

// New returns a Set whose tables are kept in the user's cache. If the cache cannot be used, tables are built in memory, and CacheErr has the
// reason.
func New() *Set {
	st, err := store.Open("")
	return newSet(&Set{store: st, opened: err})
}

// Native returns a Set whose modules are walked by machine code. The code is kept in the user's cache. It is for x86-64 and AArch64: modules of
// other machines have no rules, and an error with the reason.
func Native() *Set {
	s := New()
	s.kind = natives
	return s
}

// Interpreted returns a Set whose modules are walked by the reference interpreter.
func Interpreted() *Set { return newSet(&Set{kind: interpreted}) }

func newSet(s *Set) *Set {
	s.mods, s.errTexts, s.Files = map[[2]string]weak.Pointer[unwind.Module]{}, map[string]bool{}, &module.Locator{}
	return s
}

// CacheErr returns the error that prevented keeping a table on disk; nil if there was none.
func (s *Set) CacheErr() error {
	if s.opened != nil || s.store == nil {
		return s.opened
	}
	return s.store.Err()
}

// CacheDir returns the directory of the kept tables, which belongs to this user alone; "" if tables are not kept.
func (s *Set) CacheDir() string {
	if s.store == nil {
		return ""
	}
	return s.store.Dir()
}

// Bound bounds the memory for making a table, and several at the same time: see store.Store.Memory. It is to be called before the first use.
func (s *Set) Bound(one, together int64) {
	if s.store != nil {
		s.store.Memory, s.store.Together = one, together
	}
}

// Close releases the files and the machine code of all modules that the Set made, which nobody may use any more. The Set may be used again.
func (s *Set) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.mods)
	s.reread.keep("", nil)
	err := s.Files.Close()
	if s.store != nil {
		err = errors.Join(err, s.store.Close())
	}
	return err
}

// Module returns the module of a file by its path, as a process sees it, and its build ID in hex. With an empty build ID, the file now at the
// path is the right one. If the path has another file, or none, a container may have the file.
func (s *Set) Module(path, buildID string) *unwind.Module {
	key := [2]string{path, buildID}
	if buildID == "" {
		if st, err := os.Stat(path); err == nil {
			sys, _ := st.Sys().(*syscall.Stat_t)
			key[1] = fmt.Sprint("file ", sys.Dev, sys.Ino, st.ModTime())
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.mods[key].Value()
	if m == nil {
		if len(s.mods) >= max(s.sweep, minSweep) {
			maps.DeleteFunc(s.mods, func(_ [2]string, m weak.Pointer[unwind.Module]) bool { return m.Value() == nil })
			s.sweep = 2 * len(s.mods)
		}
		was := &earlier{}
		m = unwind.NewModule(path, buildID, func(m *unwind.Module) *unwind.Code { return s.load(m, was) })
		s.mods[key] = weak.Make(m)
	}
	return m
}

// Image returns the module of an open image, such as another kernel's vDSO. The Set does not keep it: each call makes a new module.
func (s *Set) Image(img *module.Image) *unwind.Module {
	return unwind.NewModule(img.Name(), hex.EncodeToString(img.BuildID()), func(m *unwind.Module) (c *unwind.Code) {
		if err := module.Guard(func() error { c = s.code(m.Path, img); return nil }); err != nil {
			return &unwind.Code{Err: fmt.Errorf("%s: %w", m.Path, err)}
		}
		return c
	})
}

// Kept returns the module of a deleted file, from its mapped first page and the table that an earlier run kept. head is this page, with the
// program headers and the build ID. Kept returns nil if the cache has no table. Each call makes a new module.
func (s *Set) Kept(head *module.Image) *unwind.Module {
	id := hex.EncodeToString(head.BuildID())
	if s.store == nil {
		return nil
	}
	t := s.store.Kept(id)
	if t == nil {
		return nil
	}
	return unwind.NewModule(head.Name(), id, func(m *unwind.Module) (c *unwind.Code) {
		if err := module.Guard(func() error { c = codeOf(head, t); return nil }); err != nil {
			return &unwind.Code{Err: fmt.Errorf("%s: %w", m.Path, err)}
		}
		return c
	})
}

// Errors returns the errors of the modules loaded so far, each once.
func (s *Set) Errors() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.errs)
}

func (s *Set) failed(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text := err.Error(); !s.errTexts[text] && len(s.errs) < maxErrs {
		s.errTexts[text], s.errs = true, append(s.errs, err)
	}
}

// codeCost is about what a module's code takes beside its table, in bytes.
const codeCost = 8 << 10

// An earlier is what was read of a module before.
type earlier struct {
	code weak.Pointer[unwind.Code]
	file *module.File // nil: nothing was read
}

// load reads a module's code, when a stack leads there, and again when that was too much for the budget and a stack leads there again. Code that
// somebody still has is not read again: the memory would be taken twice.
func (s *Set) load(m *unwind.Module, was *earlier) (c *unwind.Code) {
	if c = was.code.Value(); c == nil || c.Err != nil {
		if err := module.Guard(func() error { c = s.read(m, &was.file); return nil }); err != nil {
			c = &unwind.Code{Err: fmt.Errorf("%s: %w", m.Path, err)}
		}
		if c == nil {
			return nil
		}
		was.code = weak.Make(c)
	}
	if c.Err != nil {
		s.failed(c.Err)
	}
	s.Files.Memory.Add(codeSize(c), func() bool { return m.Unload(c) })
	return c
}

// codeSize returns about how many bytes a module's code takes. Of tables that are mapped, nothing: they are the kernel's to drop.
func codeSize(c *unwind.Code) int64 {
	switch st := c.Stepper.(type) {
	case interface{ Bytes() []byte }:
		if b := st.Bytes(); !pages.Mapped(b) {
			return codeCost + int64(len(b))
		}
	case rows.Interp:
		return codeCost + int64(len(st.Table.Rows))*int64(unsafe.Sizeof(rows.Row{}))
	}
	return codeCost
}

func (s *Set) read(m *unwind.Module, was **module.File) *unwind.Code {
	img, in, err := s.Files.Find(m.Path, m.BuildID, int(m.Process()))
	if err != nil {
		return &unwind.Code{Err: err}
	}
	if img == nil {
		return nil
	}
	defer img.Release()
	if !sameFile(m, *was, img.File()) {
		return &unwind.Code{Err: fmt.Errorf("%s: the file has changed", m.Path)}
	}
	c := s.code(m.Path, img)
	if errors.Is(c.Err, store.ErrWritten) { // as it is now, it may be the one again
		if img2, in2, err := s.Files.Find(m.Path, m.BuildID, int(m.Process())); img2 != nil && err == nil {
			defer img2.Release()
			img, in = img2, in2
			c = s.code(m.Path, img)
		}
	}
	file := img.File()
	*was = file
	var current atomic.Pointer[module.Image]
	current.Store(img)
	var looked atomic.Int64                                           // when; in ns
	var gone atomic.Bool                                              // the file was not there then
	here := in == 0 && module.OnDisk(m.Path) && s.Files.Sysroot == "" // and not below a process's root
	c.Text = func(v arch.Vaddr, to []byte) (n int) {
		if now := time.Now().UnixNano(); now-looked.Load() > int64(time.Second) { // a question to the file system takes longer than to read code
			looked.Store(now)
			gone.Store(!s.follow(m, &current, file))
		}
		if gone.Load() {
			return 0
		}
		img := current.Load()
		if !img.Hold() {
			if here {
				if n, ok := s.reread.at(m.Path, img.File(), c.Segments, v, to); ok {
					return n
				}
			}
			again, _, err := s.Files.Find(m.Path, m.BuildID, int(m.Process()))
			if again == nil || err != nil {
				return 0
			}
			img = again
		}
		defer img.Release()
		if sameFile(m, file, img.File()) {
			n = textOf(img, v, to)
		}
		return n
	}
	return c
}

// follow opens a module's file again, if somebody has written to it. It says whether it is still the file that was read.
func (s *Set) follow(m *unwind.Module, current *atomic.Pointer[module.Image], was *module.File) bool {
	if !current.Load().Changed() {
		return true
	}
	img, _, err := s.Files.Find(m.Path, m.BuildID, int(m.Process()))
	if img == nil || err != nil {
		return false
	}
	defer img.Release() // the Locator holds it
	same := sameFile(m, was, img.File())
	if same {
		current.Store(img)
	}
	return same
}

// sameFile says whether a file that was opened again is the one that was read before, nil for none: where nobody knows a build ID.
func sameFile(m *unwind.Module, was, is *module.File) bool {
	if was == nil || is == nil || module.IsBuildID(m.BuildID) {
		return true
	}
	return was.Dev == is.Dev && was.Ino == is.Ino && was.Size == is.Size && was.Mtim == is.Mtim
}

// textOf copies code from v on.
func textOf(img *module.Image, v arch.Vaddr, to []byte) (n int) {
	_ = module.Guard(func() error { n = copy(to, img.Tail(v)); return nil })
	return n
}

// code returns the walkable code of an image.
func (s *Set) code(path string, img *module.Image) *unwind.Code {
	var st rows.Stepper
	var err error
	if img.Machine().StepKnown {
		if st, err = s.table(img); err != nil {
			err = fmt.Errorf("%s: %w", path, err)
		}
	} else {
		err = fmt.Errorf("%s: cannot walk stacks of %s", path, img.Machine().Name)
	}
	c := codeOf(img, st)
	c.Err = err
	return c
}

// reread reads code of files that are not mapped any more. It keeps the last one open: the frames of a stack are often of one file. A file that does not
// answer holds up nobody else.
type reread struct {
	mu   sync.Mutex
	path string
	file *os.File // nil: none
}

// at reads code at v. ok is false where another file is at the path, or none. To map a file and to read its headers takes a hundred times as long, and
// walks of copies need few bytes of each of many programs.
func (r *reread) at(path string, was *module.File, segments []unwind.Segment, v arch.Vaddr, to []byte) (n int, ok bool) {
	i := slices.IndexFunc(segments, func(s unwind.Segment) bool { return uint64(v-s.Vaddr) < s.Size })
	if i < 0 {
		return 0, false
	}
	f := r.opened(path)
	if f == nil || !isFile(f, was) {
		var err error
		if f, err = module.OpenFile(path); err != nil {
			return 0, false
		}
		if !isFile(f, was) {
			f.Close()
			return 0, false
		}
		r.keep(path, f)
	}
	s := &segments[i]
	at := uint64(v - s.Vaddr)
	n, err := f.ReadAt(to[:min(uint64(len(to)), s.Size-at)], int64(s.Off+at)) // it fails if another has taken its place meanwhile
	return n, err == nil
}

// opened returns the open file if it is at the path.
func (r *reread) opened(path string) *os.File {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.path != path {
		return nil
	}
	return r.file
}

// keep keeps a file open in place of the last one.
func (r *reread) keep(path string, f *os.File) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file != nil {
		r.file.Close()
	}
	r.path, r.file = path, f
}

// isFile says whether f is the file that was, and as it was.
func isFile(f *os.File, was *module.File) bool {
	var st unix.Stat_t
	return was != nil && unix.Fstat(int(f.Fd()), &st) == nil && st.Dev == was.Dev && st.Ino == was.Ino && st.Size == was.Size && st.Mtim == was.Mtim && st.Ctim == was.Ctim
}

// codeOf returns the code of an image that a stepper walks; nil is none.
func codeOf(img *module.Image, st rows.Stepper) *unwind.Code {
	c := &unwind.Code{Machine: img.Machine(), Vaddr: img.OffToVaddr, Stepper: st, Text: func(v arch.Vaddr, to []byte) int { return textOf(img, v, to) }}
	for _, x := range img.Segments() {
		if x.Kind == module.Loaded && x.Perm&module.Exec != 0 && x.Size > 0 {
			c.Segments = append(c.Segments, unwind.Segment{Off: x.Off, Size: x.Size, Vaddr: x.Vaddr})
		}
	}
	if !c.Machine.StepKnown {
		return c
	}
	goRanges(c, img)
	c.Terminal = append(c.Terminal, terminals(img, st)...)
	c.PLT = plts(img)
	return c
}

// table returns the stepper of an image; nil where it has no unwind information.
func (s *Set) table(img *module.Image) (rows.Stepper, error) {
	switch s.kind {
	case natives:
		c, _, err := s.store.Native(img, native.Options{Layout: native.Page, Deref: native.Slice})
		if c == nil {
			return nil, err
		}
		if !c.Callable() {
			return nil, native.ErrHost
		}
		return c, err
	case interpreted:
		return interpreter(img)
	}
	if img.Made() { // the next process makes another one
		return interpreter(img)
	}
	t, _, err := s.store.Table(img)
	if t == nil {
		return nil, err
	}
	return t, err
}

// interpreter returns the rows of an image; nil where it has no unwind information.
func interpreter(img *module.Image) (rows.Stepper, error) {
	f, err := format.Open(img)
	t, _ := f.Rows()
	if len(t.Rows) == 0 {
		return nil, err
	}
	return rows.Interp{Table: t}, err
}

// terminals returns the code of img that has no caller although no rule says so.
func terminals(img *module.Image, st rows.Stepper) []unwind.Range {
	var out []unwind.Range
	// The entry point of an executable or an interpreter, where it has no information: ld.so's has
	// none. Its end is unknown without a symbol; the code that runs there is short.
	if entry := img.Entry(); entry != 0 {
		lo, hi := entry, entry
		for hi < entry+256 {
			if st != nil {
				if _, ok := st.Find(hi); ok {
					break
				}
			}
			hi++
		}
		if hi > lo {
			out = append(out, unwind.Range{Lo: lo, Hi: hi})
		}
	}
	return out
}

// plts returns img's procedure linkage tables.
func plts(img *module.Image) []unwind.PLTRange {
	var out []unwind.PLTRange
	for _, s := range img.Sections() {
		if !s.IsPLT() {
			continue
		}
		lazy := false
		if shape := img.Machine().PLT; s.Name == ".plt" && shape != nil {
			code := img.Tail(s.Addr)
			lazy = shape.Lazy(code[:min(len(code), arch.MaxPush)])
		}
		out = append(out, unwind.PLTRange{Range: unwind.Range{Lo: s.Addr, Hi: s.Addr + arch.Vaddr(s.Size)}, Lazy: lazy})
	}
	return out
}
