// Package compile works on whole files, and on all files below directories. It compiles their unwind information ahead of time (Compiler), proves
// the output equal to it (Prove), and measures it (Measure). Files and Mapped list files; Each works on many at once. Nothing is printed: results
// and errors are returned.
package compile

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/unspool/unspool/format"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// ErrNoRows is the error of a file without unwind information.
var ErrNoRows = errors.New("no call frame information")

// Open opens a file, or a part of one with a name like lib.a(member.o) or program(arm64), and its unwind information. The caller closes the image.
func Open(path string) (*module.Image, *format.Unwind, error) {
	img, err := module.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(path, ")"):
		img, err = module.OpenMember(path)
	case err != nil && module.KindOf(path) == module.ArchiveFile:
		err = fmt.Errorf("%s: an archive: name one of its members, as in '%s(x.o)'", path, path)
	}
	if err != nil {
		return nil, nil, err
	}
	f, err := format.Open(img)
	if err != nil {
		img.Close()
		return nil, nil, err
	}
	return img, f, nil
}

// Rows returns the rows of a file, from the sources with the given names; from all where there are none. It is an error if the file lacks one of
// these sources. damage has what could not be read.
func Rows(path string, only ...string) (t *rows.Table, damage []error, err error) {
	err = module.Guard(func() error {
		img, f, err := Open(path)
		if err != nil {
			return err
		}
		defer img.Close()
		if err := has(f, only); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		t, damage = f.Rows(only...)
		if len(t.Rows) == 0 && len(damage) == 0 {
			return fmt.Errorf("%s: %w", path, ErrNoRows)
		}
		return nil
	})
	return t, damage, err
}

// has says whether a file has the sources with the given names; the error names those it has.
func has(f *format.Unwind, names []string) error {
	for _, name := range names {
		if slices.ContainsFunc(f.Sources, func(s format.Source) bool { return s.Name == name }) {
			continue
		}
		var there []string
		for _, s := range f.Sources {
			there = append(there, s.Name)
		}
		if len(there) == 0 {
			return ErrNoRows
		}
		return fmt.Errorf("no unwind information named %q: there is %s", name, strings.Join(there, ", "))
	}
	return nil
}

// Files returns the paths, with archives replaced by their members that are object files, universal files by their programs, with names that Open
// understands, and directories by the executables and libraries below them. With objects, directories also stand for their object files, archives, and compressed kernels and
// modules. skipped is told what could not be read below a directory or in an archive, and which directory has no such file.
func Files(paths []string, objects bool, skipped func(error)) ([]string, error) {
	what := "executables or libraries"
	if objects {
		what = "executables, libraries or object files"
	}
	var out []string
	for _, root := range paths {
		before := len(out)
		st, err := os.Stat(root)
		if errors.Is(err, fs.ErrNotExist) && strings.HasSuffix(root, ")") { // a member of an archive, or an error of Open's
			out = append(out, root)
			continue
		}
		if err != nil {
			return nil, err
		}
		if !st.IsDir() && module.IsArchive(root) {
			names, others, err := members(root)
			if others > 0 && err == nil {
				err = fmt.Errorf("%s: %d of %d members are no object files", root, others, others+len(names))
			}
			if err != nil {
				skipped(err)
			}
			out = append(out, names...)
			continue
		}
		if !st.IsDir() {
			out = append(out, root)
			continue
		}
		err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				skipped(err)
				if d != nil && d.IsDir() {
					return fs.SkipDir
				}
				return nil
			}
			if !d.Type().IsRegular() {
				return nil
			}
			switch kind := module.KindOf(p); {
			case kind == module.UnknownFile, kind != module.LinkedFile && !objects:
			case module.IsArchive(p):
				names, _, err := members(p)
				if err != nil {
					skipped(err)
				}
				out = append(out, names...)
			default:
				out = append(out, p)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if len(out) == before {
			skipped(fmt.Errorf("%s: no %s", root, what))
		}
	}
	return out, nil
}

// members returns the names of an archive's object files, and how many other files it has.
func members(path string) (names []string, others int, err error) {
	err = module.Guard(func() error {
		a, err := module.OpenArchive(path)
		if err != nil {
			return err
		}
		defer a.Close()
		list, err := a.Members()
		for _, m := range list {
			if a.IsImage(m) {
				names = append(names, path+"("+m.Name+")")
			}
		}
		others = len(list) - len(names)
		return err
	})
	return names, others, err
}

// Mapped returns the files whose code a process has mapped.
func Mapped(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("process %d: no such process", pid)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("process %d: %w: run unspool as the user of the process or as root", pid, err)
	case err != nil:
		return nil, fmt.Errorf("process %d: %w", pid, err)
	}
	seen := map[string]bool{}
	var out []string
	for line := range strings.Lines(string(b)) {
		// lo-hi perms offset dev inode path (proc_pid_maps(5)); the path may have spaces.
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "/", 2)
		if len(f) < 2 || len(strings.Fields(f[0])) < 5 || !strings.Contains(strings.Fields(f[0])[1], "x") {
			continue
		}
		if path := "/" + f[1]; !seen[path] {
			seen[path] = true
			if module.IsLinked(path) {
				out = append(out, path)
			}
		}
	}
	return out, nil
}

// Each calls work with each file, on all processors at once. It calls done with each result, one call at a time. A file that shrinks while it
// is read is an error of that file. When ctx ends, files not yet begun are left out, and ctx's error is returned.
func Each[R any](ctx context.Context, files []string, work func(path string) (R, error), done func(r R, err error)) error {
	var mu sync.Mutex
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(files)) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(files) {
					return
				}
				var r R
				err := module.Guard(func() (err error) { r, err = work(files[i]); return err })
				mu.Lock()
				done(r, err)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}
