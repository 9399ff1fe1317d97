// Package kept reads and writes files of the user's cache: results that take time to find, and can be found again. A file is whole or
// absent. A file that cannot be written costs only time, so only Save returns an error. A kept file may be damaged: its reader checks it.
package kept

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/pages"
)

// fresh is how exactly it is known when a file was last used: not every use is written to the disk.
const fresh = time.Hour

// Open opens a regular file of at most this many bytes, and marks it as used.
func Open(path string, most int64) (f *os.File, size int64, err error) {
	fd, size, err := open(path, most)
	if err != nil {
		return nil, 0, err
	}
	return os.NewFile(uintptr(fd), path), size, nil
}

func open(path string, most int64) (fd int, size int64, err error) {
	if fd, err = unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0); err != nil {
		return -1, 0, err
	}
	var st unix.Stat_t
	err = unix.Fstat(fd, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > most) {
		err = fmt.Errorf("%s: not a regular file of at most %d bytes", path, most)
	}
	if err == nil && st.Size > small && holed(fd, st.Size) {
		err = fmt.Errorf("%s: most of it is holes", path)
	}
	if err != nil {
		unix.Close(fd)
		return -1, 0, err
	}
	if now := time.Now(); now.Sub(time.Unix(st.Mtim.Unix())) > fresh {
		os.Chtimes(path, now, now)
	}
	return fd, st.Size, nil
}

// small is how long a file may be that is not asked about holes: asking is a system call.
const small = 1 << 20

// holed says whether less than half of a file is data: it takes more memory than twice what it took of the disk. A file that Write has written has
// few holes: file systems that compress store zeros as holes.
func holed(fd int, size int64) bool {
	data := int64(0)
	for at := int64(0); at < size; {
		hole, err := unix.Seek(fd, at, unix.SEEK_HOLE)
		if err != nil || hole < at {
			data = size // the file system cannot tell
			break
		}
		if data += hole - at; data >= size-data {
			break
		}
		if at, err = unix.Seek(fd, hole, unix.SEEK_DATA); err != nil || at <= hole {
			break // a hole up to the end
		}
	}
	_, err := unix.Seek(fd, 0, unix.SEEK_SET)
	return data < size-data || err != nil
}

// Read returns the contents of a file that Open opens. It makes no os.File, which would be offered to the poller.
func Read(path string, most int64) ([]byte, error) { return ReadEnding(path, most, nil) }

// ReadEnding is Read for a file that ends in end. Another one is an error, and takes no memory, however long it is.
func ReadEnding(path string, most int64, end []byte) ([]byte, error) {
	fd, size, err := open(path, most)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if len(end) > 0 {
		have := make([]byte, min(size, int64(len(end))))
		if err := pread(fd, have, size-int64(len(have))); err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
		if !bytes.Equal(have, end) {
			return nil, fmt.Errorf("%s: it does not end as it should", path)
		}
	}
	b := pages.Populate(make([]byte, size))
	if err := pread(fd, b, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return b, nil
}

// pread fills b from an offset on.
func pread(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pread(fd, b, at)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return err
		case n == 0:
			return io.ErrUnexpectedEOF
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// Map returns the contents of a file that Open opens, mapped; unmap releases them. Whoever reads them guards against a file that is cut short
// meanwhile (module.Guard).
func Map(path string, most int64) (b []byte, unmap func(), err error) {
	f, size, err := Open(path, most)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	if b, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE); err != nil {
		return nil, nil, fmt.Errorf("map %s: %w", path, err)
	}
	return b, func() { unix.Munmap(b) }, nil
}

// Write writes a file, if it can: under a temporary name first.
func Write(path string, parts ...[]byte) { _ = Save(path, parts...) }

// Save is Write, and says why the file could not be written.
func Save(path string, parts ...[]byte) error { return SaveMode(path, 0o600, parts...) }

// SaveMode is Save for a file of another mode, whatever the umask.
func SaveMode(path string, mode os.FileMode, parts ...[]byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), temporary+"*")
	if err != nil {
		return err
	}
	for _, b := range parts {
		if err == nil {
			_, err = f.Write(b)
		}
	}
	if err == nil && mode != 0o600 { // which CreateTemp has made
		err = f.Chmod(mode)
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// A file that is being written is called temporary and a number. One of that age is left of a process that was killed: no write takes so long.
const (
	temporary = ".new-"
	abandoned = time.Hour
)

// Sweep removes the temporary files of dir that killed processes have left.
func Sweep(dir string) {
	entries, _ := os.ReadDir(dir)
	sweep(dir, entries)
}

func sweep(dir string, entries []os.DirEntry) {
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), temporary) || !e.Type().IsRegular() {
			continue
		}
		if st, err := e.Info(); err == nil && time.Since(st.ModTime()) > abandoned {
			os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}

// Prune removes files of dir whose names begin with prefix, until the rest has at most this many bytes. Those go first that were not used for
// longest. It sweeps dir, too.
func Prune(dir, prefix string, most int64) {
	PruneFunc(dir, func(name string) bool { return strings.HasPrefix(name, prefix) }, 0, most)
}

// PruneFunc is Prune for files whose names match; a symbolic link is a file. each is how many bytes a file takes beside its contents.
func PruneFunc(dir string, match func(name string) bool, each, most int64) {
	entries, _ := os.ReadDir(dir)
	sweep(dir, entries)
	type file struct {
		path string
		size int64
		used time.Time
	}
	var files []file
	for _, e := range entries {
		if e.IsDir() || !match(e.Name()) {
			continue
		}
		if st, err := e.Info(); err == nil {
			files = append(files, file{filepath.Join(dir, e.Name()), st.Size() + each, st.ModTime()})
			most -= st.Size() + each
		}
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if most >= 0 {
			break
		}
		if os.Remove(f.path) == nil {
			most += f.size
		}
	}
}
