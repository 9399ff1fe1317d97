package symbol

import (
	"encoding/hex"
	"errors"
	"io/fs"
	"path/filepath"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/symbol/debuginfo"
	"github.com/unspool/unspool/symbol/gosym"
)

// A Place is an address's place in the source. Its Name is demangled, as a Symbol's is.
type Place = debuginfo.Place

// Places returns the source places of each address: the place itself, then the call that it was inlined into, and so on. The last place is in
// the function that contains the address. The result is nil for an unknown address. Places is fastest when addrs are sorted.
//
// Places come from debug information in the module's file or the separate debug file, or else from a Go program's own tables.
func (t *Table) Places(addrs []arch.Vaddr) (out [][]Place) {
	out, changed := t.placesOf(addrs)
	if changed {
		t.reopen()
		if out, changed = t.placesOf(addrs); changed {
			t.reopen()
			t.disturb()
			clear(out)
		}
	}
	return out
}

// placesOf is Places. changed says that somebody has written to the files.
func (t *Table) placesOf(addrs []arch.Vaddr) (out [][]Place, changed bool) {
	t.enter()
	defer t.leave()
	if t.closed {
		return make([][]Place, len(addrs)), false
	}
	t.lined.Do(t.findLines)
	if t.info != nil {
		out = t.info.Places(addrs)
		for _, places := range out {
			for i := range places {
				if p := &places[i]; p.Linkage != "" {
					p.Name = t.r.names.get(p.Linkage, false)
				}
			}
		}
	} else {
		out = make([][]Place, len(addrs))
	}
	if t.gosym != nil {
		t.goPlaces(addrs, out)
	}
	return out, t.changed()
}

// goPlaces fills in what debug information does not know.
func (t *Table) goPlaces(addrs []arch.Vaddr, out [][]Place) {
	var want []arch.Vaddr
	for i, v := range addrs {
		if out[i] == nil {
			want = append(want, v)
		}
	}
	if len(want) == 0 {
		return
	}
	var got [][]gosym.Place
	if err := module.Guard(func() error { got = t.gosym.Places(want); return nil }); err != nil {
		t.setNote("%s: %v", t.path, err)
		return
	}
	k := 0
	for i := range addrs {
		if out[i] != nil {
			continue
		}
		for _, p := range got[k] {
			out[i] = append(out[i], Place{Name: p.Func, File: p.File, Line: p.Line})
		}
		k++
	}
}

// notes says what is wrong with what belongs to a file that is there.
func (t *Table) notes() (out []string) {
	t.life.Lock() // nobody opens t.info meanwhile
	defer t.life.Unlock()
	return t.ownNotes()
}

// ownNotes are notes for who has locked t.life.
func (t *Table) ownNotes() (out []string) {
	t.owning.Lock()
	defer t.owning.Unlock()
	if t.there && t.note != "" {
		out = append(out, t.note)
	}
	if t.info != nil && !t.closed {
		out = append(out, t.info.Notes()...)
	}
	return out
}

// findLines opens what knows lines.
func (t *Table) findLines() {
	err := module.Guard(func() (err error) {
		opt := debuginfo.Options{Open: t.linked, CacheDir: t.r.opt.CacheDir}
		if t.img != nil {
			info, err := debuginfo.Open(t.img, opt)
			if t.setInfo(info); info != nil {
				return err
			}
			if t.gosym == nil {
				t.gosym, _ = gosym.Open(t.img)
			}
		}
		if debug := t.debugFile(); debug != nil {
			var info *debuginfo.Info
			info, err = debuginfo.Open(debug, opt)
			t.setInfo(info)
		}
		return err
	})
	if err != nil {
		t.setNote("%v", err)
	}
}

func (t *Table) setInfo(info *debuginfo.Info) {
	t.owning.Lock()
	t.info = info
	t.owning.Unlock()
}

// linked opens a file that debug information names: a .dwo or .dwp by its path, or beside the module's; an alternate file, which several
// debug files share, by its build ID or by its path.
func (t *Table) linked(path string, buildID []byte) (*module.Image, error) {
	t.owning.Lock()
	t.links = true
	t.owning.Unlock()
	var err error
	try := func(path string, check func(*module.Image) error) *module.Image {
		f, ferr := t.openIn(path)
		if ferr != nil {
			if err == nil || errors.Is(err, fs.ErrNotExist) {
				err = ferr
			}
			return nil
		}
		defer f.Close()
		img, ferr := module.Map(f)
		if ferr == nil {
			if ferr = module.Guard(func() error { return check(img) }); ferr == nil {
				t.uses(img)
				return img
			}
			img.Close()
		}
		err = ferr
		return nil
	}
	if len(buildID) == 0 {
		any := func(*module.Image) error { return nil }
		img := try(path, any)
		if own := filepath.Join(filepath.Dir(t.path), filepath.Base(path)); img == nil && own != path {
			img = try(own, any)
		}
		return img, errIf(img, err)
	}
	id := hex.EncodeToString(buildID)
	roots := t.r.opt.Files.DebugRoots()
	for _, name := range module.DebugPaths(roots, id) {
		if img := try(name, hasID(id)); img != nil {
			return img, nil
		}
	}
	img := try(path, hasID(id))
	for i := 0; img == nil && i < len(roots); i++ {
		img = try(filepath.Join(roots[i], ".dwz", filepath.Base(path)), hasID(id))
	}
	return img, errIf(img, err)
}

// errIf returns err if there is no image.
func errIf(img *module.Image, err error) error {
	if img != nil {
		return nil
	}
	return err
}
