package symbol

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procroot"
	"github.com/unspool/unspool/module"
)

// inlining is a C++ program in which calls are inlined; its functions have parameters that their names show.
func inlining(t testing.TB) (path, id string) {
	t.Helper()
	oracle.Need(t, "g++", "objcopy", "strip")
	dir := t.TempDir()
	path = filepath.Join(dir, "p")
	write(t, path+".cc", `namespace n {
template <class T> __attribute__((always_inline)) inline T twice(T a) {
	volatile T b = a;
	return b + b;
}
__attribute__((noinline)) int outer(int a) {
	return twice(a) + 1;
}
}
int main(int c, char **) { return n::outer(c); }
`)
	oracle.Run(t, "g++", "-O1", "-g", "-Wl,--build-id", "-o", path, path+".cc")
	img, err := module.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer img.Close()
	return path, hex.EncodeToString(img.BuildID())
}

// placesOf returns the places of all addresses of n::outer.
func placesOf(tab *Table, lo, hi arch.Vaddr) [][]Place {
	var addrs []arch.Vaddr
	for v := lo; v < hi; v++ {
		addrs = append(addrs, v)
	}
	return tab.Places(addrs)
}

// TestDebugFiles: the same names, lines and inlined calls from a file, and from its debug file wherever that is.
func TestDebugFiles(t *testing.T) {
	oracle.Long(t)
	whole, id := inlining(t)
	nowhere := []string{filepath.Join(t.TempDir(), "nowhere")}
	r := New(Options{Files: &module.Locator{DebugDirs: nowhere}})
	defer r.Close()
	tab := r.Module(whole, id)
	lo, hi, ok := tab.FuncRange("_ZN1n5outerEi")
	if !ok {
		t.Fatalf("%s has no _ZN1n5outerEi: %q", whole, tab.Note())
	}
	want := placesOf(tab, lo, hi)
	if !slices.ContainsFunc(want, func(p []Place) bool {
		return len(p) == 2 && p[0].Name == "int n::twice<int>(int)" && p[0].Line == 3 && p[1].Name == "n::outer(int)" && p[1].Line == 7
	}) {
		t.Fatalf("%+v", want)
	}

	dir := t.TempDir()
	bin := filepath.Join(dir, "bin")
	os.Mkdir(bin, 0o700)
	bare, debug := filepath.Join(bin, "p"), filepath.Join(dir, "p.debug")
	oracle.Run(t, "objcopy", "--only-keep-debug", whole, debug)
	linked := func(name string, sum []byte) {
		t.Helper()
		os.WriteFile(filepath.Join(dir, "link"), append(append([]byte(name), make([]byte, 4-len(name)%4)...), sum...), 0o600)
		oracle.Run(t, "strip", "-o", bare, whole)
		oracle.Run(t, "objcopy", "--add-section", ".gnu_debuglink="+filepath.Join(dir, "link"), bare)
	}
	b, err := os.ReadFile(debug)
	if err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "strip", "-o", bare, whole)
	oracle.Run(t, "objcopy", "--add-gnu-debuglink="+debug, bare)
	debugDir := filepath.Join(dir, "debug")
	get := func(kind string) func([]byte, string) (string, error) {
		return func(ask []byte, what string) (string, error) {
			if hex.EncodeToString(ask) == id && what == kind {
				return debug, nil
			}
			return "", errors.New("not there")
		}
	}
	for _, c := range []struct {
		what string
		put  string // where the debug file is
		opt  Options
		path string
		ok   bool
		note string
	}{
		{"nowhere", "", Options{Files: &module.Locator{DebugDirs: nowhere}}, bare, false, ""},
		{"by build ID", filepath.Join(debugDir, ".build-id", id[:2], id[2:]+".debug"), Options{Files: &module.Locator{DebugDirs: []string{debugDir}}}, bare, true, ""},
		{"by link, beside", filepath.Join(bin, "p.debug"), Options{Files: &module.Locator{DebugDirs: nowhere}}, bare, true, ""},
		{"by link, in .debug", filepath.Join(bin, ".debug", "p.debug"), Options{Files: &module.Locator{DebugDirs: nowhere}}, bare, true, ""},
		{"by link, in the directory of debug files", filepath.Join(debugDir, bin, "p.debug"), Options{Files: &module.Locator{DebugDirs: []string{debugDir}}}, bare, true, ""},
		{"fetched", "", Options{Files: &module.Locator{DebugDirs: nowhere}, Fetch: get("debuginfo")}, bare, true, ""},
		{"fetched, the file gone", "", Options{Files: &module.Locator{DebugDirs: nowhere}, Fetch: get("debuginfo")}, filepath.Join(dir, "gone"), true, ""},
		{"another checksum", "damaged", Options{Files: &module.Locator{DebugDirs: nowhere}}, bare, false, "checksum"},
	} {
		put := c.put
		if put == "damaged" {
			put = filepath.Join(bin, "p.debug")
			b[len(b)-1] ^= 1
		}
		if put != "" {
			os.MkdirAll(filepath.Dir(put), 0o700)
			os.WriteFile(put, b, 0o600)
		}
		r := New(c.opt)
		tab := r.Module(c.path, id)
		got := placesOf(tab, lo, hi)
		if s, found := tab.Lookup(lo); c.ok && (!reflect.DeepEqual(got, want) || !found || s.Name != "n::outer(int)") || !c.ok && (got[0] != nil || found) {
			t.Errorf("%s: %+v\n%+v", c.what, s, got)
		}
		if !strings.Contains(tab.Note(), c.note) || c.note == "" && tab.Note() != "" {
			t.Errorf("%s: note %q", c.what, tab.Note())
		}
		if notes := r.Notes(); (len(notes) > 0) != (c.note != "") {
			t.Errorf("%s: notes %q", c.what, notes)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if got := tab.Places([]arch.Vaddr{lo}); got[0] != nil {
			t.Errorf("%s: places after Close", c.what)
		}
		if put != "" {
			os.Remove(put)
		}
	}
	for _, name := range []string{"../../p.debug", "..", "/etc/passwd"} {
		linked(name, []byte{1, 2, 3, 4})
		r := New(Options{Files: &module.Locator{DebugDirs: nowhere}})
		if tab := r.Module(bare, ""); tab.Places([]arch.Vaddr{lo})[0] != nil || tab.Note() != "" {
			t.Errorf("a link to %q: note %q", name, tab.Note())
		}
		r.Close()
	}
	// A fetched executable stands for a file that is not here.
	r = New(Options{Files: &module.Locator{DebugDirs: nowhere}, Fetch: func(_ []byte, kind string) (string, error) {
		if kind == "executable" {
			return whole, nil
		}
		return "", errors.New("not there")
	}})
	defer r.Close()
	gone := r.Module("/nonexistent/p", id)
	off, _ := tab.img.VaddrToOff(lo)
	if v, ok := gone.OffToVaddr(off); !ok || v != lo || !reflect.DeepEqual(placesOf(gone, lo, hi), want) || gone.Note() != "" {
		t.Errorf("a fetched executable: %#x, %v, %q", v, ok, gone.Note())
	}
}

// TestPlacesConcurrent: one table, many callers. The race detector judges.
func TestPlacesConcurrent(t *testing.T) {
	path, _ := inlining(t)
	r := New(Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			tab := r.Module(path, "")
			lo, hi, _ := tab.FuncRange("_ZN1n5outerEi")
			if p := placesOf(tab, lo, hi); len(p) == 0 || p[0] == nil {
				t.Errorf("%+v", p)
			}
			r.Notes()
		})
	}
	wg.Wait()
	wg.Go(func() { r.Close() })
	wg.Go(func() { r.Module(path, "").Places([]arch.Vaddr{0x1100}) })
	wg.Wait()
}

// TestContainer: a file that only a process with another root directory has.
func TestContainer(t *testing.T) {
	root := t.TempDir()
	pid := oracle.Contained(t, root, "only-in-there", "#include <unistd.h>\nint main(void) { write(1, \"\", 1); char c; return read(0, &c, 1); }\n", "-g")
	img, err := module.Open(filepath.Join(root, "only-in-there"))
	if err != nil {
		t.Fatal(err)
	}
	id := hex.EncodeToString(img.BuildID())
	img.Close()
	for end := time.Now().Add(10 * time.Second); !slices.Contains(procroot.Others(), pid) && time.Now().Before(end); { // it does not look often
		time.Sleep(time.Millisecond)
	}

	for _, c := range []struct {
		id string
		ok bool
	}{{id, true}, {"", false}, {strings.Repeat("ab", 20), false}} {
		r := New(Options{})
		tab := r.Module("/only-in-there", c.id)
		lo, _, ok := tab.FuncRange("main")
		if ok != c.ok || (tab.Note() == "") != c.ok {
			t.Errorf("build ID %q: %v; note %q", c.id, ok, tab.Note())
		}
		if p := tab.Places([]arch.Vaddr{lo}); c.ok && (len(p[0]) == 0 || p[0][0].Line != 2) {
			t.Errorf("%+v", p)
		}
		r.Close()
	}
}

// TestStrippedGo: names, lines and inlined calls of a Go program without symbols.
func TestStrippedGo(t *testing.T) {
	oracle.Need(t, "strip")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bare := filepath.Join(t.TempDir(), "bare")
	oracle.Run(t, "strip", "-o", bare, self)
	r := New(Options{})
	defer r.Close()
	whole, tab := r.Module(self, ""), r.Module(bare, "")
	for _, name := range []string{"runtime.mallocgc", "github.com/unspool/unspool/symbol.(*Table).load"} {
		lo, hi, ok := tab.FuncRange(name)
		wantLo, wantHi, _ := whole.FuncRange(name)
		if !ok || lo != wantLo || hi < wantHi {
			t.Errorf("%s: %#x-%#x, %v, want %#x-%#x", name, lo, hi, ok, wantLo, wantHi)
			continue
		}
		p := placesOf(tab, lo, wantHi)
		if name == "runtime.mallocgc" && !slices.ContainsFunc(p, func(p []Place) bool { return len(p) > 1 && p[len(p)-1].Name == name && p[0].Line > 0 }) {
			t.Errorf("%s has no inlined calls: %s", name, fmt.Sprint(p)[:200])
		}
	}
	if tab.Note() != "" {
		t.Errorf("Note of %s = %q, want none", bare, tab.Note())
	}
}

func FuzzDebugLink(f *testing.F) {
	f.Add([]byte("a.debug\x00\x01\x02\x03\x04"))
	f.Add([]byte("../a\x00\x00\x00\x00\x01\x02\x03\x04"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if name, _, ok := parseLink(b, binary.LittleEndian); ok && (name == "" || filepath.Base(name) != name || name == "..") {
			t.Errorf("%q", name)
		}
	})
}

// TestPrivate: names are root's own only if all files that they come from are, and the module's is the one that ran.
func TestPrivate(t *testing.T) {
	oracle.Need(t, "gcc", "objcopy")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	top, err := os.MkdirTemp("/tmp", "private")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(top)
	prog, debug := filepath.Join(top, "prog"), filepath.Join(top, ".debug", "prog.debug")
	os.Mkdir(filepath.Dir(debug), 0o755)
	script := `echo 'int secret(void) { return 1; } int main(void) { return secret(); }' | gcc -g -O0 -Wl,--build-id=none -x c - -o prog &&
objcopy --only-keep-debug prog .debug/prog.debug && objcopy --strip-all prog && objcopy --add-gnu-debuglink=.debug/prog.debug prog && chmod 755 prog`
	sh := exec.Command("sh", "-c", script)
	sh.Dir = top
	if out, err := sh.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	os.Chmod(top, 0o777|os.ModeSticky)
	private := func(id string) bool {
		r := New(Options{})
		defer r.Close()
		tab := r.Module(prog, id)
		if lo, hi, ok := tab.FuncRange("secret"); !ok || len(placesOf(tab, lo, hi)[0]) == 0 {
			t.Errorf("%s with build ID %q: no function with places is called secret: FuncRange = %#x, %#x, %v; note %q", prog, id, lo, hi, ok, tab.Note())
		}
		return tab.Private()
	}
	if !private("") {
		t.Errorf("Private is false of %s with %s; want true: only root could have written them", prog, debug)
	}
	if private("0123456789abcdef0123456789abcdef01234567") {
		t.Errorf("Private is true of %s, which has no build ID, for a module that has one; want false: it is not known to be the file that ran", prog)
	}
	os.Chown(debug, 12345, 12345)
	if private("") {
		t.Errorf("Private is true of %s with %s, which is user 12345's; want false", prog, debug)
	}
}
