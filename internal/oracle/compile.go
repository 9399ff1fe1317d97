package oracle

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed c
var sources embed.FS

// Cflags are what the drivers are compiled with.
var Cflags = []string{"-std=c11", "-O2", "-Wall", "-Wextra", "-Werror"}

// A program is a C program of this package.
type program struct {
	files []string // in c/
	libs  []string // -l of each
	need  string   // the Debian package that has the headers
}

var programs = map[string]program{
	"dwfl":      {[]string{"dwfl.c", "snap.c"}, []string{"dw", "elf"}, "libdw-dev"},
	"libunwind": {[]string{"libunwind.c", "snap.c"}, []string{"unwind-x86_64", "unwind"}, "libunwind-dev"},
	"ehelf":     {[]string{"ehelf.c", "snap.c"}, []string{"dl"}, "libc6-dev"},
	"cfirows":   {[]string{"cfirows.c"}, []string{"dw", "elf"}, "libdw-dev"},
	"witness":   {[]string{"witness.c"}, nil, "libc6-dev"},
}

var compiled struct {
	sync.Mutex
	path map[string]string
}

// Program compiles a C program of this package, at most once for each version of its source, and returns
// its path. It skips the test where gcc or the library's headers are missing.
func Program(t testing.TB, name string) string {
	t.Helper()
	p, ok := programs[name]
	if !ok {
		t.Fatalf("BUG: no program %q", name)
	}
	Need(t, "gcc")
	compiled.Lock()
	defer compiled.Unlock()
	if path := compiled.path[name]; path != "" {
		return path
	}
	dir, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range p.libs {
		cmd := exec.Command("gcc", "-x", "c", "-", "-o", os.DevNull, "-l"+lib)
		cmd.Stdin = strings.NewReader("int main(void) { return 0; }\n")
		if cmd.Run() != nil {
			Lacks(t, p.need)
		}
	}
	path := filepath.Join(dir, name)
	if _, err := os.Stat(path); err != nil {
		if err := gcc(dir, path, p); err != nil {
			t.Fatalf("compiling %s: %v", name, err)
		}
	}
	if compiled.path == nil {
		compiled.path = map[string]string{}
	}
	compiled.path[name] = path
	return path
}

// gcc compiles p to path, by way of a temporary file: other processes may be doing the same.
func gcc(dir, path string, p program) error {
	tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
	defer os.Remove(tmp)
	args := append(append([]string{}, Cflags...), "-o", tmp)
	for _, f := range p.files {
		args = append(args, filepath.Join(dir, f))
	}
	for _, l := range p.libs {
		args = append(args, "-l"+l)
	}
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, bytes.TrimSpace(out))
	}
	return os.Rename(tmp, path)
}

// sourceDir returns a directory with the sources, named by their content, in the user's cache or, where
// there is none, for this process only.
func sourceDir() (string, error) {
	ents, err := sources.ReadDir("c")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, Cflags, programs)
	data := map[string][]byte{}
	for _, e := range ents {
		b, err := sources.ReadFile("c/" + e.Name())
		if err != nil {
			return "", err
		}
		fmt.Fprintln(sum, e.Name(), len(b))
		sum.Write(b)
		data[e.Name()] = b
	}
	base, err := os.UserCacheDir()
	if err == nil {
		err = os.MkdirAll(base, 0o700)
	}
	if err != nil {
		if base, err = os.MkdirTemp("", "unspool-oracle"); err != nil {
			return "", err
		}
	}
	dir := filepath.Join(base, "unspool-oracle", hex.EncodeToString(sum.Sum(nil))[:16])
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for name, b := range data {
		path := filepath.Join(dir, name)
		if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, b) {
			continue
		}
		tmp := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err := os.WriteFile(tmp, b, 0o600); err != nil {
			return "", err
		}
		if err := os.Rename(tmp, path); err != nil {
			return "", err
		}
	}
	return dir, nil
}
