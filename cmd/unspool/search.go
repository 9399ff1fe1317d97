package main

import (
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/module"
)

// searchFlags adds the flags that say where files of a recording lie. The function that it returns is to be called when they are known.
func searchFlags(c *cobra.Command) func() *module.Search {
	f := c.Flags()
	sysroot := f.String("sysroot", "", "look for the recorded programs below this root directory first")
	dirs := f.StringArray("debug-dir", nil, "directory with .build-id/, for programs and for debug files (may be repeated; /usr/lib/debug and ~/.debug, where perf keeps files, always are)")
	c.MarkFlagDirname("sysroot")
	c.MarkFlagDirname("debug-dir")
	return func() *module.Search { return newSearch(*sysroot, *dirs) }
}

// newSearch returns where files are looked for, perf's own store of them included. The debug files of a root directory are in it.
func newSearch(sysroot string, dirs []string) *module.Search {
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
