package oracle

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// NPM returns the directory of an npm package that .ci/run has installed, from the list in .ci/npm: it is in
// unspool-judges/node_modules of the user's cache.
func NPM(t testing.TB, name string) string {
	t.Helper()
	Need(t, "node")
	cache, err := os.UserCacheDir()
	if err != nil {
		Lacks(t, "a cache directory: "+err.Error())
	}
	dir := filepath.Join(cache, "unspool-judges", "node_modules", name)
	if _, err := os.Stat(filepath.Join(dir, "package.json")); err != nil {
		Lacks(t, "npm package "+name+" (make judges)")
	}
	return dir
}

// Packed returns the directory of an npm package, called NAME@VERSION, for any machine and system: it is fetched without being installed, and
// stays in unspool-corpus/npm of the user's cache.
func Packed(t testing.TB, spec string) string {
	t.Helper()
	Need(t, "npm", "tar")
	cache, err := os.UserCacheDir()
	if err != nil {
		Lacks(t, "a cache directory: "+err.Error())
	}
	root := filepath.Join(cache, "unspool-corpus", "npm")
	dir := filepath.Join(root, strings.NewReplacer("/", "+").Replace(spec))
	if _, err := os.Stat(dir); err == nil {
		return filepath.Join(dir, "package")
	}
	if err := os.MkdirAll(root, 0o755); err != nil {
		t.Fatal(err)
	}
	work, err := os.MkdirTemp(root, ".fetching-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(work)
	archive := Fetched(t, "npm package "+spec, func(ctx context.Context) (string, error) {
		pack := group(exec.CommandContext(ctx, "npm", "pack", "--silent", "--ignore-scripts", "--prefer-offline", spec))
		pack.Dir = work
		if out, err := pack.CombinedOutput(); err != nil {
			return "", fmt.Errorf("%w: %s", err, out)
		}
		archives, _ := filepath.Glob(filepath.Join(work, "*.tgz"))
		if len(archives) != 1 {
			return "", fmt.Errorf("npm pack left %q", archives)
		}
		return archives[0], nil
	})
	Run(t, "tar", "-xzf", archive, "-C", work)
	// Tests of several packages fetch at the same time: the first to be done gives what all use.
	if err := os.Rename(work, dir); err != nil {
		if _, err := os.Stat(dir); err != nil {
			t.Fatal(err)
		}
	}
	os.Remove(filepath.Join(dir, filepath.Base(archive)))
	return filepath.Join(dir, "package")
}

// MachO returns Mach-O files of npm packages, libraries and programs for macOS: those of the first n packages of the list in .ci/macho.
func MachO(t testing.TB, n int) (files []string) {
	t.Helper()
	list := read(t, ".ci/macho")
	for _, spec := range list[:min(n, len(list))] {
		files = append(files, Files(t, Packed(t, spec), isMachO)...)
	}
	return files
}

func isMachO(path string) bool {
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	var b [8]byte
	io.ReadFull(f, b[:])
	switch string(b[:4]) {
	case "\xcf\xfa\xed\xfe", "\xce\xfa\xed\xfe":
		return true
	}
	return string(b[:4]) == "\xca\xfe\xba\xbe" && b[7] < 40 // classes of Java have a greater number there
}

// read returns the words of a file, named from the top of the repository.
func read(t testing.TB, name string) []string {
	t.Helper()
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			return strings.Fields(string(b))
		}
	}
	t.Fatalf("no go.mod above %s", dir)
	return nil
}
