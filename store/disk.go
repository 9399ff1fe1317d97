package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"syscall"
	"time"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/kept"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
)

// A file is the table, which has a checksum of its own, the name, and a trailer of little-endian words: the size of
// the name and a magic number.
const (
	trailerSize = 8
	magic       = 0x65726f74 // "tore"
)

// Open returns the Store in a directory. It makes the directory if needed, for this user only. "" is $UNSPOOL_CACHE, else the directory
// unspool in $XDG_CACHE_HOME, else in ~/.cache. A directory that others own or may write to is refused, and so is a link to one: its tables
// could be anybody's. With an error comes a Store that keeps nothing on disk. All find what is in SharedDirs.
func Open(dir string) (*Store, error) {
	shared := SharedDirs()
	if dir == "" {
		dir = os.Getenv("UNSPOOL_CACHE")
	}
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return &Store{shared: shared}, fmt.Errorf("no cache directory: %w; set UNSPOOL_CACHE", err)
		}
		dir = filepath.Join(base, "unspool")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return &Store{shared: shared}, fmt.Errorf("cache: %w", err)
	}
	if err := procfs.OwnDir(dir); err != nil {
		return &Store{shared: shared}, fmt.Errorf("cache: %w; or set UNSPOOL_CACHE", err)
	}
	st, err := os.Stat(dir)
	if err != nil {
		return &Store{shared: shared}, fmt.Errorf("cache: %w", err)
	}
	if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) != os.Geteuid() {
		return &Store{shared: shared}, fmt.Errorf("cache: %s belongs to root: set UNSPOOL_CACHE", dir)
	}
	return &Store{dir: dir, shared: shared}, nil
}

// The name of a table says behind the build ID whether only root and this user could change the module's file.
const (
	ownFile = "own"
	anyFile = "any"
)

// settled is how old a file's last change must be before its hash is remembered: a change within the same tick of the clock is not seen.
var settled = 2 * time.Second // but for tests

// remembered returns how the name of an image's table begins, and all of it where a link remembers it; else "", and the name of the link that can,
// "" where none is to.
func (s *Store) remembered(img *module.Image, suffix string) (prefix, name, link string) {
	st, whose := img.File(), anyFile
	if st != nil && st.Private || s.role == packager {
		whose = ownFile
	}
	prefix = fmt.Sprintf("%s-%s-", img.ID(), whose)
	if s.role == packager || st == nil || !st.Private || time.Since(time.Unix(st.Ctim.Unix())) <= settled {
		return prefix, "", ""
	}
	link = linkTo(st) + "." + suffix
	ok := func(to string) bool {
		return strings.HasPrefix(to, prefix) && strings.HasSuffix(to, "."+suffix) && !strings.Contains(to, "/")
	}
	if s.dir != "" {
		if to, err := os.Readlink(filepath.Join(s.dir, link)); err == nil && ok(to) {
			return prefix, to, ""
		}
	}
	if to := s.linkedShared(link, ok); to != "" {
		return prefix, to, ""
	}
	return prefix, "", link
}

// linkTo is how the link to what was made of a file begins. The same is in runtime/table.c.
func linkTo(st *module.File) string {
	return fmt.Sprintf("at-%x-%x-%x-%x-%x-%x-%x", st.Dev, st.Ino, st.Size, st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
}

// replace removes what earlier versions kept under these names, which end in suffix.
func (s *Store) replace(suffix string, old []string, names ...string) {
	for _, name := range names {
		if stem, ok := strings.CutSuffix(name, "."+suffix); ok {
			for _, end := range old {
				os.Remove(filepath.Join(s.dir, stem+"."+end))
			}
		}
	}
}

// remember makes a link, if it can.
func (s *Store) remember(link, name string) {
	if s.dir == "" {
		return
	}
	link = filepath.Join(s.dir, link)
	if os.Symlink(name, link) != nil && os.Remove(link) == nil {
		os.Symlink(name, link)
	}
}

// maxFile bounds a table's file, in bytes: a table says its size in 32 bits.
const maxFile = math.MaxUint32 + 1<<10

// load loads a table. It returns nil without an error where there is none. An error with a table is of a file that was rejected before.
func (s *Store) load(name string) (t *compact.Table, err error) {
	if s.dir != "" {
		t, err = s.loadOwn(name)
	}
	if t == nil {
		var rejected error
		t, rejected = s.loadShared(name)
		err = errors.Join(err, rejected)
	}
	return t, err
}

// maps says whether the tables of the Store's own directory are mapped: where this user is root.
func (s *Store) maps() bool { return s.dir != "" && os.Geteuid() == 0 }

// loadOwn loads a table of the Store's own directory.
func (s *Store) loadOwn(name string) (*compact.Table, error) {
	path := filepath.Join(s.dir, name)
	if s.maps() {
		f, _, err := kept.Open(path, maxFile)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		defer f.Close()
		t, err := loadMapped(int(f.Fd()), name)
		if err == nil {
			return t, nil
		}
		if !errors.Is(err, errNotRoots) {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	b, err := kept.ReadEnding(path, maxFile, seal(nil, name))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	t, err := open(b, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// Kept returns the table of the module with a build ID, in lower-case hex, that an earlier run has put on disk; nil if there is none. So
// stacks lead through modules whose files are gone. Of several, such as those of a file and of its stripped copy, it is the largest. Only files
// that root and this user alone could change are believed. Each directory is read once, and so is each table.
func (s *Store) Kept(buildID string) *compact.Table {
	if buildID == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		s.gone = map[string]*compact.Table{}
		if s.dir != "" {
			s.files, _ = os.ReadDir(s.dir) // sorted; an error is no table
		}
	}
	best, ok := s.gone[buildID]
	if ok {
		return best
	}
	prefix := buildID + "-" + ownFile + "-"
	first := sort.Search(len(s.files), func(i int) bool { return s.files[i].Name() >= prefix })
	for _, f := range s.files[first:] {
		if !strings.HasPrefix(f.Name(), prefix) {
			break
		}
		if !strings.HasSuffix(f.Name(), tableEnding) {
			continue
		}
		if t, err := s.loadOwn(f.Name()); err != nil {
			s.rejected.Add(1)
		} else if t != nil && (best == nil || t.NumRows() > best.NumRows()) {
			best = t
		}
	}
	s.keptShared(buildID, func(t *compact.Table) {
		if best == nil || t.NumRows() > best.NumRows() {
			best = t
		}
	})
	if best != nil {
		s.mapped.Add(1)
	}
	s.gone[buildID] = best
	return best
}

// open checks a file and loads its table.
func open(b []byte, name string) (*compact.Table, error) {
	end := len(b) - trailerSize
	tail := b[end:]
	if binary.LittleEndian.Uint32(tail[4:]) != magic {
		return nil, errors.New("no trailer")
	}
	n := uint64(binary.LittleEndian.Uint32(tail))
	if n > uint64(end) || string(b[end-int(n):end]) != name {
		return nil, errors.New("the table of another module")
	}
	return compact.LoadProven(b[: end-int(n) : end-int(n)]) // fill has kept it, with its proof behind it
}

// loadNative maps machine code, as load loads a table.
func (s *Store) loadNative(name string, o native.Options) (c *native.Code, err error) {
	if s.dir != "" {
		c, err = openNative(filepath.Join(s.dir, name), o)
	}
	if c == nil {
		var rejected error
		c, rejected = s.nativeShared(name, o)
		err = errors.Join(err, rejected)
	}
	return c, err
}

// openNative maps machine code. It returns nil without an error where there is none.
func openNative(path string, o native.Options) (*native.Code, error) {
	c, err := native.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && (c.ID() != o.ID || c.Layout() != o.Layout || c.Deref() != o.Deref) {
		c.Close()
		return nil, errors.New("the machine code of another module")
	}
	return c, err
}

// seal appends the name and the trailer.
func seal(table []byte, name string) []byte {
	b := make([]byte, 0, len(table)+len(name)+trailerSize)
	b = append(append(b, table...), name...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(name)))
	return binary.LittleEndian.AppendUint32(b, magic)
}

// maxKept bounds the files and links on disk, in bytes, each with fileCost: a build makes a build ID, so there is no end of them. Those go first that
// were not used for longest; the drop-in, which only reads, does not count as use.
var maxKept = int64(2 << 30) // but for tests

// fileCost is what a file or a link takes beside its contents: an inode and a part of a directory.
const fileCost = 1 << 10

// save writes a file, so that others see all of it or nothing. The first time, and each time that a part of maxKept has been written, it makes room
// first, and removes what killed processes left of theirs. A directory for other users has no bound.
func (s *Store) save(name string, b []byte) error {
	if s.role != user { // whoever fills it decides what stays
		return kept.SaveMode(filepath.Join(s.dir, name), 0o644, b)
	}
	part, size := maxKept/32, int64(len(b)+fileCost)
	if after := s.written.Add(size); after == size || after/part > (after-size)/part {
		kept.PruneFunc(s.dir, isKept, fileCost, maxKept)
	}
	return kept.Save(filepath.Join(s.dir, name), b)
}

// isKept says whether a name in the directory is of a table, of machine code, or of a link to one: others keep theirs there, too.
func isKept(name string) bool {
	return strings.HasPrefix(name, "at-") || strings.Contains(name, "-"+ownFile+"-") || strings.Contains(name, "-"+anyFile+"-")
}
