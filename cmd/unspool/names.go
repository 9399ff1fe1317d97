package main

import (
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// A namer gives a profile the names of its locations: from symbol tables, and where a stripped file has
// none, the function's start from its unwind information. It is safe for concurrent use.
type namer struct {
	symbols *symbol.Resolver

	mu     sync.Mutex
	frames map[*unwind.Module]func() *dwarf.Frames
}

// newNamer returns a namer for what was recorded on the kernel of a build ID; "" if that is not known. cache is a
// directory that may be "".
func newNamer(kernel, cache string) *namer {
	return &namer{symbols: symbol.New(symbol.Options{KernelID: kernel, CacheDir: cache}), frames: map[*unwind.Module]func() *dwarf.Frames{}}
}

// framesOf returns the unwind information of a module; nil if it has none.
func (n *namer) framesOf(m *unwind.Module) *dwarf.Frames {
	n.mu.Lock()
	f := n.frames[m]
	if f == nil {
		f = sync.OnceValue(func() (f *dwarf.Frames) {
			if img, _ := modules.Open(m.Path); img != nil {
				f, _ = dwarf.Open(img)
			}
			return f
		})
		n.frames[m] = f
	}
	n.mu.Unlock()
	return f()
}

// User implements profile.Namer.
func (n *namer) User(m *unwind.Module, offs []uint64, names []profile.Name) {
	t := n.symbols.Module(m.Path, m.BuildID)
	addrs := make([]arch.Vaddr, len(offs))
	for i, off := range offs {
		var ok bool
		if addrs[i], ok = t.OffToVaddr(off); !ok {
			addrs[i] = ^arch.Vaddr(0)
		}
	}
	for i, s := range t.Resolve(addrs) {
		if s.Name != "" {
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: offs[i] - uint64(addrs[i]-s.Start)}
		}
	}
	// The rest is nameless whatever becomes of the file.
	_ = module.Guard(func() error {
		for i := range names {
			if names[i].Func != "" {
				continue
			}
			if f := n.framesOf(m); f != nil {
				if start, _, ok := f.Bounds(addrs[i]); ok {
					names[i].Start = offs[i] - uint64(addrs[i]-start)
				}
			}
		}
		return nil
	})
}

// Kernel implements profile.Namer.
func (n *namer) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		if s, mod, ok := n.symbols.Kernel(a); ok {
			names[i] = profile.Name{Func: s.Name, Linkage: s.Linkage, Start: uint64(s.Start), Module: mod}
		}
	}
}
