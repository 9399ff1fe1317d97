// Package minidump reads minidumps: crash dumps of Windows, and of Breakpad and Crashpad on Linux, Android and macOS. A file comes in; a source.Process goes out,
// with threads, registers, memory, and the modules whose files are at hand: PE, ELF or Mach-O.
//
// A dump names each module with what tells its file from others: the GUID and age of its PDB, a build ID, a UUID, or a time and a size. A file that is
// another one is not used. Memory missing from the dump is read from the modules' files, where it cannot be written. The rest is never made up.
//
// The layouts are those of Microsoft's minidumpapiset.h and winnt.h; records of ELF's build IDs are Breakpad's (minidump_format.h).
package minidump

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"slices"
	"sort"
	"strings"
	"unicode/utf16"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// Options say where modules' files are, and how to make modules of them.
type Options struct {
	// Mods returns the module of a file that is not at hand, by its path and its hex build ID.
	Mods func(path, buildID string) *unwind.Module

	// Image returns the module of an open image, which is valid until Close.
	Image func(img *module.Image) *unwind.Module

	// Files finds files: at a module's path, by its build ID, and as a symbol server keeps them, in DIR/NAME/ID/NAME below Sysroot, Dirs and DebugDirs.
	Files *module.Locator
}

// ErrNotMinidump is the error of a file that does not begin like a minidump.
var ErrNotMinidump = errors.New("not a minidump")

// An Error is something wrong in a minidump.
type Error struct {
	Path string
	Off  uint64
	Msg  string
	Err  error // ErrNotMinidump, module.ErrTruncated, ErrMalformed, ErrUnsupported
}

func (e *Error) Error() string { return fmt.Sprintf("%s+%#x: %s: %v", e.Path, e.Off, e.Msg, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// A File is an open minidump.
type File struct {
	source.Process

	path    string
	b       []byte
	unmap   func() error
	os      uint32
	mem     memory
	names   map[int]string
	modules []mapped // sorted by base, disjoint
	images  []*module.Image
	more    int // notes that are left out

	fromMemory uint64 // modules that are rebuilt
	copied     uint64 // bytes of memory for it

	dirs map[string]map[string]string // directories below Options.Files.Sysroot: their files' names by names in small letters
}

// Bounds of what is read. A dump that says more has a note.
const (
	maxStreams = 1 << 10
	maxThreads = 1 << 16
	maxModules = 1 << 12
	maxRanges  = 1 << 20
	maxName    = 1 << 12 // bytes
	maxCommand = 1 << 16 // bytes
	maxCode    = 1 << 16 // mappings without a file
	maxText    = 8 << 20 // bytes of /proc/PID/maps
	maxNotes   = 100
)

// Streams (MINIDUMP_STREAM_TYPE).
const (
	threadList, moduleList, memoryList, exception, systemInfo = 3, 4, 5, 6, 7
	memory64List, miscInfo, memoryInfoList, threadNames       = 9, 15, 16, 24
	linuxCmdLine, linuxMaps                                   = 0x47670006, 0x47670009 // Breakpad's: /proc/PID/cmdline and maps
)

// Is says whether a file begins like a minidump.
func Is(head []byte) bool { return bytes.HasPrefix(head, []byte("MDMP")) }

// IsFile says whether there is a file that begins like a minidump.
func IsFile(path string) bool {
	f, err := procfs.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [4]byte
	n, _ := f.ReadAt(b[:], 0)
	return Is(b[:n])
}

// Open reads the minidump at path. A damaged one gives the threads and the memory that can be read; Notes name what is missing. Whoever reads memory of the
// result afterwards, as a walk does, should do so under source.Guard: somebody may cut the file short.
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
		return nil, &Error{path, 0, fmt.Sprintf("a file of %d bytes", st.Size()), ErrNotMinidump}
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

// New reads a minidump in memory. name is for messages; b must not change until Close.
func New(name string, b []byte, o Options) (*File, error) {
	f := newFile(name, b)
	if err := source.Guard(func() error { return f.read(&o) }); err != nil {
		f.Close()
		return nil, err
	}
	if f.more > 0 {
		f.Notes = append(f.Notes, fmt.Sprintf("and %d more", f.more))
	}
	return f, nil
}

func newFile(name string, b []byte) *File {
	return &File{path: name, b: b, names: map[int]string{}, dirs: map[string]map[string]string{}}
}

// Close unmaps all files. Nothing that came from the File may be used afterwards.
func (f *File) Close() error {
	for _, img := range f.images {
		img.Release()
	}
	f.images = nil
	unmap := f.unmap
	f.b, f.mem, f.unmap = nil, memory{}, nil
	if unmap == nil {
		return nil
	}
	return unmap()
}

func (f *File) note(format string, args ...any) {
	text := printable.Marked(fmt.Sprintf(format, args...))
	switch {
	case slices.Contains(f.Notes, text):
	case len(f.Notes) >= maxNotes:
		f.more++
	default:
		f.Notes = append(f.Notes, text)
	}
}

func (f *File) errorf(off uint64, cause error, format string, args ...any) error {
	return &Error{f.path, off, fmt.Sprintf(format, args...), cause}
}

// A location is a MINIDUMP_LOCATION_DESCRIPTOR.
type location struct{ size, rva uint64 }

func locationAt(b []byte) location {
	return location{uint64(le.Uint32(b)), uint64(le.Uint32(b[4:]))}
}

var le = binary.LittleEndian

// bytes returns what the file has of a location.
func (f *File) bytes(l location) []byte {
	size := uint64(len(f.b))
	if l.rva >= size {
		return nil
	}
	return f.b[l.rva:min(l.rva+l.size, size)]
}

// read reads the header, and the streams in the order in which they need each other.
func (f *File) read(o *Options) error {
	if !Is(f.b) {
		return f.errorf(0, ErrNotMinidump, "header")
	}
	if len(f.b) < 32 {
		return f.errorf(0, module.ErrTruncated, "header")
	}
	n, dir := uint64(le.Uint32(f.b[8:])), uint64(le.Uint32(f.b[12:]))
	if n > maxStreams {
		return f.errorf(8, module.ErrMalformed, "%d streams", n)
	}
	entries := f.bytes(location{12 * n, dir})
	if uint64(len(entries)) < 12*n {
		return f.errorf(dir, module.ErrTruncated, "directory of %d streams", n)
	}
	streams := map[uint32]location{}
	for ; len(entries) > 0; entries = entries[12:] {
		if typ := le.Uint32(entries); streams[typ] == (location{}) { // the first of a type, as dbghelp takes it
			streams[typ] = locationAt(entries[4:])
		}
	}
	if err := f.system(streams[systemInfo]); err != nil {
		return err
	}
	f.memory(streams)
	if b := f.bytes(streams[miscInfo]); len(b) >= 12 && le.Uint32(b[4:])&1 != 0 { // MINIDUMP_MISC1_PROCESS_ID
		f.PID = int(le.Uint32(b[8:]))
	}
	for i, b := range f.list(streams[threadNames], "thread names", 12, maxThreads) {
		if name, ok := f.text(le.Uint64(b[4:])); ok && i < maxThreads {
			f.names[int(le.Uint32(b))] = name
		}
	}
	f.listModules(streams[moduleList])
	f.threads(streams[threadList])
	f.exception(streams[exception])
	if len(f.Threads) == 0 {
		return f.errorf(streams[threadList].rva, module.ErrMalformed, "no threads: there is nothing to walk")
	}
	f.findModules(o)
	f.complete(o, streams)
	return nil
}

// list returns the entries of a stream that begins with their number. Breakpad's have four bytes behind the number where entries are aligned so.
func (f *File) list(l location, what string, entry, most uint64) (out [][]byte) {
	b := f.bytes(l)
	if len(b) < 4 {
		return nil
	}
	n := uint64(le.Uint32(b))
	b = b[4:]
	if l.size >= 8 && (l.size-8)/entry == n && (l.size-8)%entry == 0 {
		b = b[min(4, len(b)):]
	}
	if have := min(uint64(len(b))/entry, most); n > have {
		f.note("the dump has %d of %d entries of its list of %s", have, n, what)
		n = have
	}
	for i := range n {
		out = append(out, b[i*entry:(i+1)*entry])
	}
	return out
}

// text reads a MINIDUMP_STRING.
func (f *File) text(rva uint64) (string, bool) {
	size := f.bytes(location{4, rva})
	if len(size) < 4 {
		return "", false
	}
	b := f.bytes(location{uint64(min(le.Uint32(size), maxName)), rva + 4})
	u := make([]uint16, 0, len(b)/2)
	for ; len(b) >= 2; b = b[2:] {
		u = append(u, le.Uint16(b))
	}
	return strings.TrimRight(string(utf16.Decode(u)), "\x00"), true
}

// Platforms (VER_PLATFORM_, and Breakpad's).
const (
	windowsNT      = 2
	macOS, iOS     = 0x8101, 0x8102
	linux, android = 0x8201, 0x8203
)

// system reads MINIDUMP_SYSTEM_INFO: the machine, and the system, which says what its functions preserve.
func (f *File) system(l location) error {
	b := f.bytes(l)
	if len(b) < 24 {
		return f.errorf(l.rva, module.ErrTruncated, "system information")
	}
	f.os = le.Uint32(b[20:])
	windows := f.os <= windowsNT
	switch cpu := le.Uint16(b); cpu {
	case 0:
		f.Machine = arch.I386
	case 5:
		f.Machine = arch.ARM
	case 9:
		if f.Machine = arch.AMD64; windows {
			f.Machine = arch.WindowsAMD64
		}
	case 12, 0x8003: // and Breakpad's first number of it
		if f.Machine = arch.ARM64; windows {
			f.Machine = arch.WindowsARM64
		}
	default:
		return f.errorf(l.rva, module.ErrUnsupported, "processor %#x", cpu)
	}
	return nil
}

const (
	contextControl = 1 // and the machine's bits
	contextInteger = 2
)

// registers reads a context of the machine; false if it is another's, or has no program counter.
func (f *File) registers(b []byte, s *unwind.Snapshot) bool {
	c, size := f.Machine.Context, f.Machine.WordSize()
	if c == nil || uint64(len(b)) < c.Flags+4 {
		return false
	}
	flags := le.Uint32(b[c.Flags:])
	if !slices.ContainsFunc(c.CPUs, func(cpu uint32) bool { return flags&cpu != 0 }) {
		return false
	}
	// Breakpad has no control registers of Arm: its integer registers are all.
	all := flags&contextInteger != 0 && flags&(0x40000000|0x80000000) != 0
	for i, at := range c.At {
		need := uint32(contextInteger)
		if slices.Contains(c.Control, c.Regs[i]) {
			need = contextControl
		}
		if flags&need == 0 && !all {
			continue
		}
		if uint64(len(b)) < at+size {
			return false
		}
		v := uint64(le.Uint32(b[at:]))
		if size == 8 {
			v = le.Uint64(b[at:])
		}
		if slot := f.Machine.Slot(c.Regs[i]); slot != arch.NoSlot {
			s.Regs[slot] = v
			s.Known |= 1 << slot
		}
	}
	pc := f.Machine.Slot(f.Machine.PC)
	s.PC = s.Regs[pc]
	return s.Known&(1<<pc) != 0
}

// under64 says whether a 32-bit program of Windows ran below a 64-bit system, and a 64-bit program made the dump: the contexts are of the code that
// stands between the two.
func (f *File) under64() bool {
	return f.Machine == arch.WindowsAMD64 && slices.ContainsFunc(f.modules, func(m mapped) bool { return strings.EqualFold(m.name(), "wow64.dll") })
}

// context32 returns a 32-bit thread's own context: behind four bytes where the second word of the thread's local storage points to (TlsSlots of its
// block, WOW64_TLS_CPURESERVED); nil where the dump does not have it.
func (f *File) context32(teb uint64) []byte {
	const slots, size = 0x1480, 716
	at, ok := f.mem.Read8(teb + slots + 8)
	if b := f.mem.tail(at + 4); ok && len(b) >= size {
		return b[:size]
	}
	return nil
}

var errNoRegisters = errors.New("the dump has none")

// threads reads the list of threads.
func (f *File) threads(l location) {
	list := f.list(l, "threads", 48, maxThreads)
	teb := func(b []byte) uint64 { return le.Uint64(b[16:]) }
	under := f.under64() && slices.ContainsFunc(list, func(b []byte) bool { return f.context32(teb(b)) != nil })
	if under {
		f.Machine = arch.I386
		f.note("a 32-bit program below 64-bit Windows: the stacks are those of its 32-bit code")
	}
	for _, b := range list {
		t := source.Thread{TID: int(le.Uint32(b))}
		t.Name = f.names[t.TID]
		ctx := f.bytes(locationAt(b[40:]))
		if under {
			ctx = f.context32(teb(b))
		}
		if !f.registers(ctx, &t.Snapshot) {
			t.Snapshot, t.Err = unwind.Snapshot{}, errNoRegisters
		}
		f.Threads = append(f.Threads, t)
	}
}

// exception reads what ended the process: its thread comes first, with the registers of that moment.
func (f *File) exception(l location) {
	b := f.bytes(l)
	if len(b) < 168 {
		return
	}
	tid, code, addr := int(le.Uint32(b)), le.Uint32(b[8:]), le.Uint64(b[24:])
	i := slices.IndexFunc(f.Threads, func(t source.Thread) bool { return t.TID == tid })
	if i < 0 {
		f.note("the thread of the exception, %d, is not in the dump", tid)
	} else {
		var s unwind.Snapshot
		if f.registers(f.bytes(locationAt(b[160:])), &s) {
			f.Threads[i].Snapshot, f.Threads[i].Err = s, nil
		}
		t := f.Threads[i]
		f.Threads = slices.Insert(slices.Delete(f.Threads, i, i+1), 0, t)
	}
	switch {
	case asked(code): // somebody asked for the dump
	case (f.os == linux || f.os == android) && code <= 64:
		f.Signal = &source.Signal{Number: int(code), Code: int(int32(le.Uint32(b[12:]))), Addr: addr, HasAddr: addr != 0}
	default:
		f.note("thread %d ended the process: %s at %#x", tid, f.named(b), addr)
	}
}

// memory reads the lists of memory.
func (f *File) memory(streams map[uint32]location) {
	for _, b := range f.list(streams[memoryList], "memory", 16, maxRanges) {
		f.mem.add(le.Uint64(b), f.bytes(locationAt(b[8:])))
	}
	for _, b := range f.list(streams[threadList], "threads", 48, maxThreads) { // stacks, which need not be in the list
		f.mem.add(le.Uint64(b[24:]), f.bytes(locationAt(b[32:])))
	}
	l := streams[memory64List]
	if b := f.bytes(l); len(b) >= 16 {
		n, at, size := le.Uint64(b), le.Uint64(b[8:]), uint64(len(f.b))
		b = b[16:]
		if have := min(uint64(len(b))/16, maxRanges); n > have {
			f.note("the dump has %d of %d entries of its list of memory", have, n)
			n = have
		}
		for ; n > 0 && at < size; n-- {
			have := min(le.Uint64(b[8:]), size-at)
			f.mem.add(le.Uint64(b), f.b[at:at+have])
			at, b = at+have, b[16:]
		}
		if n > 0 {
			f.note("the dump is cut off: %d ranges of memory are missing", n)
		}
	}
	f.mem.finish()
}

// complete gives the threads their memory.
func (f *File) complete(o *Options, streams map[uint32]location) {
	var maps []unwind.Mapping
	for i := range f.modules {
		maps = append(maps, f.modules[i].maps...)
	}
	slices.SortFunc(maps, func(a, b unwind.Mapping) int { return cmp.Compare(a.Lo, b.Lo) })
	f.Space = unwind.NewSpace(f.made(o, streams)...).Overlay(maps)
	f.mem.behind = f.behind
	if f.PID == 0 {
		f.PID = f.Threads[0].TID
	}
	if args := bytes.TrimRight(f.bytes(streams[linuxCmdLine]), "\x00"); len(args) > 0 && len(args) <= maxCommand {
		f.Command = strings.Split(string(args), "\x00")
	}
	for i := range f.Threads {
		s := &f.Threads[i].Snapshot
		s.Machine, s.Space = f.Machine, f.Space
		s.ZeroEnds = f.os <= windowsNT
		s.Mem = rows.Memory{Next: rows.WordsOf(f.Machine, &f.mem)}
	}
}

// made returns the executable memory that is no file's, sorted and disjoint: code that the process made.
func (f *File) made(o *Options, streams map[uint32]location) (maps []unwind.Mapping) {
	add := func(lo, size uint64) {
		if size > 0 && lo+size > lo && len(maps) < maxCode {
			maps = append(maps, unwind.Mapping{Lo: arch.Addr(lo), Hi: arch.Addr(lo + size)})
		}
	}
	text := f.bytes(streams[linuxMaps])
	for _, m := range procfs.ParseMappings(text[:min(len(text), maxText)]) {
		if m.Prot&procfs.Exec != 0 && m.Name == "" {
			add(m.Lo, m.Hi-m.Lo)
		}
	}
	// MINIDUMP_MEMORY_INFO_LIST: the sizes of the header and of an entry, and how many there are.
	if b := f.bytes(streams[memoryInfoList]); len(b) >= 16 && len(maps) == 0 {
		head, entry, n := uint64(le.Uint32(b)), uint64(le.Uint32(b[4:])), le.Uint64(b[8:])
		for at := head; n > 0 && entry >= 48 && at+entry <= uint64(len(b)); at, n = at+entry, n-1 {
			const commit, private, execute = 0x1000, 0x20000, 0xf0 // MEM_COMMIT, MEM_PRIVATE, PAGE_EXECUTE to PAGE_EXECUTE_WRITECOPY
			if e := b[at:]; le.Uint32(e[32:]) == commit && le.Uint32(e[36:])&execute != 0 && le.Uint32(e[40:]) == private {
				add(le.Uint64(e), le.Uint64(e[24:]))
			}
		}
	}
	slices.SortFunc(maps, func(a, b unwind.Mapping) int { return cmp.Compare(a.Lo, b.Lo) })
	end := arch.Addr(0)
	maps = slices.DeleteFunc(maps, func(m unwind.Mapping) bool {
		if m.Lo < end {
			return true
		}
		end = m.Hi
		return false
	})
	for i := range maps {
		maps[i].Module = o.Mods("//anon", "") // as other sources call it
	}
	return maps
}

// A memory is what the dump has of a process's, and behind it the files of modules. It is safe for concurrent use.
type memory struct {
	parts  []part // sorted, disjoint
	behind func(addr uint64) []byte
}

type part struct {
	lo uint64
	b  []byte
}

func (m *memory) add(lo uint64, b []byte) {
	if len(b) > 0 && lo+uint64(len(b)) > lo {
		m.parts = append(m.parts, part{lo, b})
	}
}

// finish sorts the parts and cuts those that overlap the one before.
func (m *memory) finish() {
	slices.SortStableFunc(m.parts, func(a, b part) int { return cmp.Compare(a.lo, b.lo) })
	out, end := m.parts[:0], uint64(0)
	for _, p := range m.parts {
		if p.lo < end {
			if p.lo+uint64(len(p.b)) <= end {
				continue
			}
			p.lo, p.b = end, p.b[end-p.lo:]
		}
		end = p.lo + uint64(len(p.b))
		out = append(out, p)
	}
	m.parts = out
}

// tail returns what the dump has from addr to the end of a part.
func (m *memory) tail(addr uint64) []byte {
	i := sort.Search(len(m.parts), func(i int) bool { return m.parts[i].lo > addr }) - 1
	if i < 0 || addr-m.parts[i].lo >= uint64(len(m.parts[i].b)) {
		return nil
	}
	return m.parts[i].b[addr-m.parts[i].lo:]
}

// Read8 implements rows.Reader.
func (m *memory) Read8(addr uint64) (uint64, bool) {
	var w [8]byte
	for n := 0; n < 8; {
		at := addr + uint64(n)
		b := m.tail(at)
		if len(b) == 0 && m.behind != nil {
			b = m.behind(at)
		}
		if len(b) == 0 || at < addr {
			return 0, false
		}
		n += copy(w[n:], b)
	}
	return le.Uint64(w[:]), true
}

// id is a build ID as names of files have it.
func id(b []byte) string { return hex.EncodeToString(b) }
