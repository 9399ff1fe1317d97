package profile

import (
	"math/rand/v2"
	"slices"

	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/unwind"
)

// The first two modules always exist.
const (
	modKernel = iota
	modUnknown
	numModsFixed
)

// Locations numbers locations in the order of their first appearance. It is not safe for concurrent use.
type Locations struct {
	locs  []Loc
	slots []locSlot // open addressing, a power of two
	seed  [2]uint64 // so that nobody can choose locations that collide

	mods       []Module
	unwindMods []*unwind.Module // nil for the fixed ones
	modID      map[*unwind.Module]uint32
	maps       []Mapping
	mapsOf     [][]int32 // by module

	recent [256]struct { // mappings whose module is known; a shortcut past modID
		m   *unwind.Mapping
		mod uint32
	}
}

type locSlot struct {
	off  uint64
	meta uint32 // module and how
	id   uint32 // 1 + the location; 0: free
}

// firstSlots is the size of a new hash table: an agent has three in each interval for each of up to 512 places, most of which have few samples.
const firstSlots = 1 << 5

// NewLocations returns an empty Locations.
func NewLocations() *Locations {
	return &Locations{
		slots:      make([]locSlot, firstSlots),
		seed:       [2]uint64{rand.Uint64(), rand.Uint64()},
		mods:       []Module{{Path: kernelPath, Kernel: true}, {}},
		unwindMods: make([]*unwind.Module, numModsFixed),
		modID:      map[*unwind.Module]uint32{},
		mapsOf:     make([][]int32, numModsFixed),
	}
}

// Len is the number of locations; they are numbered from 0.
func (l *Locations) Len() int { return len(l.locs) }

// Loc returns a location. Its Func and Start are not set.
func (l *Locations) Loc(id uint32) *Loc { return &l.locs[id] }

// Module returns the module of a location, as far as it is known without a Namer.
func (l *Locations) Module(id uint32) *Module { return &l.mods[l.locs[id].Module] }

// Intern appends the locations of s to ids: its waker's, the kernel's frames, then the user's, innermost first. It
// allocates only for locations that are new.
func (l *Locations) Intern(s *Sample, ids []uint32) []uint32 {
	return l.internUser(s.User, l.internKernel(s, s.Kernel, l.internWaker(s, ids)))
}

func (l *Locations) internWaker(s *Sample, ids []uint32) []uint32 {
	w := s.Waker
	if w == nil {
		return ids
	}
	n := len(ids)
	ids = l.internUser([]unwind.Frame{w.By}, ids)
	ids = l.internUser(w.End, l.internUser(w.User, l.internKernel(s, w.Kernel, ids)))
	slices.Reverse(ids[n:])
	return ids
}

func (l *Locations) internKernel(s *Sample, addrs []uint64, ids []uint32) []uint32 {
	for _, a := range addrs {
		key := a
		if s.KernelKey != nil {
			key = s.KernelKey(a)
		}
		ids = append(ids, l.intern(key, modKernel, HowKernel, a, nil))
	}
	return ids
}

func (l *Locations) internUser(frames []unwind.Frame, ids []uint32) []uint32 {
	for i := range frames {
		f := &frames[i]
		a := uint64(f.Addr())
		m := f.Mapping
		if m == nil {
			ids = append(ids, l.intern(a, modUnknown, howOf(f.How), a, nil))
			continue
		}
		off := m.Off + (a - uint64(m.Lo))
		ids = append(ids, l.intern(off, l.module(m), howOf(f.How), a, m))
	}
	return ids
}

// module returns the number of m's module.
func (l *Locations) module(m *unwind.Mapping) uint32 {
	r := &l.recent[(uint64(m.Lo)>>12^uint64(m.Lo)>>20)%uint64(len(l.recent))]
	if r.m == m {
		return r.mod
	}
	id, ok := l.modID[m.Module]
	if !ok && m.Module == nil {
		return modUnknown
	}
	if !ok {
		id = uint32(len(l.mods))
		l.modID[m.Module] = id
		l.mods = append(l.mods, ModuleOf(m.Module))
		l.unwindMods = append(l.unwindMods, m.Module)
		l.mapsOf = append(l.mapsOf, nil)
	}
	r.m, r.mod = m, id
	return id
}

// merged returns the modules, with those that are memory of one name in several processes made one, and where each of l.mods is
// in them.
func (l *Locations) merged() (mods []Module, to []int32) {
	first := map[string]int32{}
	to = make([]int32, len(l.mods))
	for i := range l.mods {
		to[i] = int32(len(mods))
		if m := l.unwindMods[i]; m != nil && m.PID != 0 {
			if k, ok := first[m.Path]; ok {
				to[i] = k
				continue
			}
			first[m.Path] = to[i]
		}
		mods = append(mods, l.mods[i])
	}
	return mods, to
}

const howBits = 4

func (l *Locations) hash(off uint64, meta uint32) uint64 {
	return mix(mix(off, l.seed[0])^uint64(meta), l.seed[1])
}

func (l *Locations) intern(off uint64, mod uint32, how How, addr uint64, m *unwind.Mapping) uint32 {
	meta := mod<<howBits | uint32(how)
	mask := uint64(len(l.slots) - 1)
	for i := l.hash(off, meta) & mask; ; i = (i + 1) & mask {
		s := &l.slots[i]
		if s.off == off && s.meta == meta && s.id != 0 {
			return s.id - 1
		}
		if s.id == 0 {
			id := l.add(off, mod, how, addr, m)
			*s = locSlot{off, meta, id + 1}
			if len(l.locs)*2 > len(l.slots) {
				l.grow()
			}
			return id
		}
	}
}

func (l *Locations) grow() {
	old := l.slots
	l.slots = pages.Populate(make([]locSlot, larger(len(old), 16)))
	mask := uint64(len(l.slots) - 1)
	for _, s := range old {
		if s.id == 0 {
			continue
		}
		i := l.hash(s.off, s.meta) & mask
		for l.slots[i].id != 0 {
			i = (i + 1) & mask
		}
		l.slots[i] = s
	}
}

// add makes a location, and a mapping for it unless one of its module's already has the offset.
func (l *Locations) add(off uint64, mod uint32, how How, addr uint64, m *unwind.Mapping) uint32 {
	loc := Loc{Addr: addr, Off: off, Module: int32(mod), Mapping: -1, How: how}
	if m != nil && mod >= numModsFixed {
		for _, k := range l.mapsOf[mod] {
			if p := &l.maps[k]; off-p.Off < p.Hi-p.Lo {
				loc.Mapping = k
				break
			}
		}
		if loc.Mapping < 0 {
			loc.Mapping = int32(len(l.maps))
			l.mapsOf[mod] = append(l.mapsOf[mod], loc.Mapping)
			l.maps = append(l.maps, Mapping{Lo: uint64(m.Lo), Hi: uint64(m.Hi), Off: m.Off, Module: int32(mod)})
		}
		p := &l.maps[loc.Mapping]
		loc.Addr = p.Lo + (off - p.Off)
	}
	l.locs = push(l.locs, loc)
	return uint32(len(l.locs) - 1)
}
