package corefile

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/source/gdbjit"
	"github.com/unspool/unspool/source/libgcc"
	"github.com/unspool/unspool/unwind"
)

// An object is an ELF file whose code was mapped.
type object struct {
	path string           // as the core says, without dots: to open a device may do something
	head []byte           // what the core's memory has of its beginning; nil if nothing
	top  *module.Image    // the same, as a file; nil if it is none
	id   []byte           // its build ID, by head; nil if unknown
	segs []module.Segment // by head, or by img
	base []uint64         // where its first page was mapped, rising, maxBases at most
	img  *module.Image    // the same file on this machine; nil if there is none
	mod  *unwind.Module

	ranges []int // of it, in File.files
}

// maxBases: a program may map its own file as data, too, and a page that all segments share is mapped for each.
const maxBases = 4

// deleted is what the kernel appends to the path of a file that has none any more.
const deleted = " (deleted)"

// headSize is how much of a file's beginning is looked at. Headers and the note of the build ID are in the first page.
const headSize = 1 << 16

// page is the least size of a page. So much of two files' beginnings is compared where there is no build ID: the kernel dumps a page.
const page = 1 << 12

// pageSize returns the size of the process's pages: Linux has some of 4, 16 and 64 KiB. Mappings of segments begin and end with one.
func (f *File) pageSize() uint64 {
	if n := f.auxv[atPAGESZ]; n >= page && n <= 1<<16 && n&(n-1) == 0 {
		return n
	}
	return page
}

// findObjects groups the mappings of NT_FILE by path and looks for the files whose code was mapped.
func (f *File) findObjects(o *Options) {
	byPath := map[string]*object{}
	room := uint64(len(f.b)) // segments that lie in the same bytes are no reason to read more than there is
	for i := range f.files {
		r := &f.files[i]
		if seg := f.mem.find(r.lo); seg != nil {
			r.flags = seg.flags
		}
		obj := byPath[r.path]
		if obj == nil {
			obj = &object{path: filepath.Clean(r.path)}
			byPath[r.path] = obj
		}
		if r.off == 0 && len(obj.base) < maxBases {
			obj.base = append(obj.base, r.lo)
		}
		if r.off == 0 && obj.head == nil {
			obj.readHead(f.mem.tail(r.lo), min(r.hi-r.lo, room))
			room -= uint64(len(obj.head))
		}
		r.object = obj
		obj.ranges = append(obj.ranges, i)
	}
	var unchecked []string
	located := 0
	exe := f.exe()
	if exe != nil {
		f.Exe = strings.TrimSuffix(exe.path, deleted)
	} else if o.Exe != "" {
		f.notes.add("%s is not used: the core does not say where its program was mapped", o.Exe)
	}
	for i := range f.files {
		r := &f.files[i]
		if f.mem.find(r.lo) == nil { // gcore leaves out what it does not dump
			r.flags = r.object.flagsAt(r, f.pageSize())
		}
		if r.flags&pfX == 0 || r.object.mod != nil {
			continue
		}
		if located++; located > maxCode {
			f.notes.add("more than %d files with code: the others are left out", maxCode)
			break
		}
		if f.locate(r.object, r.object == exe, o) {
			unchecked = append(unchecked, r.path)
		}
	}
	if len(unchecked) > 0 {
		list := strings.Join(unchecked[:min(len(unchecked), 3)], ", ")
		if len(unchecked) > 3 {
			list += ", …"
		}
		f.notes.add("%d files cannot be checked, because the core lacks their first page; they are taken as they are now: %s", len(unchecked), list)
	}
	f.mem.files = f.files
}

// readHead takes what it can from the beginning of a file, of which size bytes were mapped.
func (obj *object) readHead(b []byte, size uint64) {
	obj.head = b[:min(uint64(len(b)), size, headSize)]
	// Only what lies in the head is of interest.
	if img, err := module.New(obj.path, obj.head); err == nil {
		obj.top, obj.id, obj.segs = img, img.BuildID(), img.Segments()
	} else if !errors.Is(err, module.ErrTruncated) {
		obj.head = nil
	}
}

// flagsAt returns how the program headers map the range; pfW alone, which nothing is done with, where they do not say. Addresses tell
// segments apart: a page of the file that several segments share is mapped for each of them, and a small file may have no other page.
// Where the range is not at an address that the file's beginning leads to, offsets tell: a shared page begins the later mapping.
func (obj *object) flagsAt(r *fileRange, page uint64) uint32 {
	flags, off := uint32(pfW), r.off
	if k := slices.IndexFunc(obj.segs, func(s module.Segment) bool { return s.Kind == module.Loaded && s.Off < page }); k >= 0 {
		first := uint64(obj.segs[k].Vaddr) &^ (page - 1)
		for _, base := range obj.base { // rising: a later segment's mapping of a shared page is no beginning
			at := r.lo - base + first
			for i := range obj.segs {
				s := &obj.segs[i]
				lo := uint64(s.Vaddr) &^ (page - 1)
				if s.Kind == module.Loaded && at-lo < uint64(s.Vaddr)-lo+s.Size && off == s.Off&^(page-1)+at-lo {
					return uint32(s.Perm)
				}
			}
		}
	}
	for i := range obj.segs {
		s := &obj.segs[i]
		lo := s.Off &^ (page - 1)
		if s.Kind == module.Loaded && off-lo < s.Off-lo+s.Size && (flags == pfW || off == lo) {
			flags = uint32(s.Perm)
		}
	}
	return flags
}

// exe returns the executable: it has the program headers that the kernel told the program of.
func (f *File) exe() *object {
	if at := f.auxv[atPHDR]; at != 0 {
		for i := range f.files {
			if r := &f.files[i]; at >= r.lo && at < r.hi {
				return r.object
			}
		}
	}
	return nil
}

// locate finds the file of an object on this machine and makes the object's module. unchecked says that nothing tells whether
// it is the same file.
func (f *File) locate(obj *object, isExe bool, o *Options) (unchecked bool) {
	path, id := strings.TrimSuffix(obj.path, deleted), hex.EncodeToString(obj.id)
	w := module.Wanted{BuildID: id, Same: func(img *module.Image) error {
		if img.Machine() != f.Machine {
			return &module.MachineError{Path: img.Name(), Have: img.Machine().Name, Want: f.Machine.Name}
		}
		return obj.same(img)
	}}
	if isExe {
		w.First = o.Exe
	}
	if !strings.HasPrefix(path, "/proc/") && !strings.HasPrefix(path, "/sys/") {
		w.Path = path
	}
	img, in, refused := f.search(w, o)
	why, changed := fmt.Sprintf("%s: %v", obj.path, fs.ErrNotExist), false
	var foreign *module.MachineError
	for _, r := range refused {
		switch {
		case errors.As(r.Err, &foreign):
			if why = foreign.Error(); r.Path == w.First {
				f.notes.add("not the program of this core: %s", why)
			}
		case !r.Opened:
			f.notes.add("%v", r.Err)
		case r.Path == w.First:
			f.notes.add("%s is not the program of this core: %v", r.Path, r.Err)
		case !changed:
			changed, why = true, fmt.Sprintf("%s has changed since: %v", r.Path, r.Err)
		}
	}
	if img != nil {
		obj.img, obj.segs = img, img.Segments()
		switch {
		case id == "": // what a path leads to could be another file the next time
			obj.mod = o.Image(img)
			obj.mod.BuildID = "" // the core does not say which it was
		case in != 0:
			obj.mod = o.Mods(path, id)
		default:
			obj.mod = o.Mods(img.Name(), id)
		}
		return obj.head == nil
	}
	if img := f.fromMemory(obj); img != nil {
		f.notes.add("%s; what the core's memory has of it is used", why)
		obj.mod = o.Image(img)
		return false
	}
	if obj.top != nil && id != "" && o.Kept != nil {
		if obj.mod = o.Kept(obj.top); obj.mod != nil {
			f.notes.add("%s; the table that was kept of it is used", why)
			return false
		}
	}
	f.notes.add("%s; its frames are found without it", why)
	if id != "" { // a file with another one is not used; there may be a file of symbols with this one
		obj.mod = o.Mods(obj.path, id)
	} else {
		obj.mod = unwind.NewModule(path+" (lost)", "", nil)
	}
	return false
}

// search is module.Locator.Search. The image is held until Close.
func (f *File) search(w module.Wanted, o *Options) (img *module.Image, in int, refused []module.Refusal) {
	at := cmp.Or(w.First, w.Path)
	if img := f.opened[at]; img != nil && (w.Same == nil || w.Same(img) == nil) {
		return img, 0, nil
	}
	if img, in, refused = o.Files.Search(w); img == nil {
		return nil, 0, refused
	}
	f.images = append(f.images, img)
	if w.Same == nil {
		f.opened[at] = img
	}
	return img, in, refused
}

// same says why img is another file than the one that was mapped; nil if it is the same as far as can be told.
func (obj *object) same(img *module.Image) error {
	switch {
	case obj.id != nil:
		if have := img.BuildID(); !bytes.Equal(have, obj.id) {
			if have == nil {
				return fmt.Errorf("it has no build ID, the core has %x", obj.id)
			}
			return fmt.Errorf("build ID %x, the core has %x", have, obj.id)
		}
	case obj.head != nil:
		n := min(len(obj.head), page)
		if b := img.Bytes(); !bytes.Equal(obj.head[:min(n, len(b))], b[:min(n, len(b))]) || len(b) < n && len(b) < len(obj.head) {
			return errors.New("its headers are not those in the core")
		}
	}
	return nil
}

// maxFromMemory bounds the size of all files that are put together. They are no larger than the core either, nor is what is copied.
const maxFromMemory = 1 << 30

// fromMemory puts a file together from what the core's memory has of it: gcore writes all of one that has been deleted. It returns
// nil where code or unwind information is missing.
func (f *File) fromMemory(obj *object) *module.Image {
	var size, have uint64
	for _, i := range obj.ranges {
		r := &f.files[i]
		n := min(uint64(len(f.mem.tail(r.lo))), r.hi-r.lo)
		if n < r.hi-r.lo && r.flags&pfX != 0 {
			return nil
		}
		size, have = max(size, r.off+n), have+n
	}
	if size > 2*have || max(size, have) > min(maxFromMemory, uint64(len(f.b)))-f.put {
		return nil
	}
	f.put += max(size, have)
	b := make([]byte, size)
	for _, i := range obj.ranges {
		r := &f.files[i]
		t := f.mem.tail(r.lo)
		copy(b[r.off:], t[:min(uint64(len(t)), r.hi-r.lo)])
	}
	img, err := module.New(obj.path, b)
	if err != nil {
		return nil
	}
	for _, s := range img.Segments() {
		if hdr, err := img.Contents(&s); s.Kind == module.UnwindIndex && err == nil && len(hdr) >= 4 && le.Uint32(hdr) != 0 {
			return img
		}
	}
	return nil
}

// space returns the executable mappings.
func (f *File) space(o *Options) *unwind.Space {
	var maps []unwind.Mapping
	vdso := f.auxv[atSYSINFOEHDR]
	for i := range f.mem.segs {
		s := &f.mem.segs[i]
		if s.flags&pfX == 0 || len(maps) >= maxCode || f.hasFile(s) {
			continue
		}
		m := unwind.Mapping{Lo: arch.Addr(s.lo), Hi: arch.Addr(s.hi)}
		switch {
		case vdso >= s.lo && vdso < s.hi:
			m.Off, m.Module = s.lo-vdso, f.vdso(vdso, s, o)
		case s.lo == f.Machine.VSyscall && s.lo != 0:
			m.Module = o.Mods("[vsyscall]", "")
		case f.isSigpage(s):
			m.Module = f.sigpage(s)
		default:
			m.Module = o.Mods(anonymous, "")
		}
		maps = append(maps, m)
	}
	for i := range f.files {
		r := &f.files[i]
		if r.flags&pfX == 0 || r.object.mod == nil {
			continue
		}
		if len(maps) >= 2*maxCode {
			f.notes.add("more than %d executable mappings: the others are left out", 2*maxCode)
			break
		}
		maps = append(maps, unwind.Mapping{Lo: arch.Addr(r.lo), Hi: arch.Addr(r.hi), Off: r.off, Module: r.object.mod})
	}
	maps = f.registered(maps, o)
	slices.SortFunc(maps, func(a, b unwind.Mapping) int { return cmp.Compare(a.Lo, b.Lo) })
	return unwind.NewSpace(maps...)
}

// registered puts code in its place that the process had made and registered: for debuggers, and with libgcc.
func (f *File) registered(maps []unwind.Mapping, o *Options) []unwind.Mapping {
	made := func(m *unwind.Mapping) bool { return m.Module.Path == anonymous }
	if !slices.ContainsFunc(maps, func(m unwind.Mapping) bool { return made(&m) }) {
		return maps
	}
	var files []*fileRange // the first of each
	looked := map[*object]bool{}
	for i := range f.files {
		r := &f.files[i]
		if r.flags&pfX != 0 && r.object.img != nil && !looked[r.object] {
			looked[r.object] = true
			files = append(files, r)
		}
	}
	room := uint64(gdbjit.Room)
	var images []*module.Image
	var data []libgcc.Range
	for _, r := range files {
		first, in := r.object.img.OffToVaddr(r.off)
		if !in {
			continue
		}
		bias := r.lo - uint64(first)
		if v, ok := gdbjit.Descriptor(r.object.img); ok {
			found, err := gdbjit.Read(f.Machine, f.mem.read, bias+uint64(v), &room)
			if err != nil {
				f.notes.add("%v", err)
			}
			images = append(images, found...)
		}
		for _, d := range libgcc.Data(r.object.img, len(files) == 1) {
			data = append(data, libgcc.Range{Lo: bias + uint64(d.Lo), Hi: bias + uint64(d.Hi)})
		}
	}
	maps = gdbjit.Splice(maps, images, made, o.Image)
	in := func(lo, hi arch.Addr) bool {
		return slices.ContainsFunc(maps, func(m unwind.Mapping) bool { return m.Lo < hi && lo < m.Hi && made(&m) })
	}
	tables, err := libgcc.Read(f.Machine, f.mem.read, data, in)
	if err != nil {
		f.notes.add("%v", err)
	}
	return libgcc.Splice(maps, tables, f.Machine, made, anonymous, 0)
}

// anonymous is the name of memory that is no file's.
const anonymous = "//anon"

// isSigpage says whether memory begins with code to which signal handlers return, in a core that has no vDSO: QEMU puts some in a page of its own.
func (f *File) isSigpage(s *segment) bool {
	const reach = 32 // bytes: code for two kinds of handlers
	for sig := f.Machine.Signal; sig != nil; sig = sig.Plain {
		for at := 0; at < min(len(s.b), reach); at += 4 {
			if _, ok := sig.At(s.b[at:]); ok {
				return true
			}
		}
	}
	return false
}

// sigpage returns the module of such memory: it has no file, and its code is in the core.
func (f *File) sigpage(s *segment) *unwind.Module {
	m := unwind.NewModule("[sigpage]", "", func(*unwind.Module) *unwind.Code {
		return &unwind.Code{
			Machine: f.Machine,
			Vaddr:   func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), true },
			Text: func(v arch.Vaddr, to []byte) int {
				if uint64(v) >= uint64(len(s.b)) {
					return 0
				}
				return copy(to, s.b[v:])
			},
		}
	})
	m.VDSO = true
	return m
}

// hasFile says whether a file was mapped in a segment.
func (f *File) hasFile(s *segment) bool {
	i := sort.Search(len(f.files), func(i int) bool { return f.files[i].hi > s.lo })
	return i < len(f.files) && f.files[i].lo < s.hi
}

// vdso returns the module of the vDSO, which is that of the kernel that ran then.
func (f *File) vdso(at uint64, s *segment, o *Options) *unwind.Module {
	const limit = 1 << 20
	b := f.mem.tail(at)
	img, err := module.New("[vdso]", b[:min(len(b), limit)])
	if err != nil || uint64(len(s.b)) < s.hi-s.lo {
		f.notes.add("the core lacks the vDSO: frames in it are found without it")
		m := unwind.NewModule("[vdso] (lost)", "", nil)
		m.VDSO = true
		return m
	}
	return o.Image(img)
}
