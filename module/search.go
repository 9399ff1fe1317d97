package module

import (
	"encoding/hex"
	"os"
	"path/filepath"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/procroot"
)

// A Search says where the files of a recording lie, besides at their paths. nil is nowhere else.
type Search struct {
	Sysroot string   // a root directory that is looked in first; "": none
	Dirs    []string // with files by build ID: .build-id/xx/yyyy, or, as perf buildid-cache keeps them, .build-id/xx/yyyy/elf
}

// First opens the file at a path below the root directory; nil where there is none.
func (s *Search) First(path string) *os.File {
	if s == nil || s.Sysroot == "" || !filepath.IsAbs(path) {
		return nil
	}
	f, err := procroot.In(s.Sysroot, path)
	if err != nil {
		return nil
	}
	return f
}

// ByID calls take with the files that are called by a build ID, in hex, until it returns true. take closes them, and sees whether they have it.
func (s *Search) ByID(buildID string, take func(*os.File) bool) {
	if _, err := hex.DecodeString(buildID); s == nil || err != nil || len(buildID) < 4 {
		return
	}
	for _, dir := range s.Dirs {
		name := filepath.Join(dir, ".build-id", buildID[:2], buildID[2:])
		for _, name := range []string{filepath.Join(name, "elf"), name} {
			if f, err := procfs.Open(name); err == nil && take(f) {
				return
			}
		}
	}
}
