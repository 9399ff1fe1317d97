// Package symbol names addresses. Link-time addresses in modules come in; function names go out, as the symbol tables have them (System V
// ABI, chapter 4, "Symbol Table") and demangled, with lines and inlined calls.
//
// Names come from the first of these that exists:
//
//   - the file's .symtab;
//   - the .symtab of its separate debug file, found by build ID, by .gnu_debuglink, or fetched;
//   - .dynsym, the .symtab inside .gnu_debugdata, and a Go program's own table.
//
// An entry of a procedure linkage table is named after its target. The kernel's names come from /proc/kallsyms. Only a function that
// contains an address names it.
//
// Lines and inlined calls (Table.Places) come from debug information in the file or in its separate debug file (package symbol/debuginfo).
// Without debug information, they come from a Go program's own table (package symbol/gosym).
package symbol

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// A Symbol is a function. The zero Symbol stands for no name.
type Symbol struct {
	Name    string // demangled, with parameters, where Linkage is a C++ or Rust name
	Linkage string // as the symbol table spells it; "puts@plt" in a procedure linkage table
	Start   arch.Vaddr
	Size    uint64 // bytes; up to the next symbol where the table says none
}

// Options say where names come from. The zero value is right for recordings of this machine.
type Options struct {
	// Context ends long work, such as the checksum of a large file. nil: nothing ends it.
	Context context.Context

	// Files finds the modules' files and their debug files, and keeps them open; Close does not close it. nil stands for the Resolver's own
	// Locator, which searches the usual places of this machine, and which Close closes.
	Files *module.Locator

	// Fetch gets a file that this machine lacks, of kind "debuginfo" or "executable", and returns its path. nil: nothing is fetched.
	Fetch func(buildID []byte, kind string) (path string, err error)

	// Kallsyms is the file of the kernel's symbols. "" stands for /proc/kallsyms.
	Kallsyms string

	// CacheDir is a directory of this user alone. It keeps the names of the running kernel, which take some 50 ms to read, and the
	// index of debug information's units. "" keeps nothing.
	CacheDir string

	// KernelID is the build ID, in hex, of the kernel that the addresses belong to; "" if unknown. If it is not the running kernel's, kernel
	// addresses get no names.
	KernelID string

	// Recorded says that the kernel's addresses come from a recording. KernelRelease is the recording's uname -r, or "". Without a build ID,
	// a kernel of the same release gives the names; without a release, a kernel at the same address.
	Recorded      bool
	KernelRelease string

	// RecordedBy is a time by which the recording was finished; zero: not known. Code that the kernel got later is not in the recording.
	RecordedBy time.Time

	// KernelText is the address of the symbol _text, or of _stext if KernelTextName says so, in the kernel that the addresses belong to; 0
	// if unknown. After a reboot, the kernel lies elsewhere.
	KernelText     uint64
	KernelTextName string
}

// A Resolver finds names. It opens each file once. It is safe for concurrent use.
type Resolver struct {
	opt    Options
	own    bool // Files is this Resolver's
	names  names
	kernel kernel
	kept   kernel // as it was when it was kept

	scarce atomic.Bool // a table was released for want of room

	mu         sync.Mutex
	kernelUsed bool
	tables     map[[2]string]weak.Pointer[Table] // those that somebody has, or that are open
	sweep      int                               // how many may be known before those are forgotten that are neither
	noted      []string                          // of tables that were released
	images     map[*module.Image]*Table
}

const runningKallsyms = "/proc/kallsyms"

// New returns a Resolver.
func New(opt Options) *Resolver {
	if opt.Context == nil {
		opt.Context = context.Background()
	}
	if opt.Kallsyms == "" {
		opt.Kallsyms = runningKallsyms
	}
	own := opt.Files == nil
	if own {
		opt.Files = &module.Locator{}
	}
	return &Resolver{opt: opt, own: own, tables: map[[2]string]weak.Pointer[Table]{}, images: map[*module.Image]*Table{}}
}

// Module returns the names of the file at path, as a process sees it. buildID is the recorded build ID, in hex, or "": a file with another
// build ID is not the file that ran. The file is opened at the first use of the table.
func (r *Resolver) Module(path, buildID string) *Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	key := [2]string{path, buildID}
	t := r.tables[key].Value()
	if t == nil {
		if len(r.tables) >= max(r.sweep, minSweep) {
			maps.DeleteFunc(r.tables, func(_ [2]string, t weak.Pointer[Table]) bool { return t.Value() == nil })
			r.sweep = 2 * len(r.tables)
		}
		t = &Table{r: r, path: path, id: buildID}
		r.tables[key] = weak.Make(t)
	}
	return t
}

// Image returns the names of an open image, such as another kernel's vDSO. Close does not close it.
func (r *Resolver) Image(img *module.Image) *Table {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.images[img]
	if t == nil {
		t = &Table{r: r, path: img.Name(), given: img}
		r.images[img] = t
	}
	return t
}

// Notes says what is missing or damaged in existing debug files and debug information.
func (r *Resolver) Notes() (out []string) {
	r.mu.Lock()
	tables := slices.Collect(maps.Values(r.images))
	for _, w := range r.tables {
		if t := w.Value(); t != nil {
			tables = append(tables, t)
		}
	}
	out = slices.Clone(r.noted)
	r.mu.Unlock()
	for _, t := range tables {
		out = append(out, t.notes()...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// Bounds: from how many tables on those are forgotten that nobody has, and how many notes of released tables are kept.
const (
	minSweep = 1 << 10
	maxNoted = 1 << 8
)

// remember keeps notes of a table that is released.
func (r *Resolver) remember(notes []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, n := range notes {
		if len(r.noted) < maxNoted && !slices.Contains(r.noted, n) {
			r.noted = append(r.noted, n)
		}
	}
}

// Short returns the demangled form of a linkage name, without parameters and clone suffixes. It returns a name that is not mangled unchanged.
func (r *Resolver) Short(linkage string) string { return r.names.get(linkage, true) }

// Close unmaps the files. Tables find nothing afterwards; returned symbols stay valid.
func (r *Resolver) Close() error {
	r.mu.Lock()
	tables := slices.Collect(maps.Values(r.images))
	for _, w := range r.tables {
		if t := w.Value(); t != nil {
			tables = append(tables, t)
		}
	}
	r.mu.Unlock()
	var errs []error
	if f := r.kernel.file.Swap(nil); f != nil {
		errs = append(errs, f.Close())
	}
	for _, t := range tables {
		errs = append(errs, t.close())
	}
	if r.own {
		errs = append(errs, r.opt.Files.Close())
	}
	return errors.Join(errs...)
}
