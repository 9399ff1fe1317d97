package profile

import (
	"slices"
	"unsafe"

	"github.com/unspool/unspool/internal/pages"
)

// An expander gives the locations of a profile their names, and each call that was inlined a location of its own.
type expander struct {
	p       *Profile
	funcs   map[funcKey]int32
	starts  map[startKey]int32 // functions without names
	recent  [256]recentFunc    // a shortcut past funcs: the names of one function's locations share their text
	kernels map[string]int32   // modules of the kernel, by path
	files   map[string]uint32
	inner   []inner  // by location
	calls   []uint32 // of inner
}

// An inner says which of expander.calls were inlined into a location, innermost first.
type inner struct{ at, end uint32 }

type funcKey struct {
	name   string
	module int32
}

// A recentFunc is the number of a function that was asked for.
type recentFunc struct {
	funcKey
	f int32
}

type startKey struct {
	start  uint64
	module int32
}

func newExpander(p *Profile) *expander {
	p.Files = []string{""}
	return &expander{
		p: p, funcs: make(map[funcKey]int32, len(p.Locs)/4), kernels: map[string]int32{}, files: map[string]uint32{"": 0},
		inner: make([]inner, len(p.Locs)),
	}
}

// loc sets what n says of location id.
func (x *expander) loc(id uint32, n *Name) {
	p := x.p
	loc := p.Locs[id]
	if loc.Module == modKernel {
		loc.Off = loc.Addr // not the key that it had
	}
	if loc.Module == modKernel && n.Module != "" && n.Module != kernelPath {
		m, ok := x.kernels[n.Module]
		if !ok {
			m = int32(len(p.Modules))
			x.kernels[n.Module] = m
			p.Modules = append(p.Modules, Module{Path: n.Module, Kernel: true})
		}
		loc.Module = m
	}
	loc.Func, loc.Start = x.outermost(n, loc.Module), n.Start
	if k := len(n.Source) - 1; k >= 0 {
		x.place(&loc, &n.Source[k])
		x.inner[id].at = uint32(len(x.calls))
		for i := range n.Source[:k] {
			s := &n.Source[i]
			in := loc
			in.Inlined, in.Start = true, 0
			in.Func = x.function(s.Name(), s.Linkage, loc.Module, s.Func != "")
			x.place(&in, s)
			x.calls = append(x.calls, uint32(len(p.Locs)))
			p.Locs = push(p.Locs, in)
		}
		x.inner[id].end = uint32(len(x.calls))
	}
	p.Locs[id] = loc
}

func (x *expander) place(loc *Loc, s *Source) {
	f, ok := x.files[s.File]
	if !ok {
		f = uint32(len(x.p.Files))
		x.files[s.File] = f
		x.p.Files = append(x.p.Files, s.File)
	}
	loc.File, loc.Line, loc.Column = f, s.Line, s.Column
}

// outermost returns the number of the function that n names. The name of one without a symbol is made once.
func (x *expander) outermost(n *Name, module int32) int32 {
	k := startKey{n.Start, module}
	if n.Func == "" {
		if x.starts == nil {
			x.starts = make(map[startKey]int32, len(x.inner)/4)
		}
		if f, ok := x.starts[k]; ok {
			return f
		}
	}
	name, named := funcName(n, &x.p.Modules[module])
	f := x.function(name, n.Linkage, module, named)
	if n.Func == "" {
		x.starts[k] = f
	}
	return f
}

// function returns the number of a function, which is entered if it is new.
func (x *expander) function(name, linkage string, module int32, named bool) int32 {
	text := uintptr(unsafe.Pointer(unsafe.StringData(name)))
	r := &x.recent[(text>>3^text>>11)%uintptr(len(x.recent))]
	if unsafe.StringData(r.name) == unsafe.StringData(name) && len(r.name) == len(name) && r.module == module {
		return r.f
	}
	k := funcKey{name, module}
	f, ok := x.funcs[k]
	if !ok {
		f = int32(len(x.p.Funcs))
		x.funcs[k] = f
		fn := Func{Name: name, Module: module, Named: named}
		if linkage != name {
			fn.Linkage = linkage
		}
		x.p.Funcs = push(x.p.Funcs, fn)
	}
	*r = recentFunc{k, f}
	return f
}

// stacks returns lists of locations with the inlined calls in their places: before their frame, innermost first, and in the part of a list that
// is upside down, so many of its first frames, the other way. A list without any is the same list.
func (x *expander) stacks(in [][]uint32, upside map[uint32]int) [][]uint32 {
	if len(x.calls) == 0 {
		return in
	}
	out := make([][]uint32, len(in))
	long := make([]int, len(in))
	all := 0
	for i, s := range in {
		n := len(s)
		for _, id := range s {
			n += int(x.inner[id].end - x.inner[id].at)
		}
		if long[i] = n; n > len(s) {
			all += n
		}
	}
	slab := pages.Populate(make([]uint32, all))
	for i, s := range in {
		n := long[i]
		if n == len(s) {
			out[i] = s
			continue
		}
		t := slab[:0:n]
		slab = slab[n:]
		down := upside[uint32(i)]
		for k, id := range s {
			at := len(t)
			t = append(append(t, x.calls[x.inner[id].at:x.inner[id].end]...), id)
			if k < down {
				slices.Reverse(t[at:])
			}
		}
		out[i] = t
	}
	return out
}
