package corefile

import (
	"bytes"
	"cmp"
	"debug/elf"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// Bounds on what a hostile core can say of its files. A program with a thousand libraries is rare.
const (
	maxLinked = 1 << 12 // entries of the dynamic linker's list
	maxPath   = 1 << 12
	maxPhdrs  = 1 << 8
	maxDyn    = 1 << 10
)

// linkMaps makes up for NT_FILE where there is none: Linux has written it since 3.7, others than Linux's kernel and gdb do not. The auxiliary
// vector says where the program is, and with that the dynamic linker's list (struct r_debug and link_map of link.h, the same in
// glibc and musl) what else was mapped, and where.
func (f *File) linkMaps(o *Options) {
	if len(f.files) > 0 {
		return
	}
	path := f.str(f.auxv[atEXECFN])
	if path == "" && len(f.Command) > 0 {
		path = f.Command[0]
	}
	bias, segs, ok := f.program(o)
	if !ok {
		f.notes.add("the core has no NT_FILE note, and does not say where its program was: frames are found by the frame pointer, if at all")
		return
	}
	list := ranges(nil, bias, segs, cmp.Or(path, "program"), f.pageSize())
	vdso, missing := f.auxv[atSYSINFOEHDR], 0
	add := func(base uint64, path string) {
		segs := f.headAt(base)
		if segs == nil {
			segs = f.onDisk(path, o)
		}
		if segs == nil {
			missing++
		}
		list = ranges(list, base, segs, path, f.pageSize())
	}
	n, at, w := 0, f.linked(bias, segs), uint64(f.word)
	for ; at != 0 && n < maxLinked; n++ {
		base, name, next := f.load(at), f.str(f.load(at+w)), f.load(at+3*w)
		if n > 0 && base != vdso && strings.HasPrefix(name, "/") { // the first is the program
			add(base, name)
		}
		at = next
	}
	if base := f.auxv[atBASE]; n == 0 && base != 0 { // it has not begun, or nothing is left of it
		for _, s := range segs {
			if s.Kind == module.Interpreter {
				add(base, f.str(bias+uint64(s.Vaddr)))
			}
		}
	}
	if missing > 0 {
		f.notes.add("the core has no NT_FILE note, and lacks the headers of %d files that are not there either", missing)
	}
	f.setFiles(list)
}

// setFiles sorts the mappings of files and leaves those out that overlap others.
func (f *File) setFiles(list []fileRange) {
	slices.SortStableFunc(list, func(a, b fileRange) int { return cmp.Compare(a.lo, b.lo) })
	out, top := list[:0], uint64(0)
	for _, r := range list {
		if r.lo >= top {
			out, top = append(out, r), r.hi
		}
	}
	f.files = out
}

// kinds are what program headers are for, as far as it matters here.
var kinds = map[elf.ProgType]module.Kind{elf.PT_LOAD: module.Loaded, elf.PT_DYNAMIC: module.Dynamic, elf.PT_INTERP: module.Interpreter, elf.PT_PHDR: module.Headers}

// program returns by how much the program was moved, and its segments: by the program headers that the kernel told it of, or by those of the
// file that was given for it.
func (f *File) program(o *Options) (bias uint64, segs []module.Segment, ok bool) {
	at := f.auxv[atPHDR]
	if at == 0 {
		return 0, nil, false
	}
	phsize := f.progHeaderSize()
	for i := range min(f.auxv[atPHNUM], maxPhdrs) {
		p := f.mem.tail(at + i*phsize)
		if uint64(len(p)) < phsize {
			segs = nil
			break
		}
		h := f.progHeader(p)
		segs = append(segs, module.Segment{Kind: kinds[h.typ], Perm: module.Perm(h.flags & 7), Off: h.off, Vaddr: arch.Vaddr(h.vaddr), Size: h.filesz, MemSize: h.memsz})
	}
	if segs == nil && o.Exe != "" {
		if img, _, _ := f.search(module.Wanted{First: o.Exe}, o); img != nil {
			segs = img.Segments()
			if e := f.auxv[atENTRY]; e != 0 {
				return e - uint64(img.Entry()), segs, true
			}
		}
	}
	for i := range segs {
		if segs[i].Kind == module.Headers {
			return at - uint64(segs[i].Vaddr), segs, true
		}
	}
	for i := range segs { // a static program may do without: its headers are in the first page of the file
		if s := &segs[i]; s.Kind == module.Loaded && s.Off == 0 {
			page := f.pageSize()
			return at&^(page-1) - uint64(s.Vaddr)&^(page-1), segs, true
		}
	}
	return 0, nil, false
}

// linked returns where the dynamic linker's list begins; 0 if there is none.
func (f *File) linked(bias uint64, segs []module.Segment) uint64 {
	for _, s := range segs {
		if s.Kind != module.Dynamic {
			continue
		}
		for at, i := bias+uint64(s.Vaddr), 0; i < maxDyn; at, i = at+2*uint64(f.word), i+1 {
			switch tag := elf.DynTag(f.load(at)); tag {
			case elf.DT_NULL:
				return 0
			case elf.DT_DEBUG:
				return f.load(f.load(at+uint64(f.word)) + uint64(f.word)) // r_map, which follows r_version
			}
		}
	}
	return 0
}

// headAt returns the segments of the file whose beginning the core's memory has at an address; nil if it has none.
func (f *File) headAt(at uint64) []module.Segment {
	b := f.mem.tail(at)
	if b = b[:min(len(b), page)]; !bytes.HasPrefix(b, []byte(elf.ELFMAG)) {
		return nil
	}
	img, err := module.New("", b)
	if err != nil {
		return nil
	}
	return img.Segments()
}

// onDisk returns the segments of the file at a path; nil if there is none.
func (f *File) onDisk(path string, o *Options) []module.Segment {
	if img, _, _ := f.search(module.Wanted{Path: filepath.Clean(path)}, o); img != nil {
		return img.Segments()
	}
	return nil
}

// ranges adds the mappings that the kernel, or the dynamic linker, makes of segments.
func ranges(list []fileRange, bias uint64, segs []module.Segment, path string, page uint64) []fileRange {
	for i := range segs {
		s := &segs[i]
		if s.Kind != module.Loaded || s.Size == 0 || len(list) >= maxFiles {
			continue
		}
		at := bias + uint64(s.Vaddr)
		r := fileRange{lo: at &^ (page - 1), hi: (at + s.Size + page - 1) &^ (page - 1), off: s.Off &^ (page - 1), path: path, flags: uint32(s.Perm)}
		if r.lo < r.hi && r.off+(r.hi-r.lo) >= r.off {
			list = append(list, r)
		}
	}
	return list
}

// load returns a word of the core's memory; 0 where there is none.
func (f *File) load(at uint64) uint64 {
	v, _ := rows.WordsOf(f.Machine, &f.mem).Read8(at)
	return v
}

// str returns the string at an address of the core's memory; "" where there is none.
func (f *File) str(at uint64) string {
	b := f.mem.tail(at)
	b = b[:min(len(b), maxPath)]
	n := bytes.IndexByte(b, 0)
	if at == 0 || n < 0 {
		return ""
	}
	return string(b[:n])
}
