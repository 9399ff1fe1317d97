package compile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/store"
)

// installed are the directories where distributions and administrators put programs and libraries (FHS 3.0).
var installed = []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec",
	"/usr/games", "/usr/local", "/opt"}

// passed are directories below them whose files no process maps: debug information, modules and firmware of kernels.
var passed = []string{"/usr/lib/debug", "/usr/lib/modules", "/usr/lib/firmware", "/lib/debug", "/lib/modules", "/lib/firmware"}

// Installed returns the executables and libraries below directories, and files; where none are named, those below the directories where software is
// installed. Each is returned once, by its path without symbolic links. known may say that a file is one of them without having it opened.
// skipped is told what could not be read.
func Installed(paths []string, known func(path string) bool, skipped func(error)) ([]string, error) {
	named := len(paths) > 0
	if !named {
		paths = installed
	}
	var out []string
	for _, root := range paths {
		root, err := filepath.Abs(root)
		if err == nil {
			root, err = filepath.EvalSymlinks(root)
		}
		if errors.Is(err, fs.ErrNotExist) && !named {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			switch {
			case err != nil:
				skipped(err)
				if d != nil && d.IsDir() {
					return fs.SkipDir
				}
			case d.IsDir():
				if !named && slices.Contains(passed, p) {
					return fs.SkipDir
				}
			case d.Type().IsRegular() && (known(p) || module.KindOf(p) == module.LinkedFile):
				out = append(out, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// A Shared compiles files for all users of a machine, or for a package. It is safe for concurrent use.
type Shared struct {
	Store   *store.Store   // where tables go
	Machine *store.Machine // if Store is the machine's: files that have not changed are not opened; nil for a package's

	work gate
}

// OpenShared opens the machine's tables, or a package's in dir, which the installation of the package moves to its place. It returns the files to
// compile: see Installed. skipped is told what could not be read. The caller closes s.
func OpenShared(ctx context.Context, dir string, paths []string, skipped func(error)) (s *Shared, files []string, err error) {
	s = &Shared{}
	known := func(string) bool { return false }
	if dir != "" {
		s.Store, err = store.OpenPackage(dir)
	} else if s.Machine, err = store.OpenMachine(ctx, ""); err == nil {
		s.Store = s.Machine.Store
		known = func(path string) bool { _, ok := s.Machine.Known(path); return ok }
	}
	if err == nil {
		files, err = Installed(paths, known, skipped)
	}
	if err != nil {
		s.Close()
		return nil, nil, err
	}
	return s, files, nil
}

// Close lets others change the machine's tables.
func (s *Shared) Close() {
	if s.Machine != nil {
		s.Machine.Close()
	}
}

// Finish ends the work on all files: for the machine, it compiles the kernel's code in processes, and removes tables of files that have changed or
// gone. It returns lines on what was done in the time that it took.
func (s *Shared) Finish(done *Tally, took time.Duration) (text string, err error) {
	took = took.Round(10 * time.Millisecond)
	if s.Machine == nil {
		return fmt.Sprintf("%s, in %s: %s\n", done.Shared(), took, s.Store.Dir()), nil
	}
	err = s.VDSO()
	p, perr := s.Machine.Prune()
	text = fmt.Sprintf("%s, in %s\n", done.Shared(), took)
	if p.Gone > 0 {
		text += fmt.Sprintf("%s removed, whose files have changed or gone: %s\n", printable.Count(uint64(p.Gone), "table", "tables"), printable.Bytes(p.GoneBytes))
	}
	text += fmt.Sprintf("%s has %s: %s\n", s.Store.Dir(), printable.Count(uint64(p.Left), "table", "tables"), printable.Bytes(p.LeftBytes))
	return text, errors.Join(err, perr)
}

// atOnce bounds the bytes of all files that are compiled at the same time. Rows take several times as much memory as what they are made of.
const atOnce = 256 << 20

// File compiles a file, unless its table is there. Of a file without unwind information, it returns no error.
func (s *Shared) File(ctx context.Context, path string) (r Result, err error) {
	if s.Machine != nil {
		if size, known := s.Machine.Known(path); known {
			return Result{Size: size, Found: size > 0}, nil
		}
		s.Machine.Settle(ctx, path)
	}
	size := int64(0)
	if st, err := os.Stat(path); err == nil {
		size = st.Size()
	}
	s.work.enter(size)
	defer s.work.leave(size)
	img, err := module.Open(path)
	if err != nil {
		return r, err
	}
	defer img.Close()
	name, n, from, err := s.Store.Keep(img)
	r = Result{Size: int64(n), Found: n > 0 && from != store.Built}
	if err != nil {
		if !strings.Contains(err.Error(), path) {
			err = fmt.Errorf("%s: %w", path, err)
		}
		if n == 0 {
			return r, err
		}
	}
	if s.Machine != nil {
		s.Machine.Made(path, img, name)
	}
	return r, err
}

// VDSO compiles the code that this kernel has in all processes, into the machine's store. Where a kernel has none, it does nothing.
func (s *Shared) VDSO() error {
	img, err := module.VDSO()
	if errors.Is(err, module.ErrUnsupported) {
		return nil
	}
	if err != nil {
		return err
	}
	name, _, _, err := s.Store.Keep(img)
	if name != "" {
		s.Machine.Stay(name)
	}
	return err
}

// A gate lets work in as long as all that is inside does not weigh more than atOnce together, or is alone. The zero gate is open.
type gate struct {
	mu     sync.Mutex
	inside int64
	left   *sync.Cond
}

func (g *gate) enter(n int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.left == nil {
		g.left = sync.NewCond(&g.mu)
	}
	for g.inside > 0 && g.inside+n > atOnce {
		g.left.Wait()
	}
	g.inside += n
}

func (g *gate) leave(n int64) {
	g.mu.Lock()
	g.inside -= n
	g.mu.Unlock()
	g.left.Broadcast()
}
