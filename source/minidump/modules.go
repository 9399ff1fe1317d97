package minidump

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/unwind"
)

// A mapped is a module of the process.
type mapped struct {
	base, size uint64
	path       string
	stamp      uint32 // of a PE file: its time, which with its size names it
	guid       []byte // of a record RSDS, as it is in memory; nil if there is none
	age        uint32
	buildID    []byte // of a record BpEL; nil if there is none

	img   *module.Image // nil: not at hand
	first uint64        // the address in the file that base has
	maps  []unwind.Mapping
}

// loadModules reads the list of modules, and finds their files.
func (f *File) loadModules(l location, o *Options) {
	for _, b := range f.list(l, "modules", 108, maxModules) {
		m := mapped{base: le.Uint64(b), size: uint64(le.Uint32(b[8:])), stamp: le.Uint32(b[16:])}
		m.path, _ = f.text(uint64(le.Uint32(b[20:])))
		cv := f.bytes(locationAt(b[76:]))
		switch {
		case len(cv) >= 24 && string(cv[:4]) == "RSDS":
			m.guid, m.age = cv[4:20], le.Uint32(cv[20:])
		case len(cv) > 4 && len(cv) <= 4+64 && string(cv[:4]) == "BpEL":
			m.buildID = cv[4:]
		}
		if m.size > 0 && m.base+m.size > m.base {
			f.modules = append(f.modules, m)
		}
	}
	slices.SortStableFunc(f.modules, func(a, b mapped) int { return cmp.Compare(a.base, b.base) })
	end := uint64(0)
	f.modules = slices.DeleteFunc(f.modules, func(m mapped) bool {
		if m.base < end {
			f.note("module %s overlaps the one before: it is left out", m.path)
			return true
		}
		end = m.base + m.size
		return false
	})
	before := o.Files.For(nil) // each file says itself which it is
	defer o.Files.For(before)
	for i := range f.modules {
		f.find(&f.modules[i], o)
	}
}

// normal returns a GUID as its text has it: numbers begin with their high bytes.
func normal(guid []byte) []byte {
	be := binary.BigEndian
	b := be.AppendUint32(nil, le.Uint32(guid))
	return append(be.AppendUint16(be.AppendUint16(b, le.Uint16(guid[4:])), le.Uint16(guid[6:])), guid[8:16]...)
}

// name returns the last element of a module's path, of any system.
func (m *mapped) name() string { return m.path[strings.LastIndexAny(m.path, `/\`)+1:] }

// keys are the names that symbol servers give a file (Breakpad's and Microsoft's; "SSQP key conventions").
func (m *mapped) keys() (keys []string) {
	if m.guid != nil {
		guid := id(normal(m.guid))
		keys = append(keys, strings.ToUpper(guid)+fmt.Sprintf("%X", m.age), guid+fmt.Sprintf("%x", m.age), "mach-uuid-"+guid, "elf-buildid-"+id(m.guid))
	}
	if m.buildID != nil {
		long := append(bytes.Clone(m.buildID), make([]byte, 16)...)
		keys = append(keys, "elf-buildid-"+id(m.buildID), strings.ToUpper(id(normal(long)))+"0")
	}
	if m.stamp != 0 {
		keys = append(keys, fmt.Sprintf("%08X%x", m.stamp, m.size), fmt.Sprintf("%08x%x", m.stamp, m.size))
	}
	return keys
}

var errNameless = errors.New("the dump does not say which file it was")

// same says why an image is another file than the module's; nil if it is that file.
func (m *mapped) same(img *module.Image) error {
	have := img.BuildID()
	switch {
	case m.buildID != nil:
		if !bytes.Equal(have, m.buildID) {
			return fmt.Errorf("build ID %x, the dump has %x", have, m.buildID)
		}
	case m.guid != nil:
		if guid := have[:min(len(have), 16)]; !bytes.Equal(guid, m.guid) && !bytes.Equal(guid, normal(m.guid)) {
			return fmt.Errorf("ID %x, the dump has %x", have, normal(m.guid))
		}
		if len(have) == 20 && isPE(img) && binary.BigEndian.Uint32(have[16:]) != m.age {
			return fmt.Errorf("age %d, the dump has %d", binary.BigEndian.Uint32(have[16:]), m.age)
		}
	case m.stamp != 0:
		if stamp, size, ok := stampOf(img); !ok || stamp != m.stamp || uint64(size) != m.size {
			return fmt.Errorf("time %#x and %#x bytes, the dump has %#x and %#x", stamp, size, m.stamp, m.size)
		}
	default:
		return errNameless
	}
	return nil
}

func isPE(img *module.Image) bool { _, _, ok := stampOf(img); return ok }

// stampOf returns the time and the size in memory that a PE file's headers have (PE format, "COFF File Header", "Optional Header").
func stampOf(img *module.Image) (stamp, size uint32, ok bool) {
	b := img.Bytes()
	if len(b) < 0x40 || string(b[:2]) != "MZ" {
		return 0, 0, false
	}
	at := uint64(le.Uint32(b[0x3c:]))
	if at > uint64(len(b)) || uint64(len(b))-at < 24+60 {
		return 0, 0, false
	}
	return le.Uint32(b[at+8:]), le.Uint32(b[at+24+56:]), true
}

// fits says why an image cannot be the module's.
func (f *File) fits(m *mapped, img *module.Image) error {
	if have := img.Machine(); have != f.Machine {
		return &module.MachineError{Path: img.Name(), Have: have.Name, Want: f.Machine.Name}
	}
	return m.same(img)
}

// find finds a module's file, and says where its code is.
func (f *File) find(m *mapped, o *Options) {
	same := func(img *module.Image) error { return f.fits(m, img) }
	var why error
	try := func(w module.Wanted) bool {
		w.Same = same
		img, _, refused := o.Files.Search(w)
		for _, r := range refused {
			if r.Opened && why == nil {
				why = fmt.Errorf("%s: %w", r.Path, r.Err)
			}
		}
		if img != nil {
			f.images, m.img = append(f.images, img), img
		}
		return img != nil
	}
	name, found := m.name(), false
	if name != "" && name != "." && name != ".." {
		dirs := slices.Concat(o.Files.Dirs, o.Files.DebugRoots())
		if o.Files.Sysroot != "" {
			dirs = append([]string{o.Files.Sysroot}, dirs...)
		}
		for _, dir := range dirs {
			for _, key := range m.keys() {
				found = found || try(module.Wanted{First: filepath.Join(dir, name, key, name)})
			}
			found = found || try(module.Wanted{First: filepath.Join(dir, name)})
		}
	}
	w := module.Wanted{BuildID: id(m.buildID)}
	if strings.HasPrefix(m.path, "/") && !strings.HasPrefix(m.path, "/proc/") && !strings.HasPrefix(m.path, "/sys/") && !strings.HasPrefix(m.path, "/dev/") {
		w.Path = filepath.Clean(m.path)
	}
	if found = found || try(w); !found {
		if why == nil {
			why = fmt.Errorf("%s: no such file", cmp.Or(m.path, "a module without a name"))
		}
		f.note("%v; frames in %s are found without it", why, cmp.Or(name, fmt.Sprintf("what is at %#x", m.base)))
		mod := unwind.NewModule(m.path, "", nil)
		if m.buildID != nil && m.path != "" {
			mod = o.Mods(m.path, id(m.buildID)) // there may be a file of symbols
		}
		m.maps = []unwind.Mapping{{Lo: arch.Addr(m.base), Hi: arch.Addr(m.base + m.size), Module: mod}}
		return
	}
	f.place(m, o.Image(m.img))
}

// place maps the code of a module's image. base is where the page of its lowest address is.
func (f *File) place(m *mapped, mod *unwind.Module) {
	const page = 1 << 12
	m.first = ^uint64(0)
	segments := m.img.Segments()
	for _, s := range segments {
		if s.Kind == module.Loaded {
			m.first = min(m.first, uint64(s.Vaddr)&^(page-1))
		}
	}
	for _, s := range segments {
		lo := uint64(s.Vaddr) - m.first
		if s.Kind != module.Loaded || s.Perm&module.Exec == 0 || lo >= m.size {
			continue
		}
		size := min(s.MemSize, m.size-lo)
		m.maps = append(m.maps, unwind.Mapping{Lo: arch.Addr(m.base + lo), Hi: arch.Addr(m.base + lo + size), Off: s.Off, Module: mod})
	}
}

// behind returns what a module's file has at addr, where it cannot be written.
func (f *File) behind(addr uint64) []byte {
	i := sort.Search(len(f.modules), func(i int) bool { return f.modules[i].base > addr }) - 1
	if i < 0 || f.modules[i].img == nil || addr-f.modules[i].base >= f.modules[i].size {
		return nil
	}
	m := &f.modules[i]
	v := addr - m.base + m.first
	for _, s := range m.img.Segments() {
		if s.Kind == module.Loaded && s.Perm&module.Write == 0 && v-uint64(s.Vaddr) < s.Size {
			off := s.Off + v - uint64(s.Vaddr)
			if b := m.img.Bytes(); off < uint64(len(b)) {
				return b[off:min(off+s.Size-(v-uint64(s.Vaddr)), uint64(len(b)))]
			}
		}
	}
	return nil
}
