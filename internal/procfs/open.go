package procfs

import (
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// Open opens a regular file to be read, once: links are followed, and what they lead to is judged by what was opened. A device, a FIFO or a
// terminal is an error, and nothing happens to it. So is a file of /proc: what it says depends on who reads it, whatever its mode is.
func Open(path string) (*os.File, error) {
	at, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(at)
	return Regular(at, path)
}

// Regular opens the regular file that an O_PATH descriptor stands for, to be read. What else may be there by now, such as a device whose
// opening does something, is left alone.
func Regular(at int, name string) (*os.File, error) {
	var st unix.Stat_t
	err := unix.Fstat(at, &st)
	if err == nil && st.Mode&unix.S_IFMT != unix.S_IFREG {
		err = errors.New("not a regular file")
	}
	var on unix.Statfs_t
	if err == nil {
		if err = unix.Fstatfs(at, &on); err == nil && on.Type == unix.PROC_SUPER_MAGIC {
			err = errors.New("a file of /proc")
		}
	}
	fd := -1
	if err == nil {
		fd, err = unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	}
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// maxExtents bounds the extents of a sparse file that are looked at.
const maxExtents = 1 << 12

// Filled returns the number of bytes of a file outside of holes (lseek(2), SEEK_DATA): a file can claim any length, and space that is
// allocated and was never written is a hole, too. Of more than 4,096 extents, it counts the blocks.
func Filled(f *os.File) (n int64, err error) {
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	cerr := conn.Control(func(p uintptr) {
		fd := int(p)
		was, _ := unix.Seek(fd, 0, unix.SEEK_CUR)
		defer unix.Seek(fd, was, unix.SEEK_SET)
		for at, k := int64(0), 0; at < st.Size(); k++ {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok && k == maxExtents {
				n = min(st.Size(), 512*sys.Blocks)
				return
			}
			lo, serr := unix.Seek(fd, at, unix.SEEK_DATA)
			if serr == unix.ENXIO {
				return // no more data
			}
			hi, herr := unix.Seek(fd, lo, unix.SEEK_HOLE)
			if serr != nil || herr != nil || hi <= lo {
				n += st.Size() - at // the file system cannot tell
				return
			}
			n, at = n+hi-lo, hi
		}
	})
	return n, errors.Join(err, cerr)
}

// Readable says whether a user may read an open file by its path: the modes of the file and of the directories that lead to it. Root may. A
// file that names another, such as its debug file, is its owner's word, and leads this program only where that owner may read.
func Readable(f *os.File, uid, gid uint32) bool {
	if uid == 0 {
		return true
	}
	may := func(st os.FileInfo, want uint32) bool {
		s, ok := st.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return false
		case s.Uid == uid:
			want <<= 6
		case s.Gid == gid:
			want <<= 3
		}
		return s.Mode&want == want
	}
	const read, search = 4, 1
	st, err := f.Stat()
	if err != nil || !may(st, read) {
		return false
	}
	// Its directories as they are called here. A file that has no name here, such as one in another mount namespace, is not known to be readable.
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return false
	}
	if here, err := os.Lstat(name); err != nil || !os.SameFile(here, st) {
		return false
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if st, err := os.Lstat(dir); err != nil || !may(st, search) {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// Private says whether only root and this user can change an open file, or put another in its place: the owners and modes of the file and
// of the directories that lead to it. A directory that all may write to is none of theirs unless it is sticky, as /tmp is.
func Private(f *os.File) bool {
	own := uint32(os.Geteuid())
	ours := func(st os.FileInfo, err error) bool {
		if err != nil {
			return false
		}
		s, ok := st.Sys().(*syscall.Stat_t)
		return ok && (s.Uid == 0 || s.Uid == own) && (s.Mode&0o022 == 0 || s.Mode&unix.S_IFMT == unix.S_IFDIR && s.Mode&unix.S_ISVTX != 0)
	}
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
	if err != nil {
		return false
	}
	st, err := f.Stat()
	if here, herr := os.Lstat(name); herr != nil || err != nil || !os.SameFile(here, st) || !ours(st, nil) {
		return false
	}
	for dir := path.Dir(name); ; dir = path.Dir(dir) {
		if !ours(os.Lstat(dir)) {
			return false
		}
		if dir == "/" {
			return true
		}
	}
}

// OwnDir says why a directory cannot be trusted with this program's files: it is a link, or others own it or may write to it, or they can put
// another in its place.
func OwnDir(dir string) error {
	st, err := os.Lstat(dir)
	switch {
	case err != nil:
		return err
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory itself: who owns a link can let it lead elsewhere", dir)
	case st.Mode().Perm()&0o022 != 0:
		return fmt.Errorf("%s can be written by others: make it this user's alone with chmod go-w", dir)
	}
	if dir, err = filepath.Abs(dir); err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	for err == nil {
		if st, err = os.Lstat(dir); err != nil {
			break
		}
		if s, ok := st.Sys().(*syscall.Stat_t); ok && s.Uid != 0 && int(s.Uid) != os.Geteuid() {
			return fmt.Errorf("%s belongs to another user, %d", dir, s.Uid)
		}
		if st.Mode().Perm()&0o002 != 0 && st.Mode()&os.ModeSticky == 0 {
			return fmt.Errorf("everybody can write to %s", dir)
		}
		if dir == "/" {
			break
		}
		dir = filepath.Dir(dir)
	}
	return err
}
