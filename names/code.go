package names

import (
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// framesOf returns the unwind information of a module, and what releases it; nil if it has none.
func (n *Namer) framesOf(m *unwind.Module) (f *format.Unwind, release func()) {
	img := n.images[m]
	if img != nil {
		if !img.Hold() {
			return nil, func() {}
		}
	} else if img, _, _ = n.files.Find(m.Path, m.BuildID, int(m.Process())); img == nil {
		return nil, func() {}
	}
	return n.framesIn(img), func() { img.Release() }
}

// An unwound is the unwind information of an image, which it holds.
type unwound struct {
	open  func() *format.Unwind
	share *module.Share // nil: just made
}

// unwoundCost is about what an unwound takes beside what it has for each entry of .eh_frame, in bytes.
const unwoundCost = 16 << 10

// framesIn returns the unwind information of an image that the caller holds; nil if there is none.
func (n *Namer) framesIn(img *module.Image) *format.Unwind {
	if img == nil {
		return nil
	}
	n.mu.Lock()
	u := n.frames[img]
	if u != nil {
		share := u.share
		n.mu.Unlock()
		if share != nil {
			share.Touch()
		}
		return u.open()
	}
	u = &unwound{open: sync.OnceValue(func() *format.Unwind {
		f, _ := format.Open(img)
		return f
	})}
	img.Hold()
	n.frames[img] = u
	n.mu.Unlock()
	size := int64(unwoundCost)
	if s := img.Section(".eh_frame"); s != nil {
		size += min(int64(s.Size), img.Reach())
	}
	share := n.files.Memory.Add(size, func() bool {
		n.mu.Lock()
		mine := n.frames[img] == u
		if mine {
			delete(n.frames, img)
		}
		n.mu.Unlock()
		if mine {
			img.Release()
		}
		return true
	})
	n.mu.Lock()
	u.share = share
	n.mu.Unlock()
	return u.open()
}

// Open returns the file of a profile's module; nil without an error for a module without a file. The file has the recorded build ID, or none.
// It stays open until Close.
func (n *Namer) Open(m *profile.Module) (*module.Image, error) {
	img, _, err := n.files.Find(m.Path, m.Key(), 0)
	if img == nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.opened[img] {
		img.Release()
	}
	n.opened[img] = true
	return img, err
}

// Bounds returns the range of the function that contains v, from the symbol table or else from unwind information.
func (n *Namer) Bounds(m *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	if s := n.symbols.Module(m.Path, m.Key()).Resolve([]arch.Vaddr{v})[0]; s.Name != "" && s.Size > 0 {
		return s.Start, s.Start + arch.Vaddr(s.Size), true
	}
	img, _ := n.Open(m)
	if f := n.framesIn(img); f != nil {
		return f.Bounds(v)
	}
	return 0, 0, false
}

// Symbol returns the name of the function that contains v, and v's offset in the function; "" if there is no name.
func (n *Namer) Symbol(m *profile.Module, v arch.Vaddr) (name string, off uint64) {
	s := n.symbols.Module(m.Path, m.Key()).Resolve([]arch.Vaddr{v})[0]
	return s.Name, uint64(v - s.Start)
}

// Places returns the source places of each address of a module, as symbol.Table.Places does.
func (n *Namer) Places(m *profile.Module, addrs []arch.Vaddr) [][]symbol.Place {
	return n.symbols.Module(m.Path, m.Key()).Places(addrs)
}
