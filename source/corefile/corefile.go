// Package corefile reads core dumps: ELF files of type ET_CORE of Linux's programs, written by the kernel, by gdb's gcore or by QEMU, of each machine that can be
// walked, 32-bit and big-endian ones too. A file comes in; a source.Process goes out, with threads, registers, memory, and the mapped files that are still the same.
//
// The kernel puts the first page of every mapped ELF file into the core. A file is the same if its build ID is the one in that page. A
// changed file is not used, and a note says so. Memory missing from the core is read from the mapped files, where the mapping was not
// writable. Missing writable memory is never made up.
//
// The layouts are those of the kernel's fs/binfmt_elf.c and include/linux/elfcore.h, and of the System V ABI.
package corefile

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// Options say where a process's mapped files are, and how to make modules of them.
type Options struct {
	// Mods returns the module of a file of this machine, by its path and its hex build ID, which may be empty.
	Mods func(path, buildID string) *unwind.Module

	// Image returns the module of an open image: one that only the core has, such as the vDSO, or a file without a build ID, which opening again
	// may not find. The image is valid until Close. nil: a module without code.
	Image func(img *module.Image) *unwind.Module

	// Kept returns the module of a file that is gone, of which head is what the core has of its beginning, if something is known of it by its
	// build ID; else nil. The image is valid until Close. nil: nothing is known.
	Kept func(head *module.Image) *unwind.Module

	Exe string // the executable, where it is not at the path that the core says; may be empty

	// Files finds the mapped files. A file is used only if it is the one that was mapped. Mods should use the same Locator, which has open what was found.
	// nil stands for the File's own Locator, which searches the usual places of this machine.
	Files *module.Locator
}

// A File is an open core dump.
type File struct {
	source.Process

	path   string
	b      []byte
	unmap  func() error // nil: b is no mapping
	order  binary.ByteOrder
	word   int    // bytes of an address
	comm   string // of the first thread that the process had
	mem    memory
	auxv   map[uint64]uint64
	system string      // that the notes are of, if it is another one than Linux
	files  []fileRange // sorted by lo, disjoint

	own    *module.Locator          // nil: Options.Files is another's
	images []*module.Image          // held
	opened map[string]*module.Image // of these, by path, those that were opened to see where files were mapped
	put    uint64                   // bytes of files that were put together from memory
	notes  notes
	cut    bool // the end of the headers or of the notes is missing
}

// The causes of errors that are not those of package module.
var (
	ErrNotCore    = errors.New("not a core file")
	ErrCompressed = errors.New("compressed")
)

// An Error is something wrong in a core file.
type Error struct {
	Path string
	Off  uint64
	Msg  string
	Err  error // ErrNotCore, ErrCompressed, module.ErrTruncated, ErrMalformed, ErrUnsupported
}

func (e *Error) Error() string { return fmt.Sprintf("%s+%#x: %s", e.Path, e.Off, e.Msg) }
func (e *Error) Unwrap() error { return e.Err }

func (f *File) errorf(off uint64, cause error, format string, args ...any) error {
	return &Error{f.path, off, fmt.Sprintf(format, args...), cause}
}

// Open reads the core file at path. It maps the file, so the time it takes depends on the number of threads and mappings and not on how large
// the file is. A truncated file gives the threads and memory it has, if it has the registers of one thread; Notes name missing parts.
//
// Whoever reads memory of the result afterwards, as a walk does, should do so under source.Guard: somebody may cut the
// file short.
func Open(path string, o Options) (*File, error) {
	file, err := procfs.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() == 0 || st.Size() > math.MaxInt {
		return nil, &Error{path, 0, fmt.Sprintf("a file of %d bytes: %v", st.Size(), ErrNotCore), ErrNotCore}
	}
	b, err := unix.Mmap(int(file.Fd()), 0, int(st.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	f, err := New(path, b, o)
	if err != nil {
		unix.Munmap(b)
		return nil, err
	}
	f.unmap = func() error { return unix.Munmap(b) }
	return f, nil
}

// New reads a core file in memory. name is for messages; b must not change until Close.
func New(name string, b []byte, o Options) (*File, error) {
	if o.Image == nil {
		o.Image = func(img *module.Image) *unwind.Module { return unwind.NewModule(img.Name(), "", nil) }
	}
	f := &File{path: name, b: b, auxv: map[uint64]uint64{}, opened: map[string]*module.Image{}}
	if o.Files == nil {
		f.own = &module.Locator{Dirs: []string{module.DebugDir}}
		o.Files = f.own
	}
	if abs, err := filepath.Abs(o.Exe); err == nil && o.Exe != "" { // modules go by whole paths: others are names of mappings that have no file
		o.Exe = abs
	}
	err := source.Guard(func() error { return f.read(&o) })
	if err != nil {
		f.closeImages()
		return nil, err
	}
	f.Notes = f.notes.list()
	return f, nil
}

func (f *File) read(o *Options) error {
	notes, err := f.headers()
	if err != nil {
		return err
	}
	left := uint64(len(f.b)) // segments that overlap are no reason to read more than there is
	for _, s := range notes {
		if s.size > left {
			s.size = left
		}
		left -= s.size
		f.readNotes(s)
	}
	switch {
	case len(f.Threads) > 0:
	case f.cut:
		return f.errorf(uint64(len(f.b)), module.ErrTruncated, "the core is cut off before the registers of its threads: nothing to walk")
	default:
		if f.system != "" {
			return f.errorf(0, module.ErrUnsupported, "a core file of %s: only those of Linux can be read", f.system)
		}
		return f.errorf(0, module.ErrMalformed, "no NT_PRSTATUS note: the core has no registers of any thread")
	}
	f.linkMaps(o)
	f.findObjects(o)
	f.Space = f.space(o)
	f.threads()
	return nil
}

// Close unmaps all files. Nothing that came from the File may be used afterwards.
func (f *File) Close() error {
	f.closeImages()
	unmap := f.unmap
	f.b, f.mem, f.unmap = nil, memory{}, nil
	if unmap == nil {
		return nil
	}
	return unmap()
}

func (f *File) closeImages() {
	for _, img := range f.images {
		img.Release()
	}
	f.images, f.opened = nil, nil
	if f.own != nil {
		f.own.Close()
	}
}

// threads completes the threads: their memory, and their order.
func (f *File) threads() {
	first := 0
	if f.PID == 0 {
		f.PID = f.Threads[0].TID
	}
	if f.Signal == nil {
		first = max(slices.IndexFunc(f.Threads, func(t source.Thread) bool { return t.TID == f.PID }), 0)
	}
	f.Threads[0], f.Threads[first] = f.Threads[first], f.Threads[0]
	slices.SortStableFunc(f.Threads[1:], func(a, b source.Thread) int { return cmp.Compare(a.TID, b.TID) })
	lost := 0
	for i := range f.Threads {
		t := &f.Threads[i]
		s := &t.Snapshot
		if t.TID == f.PID {
			t.Name = f.comm
		}
		s.Machine, s.Space = f.Machine, f.Space
		sp := s.Regs[f.Machine.Slot(f.Machine.SP)]
		s.Mem = rows.Memory{Next: rows.WordsOf(f.Machine, &f.mem)}
		if seg := f.mem.find(sp); f.Machine.Plain() && seg != nil && uint64(len(seg.b)) < seg.hi-seg.lo && seg.flags&pfW != 0 {
			s.Mem.Lo, s.Mem.Bytes = seg.window(sp)
			lost++
		}
	}
	if lost > 0 {
		f.notes.add("%d of %d threads' stacks are not whole in the core", lost, len(f.Threads))
	}
}

// A notes is a list of what is missing.
type notes struct {
	all  []string
	more int
}

const maxNotes = 100

func (n *notes) add(format string, args ...any) {
	if len(n.all) >= maxNotes {
		n.more++
		return
	}
	n.all = append(n.all, strings.Map(printable, fmt.Sprintf(format, args...)))
}

// printable replaces what a terminal would obey: paths in a core can be anything.
func printable(r rune) rune {
	if !unicode.IsPrint(r) {
		return '?'
	}
	return r
}

func (n *notes) list() []string {
	if n.more > 0 {
		return append(n.all, fmt.Sprintf("and %d more", n.more))
	}
	return n.all
}

// u32 returns the number of four bytes at the beginning of b.
func (f *File) u32(b []byte) uint32 { return f.order.Uint32(b) }

// uword returns the address at the beginning of b.
func (f *File) uword(b []byte) uint64 {
	if f.word == 4 {
		return uint64(f.order.Uint32(b))
	}
	return f.order.Uint64(b)
}

// pcSlot returns the slot of the program counter.
func pcSlot(m *arch.Machine) arch.Slot { return m.Slot(m.PC) }
