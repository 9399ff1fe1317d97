package module

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxLibraries bounds how many files Libraries reads.
const maxLibraries = 256

// Libraries returns the names of the libraries that some accepts, of those that an ELF program of 64 bits is linked with, itself or by a library
// that it needs; sorted. It looks for files as the dynamic linker does, by DT_RUNPATH, LD_LIBRARY_PATH and the usual directories, without the
// linker's cache. What cannot be read or found, needs none.
func Libraries(program string, some func(name string) bool) (names []string) {
	files, seen := []string{program}, map[string]bool{}
	for len(files) > 0 && len(seen) < maxLibraries {
		file := files[0]
		files = files[1:]
		needed, dirs := neededBy(file)
		for _, name := range needed {
			if seen[name] {
				continue
			}
			seen[name] = true
			if some(name) {
				names = append(names, name)
				continue
			}
			for _, d := range dirs {
				at := filepath.Join(d, name)
				if st, err := os.Stat(at); err == nil && st.Mode().IsRegular() {
					files = append(files, at)
					break
				}
			}
		}
	}
	slices.Sort(names)
	return names
}

// Tags of entries of an ELF file's dynamic section whose values are offsets in .dynstr: System V ABI, "Dynamic Linking".
const (
	tagNeeded  = 1
	tagRPath   = 15
	tagRunPath = 29
)

// neededBy returns what libraries an ELF file needs, and where they are looked for.
func neededBy(file string) (names, dirs []string) {
	img, err := Open(file)
	if err != nil {
		return nil, nil
	}
	defer img.Close()
	dynamic, strs := img.Section(".dynamic"), img.Section(".dynstr")
	if dynamic == nil || strs == nil || !img.Is64() {
		return nil, nil
	}
	entries, err := img.Data(dynamic)
	if err != nil {
		return nil, nil
	}
	text, err := img.Data(strs)
	if err != nil {
		return nil, nil
	}
	origin := filepath.Dir(file)
	if at, err := filepath.EvalSymlinks(file); err == nil {
		origin = filepath.Dir(at)
	}
	expand := strings.NewReplacer("${ORIGIN}", origin, "$ORIGIN", origin)
	for ; len(entries) >= 16; entries = entries[16:] {
		tag, off := img.Order().Uint64(entries), img.Order().Uint64(entries[8:])
		if tag != tagNeeded && tag != tagRPath && tag != tagRunPath || off > uint64(len(text)) {
			continue
		}
		s, _, _ := strings.Cut(string(text[off:]), "\x00")
		if tag == tagNeeded {
			names = append(names, s)
		} else {
			dirs = append(dirs, filepath.SplitList(expand.Replace(s))...)
		}
	}
	dirs = append(dirs, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH"))...)
	for _, d := range []string{"/lib", "/usr/lib"} {
		dirs = append(dirs, filepath.Join(d, img.Machine().Triplet), d+"64", d)
	}
	return names, append(dirs, "/usr/local/lib")
}
