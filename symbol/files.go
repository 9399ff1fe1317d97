package symbol

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
	"github.com/unspool/unspool/module"
)

// file returns the module's own file; nil without an error for a mapping that has none, such as JIT code.
func (t *Table) file() (*module.Image, error) {
	if t.given != nil {
		return t.given, nil
	}
	img, in, err := t.r.opt.Files.Find(t.path, t.id, 0)
	var other *module.ReplacedError
	var foreign *module.MachineError
	switch {
	case errors.As(err, &foreign):
		t.noteForeign(foreign.Error())
	case errors.As(err, &other):
		t.noteReplaced()
		if other.Want == module.Another {
			return nil, fmt.Errorf("%w: it has no names", err)
		}
		return nil, fmt.Errorf("%s: the file was replaced: build ID %s, recorded %s", t.path, other.Have, other.Want)
	case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(t.path, " (deleted)"):
		return nil, nil
	}
	if t.pid = in; img != nil {
		t.holds(img)
	}
	return img, err
}

func (t *Table) noteReplaced() {
	t.owning.Lock()
	defer t.owning.Unlock()
	t.replaced = true
}

func (t *Table) noteForeign(why string) {
	t.owning.Lock()
	defer t.owning.Unlock()
	t.foreign = why
}

// map_ opens a file that close will unmap, if check has nothing against it.
func (t *Table) map_(path string, check func(*module.Image) error) (*module.Image, error) {
	f, err := module.OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return t.mapFile(f, check)
}

func (t *Table) mapFile(f *os.File, check func(*module.Image) error) (*module.Image, error) {
	img, err := module.Map(f)
	if err != nil {
		return nil, err
	}
	if err := module.Guard(func() error { return check(img) }); err != nil {
		img.Close()
		return nil, err
	}
	t.owning.Lock()
	t.owned = append(t.owned, img)
	t.owning.Unlock()
	t.uses(img)
	return img, nil
}

// holds remembers to release a file of Options.Files.
func (t *Table) holds(img *module.Image) {
	t.owning.Lock()
	t.held = append(t.held, img)
	t.owning.Unlock()
	t.uses(img)
}

// uses remembers whether others could change a file that names come from.
func (t *Table) uses(img *module.Image) {
	t.owning.Lock()
	t.shared = t.shared || img.File() == nil || !img.File().Private
	t.owning.Unlock()
}

// debugFile opens the separate debug file: by build ID, by the name in .gnu_debuglink, or from a debuginfod; nil if there is none.
func (t *Table) debugFile() *module.Image {
	t.debugged.Do(func() {
		id := t.buildID()
		debug := t.byID(id)
		if debug == nil {
			debug = t.byLink()
		}
		if debug == nil && t.gosym == nil {
			debug = t.fetch(id, "debuginfo")
		}
		t.owning.Lock()
		t.debug = debug
		t.owning.Unlock()
	})
	return t.debug
}

// buildID returns the build ID in hex; "" if it is not known.
func (t *Table) buildID() string {
	if t.img != nil {
		if own := t.img.BuildID(); own != nil {
			return hex.EncodeToString(own)
		}
	}
	return t.id
}

// byID looks for the debug file by build ID.
func (t *Table) byID(id string) *module.Image {
	img, err := t.r.opt.Files.Debug(id)
	if err != nil {
		t.setNote("%v", err)
	}
	if img != nil {
		t.holds(img)
	}
	return img
}

// hasID returns a check for a build ID.
func hasID(id string) func(*module.Image) error {
	return func(img *module.Image) error { return module.HasBuildID(img, id) }
}

// maxLinked bounds a file whose checksum is computed, in bytes: all of it is read, linkChunk bytes at a time.
const (
	maxLinked = 8 << 30
	linkChunk = 16 << 20
)

// checksum computes the CRC-32 of a file, until ctx is done.
func checksum(ctx context.Context, img *module.Image) (sum uint32, err error) {
	if img.Size() > maxLinked || img.Reach() < img.Size() {
		return 0, fmt.Errorf("%s: %d bytes, of which %d are not in holes, are not read for a checksum", img.Name(), img.Size(), img.Reach())
	}
	for b := img.Bytes(); len(b) > 0; {
		if ctx.Err() != nil {
			return 0, ctx.Err()
		}
		n := min(len(b), linkChunk)
		sum, b = crc32.Update(sum, crc32.IEEETable, b[:n]), b[n:]
	}
	return sum, nil
}

// byLink looks for the file that .gnu_debuglink names: beside the module's, in .debug there, and in the directories of debug files
// ("Debugging Information in Separate Files" in the GDB manual).
func (t *Table) byLink() *module.Image {
	if t.img == nil {
		return nil
	}
	name, sum, ok := debugLink(t.img)
	if !ok {
		return nil
	}
	dir := filepath.Dir(t.path)
	paths := []string{filepath.Join(dir, name), filepath.Join(dir, ".debug", name)}
	for _, d := range t.r.opt.Files.DebugRoots() {
		paths = append(paths, filepath.Join(d, dir, name))
	}
	for _, path := range paths {
		if path == t.path {
			continue // it names itself
		}
		img, err := t.mapIn(path, func(img *module.Image) error {
			have, err := checksum(t.r.opt.Context, img)
			if err == nil && have != sum {
				return fmt.Errorf("%s: its checksum is %08x; .gnu_debuglink of %s says %08x", path, have, t.path, sum)
			}
			return err
		})
		if err == nil {
			return img
		}
		if !errors.Is(err, fs.ErrNotExist) {
			t.setNote("%v", err)
		}
	}
	return nil
}

// mapIn is map_ in the root directory in which the module was found.
func (t *Table) mapIn(path string, check func(*module.Image) error) (*module.Image, error) {
	f, err := t.openIn(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return t.mapFile(f, check)
}

// openIn opens a file in that root directory that the module's file has named, if the owner of that may read it. Names that were made from an
// image's may have the directory already. An image that a program has made in its memory has no owner: what it names is not opened.
func (t *Table) openIn(path string) (f *os.File, err error) {
	if t.img != nil && t.img.Made() {
		return nil, fmt.Errorf("%s, which %s names: %w", path, t.path, fs.ErrNotExist)
	}
	if t.pid == 0 {
		f, err = module.OpenFile(path)
	} else {
		f, err = procroot.Open(t.pid, strings.TrimPrefix(path, fmt.Sprintf("/proc/%d/root", t.pid)))
	}
	if err != nil || t.img == nil || t.img.File() == nil {
		return f, err
	}
	if by := t.img.File(); !procfs.Readable(f, by.Uid, by.Gid) {
		f.Close()
		return nil, fmt.Errorf("%s: user %d, whose %s names it, may not read it", path, by.Uid, t.path)
	}
	return f, nil
}

// debugLink reads .gnu_debuglink.
func debugLink(img *module.Image) (name string, sum uint32, ok bool) {
	s := img.Section(".gnu_debuglink")
	if s == nil {
		return "", 0, false
	}
	b, err := img.Data(s)
	if err != nil {
		return "", 0, false
	}
	return parseLink(b, img.Order())
}

// parseLink reads a file's name, without a directory, and the CRC-32 of its contents, aligned to 4 bytes.
func parseLink(b []byte, order binary.ByteOrder) (name string, sum uint32, ok bool) {
	n := bytes.IndexByte(b, 0)
	at := (n + 4) &^ 3
	if n <= 0 || n > unix.NAME_MAX || len(b) < at+4 {
		return "", 0, false
	}
	name = string(b[:n])
	if name == "." || name == ".." || strings.Contains(name, "/") {
		return "", 0, false
	}
	return name, order.Uint32(b[at:]), true
}

// fetch gets a file from elsewhere; nil if it is not there.
func (t *Table) fetch(id, kind string) *module.Image {
	b, err := hex.DecodeString(id)
	if t.r.opt.Fetch == nil || err != nil || len(b) < 2 {
		return nil
	}
	path, err := t.r.opt.Fetch(b, kind)
	if err != nil {
		return nil // whoever fetches tells
	}
	img, err := t.map_(path, hasID(id))
	if err != nil {
		t.setNote("%v", err)
		return nil
	}
	return img
}
