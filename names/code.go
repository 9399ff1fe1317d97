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

// framesOf returns the unwind information of a module; nil if it has none.
func (n *Namer) framesOf(m *unwind.Module) *format.Unwind {
	img := n.images[m]
	if img == nil {
		img, _, _ = n.files.Find(m.Path, m.BuildID, int(m.Process()))
	}
	return n.framesIn(img)
}

// framesIn returns the unwind information of an image; nil if there is none.
func (n *Namer) framesIn(img *module.Image) *format.Unwind {
	if img == nil {
		return nil
	}
	n.mu.Lock()
	f := n.frames[img]
	if f == nil {
		f = sync.OnceValue(func() *format.Unwind {
			f, _ := format.Open(img)
			return f
		})
		n.frames[img] = f
	}
	n.mu.Unlock()
	return f()
}

// Open returns the file of a profile's module; nil without an error for a module without a file. The file has the recorded build ID, or none.
// Options.Mods, or else this Namer, keeps it open.
func (n *Namer) Open(m *profile.Module) (*module.Image, error) {
	img, _, err := n.files.Find(m.Path, m.BuildID, 0)
	return img, err
}

// Bounds returns the range of the function that contains v, from the symbol table or else from unwind information.
func (n *Namer) Bounds(m *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	if s := n.symbols.Module(m.Path, m.BuildID).Resolve([]arch.Vaddr{v})[0]; s.Name != "" && s.Size > 0 {
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
	s := n.symbols.Module(m.Path, m.BuildID).Resolve([]arch.Vaddr{v})[0]
	return s.Name, uint64(v - s.Start)
}

// Places returns the source places of each address of a module, as symbol.Table.Places does.
func (n *Namer) Places(m *profile.Module, addrs []arch.Vaddr) [][]symbol.Place {
	return n.symbols.Module(m.Path, m.BuildID).Places(addrs)
}
