package profile

import (
	"cmp"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/unwind"
)

// A Name is a symbol table's answer for an address.
type Name struct {
	Func    string // demangled; empty if there is no symbol
	Linkage string // as in the symbol table; may be empty where it equals Func
	Start   uint64 // where the function starts, counted as what was asked for; 0 if that is not known
	Module  string // for kernel addresses: "[ext4]"; empty for the kernel itself

	// Source is where the address is in the source: the place itself first, then the call that it was inlined into,
	// and so on; the last is the place in the function itself, whose Func and Linkage may be empty. Empty: not known.
	Source []Source
}

// A Source is a place in the source of a function.
type Source struct {
	Func    string // demangled
	Linkage string // may be empty where it equals Func
	File    string // absolute, or as the debug information spells it; may be empty
	Line    uint32 // from 1; 0: unknown
	Column  uint32 // from 1; 0: unknown
}

// Name is the function's name; Unknown where there is none.
func (s *Source) Name() string {
	if s.Func == "" {
		return Unknown
	}
	return s.Func
}

// A Namer finds names. It fills names, which has one entry for each offset or address; these are sorted
// and distinct. It is called from several goroutines at once. Code that a process made is asked for with the
// module of that process's memory: see unwind.Module.PID. An address of the kernel may be a Sample.KernelKey; the Start of its name is an address.
//
// A function without a symbol whose bounds are known all the same, from call frame information say, has a Start only: it is shown as
// "[libfoo.so+0x1230]", and all its locations are one function. If not even that is known, all of a file is one function: "[libfoo.so]".
type Namer interface {
	User(m *unwind.Module, offs []uint64, names []Name)
	Kernel(addrs []uint64, names []Name)
}

// kernelPath is the module of kernel code that is in no kernel module.
const kernelPath = "[kernel]"

// funcName returns the name that is shown for code that n names.
func funcName(n *Name, m *Module) (name string, named bool) {
	switch {
	case n.Func != "":
		return n.Func, true
	case m.Path == "":
		return Unknown, false
	case n.Start == 0 || m.Kernel:
		return bracket(m.Base(), ""), false
	}
	return bracket(m.Base(), "+0x"+strconv.FormatUint(n.Start, 16)), false
}

// bracket returns "[base+0x10]", without a second pair around the likes of "[vdso]".
func bracket(base, off string) string {
	if len(base) > 1 && base[0] == '[' && base[len(base)-1] == ']' {
		base = base[1 : len(base)-1]
	}
	return "[" + base + off + "]"
}

// A spot is a location that is to be named.
type spot struct {
	off uint64
	id  uint32
}

// resolve asks n for the names of all locations: of each module a few thousand at a time, on all processors.
func (l *Locations) resolve(n Namer) []*Name {
	names := pages.Populate(make([]*Name, len(l.locs)))
	if n == nil {
		none := new(Name)
		for i := range names {
			names[i] = none
		}
		return names
	}
	ends := make([]int, len(l.mods)+1) // of each module's spots
	for i := range l.locs {
		ends[l.locs[i].Module+1]++
	}
	for i := range l.mods {
		ends[i+1] += ends[i]
	}
	spots := pages.Populate(make([]spot, len(l.locs)))
	for i := range l.locs {
		m := l.locs[i].Module
		spots[ends[m]] = spot{l.locs[i].Off, uint32(i)}
		ends[m]++
	}
	spare := pages.Populate(make([]spot, len(l.locs)))
	var wg sync.WaitGroup
	limit := make(chan struct{}, runtime.GOMAXPROCS(0))
	start := 0
	for mod := range l.mods {
		of := sortSpots(spots[start:ends[mod]], spare[start:ends[mod]])
		start = ends[mod]
		for part := range slices.Chunk(of, 1<<12) {
			limit <- struct{}{}
			wg.Go(func() {
				l.resolvePart(n, int32(mod), part, names)
				<-limit
			})
		}
	}
	wg.Wait()
	return names
}

// sortSpots sorts s by offset, stably, with the help of spare, which is as long; either has the result. It sorts by a byte at a time, from the last
// one: a third of the time of comparisons for the thousands of locations of a large module.
func sortSpots(s, spare []spot) []spot {
	if len(s) < 1<<8 {
		slices.SortStableFunc(s, func(a, b spot) int { return cmp.Compare(a.off, b.off) })
		return s
	}
	all, one := uint64(0), ^uint64(0) // bits that are set in any offset, and in each
	for i := range s {
		all |= s[i].off
		one &= s[i].off
	}
	for shift := 0; shift < 64; shift += 8 {
		if (all^one)>>shift&0xff == 0 {
			continue // the same byte in all
		}
		var at [257]int
		for i := range s {
			at[s[i].off>>shift&0xff+1]++
		}
		for i := range at[1:] {
			at[i+1] += at[i]
		}
		for i := range s {
			d := s[i].off >> shift & 0xff
			spare[at[d]] = s[i]
			at[d]++
		}
		s, spare = spare, s
	}
	return s
}

// resolvePart names some locations of a module, sorted by offset.
func (l *Locations) resolvePart(n Namer, mod int32, part []spot, names []*Name) {
	offs := make([]uint64, 0, len(part))
	for _, s := range part {
		if len(offs) == 0 || s.off != offs[len(offs)-1] {
			offs = append(offs, s.off)
		}
	}
	got := pages.Populate(make([]Name, len(offs)))
	l.ask(n, mod, offs, got)
	j := 0
	for _, s := range part {
		for offs[j] != s.off {
			j++
		}
		names[s.id] = &got[j]
	}
}

func (l *Locations) ask(n Namer, mod int32, offs []uint64, names []Name) {
	switch {
	case mod == modKernel:
		n.Kernel(offs, names)
	case mod != modUnknown:
		n.User(l.unwindMods[mod], offs, names)
	}
}

// Name asks n for the name of one location: what is shown, the function's linkage name and start, and
// the module's path.
func (l *Locations) Name(id uint32, n Namer) (Name, bool) {
	loc := &l.locs[id]
	var names [1]Name
	if n != nil {
		l.ask(n, loc.Module, []uint64{loc.Off}, names[:])
	}
	r, m := names[0], &l.mods[loc.Module]
	if !m.Kernel || r.Module == "" {
		r.Module = m.Path
	}
	named := false
	r.Func, named = funcName(&r, &Module{Path: r.Module, Kernel: m.Kernel})
	return r, named
}
