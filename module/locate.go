package module

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
)

// A Locator finds the files of modules, and opens each once for all callers. It looks, in this order: below Sysroot; at the path; by build ID
// in Dirs; in a process that has mapped the file; in the containers running on this machine. The zero Locator knows no Sysroot and no Dirs.
// Links below Sysroot are followed within it; they lead out of it only to a file that its build ID, or Wanted.Same, tells from others.
// It is safe for concurrent use, once its fields are set.
type Locator struct {
	Sysroot string // a root directory; "": none

	// Dirs have files by build ID: .build-id/xx/yyyy, or, as perf buildid-cache keeps them, .build-id/xx/yyyy/elf and debug. None of these
	// files counts as File.Private: the maker of a program chooses its build ID, and perf run by root makes the copy root's.
	Dirs []string

	// DebugDirs are directories of separate debug files: .build-id/xx/yyyy.debug. nil stands for DebugDir alone.
	DebugDirs []string

	// Memory bounds what is kept of files, by whoever uses the Locator. Files that are too much are closed, and opened again when they are wanted.
	Memory Budget

	machine atomic.Pointer[arch.Machine] // see For

	mu    sync.Mutex
	open  map[located]*found
	debug map[string]*found // by build ID
}

// For sets the machine whose files are wanted, and returns the one before; nil: those of all. Where a recording or a core is read, files of the same
// name may be for another machine. A 64-bit machine wants the 32-bit programs that run there, too. For may be called while the Locator is used.
func (l *Locator) For(m *arch.Machine) (before *arch.Machine) { return l.machine.Swap(m) }

// DebugDir is where distributions put debug files.
const DebugDir = "/usr/lib/debug"

// DebugRoots returns the directories of debug files.
func (l *Locator) DebugRoots() []string {
	if l.DebugDirs == nil {
		return []string{DebugDir}
	}
	return l.DebugDirs
}

// A located is a file that was asked for.
type located struct {
	path, buildID string
	now           string // without a build ID: which file lies at the path
	machine       *arch.Machine
}

// A found is an open file. The Locator holds it while it is listed.
type found struct {
	img    *Image
	in     int
	share  *Share
	listed bool
	gone   bool // it is listed no more
}

// A ReplacedError says that the file at a path is not the recorded file.
type ReplacedError struct {
	Path string
	Have string // build ID, in hex
	Want string // the recorded build ID; Another: unknown, but this is another file
}

// A MachineError says that a file is not for the machine that was recorded.
type MachineError struct {
	Path       string
	Have, Want string
}

func (e *MachineError) Error() string {
	return fmt.Sprintf("%s is for %s, but was recorded on %s", e.Path, e.Have, e.Want)
}

// fits refuses a file for another machine than m.
func fits(m *arch.Machine, path string, img *Image) error {
	if m == nil || img.machine == m || m.Compat != 0 && img.machine.ELF == m.Compat {
		return nil
	}
	return &MachineError{path, img.machine.Name, m.Name}
}

func (e *ReplacedError) Error() string {
	if e.Want == Another {
		return fmt.Sprintf("%s: another file was recorded, and not its build ID", e.Path)
	}
	return fmt.Sprintf("%s: the file has changed: build ID %s, recorded %s", e.Path, e.Have, e.Want)
}

// Find returns the image of the file that is mapped under the name path. buildID is the recorded build ID, in hex; "" if unknown; or Inode or Another.
// A file with another build ID or inode is refused. pid is a process that maps the file; 0 is none. The caller releases the image.
//
// in is the process in whose root directory the file was found, because no path of this machine leads to it: a file in a container, or a
// deleted file. It is 0 for all other files. A mapping without a file, such as code that a program wrote, has no image and no error. If no
// place has the file, the error is that of the path: a ReplacedError if another file lies there.
func (l *Locator) Find(path, buildID string, pid int) (img *Image, in int, err error) {
	m := l.machine.Load()
	key := located{path: path, buildID: buildID, machine: m}
	if buildID == "" || buildID == Another {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil {
			key.now = fmt.Sprint(st.Dev, st.Ino, st.Mtim)
		}
	}
	f := hold(l, &l.open, key)
	if f != nil {
		return f.img, f.in, nil
	}
	img, in, err = l.find(m, path, buildID, pid)
	if img == nil {
		return nil, 0, err
	}
	f = keep(l, &l.open, key, &found{img: img, in: in})
	return f.img, f.in, nil
}

// hold returns a file that is open, held for the caller; nil if it is not, or if it has changed.
func hold[K comparable](l *Locator, open *map[K]*found, key K) *found {
	l.mu.Lock()
	f := (*open)[key]
	if f != nil {
		f.img.Hold()
	}
	l.mu.Unlock()
	if f == nil {
		return nil
	}
	if !f.img.Changed() {
		f.share.Touch()
		return f
	}
	l.mu.Lock()
	if f.listed {
		delete(*open, key)
		f.share.Remove()
		f.close()
	}
	l.mu.Unlock()
	f.img.Release()
	return nil
}

// keep keeps a file that was just opened, until Close or until it is too much for the budget, and returns it, held for the caller. Where somebody was
// faster, it is theirs.
func keep[K comparable](l *Locator, open *map[K]*found, key K, f *found) *found {
	f.img.Hold()
	f.share = l.Memory.Add(f.img.cost(), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if !f.listed {
			return f.gone
		}
		delete(*open, key)
		f.close()
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	if faster := (*open)[key]; faster != nil {
		f.gone = true
		f.share.Remove()
		f.img.Release()
		f.img.Close()
		faster.img.Hold()
		return faster
	}
	if *open == nil {
		*open = map[K]*found{}
	}
	(*open)[key], f.listed = f, true
	return f
}

// close gives up the Locator's image. The Locator is locked.
func (f *found) close() error {
	f.listed, f.gone = false, true
	return f.img.Close()
}

// Debug returns the separate debug file with a build ID, in hex; nil if there is none. The caller releases the image.
// An error says what is wrong with an existing file, even if another place had the right one.
func (l *Locator) Debug(buildID string) (img *Image, err error) {
	if f := hold(l, &l.debug, buildID); f != nil {
		return f.img, nil
	}
	names := DebugPaths(l.DebugRoots(), buildID)
	own := len(names)
	for _, name := range identified(l.Dirs, buildID) {
		names = append(names, filepath.Join(name, "debug"))
	}
	for i, name := range names {
		img, oerr := openAsIs(name)
		if oerr == nil {
			if oerr = Guard(func() error { return HasBuildID(img, buildID) }); oerr == nil {
				if img.file != nil && i >= own {
					img.file.Private = false // see Dirs
				}
				return keep(l, &l.debug, buildID, &found{img: img}).img, err
			}
			img.Close()
		}
		if !errors.Is(oerr, fs.ErrNotExist) && !errors.Is(oerr, unix.ENOTDIR) {
			err = oerr
		}
	}
	return nil, err
}

// DebugPaths returns the paths that the separate debug file with a build ID, in hex, has below directories such as DebugDir; nil for what is no build ID.
func DebugPaths(dirs []string, buildID string) []string {
	names := identified(dirs, buildID)
	for i := range names {
		names[i] += ".debug"
	}
	return names
}

// identified returns the paths that belong to a build ID, in hex, below directories of files by build ID; nil for what is no build ID.
func identified(dirs []string, buildID string) (names []string) {
	if _, err := hex.DecodeString(buildID); err != nil || len(buildID) < 4 {
		return nil
	}
	for _, dir := range dirs {
		names = append(names, filepath.Join(dir, ".build-id", buildID[:2], buildID[2:]))
	}
	return names
}

// HasBuildID returns an error unless the image has this build ID, in hex.
func HasBuildID(img *Image, buildID string) error {
	if have := hex.EncodeToString(img.BuildID()); !SameBuildID(have, buildID) {
		return fmt.Errorf("%s: it has build ID %q, not %s", img.Name(), have, buildID)
	}
	return nil
}

// Close unmaps all files that were found, once nobody holds them.
func (l *Locator) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	var errs []error
	for _, f := range l.open {
		errs = append(errs, f.close())
	}
	for _, f := range l.debug {
		errs = append(errs, f.close())
	}
	l.open, l.debug = nil, nil
	l.Memory.forget()
	return errors.Join(errs...)
}

func (l *Locator) find(m *arch.Machine, path, buildID string, pid int) (*Image, int, error) {
	if !OnDisk(path) {
		img, err := OpenMapped(path)
		switch {
		case img == nil:
		case fits(m, path, img) != nil: // this machine's vDSO is not the other's
			img.Close()
			return nil, 0, nil
		case buildID != "":
			if err = replaced(path, img, buildID); err != nil {
				img.Close()
				img = nil
			}
		}
		return img, 0, err
	}
	var why error
	var foreign *MachineError
	var likely *place
	for p := range l.places(path, buildID, pid) {
		img, err := p.image(func(img *Image) error {
			if err := fits(m, p.path, img); err != nil {
				return err
			}
			switch {
			case p.kind == belowRoot && !IsBuildID(buildID):
				return nil
			case isInode(buildID):
				return hasInode(path, img, buildID)
			case p.kind == atPath && buildID != "":
				return replaced(path, img, buildID)
			case p.kind == atPath:
				return nil
			case !IsBuildID(buildID):
				return errUnknown
			}
			return HasBuildID(img, buildID)
		})
		if err == nil {
			return img, p.in, nil
		}
		if errors.Is(err, errLayered) && (p.kind == atPath || p.kind == ofProcess) {
			likely = &p // rather the process's
		}
		if foreign == nil && errors.As(err, &foreign) {
			continue
		}
		if p.kind == atPath {
			var other *ReplacedError
			if why = err; isDump(path) && !errors.As(err, &other) {
				return nil, 0, nil
			}
		}
	}
	if likely != nil {
		if img, err := likely.image(func(img *Image) error { return fits(m, likely.path, img) }); err == nil {
			return img, likely.in, nil
		}
	}
	if foreign != nil {
		why = foreign
	}
	return nil, 0, why
}

// errUnknown refuses a file outside of the root directory that nothing distinguishes from others.
var errUnknown = errors.New("its build ID is not known")

// A Wanted is a file that a caller can recognise.
type Wanted struct {
	Path    string // under which it was mapped; "": only First and BuildID lead to it
	BuildID string // in hex; "" if unknown
	First   string // a path to look at before all others; "": none

	// Same returns why an image is not the file. A read beyond the end of a truncated file becomes such an error, too. nil: every image is the file.
	Same func(*Image) error
}

// A Refusal says why a file is not the wanted one.
type Refusal struct {
	Path   string
	Err    error // of Wanted.Same; of opening, where Opened is false
	Opened bool
}

// Search is Find for a file that Wanted.Same recognises. Each file is opened once, and the image that was judged is the one returned: the next Find by
// its name and the build ID returns it, too. in is as of Find; Find has such a file by Wanted.Path. img is nil if no place has the file.
// refused says, in the order of the search, what is wrong with each image that was no match, and why Wanted.First could not be opened.
func (l *Locator) Search(w Wanted) (img *Image, in int, refused []Refusal) {
	m, same := l.machine.Load(), w.Same
	if same == nil {
		same = func(*Image) error { return nil }
	}
	try := func(p place) bool {
		opened := false
		i, err := p.image(func(img *Image) error {
			opened = true
			if err := fits(m, p.path, img); err != nil {
				return err
			}
			return same(img)
		})
		if err == nil {
			img, in = i, p.in
		} else if opened || p.kind == first {
			refused = append(refused, Refusal{p.path, err, opened})
		}
		return err == nil
	}
	if w.First == "" || !try(place{w.First, first, 0, func() (*os.File, error) { return OpenFile(w.First) }}) {
		for p := range l.places(w.Path, w.BuildID, 0) {
			if p.path != w.First && try(p) {
				break
			}
		}
	}
	if img == nil || !IsBuildID(w.BuildID) || Guard(func() error { return HasBuildID(img, w.BuildID) }) != nil {
		return img, in, refused
	}
	key := located{path: img.Name(), buildID: w.BuildID, machine: m}
	if in != 0 {
		key.path = w.Path
	}
	f := keep(l, &l.open, key, &found{img: img, in: in})
	return f.img, f.in, refused
}

// A place is where a file may be.
type place struct {
	path string
	kind placeKind
	in   int // the process in whose root directory it is; 0: none
	open func() (*os.File, error)
}

// A placeKind says how much the place of a file tells of it.
type placeKind uint8

const (
	elsewhere placeKind = iota
	belowRoot           // below Locator.Sysroot
	linkedOut           // where a link below Locator.Sysroot leads out of it
	atPath              // at the path itself
	ofProcess           // at the path in the process that maps it
	byID                // in Locator.Dirs
	first               // Wanted.First
)

// places returns the places of a file, in order. Those that only a build ID or an inode can tell from others come only with one.
func (l *Locator) places(path, buildID string, pid int) iter.Seq[place] {
	return func(yield func(place) bool) {
		if OnDisk(path) {
			if name := l.below(path); name != "" {
				var err error
				in := func() (f *os.File, _ error) { f, err = procroot.In(l.Sysroot, name); return f, err }
				name := filepath.Join(l.Sysroot, name)
				if !yield(place{name, belowRoot, 0, in}) || err != nil && !yield(place{name, linkedOut, 0, func() (*os.File, error) { return OpenFile(name) }}) {
					return
				}
			}
			if !yield(place{path, atPath, 0, func() (*os.File, error) { return OpenFile(path) }}) {
				return
			}
		}
		if !IsBuildID(buildID) && !isInode(buildID) {
			return
		}
		for _, name := range identified(l.Dirs, buildID) {
			for _, name := range []string{filepath.Join(name, "elf"), name} {
				if !yield(place{name, byID, 0, func() (*os.File, error) { return OpenFile(name) }}) {
					return
				}
			}
		}
		if !OnDisk(path) || pid != 0 && !inProcess(pid, path, yield) {
			return
		}
		for _, pid := range procroot.Others() {
			if !yield(rooted(pid, path)) {
				return
			}
		}
	}
}

// below returns the path below the root directory; "" where there is none. What leads there already is the name of a file that was found there.
func (l *Locator) below(path string) string {
	if l.Sysroot == "" || !filepath.IsAbs(path) {
		return ""
	}
	if rest, ok := strings.CutPrefix(path, l.Sysroot); ok && strings.HasPrefix(rest, "/") {
		return rest
	}
	return path
}

// rooted returns the place of a path in a process's root directory.
func rooted(pid int, path string) place {
	name := fmt.Sprintf("/proc/%d/root%s", pid, path)
	return place{name, elsewhere, pid, func() (*os.File, error) { return procroot.Open(pid, path) }}
}

// image opens and maps the file, if there is one and check has nothing against it.
func (p place) image(check func(*Image) error) (*Image, error) {
	f, err := p.open()
	if err != nil {
		return nil, err
	}
	defer f.Close()
	img, err := Map(f)
	if err != nil {
		return nil, err
	}
	if err := Guard(func() error { return check(img) }); err != nil {
		img.Close()
		return nil, err
	}
	if p.kind == byID && img.file != nil {
		img.file.Private = false // see Locator.Dirs
	}
	return img, nil
}

// replaced returns a ReplacedError if img is not the file that was recorded. An image without a build ID is taken for it.
func replaced(path string, img *Image, buildID string) error {
	have := hex.EncodeToString(img.BuildID())
	if buildID == Another || have != "" && !SameBuildID(have, buildID) {
		return &ReplacedError{path, have, buildID}
	}
	return nil
}

// OpenMapped opens the file that is mapped under a name. It returns nil for a mapping without a file, such as code that a program wrote.
func OpenMapped(name string) (*Image, error) {
	switch {
	case name == "[vdso]":
		return VDSO()
	case !OnDisk(name):
		return nil, nil
	}
	img, err := openAsIs(name)
	if err != nil && isDump(name) {
		return nil, nil
	}
	return img, err
}

// openAsIs is Open, but expands nothing.
func openAsIs(path string) (*Image, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Map(f)
}

// isDump says whether a mapping only tells where a process writes down the code that it makes (package symbol/jit).
func isDump(file string) bool {
	ok, _ := path.Match("jit-[0-9]*.dump", path.Base(file))
	return ok
}

// inProcess yields the places of a file that a process has mapped: below its root directory, or, where it has been deleted, through the mapping
// (proc(5): /proc/PID/exe; /proc/PID/map_files, which takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE).
func inProcess(pid int, path string, yield func(place) bool) bool {
	p := rooted(pid, path)
	if p.kind = ofProcess; !yield(p) {
		return false
	}
	through := func(name string, kind placeKind) bool {
		return yield(place{name, kind, pid, func() (*os.File, error) { return OpenFile(name) }})
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	if !through(proc+"exe", elsewhere) {
		return false
	}
	f, err := os.Open(proc + "maps")
	if err != nil {
		return true // it has ended
	}
	maps, _ := procfs.Mappings(f)
	f.Close()
	tried := map[uint64]bool{} // by inode: files that followed each other at the path
	for _, m := range maps {
		if strings.TrimSuffix(m.Name, deleted) == strings.TrimSuffix(path, deleted) && !tried[m.Inode] {
			tried[m.Inode] = true
			if !through(fmt.Sprintf("%smap_files/%x-%x", proc, m.Lo, m.Hi), ofProcess) {
				return false
			}
		}
	}
	return true
}

// deleted is what the kernel adds to the name of a mapped file that has been deleted.
const deleted = " (deleted)"
