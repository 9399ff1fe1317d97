package names

import (
	"os"
	"path/filepath"

	"github.com/unspool/unspool/module"
)

// Files returns a locator for the files of a recording or a core: below sysroot ("" for none), in dirs, where distributions put debug files, and in
// perf's own store. It also finds the debug files below sysroot.
func Files(sysroot string, dirs []string) *module.Locator {
	whole := func(path string) string {
		if abs, err := filepath.Abs(path); err == nil {
			return abs
		}
		return path
	}
	s := &module.Locator{}
	for _, d := range dirs {
		s.Dirs = append(s.Dirs, whole(d))
	}
	s.Dirs = append(s.Dirs, module.DebugDir)
	if sysroot != "" {
		s.Sysroot = whole(sysroot)
		s.Dirs = append(s.Dirs, filepath.Join(s.Sysroot, "usr/lib/debug"))
	}
	if home, err := os.UserHomeDir(); err == nil {
		s.Dirs = append(s.Dirs, filepath.Join(home, ".debug"))
	}
	s.DebugDirs = s.Dirs
	return s
}
