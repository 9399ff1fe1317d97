package vm

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A Root is the files of a machine: an archive that the kernel unpacks into memory.
type Root struct {
	files   []file
	modules []file // of the kernel, in the order in which they are loaded
}

type file struct {
	name string // without a slash before it
	mode uint32 // as stat(2) has it
	data []byte
}

// Add adds a file, with the directories that lead to it. Executable files are those of mode 0o755.
func (r *Root) Add(name string, mode os.FileMode, data []byte) {
	name = strings.Trim(path.Clean(name), "/")
	r.dirs(path.Dir(name))
	r.files = append(r.files, file{name: name, mode: 0o100000 | uint32(mode.Perm()), data: data})
}

// dirs adds directories, each before what is in it: the kernel makes files in the order of the archive.
func (r *Root) dirs(dir string) {
	if dir == "." || slices.ContainsFunc(r.files, func(f file) bool { return f.name == dir }) {
		return
	}
	r.dirs(path.Dir(dir))
	r.files = append(r.files, file{name: dir, mode: 0o040755})
}

// Copy adds a file of this machine.
func (r *Root) Copy(name, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	r.Add(name, info.Mode(), b)
	return nil
}

// Tree adds all directories, files and links of a directory of this machine.
func (r *Root) Tree(dir string) error {
	return filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if err != nil || at == dir {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		switch d.Type() {
		case fs.ModeDir:
			r.dirs(name)
			return nil
		case fs.ModeSymlink:
			to, err := os.Readlink(at)
			if err == nil {
				r.Link(name, to)
			}
			return err
		}
		return r.Copy(name, at)
	})
}

// Modules adds modules of a kernel, whose files are below dir, and those that they depend on. The machine loads them before the first step.
func (r *Root) Modules(dir string, names ...string) error {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(d.Name(), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = at
		}
		return err
	})
	if err != nil {
		return err
	}
	for len(names) > 0 {
		name := names[0]
		names = names[1:]
		if files[name] == "" {
			return fmt.Errorf("%s has no module %s", dir, name)
		}
		b, err := os.ReadFile(files[name])
		if err != nil {
			return err
		}
		_, depends, _ := bytes.Cut(b, []byte("\x00depends="))
		depends, _, _ = bytes.Cut(depends, []byte{0})
		if len(depends) > 0 {
			names = append(names, strings.Split(string(depends), ",")...)
		}
		// What others depend on is added, and loaded, before them. Only its last place counts.
		r.modules = slices.DeleteFunc(r.modules, func(f file) bool { return f.name == name })
		r.modules = slices.Insert(r.modules, 0, file{name: name, data: b})
	}
	return nil
}

// Link adds a symbolic link.
func (r *Root) Link(name, to string) {
	r.Add(name, 0o777, []byte(to))
	r.files[len(r.files)-1].mode = 0o120777
}

// write writes the archive, a cpio of the format that Linux calls newc (Documentation/driver-api/early-userspace/buffer-format.rst). It is not
// compressed: an emulated processor would take seconds to undo that.
func (r *Root) write(w io.Writer, more ...file) error {
	b := bufio.NewWriter(w)
	pad := func(n int) { b.Write(make([]byte, -n&3)) }
	with := Root{files: slices.Clone(r.files)}
	for i, m := range r.modules {
		with.Add(fmt.Sprintf("modules/%03d-%s", i, m.name), 0o644, m.data)
	}
	all := slices.Concat(with.files, more, []file{{name: "TRAILER!!!"}})
	for i, f := range all {
		fields := []uint32{uint32(i + 1), f.mode, 0, 0, 1, 0, uint32(len(f.data)), 0, 0, 0, 0, uint32(len(f.name) + 1), 0}
		b.WriteString("070701")
		for _, v := range fields {
			fmt.Fprintf(b, "%08X", v)
		}
		b.WriteString(f.name + "\x00")
		pad(6 + 8*len(fields) + len(f.name) + 1)
		b.Write(f.data)
		pad(len(f.data))
	}
	return b.Flush()
}
