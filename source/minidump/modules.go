package minidump

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/printable"
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
	why   error         // what was wrong with the file; nil if it is at hand
	first uint64        // the address in the file that base has
	mod   *unwind.Module
	maps  []unwind.Mapping
}

// elfID is the signature of a record with an ELF file's build ID (MD_CVINFOELF_SIGNATURE of Breakpad: 0x4270454c).
const elfID = "LEpB"

// listModules reads the list of modules.
func (f *File) listModules(l location) {
	for i, b := range f.list(l, "modules", 108, maxModules) {
		m := mapped{base: le.Uint64(b), size: uint64(le.Uint32(b[8:])), stamp: le.Uint32(b[16:])}
		m.path, _ = f.text(uint64(le.Uint32(b[20:])))
		if i == 0 {
			f.Exe = m.path // all writers put the program first
		}
		cv := f.bytes(locationAt(b[76:]))
		switch {
		case len(cv) >= 24 && string(cv[:4]) == "RSDS" && !zero(cv[4:20]):
			m.guid, m.age = cv[4:20], le.Uint32(cv[20:])
		case len(cv) > 4 && len(cv) <= 4+64 && string(cv[:4]) == elfID && !zero(cv[4:]):
			m.buildID = cv[4:]
		}
		if m.size > 0 && m.base+m.size > m.base {
			f.modules = append(f.modules, m)
		}
	}
	slices.SortStableFunc(f.modules, func(a, b mapped) int { return cmp.Compare(a.base, b.base) })
	last := mapped{}
	f.modules = slices.DeleteFunc(f.modules, func(m mapped) bool {
		if m.base < last.base+last.size {
			if m.base != last.base || m.path != last.path { // some writers list the program twice
				f.note("module %s overlaps the one before: it is left out", m.path)
			}
			return true
		}
		last = m
		return false
	})
}

// served says where symbol servers have a module's file, in words; "" if the dump does not tell.
func (f *File) served(m *mapped) string {
	name, key := m.name(), ""
	switch {
	case m.buildID != nil:
		key = "elf-buildid-" + id(m.buildID)
	case f.os <= windowsNT && m.stamp != 0:
		name, key = strings.ToLower(name), fmt.Sprintf("%08X%x", m.stamp, m.size)
	case m.guid != nil && (f.os == macOS || f.os == iOS):
		key = "mach-uuid-" + id(normal(m.guid))
	}
	if name == "" || key == "" {
		return ""
	}
	return fmt.Sprintf(" (symbol servers have it as %s/%s/%s)", name, key, name)
}

// zero says that an ID is none: writers that know none write zeros.
func zero(id []byte) bool { return len(bytes.Trim(id, "\x00")) == 0 }

// findModules finds the modules' files.
func (f *File) findModules(o *Options) {
	before := o.Files.For(nil) // each file says itself which it is
	defer o.Files.For(before)
	dirs := f.libraryDirs()
	for i := range f.modules {
		m := &f.modules[i]
		if j := i - 1; j >= 0 && f.modules[j].holds(m) {
			m.img, m.mod, m.first = f.modules[j].img, f.modules[j].mod, f.modules[j].first+m.base-f.modules[j].base
			f.place(m)
			continue
		}
		f.find(m, dirs, o)
	}
	if f.fromMemory > 0 {
		f.note("%s rebuilt from the dump's memory, without files", printable.Count(f.fromMemory, "module is", "modules are"))
	}
}

// holds says whether another module is a later piece of the same file: Breakpad lists the parts of a file with a gap one by one.
func (m *mapped) holds(next *mapped) bool {
	if m.img == nil || m.path != next.path || !bytes.Equal(m.buildID, next.buildID) || !bytes.Equal(m.guid, next.guid) {
		return false
	}
	v := m.first + next.base - m.base
	return slices.ContainsFunc(m.img.Segments(), func(s module.Segment) bool {
		return s.Kind == module.Loaded && v-uint64(s.Vaddr)&^(page-1) < s.MemSize+page
	})
}

// libraryDirs are directories of libraries: Crashpad names libraries of Linux as programs ask for them, without directories.
func (f *File) libraryDirs() (dirs []string) {
	if f.os != linux && f.os != android {
		return nil
	}
	if dir := path.Dir(f.Exe); path.IsAbs(dir) {
		dirs = append(dirs, dir)
	}
	for _, top := range []string{"/lib", "/usr/lib"} {
		if triplet := f.Machine.Triplet; triplet != "" {
			dirs = append(dirs, top+"/"+triplet)
		}
		if f.Machine.WordSize() == 8 {
			dirs = append(dirs, top+"64")
		} else {
			dirs = append(dirs, top+"32")
		}
		dirs = append(dirs, top)
	}
	return append(dirs, "/usr/local/lib")
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
		if m.age != 0 { // the end of a build ID of 20 bytes
			keys = append(keys, "elf-buildid-"+id(le.AppendUint32(bytes.Clone(m.guid), m.age)))
		}
	}
	if m.buildID != nil {
		long := append(bytes.Clone(m.buildID), make([]byte, 20)...)
		keys = append(keys, "elf-buildid-"+id(m.buildID), strings.ToUpper(id(normal(long)))+"0")
		if len(m.buildID) < 20 { // Microsoft's servers fill it up
			keys = append(keys, "elf-buildid-"+id(long[:20]))
		}
	}
	if m.stamp != 0 {
		keys = append(keys, fmt.Sprintf("%08X%x", m.stamp, m.size), fmt.Sprintf("%08x%x", m.stamp, m.size), fmt.Sprintf("%08X%X", m.stamp, m.size))
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
		if len(have) == 0 && img.Format() == "ELF" {
			have = textSum(img)
		}
		if guid := append(bytes.Clone(have), make([]byte, 16)...)[:16]; !bytes.Equal(guid, m.guid) && !bytes.Equal(guid, normal(m.guid)) {
			return fmt.Errorf("ID %x, the dump has %x", have, normal(m.guid))
		}
		if _, _, pe := img.Stamp(); pe && len(have) == 20 && binary.BigEndian.Uint32(have[16:]) != m.age {
			return fmt.Errorf("age %d, the dump has %d", binary.BigEndian.Uint32(have[16:]), m.age)
		}
	case m.stamp != 0:
		if stamp, size, ok := img.Stamp(); !ok || stamp != m.stamp || uint64(size) != m.size {
			return fmt.Errorf("time %#x and %#x bytes, the dump has %#x and %#x", stamp, size, m.stamp, m.size)
		}
	default:
		return errNameless
	}
	return nil
}

// textSum is what Breakpad takes for the ID of an ELF file without a build ID: the words of 16 bytes at the beginning of its .text, exclusive or, up to
// 4,096 bytes. The last one may reach into what lies behind. nil: the file has no .text.
func textSum(img *module.Image) []byte {
	for i := range img.Sections() {
		s := &img.Sections()[i]
		if s.Name != ".text" || s.Empty || s.Off > uint64(len(img.Bytes())) {
			continue
		}
		sum := make([]byte, 16)
		b := img.Bytes()[s.Off:]
		for i := range min((min(s.Size, 4096)+15)&^15, uint64(len(b))) {
			sum[i%16] ^= b[i]
		}
		return sum
	}
	return nil
}

// fits says why an image cannot be the module's.
func (f *File) fits(m *mapped, img *module.Image) error {
	if have := img.Machine(); have != f.Machine {
		return fmt.Errorf("it is for %s, the process was of %s", have.Name, f.Machine.Name)
	}
	return m.same(img)
}

// find finds a module's file, and says where its code is. dirs may have libraries that the dump names without a directory.
func (f *File) find(m *mapped, dirs []string, o *Options) {
	same := func(img *module.Image) error { return f.fits(m, img) }
	try := func(w module.Wanted) bool {
		w.Same = same
		img, _, refused := o.Files.Search(w)
		for _, r := range refused {
			if r.Opened && m.why == nil {
				m.why = fmt.Errorf("%s: %w", r.Path, r.Err)
			}
		}
		if img != nil {
			f.images, m.img = append(f.images, img), img
		}
		return img != nil
	}
	found := false
	name := m.name()
	named := name != "" && name != "." && name != ".."
	if named {
		names := []string{name}
		if lower := strings.ToLower(name); f.os <= windowsNT && lower != name { // names of Windows have no case, and its symbol servers' are small
			names = append(names, lower)
		}
		roots := slices.Concat(o.Files.Dirs, o.Files.DebugRoots())
		if o.Files.Sysroot != "" {
			roots = append([]string{o.Files.Sysroot}, roots...)
		}
		for _, dir := range roots {
			for _, name := range names {
				for _, key := range m.keys() {
					found = found || try(module.Wanted{First: filepath.Join(dir, name, key, name)})
				}
				found = found || try(module.Wanted{First: filepath.Join(dir, name)})
			}
		}
		if on := f.onDrive(o.Files.Sysroot, m.path); on != "" {
			found = found || try(module.Wanted{First: on})
		}
		if m.path == name {
			for _, dir := range dirs {
				found = found || try(module.Wanted{Path: path.Join(dir, name)})
			}
		}
	}
	w := module.Wanted{BuildID: id(m.buildID)}
	if strings.HasPrefix(m.path, "/") && !strings.HasPrefix(m.path, "/proc/") && !strings.HasPrefix(m.path, "/sys/") && !strings.HasPrefix(m.path, "/dev/") {
		w.Path = filepath.Clean(m.path)
	}
	found = found || try(w)
	if !found {
		if m.img = f.rebuilt(m); m.img != nil {
			f.images, found = append(f.images, m.img), true
			f.fromMemory++
		}
	}
	if !found {
		if m.why == nil {
			m.why = fmt.Errorf("%s: no such file%s", cmp.Or(m.path, "a module without a name"), f.served(m))
		}
		m.mod = unwind.NewModule(m.path, "", nil)
		if m.buildID != nil && m.path != "" {
			m.mod = o.Mods(m.path, id(m.buildID)) // there may be a file of symbols
		}
		m.maps = []unwind.Mapping{{Lo: arch.Addr(m.base), Hi: arch.Addr(m.base + m.size), Module: m.mod}}
		return
	}
	m.mod, m.why, m.first = o.Image(m.img), nil, ^uint64(0)
	for _, s := range m.img.Segments() {
		if s.Kind == module.Loaded {
			m.first = min(m.first, uint64(s.Vaddr)&^(page-1)) // base is where the page of the lowest address is
		}
	}
	f.place(m)
}

// rebuilt makes a PE image of what the dump's memory has of a module; nil where it lacks a part.
func (f *File) rebuilt(m *mapped) *module.Image {
	if f.os > windowsNT || f.copied+m.size > uint64(len(f.b)) { // ranges of a dump that lies share bytes of the file
		return nil
	}
	for at := uint64(0); at < m.size; { // before memory is taken for a size that nobody has
		n := len(f.mem.tail(m.base + at))
		if n == 0 {
			return nil
		}
		at += uint64(n)
	}
	f.copied += m.size
	b := make([]byte, 0, m.size)
	for uint64(len(b)) < m.size {
		tail := f.mem.tail(m.base + uint64(len(b)))
		b = append(b, tail[:min(uint64(len(tail)), m.size-uint64(len(b)))]...)
	}
	img, err := module.LoadedPE(m.path, b)
	if err != nil {
		return nil
	}
	if err := f.fits(m, img); err != nil && err != errNameless {
		img.Close()
		return nil
	}
	return img
}

// onDrive returns where a path of Windows leads below a directory that has what its drive has; "" where it leads nowhere. Upper and lower case are the same.
func (f *File) onDrive(root, name string) string {
	drive, rest, ok := strings.Cut(name, `:\`)
	if !ok || len(drive) != 1 || root == "" || strings.Contains(rest, "/") {
		return ""
	}
	at := root
	for part := range strings.SplitSeq(rest, `\`) {
		if part == "" || part == "." || part == ".." {
			return ""
		}
		if next := filepath.Join(at, part); exists(next) {
			at = next
			continue
		}
		names, known := f.dirs[at]
		if !known {
			entries, _ := os.ReadDir(at)
			names = map[string]string{}
			for _, e := range entries {
				names[strings.ToLower(e.Name())] = e.Name()
			}
			f.dirs[at] = names
		}
		next, ok := names[strings.ToLower(part)]
		if !ok {
			return ""
		}
		at = filepath.Join(at, next)
	}
	return at
}

func exists(name string) bool { _, err := os.Lstat(name); return err == nil }

const page = 1 << 12

// place maps the code of a module's image, as far as the module reaches.
func (f *File) place(m *mapped) {
	for _, s := range m.img.Segments() {
		if s.Kind != module.Loaded || s.Perm&module.Exec == 0 {
			continue
		}
		lo, off := uint64(s.Vaddr)-m.first, s.Off // from base
		hi := lo + s.MemSize
		if uint64(s.Vaddr) < m.first { // it begins before this piece
			if hi = uint64(s.Vaddr) + s.MemSize - m.first; uint64(s.Vaddr)+s.MemSize <= m.first {
				continue
			}
			lo, off = 0, off+m.first-uint64(s.Vaddr)
		}
		if hi = min(hi, m.size); lo < hi {
			m.maps = append(m.maps, unwind.Mapping{Lo: arch.Addr(m.base + lo), Hi: arch.Addr(m.base + hi), Off: off, Module: m.mod})
		}
	}
}

// Missing returns a note for each module that is used and whose file is not at hand, and one that counts such modules that are not used. A dump may have
// hundreds of modules, of which its stacks show few.
func (f *File) Missing(used func(*unwind.Module) bool) (notes []string) {
	others := 0
	for i := range f.modules {
		m := &f.modules[i]
		if m.why == nil {
			continue
		}
		if !used(m.mod) {
			others++
			continue
		}
		note := printable.Marked(fmt.Sprintf("%v; frames in %s are found without it", m.why, cmp.Or(m.name(), fmt.Sprintf("what is at %#x", m.base))))
		if !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
	}
	switch {
	case others == 1:
		notes = append(notes, "the file of 1 other module is not at hand; no stack shows it")
	case others > 1:
		notes = append(notes, fmt.Sprintf("the files of %d other modules are not at hand; no stack shows them", others))
	}
	return notes
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
