package module

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/internal/procfs"
)

// Archives begin with these (ar(5)); a thin archive names its members' files instead of containing them (GNU ar).
const (
	archiveMagic = "!<arch>\n"
	thinMagic    = "!<thin>\n"
	memberHeader = 60      // bytes
	maxMember    = 1 << 12 // bytes of a member's name
)

// An Archive is a static library: a file that contains object files, or names them. The package reads the archives of System V and GNU, with
// long names and thin ones, of BSD, and of Microsoft. A universal Mach-O file is an archive, too: of its programs, by their processors' names, and of
// what its static libraries contain. It is safe for concurrent use until Close.
type Archive struct {
	name      string
	b         []byte
	thin      bool
	universal bool

	filled uint64 // bytes outside of holes
	file   *File
	hold   atomic.Int32 // Close, and the images of members
}

// A Member is a file in an archive.
type Member struct {
	Name string // unlike those of all other members: behind the second of a name is "#2". In a universal file: arm64, arm64:member.o
	Off  uint64 // in the archive: of its contents; of a thin archive, of its header
	Size uint64

	path string // of a thin archive: the file
}

// OpenArchive maps an archive. The error wraps ErrFormat if the file is none.
func OpenArchive(path string) (*Archive, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() == 0 || st.Size() > math.MaxInt {
		return nil, &Error{path, 0, "header", ErrFormat}
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	var a *Archive
	filled, err := procfs.Filled(f)
	if err == nil {
		err = Guard(func() (err error) { a, err = newArchive(path, b); return err })
	}
	if err != nil {
		unix.Munmap(b)
		return nil, err
	}
	a.filled = uint64(filled)
	a.file = &File{Private: procfs.Private(f)}
	if err := unix.Fstat(int(f.Fd()), &a.file.Stat_t); err != nil {
		unix.Munmap(b)
		return nil, err
	}
	return a, nil
}

// newArchive reads an archive in memory.
func newArchive(name string, b []byte) (*Archive, error) {
	if !isArchive(b) && !isUniversal(b) {
		return nil, &Error{name, 0, "header", fmt.Errorf("%w, and no archive", ErrFormat)}
	}
	a := &Archive{name: name, b: b, thin: string(b[:len(thinMagic)]) == thinMagic, universal: isUniversal(b), filled: uint64(len(b))}
	a.hold.Store(1)
	return a, nil
}

func isArchive(b []byte) bool {
	return len(b) >= len(archiveMagic) && (string(b[:len(archiveMagic)]) == archiveMagic || string(b[:len(thinMagic)]) == thinMagic)
}

// IsArchive says whether a file is an archive, or a universal one, by its first bytes. Of universal files, KindOf says what their programs are.
func IsArchive(path string) bool {
	f, err := procfs.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var head [len(archiveMagic)]byte
	n, _ := f.ReadAt(head[:], 0)
	return isArchive(head[:n]) || isUniversal(head[:n])
}

// Close unmaps the archive, once the images of its members are closed.
func (a *Archive) Close() error {
	if a.hold.Add(-1) > 0 || a.file == nil {
		return nil
	}
	b := a.b
	a.b = nil
	return unix.Munmap(b)
}

// Members returns all members but tables of symbols and names. With an error, which has the offset of the damaged member, come the members before.
func (a *Archive) Members() ([]Member, error) {
	if a.universal {
		return a.programs()
	}
	var list []Member
	var long []byte // of GNU: names that headers have no room for
	seen := map[string]int{}
	size := uint64(len(a.b))
	room := size // of names: many headers could name one long name
	bad := func(off uint64, cause error, format string, args ...any) ([]Member, error) {
		return list, &Error{a.name, off, "archive: " + fmt.Sprintf(format, args...), cause}
	}
	for off := uint64(len(archiveMagic)); off < size; {
		if size-off < memberHeader {
			if len(bytes.Trim(a.b[off:], "\n\x00")) == 0 {
				break // padding
			}
			return bad(off, ErrTruncated, "header of a member")
		}
		h := a.b[off : off+memberHeader]
		if string(h[58:]) != "`\n" {
			return bad(off, ErrMalformed, "a member's header ends with %q", h[58:])
		}
		n, err := strconv.ParseUint(strings.TrimRight(string(h[48:58]), " "), 10, 63)
		if err != nil {
			return bad(off+48, ErrMalformed, "a member's size %q", h[48:58])
		}
		name := strings.TrimRight(string(h[:16]), " ")
		data := off + memberHeader
		table := name == "/" || name == "//" || name == "/SYM64/" || name == "/<ECSYMBOLS>/" || name == "/<XFGHASHMAP>/"
		inside := !a.thin || table
		if inside && n > size-data {
			return bad(off, ErrTruncated, "a member of %d bytes, of which %d are there", n, size-data)
		}
		m := Member{Name: name, Off: data, Size: n}
		end, nested := data, false // nested: it is a member of the archive that it names
		if inside {
			end += n + n&1
		}
		switch {
		case name == "//":
			long = a.b[data : data+n]
		case table:
		case strings.HasPrefix(name, "#1/") && inside: // BSD: the name is in front of the contents
			k, err := strconv.ParseUint(name[3:], 10, 32)
			if err != nil || k > n || k > maxMember {
				return bad(off, ErrMalformed, "a name of %q bytes in a member of %d", name[3:], n)
			}
			m.Name, m.Off, m.Size = string(bytes.TrimRight(a.b[data:data+k], "\x00")), data+k, n-k
		case name != "" && name[0] == '/':
			digits, _, of := strings.Cut(strings.TrimRight(name[1:], " /"), ":")
			k, err := strconv.ParseUint(digits, 10, 63)
			nested = of
			if err != nil || k >= uint64(len(long)) {
				return bad(off, ErrMalformed, "no name at %q of %d bytes of names", name[1:], len(long))
			}
			rest := long[k:][:min(uint64(len(long))-k, maxMember)]
			if i := bytes.IndexAny(rest, "\n\x00"); i >= 0 { // Microsoft's end with NUL
				rest = rest[:i]
			}
			m.Name = strings.TrimSuffix(string(rest), "/")
		default:
			m.Name = strings.TrimSuffix(name, "/")
		}
		if !table && !strings.HasPrefix(m.Name, "__.SYMDEF") {
			if uint64(len(m.Name)) > room {
				return bad(off, ErrMalformed, "names overlap")
			}
			room -= uint64(len(m.Name))
			if a.thin {
				if m.Off = off; !nested {
					m.path = m.Name
				}
			}
			m.Name = printable.Marked(m.Name)
			m.Name = unlike(m.Name, seen)
			list = append(list, m)
		}
		off = end
	}
	return list, nil
}

// unlike returns a name that is unlike those that were seen.
func unlike(name string, seen map[string]int) string {
	own := name
	for seen[own] > 0 { // "a.o#2" can be a member's own name, too
		seen[name]++
		own = fmt.Sprintf("%s#%d", name, seen[name])
	}
	seen[own] = 1
	return own
}

// programs returns the programs of a universal file, and the members of those that are archives. A program that is not whole, or that others overlap,
// costs itself only; the error is that of the first.
func (a *Archive) programs() (list []Member, damage error) {
	all, err := fat(a.b, fatMagic(a.b[:4]))
	if err != nil {
		return nil, &Error{a.name, 0, "universal header", err}
	}
	seen := map[string]int{}
	size := uint64(len(a.b))
	var taken []Slice
	for _, s := range all {
		name := unlike(s.Name, seen)
		bad := func(off uint64, cause error, format string, args ...any) {
			if damage == nil {
				damage = &Error{a.name, off, "program " + name + ": " + fmt.Sprintf(format, args...), cause}
			}
		}
		if s.Off > size || s.Size > size-s.Off {
			bad(s.Off, ErrTruncated, "%#x bytes", s.Size)
			continue
		}
		if overlaps(s, taken) {
			bad(s.Off, ErrMalformed, "%#x bytes, of which another has some", s.Size)
			continue
		}
		taken = append(taken, s)
		b := a.b[s.Off : s.Off+s.Size]
		if !isArchive(b) {
			list = append(list, Member{Name: name, Off: s.Off, Size: s.Size})
			continue
		}
		inner, err := newArchive(a.name, b)
		if err == nil && inner.thin {
			err = fmt.Errorf("%w: a thin archive", ErrUnsupported)
		}
		if err != nil {
			bad(s.Off, err, "archive")
			continue
		}
		members, err := inner.Members()
		for _, m := range members {
			m.Name, m.Off = name+":"+m.Name, m.Off+s.Off
			list = append(list, m)
		}
		var at *Error
		if errors.As(err, &at) {
			bad(s.Off+at.Off, at.Err, "%s", at.Msg)
		}
	}
	return list, damage
}

// overlaps says whether a program has bytes of one of the others. All are in the file.
func overlaps(s Slice, others []Slice) bool {
	return slices.ContainsFunc(others, func(o Slice) bool { return s.Off < o.Off+o.Size && o.Off < s.Off+s.Size })
}

// Open opens a member as an image, named "lib.a(member.o)". It stays valid when the archive is closed. The error wraps ErrFormat if the member
// is no image. A thin archive's member is opened only if the archive's owner may read it.
func (a *Archive) Open(m Member) (*Image, error) {
	name := a.name + "(" + m.Name + ")"
	if a.thin {
		return a.openThin(m, name)
	}
	if m.Off > uint64(len(a.b)) || m.Size > uint64(len(a.b))-m.Off {
		return nil, &Error{name, m.Off, "member", ErrTruncated}
	}
	var img *Image
	err := Guard(func() (err error) {
		img, err = newImage(name, a.b[m.Off:m.Off+m.Size:m.Off+m.Size], min(m.Size, a.filled), false)
		return err
	})
	if err != nil || a.file == nil {
		return img, err
	}
	a.hold.Add(1)
	img.file, img.unmap = a.file, a.Close
	img.holders.Store(1)
	return img, nil
}

// openThin opens a thin archive's member, whose path is relative to the archive's directory.
func (a *Archive) openThin(m Member, name string) (*Image, error) {
	if a.file == nil {
		return nil, &Error{name, m.Off, "a thin archive in memory has no members", ErrUnsupported}
	}
	if m.path == "" {
		return nil, &Error{name, m.Off, "a member of an archive in a thin archive", ErrUnsupported}
	}
	path := m.path
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(a.name), path)
	}
	f, err := OpenFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close()
	if !procfs.Readable(f, a.file.Uid, a.file.Gid) {
		return nil, fmt.Errorf("%s: %s: user %d, whose archive names it, may not read it", name, path, a.file.Uid)
	}
	img, err := Map(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	img.name = name
	return img, nil
}

// IsImage says whether a member begins like a file that New reads. Of a thin archive's members, it does not know before they are opened: true.
func (a *Archive) IsImage(m Member) bool {
	return a.thin || m.Off <= uint64(len(a.b)) && Known(a.b[m.Off:][:min(m.Size, uint64(len(a.b))-m.Off)])
}

// indexed has the members of the archive that OpenMember opened last: who works on all members opens it once for each.
var indexed struct {
	sync.Mutex
	path    string
	file    unix.Stat_t
	members map[string]Member
	damage  error // what the members behind are lost by
}

// OpenMember opens a member of an archive by a name like "lib.a(member.o)". The error wraps fs.ErrNotExist if there is no such file or member.
func OpenMember(name string) (*Image, error) {
	missing := &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	if !strings.HasSuffix(name, ")") {
		return nil, missing
	}
	for i := range len(name) {
		if name[i] != '(' {
			continue
		}
		if st, err := os.Stat(name[:i]); err != nil || !st.Mode().IsRegular() {
			continue
		}
		a, err := OpenArchive(name[:i])
		if errors.Is(err, ErrFormat) {
			continue
		}
		if err != nil {
			return nil, err
		}
		defer a.Close()
		m, ok, err := a.find(name[i+1 : len(name)-1])
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, missing
		}
		return a.Open(m)
	}
	return nil, missing
}

// find returns the member with a name. Where there is none, the error is what reading the archive met.
func (a *Archive) find(name string) (m Member, ok bool, err error) {
	indexed.Lock()
	defer indexed.Unlock()
	x, y := &indexed.file, &a.file.Stat_t
	if indexed.path != a.name || x.Dev != y.Dev || x.Ino != y.Ino || x.Size != y.Size || x.Mtim != y.Mtim || x.Ctim != y.Ctim {
		var list []Member
		var damage error
		if err := Guard(func() error { list, damage = a.Members(); return nil }); err != nil {
			return m, false, err
		}
		indexed.path, indexed.file, indexed.members, indexed.damage = a.name, a.file.Stat_t, make(map[string]Member, len(list)), damage
		for _, m := range list {
			indexed.members[m.Name] = m
		}
	}
	if m, ok = indexed.members[name]; !ok {
		err = indexed.damage
	}
	return m, ok, err
}
