package oracle

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// Binaries returns the ELF executables and shared objects of this machine, or below the directory UNSPOOL_BINARIES, each file once, sorted by
// path.
func Binaries(t testing.TB) []string {
	t.Helper()
	var out []string
	seen := map[fileID]bool{}
	roots := []string{"/usr", "/opt", "/bin", "/sbin", "/lib", "/lib64"}
	if dir := os.Getenv("UNSPOOL_BINARIES"); dir != "" {
		roots = []string{dir}
	}
	for _, root := range roots {
		if st, err := os.Lstat(root); err != nil || !st.IsDir() {
			continue
		}
		filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || !isELF(p) {
				return nil
			}
			if id, ok := identify(p); ok && !seen[id] {
				seen[id] = true
				out = append(out, p)
			}
			return nil
		})
	}
	slices.Sort(out)
	return out
}

// Spread returns n of list, evenly spread over it.
func Spread(list []string, n int) []string {
	if len(list) <= n {
		return list
	}
	var out []string
	for i := range n {
		out = append(out, list[i*len(list)/n])
	}
	return out
}

func isELF(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var h [18]byte
	if _, err := f.ReadAt(h[:], 0); err != nil || string(h[:4]) != "\x7fELF" {
		return false
	}
	typ := h[16]
	if h[5] == 2 { // big-endian
		typ = h[17]
	}
	return typ == 2 || typ == 3
}

type fileID struct{ dev, ino uint64 }

func identify(path string) (fileID, bool) {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, true
}
