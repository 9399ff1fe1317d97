package modules

import (
	"encoding/hex"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
	"github.com/unspool/unspool/module"
)

// Open opens the file of a mapping; nil for mappings that have none, such as code that a program wrote.
func Open(name string) (*module.Image, error) {
	switch {
	case name == "[vdso]":
		return module.VDSO()
	case !module.OnDisk(name):
		return nil, nil
	}
	img, err := module.Open(name)
	if err != nil && isDump(name) {
		return nil, nil
	}
	return img, err
}

// isDump says whether a mapping only tells where a process writes down the code that it makes (package symbol/jit).
func isDump(file string) bool {
	ok, _ := path.Match("jit-[0-9]*.dump", path.Base(file))
	return ok
}

// Find opens the file of a mapping as Open does, but none whose build ID, in hex, is another than buildID, where both are known. Where there is
// no such file at the path it may be where s says, or a container's.
func Find(s *module.Search, path, buildID string) (*module.Image, error) {
	img, _, err := find(s, path, buildID, 0)
	return img, err
}

// find is Find for what process pid may have mapped; 0 is none. hidden says that the file is not at its path.
func find(s *module.Search, path, buildID string, pid int) (img *module.Image, hidden bool, err error) {
	if f := s.First(path); f != nil {
		if buildID == "" || buildID == module.Another {
			img, err = module.Map(f)
			if f.Close(); err == nil {
				return img, false, nil
			}
		} else if img, err = withID(buildID)(f, nil), nil; img != nil {
			return img, false, nil
		}
	}
	img, err = Open(path)
	if err == nil && img != nil && buildID != "" {
		err = module.Guard(func() error {
			if buildID == module.Another {
				return fmt.Errorf("%s: another file was recorded, and not its build ID", path)
			}
			if have := hex.EncodeToString(img.BuildID()); have != "" && !module.SameBuildID(have, buildID) {
				return fmt.Errorf("%s: the file has changed: build ID %s, recorded %s", path, have, buildID)
			}
			return nil
		})
		if err != nil {
			if path != "[vdso]" { // that is this process's own
				img.Close()
			}
			img = nil
		}
	}
	if err == nil {
		return img, false, nil
	}
	if buildID == "" || buildID == module.Another || !strings.HasPrefix(path, "/") {
		return nil, false, err
	}
	open := withID(buildID)
	img = nil
	s.ByID(buildID, func(f *os.File) bool { img = open(f, nil); return img != nil })
	if img != nil {
		return img, false, nil
	}
	if pid != 0 {
		if img := inProcess(pid, path, open); img != nil {
			return img, true, nil
		}
	}
	for _, pid := range procroot.Others() {
		if img := open(procroot.Open(pid, path)); img != nil {
			return img, true, nil
		}
	}
	return nil, false, err
}

// inProcess opens a file that a process has mapped: below its root directory, or, where it has been deleted, through the mapping (proc(5):
// /proc/PID/exe; /proc/PID/map_files, which takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE). It returns nil where there is none.
func inProcess(pid int, path string, open func(*os.File, error) *module.Image) *module.Image {
	if img := open(procroot.Open(pid, path)); img != nil {
		return img
	}
	proc := fmt.Sprintf("/proc/%d/", pid)
	if img := open(module.OpenFile(proc + "exe")); img != nil {
		return img
	}
	f, err := os.Open(proc + "maps")
	if err != nil {
		return nil // it has ended
	}
	defer f.Close()
	maps, _ := procfs.Mappings(f)
	tried := map[uint64]bool{} // by inode: files that followed each other at the path
	for _, m := range maps {
		if strings.TrimSuffix(m.Name, deleted) == strings.TrimSuffix(path, deleted) && !tried[m.Inode] {
			tried[m.Inode] = true
			if img := open(module.OpenFile(fmt.Sprintf("%smap_files/%x-%x", proc, m.Lo, m.Hi))); img != nil {
				return img
			}
		}
	}
	return nil
}

// deleted is what the kernel adds to the name of a mapped file that has been deleted.
const deleted = " (deleted)"

// withID returns what maps an open file, which it closes, if it has a build ID, and else returns nil.
func withID(buildID string) func(*os.File, error) *module.Image {
	return func(f *os.File, err error) *module.Image {
		if err != nil {
			return nil
		}
		defer f.Close()
		img, err := module.Map(f)
		if err != nil {
			return nil
		}
		same := false
		_ = module.Guard(func() error { same = module.SameBuildID(hex.EncodeToString(img.BuildID()), buildID); return nil })
		if !same {
			img.Close()
			return nil
		}
		return img
	}
}
