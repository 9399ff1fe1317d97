package module

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// Of files that followed each other at a path and are gone, each is found where a process has both mapped.
func TestDeleted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	var ids []string
	for _, from := range []string{"/bin/ls", "/bin/sh"} {
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		img, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		ids = append(ids, hex.EncodeToString(img.BuildID()))
		os.Remove(path)
	}
	if _, err := os.Open(fmt.Sprintf("/proc/self/map_files/%x-%x", 0, 1)); errors.Is(err, fs.ErrPermission) {
		t.Skip("takes CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE")
	}
	var l Locator
	defer l.Close()
	for _, id := range ids {
		img, in, err := l.Find(path, id, os.Getpid())
		if err != nil || in != os.Getpid() || hex.EncodeToString(img.BuildID()) != id {
			t.Errorf("%q: %v, %v", id, in, err)
			continue
		}
		if again, in, err := l.Find(path, id, 0); again != img || in != os.Getpid() || err != nil {
			t.Errorf("%q is opened again: %v, %v", id, in, err)
		}
	}
}

// TestLocate: where a file is looked for, in which order, and which one is not taken for another; each is opened once.
func TestLocate(t *testing.T) {
	dir := t.TempDir()
	copied := func(from string, to ...string) (path, id string) {
		path = filepath.Join(append([]string{dir}, to...)...)
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			os.Remove(path)
			err = os.WriteFile(path, b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		img, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer img.Close()
		return path, hex.EncodeToString(img.BuildID())
	}
	const ls, sh, cat = "/bin/ls", "/bin/sh", "/bin/cat"
	path, lsID := copied(ls, "prog")
	rooted, shID := copied(sh, "root", dir, "prog")
	_, catID := copied(cat, "cat")
	kept, _ := copied(cat, "dirs", ".build-id", catID[:2], catID[2:])
	perfs, _ := copied(sh, "perf", ".build-id", shID[:2], shID[2:], "elf")
	liar, _ := copied(cat, "liar", ".build-id", shID[:2], shID[2:])
	if lsID == shID || lsID == catID || shID == catID {
		t.Fatalf("programs with one build ID: %s has %q, %s has %q, %s has %q; this test needs three", ls, lsID, sh, shID, cat, catID)
	}
	asIs, err := Open(perfs)
	if err != nil {
		t.Fatal(err)
	}
	own := asIs.File().Private // it is, unless others may write to the directory of temporary files
	asIs.Close()
	none := ""
	root, dirs, perf, lies := filepath.Join(dir, "root"), []string{filepath.Join(dir, "dirs")}, []string{filepath.Join(dir, "perf")}, []string{filepath.Dir(filepath.Dir(filepath.Dir(liar)))}
	for _, c := range []struct {
		what     string
		sysroot  string
		dirs     []string
		name, id string
		want     string // path
		replaced bool
	}{
		{"the path", "", nil, path, lsID, path, false},
		{"the path, no build ID", "", nil, path, "", path, false},
		{"another at the path", "", nil, path, shID, none, true},
		{"another at the path, which has no build ID in the recording", "", nil, path, Another, none, true},
		{"the root directory goes first", root, nil, path, "", rooted, false},
		{"the root directory, of a file that is not at the path", root, nil, path, Another, rooted, false},
		{"another in the root directory", root, nil, path, lsID, path, false},
		{"the root directory", root, dirs, path, shID, rooted, false},
		{"by build ID", root, dirs, path, catID, kept, false},
		{"by build ID, as perf keeps it", "", append(dirs, perf...), path, shID, perfs, false},
		{"by build ID, and it is another", "", lies, path, shID, none, true},
		{"by build ID, nothing at the path", "", dirs, "/nonexistent", catID, kept, false},
		{"no such path", "", dirs, "/nonexistent", shID, none, false},
		{"a build ID that is none", "", dirs, path, "../../etc", none, true},
	} {
		l := Locator{Sysroot: c.sysroot, Dirs: c.dirs}
		img, in, err := l.Find(c.name, c.id, 0)
		var other *ReplacedError
		if errors.As(err, &other) != c.replaced || (err != nil) != (c.want == none) || in != 0 {
			t.Errorf("%s: %v, process %d", c.what, err, in)
		}
		if img == nil {
			if c.want != none {
				t.Errorf("%s: nothing", c.what)
			}
			continue
		}
		if img.Name() != c.want {
			t.Errorf("%s: %s, want %s", c.what, img.Name(), c.want)
		}
		if private := own && c.want != kept && c.want != perfs; img.File().Private != private {
			t.Errorf("%s: private is %v", c.what, !private)
		}
		var again [8]*Image
		var wg sync.WaitGroup
		for i := range again {
			wg.Go(func() { again[i], _, _ = l.Find(c.name, c.id, 0) })
		}
		wg.Wait()
		for _, x := range again {
			if x != img {
				t.Errorf("%s: opened more than once", c.what)
			}
		}
		if err := l.Close(); err != nil || img.holders.Load() != 9 || len(img.Bytes()) == 0 {
			t.Errorf("%s: not mapped although it is held; %v", c.what, err)
		}
		for range 9 {
			img.Release()
		}
		if img.b != nil || img.Hold() {
			t.Errorf("%s: still mapped", c.what)
		}
	}

	// What is open stays, whatever becomes of the path; without a build ID, another file there is another image.
	var l Locator
	defer l.Close()
	first, _, _ := l.Find(path, "", 0)
	known, _, _ := l.Find(path, lsID, 0)
	copied(sh, "prog")
	if img, _, err := l.Find(path, "", 0); img == nil || img == first || hex.EncodeToString(img.BuildID()) != shID {
		t.Errorf("after another file took the path: %v", err)
	}
	if img, _, err := l.Find(path, lsID, 0); img == nil || img != known {
		t.Errorf("the file that was open is gone: %v", err)
	}
	for _, name := range []string{"//anon", "[heap]", "", "/memfd:x (deleted)", "/dev/zero", filepath.Join(dir, "jit-1.dump")} {
		if img, _, err := l.Find(name, lsID, os.Getpid()); img != nil || err != nil {
			t.Errorf("%q: %v, %v", name, img, err)
		}
	}
	vdso, missing := VDSO()
	img, _, err := l.Find("[vdso]", "", 0)
	if (err == nil) != (missing == nil) {
		t.Errorf("Find: %v; VDSO: %v; want both or none", err, missing)
	}
	if err == nil {
		l.Close()
		if img != vdso || len(vdso.Bytes()) == 0 {
			t.Errorf("after Close, the vDSO has %d bytes, want some; Find gave the vDSO: %v, want true", len(vdso.Bytes()), img == vdso)
		}
	}
}

// TestLocateDebug: separate debug files are those of a build ID, and each is opened once.
func TestLocateDebug(t *testing.T) {
	dir := t.TempDir()
	put := func(from string, to ...string) string {
		t.Helper()
		path := filepath.Join(append([]string{dir}, to...)...)
		b, err := os.ReadFile(from)
		if err == nil {
			err = errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	var ids []string
	for _, path := range []string{"/bin/ls", "/bin/sh", "/bin/cat"} {
		img, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, hex.EncodeToString(img.BuildID()))
		img.Close()
	}
	ls, sh, cat := ids[0], ids[1], ids[2]
	own := put("/bin/ls", "one", ".build-id", ls[:2], ls[2:]+".debug")
	perfs := put("/bin/sh", "two", ".build-id", sh[:2], sh[2:], "debug")
	asIs, err := Open(perfs)
	if err != nil {
		t.Fatal(err)
	}
	mine := asIs.File().Private
	asIs.Close()
	put("/bin/ls", "one", ".build-id", cat[:2], cat[2:]+".debug") // another
	put("/bin/cat", "one", "file")
	l := Locator{DebugDirs: []string{filepath.Join(dir, "none"), filepath.Join(dir, "one", "file"), filepath.Join(dir, "one")}, Dirs: []string{filepath.Join(dir, "two")}}
	defer l.Close()
	for _, c := range []struct{ what, id, path, err string }{
		{"a debug file", ls, own, ""},
		{"one that perf keeps", sh, perfs, ""},
		{"another in its place", cat, "", "it has build ID"},
		{"none", "0123456789", "", ""},
		{"no build ID", "", "", ""},
		{"a build ID that is none", "../../../bin/sh", "", ""},
	} {
		img, err := l.Debug(c.id)
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.what, err, c.err)
		}
		if (img == nil) != (c.path == "") || img != nil && img.Name() != c.path {
			t.Errorf("%s: %+v, want %q", c.what, img, c.path)
		}
		if private := mine && c.path != perfs; img != nil && img.File().Private != private {
			t.Errorf("%s: private is %v", c.what, !private)
		}
		if again, _ := l.Debug(c.id); again != img {
			t.Errorf("%s: opened again", c.what)
		}
	}
	if got := (&Locator{}).DebugRoots(); len(got) != 1 || got[0] != DebugDir {
		t.Errorf("by default: %q", got)
	}
	if got := (&Locator{DebugDirs: []string{}}).DebugRoots(); len(got) != 0 {
		t.Errorf("of none: %q", got)
	}
}

// TestDebugPaths: what is no build ID has no path, so no text of a file leads out of the directories.
func TestDebugPaths(t *testing.T) {
	dirs := []string{DebugDir, "/two/"}
	for id, want := range map[string][]string{
		"ab12": {"/usr/lib/debug/.build-id/ab/12.debug", "/two/.build-id/ab/12.debug"},
		"AB12": {"/usr/lib/debug/.build-id/AB/12.debug", "/two/.build-id/AB/12.debug"},
		"":     nil, "ab": nil, "ab1": nil, "ab123": nil, "../../../bin/sh": nil, Another: nil,
	} {
		if got := DebugPaths(dirs, id); !slices.Equal(got, want) {
			t.Errorf("DebugPaths(%q, %q) = %q, want %q", dirs, id, got, want)
		}
	}
	if got := DebugPaths(nil, "ab12"); got != nil {
		t.Errorf("below no directory: %q", got)
	}
}

// TestSearchSame: a file that its caller recognises is looked for in the same places; what is wrong with each other file is told, and nothing of
// files that cannot be opened. What was judged is what others find.
func TestSearchSame(t *testing.T) {
	dir := t.TempDir()
	put := func(b []byte, to ...string) string {
		t.Helper()
		path := filepath.Join(append([]string{dir}, to...)...)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, b, 0o600)); err != nil {
			t.Fatal(err)
		}
		return path
	}
	read := func(path string) (b []byte, id string) {
		t.Helper()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		img, err := New(path, b)
		if err != nil {
			t.Fatal(err)
		}
		return b, hex.EncodeToString(img.BuildID())
	}
	ls, id := read("/bin/ls")
	sh, shID := read("/bin/sh")
	exe, path := put(sh, "exe"), put(sh, "prog")
	below := put(sh, "root", path)
	kept := put(ls, "dirs", ".build-id", id[:2], id[2:])
	text, none := put([]byte("no image"), "text"), filepath.Join(dir, "none")
	outside := put(ls, "outside")
	link := filepath.Join(dir, "root", dir, "link")
	if err := os.Symlink(outside, link); err != nil {
		t.Fatal(err)
	}
	isLs := func(img *Image) error {
		if len(img.Bytes()) != len(ls) {
			return errors.New("too " + map[bool]string{true: "short", false: "long"}[len(img.Bytes()) < len(ls)])
		}
		return nil
	}
	size := "too short"
	if len(sh) > len(ls) {
		size = "too long"
	}
	for _, c := range []struct {
		what    string
		w       Wanted
		want    string
		refused []string // path: reason
	}{
		{"all places", Wanted{Path: path, First: exe, BuildID: id, Same: isLs}, kept, []string{exe + ": " + size, below + ": " + size, path + ": " + size}},
		{"no build ID", Wanted{Path: path, First: exe, Same: isLs}, "", []string{exe + ": " + size, below + ": " + size, path + ": " + size}},
		{"the path is the first one, too", Wanted{Path: path, First: path, Same: isLs}, "", []string{path + ": " + size, below + ": " + size}},
		{"the first", Wanted{Path: path, First: kept, Same: isLs}, kept, nil},
		{"everything is the file", Wanted{Path: path}, below, nil},
		{"the first cannot be opened", Wanted{First: none, BuildID: id, Same: isLs}, kept, []string{none + ": open " + none + ": no such file or directory"}},
		{"the path cannot be opened", Wanted{Path: none, Same: isLs}, "", nil},
		{"the first is no image", Wanted{First: text, Path: text}, "", []string{text + ": " + text + "+0x0: header: not an ELF, Mach-O or PE file"}},
		{"a link that leads out of the root directory", Wanted{Path: filepath.Join(dir, "link"), Same: isLs}, link, nil},
		{"a device", Wanted{Path: "/dev/zero", Same: isLs}, "", nil},
		{"truncated while it is read", Wanted{Path: put(ls, "cut"), Same: func(img *Image) error {
			if err := os.Truncate(img.Name(), 0); err != nil {
				t.Error(err)
			}
			return fmt.Errorf("a byte is %d", img.Bytes()[0])
		}}, "", []string{filepath.Join(dir, "cut") + ": a mapped file was truncated while it was read"}},
	} {
		l := Locator{Sysroot: filepath.Join(dir, "root"), Dirs: []string{filepath.Join(dir, "dirs")}}
		img, in, refused := l.Search(c.w)
		ok := len(refused) == len(c.refused) && in == 0 && (img == nil) == (c.want == "")
		for i := 0; ok && i < len(refused); i++ {
			r := refused[i]
			ok = strings.HasPrefix(r.Path+": "+r.Err.Error(), c.refused[i]) && r.Opened != (r.Path == none || r.Path == text)
		}
		if !ok {
			t.Errorf("%s: %v, process %d, refused %v, want %q, refused %q", c.what, img, in, refused, c.want, c.refused)
		}
		if img != nil {
			if img.Name() != c.want {
				t.Errorf("%s: %s, want %s", c.what, img.Name(), c.want)
			}
			if again, _, err := l.Find(c.want, c.w.BuildID, 0); c.w.BuildID != "" && again != img {
				t.Errorf("%s: Find opens it again: %v", c.what, err)
			}
			if private := img.File().Private; private && c.want == kept && c.w.First == "" {
				t.Errorf("%s: a file of Dirs is private", c.what)
			}
			img.Release()
		}
		l.Close()
	}

	// What was found below the root directory is found again by its name there; a link out of it leads to nothing that no build ID tells from others.
	l := Locator{Sysroot: filepath.Join(dir, "root")}
	defer l.Close()
	for _, c := range []struct{ name, id, want string }{
		{below, shID, below},
		{below, "", below},
		{filepath.Join(dir, "link"), id, link},
		{filepath.Join(dir, "link"), "", ""},
	} {
		img, _, err := l.Find(c.name, c.id, 0)
		if (img == nil) != (c.want == "") || img != nil && img.Name() != c.want {
			t.Errorf("%s, build ID %q: %v, %v, want %q", c.name, c.id, img, err, c.want)
		}
	}
}
