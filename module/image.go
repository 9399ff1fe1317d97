// Package module opens binary images: a mapped file with its segments, sections, symbols, ID, machine, address size and byte order. Every
// range is checked when somebody asks for it, and nothing is parsed before.
//
// An Image shows nothing of the format behind it; the list formats has all of them. Of ELF (System V ABI, chapters 4 and 5; the GNU and
// Linux extensions in use), the package reads both classes and byte orders, and files without section headers. Errors have the file's name
// and an offset. The package does not interpret the contents of sections, but it applies relocations to them where a file is not linked.
package module

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
)

// The causes of an Error.
var (
	ErrFormat      = errors.New("not an ELF, Mach-O or PE file")
	ErrTruncated   = errors.New("truncated")
	ErrMalformed   = errors.New("malformed")
	ErrUnsupported = errors.New("unsupported")
)

// An Error is something wrong in a file.
type Error struct {
	File string
	Off  uint64
	Msg  string
	Err  error // ErrFormat, ErrTruncated, ErrMalformed, ErrUnsupported
}

func (e *Error) Error() string { return fmt.Sprintf("%s+%#x: %s: %v", e.File, e.Off, e.Msg, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Perm says how memory may be used, by the bits of a program header.
type Perm uint8

const (
	Exec Perm = 1 << iota
	Write
	Read
)

// A Kind says what a segment is for.
type Kind uint8

const (
	Other       Kind = iota
	Loaded           // a part of the file that is mapped when the program runs
	Dynamic          // what the dynamic linker needs
	Interpreter      // the path of the dynamic linker
	Headers          // the headers of the segments
	UnwindIndex      // the search table of the unwind information (.eh_frame_hdr)
	ArmIndex         // the index of 32-bit Arm's unwind tables (PT_ARM_EXIDX)
	SFrame           // unwind information of another format (.sframe)
	Functions        // the functions' unwind information (PE: the exception directory)
)

// A Segment is a part of the file, and of the memory that the program gets.
type Segment struct {
	Kind    Kind
	Perm    Perm
	Off     uint64     // in the file
	Vaddr   arch.Vaddr // link time
	Size    uint64     // bytes in the file
	MemSize uint64     // bytes in memory

	elf   progHeader
	macho string // its name
}

// name is what errors call a segment.
func (s *Segment) name() string { return cmp.Or(s.macho, s.elf.typ.String()) }

// A Section is a named part of the file.
type Section struct {
	Name       string
	Perm       Perm       // 0: it is not loaded
	Addr       arch.Vaddr // link time; in a file that is not linked, an address that Place understands
	Off        uint64     // in the file
	Size       uint64     // bytes in the file, where it is not Empty
	Entsize    uint64     // bytes of an entry, of a section that is a table
	Empty      bool       // it has no bytes in the file
	Compressed bool

	index int
	elf   sectionHeader
	macho machoSectionHeader
}

// IsPLT says whether s is a procedure linkage table of an ELF file: code, by the names that linkers give (.iplt is LLVM's, for indirect functions of
// static programs; GNU's ld puts these into .plt). Only .plt has entries that push.
func (s *Section) IsPLT() bool {
	switch s.Name {
	case ".plt", ".plt.sec", ".plt.got", ".iplt":
		return s.Perm&Exec != 0 && !s.Empty && !s.Compressed
	}
	return false
}

// A format is a kind of files that New reads.
type format struct {
	name string
	has  func(b []byte) bool // by the first four bytes

	// kind says what a file is, by its headers.
	kind func(f io.ReaderAt) FileKind

	// read fills a new Image from the file's headers: order, is64, linked, machine, entry, segs, load, secs and secsErr.
	read func(img *Image) error

	buildID     func(img *Image) []byte          // nil where the file has none
	headers     func(img *Image, hash io.Writer) // writes what tells two files' headers apart
	hashed      []string                         // the sections that unwinding and naming read
	symbolTable func(img *Image, dynamic bool) (SymbolTable, bool)
	symbols     func(img *Image, yield func(Symbol) bool) error
}

// formats are asked in this order.
var formats = []*format{&elfFormat, &machoFormat, &peFormat, &coffFormat}

// formatOf returns the format of files that begin with b; nil: none is known.
func formatOf(b []byte) *format {
	for _, f := range formats {
		if len(b) >= 4 && f.has(b) {
			return f
		}
	}
	return nil
}

// Known says whether New reads files that begin with b. Four bytes are enough, but for Windows's object files with a long header: these take 28.
func Known(b []byte) bool { return formatOf(b) != nil }

// An Image is a binary image: an executable, a library or an object file. It is safe for concurrent use until Close.
type Image struct {
	name    string
	b       []byte
	base    uint64       // of b in the file
	unmap   func() error // nil: it is in memory
	holders atomic.Int32 // of the mapping: who opened it is one until Close
	closed  atomic.Bool

	inflated atomic.Int64
	format   *format
	order    binary.ByteOrder
	is64     bool
	linked   bool
	inMemory bool // see InMemory
	typ      elfType
	macho    machoHeader
	pe       *portable // of a PE file
	machine  *arch.Machine
	entry    arch.Vaddr
	segs     []Segment
	secs     []Section
	secsErr  error
	load     []Segment // those that are Loaded and have bytes in the file
	layout   *layout   // of a file that is not linked

	buildID func() []byte
	hash    func() string

	file  *File  // nil: it is in memory
	reach uint64 // the longest range that is given out

	mu      sync.Mutex
	inflate map[int]inflated
	room    uint64       // bytes that compressed sections may still grow to
	counted map[int]bool // the sections of unwind information that Relocate has given out
	unread  uint64       // bytes that others of these may have

	relocating sync.Mutex // held before mu
}

// A File describes an image's file at the time of opening.
type File struct {
	unix.Stat_t
	Private bool // only root and this user could change or replace it

	layered bool // its file system takes files from others
}

// File describes the image's file; nil for an image in memory.
func (img *Image) File() *File { return img.file }

// Changed says whether somebody has written to the image's file since it was opened: its path leads to the same file, with another size or time. What was
// read before Changed said no is of the file that was opened. Of a file that has another path by now, or none, nobody knows.
func (img *Image) Changed() bool {
	var is unix.Stat_t
	was := img.file
	return was != nil && unix.Stat(img.name, &is) == nil && is.Dev == was.Dev && is.Ino == was.Ino && (is.Size != was.Size || is.Mtim != was.Mtim || is.Ctim != was.Ctim)
}

type inflated struct {
	b   []byte
	err error
	bad RelocErrors
}

// Open maps a file, read-only. Pages are read at first use, so opening costs the same for a file of any size. If somebody truncates a mapped
// file, reading it faults: use Guard around work on files that others may write. A compressed kernel or module is expanded: Open is for files
// that a user names, and for no others.
func Open(path string) (*Image, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return mapFile(f, true)
}

// OnDisk says whether a mapping's name can be a file's. Devices, System V shared memory, and mappings without a file whose name
// /proc/PID/maps or a recording invents have no file. /dev/shm has files like others, until they are deleted.
func OnDisk(name string) bool {
	if shm, ok := strings.CutPrefix(name, "/dev/shm/"); ok {
		return !strings.HasSuffix(shm, " (deleted)")
	}
	if !strings.HasPrefix(name, "/") {
		return false
	}
	for _, p := range []string{"//", "/memfd:", "/dev/", "/SYSV"} {
		if strings.HasPrefix(name, p) {
			return false
		}
	}
	return true
}

// OpenFile opens a regular file to be mapped. It opens nothing else, because opening a device can have effects.
func OpenFile(path string) (*os.File, error) { return procfs.Open(path) }

// Map is Open for an open file, which is not expanded: any process can have mapped it. The caller may close the file afterwards.
func Map(f *os.File) (*Image, error) { return mapFile(f, false) }

func mapFile(f *os.File, expand bool) (*Image, error) {
	path, file := f.Name(), &File{}
	var on unix.Statfs_t
	if err := unix.Fstat(int(f.Fd()), &file.Stat_t); err != nil { // before anything is read: see Changed
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if err := unix.Fstatfs(int(f.Fd()), &on); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	file.layered = on.Type == unix.OVERLAYFS_SUPER_MAGIC || on.Type == unix.FUSE_SUPER_MAGIC
	if file.Mode&unix.S_IFMT != unix.S_IFREG {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if file.Size == 0 || file.Size > math.MaxInt { // neither can be mapped
		return nil, &Error{path, 0, "header", ErrFormat}
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(file.Size), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	var img *Image
	filled, err := procfs.Filled(f)
	if err == nil {
		err = Guard(func() (err error) { img, err = newImage(path, b, uint64(filled), expand); return err })
	}
	if err != nil {
		unix.Munmap(b)
		return nil, err
	}
	file.Private = procfs.Private(f)
	img.file = file
	img.holders.Store(1)
	mapped.mu.Lock()
	defer mapped.mu.Unlock()
	mapped.files[img] = b
	img.unmap = func() error {
		mapped.mu.Lock()
		defer mapped.mu.Unlock()
		delete(mapped.files, img)
		return unix.Munmap(b)
	}
	return img, nil
}

// mapped has all files that are mapped. Under its lock, none is unmapped.
var mapped = struct {
	mu    sync.Mutex
	files map[*Image][]byte
}{files: map[*Image][]byte{}}

// ReleasePages gives back the pages of all mapped files that were read. Who reads one again gets it from the kernel's page cache: what is read once, to
// make a table, does not stay in this process's memory as long as the file is open. It is safe for concurrent use.
func ReleasePages() {
	mapped.mu.Lock()
	defer mapped.mu.Unlock()
	for _, b := range mapped.files {
		_ = unix.Madvise(b, unix.MADV_DONTNEED)
	}
}

// ReleasePages gives back the pages of this image, as the function of the same name those of all. It does nothing for one that is not mapped.
func (img *Image) ReleasePages() {
	mapped.mu.Lock()
	defer mapped.mu.Unlock()
	if b := mapped.files[img]; b != nil {
		_ = unix.Madvise(b, unix.MADV_DONTNEED)
	}
}

// Guard runs f and returns its error. A read beyond the end of a truncated mapped file becomes an error, too. Goroutines that f starts are
// not covered.
func Guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			a, ok := r.(interface{ Addr() uintptr })
			if !ok {
				panic(r)
			}
			err = fmt.Errorf("a mapped file was truncated while it was read (at %#x): %w", a.Addr(), ErrTruncated)
		}
	}()
	return f()
}

// New reads an image in memory, such as a vDSO. b must not change afterwards.
func New(name string, b []byte) (*Image, error) { return newImage(name, b, uint64(len(b)), false) }

// InMemory reads an image that a running program has made of code in its memory. Addresses are those of the process: a file that is not linked
// has them in its section headers, and offsets of its code are addresses, too. b must not change afterwards.
func InMemory(name string, b []byte) (*Image, error) {
	img := rawImage(name, b, uint64(len(b)))
	img.inMemory = true
	if err := img.read(); err != nil {
		return nil, err
	}
	return img, nil
}

// Made says whether a program made the image in its memory: see InMemory.
func (img *Image) Made() bool { return img.inMemory }

// maxHoles is how many bytes of holes may be read as if something was there: some linkers and file systems leave holes.
const maxHoles = 16 << 20

// newImage is New for a file of which so many bytes are not in holes: no section has more, so that a long hole costs nothing. With expand, a
// compressed kernel or module is expanded.
func newImage(name string, b []byte, filled uint64, expand bool) (*Image, error) {
	img := rawImage(name, b, filled)
	if expand {
		if err := img.unpack(); err != nil {
			return nil, err
		}
	}
	if err := img.read(); err != nil {
		return nil, err
	}
	return img, nil
}

func rawImage(name string, b []byte, filled uint64) *Image {
	img := &Image{name: name, b: b, inflate: map[int]inflated{}, counted: map[int]bool{}, reach: filled + maxHoles}
	img.unread = min(uint64(len(b)), img.reach)
	img.room = min(maxGrowth+maxRatio*filled, maxInflated)
	img.hash = sync.OnceValue(img.sum)
	return img
}

// read finds the format and reads the headers.
func (img *Image) read() error {
	if img.format = formatOf(img.b); img.format == nil {
		return img.errorf(0, ErrFormat, "header")
	}
	img.buildID = sync.OnceValue(func() []byte { return img.format.buildID(img) })
	return img.format.read(img)
}

func (img *Image) errorf(off uint64, cause error, format string, args ...any) error {
	return &Error{img.name, img.base + off, fmt.Sprintf(format, args...), cause}
}

// bytes returns n bytes at file offset off.
func (img *Image) bytes(off, n uint64) ([]byte, bool) {
	if size := uint64(len(img.b)); off > size || n > size-off || n > img.reach {
		return nil, false
	}
	return img.b[off : off+n : off+n], true
}

// Close unmaps the file, once nobody holds it. No result of the image's methods may be used afterwards, but by who holds it.
func (img *Image) Close() error {
	if img.unmap == nil || img.closed.Swap(true) {
		return nil
	}
	return img.Release()
}

// imageCost is about what an open image takes beside its file, in bytes, with fewSections.
const (
	imageCost   = 16 << 10
	fewSections = 64
)

// cost is what the image takes of a Budget.
func (img *Image) cost() int64 {
	n, more := int64(len(img.b)), int64(max(0, len(img.secs)-fewSections))
	return imageCost + more*int64(unsafe.Sizeof(Section{})) + min(n, smallFile) + max(0, n-smallFile)/4
}

// Inflated returns how many bytes the image's compressed sections take that were expanded.
func (img *Image) Inflated() int64 { return img.inflated.Load() }

// Hold keeps the file mapped until Release, whoever closes the image meanwhile. It returns false if the file is not mapped any more.
func (img *Image) Hold() bool {
	if img.unmap == nil {
		return true
	}
	for {
		n := img.holders.Load()
		if n == 0 {
			return false
		}
		if img.holders.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release ends one Hold. The last one unmaps the file.
func (img *Image) Release() error {
	if img.unmap == nil || img.holders.Add(-1) > 0 {
		return nil
	}
	img.b, img.secs = nil, nil // who still has the image keeps little of it: a recording has hundreds
	img.mu.Lock()
	defer img.mu.Unlock()
	for k, x := range img.inflate {
		if k >= 0 { // below are relocated sections, which take no more than the file
			inflating.Add(-int64(cap(x.b)))
		}
		delete(img.inflate, k)
	}
	return img.unmap()
}

func (img *Image) Name() string            { return img.name }
func (img *Image) Machine() *arch.Machine  { return img.machine }
func (img *Image) Order() binary.ByteOrder { return img.order }
func (img *Image) Is64() bool              { return img.is64 }
func (img *Image) Entry() arch.Vaddr       { return img.entry }
func (img *Image) Size() int64             { return int64(len(img.b)) }
func (img *Image) Bytes() []byte           { return img.b }
func (img *Image) Segments() []Segment     { return img.segs }

// Reach returns the greatest length of a range in the file: the bytes of the file outside of holes, and a little more.
func (img *Image) Reach() int64 { return int64(min(uint64(len(img.b)), img.reach)) }

// Sections returns all sections with readable headers.
func (img *Image) Sections() []Section { return img.secs }

// SectionsErr says what is wrong with the section headers or their names; nil if nothing is wrong, or if the file has none.
func (img *Image) SectionsErr() error { return img.secsErr }

// Linked says whether the file has link-time addresses; object files have none yet.
func (img *Image) Linked() bool { return img.linked }

// Interp returns the path of the program interpreter, or "".
func (img *Image) Interp() string {
	for _, s := range img.segs {
		if s.Kind == Interpreter && s.Size < 4096 {
			b, _ := img.bytes(s.Off, s.Size)
			return cstring(b)
		}
	}
	return ""
}

// OffToVaddr translates an offset in the file to a link-time address, by the loaded segments. Of several segments that contain off, the last
// executable one is preferred: a page may be mapped twice.
func (img *Image) OffToVaddr(off uint64) (arch.Vaddr, bool) {
	var v arch.Vaddr
	found := false
	for i := range img.load {
		s := &img.load[i]
		if off-s.Off < s.Size && (!found || s.Perm&Exec != 0) {
			v, found = s.Vaddr+arch.Vaddr(off-s.Off), true
		}
	}
	return v, found
}

// VaddrToOff translates a link-time address to an offset in the file, by the loaded segments.
func (img *Image) VaddrToOff(v arch.Vaddr) (uint64, bool) {
	for i := range img.load {
		if s := &img.load[i]; uint64(v-s.Vaddr) < s.Size {
			return s.Off + uint64(v-s.Vaddr), true
		}
	}
	return 0, false
}

// At returns n bytes of the loaded contents at v. ok is false unless one segment's file contents have
// them all.
func (img *Image) At(v arch.Vaddr, n int) ([]byte, bool) {
	b := img.Tail(v)
	if n < 0 || len(b) < n {
		return nil, false
	}
	return b[:n:n], true
}

// Tail returns the loaded contents from v to the end of its segment's file contents, at most as many bytes as the file has outside of holes.
// It returns nil if no segment contains v.
func (img *Image) Tail(v arch.Vaddr) []byte {
	if img.layout != nil {
		return img.tailPlaced(v)
	}
	for i := range img.load {
		s := &img.load[i]
		if at := uint64(v - s.Vaddr); at < s.Size && s.Off <= uint64(len(img.b)) {
			all := img.b[s.Off:]
			if s.Size < uint64(len(all)) {
				all = all[:s.Size]
			}
			if at < uint64(len(all)) {
				return all[at:][:min(uint64(len(all))-at, img.reach)]
			}
		}
	}
	return nil
}

// Contents returns the bytes that s has in the file. If the file is too short, it returns the existing bytes with ErrTruncated.
func (img *Image) Contents(s *Segment) ([]byte, error) {
	b, ok := img.bytes(s.Off, s.Size)
	if ok {
		return b, nil
	}
	b = img.b[min(s.Off, uint64(len(img.b))):]
	return b[:min(uint64(len(b)), s.Size, img.reach)], img.errorf(s.Off, ErrTruncated, "segment %s of %#x bytes", s.name(), s.Size)
}

// Format names the format of the file: "ELF", "Mach-O", "PE" or "COFF", which is Windows's object files.
func (img *Image) Format() string { return img.format.name }

// BuildID returns what names the build in the file (ELF: the contents of the NT_GNU_BUILD_ID note; Mach-O: of LC_UUID), or nil. The caller must not change the result. It stays valid after Close.
func (img *Image) BuildID() []byte { return img.buildID() }

// SameBuildID compares build IDs in hex. Records pad short ones with zeros.
func SameBuildID(a, b string) bool {
	trim := func(s string) string { return strings.TrimRight(strings.ToLower(s), "0") }
	return trim(a) == trim(b)
}

// ID names the file by its build ID in hex. A file without a build ID has "sha256-" and a hash of its headers and of the data that unwinding
// and naming read. The name has only the characters 0-9, a-z and '-'.
func (img *Image) ID() string {
	if id := img.BuildID(); len(id) > 0 && len(id) <= 64 {
		return hex.EncodeToString(id)
	}
	return img.hash()
}

// Of each hashed section, and of each segment of a file without sections, sum reads no more than maxHashed bytes; of those of a file all
// together, no more than the file has: they do not overlap.
const maxHashed = 64 << 20

// sum hashes what sumTo writes.
func (img *Image) sum() string {
	h := sha256.New()
	img.sumTo(h)
	return "sha256-" + hex.EncodeToString(h.Sum(nil))
}

// sumTo writes the headers and the sections that are read, whatever the size of the file.
func (img *Image) sumTo(h io.Writer) {
	img.format.headers(img, h)
	left := min(uint64(len(img.b)), img.reach)
	write := func(b []byte) {
		b = b[:min(uint64(len(b)), left)]
		left -= uint64(len(b))
		h.Write(b)
	}
	add := func(off, size uint64) {
		b, _ := img.bytes(off, min(size, maxHashed))
		write(b)
	}
	for i := range img.secs {
		s := &img.secs[i]
		switch {
		case !slices.Contains(img.format.hashed, s.Name) || s.Empty:
		case img.layout != nil: // relocations tell files apart whose sections are equal
			b, _, _ := img.Relocate(s)
			left += max(uint64(len(b)), s.Size) - s.Size // it was expanded, which has a bound of its own
			write(b)
		default:
			add(s.Off, s.Size)
		}
	}
	if len(img.secs) == 0 {
		for _, s := range img.load[:min(len(img.load), 16)] {
			add(s.Off, s.Size)
		}
	}
}
