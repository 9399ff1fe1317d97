package annotate

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/profile"
)

// maxSource bounds the size of a source file, maxLinks the symbolic links on its way (path_resolution(7)).
const (
	maxSource = 16 << 20
	maxLinks  = 40
)

// endings are those of source. A file without an ending, as headers of C++ are, is source where everybody may read it.
var endings = []string{
	".c", ".h", ".cc", ".cpp", ".cxx", ".c++", ".hh", ".hpp", ".hxx", ".h++", ".inl", ".inc", ".ipp", ".tcc", ".def", ".go", ".rs", ".s", ".asm",
	".m", ".mm", ".swift", ".zig", ".d", ".nim", ".f", ".f90", ".f95", ".ada", ".adb", ".ads", ".pas", ".ml", ".hs", ".y", ".l", ".cu", ".v",
}

// Sources find source files. A module's debug information may name any file: root's, too. So a file is read only if it looks like source,
// and if whoever could have written the module may read it: the owners of its file and of the directories and links on its way, but for
// root and the one who asks. What is not known to be anybody's may show root only what everybody may read: a module without a file at its path, and
// one whose image is of another file than that, such as a container's.
type Sources struct {
	// Open returns the image that a module's lines come from; nil: it is that of the file at the module's path.
	Open func(m *profile.Module) (*module.Image, error)

	Root  string      // a directory below which the paths are looked for first; may be ""
	Paths [][2]string // prefixes of paths and what they are replaced by; the first that fits holds
}

// Read returns the text of a source file that a module names. Only regular files of at most 16 MiB without NUL bytes are read.
func (s *Sources) Read(m *profile.Module, path string) ([]byte, error) {
	for _, p := range s.Paths {
		if rest, ok := strings.CutPrefix(path, p[0]); ok && (rest == "" || rest[0] == '/' || strings.HasSuffix(p[0], "/")) {
			path = p[1] + rest
			break
		}
	}
	readers := s.writersOf(m)
	if s.Root != "" {
		root, err := filepath.Abs(s.Root)
		if err != nil {
			return nil, err
		}
		b, err := readText(filepath.Join(root, filepath.Clean("/"+path)), readers)
		if !errors.Is(err, os.ErrNotExist) {
			return b, err
		}
	}
	if !filepath.IsAbs(path) {
		return nil, fmt.Errorf("%s: not an absolute path", path)
	}
	return readText(path, readers)
}

// readText reads a file that all of the readers may read.
func readText(path string, readers []reader) ([]byte, error) {
	all := append(slices.Clone(readers), everybody)
	allowed := make([]bool, len(all))
	for i := range allowed {
		allowed[i] = true
	}
	at, name, err := walk(path, func(st *unix.Stat_t) {
		right := uint32(4) // read
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			return // the rights of a link are never asked
		case unix.S_IFDIR:
			right = 1 // search
		}
		for i := range all {
			allowed[i] = allowed[i] && all[i].may(st, right)
		}
	})
	if err != nil {
		return nil, err
	}
	defer unix.Close(at)
	f, err := procfs.Regular(at, path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	public := allowed[len(all)-1]
	for _, n := range []string{path, name} {
		if end := strings.ToLower(filepath.Ext(n)); !slices.Contains(endings, end) && (end != "" || !public) {
			return nil, fmt.Errorf("%s: not the name of a source file", n)
		}
	}
	for i := range readers {
		if !allowed[i] {
			return nil, fmt.Errorf("%s: %s", path, readers[i].refusal)
		}
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSource+1))
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxSource:
		return nil, fmt.Errorf("%s: more than %d MiB", path, maxSource>>20)
	case bytes.IndexByte(b, 0) >= 0:
		return nil, fmt.Errorf("%s: not text", path)
	}
	return b, nil
}

// A reader is somebody whose rights count.
type reader struct {
	uid     int64 // -1: nobody in particular
	gids    []uint32
	refusal string // what is wrong where a right is missing
}

var everybody = reader{uid: -1, refusal: "who wrote the module is not known, and not everybody may read this"}

// may says whether the mode gives the reader a right: 4 to read, 1 to search. Access control lists are not looked at.
func (r *reader) may(st *unix.Stat_t, right uint32) bool {
	mode := st.Mode
	switch {
	case r.uid == int64(st.Uid):
		mode >>= 6
	case slices.Contains(r.gids, st.Gid):
		mode >>= 3
	}
	return mode&right != 0
}

// writersOf returns those who could have written a module, or have put it where it is, but for root and this process's user.
func (s *Sources) writersOf(m *profile.Module) []reader {
	if m.Kernel {
		return nil
	}
	var out []reader
	viewer, open := os.Geteuid(), false
	seen := map[uint32]bool{0: true, uint32(viewer): true}
	at, _, err := walk(m.Path, func(st *unix.Stat_t) {
		if st.Mode&unix.S_IFMT == unix.S_IFDIR && st.Mode&0o002 != 0 && st.Mode&unix.S_ISVTX == 0 {
			open = true
		}
		if !seen[st.Uid] {
			seen[st.Uid] = true
			out = append(out, readerOf(st.Uid, m.Path))
		}
	})
	elsewhere := err != nil
	if err == nil {
		elsewhere = s.elsewhere(m, at)
		unix.Close(at)
	}
	if open || elsewhere && viewer == 0 {
		out = append(out, everybody)
	}
	return out
}

// elsewhere says whether a module's image is not of the file that at refers to.
func (s *Sources) elsewhere(m *profile.Module, at int) bool {
	if s.Open == nil {
		return false
	}
	img, err := s.Open(m)
	if err != nil || img == nil || img.File() == nil {
		return true
	}
	var st unix.Stat_t
	own := img.File()
	return unix.Fstat(at, &st) != nil || st.Dev != own.Dev || st.Ino != own.Ino
}

func readerOf(uid uint32, path string) reader {
	r := reader{uid: int64(uid), refusal: fmt.Sprintf("user %d, the owner of %s, may not read this", uid, path)}
	u, err := user.LookupId(strconv.FormatUint(uint64(uid), 10))
	if err != nil {
		return r
	}
	gids, _ := u.GroupIds() // without them the rights of others hold
	for _, g := range gids {
		if n, err := strconv.ParseUint(g, 10, 32); err == nil {
			r.gids = append(r.gids, uint32(n))
		}
	}
	return r
}

// walk opens what an absolute path leads to, name by name, as path_resolution(7) has it, and shows everything on its way, links and the
// file itself included: what was shown is what was followed, whatever is renamed meanwhile. It returns an O_PATH descriptor, and the last
// name. The links of /proc that lead where no name does are not followed there.
func walk(path string, see func(*unix.Stat_t)) (fd int, name string, err error) {
	bad := func(err error) (int, string, error) {
		return -1, "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	if !filepath.IsAbs(path) {
		return bad(errors.New("not an absolute path"))
	}
	const flags = unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC
	at, err := unix.Open("/", flags, 0)
	if err != nil {
		return bad(err)
	}
	defer func() { unix.Close(at) }()
	names, links := strings.Split(path, "/"), 0
	for {
		var st unix.Stat_t
		if err := unix.Fstat(at, &st); err != nil {
			return bad(err)
		}
		see(&st)
		for len(names) > 0 && names[0] == "" {
			names = names[1:]
		}
		if len(names) == 0 {
			fd, err = unix.FcntlInt(uintptr(at), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return bad(err)
			}
			return fd, name, nil
		}
		name, names = names[0], names[1:]
		next, err := unix.Openat(at, name, flags, 0)
		if err != nil {
			return bad(err)
		}
		if err := unix.Fstat(next, &st); err != nil {
			unix.Close(next)
			return bad(err)
		}
		if st.Mode&unix.S_IFMT != unix.S_IFLNK {
			unix.Close(at)
			at = next
			continue
		}
		see(&st)
		var to [unix.PathMax]byte
		n, err := unix.Readlinkat(next, "", to[:])
		unix.Close(next)
		if links++; err == nil && (links > maxLinks || n == 0 || n == len(to)) {
			err = unix.ELOOP
		}
		if err != nil {
			return bad(err)
		}
		target := string(to[:n])
		names = append(strings.Split(target, "/"), names...)
		if target[0] == '/' {
			root, err := unix.Open("/", flags, 0)
			if err != nil {
				return bad(err)
			}
			unix.Close(at)
			at = root
		}
	}
}
