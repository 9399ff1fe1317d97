package names

import (
	"os"
	"path/filepath"

	"github.com/unspool/unspool/module"
)

// Search returns where files are looked for, perf's own store of them included. The debug files of a root directory are in it.
func Search(sysroot string, dirs []string) *module.Search {
	whole := func(path string) string {
		if abs, err := filepath.Abs(path); err == nil {
			return abs
		}
		return path
	}
	s := &module.Search{}
	for _, d := range dirs {
		s.Dirs = append(s.Dirs, whole(d))
	}
	if sysroot != "" {
		s.Sysroot = whole(sysroot)
		s.Dirs = append(s.Dirs, filepath.Join(s.Sysroot, "usr/lib/debug"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		s.Dirs = append(s.Dirs, filepath.Join(home, ".debug"))
	}
	return s
}
