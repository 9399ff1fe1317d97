package debuginfo

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
)

var (
	errGone     = errors.New("the file is not there, or is another one")
	errRights   = errors.New("the profiled process may not read it")
	errNameless = errors.New("the file has no names")
	errTooLarge = errors.New("the file is too large")
)

// debugDir has the separate debug files.
var debugDir = module.DebugDir

// A file is an open file to be sent.
type file struct {
	export.DebugFile
	*os.File
}

// A reader is who may read: a process's user and groups.
type reader struct {
	uid    uint32
	groups []uint32 // the first is that of files that the process makes
}

// nobody has the rights that all users have.
var nobody = reader{65534, []uint32{65534}}

// own is who runs this program; nobody in the place of root, who may read all.
func own() reader {
	if uid := os.Getuid(); uid != 0 {
		return reader{uint32(uid), []uint32{uint32(os.Getgid())}}
	}
	return nobody
}

// readerOf returns the user and the groups by which Linux judges the files that a process opens (proc_pid_status(5)). ok is false if it has gone.
func readerOf(pid int32) (r reader, ok bool) {
	number := func(s string) (uint32, bool) {
		n, err := strconv.ParseUint(s, 10, 32)
		return uint32(n), err == nil
	}
	uid, gid := strings.Fields(procfs.Status(int(pid), "Uid")), strings.Fields(procfs.Status(int(pid), "Gid"))
	if len(uid) < 4 || len(gid) < 4 {
		return r, false
	}
	u, uok := number(uid[3])
	g, gok := number(gid[3])
	r = reader{u, []uint32{g}}
	for _, s := range strings.Fields(procfs.Status(int(pid), "Groups")) {
		if g, ok := number(s); ok {
			r.groups = append(r.groups, g)
		}
	}
	return r, uok && gok
}

// Bits of a file's mode.
const (
	read   = 4
	search = 1
)

// may says whether the reader has a right to what a descriptor stands for, by its mode. Where there is an access control list, only the owner has, here.
func (r *reader) may(fd int, want uint32) bool {
	var st unix.Stat_t
	switch {
	case r.uid == 0:
		return true
	case unix.Fstat(fd, &st) != nil:
		return false
	case st.Uid == r.uid:
		return st.Mode&(want<<6) != 0
	}
	if n, err := unix.Getxattr(fmt.Sprintf("/proc/self/fd/%d", fd), "system.posix_acl_access", nil); err == nil && n > 0 {
		return false
	}
	if slices.Contains(r.groups, st.Gid) {
		return st.Mode&(want<<3) != 0
	}
	return st.Mode&want != 0
}

func (r *reader) mayRead(f *os.File) bool { return r.may(int(f.Fd()), read) }

// open opens the file at a path below a directory, which has no links, as the reader could.
func (r *reader) open(root, name string) (*os.File, error) {
	at, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer func() { unix.Close(at) }()
	for part := range strings.SplitSeq(strings.TrimPrefix(path.Clean(name), "/"), "/") {
		if !r.may(at, search) {
			return nil, errRights
		}
		next, err := unix.Openat(at, part, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		unix.Close(at)
		at = next
	}
	if !r.may(at, read) {
		return nil, errRights
	}
	return procfs.Regular(at, name)
}

// reaches says whether the reader may read an open file by its path, in this program's mount namespace.
func (r *reader) reaches(f *os.File) bool {
	for _, g := range r.groups {
		if procfs.Readable(f, r.uid, g) {
			return r.mayRead(f)
		}
	}
	return false
}

// find opens the file with the names of a module: the module's own file if it has debug information, else its separate debug file, else the module's own
// if it has symbols.
//
// The module's file is the one that a process sees at the path, or runs, if the process's user may read it: a program can be run without that right,
// and its process can say that another's file is mapped. Where no process runs any more, it is the file at the path, if all users may read it, or whoever runs this program. The separate debug file is one
// of this machine's (module.DebugDir), by build ID, and the same user reaches it by its path.
func find(w wanted) (*file, error) {
	f, who, err := mapped(w)
	if f == nil {
		if f, err = atPath(w, err); f == nil {
			return nil, err
		}
		who = own()
	}
	names, text := has(f)
	var program *os.File
	if names < lines {
		if d := debugFile(w.buildID, who); d != nil {
			if n, t := has(d); n > names {
				program = f
				defer program.Close()
				f, names, text = d, n, t
			} else {
				d.Close()
			}
		}
	}
	st, err := f.Stat()
	switch {
	case err != nil:
	case names == none:
		err = errNameless
	case st.Size() > MaxSize:
		err = errTooLarge
	default:
		out := &file{export.DebugFile{BuildID: w.buildID, Name: path.Base(w.path), Size: st.Size(), Text: text, ReaderAt: f}, f}
		if program != nil {
			out.DebugFile.ReaderAt = withHeaders(f, program)
		}
		return out, nil
	}
	f.Close()
	return nil, err
}

// mapped opens the file where one of the processes sees it, or as the program that it runs; nil, with the reason, if none may read it.
func mapped(w wanted) (*os.File, reader, error) {
	why := errGone
	for _, pid := range w.pids {
		who, ok := readerOf(pid)
		if !ok || pid == 0 {
			continue
		}
		for _, open := range []func() (*os.File, error){
			func() (*os.File, error) { return who.open(fmt.Sprintf("/proc/%d/root", pid), w.path) },
			func() (*os.File, error) { return module.OpenFile(fmt.Sprintf("/proc/%d/exe", pid)) },
		} {
			f, err := open()
			if errors.Is(err, errRights) {
				why = errRights
			}
			if err != nil {
				continue
			}
			if identified(f, w.buildID) {
				if now, ok := readerOf(pid); ok && now.uid == who.uid && who.mayRead(f) { // it is not another process by now
					return f, who, nil
				}
				why = errRights
			}
			f.Close()
		}
	}
	return nil, reader{}, why
}

// atPath opens the file at a path of this machine.
func atPath(w wanted, why error) (*os.File, error) {
	if errors.Is(why, errRights) {
		return nil, why
	}
	f, err := module.OpenFile(w.path)
	if err != nil || !identified(f, w.buildID) {
		if f != nil {
			f.Close()
		}
		return nil, errGone
	}
	if who := own(); !who.reaches(f) {
		f.Close()
		return nil, errRights
	}
	return f, nil
}

// debugFile opens the separate debug file; nil if there is none that the reader reaches.
func debugFile(buildID string, who reader) *os.File {
	for _, name := range module.DebugPaths([]string{debugDir}, buildID) {
		f, err := module.OpenFile(name)
		if err != nil {
			continue
		}
		if who.reaches(f) && identified(f, buildID) {
			return f
		}
		f.Close()
	}
	return nil
}

// image calls f with the image of an open file; it does nothing with what is no image.
func image(file *os.File, f func(*module.Image)) {
	if st, err := file.Stat(); err != nil || !fetch(file, st.Size()) {
		return
	}
	img, err := module.Map(file)
	if err != nil {
		return
	}
	defer img.Close()
	module.Guard(func() error { f(img); return nil }) // others may shorten the file
}

// identified says whether a file has a build ID, in hex.
func identified(f *os.File, buildID string) (ok bool) {
	image(f, func(img *module.Image) { ok = module.HasBuildID(img, buildID) == nil })
	return ok
}

// What names a file has, the better the greater.
const (
	none    = iota
	exports // names of functions that others may call
	symbols // names of functions
	lines   // of functions, inlined calls and lines
)

// has says what names a file has, and whether it has code.
func has(f *os.File) (names int, text bool) {
	image(f, func(img *module.Image) {
		for _, s := range img.Sections() {
			if s.Empty || s.Size == 0 {
				continue
			}
			switch s.Common() {
			case ".debug_info":
				names = lines
			case ".symtab", ".gopclntab":
				names = max(names, symbols)
			case ".dynsym":
				names = max(names, exports)
			case ".text":
				text = true
			}
		}
	})
	return names, text
}
