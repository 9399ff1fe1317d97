package test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// shared are the directories that all tests of this process use; TestMain removes them.
var shared struct {
	sync.Mutex
	dirs map[string]string
}

// once returns a directory that make has filled, once in this process.
func once(t testing.TB, name string, make func(dir string) error) string {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if dir := shared.dirs[name]; dir != "" {
		return dir
	}
	dir, err := os.MkdirTemp("", "unspool-test")
	if err == nil {
		err = make(dir)
	}
	if err != nil {
		t.Fatalf("%s: %v", name, errors.Join(err, os.RemoveAll(dir)))
	}
	if shared.dirs == nil {
		shared.dirs = map[string]string{}
	}
	shared.dirs[name] = dir
	return dir
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range shared.dirs {
		os.RemoveAll(dir)
	}
	os.Exit(code)
}

// madeBy returns the directory of all that make makes by a compiler with these CFLAGS, or with the Makefile's where they are empty: libraries share
// objects.
func madeBy(t testing.TB, cc, cflags string) string {
	t.Helper()
	oracle.Need(t, "make", strings.Fields(cc)[0])
	return once(t, fmt.Sprintf("made by %s %s", cc, cflags), func(string) error { return nil })
}

// built makes a file, or another target of the Makefile, and returns its directory, madeBy's. The settings are more of make's arguments.
func built(t testing.TB, cc, cflags, target string, settings ...string) string {
	t.Helper()
	dir := madeBy(t, cc, cflags)
	once(t, fmt.Sprintf("%s in %s", target, dir), func(string) error {
		_, err := runMake(dir, cc, cflags, target, settings...)
		return err
	})
	return dir
}

func runMake(dir, cc, cflags, target string, settings ...string) (string, error) {
	if strings.Contains(target, ".so") || strings.HasSuffix(target, ".a") {
		target = filepath.Join(dir, target)
	}
	args := []string{"-s", "-C", "..", "--no-print-directory", "BUILD=" + dir, "CC=" + cc}
	if cflags != "" {
		args = append(args, "CFLAGS="+cflags)
	}
	cmd := exec.Command("make", append(append(args, settings...), target)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%v: %w\n%s%s", cmd.Args, err, out, &stderr)
	}
	return string(out), err
}

// objectsOf returns the objects of "local", "remote" or "native", as the Makefile compiles them.
func objectsOf(t testing.TB, cc, cflags, library string) []string {
	t.Helper()
	dir := madeBy(t, cc, cflags)
	list := once(t, fmt.Sprintf("objects of %s in %s", library, dir), func(list string) error {
		out, err := runMake(dir, cc, cflags, "print", "--eval", fmt.Sprintf("print: ; @echo $(%s_objects)", library))
		if err == nil {
			objects := strings.Fields(out)
			_, err = runMake(dir, cc, cflags, objects[0], objects[1:]...)
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(list, "objects"), []byte(out), 0o600)
	})
	out, err := os.ReadFile(filepath.Join(list, "objects"))
	if err != nil || len(out) == 0 {
		t.Fatalf("the objects of %s are %q, %v, want some", library, out, err)
	}
	return strings.Fields(string(out))
}

// dropIn builds all libraries with a compiler and returns their directory.
func dropIn(t testing.TB, cc string) string {
	t.Helper()
	return built(t, cc, "", "all")
}

// compiledAs runs a compiler with the arguments, once in this process, and returns the path of what it writes, which has this name.
func compiledAs(t testing.TB, name, cc string, args ...string) string {
	t.Helper()
	oracle.Need(t, cc)
	return filepath.Join(once(t, fmt.Sprintf("%s by %s %q", name, cc, args), func(dir string) error {
		if out, err := exec.Command(cc, append([]string{"-o", filepath.Join(dir, name)}, args...)...).CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}), name)
}

// linkedAs is compiledAs for a program of one source: programs that differ only in flags for the linker have one object.
func linkedAs(t testing.TB, name, cc, source string, flags ...string) string {
	t.Helper()
	compiler := slices.DeleteFunc(slices.Clone(flags), func(flag string) bool {
		return slices.ContainsFunc([]string{"-Wl,", "-l", "-L", "-static-lib"}, func(s string) bool { return strings.HasPrefix(flag, s) }) || flag == "-static" ||
			filepath.Ext(flag) == ".a"
	})
	object := compiledAs(t, name+".o", cc, append(compiler, "-c", source)...)
	return compiledAs(t, name, cc, append([]string{object}, flags...)...)
}

// unspool builds the program, as make does, and returns its path.
func unspool(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "go")
	return filepath.Join(once(t, "unspool", func(dir string) error {
		c := exec.Command("go", "build", "-o", filepath.Join(dir, "unspool"), "../../cmd/unspool")
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			return fmt.Errorf("%w\n%s", err, out)
		}
		return nil
	}), "unspool")
}

// TestWays: the Makefile shares objects between libraries, but none of a source that looks at what a library defines for itself.
func TestWays(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "make", "gcc")
	headers, err := filepath.Glob("../*.h")
	if err != nil || len(headers) == 0 {
		t.Fatalf("Glob(../*.h) = %q, %v, want headers", headers, err)
	}
	own := map[string]bool{}
	for _, c := range []struct{ library, way, macros string }{{"local", "", ""}, {"native", "native", "NATIVE"}, {"llvm", "llvm", "LLVM"}, {"heap", "heap", "NATIVE|TRAIL"}} {
		out, err := runMake(t.TempDir(), "gcc", "", "print", "--eval", fmt.Sprintf("print: ; @echo $(%[1]s) $(%[1]s_objects)", c.library))
		files := strings.Fields(out)
		if err != nil || len(files) < 20 || len(files)%2 > 0 {
			t.Fatalf("%s: %v, %q", c.library, err, files)
		}
		looks := func(path string) bool {
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			return c.macros != "" && regexp.MustCompile(`(?m)^#\s*(el)?if.*\bUNSPOOL_(`+c.macros+`)\b`).Match(b)
		}
		n := len(files) / 2
		for i, source := range files[:n] {
			object := filepath.Base(files[n+i])
			apart := strings.HasSuffix(object, "."+c.way+".o")
			if looks(filepath.Join("..", source)) && !apart {
				t.Errorf("%s looks at UNSPOOL_%s, but %s has %s", source, c.macros, c.library, object)
			}
			own[source] = own[source] || apart
		}
		for _, header := range headers {
			if looks(header) {
				t.Errorf("%s looks at UNSPOOL_%s: each source that includes it needs an object for %s", header, c.macros, c.library)
			}
		}
	}
	for _, source := range []string{"eh_raise.c", "local_walk.c", "local_x86_64.S"} {
		if !own[source] {
			t.Errorf("no library has %s in a way of its own", source)
		}
	}
}
