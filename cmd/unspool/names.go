package main

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// A namer gives a profile the names of its locations: from symbol tables, and where a stripped file has
// none, the function's start from its unwind information.
type namer struct {
	symbols *symbol.Resolver
	frames  map[*unwind.Module]*dwarf.Frames
	addrs   []arch.Vaddr // scratch
}

// newNamer returns a namer for what was recorded on the kernel of a build ID; "" if that is not known.
func newNamer(kernel string) *namer {
	return &namer{symbols: symbol.New(symbol.Options{KernelID: kernel}), frames: map[*unwind.Module]*dwarf.Frames{}}
}

// function returns the start of the function at v as unwind information tells it.
func (n *namer) function(m *unwind.Module, v arch.Vaddr) (start arch.Vaddr, ok bool) {
	f, known := n.frames[m]
	if !known {
		if img, _ := modules.Open(m.Path); img != nil {
			f, _ = dwarf.Open(img)
		}
		n.frames[m] = f
	}
	if f == nil {
		return 0, false
	}
	start, _, ok = f.Bounds(v)
	return start, ok
}

// User implements profile.Namer.
func (n *namer) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	t := n.symbols.Module(m.Path, m.BuildID)
	n.addrs = n.addrs[:0]
	for _, off := range offs {
		v, ok := t.OffToVaddr(off)
		if !ok {
			v = ^arch.Vaddr(0)
		}
		n.addrs = append(n.addrs, v)
	}
	for i, s := range t.Resolve(n.addrs) {
		switch {
		case s.Name != "":
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: offs[i] - uint64(n.addrs[i]-s.Start)}
		default:
			if start, ok := n.function(m, n.addrs[i]); ok {
				names[i].Start = offs[i] - uint64(n.addrs[i]-start)
			}
		}
	}
}

// Kernel implements profile.Namer.
func (n *namer) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		if s, mod, ok := n.symbols.Kernel(a); ok {
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: uint64(s.Start), Module: mod}
		}
	}
}
