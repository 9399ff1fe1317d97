package dwarf

import (
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
)

// Exceptions are a function's exception table (.gcc_except_table, the LSDA of GCC's and LLVM's personality routines): where an exception that a call
// throws goes on. The table is that of the Itanium C++ ABI, "Exception Handling Tables", which C, C++, Rust, Go's gccgo, D and Ada share.
type Exceptions struct {
	FDE         FDE // of the function, or of a part of one
	Personality arch.Vaddr
	Indirect    bool // Personality is where the handler's address is kept

	Section   string // that has the table
	Off, Size uint64 // in the section
	Base      arch.Vaddr
	CallSites []CallSite // in the table's order
}

// A CallSite is a range of calls. An exception from a call outside of all call sites ends the program.
type CallSite struct {
	Lo, Hi  arch.Vaddr
	Pad     arch.Vaddr // where the exception goes on
	HasPad  bool       // false: it passes through
	Actions *Action    // in the order in which they are tried; nil: the pad only cleans up
}

// An Action is what a landing pad is for.
type Action struct {
	Kind  ActionKind
	Types []Type // Catch has one; of Filter, those that may pass
	Next  *Action

	depth int
	size  int // of it and those that follow: actions and types
}

// An ActionKind says which exceptions an action takes.
type ActionKind uint8

const (
	Cleanup ActionKind = iota // all; they go on afterwards
	Catch                     // those of one type
	Filter                    // all but those of some types: an exception specification
)

// A Type is an entry of the table of types: where the run-time type information is.
type Type struct {
	Any      bool // catch (...): there is none
	Addr     arch.Vaddr
	Indirect bool // Addr is where the address is kept
}

const (
	maxActions = 128     // of a call site; and types of an action
	maxReread  = 16      // times the bytes from a table's start to the next table's start
	freeWork   = 1 << 10 // for each function: its entry in .eh_frame pays for it
)

// A work bounds what is read of a table: bytes of call sites, actions and types. What is more than freeWork comes out of an allowance that all functions
// with a table at one place share. So no table takes from another one.
type work struct {
	free   int
	shared *int
}

// spend is false where no work is left.
func (w *work) spend(n int) bool {
	free := min(n, w.free)
	w.free -= free
	*w.shared -= n - free
	return *w.shared >= 0
}

// allowances returns where tables start, sorted, and the work that they share.
func (f *Frames) allowances() (starts []uint64, shared []int) {
	f.Entries(EHFrame, func(e Entry) bool {
		if e.IsFDE && !e.FDE.Dead && e.FDE.HasLSDA {
			starts = append(starts, uint64(e.FDE.LSDA))
		}
		return true
	})
	slices.Sort(starts)
	starts = slices.Compact(starts)
	shared = make([]int, len(starts))
	for i, at := range starts {
		if s, off := f.exceptSection(at); s != nil {
			n := uint64(len(s.data)) - off
			if i+1 < len(starts) {
				n = min(n, starts[i+1]-at)
			}
			shared[i] = maxReread * int(n)
		}
	}
	return starts, shared
}

// exceptSection returns the section that has the exception table at an address, and its offset there.
func (f *Frames) exceptSection(at uint64) (*section, uint64) {
	for _, s := range f.except {
		if off := at - s.addr; off < uint64(len(s.data)) {
			return s, off
		}
	}
	return nil, 0
}

// Exceptions calls yield with the exception table of each function in .eh_frame that has one, in file order, until it returns false. Tables that
// cannot be read are left out and reported.
func (f *Frames) Exceptions(yield func(*Exceptions) bool) []Damage {
	starts, shared := f.allowances()
	ds, more := damages{}, true
	all := f.Entries(EHFrame, func(e Entry) bool {
		if !e.IsFDE || e.FDE.Dead || !e.FDE.HasLSDA {
			return true
		}
		i, _ := slices.BinarySearch(starts, uint64(e.FDE.LSDA))
		x, in, err := f.exceptions(&e, work{freeWork, &shared[i]})
		if err != nil {
			d := fde{lo: uint64(e.FDE.Lo)}
			ds.add(in, int(uint64(e.FDE.LSDA)-in.addr), &d, err)
			return true
		}
		more = yield(x)
		return more
	})
	return append(all, ds.all()...)
}

// exceptions reads the table of e's function. With an error comes the section that it is about.
func (f *Frames) exceptions(e *Entry, left work) (*Exceptions, *section, error) {
	at := uint64(e.FDE.LSDA)
	s, off := f.exceptSection(at)
	if s == nil {
		return nil, e.s, &fault{int(e.Off), wrapf(ErrMalformed, "no section has the exception table at %#x", at)}
	}
	x := &Exceptions{FDE: e.FDE, Personality: e.CIE.Personality, Indirect: e.CIE.PersonalityEncoding&DW_EH_PE_indirect != 0, Section: s.name, Off: off}
	t := lsda{section: s, x: x, addrSize: e.CIE.AddrSize, actions: map[int]*Action{}, left: left}
	return x, s, t.read(int(off))
}

// ReadLSDA reads the exception table of a function that another format describes, such as Windows's records. A table takes work off what is left for
// all of them.
func (f *Frames) ReadLSDA(fn FDE, personality arch.Vaddr, left *int) (*Exceptions, error) {
	s, off := f.exceptSection(uint64(fn.LSDA))
	if s == nil {
		return nil, wrapf(ErrMalformed, "no section has the exception table at %#x", uint64(fn.LSDA))
	}
	x := &Exceptions{FDE: fn, Personality: personality, Section: s.name, Off: off}
	t := lsda{section: s, x: x, addrSize: f.in.AddrSize, actions: map[int]*Action{}, left: work{freeWork, left}}
	if err := t.read(int(off)); err != nil {
		ds := damages{}
		ds.add(s, int(off), &fde{lo: uint64(fn.Lo)}, err)
		return nil, ds.list[0]
	}
	return x, nil
}

// An lsda is a table that is read.
type lsda struct {
	*section
	x        *Exceptions
	addrSize int
	first    int // offset of the first action
	types    int // offset behind the last type; 0: there are none
	enc      byte
	actions  map[int]*Action // by offset; nil while one is read
	end      int             // of what was read
	left     work
}

func (t *lsda) read(at int) (err error) {
	start := at
	r := t.reader(len(t.data))
	b := t.bases(uint64(t.x.FDE.Lo))
	defer func() {
		if err == nil {
			err = t.relocated(start, t.end)
		}
	}()
	t.x.Base = t.x.FDE.Lo
	v, at, err := r.u8(at)
	if err != nil {
		return in("landing pads' base", err)
	}
	if v != DW_EH_PE_omit {
		var p pointer
		if p, at, err = t.encoded(&r, at, byte(v), t.addrSize, &b); err != nil {
			return in("landing pads' base", err)
		}
		t.x.Base = arch.Vaddr(p.v)
	}
	if v, at, err = r.u8(at); err != nil {
		return in("types", err)
	}
	if t.enc = byte(v); t.enc != DW_EH_PE_omit {
		field := at
		if v, at, err = r.uleb(at); err != nil {
			return in("types", err)
		}
		if v > uint64(len(t.data)-at) {
			return in("types", malformed(field, "%#x bytes, of which %#x are there", v, len(t.data)-at))
		}
		t.types = at + int(v)
	}
	form, at, err := r.u8(at)
	if err != nil {
		return in("call sites", err)
	}
	field := at
	if v, at, err = r.uleb(at); err != nil {
		return in("call sites", err)
	}
	if v > uint64(len(t.data)-at) {
		return in("call sites", malformed(field, "%#x bytes, of which %#x are there", v, len(t.data)-at))
	}
	t.first = at + int(v)
	t.reached(t.first)
	if !t.left.spend(t.first - start) {
		return unsupported(field, "call sites: too many functions share a table")
	}
	r.end = t.first
	for at < t.first {
		var n [3]uint64
		for i := range n {
			if n[i], at, err = r.number(at, byte(form)&0x0f, t.addrSize); err != nil {
				return in("call site", err)
			}
		}
		field := at
		if v, at, err = r.uleb(at); err != nil {
			return in("call site", err)
		}
		mask := addrMask(t.addrSize)
		lo := (uint64(t.x.FDE.Lo) + n[0]) & mask
		s := CallSite{Lo: arch.Vaddr(lo), Hi: arch.Vaddr(lo + n[1]), HasPad: n[2] != 0}
		if s.Hi < s.Lo || uint64(s.Hi)-1 > mask && n[1] > 0 {
			return in("call site", malformed(field, "%#x bytes from %#x on", n[1], lo))
		}
		if s.HasPad {
			s.Pad = arch.Vaddr((uint64(t.x.Base) + n[2]) & mask)
		}
		if v > uint64(len(t.data)) {
			return in("call site", malformed(field, "action %#x", v))
		}
		if v > 0 {
			if s.Actions, err = t.action(t.first + int(v) - 1); err != nil {
				return err
			}
			// Call sites share actions; who goes through the call sites meets the actions of each.
			if !t.left.spend(s.Actions.size) {
				return t.tooMany(field)
			}
		}
		t.x.CallSites = append(t.x.CallSites, s)
	}
	t.reached(t.types)
	t.x.Size = uint64(t.end - start)
	return nil
}

func (t *lsda) reached(at int) { t.end = max(t.end, at) }

func (t *lsda) tooMany(at int) error {
	return unsupported(at, "more actions and types than the table has bytes for")
}

// action reads the action at an offset, and those that follow.
func (t *lsda) action(at int) (*Action, error) {
	type read struct {
		at int
		a  *Action
	}
	var list []read // those not met before
	var tail *Action
	r := t.reader(len(t.data))
	for start := at; ; start = at {
		known, met := t.actions[at]
		if met && known == nil {
			return nil, in("action", malformed(at, "it follows itself"))
		}
		if tail = known; met {
			break
		}
		t.actions[at] = nil
		if !t.left.spend(1) {
			return nil, t.tooMany(at)
		}
		filter, next, err := r.sleb(at)
		if err != nil {
			return nil, in("action", err)
		}
		field := next
		skip, next, err := r.sleb(field)
		if err != nil {
			return nil, in("action", err)
		}
		t.reached(next)
		a := &Action{}
		switch {
		case filter > 0:
			a.Kind = Catch
			x, err := t.typ(start, uint64(filter))
			if err != nil {
				return nil, in("action", err)
			}
			a.Types = []Type{x}
		case filter < 0:
			a.Kind = Filter
			if a.Types, err = t.filter(start, uint64(-(filter + 1))); err != nil {
				return nil, in("action", err)
			}
		}
		list = append(list, read{start, a})
		if skip == 0 {
			break
		}
		if len(list) > maxActions || skip < -int64(field) || skip > int64(len(t.data)) {
			return nil, in("action", malformed(field, "more than %d follow, or the next is %+d bytes away", maxActions, skip))
		}
		at = field + int(skip)
	}
	for i := len(list) - 1; i >= 0; i-- {
		a := list[i].a
		a.size = 1 + len(a.Types)
		if a.Next = tail; tail != nil {
			a.depth = tail.depth + 1
			a.size += tail.size
		}
		if a.depth >= maxActions {
			return nil, in("action", malformed(list[i].at, "more than %d follow", maxActions))
		}
		t.actions[list[i].at], tail = a, a
	}
	return tail, nil
}

// typ reads the type with a number, which counts back from the end of the types.
func (t *lsda) typ(at int, i uint64) (Type, error) {
	size := uint64(0)
	switch t.enc & 0x0f {
	case DW_EH_PE_absptr, DW_EH_PE_signed:
		size = uint64(t.addrSize)
	case DW_EH_PE_udata2, DW_EH_PE_sdata2:
		size = 2
	case DW_EH_PE_udata4, DW_EH_PE_sdata4:
		size = 4
	case DW_EH_PE_udata8, DW_EH_PE_sdata8:
		size = 8
	}
	if t.enc == DW_EH_PE_omit || size == 0 || i > uint64(t.types)/size {
		return Type{}, malformed(at, "type %d, in encoding %#02x", i, t.enc)
	}
	r := t.reader(len(t.data))
	b := t.bases(uint64(t.x.FDE.Lo))
	from := t.types - int(i*size)
	if err := t.relocated(from, from+int(size)); err != nil {
		return Type{}, err
	}
	p, _, err := t.encoded(&r, from, t.enc&^DW_EH_PE_indirect, t.addrSize, &b)
	return Type{Any: p.null, Addr: arch.Vaddr(p.v), Indirect: !p.null && t.enc&DW_EH_PE_indirect != 0}, err
}

// filter reads a list of types, which starts so many bytes behind the types.
func (t *lsda) filter(at int, off uint64) (list []Type, err error) {
	if t.types == 0 || off > uint64(len(t.data)-t.types) {
		return nil, malformed(at, "list of types at +%#x", off)
	}
	r := t.reader(len(t.data))
	for from := t.types + int(off); ; {
		var i uint64
		if i, from, err = r.uleb(from); err != nil {
			return nil, err
		}
		t.reached(from)
		if i == 0 {
			return list, nil
		}
		if len(list) == maxActions {
			return nil, malformed(at, "list of more than %d types", maxActions)
		}
		if !t.left.spend(1) {
			return nil, t.tooMany(at)
		}
		x, err := t.typ(at, i)
		if err != nil {
			return nil, err
		}
		list = append(list, x)
	}
}

// String names a kind.
func (k ActionKind) String() string {
	switch k {
	case Cleanup:
		return "cleanup"
	case Catch:
		return "catch"
	case Filter:
		return "filter"
	}
	return fmt.Sprintf("action-%d", uint8(k))
}
