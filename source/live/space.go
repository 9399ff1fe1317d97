package live

import (
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/module"
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
	made := func(m *unwind.Mapping) bool { return m.Module.Path == anonymous }
	if o.Image == nil || o.Files == nil || !slices.ContainsFunc(maps, func(m unwind.Mapping) bool { return made(&m) }) {
		return maps
	}
	read := func(addr uint64, b []byte) bool {
		n, _ := t.mem.ReadAt(b, int64(addr))
		return n == len(b)
	}
	var files []*unwind.Mapping // the first of each
	looked := map[*unwind.Module]bool{}
	for i := range maps {
		m := &maps[i]
		if !made(m) && !looked[m.Module] && strings.HasPrefix(m.Module.Path, "/") {
			looked[m.Module] = true
			files = append(files, m)
		}
	}
	var images []*module.Image
	var data []libgcc.Range
	for _, m := range files {
		lists, registries := registers(m, o.Files, len(files) == 1)
		data = append(data, registries...)
		for _, at := range lists {
			found, err := gdbjit.Read(ptrace.Machine, read, at)
			if err != nil {
				t.notes = append(t.notes, err.Error())
			}
			images = append(images, found...)
		}
	}
	maps = gdbjit.Splice(maps, images, made, o.Image)
	in := func(lo, hi arch.Addr) bool {
		return slices.ContainsFunc(maps, func(m unwind.Mapping) bool { return m.Lo < hi && lo < m.Hi && made(&m) })
	}
	tables, err := libgcc.Read(ptrace.Machine, read, data, in)
	if err != nil {
		t.notes = append(t.notes, err.Error())
	}
	return libgcc.Splice(maps, tables, ptrace.Machine, made, anonymous, int32(t.pid))
}

// registers returns where a mapped file has the list of code for debuggers, and libgcc's registry. alone: the process has no other file.
func registers(m *unwind.Mapping, files *module.Locator, alone bool) (lists []uint64, registries []libgcc.Range) {
	img, _, err := files.Find(m.Module.Path, m.Module.BuildID, 0)
	if err != nil || img == nil {
		return nil, nil
	}
	defer img.Release()
	_ = module.Guard(func() error {
		first, in := img.OffToVaddr(m.Off)
		if !in {
			return nil
		}
		bias := uint64(m.Lo) - uint64(first)
		if v, ok := gdbjit.Descriptor(img); ok {
			lists = append(lists, bias+uint64(v))
		}
		for _, d := range libgcc.Data(img, alone) {
			registries = append(registries, libgcc.Range{Lo: bias + uint64(d.Lo), Hi: bias + uint64(d.Hi)})
		}
		return nil
	})
	return lists, registries
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
