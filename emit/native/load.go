package native

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// A Code is an eh_elf file that is loaded. Code for AArch64 can be loaded
// elsewhere, for proofs: then Find and Apply know nothing. One of layout Page or Tree and memory kind Slice is a rows.Stepper. It is safe for
// concurrent use until Close; one that nobody has any more is unmapped by the garbage collector.
type Code struct {
	mem  []byte // the file: readable, and executable on its own machine
	host bool   // this program runs on the code's machine; else the code is interpreted
	in   info
	id   string
	base uintptr
	dir  []byte // offsets of the rules

	unmap runtime.Cleanup // when nobody has c any more; so what reads mem keeps c alive
}

// ErrHost says that code is for another machine than the one where this program runs.
var ErrHost = errors.New("machine code for another machine cannot run here")

// Load makes a file that Emit returned executable, after checking it. b is copied.
func Load(b []byte) (*Code, error) {
	in, id, err := check(b)
	if err != nil {
		return nil, err
	}
	prot, err := protection(in)
	if err != nil {
		return nil, err
	}
	m, err := unix.Mmap(-1, 0, len(b), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("memory for machine code: %w", err)
	}
	copy(m, b)
	if err := unix.Mprotect(m, prot); err != nil {
		unix.Munmap(m)
		return nil, fmt.Errorf("memory for machine code: %w", err)
	}
	return loaded(m, in, id), nil
}

// Open maps a file. It refuses a damaged file, and a file that other users than this one and root could have written: its code is going to be
// run.
func Open(path string) (*Code, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Size > maxSize || st.Size < headSize:
		return nil, fmt.Errorf("%s: not an eh_elf file", path)
	case st.Uid != 0 && int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0:
		return nil, fmt.Errorf("%s: users other than you and root can write this code: chown it, or chmod go-w", path)
	}
	m, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	in, id, err := check(m)
	prot := 0
	if err == nil {
		prot, err = protection(in)
	}
	if err == nil && prot&unix.PROT_EXEC != 0 {
		err = unix.Mprotect(m, prot)
	}
	if err != nil {
		unix.Munmap(m)
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return loaded(m, in, id), nil
}

// protection is that of the memory of a file: executable where this program can call it.
func protection(in info) (int, error) {
	m := arch.ByELF(uint16(in.Machine))
	switch {
	case callable(m):
		return unix.PROT_READ | unix.PROT_EXEC, nil
	case targets[m].interpreted:
		return unix.PROT_READ, nil
	}
	return 0, ErrHost
}

func loaded(m []byte, in info, id string) *Code {
	c := &Code{mem: m, in: in, host: callable(arch.ByELF(uint16(in.Machine))), id: id, base: uintptr(unsafe.Pointer(unsafe.SliceData(m))), dir: m[in.Rules:][:4*in.NumRules]}
	c.unmap = runtime.AddCleanup(c, func(m []byte) { unix.Munmap(m) }, m)
	return c
}

// An Error describes a fault in a file, and its byte.
type Error struct {
	Off int
	Msg string
}

func (e *Error) Error() string { return fmt.Sprintf("eh_elf+%#x: %s", e.Off, e.Msg) }

// check finds the notes of a file and checks what they say. Its errors are of type *Error.
func check(b []byte) (in info, id string, err error) {
	bad := func(off int, format string, args ...any) (info, string, error) {
		return info{}, "", &Error{off, fmt.Sprintf(format, args...)}
	}
	if len(b) < headSize || string(b[:4]) != "\x7fELF" || len(b) > maxSize {
		return bad(0, "not an ELF file of %d to %d bytes", headSize, maxSize)
	}
	at, n := 0, 0
	for i := range uint64(le.Uint16(b[hdrPhnum:])) {
		p := le.Uint64(b[hdrPhoff:]) + i*progSize
		if p > uint64(len(b)) || uint64(len(b))-p < progSize {
			return bad(hdrPhoff, "program header %d lies outside of the file", i)
		}
		if elf.ProgType(le.Uint32(b[p:])) == elf.PT_NOTE {
			off, size := le.Uint64(b[p+8:]), le.Uint64(b[p+32:])
			if off > uint64(len(b)) || size > uint64(len(b))-off {
				return bad(int(p)+8, "the notes lie outside of the file")
			}
			at, n = int(off), int(size)
		}
	}
	end, infoAt := at+n, 0
	for at+12 <= end {
		nameSize, descSize, typ := uint64(le.Uint32(b[at:])), uint64(le.Uint32(b[at+4:])), le.Uint32(b[at+8:])
		desc := uint64(at) + 12 + (nameSize+3)&^3
		if desc > uint64(end) || descSize > uint64(end)-desc {
			return bad(at, "a note lies outside of the others")
		}
		if string(b[at+12:min(at+12+int(nameSize), end)]) == noteOwner {
			switch {
			case typ == noteInfo && descSize == infoSize:
				infoAt = int(desc)
			case typ == noteID:
				id = string(b[desc:][:descSize])
			}
		}
		at = int(desc + (descSize+3)&^3)
	}
	if infoAt == 0 {
		return bad(end-n, "%d bytes of notes, and none of unspool", n)
	}
	binary.Read(bytes.NewReader(b[infoAt:][:infoSize]), le, &in)
	size := uint64(len(b))
	switch {
	case in.Version != Version:
		return bad(infoAt+int(unsafe.Offsetof(in.Version)), "version %d, not %d", in.Version, Version)
	case uint64(in.Size) != size:
		return bad(infoAt+int(unsafe.Offsetof(in.Size)), "%d bytes, not %d", size, in.Size)
	case in.Checksum != checksum(b, infoAt+infoChecksum):
		return bad(infoAt+infoChecksum, "checksum %#x, not %#x: the file is damaged", checksum(b, infoAt+infoChecksum), in.Checksum)
	case in.Machine > math.MaxUint16, targets[arch.ByELF(uint16(in.Machine))].lower == nil, in.Layout >= uint8(numLayouts), in.Deref >= uint8(numDerefs):
		return bad(infoAt+int(unsafe.Offsetof(in.Layout)), "machine %d, layout %d, memory %d", in.Machine, in.Layout, in.Deref)
	case uint64(in.Rules)+4*uint64(in.NumRules) > size:
		return bad(infoAt+int(unsafe.Offsetof(in.Rules)), "%d rules at %#x of %#x", in.NumRules, in.Rules, size)
	case in.TextLo > in.TextHi, uint64(in.TextHi) > size:
		return bad(infoAt+int(unsafe.Offsetof(in.TextLo)), "code at [%#x, %#x) of %#x", in.TextLo, in.TextHi, size)
	}
	o := Options{Layout: Layout(in.Layout)}
	for i, e := range in.Entries {
		if o.has(i) != (e != 0) || e != 0 && (e < in.TextLo || e >= in.TextHi) {
			return bad(infoAt+int(unsafe.Offsetof(in.Entries))+4*i, "%s at %#x, outside of the code", entryNames[i], e)
		}
	}
	for i := range in.NumRules {
		at := in.Rules + 4*i
		if e := le.Uint32(b[at:]) &^ (1 << 31); e < in.TextLo || e >= in.TextHi {
			return bad(int(at), "rule %d at %#x, outside of the code", i, e)
		}
	}
	return in, id, nil
}

// Close unmaps the code, which nobody may be using.
func (c *Code) Close() error {
	c.unmap.Stop()
	return unix.Munmap(c.mem)
}

// Callable says whether this program runs on the machine that the code is for.
func (c *Code) Callable() bool { return c.host }

// ID returns the ID of the module that the file was made for.
func (c *Code) ID() string { return c.id }

// Layout and Deref say how the file was made.
func (c *Code) Layout() Layout { return Layout(c.in.Layout) }

// Deref says how the code reads memory.
func (c *Code) Deref() Deref { return Deref(c.in.Deref) }

// Bytes returns the file, which is there as long as somebody has c.
func (c *Code) Bytes() []byte { return c.mem }

// TextSize returns the size of the machine code, in bytes.
func (c *Code) TextSize() int { return int(c.in.TextHi - c.in.TextLo) }

// Find implements rows.Stepper.
func (c *Code) Find(pc arch.Vaddr) (uint32, bool) {
	e := c.in.Entries[entryFind]
	if e == 0 || !c.host {
		return 0, false
	}
	id := uint32(callFind(c.base+uintptr(e), uintptr(pc)))
	runtime.KeepAlive(c)
	return id, id != 0
}

// Signal implements rows.Stepper.
func (c *Code) Signal(id uint32) bool {
	is := 4*uint64(id)+4 <= uint64(len(c.dir)) && le.Uint32(c.dir[4*id:])>>31 != 0
	runtime.KeepAlive(c)
	return is
}

// SyncOnly implements rows.Stepper. Emit takes no such rules.
func (c *Code) SyncOnly(uint32) bool { return false }

// A slice is unspool_slice: memory for code of kind Slice.
type slice struct {
	lo    uint64
	size  uint64
	bytes *byte
	words *word
	n     uint64
	more  uint64 // a word that is in neither is to be looked up, and the step to be done again

	addresses uint64 // selects the address in a signed return address; 0: 48 bits. For AArch64 only
}

// A word is unspool_word.
type word struct{ addr, value, ok uint64 }

// maxWords bounds the words outside of the captured stack that one step may read. Steps of compilers' rules read one.
const maxWords = 256

// Apply implements rows.Stepper, for a file of kind Slice. A step that reads more than 256 words outside of the captured
// stack is given up as unreadable; only hostile expressions do.
func (c *Code) Apply(id uint32, s *rows.State, m *rows.Memory) rows.Outcome {
	if 4*uint64(id)+4 > uint64(len(c.dir)) || Deref(c.in.Deref) != Slice || !c.host {
		return rows.NoRule
	}
	mem := slice{lo: m.Lo, size: uint64(len(m.Bytes)), bytes: unsafe.SliceData(m.Bytes), addresses: m.Addresses}
	fn := c.base + uintptr(le.Uint32(c.dir[4*id:])&^(1<<31))
	if c.in.Machine == uint32(arch.EM_AARCH64) {
		fn = c.base + uintptr(c.in.Entries[entryApply]) // rules take the link from there
	}
	var o rows.Outcome
	if m.Next == nil && !m.Tags {
		o = rows.Outcome(call(fn, unsafe.Pointer(s), unsafe.Pointer(&mem), uintptr(id)) & 0xff)
	} else {
		o = applyMore(fn, id, s, m, &mem)
	}
	runtime.KeepAlive(c)
	return o
}

// applyMore looks up the words that a step asks for.
func applyMore(fn uintptr, id uint32, s *rows.State, m *rows.Memory, mem *slice) rows.Outcome {
	fault := s.Fault
	var few [4]word
	words := few[:0]
	mem.more = 1
	for {
		o := rows.Outcome(call(fn, unsafe.Pointer(s), unsafe.Pointer(mem), uintptr(id)) & 0xff)
		if o != needWord {
			return o
		}
		if len(words) == maxWords {
			return rows.Unreadable
		}
		w := word{addr: s.Fault}
		s.Fault = fault
		if v, ok := m.Load(w.addr); ok {
			w.value, w.ok = v, 1
		}
		words = append(words, w)
		mem.words, mem.n = unsafe.SliceData(words), uint64(len(words))
	}
}
