package names

import (
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// A fileKey says which file is meant: that of a module by path and build ID, or an image that is open.
type fileKey struct {
	path, id string
	img      *module.Image
}

// A file is a module's own file, opened once.
type file struct {
	once   sync.Once
	img    *module.Image
	err    error
	frames func() *format.Unwind // nil where there is no unwind information
}

// file opens the file of a module. given is its image, if it is no file of this machine; else nil.
func (n *Namer) file(path, buildID string, given *module.Image) *file {
	key := fileKey{path: path, id: buildID}
	if given != nil {
		key = fileKey{img: given}
	}
	n.mu.Lock()
	f := n.files[key]
	if f == nil {
		f = new(file)
		n.files[key] = f
	}
	n.mu.Unlock()
	f.once.Do(func() {
		if f.img = given; given == nil {
			f.img, f.err = modules.Find(n.search(), path, buildID)
		}
		f.frames = sync.OnceValue(func() (fr *format.Unwind) {
			if f.img != nil {
				fr, _ = format.Open(f.img)
			}
			return fr
		})
	})
	return f
}

// search returns where files are looked for; may be nil.
func (n *Namer) search() *module.Search {
	if n.mods == nil {
		return nil
	}
	return n.mods.Search
}

// framesOf returns the unwind information of a module; nil if it has none.
func (n *Namer) framesOf(m *unwind.Module) *format.Unwind {
	return n.file(m.Path, m.BuildID, n.image(m)).frames()
}

// Open returns the file of a profile's module; nil without an error for a module that has none. It has the recorded build ID, or none. The
// Namer keeps it open.
func (n *Namer) Open(m *profile.Module) (*module.Image, error) {
	f := n.file(m.Path, m.BuildID, nil)
	return f.img, f.err
}

// Bounds returns the range of the function that has v: as the symbol table says, else as unwind information does.
func (n *Namer) Bounds(m *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	if s := n.symbols.Module(m.Path, m.BuildID).Resolve([]arch.Vaddr{v})[0]; s.Name != "" && s.Size > 0 {
		return s.Start, s.Start + arch.Vaddr(s.Size), true
	}
	if f := n.file(m.Path, m.BuildID, nil).frames(); f != nil {
		return f.Bounds(v)
	}
	return 0, 0, false
}

// Symbol returns the name of the function that has v, and how many bytes v is behind its start; "" if there is none.
func (n *Namer) Symbol(m *profile.Module, v arch.Vaddr) (name string, off uint64) {
	s := n.symbols.Module(m.Path, m.BuildID).Resolve([]arch.Vaddr{v})[0]
	return s.Name, uint64(v - s.Start)
}

// Places returns where each address of a module is in the source, as symbol.Table's Places does.
func (n *Namer) Places(m *profile.Module, addrs []arch.Vaddr) [][]symbol.Place {
	return n.symbols.Module(m.Path, m.BuildID).Places(addrs)
}
