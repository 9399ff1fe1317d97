package live

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/gdbjit"
	"github.com/unspool/unspool/source/libgcc"
	"github.com/unspool/unspool/unwind"
)

// deleted is what the kernel adds to the name of a mapped file that has been deleted.
const deleted = " (deleted)"

// A file tells mapped files apart.
type file struct {
	name     string
	maj, min uint32
	inode    uint64
}

// space makes the address space of the executable mappings.
func (t *target) space(o *Options) *unwind.Space {
	root := t.root()
	known := map[file]*unwind.Module{}
	var out []unwind.Mapping
	for i := range t.layout {
		m := &t.layout[i]
		if m.Prot&procfs.Exec == 0 {
			continue
		}
		off := m.Off
		key := file{m.Name, m.Maj, m.Min, m.Inode}
		if o.Made != nil && unnamed(m) {
			key, off = file{name: anonymous}, m.Lo
		}
		mod := known[key]
		if mod == nil {
			path, id := t.file(root, m)
			switch {
			case o.Made != nil && unnamed(m):
				mod = o.Made.Module(int32(t.pid), anonymous)
			case o.Mods != nil:
				mod = o.Mods(path, id)
			}
			if o.Made != nil {
				o.Made.Mapped(int32(t.pid), m.Name)
			}
			if mod == nil {
				mod = unwind.NewModule(path, id, nil)
			}
			known[key] = mod
		}
		out = append(out, unwind.Mapping{Lo: arch.Addr(m.Lo), Hi: arch.Addr(m.Hi), Off: off, Module: mod})
	}
	return unwind.NewSpace(t.registered(out, o)...)
}

// registered puts code in its place that the process has made and registered: for debuggers, and with libgcc. The process runs again by now.
func (t *target) registered(maps []unwind.Mapping, o *Options) []unwind.Mapping {
	if o.Image == nil || o.Files == nil {
		return maps
	}
	images, tables, err := t.made(maps, &Registers{Files: o.Files}, gdbjit.Room)
	for _, e := range err {
		t.notes = append(t.notes, e.Error())
	}
	maps = gdbjit.Splice(maps, images, isMade, o.Image)
	return libgcc.Splice(maps, tables, ptrace.Machine, isMade, anonymous, int32(t.pid))
}

func isMade(m *unwind.Mapping) bool { return m.Module.Path == anonymous }

// made reads the code that the process has registered: for debuggers, with room for the bytes of images, and with libgcc.
func (t *target) made(maps []unwind.Mapping, r *Registers, room uint64) (images []*module.Image, tables []*rows.Table, bad []error) {
	if !slices.ContainsFunc(maps, func(m unwind.Mapping) bool { return isMade(&m) }) {
		return nil, nil, nil
	}
	read := func(addr uint64, b []byte) bool {
		n, _ := t.mem.ReadAt(b, int64(addr))
		return n == len(b)
	}
	var files []*unwind.Mapping // the first of each
	looked := map[*unwind.Module]bool{}
	for i := range maps {
		m := &maps[i]
		if !isMade(m) && !looked[m.Module] && strings.HasPrefix(m.Module.Path, "/") {
			looked[m.Module] = true
			files = append(files, m)
		}
	}
	var data []libgcc.Range
	for _, m := range files {
		p := r.places(m, len(files) == 1)
		for _, d := range p.data {
			data = append(data, libgcc.Range{Lo: uint64(m.Lo) + uint64(d.Lo-p.first), Hi: uint64(m.Lo) + uint64(d.Hi-p.first)})
		}
		if !p.list {
			continue
		}
		found, err := gdbjit.Read(ptrace.Machine, read, uint64(m.Lo)+uint64(p.descriptor-p.first), &room)
		if err != nil {
			bad = append(bad, err)
		}
		images = append(images, found...)
	}
	tables, err := libgcc.Read(ptrace.Machine, read, data, func(lo, hi arch.Addr) bool {
		return slices.ContainsFunc(maps, func(m unwind.Mapping) bool { return m.Lo < hi && lo < m.Hi && isMade(&m) })
	})
	if err != nil {
		bad = append(bad, err)
	}
	return images, tables, bad
}

// Registers finds, in files, where processes register the code that they make. It remembers the files. It is safe for concurrent use.
type Registers struct {
	Files *module.Locator

	mu    sync.Mutex
	known map[place]places
}

// A place is where a file is mapped first, and what else the answer depends on.
type place struct {
	path, buildID string
	off           uint64
	alone         bool
}

// places are the link-time addresses of a file where a process registers code.
type places struct {
	first      arch.Vaddr // of the mapping
	list       bool
	descriptor arch.Vaddr     // of the list for debuggers
	data       []unwind.Range // that may have libgcc's registry
}

// maxPlaces is how many files are remembered.
const maxPlaces = 1 << 12

// places looks into a mapped file. alone: the process has no other file.
func (r *Registers) places(m *unwind.Mapping, alone bool) (p places) {
	key := place{m.Module.Path, m.Module.BuildID, m.Off, alone}
	r.mu.Lock()
	defer r.mu.Unlock()
	if p, ok := r.known[key]; ok {
		return p
	}
	if img, _, err := r.Files.Find(key.path, key.buildID, 0); err == nil && img != nil {
		defer img.Release()
		_ = module.Guard(func() error {
			ok := false
			if p.first, ok = img.OffToVaddr(m.Off); ok {
				p.descriptor, p.list = gdbjit.Descriptor(img)
				p.data = libgcc.Data(img, alone)
			}
			return nil
		})
	}
	if r.known == nil || len(r.known) >= maxPlaces {
		r.known = map[place]places{}
	}
	r.known[key] = p
	return p
}

// maxOften is how many bytes of images are read of a process that is looked at again and again.
const maxOften = 64 << 20

// Registered reads the code that a running process has made and registered now: for debuggers, as images, and with libgcc, as rows. Where something
// could not be read, the rest is returned.
func (r *Registers) Registered(pid int) (images []*module.Image, tables []*rows.Table) {
	if ptrace.Machine == nil {
		return nil, nil
	}
	t, err := newTarget(pid)
	if err != nil {
		return nil, nil
	}
	defer t.maps.Close()
	defer t.mem.Close()
	images, tables, _ = t.made(t.space(&Options{}).Mappings(), r, maxOften)
	return images, tables
}

// anonymous is the name of memory that is no file's.
const anonymous = "//anon"

func unnamed(m *procfs.Mapping) bool { return m.Name == "" || strings.HasPrefix(m.Name, "[anon") }

// root returns what to put before the names of the process's files: nothing where it has this process's root and mounts.
func (t *target) root() string {
	if procroot.Same(t.pid) {
		return ""
	}
	return t.dir + "/root"
}

// file returns a path that opens what m maps, and its build ID in hex, which may be empty.
func (t *target) file(root string, m *procfs.Mapping) (path, buildID string) {
	switch {
	case unnamed(m):
		return anonymous, ""
	case m.Inode == 0 || m.Name[0] != '/':
		return m.Name, ""
	}
	id, asked := procfs.BuildID(t.maps, m)
	path = root + strings.TrimSuffix(m.Name, deleted)
	found := false
	for _, p := range []string{
		root + m.Name, // its name may end like that
		fmt.Sprintf("/proc/%d/map_files/%x-%x", t.pid, m.Lo, m.Hi), // takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE
		t.dir + "/exe",
	} {
		if opens(p, m.Inode) {
			path, found = p, true
			break
		}
	}
	if !found && asked && len(id) > 0 {
		// Inode numbers differ between stat and maps on some file systems. The build ID decides when the module is loaded.
		is, _ := procfs.FileBuildID(path, 0)
		found = string(is) == string(id)
	}
	if !found {
		t.notes = append(t.notes, fmt.Sprintf("%s: the mapped file was deleted or replaced, and cannot be opened", m.Name))
	}
	if !asked && found {
		id, _ = procfs.FileBuildID(path, 0)
	}
	return path, hex.EncodeToString(id)
}

// opens says whether path is a regular file with an inode number that this user may read.
func opens(path string, inode uint64) bool {
	var st unix.Stat_t
	return unix.Stat(path, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Ino == inode && unix.Access(path, unix.R_OK) == nil
}

// Paths returns, for the modules of a running process whose paths lead through /proc, the paths that the process itself has for them.
func Paths(p *source.Process) map[string]string {
	out := map[string]string{}
	proc := fmt.Sprintf("/proc/%d/", p.PID)
	for _, m := range p.Space.Mappings() {
		path := m.Module.Path
		if in, ok := strings.CutPrefix(path, proc+"root/"); ok {
			out[path] = "/" + in
		} else if strings.HasPrefix(path, proc) {
			if to, err := os.Readlink(path); err == nil {
				out[path] = to
			}
		}
	}
	return out
}
