package symbol

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/symbol/debuginfo"
	"github.com/unspool/unspool/symbol/gosym"
)

// A Table has the names of one module. It is safe for concurrent use.
type Table struct {
	r    *Resolver
	path string
	id   string

	given *module.Image // nil: that of path

	life   sync.RWMutex // held while the files are read, and locked to open and to release them
	opened bool
	closed bool
	share  *module.Share // of what the table takes; nil: it is not open

	// Set by open.
	img     *module.Image // nil if there is none, or it is not the one that ran
	pid     int           // of the process through whose root it was opened; 0: it is this machine's
	sources []source      // and under mu
	lacks   bool          // the file has no .symtab, and no debug file was found
	written time.Time     // when somebody was last seen to have written to a file, and the file was last looked for, until it is there again

	debug    *module.Image // separate debug file, if it was needed
	debugged sync.Once

	lined sync.Once
	info  *debuginfo.Info // nil: none
	gosym *gosym.Table    // nil: none

	mu    sync.Mutex // for what follows
	index *index     // nil until it is needed
	stubs bool       // sources have the names of procedure linkage tables
	asked bool       // since it was opened
	shown []uint32   // for each span, the place in named and 1 more; 0 if it was not asked for yet
	named []Symbol
	text  int64 // bytes of their names

	owning sync.Mutex // for what follows
	owned  []*module.Image
	held   []*module.Image    // those of Options.Files
	shared bool               // others could change some file that names come from
	there  bool               // the file is
	links  bool               // debug information named further files, since the table was made
	made   map[bool]*Identity // with lines, and without, while the files are open

	replaced bool   // another is there
	foreign  string // why the one that is there is for another machine; "" if it is not
	note     string
	noted    bool // debug information that was released had notes

	disturbed bool // the note is errWritten's
}

// Note says why names are missing; "" if none are.
func (t *Table) Note() string {
	t.enter()
	defer t.leave()
	t.owning.Lock()
	defer t.owning.Unlock()
	return t.note
}

func (t *Table) setNote(format string, args ...any) {
	t.owning.Lock()
	defer t.owning.Unlock()
	t.note = fmt.Sprintf(format, args...)
}

// Lookup returns the function that contains v. For many addresses Resolve is faster.
func (t *Table) Lookup(v arch.Vaddr) (Symbol, bool) {
	s := t.Resolve([]arch.Vaddr{v})[0]
	return s, s.Linkage != ""
}

// Resolve returns the function that contains each address, or the zero Symbol. It is fastest when addrs are sorted.
func (t *Table) Resolve(addrs []arch.Vaddr) []Symbol {
	out := make([]Symbol, len(addrs))
	ok := t.use(func() {
		clear(out)
		x, few := t.indexOf(addrs)
		span := -1
		for i, v := range addrs {
			if span = x.find(uint64(v), span); span < 0 || x.refs[span] == none {
				continue
			}
			if few {
				out[i] = t.symbolOf(x, span)
			} else {
				out[i] = *t.symbol(x, span)
			}
		}
		if few { // a whole symbol table was read for these addresses: those of many programs in turn would fill the memory
			for _, img := range []*module.Image{t.img, t.debug} {
				if img != nil {
					img.ReleasePages()
				}
			}
		}
	})
	if !ok {
		clear(out)
	}
	return out
}

// fewShare is for how many symbols there has to be less than one address, for an index of these addresses alone.
const fewShare = 32

// indexOf returns an index in which addrs can be looked up. few says that it is of these alone: where tables are released for want of room, one of all
// is only made of a table that is asked again while it is open. t.mu is held.
func (t *Table) indexOf(addrs []arch.Vaddr) (x *index, few bool) {
	again := t.asked
	t.asked = true
	if t.index != nil || again || !t.r.scarce.Load() || !slices.IsSorted(addrs) {
		return t.getIndex(), false
	}
	t.addPLT()
	all := 0
	for i := range t.sources {
		all += t.sources[i].Len()
	}
	if len(addrs) > all/fewShare {
		return t.getIndex(), false
	}
	return buildFor(t.sources, addrs), true
}

// FuncRange returns the range of the function with this linkage name; ok is false if there is none. Of several functions with the name, it
// takes the first in the table.
func (t *Table) FuncRange(linkage string) (lo, hi arch.Vaddr, ok bool) {
	whole := t.use(func() {
		ok = false
		for i := range t.sources {
			s := &t.sources[i]
			for j := range s.Len() {
				e := s.At(j)
				if string(s.name(e.Name)) != linkage || s.kind(&e) == noCode {
					continue
				}
				lo, hi, ok = arch.Vaddr(e.Value), arch.Vaddr(addSat(e.Value, e.Size)), true
				if x := t.getIndex(); e.Size == 0 {
					if k := x.find(e.Value, -1); k >= 0 {
						_, end := x.span(k)
						hi = arch.Vaddr(end)
					}
				}
				return
			}
		}
	})
	return lo, hi, ok && whole
}

// Private says whether only root and this user could change or replace the module's file and its other files, such as its debug file. It is
// false if the file is not the one that ran.
func (t *Table) Private() bool {
	t.enter()
	defer t.leave()
	if t.img == nil || t.img.File() == nil || !t.img.File().Private {
		return false
	}
	if t.id != "" && !module.SameBuildID(hex.EncodeToString(t.img.BuildID()), t.id) {
		return false
	}
	t.owning.Lock()
	defer t.owning.Unlock()
	return !t.shared
}

// Replaced says whether another file has replaced the file that ran.
func (t *Table) Replaced() bool {
	t.enter()
	defer t.leave()
	t.owning.Lock()
	defer t.owning.Unlock()
	return t.replaced
}

// Foreign says that the file is for another machine than the one that ran; "" if it is not.
func (t *Table) Foreign() string {
	t.enter()
	defer t.leave()
	t.owning.Lock()
	defer t.owning.Unlock()
	return t.foreign
}

// Lacks says whether the file exists, and has only the symbols that a program needs to run.
func (t *Table) Lacks() bool {
	t.enter()
	defer t.leave()
	return t.img != nil && t.lacks
}

// Exported says that all names are those that a file of Windows exports: they have no sizes, and most functions have none.
func (t *Table) Exported() bool {
	t.enter()
	defer t.leave()
	return t.img != nil && t.lacks && t.img.Format() == "PE"
}

// OffToVaddr translates an offset in the module's file to its link-time address. ok is false if neither the file that ran nor its debug file
// has the answer.
func (t *Table) OffToVaddr(off uint64) (v arch.Vaddr, ok bool) {
	t.enter()
	defer t.leave()
	switch {
	case t.img != nil:
		return t.img.OffToVaddr(off)
	case t.debug != nil:
		return t.debug.OffToVaddr(off)
	}
	return 0, false
}

// use opens the table and runs f while the files are mapped. If they turn out shorter than they were, f is cut
// short, and the result is false. If somebody has written to them, f begins anew with files that are opened anew.
func (t *Table) use(f func()) bool {
	ok, changed := t.try(f)
	if changed {
		t.reopen()
		if ok, changed = t.try(f); changed {
			t.reopen()
			t.disturb()
		}
	}
	return ok && !changed
}

// disturb notes that names could not be read. It holds until the files are opened again.
func (t *Table) disturb() {
	t.setNote("%s: %v", t.path, errWritten)
	t.owning.Lock()
	t.disturbed = true
	t.owning.Unlock()
}

var errWritten = errors.New("somebody writes to the file while it is read")

func (t *Table) try(f func()) (ok, changed bool) {
	t.enter()
	defer t.leave()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || len(t.sources) == 0 {
		return false, false
	}
	err := module.Guard(func() error { f(); return nil })
	if t.changed() {
		return false, true
	}
	if err != nil {
		t.sources = nil // and no second try
		t.setNote("%s: %v", t.path, err)
	}
	return err == nil, false
}

// getIndex returns the index, and makes it first where there is none. t.mu is held.
func (t *Table) getIndex() *index {
	if t.index == nil {
		t.addPLT()
		t.index = build(t.sources)
	}
	return t.index
}

// addPLT adds the names of procedure linkage tables, once. t.mu is held.
func (t *Table) addPLT() {
	if t.img == nil || t.stubs {
		return
	}
	if plt := pltNames(t.img, t.resolvers); plt.Len() > 0 {
		t.sources = append(t.sources, plt)
	}
	t.stubs = true
}

// resolvers names the functions at the addresses in byAddr. t.mu is held.
func (t *Table) resolvers(byAddr map[uint64][]byte) {
	top := map[uint64]uint64{}
	for i := range t.sources {
		s := &t.sources[i]
		for j := range s.Len() {
			e := s.At(j)
			if _, ok := byAddr[e.Value]; !ok || s.kind(&e) == noCode {
				continue
			}
			if r := s.rank(&e); r > top[e.Value] {
				byAddr[e.Value], top[e.Value] = s.name(e.Name), r
			}
		}
	}
}

// symbol returns the symbol of a span that has one. t.mu is held.
func (t *Table) symbol(x *index, span int) *Symbol {
	if t.shown == nil {
		t.shown = make([]uint32, len(x.starts))
	}
	if n := t.shown[span]; n > 0 {
		return &t.named[n-1]
	}
	sym := t.symbolOf(x, span)
	t.named = append(t.named, sym)
	t.text += int64(len(sym.Name) + len(sym.Linkage))
	t.shown[span] = uint32(len(t.named))
	return &t.named[len(t.named)-1]
}

// symbolOf is symbol, and remembers nothing.
func (t *Table) symbolOf(x *index, span int) Symbol {
	s, k := at(t.sources, x.symbol(span, t.sources))
	e := s.At(k)
	sym := Symbol{Linkage: string(s.name(e.Name)), Start: arch.Vaddr(e.Value), Size: e.Size}
	if e.Size == 0 {
		lo, hi := x.span(span)
		sym.Size = hi - lo
	}
	sym.Name = t.r.names.get(sym.Linkage, false)
	return sym
}

func (t *Table) load() {
	img, err := t.file()
	if err != nil {
		t.setNote("%v", err)
	}
	if img == nil {
		if img = t.fetch(t.id, "executable"); img != nil {
			t.setNote("")
		}
	}
	t.find(img)
}

// find takes the symbol tables of img, which may be nil, and of what belongs to it.
func (t *Table) find(img *module.Image) {
	t.img = img
	if img != nil {
		t.owning.Lock()
		t.there = true
		t.owning.Unlock()
		if s, ok := table(img, false); ok {
			t.sources = append(t.sources, s)
			if dyn, ok := table(img, true); ok && dyn.Len() > s.Len() {
				t.sources = append(t.sources, dyn) // all but a few names were stripped
			}
			return
		}
		t.gosym, _ = gosym.Open(img)
	}
	if debug := t.debugFile(); debug != nil {
		if s, ok := table(debug, false); ok {
			t.sources = append(t.sources, s)
			if img == nil {
				t.setNote("")
			}
			return
		}
	}
	if img == nil {
		return
	}
	t.lacks = t.gosym == nil
	if s, ok := t.miniDebug(img); ok {
		t.sources = append(t.sources, s)
	}
	if s, ok := table(img, true); ok {
		t.sources = append(t.sources, s)
	} else if s, ok := dynamic(img); ok {
		t.sources = append(t.sources, s)
	}
	if t.gosym != nil {
		t.sources = append(t.sources, goSymbols(t.gosym, img.Reach()))
	}
}

// goSymbols returns the functions of a Go program whose symbol table was stripped. Their names together are no longer than
// the file.
func goSymbols(g *gosym.Table, size int64) source {
	s := synthetic()
	g.Funcs(func(name string, lo, hi arch.Vaddr) bool {
		s.add(name, uint64(lo), uint64(hi-lo))
		return int64(len(s.Names)) < size
	})
	return s
}

// table returns a symbol table, the dynamic linker's or the other one, if the file has one that holds symbols.
func table(img *module.Image, dynamic bool) (source, bool) {
	t, ok := img.SymbolTable(dynamic)
	secs := img.Sections()
	if f := img.Format(); f == "PE" || f == "COFF" { // their first section has the number 1; other lists begin with one that is none
		secs = append([]module.Section{{}}, secs...)
	}
	return source{SymbolTable: t, secs: secs}, ok
}

// dynamic returns the dynamic symbols of a file without section headers. Their names together are no
// longer than the file.
func dynamic(img *module.Image) (source, bool) {
	s := synthetic()
	s.Thumb = img.Machine().ELF == arch.EM_ARM
	img.Symbols(func(m module.Symbol) bool {
		s.Add(m.Name, module.SymbolEntry{Value: uint64(m.Value), Size: m.Size, Kind: m.Kind, Bind: m.Bind, Section: m.Section})
		return int64(len(s.Names)) < img.Reach()
	})
	return s, s.Len() > 0
}

// synthetic returns a source to which symbols can be added.
func synthetic() source {
	return source{SymbolTable: module.SymbolTable{Order: binary.LittleEndian, Is64: true}, made: true}
}

// add adds a function that other files see, in no section that is known.
func (s *source) add(name string, lo, size uint64) {
	s.Add(name, module.SymbolEntry{Value: lo, Size: size, Kind: module.Func, Bind: module.Global, Section: 1})
}
