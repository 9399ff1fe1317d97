// Package outfile writes a program's outputs. It writes beside an output's place, and renames the output when it is whole; until then, the old
// file stays. A process that may have the capabilities for other users' directories (caps.Outputs) has them while it opens, places and removes
// outputs, and not while it writes them. The package follows a symbolic link only where nobody else can have put the link. It writes through to a pipe or a device.
package outfile

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
)

// Old returns where Keep puts the file that is at path: beside what a link leads to.
func Old(path string) string {
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	return path + ".old"
}

// ErrInput says that an output is also an input.
var ErrInput = errors.New("is the input, too")

// Options describe an output.
type Options struct {
	Private bool          // only its owner may read it, whatever the umask is
	Keep    bool          // a regular file that is there becomes PATH.old; what is no file is an error
	New     bool          // what is there stays, also what comes before Commit: the error is an fs.ErrExist then, and nothing is left behind
	Inputs  []fs.FileInfo // are read meanwhile, and are not to be written
}

// A File is an output that is being written.
type File struct {
	*os.File
	Notes []string // what Commit did that its user should know

	path      string
	place     string // where it goes: path, or where the link leads that path is
	dir       int    // O_PATH, of the directory of place; -1: written through, or in its place
	tmp, name string // in dir
	keep      bool
	fresh     bool   // Options.New
	link      string // where the link led that stands in the place
	inode     uint64 // of tmp
	uid, mode uint32 // of dir
}

// Stdout returns standard output as an output: for Finish, which leaves it open.
func Stdout() *File { return &File{File: os.Stdout, dir: -1} }

// maxLinks is how many links the kernel follows (path_resolution(7)).
const maxLinks = 40

// Create begins an output. For a FIFO it waits until somebody reads, or ctx is done.
//
// /dev/stdout and the like are this process's own descriptors. A link is followed where it belongs to this process's user or to root, in a
// directory in which others cannot replace it; elsewhere, the output takes its place. A regular file that this process must not write
// is an error, although its directory could be written.
func Create(ctx context.Context, path string, o Options) (f *File, err error) {
	caps.Raised(func() error { f, err = create(ctx, path, o); return nil })
	if err != nil {
		if pe := (*fs.PathError)(nil); !errors.As(err, &pe) {
			err = &fs.PathError{Op: "create", Path: path, Err: err}
		}
		return nil, err
	}
	return f, nil
}

func create(ctx context.Context, path string, o Options) (*File, error) {
	if fd, ok := descriptor(path); ok {
		return own(fd, path, o)
	}
	given := path
	for range maxLinks {
		dir, name := filepath.Split(path)
		if name == "" || name == "." || name == ".." {
			return nil, unix.EISDIR
		}
		f := &File{path: given, place: path, name: name, keep: o.Keep, fresh: o.New}
		var err error
		if f.dir, err = directory(dir); err != nil {
			return nil, err
		}
		next, err := f.begin(ctx, o)
		if next == "" && err == nil {
			return f, nil
		}
		unix.Close(f.dir)
		if err != nil {
			return nil, err
		}
		if path = next; !filepath.IsAbs(next) {
			path = dir + next
		}
		if fd, ok := descriptor(path); ok {
			return own(fd, given, o)
		}
	}
	return nil, unix.ELOOP
}

// directory opens what a path leads to, name by name: a link of another user's on the way may lead only to a directory of that user's.
func directory(path string) (fd int, err error) {
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	names, owners := strings.Split("./"+path, "/"), []uint32(nil)
	if filepath.IsAbs(path) {
		names[0] = "/"
	}
	at := unix.AT_FDCWD
	defer func() { unix.Close(at) }()
	var st unix.Stat_t
	for len(names) > 0 {
		if names[0] == "" {
			names = names[1:]
			continue
		}
		next, err := unix.Openat(at, names[0], flags, 0)
		if err != nil {
			return -1, err
		}
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return -1, err
		}
		if st.Mode&unix.S_IFMT == unix.S_IFLNK {
			owners = append(owners, st.Uid)
			var on unix.Statfs_t
			buf := make([]byte, unix.PathMax)
			n, err := unix.Readlinkat(next, "", buf)
			err = errors.Join(err, unix.Fstatfs(next, &on))
			unix.Close(next)
			switch {
			case err != nil:
				return -1, err
			case len(owners) > maxLinks:
				return -1, unix.ELOOP
			case on.Type != unix.PROC_SUPER_MAGIC:
				to := strings.Split(string(buf[:n]), "/")
				if to[0] == "" {
					to[0] = "/"
				}
				names = append(to, names[1:]...)
				continue
			}
			// Those of /proc lead where their text does not.
			if next, err = unix.Openat(at, names[0], flags&^unix.O_NOFOLLOW, 0); err != nil {
				return -1, err
			}
		}
		unix.Close(at)
		at, names = next, names[1:]
	}
	if err := unix.Fstat(at, &st); err != nil {
		return -1, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return -1, unix.ENOTDIR
	}
	for _, uid := range owners {
		if uid != 0 && uid != uint32(os.Geteuid()) && uid != st.Uid {
			return -1, fmt.Errorf("a link of user %d's on its way leads to a directory that is not that user's: name the directory itself", uid)
		}
	}
	return unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 3)
}

// IsStdout says whether a path leads to where standard output goes.
func IsStdout(path string) bool {
	to, err := os.Stat(path)
	out, oerr := os.Stdout.Stat()
	return err == nil && oerr == nil && os.SameFile(to, out)
}

// descriptor returns the number of the own descriptor that a path stands for.
func descriptor(path string) (fd int, ok bool) {
	switch path {
	case "/dev/stdout":
		return 1, true
	case "/dev/stderr":
		return 2, true
	}
	for _, dir := range []string{"/dev/fd/", "/proc/self/fd/"} {
		if n, is := strings.CutPrefix(path, dir); is {
			fd, err := strconv.Atoi(n)
			return fd, err == nil && fd >= 0
		}
	}
	return 0, false
}

// own returns an output that writes through one of this process's descriptors.
func own(fd int, path string, o Options) (*File, error) {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	if err := notInput(file, o); err != nil {
		file.Close()
		return nil, err
	}
	return &File{File: file, path: path, dir: -1}, nil
}

// notInput returns ErrInput for one of the inputs, if it is a regular file.
func notInput(file *os.File, o Options) error {
	st, err := file.Stat()
	if err != nil || !st.Mode().IsRegular() {
		return err
	}
	for _, in := range o.Inputs {
		if os.SameFile(in, st) {
			return ErrInput
		}
	}
	return nil
}

// begin opens what is to be written. next is where a link leads that is to be followed.
func (f *File) begin(ctx context.Context, o Options) (next string, err error) {
	var dir, st unix.Stat_t
	if err := unix.Fstat(f.dir, &dir); err != nil {
		return "", err
	}
	f.uid, f.mode = dir.Uid, dir.Mode
	// What is there is opened once, without consequences, and judged by that.
	at, err := unix.Openat(f.dir, f.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return "", f.temporary(o, 0)
	}
	if err != nil {
		return "", err
	}
	there := os.NewFile(uintptr(at), f.path)
	defer there.Close()
	if o.New {
		return "", unix.EEXIST
	}
	if err := unix.Fstat(at, &st); err != nil {
		return "", err
	}
	us := uint32(os.Geteuid())
	others := uint32(unix.S_IWOTH) // who may write in dir; the group may be the user's own
	if us == 0 {
		others |= unix.S_IWGRP
	}
	trusted := (dir.Uid == us || dir.Uid == 0) && (dir.Mode&others == 0 || dir.Mode&unix.S_ISVTX != 0)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		if err := notInput(there, o); err != nil {
			return "", err
		}
		if err := unix.Faccessat(f.dir, f.name, unix.W_OK, unix.AT_EACCESS|unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return "", err
		}
		if us != 0 && dir.Mode&unix.S_ISVTX != 0 && dir.Uid != us && st.Uid != us {
			return "", unix.EPERM // rename would say so, when all is done
		}
		mode := uint32(0)
		if st.Uid == us {
			mode = st.Mode & 0o777
		}
		return "", f.temporary(o, mode)
	case unix.S_IFLNK:
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(at, "", buf)
		if err != nil {
			return "", err
		}
		if trusted && (st.Uid == us || st.Uid == 0) {
			return string(buf[:n]), nil
		}
		f.link = string(buf[:n])
		return "", f.temporary(o, 0)
	case unix.S_IFDIR:
		return "", unix.EISDIR
	case unix.S_IFIFO, unix.S_IFCHR:
		// As fs.protected_fifos has it: in a directory for all, not what somebody else has put there.
		if dir.Mode&unix.S_ISVTX != 0 && dir.Mode&(unix.S_IWGRP|unix.S_IWOTH) != 0 && st.Uid != us && st.Uid != dir.Uid {
			return "", unix.EPERM
		}
		if o.Private && st.Mode&unix.S_IFMT == unix.S_IFIFO && st.Uid != us && st.Uid != 0 {
			return "", fmt.Errorf("user %d, whose FIFO this is, would read what is for its owner only", st.Uid)
		}
		if !o.Keep {
			return "", f.through(ctx, at, st.Mode&unix.S_IFMT == unix.S_IFIFO)
		}
	}
	return "", errors.New("not a regular file")
}

// through opens the FIFO or device that an O_PATH descriptor stands for.
func (f *File) through(ctx context.Context, at int, fifo bool) error {
	for {
		fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", at), unix.O_WRONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		if fifo && errors.Is(err, unix.ENXIO) { // nobody reads yet
			select {
			case <-time.After(20 * time.Millisecond):
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		if err != nil {
			return err
		}
		if !fifo {
			unix.SetNonblock(fd, false)
		}
		unix.Close(f.dir)
		f.dir, f.File = -1, os.NewFile(uintptr(fd), f.path)
		return nil
	}
}

// unfinished are the outputs that have a temporary file.
var unfinished struct {
	sync.Mutex
	files map[*File]bool
}

// temporary makes the file beside the place. mode is that of a file of this user's that is there already, or 0.
func (f *File) temporary(o Options, mode uint32) error {
	create := uint32(0o666)
	if o.Private {
		create, mode = 0o600, 0
	}
	unfinished.Lock()
	defer unfinished.Unlock()
	for {
		var random [6]byte
		rand.Read(random[:])
		f.tmp = "." + f.name[:min(len(f.name), 200)] + ".tmp-" + hex.EncodeToString(random[:])
		fd, err := unix.Openat(f.dir, f.tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, create)
		if errors.Is(err, unix.EEXIST) {
			continue
		}
		if err != nil {
			return err
		}
		if mode != 0 {
			unix.Fchmod(fd, mode)
		}
		f.File = os.NewFile(uintptr(fd), f.path)
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		f.inode = st.Ino
		if unfinished.files == nil {
			unfinished.files = map[*File]bool{}
		}
		unfinished.files[f] = true
		return nil
	}
}

// Others says whether an output that is not yet in its place goes into a directory of somebody else's: root needs CAP_DAC_OVERRIDE and
// CAP_FOWNER then.
func Others() bool {
	unfinished.Lock()
	defer unfinished.Unlock()
	for f := range unfinished.files {
		if f.uid != uint32(os.Geteuid()) || f.mode&0o300 != 0o300 {
			return true
		}
	}
	return false
}

// Through says whether the output is written through to a descriptor of this process's, a FIFO or a device: it is no file of its own.
func (f *File) Through() bool { return f.tmp == "" }

// Replaces says whether a regular file that is not empty is in the output's place.
func (f *File) Replaces() bool {
	st, err := os.Stat(f.path)
	return err == nil && !f.Through() && st.Mode().IsRegular() && st.Size() > 0
}

// Commit closes the output and puts it into its place. What cannot be put there stays beside it, and the error says where.
func (f *File) Commit() error { return caps.Raised(f.commit) }

func (f *File) commit() error {
	if err := f.File.Close(); err != nil {
		return errors.Join(err, f.remove())
	}
	return f.publish()
}

// Publish puts the output into its place before it is whole, for readers that follow a growing file. It is written on, and Commit only closes
// it.
func (f *File) Publish() error { return caps.Raised(f.publish) }

func (f *File) publish() error {
	unfinished.Lock()
	defer unfinished.Unlock()
	if !unfinished.files[f] {
		return nil
	}
	err := f.rename()
	if f.fresh && errors.Is(err, unix.EEXIST) {
		unix.Unlinkat(f.dir, f.tmp, 0)
	} else if err != nil {
		err = fmt.Errorf("%s: %w; what was written is in %s", f.path, err, filepath.Join(filepath.Dir(f.place), f.tmp))
	}
	f.over()
	return err
}

// over ends the life of the temporary file. unfinished is locked.
func (f *File) over() {
	delete(unfinished.files, f)
	unix.Close(f.dir)
	f.dir = -1
}

func (f *File) rename() error {
	var st unix.Stat_t
	if err := unix.Fstatat(f.dir, f.tmp, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil || st.Ino != f.inode {
		return fmt.Errorf("%s has been taken away", f.tmp)
	}
	if f.fresh {
		err := unix.Renameat2(f.dir, f.tmp, f.dir, f.name, unix.RENAME_NOREPLACE)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
			return err
		}
		if err = unix.Linkat(f.dir, f.tmp, f.dir, f.name, 0); err == nil { // a file system that has no such flag
			err = unix.Unlinkat(f.dir, f.tmp, 0)
		}
		return err
	}
	old := ""
	if f.keep {
		if err := unix.Fstatat(f.dir, f.name, &st, unix.AT_SYMLINK_NOFOLLOW); err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			old = f.name + ".old"
			if err := unix.Renameat(f.dir, f.name, f.dir, old); err != nil {
				return err
			}
		}
	}
	if err := unix.Renameat(f.dir, f.tmp, f.dir, f.name); err != nil {
		if old != "" {
			unix.Renameat(f.dir, old, f.dir, f.name)
		}
		return err
	}
	if old != "" {
		f.Notes = append(f.Notes, fmt.Sprintf("the previous %s is now %s.old", f.place, f.place))
	}
	if f.link != "" {
		f.Notes = append(f.Notes, fmt.Sprintf("%s was a link to %s: a file replaces the link", f.path, f.link))
	}
	return nil
}

// Discard takes the output away: its place is as it was. What was written through, or published, stays.
func (f *File) Discard() error {
	return caps.Raised(func() error { return errors.Join(f.File.Close(), f.remove()) })
}

// Finish commits the output if err is nil, and else discards it. It returns err, or what went wrong.
func (f *File) Finish(err error) error {
	switch {
	case f.File == os.Stdout: // stays open
		return err
	case err != nil:
		f.Discard()
		return err
	}
	return f.Commit()
}

// WriteFile writes a file that is no other than b. For a FIFO it waits until somebody reads; with Keep, it refuses one.
func WriteFile(path string, b []byte, o Options) error {
	f, err := Create(context.Background(), path, o)
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return errors.Join(err, f.Discard())
	}
	return f.Commit()
}

func (f *File) remove() (err error) {
	unfinished.Lock()
	defer unfinished.Unlock()
	if unfinished.files[f] {
		err = unix.Unlinkat(f.dir, f.tmp, 0)
		f.over()
	}
	return err
}

// DiscardAll takes away all outputs that are not whole: the program ends at once.
func DiscardAll() {
	unfinished.Lock()
	defer unfinished.Unlock()
	caps.Raised(func() error {
		for f := range unfinished.files {
			unix.Unlinkat(f.dir, f.tmp, 0)
			f.over()
		}
		return nil
	})
}
