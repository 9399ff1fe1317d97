// Package module opens binary images: an ELF file, mapped, with its sections, segments, symbols and build
// ID (System V ABI, chapters 4 and 5; the GNU and Linux extensions in use). Every range is checked when
// it is asked for, and nothing is parsed before.
//
// Both classes and byte orders are read, and files without section headers. Errors have the file's
// name and an offset. The package does not know what sections mean.
package module

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
)

// The causes of an Error.
var (
	ErrNotELF      = errors.New("not an ELF file")
	ErrTruncated   = errors.New("truncated")
	ErrMalformed   = errors.New("malformed")
	ErrUnsupported = errors.New("unsupported")
)

// An Error is something wrong in a file.
type Error struct {
	File string
	Off  uint64
	Msg  string
	Err  error // ErrTruncated, ErrMalformed, ErrUnsupported
}

func (e *Error) Error() string { return fmt.Sprintf("%s+%#x: %s: %v", e.File, e.Off, e.Msg, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// A Segment is a program header.
type Segment struct {
	Type   elf.ProgType
	Flags  elf.ProgFlag
	Off    uint64
	Vaddr  arch.Vaddr
	Filesz uint64
	Memsz  uint64
	Align  uint64
}

// A Section is a section header.
type Section struct {
	Name    string
	Type    elf.SectionType
	Flags   elf.SectionFlag
	Addr    arch.Vaddr
	Off     uint64
	Size    uint64
	Link    uint32
	Info    uint32
	Entsize uint64

	index int
}

// An Image is an ELF file. It is safe for concurrent use until Close.
type Image struct {
	name    string
	b       []byte
	unmap   func() error
	order   binary.ByteOrder
	is64    bool
	typ     elf.Type
	machine *arch.Machine
	entry   arch.Vaddr
	segs    []Segment
	secs    []Section
	secsErr error
	load    []Segment // PT_LOAD with file contents

	buildID func() []byte
	hash    func() string

	file  *File  // nil: it is in memory
	reach uint64 // the longest range that is given out

	mu      sync.Mutex
	inflate map[int]inflated
	room    uint64 // bytes that compressed sections may still grow to
}

// A File is what was known of an image's file when it was opened.
type File struct {
	unix.Stat_t
	Private bool // only root and this user could change it, or put another in its place
}

// File returns what is known of the image's file; nil for one in memory.
func (img *Image) File() *File { return img.file }

type inflated struct {
	b   []byte
	err error
}

// Open maps a file, read-only. Pages are read when they are looked at, so opening costs the same for a
// file of any size. A file that somebody truncates while it is mapped faults when it is read: use Guard
// around work on files that others may write.
func Open(path string) (*Image, error) {
	f, err := OpenFile(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return Map(f)
}

// OnDisk says whether the name of a mapping can be a file's, as far as the name tells: devices, System V shared memory and what has no
// file but a name in /proc/PID/maps or in a recording are none. In /dev/shm are files like others, until they are deleted.
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

// OpenFile opens a regular file to be mapped, and nothing else: opening a device can do something.
func OpenFile(path string) (*os.File, error) { return procfs.Open(path) }

// Map is Open for a file that is open already, which the caller may close afterwards.
func Map(f *os.File) (*Image, error) {
	path := f.Name()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file", path)
	}
	if st.Size() == 0 || st.Size() > math.MaxInt { // neither can be mapped
		return nil, &Error{path, 0, "header", ErrNotELF}
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	var img *Image
	filled, err := procfs.Filled(f)
	if err == nil {
		err = Guard(func() (err error) { img, err = newImage(path, b, uint64(filled)); return err })
	}
	if err != nil {
		unix.Munmap(b)
		return nil, err
	}
	img.file = &File{Private: procfs.Private(f)}
	if err := unix.Fstat(int(f.Fd()), &img.file.Stat_t); err != nil {
		img.file = nil
	}
	img.unmap = func() error { return unix.Munmap(b) }
	return img, nil
}

// Guard runs f and returns its error. If f reads a page of a mapped file that is no longer there, that is
// an error too. Goroutines that f starts are not covered.
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
func New(name string, b []byte) (*Image, error) { return newImage(name, b, uint64(len(b))) }

// maxHoles is how many bytes of holes may be read as if something was there: some linkers and file systems leave holes.
const maxHoles = 16 << 20

// newImage is New for a file of which so many bytes are not in holes: no section has more, so that a long hole costs nothing.
func newImage(name string, b []byte, filled uint64) (*Image, error) {
	img := &Image{name: name, b: b, inflate: map[int]inflated{}, reach: filled + maxHoles}
	img.room = min(maxGrowth+maxRatio*filled, maxInflated)
	img.buildID = sync.OnceValue(img.findBuildID)
	img.hash = sync.OnceValue(img.sum)
	if len(b) < 4 || string(b[:4]) != elf.ELFMAG {
		return nil, img.errorf(0, ErrNotELF, "header")
	}
	if len(b) < elf.EI_NIDENT {
		return nil, img.errorf(0, ErrTruncated, "header")
	}
	switch elf.Class(b[elf.EI_CLASS]) {
	case elf.ELFCLASS64:
		img.is64 = true
	case elf.ELFCLASS32:
	default:
		return nil, img.errorf(uint64(elf.EI_CLASS), ErrUnsupported, "class %d", b[elf.EI_CLASS])
	}
	switch elf.Data(b[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		img.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		img.order = binary.BigEndian
	default:
		return nil, img.errorf(uint64(elf.EI_DATA), ErrUnsupported, "byte order %d", b[elf.EI_DATA])
	}
	if err := img.headers(); err != nil {
		return nil, err
	}
	return img, nil
}

func (img *Image) errorf(off uint64, cause error, format string, args ...any) error {
	return &Error{img.name, off, fmt.Sprintf(format, args...), cause}
}

// bytes returns n bytes at file offset off.
func (img *Image) bytes(off, n uint64) ([]byte, bool) {
	if size := uint64(len(img.b)); off > size || n > size-off || n > img.reach {
		return nil, false
	}
	return img.b[off : off+n : off+n], true
}

// fields reads a fixed record: word fields have 4 or 8 bytes by class.
type fields struct {
	b  []byte
	o  binary.ByteOrder
	is bool // 64 bits
}

func (f *fields) u16() uint16 { v := f.o.Uint16(f.b); f.b = f.b[2:]; return v }
func (f *fields) u32() uint32 { v := f.o.Uint32(f.b); f.b = f.b[4:]; return v }
func (f *fields) word() uint64 {
	if !f.is {
		return uint64(f.u32())
	}
	v := f.o.Uint64(f.b)
	f.b = f.b[8:]
	return v
}

func (img *Image) fields(b []byte) *fields { return &fields{b, img.order, img.is64} }

// headers reads the ELF header, the program headers and the section headers.
func (img *Image) headers() error {
	ehsize, phsize, shsize := uint64(52), uint64(32), uint64(40)
	if img.is64 {
		ehsize, phsize, shsize = 64, 56, 64
	}
	h, ok := img.bytes(0, ehsize)
	if !ok {
		return img.errorf(0, ErrTruncated, "header")
	}
	f := img.fields(h[16:])
	img.typ = elf.Type(f.u16())
	img.machine = arch.ByELF(f.u16())
	f.u32() // version
	img.entry = arch.Vaddr(f.word())
	phoff, shoff := f.word(), f.word()
	f.u32() // flags
	f.u16() // size of this header
	phentsize, phnum := uint64(f.u16()), uint64(f.u16())
	shentsize, shnum := uint64(f.u16()), uint64(f.u16())
	strndx := uint64(f.u16())

	// Section headers may be missing or damaged: what the program headers say stays good, so their
	// trouble is told only where they are needed. Extended numbers are in the first section header.
	if shoff != 0 {
		if first, ok := img.bytes(shoff, shsize); !ok {
			img.secsErr = img.errorf(shoff, ErrTruncated, "section headers")
		} else if shentsize < shsize {
			img.secsErr = img.errorf(shoff, ErrMalformed, "section header size %d", shentsize)
		} else {
			s := img.section(first, 0)
			if shnum == 0 {
				shnum = s.Size
			}
			if strndx == uint64(elf.SHN_XINDEX) {
				strndx = uint64(s.Link)
			}
			if phnum == 0xffff {
				phnum = uint64(s.Info)
			}
			img.sections(shoff, shentsize, shnum, strndx)
		}
	}
	if phoff != 0 && phnum > 0 {
		if phentsize < phsize {
			return img.errorf(phoff, ErrMalformed, "program header size %d", phentsize)
		}
		all, ok := img.bytes(phoff, min(phnum, math.MaxUint32)*phentsize)
		if !ok {
			return img.errorf(phoff, ErrTruncated, "%d program headers", phnum)
		}
		for ; len(all) > 0; all = all[phentsize:] {
			s := img.segment(all)
			img.segs = append(img.segs, s)
			if s.Type == elf.PT_LOAD && s.Filesz > 0 {
				img.load = append(img.load, s)
			}
		}
	}
	return nil
}

func (img *Image) segment(b []byte) Segment {
	f := img.fields(b)
	s := Segment{Type: elf.ProgType(f.u32())}
	if img.is64 {
		s.Flags = elf.ProgFlag(f.u32())
	}
	s.Off, s.Vaddr = f.word(), arch.Vaddr(f.word())
	f.word() // physical address
	s.Filesz, s.Memsz = f.word(), f.word()
	if !img.is64 {
		s.Flags = elf.ProgFlag(f.u32())
	}
	s.Align = f.word()
	return s
}

func (img *Image) section(b []byte, index int) Section {
	f := img.fields(b)
	f.u32() // the name comes later
	s := Section{index: index, Type: elf.SectionType(f.u32())}
	s.Flags, s.Addr = elf.SectionFlag(f.word()), arch.Vaddr(f.word())
	s.Off, s.Size = f.word(), f.word()
	s.Link, s.Info = f.u32(), f.u32()
	f.word() // alignment
	s.Entsize = f.word()
	return s
}

// sections reads the section headers that are there. Names are copied, so that many long ones in one place
// could fill the memory: together they get as many bytes as the file has.
func (img *Image) sections(off, entsize, num, strndx uint64) {
	if room := min(uint64(len(img.b))-off, img.reach) / entsize; num > room {
		img.secsErr = img.errorf(off, ErrTruncated, "%d section headers", num)
		num = room
	}
	all, _ := img.bytes(off, num*entsize)
	img.secs = make([]Section, num)
	for i := range img.secs {
		img.secs[i] = img.section(all[uint64(i)*entsize:], i)
	}
	if strndx >= num {
		return
	}
	names, ok := img.bytes(img.secs[strndx].Off, img.secs[strndx].Size)
	if !ok {
		img.secsErr = cmp.Or(img.secsErr, img.errorf(img.secs[strndx].Off, ErrTruncated, "section names"))
		return
	}
	room := min(uint64(len(img.b)), img.reach)
	for i := range img.secs {
		at := uint64(img.order.Uint32(all[uint64(i)*entsize:]))
		if at >= uint64(len(names)) {
			continue
		}
		in := names[at:][:min(room, uint64(len(names))-at)]
		if img.secs[i].Name = cstring(in); img.secs[i].Name != "" {
			in = in[:len(img.secs[i].Name)]
		}
		room -= uint64(len(in))
	}
}

// cstring returns the string up to the first NUL; "" where there is none.
func cstring(b []byte) string {
	return string(b[:max(bytes.IndexByte(b, 0), 0)])
}

// Close unmaps the file. Nothing that came from the image may be used afterwards.
func (img *Image) Close() error {
	if img.unmap == nil {
		return nil
	}
	u := img.unmap
	img.unmap, img.b = nil, nil
	img.mu.Lock()
	defer img.mu.Unlock()
	for k, x := range img.inflate {
		inflating.Add(-int64(cap(x.b)))
		delete(img.inflate, k)
	}
	return u()
}

func (img *Image) Name() string            { return img.name }
func (img *Image) Machine() *arch.Machine  { return img.machine }
func (img *Image) Order() binary.ByteOrder { return img.order }
func (img *Image) Is64() bool              { return img.is64 }
func (img *Image) Type() elf.Type          { return img.typ }
func (img *Image) Entry() arch.Vaddr       { return img.entry }
func (img *Image) Size() int64             { return int64(len(img.b)) }
func (img *Image) Bytes() []byte           { return img.b }
func (img *Image) Segments() []Segment     { return img.segs }

// Reach returns how many bytes a range of the file can have: what of the file is not in holes, and a little more.
func (img *Image) Reach() int64 { return int64(min(uint64(len(img.b)), img.reach)) }

// Sections returns the sections whose headers can be read.
func (img *Image) Sections() []Section { return img.secs }

// SectionsErr says what is wrong with the section headers or their names; nil where nothing is, and where there are none.
func (img *Image) SectionsErr() error { return img.secsErr }

// Interp returns the path of the program interpreter, or "".
func (img *Image) Interp() string {
	for _, s := range img.segs {
		if s.Type == elf.PT_INTERP && s.Filesz < 4096 {
			b, _ := img.bytes(s.Off, s.Filesz)
			return cstring(b)
		}
	}
	return ""
}

// OffToVaddr translates an offset in the file to a link-time address, by PT_LOAD. The last segment that
// contains it and is executable is preferred: a page may be mapped twice.
func (img *Image) OffToVaddr(off uint64) (arch.Vaddr, bool) {
	var v arch.Vaddr
	found := false
	for i := range img.load {
		s := &img.load[i]
		if off-s.Off < s.Filesz && (!found || s.Flags&elf.PF_X != 0) {
			v, found = s.Vaddr+arch.Vaddr(off-s.Off), true
		}
	}
	return v, found
}

// VaddrToOff translates a link-time address to an offset in the file, by PT_LOAD.
func (img *Image) VaddrToOff(v arch.Vaddr) (uint64, bool) {
	for i := range img.load {
		if s := &img.load[i]; uint64(v-s.Vaddr) < s.Filesz {
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

// Tail returns the loaded contents from v to the end of its segment's file contents, or as many bytes of them as the file has outside of
// holes; nil where v is in none.
func (img *Image) Tail(v arch.Vaddr) []byte {
	for i := range img.load {
		s := &img.load[i]
		if at := uint64(v - s.Vaddr); at < s.Filesz && s.Off <= uint64(len(img.b)) {
			all := img.b[s.Off:]
			if s.Filesz < uint64(len(all)) {
				all = all[:s.Filesz]
			}
			if at < uint64(len(all)) {
				return all[at:][:min(uint64(len(all))-at, img.reach)]
			}
		}
	}
	return nil
}

// Contents returns the bytes that s has in the file. With an error, ErrTruncated, come those that are there.
func (img *Image) Contents(s *Segment) ([]byte, error) {
	b, ok := img.bytes(s.Off, s.Filesz)
	if ok {
		return b, nil
	}
	b = img.b[min(s.Off, uint64(len(img.b))):]
	return b[:min(uint64(len(b)), s.Filesz, img.reach)], img.errorf(s.Off, ErrTruncated, "segment %v of %#x bytes", s.Type, s.Filesz)
}

// BuildID returns the contents of the NT_GNU_BUILD_ID note, or nil. The result must not be changed; it stays
// valid when the image is closed.
func (img *Image) BuildID() []byte { return img.buildID() }

// maxNotes bounds what is read of notes, in bytes: those of programs have some hundreds, and those of cores, which come first, have no build ID.
const maxNotes = 4 << 20

// findBuildID looks at the notes of the segments, and then at those of the sections: a separate debug file's
// segments lie.
func (img *Image) findBuildID() []byte {
	left := uint64(maxNotes)
	look := func(off, size, align uint64) []byte {
		if size > left {
			return nil
		}
		left -= size
		b, _ := img.bytes(off, size)
		return bytes.Clone(BuildIDNote(b, img.order, align))
	}
	for i := range img.segs {
		if s := &img.segs[i]; s.Type == elf.PT_NOTE {
			if id := look(s.Off, s.Filesz, s.Align); id != nil {
				return id
			}
		}
	}
	for i := range img.secs {
		if s := &img.secs[i]; s.Type == elf.SHT_NOTE {
			if id := look(s.Off, s.Size, 4); id != nil {
				return id
			}
		}
	}
	return nil
}

// BuildIDNote returns the contents of the NT_GNU_BUILD_ID note among notes, which are aligned to 4 or 8
// bytes; nil if there is none.
func BuildIDNote(b []byte, order binary.ByteOrder, align uint64) []byte {
	if align != 8 {
		align = 4
	}
	up := func(n uint64) uint64 { return (n + align - 1) &^ (align - 1) }
	const ntGNUBuildID = 3
	for len(b) >= 12 {
		namesz, descsz, typ := uint64(order.Uint32(b)), uint64(order.Uint32(b[4:])), order.Uint32(b[8:])
		desc := up(12 + namesz)
		if end := uint64(len(b)); desc > end || descsz > end-desc {
			return nil
		}
		if typ == ntGNUBuildID && namesz == 4 && string(b[12:16]) == "GNU\x00" && descsz > 0 {
			return b[desc : desc+descsz]
		}
		b = b[min(up(desc+descsz), uint64(len(b))):]
	}
	return nil
}

// Another stands for the build ID of a file that has been recorded without one, and is known not to be the one at its path.
const Another = "another"

// SameBuildID compares build IDs in hex. Records pad short ones with zeros.
func SameBuildID(a, b string) bool {
	trim := func(s string) string { return strings.TrimRight(strings.ToLower(s), "0") }
	return trim(a) == trim(b)
}

// ID names the file: its build ID in hex, or "sha256-" and a hash of its headers and of what unwinding and naming read where it has none. It has
// no characters but 0-9, a-z and '-'.
func (img *Image) ID() string {
	if id := img.BuildID(); len(id) > 0 && len(id) <= 64 {
		return hex.EncodeToString(id)
	}
	return img.hash()
}

// hashed are the sections that sum reads. Of each, and of each segment of a file without sections, it reads no more than maxHashed bytes.
var hashed = []string{".text", ".eh_frame_hdr", ".eh_frame", ".debug_frame", ".gopclntab", ".dynsym", ".dynstr", ".symtab", ".strtab"}

const maxHashed = 64 << 20

// sum hashes the headers and the sections that are read, whatever the size of the file.
func (img *Image) sum() string {
	h := sha256.New()
	fmt.Fprint(h, len(img.b), img.typ, img.entry, img.machine.ELF, img.segs)
	for i := range img.secs {
		fmt.Fprint(h, img.secs[i])
	}
	add := func(off, size uint64) {
		b, _ := img.bytes(off, min(size, maxHashed))
		h.Write(b)
	}
	for i := range img.secs {
		if s := &img.secs[i]; slices.Contains(hashed, s.Name) && s.Type != elf.SHT_NOBITS {
			add(s.Off, s.Size)
		}
	}
	if len(img.secs) == 0 {
		for _, s := range img.load[:min(len(img.load), 16)] {
			add(s.Off, s.Filesz)
		}
	}
	return "sha256-" + hex.EncodeToString(h.Sum(nil))
}
