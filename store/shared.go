package store

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/pages"
)

// Directories of tables that all users of a machine read, and only root writes. runtime/store.h has the same. What can be made again is in
// /var/cache, what packages bring in /usr/lib (FHS 3.0, sections 5.5 and 4.6).
const (
	MachineDir = "/var/cache/unspool-tables" // of what is installed: OpenMachine fills it
	PackageDir = "/usr/lib/unspool/tables"   // of packages: OpenPackage fills it
)

// SharedVar names the variable of the environment with other shared directories: absolute paths between colons. Empty is none.
const SharedVar = "UNSPOOL_TABLES"

// SharedDirs returns the directories where tables are looked for behind the user's own, in their order.
func SharedDirs() []string {
	list, ok := os.LookupEnv(SharedVar)
	if !ok {
		return []string{MachineDir, PackageDir}
	}
	return slices.DeleteFunc(filepath.SplitList(list), func(dir string) bool { return !filepath.IsAbs(dir) })
}

// openShared opens a directory that only root can change: root owns it and all directories above it, and nobody else may write to it. Others may
// write to a directory above it only where they cannot put another in its place (sticky ones). It judges what it has opened, not a path.
func openShared(dir string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if fd, err = unix.Open(dir, flags|unix.O_NOFOLLOW, 0); err != nil {
		return -1, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	if err := rootOnly(fd, flags); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("%s: %w", dir, err)
	}
	return fd, nil
}

// rootOnly says why others than root can change an open directory.
func rootOnly(fd, flags int) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	for above := false; ; above = true {
		switch {
		case st.Uid != 0:
			return errors.New("it, or a directory above it, is not root's")
		case st.Mode&0o022 != 0 && (!above || st.Mode&unix.S_ISVTX == 0):
			return errors.New("it, or a directory above it, can be written by others than root")
		}
		up, err := unix.Openat(fd, "..", flags, 0)
		if above {
			unix.Close(fd)
		}
		if err != nil {
			return err
		}
		was := st
		if err := unix.Fstat(up, &st); err != nil || st.Dev == was.Dev && st.Ino == was.Ino {
			unix.Close(up)
			return err
		}
		fd = up
	}
}

// eachShared calls f with each shared directory that is there and only root's, open, until it returns false.
func (s *Store) eachShared(f func(dir int) bool) {
	for _, path := range s.shared {
		fd, err := openShared(path)
		if err != nil {
			continue
		}
		more := f(fd)
		unix.Close(fd)
		if !more {
			return
		}
	}
}

// linkedShared returns where the first link of a name leads that a shared directory has, and that is ok.
func (s *Store) linkedShared(link string, ok func(to string) bool) (name string) {
	s.eachShared(func(dir int) bool {
		var b [unix.NAME_MAX]byte
		if n, err := unix.Readlinkat(dir, link, b[:]); err == nil && ok(string(b[:n])) {
			name = string(b[:n])
		}
		return name == ""
	})
	return name
}

// twin is the name that the same table has if others than root could change the file that it was made of, or could not. In a shared directory
// either will do: root vouches for what is in it, and the name has the hash of all that the table is made of.
func twin(name string) string {
	if own := "-" + ownFile + "-"; strings.Contains(name, own) {
		return strings.Replace(name, own, "-"+anyFile+"-", 1)
	}
	return strings.Replace(name, "-"+anyFile+"-", "-"+ownFile+"-", 1)
}

// loadShared returns a table of a shared directory; nil where none has it. The error is of a file that was rejected.
func (s *Store) loadShared(name string) (t *compact.Table, err error) {
	s.eachShared(func(dir int) bool {
		for _, name := range []string{name, twin(name)} {
			var lerr error
			if t, lerr = loadAt(dir, name); t != nil {
				return false
			}
			err = errors.Join(err, lerr)
		}
		return true
	})
	return t, err
}

// loadAt maps a table of a shared directory. It returns nil without an error where there is none.
func loadAt(dir int, name string) (*compact.Table, error) {
	fd, err := unix.Openat(dir, name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	switch {
	case err == unix.ENOENT:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer unix.Close(fd)
	t, err := loadMapped(fd, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

var errNotRoots = errors.New("others than root can write to it")

// loadMapped loads the table of an open file. It is mapped, where it may be.
func loadMapped(fd int, name string) (*compact.Table, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, err
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG, st.Size < trailerSize, st.Size > maxFile:
		return nil, errors.New("not a table")
	case st.Uid != 0 || st.Mode&0o022 != 0:
		return nil, errNotRoots
	}
	b, err := contents(fd, &st)
	if err != nil {
		return nil, err
	}
	t, err := open(b, name)
	pages.Release(b) // the check has read all of it, and a walk will read a part
	return t, err
}

// mappings are the files that this process has mapped, each once and for good: a table has no end that its readers would have to watch. A file is never
// changed, only replaced; one that is gone takes room on disk until this process ends, so there is a bound, from which on files are read.
var mappings struct {
	sync.Mutex
	of    map[mapped][]byte
	bytes int64 // of all
}

// A mapped says which file it is.
type mapped struct {
	dev, ino   uint64
	size       int64
	mtim, ctim unix.Timespec
}

const (
	maxMaps     = 4 << 10 // files; the kernel lets a process have 65,530 mappings
	maxMapBytes = 8 << 30 // of address space
)

// contents returns the contents of an open file that only root can change: mapped, where that is safe, else read.
func contents(fd int, st *unix.Stat_t) ([]byte, error) {
	id := mapped{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}
	mappings.Lock()
	defer mappings.Unlock()
	if b := mappings.of[id]; b != nil {
		return b, nil
	}
	if len(mappings.of) < maxMaps && mappings.bytes+st.Size <= maxMapBytes && local(fd) && math.MaxInt > st.Size {
		if b, err := pages.MapFile(fd, int(st.Size)); err == nil {
			if mappings.of == nil {
				mappings.of = map[mapped][]byte{}
			}
			mappings.of[id] = b
			mappings.bytes += st.Size
			return b, nil
		}
	}
	b := make([]byte, st.Size)
	for at := 0; at < len(b); {
		n, err := unix.Pread(fd, b[at:], int64(at))
		switch {
		case err == unix.EINTR:
		case err != nil:
			return nil, err
		case n == 0:
			return nil, errors.New("it is shorter than it was")
		default:
			at += n
		}
	}
	return b, nil
}

// local says whether a file is on a file system of this machine. Of another one's, what is mapped may be gone when it is read, which would be the
// end of this process: a server knows nothing of mappings.
func local(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC, unix.V9FS_MAGIC,
		unix.CEPH_SUPER_MAGIC, unix.AFS_SUPER_MAGIC, unix.AFS_FS_MAGIC, unix.CODA_SUPER_MAGIC, unix.OCFS2_SUPER_MAGIC:
		return false
	}
	return true
}

// nativeShared maps machine code of a shared directory. It returns nil without an error where there is none.
func (s *Store) nativeShared(name string, o native.Options) (c *native.Code, err error) {
	s.eachShared(func(dir int) bool {
		for _, name := range []string{name, twin(name)} {
			var lerr error
			if c, lerr = openNative(fmt.Sprintf("/proc/self/fd/%d/%s", dir, name), o); c != nil {
				return false
			}
			err = errors.Join(err, lerr)
		}
		return true
	})
	return c, err
}

// keptShared calls f with each table of the shared directories that is of a build ID, and of a file that only root could change.
func (s *Store) keptShared(buildID string, f func(*compact.Table)) {
	if s.sharedNames == nil {
		s.sharedNames = map[string][]string{}
		s.eachShared(func(dir int) bool {
			d, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", dir))
			if err != nil {
				return true
			}
			names, _ := d.Readdirnames(-1)
			d.Close()
			for _, name := range names {
				if id, _, ok := strings.Cut(name, "-"+ownFile+"-"); ok && strings.HasSuffix(name, tableEnding) {
					s.sharedNames[id] = append(s.sharedNames[id], name)
				}
			}
			return true
		})
	}
	names := s.sharedNames[buildID]
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		switch t, err := s.loadShared(name); {
		case t != nil:
			f(t)
		case err != nil:
			s.rejected.Add(1)
		}
	}
}

// tableEnding is how the names of tables end.
var tableEnding = fmt.Sprint(".", compact.Version)
