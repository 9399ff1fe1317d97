// Package debuginfo finds lines and inlined calls of link-time addresses in the DWARF debug information of one file. It reads versions 2 to
// 5 in either byte order, compressed sections, split units in .dwo files and .dwp packages, and dwz's alternate files (DWARF 5, sections
// 2.17, 3.3, 6.1.2, 6.2, 7.3, 7.5; GNU's forerunners of them).
//
// Nothing is read before somebody asks for it. Addresses lead to units by .debug_aranges, or by the units' own DIEs. The first address in a
// unit has the unit's functions listed; the first address in a function has its inlined calls read. Answers are llvm-symbolizer's. The
// package does not relocate sections, so it reads no relocatable files except .dwo.
package debuginfo

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
)

// Options say what may be opened and kept.
type Options struct {
	// Open opens another file that the debug information names: a .dwo, a .dwp, an alternate file. It may look elsewhere than at path.
	// buildID is an alternate file's build ID, else nil. Close closes the image. nil opens nothing.
	Open func(path string, buildID []byte) (*module.Image, error)

	// CacheDir is a directory of this user alone. For files with a build ID, it keeps the index from addresses to units, and compressed
	// sections in expanded form. "" keeps nothing.
	CacheDir string
}

// A Place is a place in the source.
type Place struct {
	Name    string // of the function, as the source has it, without its namespace: not demangled
	Linkage string // its linkage name; "" if the debug information has none, as in C
	File    string // joined to the compilation directory; "" unknown
	Line    uint32 // 0 unknown, or none in particular
	Column  uint32 // 0 unknown
	Decl    uint32 // the line of the function's declaration, 0 unknown
}

// A Row gives the line of the instructions from Addr to the next row. File "" stands for unknown.
type Row struct {
	Addr arch.Vaddr
	File string
	Line uint32
}

// An Info is a file's debug information. It is safe for concurrent use until Close.
type Info struct {
	opt   Options
	main  *file
	units func() []span // id is the unit's offset
	dwp   func() *file

	mu     sync.Mutex
	read   map[unitKey]*unit
	tables map[unitKey]*abbrevs
	codes  map[uint64]*code
	splits map[string]*file
	images []*module.Image
	mapped []func() // release files of the cache

	mappedSize int          // bytes of these
	last       atomic.Int64 // what Size returned
	notes      []string
	size       int // of what is in the maps, in bytes, roughly
	left       int // see spend
}

// A unitKey is an offset in some section of a file.
type unitKey struct {
	f   *file
	off uint64
}

// maxSize is how many bytes of what was read from units are kept: then all is forgotten, and read again when it is wanted.
const maxSize = 256 << 20

var errRelocatable = errors.New("debug information of a relocatable file")

// Open returns the debug information of img; nil if it has none. img stays the caller's and must stay open until Close.
func Open(img *module.Image, o Options) (*Info, error) {
	if s := img.Section(".debug_info"); s == nil || s.Empty || s.Size == 0 {
		return nil, nil
	}
	if !img.Linked() && !img.Made() {
		return nil, fmt.Errorf("%s: %w: %w", img.Name(), errRelocatable, module.ErrUnsupported)
	}
	in := &Info{opt: o, left: minWork}
	in.forget()
	in.splits = map[string]*file{}
	in.main = newFile(in, img, false)
	in.units = sync.OnceValue(in.index)
	in.dwp = sync.OnceValue(in.openPackage)
	return in, nil
}

// Places returns the source places of each address: the place itself, then the call that it was inlined into, and so on. The last place is in
// the function that contains the address. The result is nil for an unknown address. Places is fastest when addrs are sorted. Names are raw:
// the caller demangles Linkage.
func (in *Info) Places(addrs []arch.Vaddr) [][]Place {
	out := make([][]Place, len(addrs))
	in.spend(-addrWork * len(addrs))
	in.guard(func() {
		var (
			units = in.units()
			slab  []Place
			s     *span
			c     *code
		)
		for i, a := range addrs {
			a := uint64(a)
			if s == nil || a < s.lo || a >= s.hi {
				if s = find(units, a); s == nil {
					continue
				}
				c = in.code(s.id)
			}
			if c == nil {
				continue
			}
			if i > 0 && addrs[i-1] == addrs[i] {
				out[i] = out[i-1]
				continue
			}
			n := len(slab)
			if slab = c.places(slab, a); len(slab) > n {
				out[i] = slab[n:len(slab):len(slab)]
			}
			if len(slab) > 1<<12 {
				slab = nil
			}
		}
	})
	return out
}

// Lines returns the rows of the line number table of [lo, hi), sorted; the first begins at lo or later.
func (in *Info) Lines(lo, hi arch.Vaddr) []Row {
	var out []Row
	in.guard(func() {
		end := uint64(lo)
		units := in.units()
		i, _ := slices.BinarySearchFunc(units, uint64(lo), func(s span, a uint64) int {
			if s.hi <= a {
				return -1
			}
			return 1
		})
		for ; i < len(units) && units[i].lo < uint64(hi); i++ {
			s := &units[i]
			if c := in.code(s.id); c != nil {
				from := max(s.lo, uint64(lo))
				if from != end {
					out = appendRow(out, Row{Addr: arch.Vaddr(end)})
				}
				end = min(s.hi, uint64(hi))
				out = c.rows(out, from, end)
			}
		}
		if end < uint64(hi) && len(out) > 0 {
			out = appendRow(out, Row{Addr: arch.Vaddr(end)})
		}
	})
	return out
}

// appendRow leaves out what the row before says already.
func appendRow(out []Row, r Row) []Row {
	n := len(out)
	if n > 0 && out[n-1].File == r.File && out[n-1].Line == r.Line || n == 0 && r.File == "" {
		return out
	}
	return append(out, r)
}

// guard runs f; a file that was truncated meanwhile is a note.
func (in *Info) guard(f func()) {
	if err := module.Guard(func() error { f(); return nil }); err != nil {
		in.note("%v", err)
	}
}

// maxNotes bounds how much is told.
const maxNotes = 100

func (in *Info) note(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.notes) < maxNotes && !slices.Contains(in.notes, s) {
		in.notes = append(in.notes, s)
	}
}

// Notes says what is missing or damaged, as far as known, each thing once.
func (in *Info) Notes() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return slices.Clone(in.notes)
}

// Close closes the other files. Results of Places and Lines stay valid. No method may be called afterwards.
func (in *Info) Close() error {
	in.mu.Lock()
	defer in.mu.Unlock()
	var errs []error
	for _, img := range in.images {
		errs = append(errs, img.Close())
	}
	in.images = nil
	for _, unmap := range in.mapped {
		unmap()
	}
	in.mapped = nil
	return errors.Join(errs...)
}

// Size returns about how many bytes is kept of what was read.
func (in *Info) Size() int64 {
	if in.mu.TryLock() { // else somebody reads now, and it is as it was
		in.last.Store(int64(in.size + in.mappedSize))
		in.mu.Unlock()
	}
	return in.last.Load()
}

// forget empties what can be read again. The caller has in.mu, or in alone.
func (in *Info) forget() {
	in.read, in.tables, in.codes, in.size = map[unitKey]*unit{}, map[unitKey]*abbrevs{}, map[uint64]*code{}, 0
}

// Hostile units share long tables and lists, and what was forgotten is read again. The work on them is bounded, in bytes that are read: what a
// file may cost, and what each byte of its sections, each address that is asked for, and each range adds.
const (
	minWork   = 128 << 20
	byteWork  = 16
	addrWork  = 64 << 10
	rangeWork = 128
)

// spend counts work, and says whether more may be done.
func (in *Info) spend(n int) bool {
	in.mu.Lock()
	in.left -= n
	ok := in.left > 0
	in.mu.Unlock()
	if !ok {
		in.note("%s: not all is read: its units have too much in common", in.main.img.Name())
	}
	return ok
}

// Names longer than longName are cut to that where there are too many of them.
const longName = 1 << 10

func (in *Info) text(b []byte) string {
	if len(b) > longName && !in.spend(len(b)) {
		b = b[:longName]
	}
	return string(b)
}

// grow counts what is kept.
func (in *Info) grow(n int) {
	in.mu.Lock()
	in.size += n
	in.mu.Unlock()
}

// code returns the code of the unit at an offset of .debug_info, or nil.
func (in *Info) code(off uint64) *code {
	in.mu.Lock()
	if in.size > maxSize {
		in.forget()
	}
	c, ok := in.codes[off]
	in.mu.Unlock()
	if ok {
		return c
	}
	if u := in.unit(in.main, off); u != nil {
		c = &code{in: in, u: u, trees: map[uint64]*tree{}, names: map[die]*function{}}
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if had, ok := in.codes[off]; ok {
		return had
	}
	in.codes[off] = c
	return c
}

// unit returns the unit whose header is at an offset, or nil.
func (in *Info) unit(f *file, off uint64) *unit {
	key := unitKey{f, off}
	in.mu.Lock()
	u, ok := in.read[key]
	in.mu.Unlock()
	if ok {
		return u
	}
	u = f.readUnit(off)
	in.mu.Lock()
	defer in.mu.Unlock()
	if had, ok := in.read[key]; ok {
		return had
	}
	in.read[key] = u
	in.size += 500
	return u
}

// abbrevs returns the abbreviations at an offset of .debug_abbrev, all read.
func (in *Info) abbrevs(f *file, off uint64) *abbrevs {
	key := unitKey{f, off}
	in.mu.Lock()
	t := in.tables[key]
	in.mu.Unlock()
	if t != nil {
		return t
	}
	t = &abbrevs{c: f.abbrevsAt(off), done: !in.spend(0)}
	t.all()
	in.spend(byteWork * (t.c.off - int(min(off, uint64(t.c.off)))))
	in.mu.Lock()
	defer in.mu.Unlock()
	if had := in.tables[key]; had != nil {
		return had
	}
	in.tables[key] = t
	in.size += 16 * (t.c.off - int(min(off, uint64(t.c.off))))
	return t
}

// try opens another file, or returns nil.
func (in *Info) try(path string, buildID []byte) *module.Image {
	if in.opt.Open == nil {
		return nil
	}
	img, err := in.opt.Open(path, buildID)
	if err != nil || img == nil {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.images = append(in.images, img)
	return img
}

// open opens another file, or notes that it is missing.
func (in *Info) open(path string, buildID []byte, what string) *module.Image {
	img := in.try(path, buildID)
	if img == nil {
		in.note("%s: the %s %s is missing", in.main.img.Name(), what, path)
	}
	return img
}

// splitFile opens a .dwo, once.
func (in *Info) splitFile(path string) *file {
	in.mu.Lock()
	f, ok := in.splits[path]
	in.mu.Unlock()
	if ok {
		return f
	}
	if img := in.open(path, nil, "split file"); img != nil {
		f = newFile(in, img, true)
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	if had, ok := in.splits[path]; ok {
		return had
	}
	in.splits[path] = f
	return f
}
