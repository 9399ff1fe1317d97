// Package gdbjit reads the list of code that a program has made and registered for debuggers, by GDB's JIT interface (GDB's manual, "JIT
// Compilation Interface"). Each entry is an image of code in the program's memory, with symbols and unwind information. LLVM's just-in-time
// compilers keep the list, and so do programs on top of them.
package gdbjit

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// A Memory reads memory of a process from an address on, and says whether all of b is there.
type Memory func(addr uint64, b []byte) bool

// Bounds on what a process can have registered.
const (
	maxEntries = 1 << 16
	maxImage   = 64 << 20 // bytes of one image
)

// Room is how many bytes the images of a process may have that is looked at once.
const Room = 256 << 20

// Descriptor returns the address that a file has for the variable where the list begins, __jit_debug_descriptor.
func Descriptor(img *module.Image) (v arch.Vaddr, ok bool) {
	for _, dynamic := range []bool{true, false} {
		t, _ := img.SymbolTable(dynamic)
		for i := range t.Len() {
			e := t.At(i)
			if e.Kind == module.Object && e.Section.Defined() && t.Name(e) == "__jit_debug_descriptor" {
				return arch.Vaddr(e.Value), true
			}
		}
	}
	return 0, false
}

// Read returns the images in the list whose descriptor is at an address: no more than there is room for, in bytes, and room is the less afterwards. err
// says what could not be read; the images are good all the same.
func Read(m *arch.Machine, mem Memory, descriptor uint64, room *uint64) (images []*module.Image, err error) {
	r := newReader(m, mem)
	version, _ := r.number(descriptor, 4)
	at, ok := r.number(descriptor+8+r.word, r.word) // behind version, action and the entry that was changed last
	if !ok {
		return nil, fmt.Errorf("code for debuggers: the list at %#x: %w", descriptor, errUnreadable)
	}
	if version != 1 {
		return nil, fmt.Errorf("code for debuggers: the list at %#x is of version %d", descriptor, version)
	}
	var bad []error
	seen := map[uint64]bool{}
	for n := 0; at != 0; n++ {
		if n == maxEntries || seen[at] {
			bad = append(bad, fmt.Errorf("code for debuggers: the list does not end after %d entries", n))
			break
		}
		seen[at] = true
		next, _ := r.number(at, r.word)
		file, _ := r.number(at+2*r.word, r.word)
		size, ok := r.number(at+r.size, 8)
		if !ok {
			bad = append(bad, fmt.Errorf("code for debuggers: entry %d at %#x: %w", n, at, errUnreadable))
			break
		}
		if size > min(maxImage, *room) {
			bad = append(bad, fmt.Errorf("code for debuggers: entry %d at %#x has %d bytes: too large", n, at, size))
			break
		}
		*room -= size
		img, err := read(m, mem, file, size)
		if err != nil {
			bad = append(bad, fmt.Errorf("code for debuggers: entry %d: %w", n, err))
		} else {
			images = append(images, img)
		}
		at = next
	}
	if len(bad) > 1 {
		return images, fmt.Errorf("%w; and %d more", bad[0], len(bad)-1)
	}
	return images, errors.Join(bad...)
}

var errUnreadable = errors.New("unreadable")

// read reads the image of an entry.
func read(m *arch.Machine, mem Memory, at, size uint64) (*module.Image, error) {
	name := fmt.Sprintf("[jit %#x]", at)
	b := make([]byte, size)
	if !mem(at, b) {
		return nil, fmt.Errorf("%s of %d bytes: %w", name, size, errUnreadable)
	}
	img, err := module.InMemory(name, b)
	if err == nil && img.Machine() != m {
		err = fmt.Errorf("%s is code for %s", name, img.Machine().Name)
	}
	return img, err
}

// A reader reads numbers of a process.
type reader struct {
	mem   Memory
	order binary.ByteOrder
	word  uint64 // bytes of an address
	size  uint64 // where an entry has the size of its image: eight bytes behind three addresses, which i386 alone does not align
}

func newReader(m *arch.Machine, mem Memory) *reader {
	r := &reader{mem: mem, order: binary.LittleEndian, word: m.WordSize()}
	if m.BigEndian {
		r.order = binary.BigEndian
	}
	if r.size = 3 * r.word; m.ELF != arch.EM_386 {
		r.size = (r.size + 7) &^ 7
	}
	return r
}

// number returns a number of n bytes.
func (r *reader) number(addr, n uint64) (uint64, bool) {
	var b [8]byte
	if !r.mem(addr, b[:n]) {
		return 0, false
	}
	if n == 4 {
		return uint64(r.order.Uint32(b[:])), true
	}
	return r.order.Uint64(b[:]), true
}

// Splice returns mappings with the code of images in place of the memory that is no file's. made says which mappings are of such memory; of
// makes the module of an image. Code elsewhere is not believed, nor is code where another image has some.
func Splice(maps []unwind.Mapping, images []*module.Image, made func(*unwind.Mapping) bool, of func(*module.Image) *unwind.Module) []unwind.Mapping {
	var code []unwind.Mapping
	for _, img := range images {
		var mod *unwind.Module
		for _, s := range img.Segments() {
			if s.Kind != module.Loaded || s.Perm&module.Exec == 0 || uint64(s.Vaddr)+s.Size < uint64(s.Vaddr) {
				continue
			}
			if mod == nil {
				mod = of(img)
			}
			code = append(code, unwind.Mapping{Lo: arch.Addr(s.Vaddr), Hi: arch.Addr(uint64(s.Vaddr) + s.Size), Off: s.Off, Module: mod})
		}
	}
	return Insert(maps, code, made)
}

// Insert returns mappings with pieces of code in place of the memory that is no file's, as Splice does.
func Insert(maps, code []unwind.Mapping, made func(*unwind.Mapping) bool) []unwind.Mapping {
	if len(code) == 0 {
		return maps
	}
	slices.SortStableFunc(code, func(a, b unwind.Mapping) int { return cmp.Compare(a.Lo, b.Lo) })
	maps = slices.SortedFunc(slices.Values(maps), func(a, b unwind.Mapping) int { return cmp.Compare(a.Lo, b.Lo) })
	var out []unwind.Mapping
	for i := range maps {
		m := maps[i]
		if !made(&m) {
			out = append(out, m)
			continue
		}
		for len(code) > 0 && code[0].Lo < m.Hi {
			c := code[0]
			code = code[1:]
			if c.Lo < m.Lo || c.Hi > m.Hi {
				continue
			}
			if m.Lo < c.Lo {
				before := m
				before.Hi = c.Lo
				out = append(out, before)
			}
			out = append(out, c)
			m.Off += uint64(c.Hi - m.Lo)
			m.Lo = c.Hi
		}
		if m.Lo < m.Hi {
			out = append(out, m)
		}
	}
	return out
}
