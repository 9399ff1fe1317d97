package test

import (
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/store"
)

// TestStoredNames: the drop-in finds each table that package store keeps, by the names that table.c spells itself: of an ordinary
// program, of a library, and of a Go program whose rows come from Go's own table, too.
func TestStoredNames(t *testing.T) {
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src := filepath.Join(dir, "main.go")
	if err := os.WriteFile(src, []byte("package main\n\n// #include <stdlib.h>\nimport \"C\"\n\nfunc main() { C.abs(-1) }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	files := []string{"/bin/sh", "/lib/x86_64-linux-gnu/libc.so.6"}
	for _, flags := range []string{"", "-s -w"} {
		exe := filepath.Join(dir, "go"+strings.ReplaceAll(flags, " ", ""))
		cmd := exec.Command("go", "build", "-o", exe, "-ldflags", "-linkmode=external -extldflags=-Wl,--build-id "+flags, src)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		files = append(files, exe)
	}
	built := time.Now()
	prog := filepath.Join(dir, "stored")
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-I..", "-o", prog, "testdata/stored.c", "../table.c", "../core.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	time.Sleep(time.Until(built.Add(2100 * time.Millisecond))) // the store remembers no file that has changed in the last two seconds

	cache := filepath.Join(dir, "cache")
	kept, err := store.Open(cache)
	if err != nil {
		t.Fatal(err)
	}
	var args []string
	for _, path := range files {
		img := openImage(t, path)
		if img == nil || len(img.BuildID()) == 0 {
			t.Fatalf("%s has no build ID", path)
		}
		args = append(args, hex.EncodeToString(img.BuildID()), path)
		if tab, _, err := kept.Table(img); tab == nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	cmd := exec.Command(prog, args...)
	cmd.Env = []string{"UNSPOOL_CACHE=" + cache}
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	for i, got := range strings.Fields(string(out)) {
		if got != "found" {
			list, _ := os.ReadDir(cache)
			t.Errorf("%s: %s\n got %s\nwant found, among %v", files[i], args[2*i], got, list)
		}
	}
	if n := len(strings.Fields(string(out))); n != len(files) {
		t.Errorf("%d answers, want %d", n, len(files))
	}
	storedShared(t, prog, cache, args)
}

// storedShared has the drop-in look in the directories of all users: what only root can change is found, also where the user has no cache; a user's
// link leads to the table of a package; and nothing is taken that others could have made.
func storedShared(t *testing.T, prog, cache string, args []string) {
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root, who writes the store of all users")
	}
	dir := t.TempDir() // below /tmp, which is sticky
	machine, packaged, own := filepath.Join(dir, "machine"), filepath.Join(dir, "package"), filepath.Join(dir, "own")
	m, err := store.OpenMachine(t.Context(), machine)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	p, err := store.OpenPackage(packaged)
	if err != nil {
		t.Fatal(err)
	}
	os.Setenv(store.SharedVar, packaged)
	defer os.Unsetenv(store.SharedVar)
	links, err := store.Open(own) // links, and no table
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(args); i += 2 {
		img := openImage(t, args[i])
		for _, s := range []*store.Store{m.Store, p} {
			if name, _, _, err := s.Keep(img); name == "" || err != nil {
				t.Fatalf("%s: %v", args[i], err)
			}
		}
		if _, from, err := links.Table(img); from != store.Disk || err != nil {
			t.Fatalf("%s: %v, %v", args[i], from, err)
		}
	}
	each := func(mode os.FileMode, uid int) func() {
		return func() {
			tables, _ := filepath.Glob(filepath.Join(machine, "*-own-*"))
			for _, path := range tables {
				os.Chmod(path, mode)
				os.Chown(path, uid, 0)
			}
		}
	}
	for _, c := range []struct {
		what, cache, tables string
		do, undo            func()
		found               bool
	}{
		{"nothing", "/nowhere", "", nil, nil, false},
		{"the machine's", "/nowhere", machine, nil, nil, true},
		{"the second of some", own + "2", "relative:/nowhere::" + machine + ":", nil, nil, true},
		{"behind the user's", cache, machine, nil, nil, true},
		{"a package's, without links", "/nowhere", packaged, nil, nil, false},
		{"a package's, by the user's links", own, packaged, nil, nil, true},
		{"a package's, by the machine's links", "/nowhere", machine + ":" + packaged, nil, nil, true},
		{"another user's directory", "/nowhere", machine, func() { os.Chown(machine, 1, 0) }, func() { os.Chown(machine, 0, 0) }, false},
		{"a directory that a group writes", "/nowhere", machine, func() { os.Chmod(machine, 0o775) }, func() { os.Chmod(machine, 0o755) }, false},
		{"below a directory that all write", "/nowhere", machine, func() { os.Chmod(dir, 0o777) }, func() { os.Chmod(dir, 0o755) }, false},
		{"below a sticky directory that all write", "/nowhere", machine, func() { os.Chmod(dir, 0o777|os.ModeSticky) }, func() { os.Chmod(dir, 0o755) }, true},
		{"another user's files", "/nowhere", machine, each(0o644, 1), each(0o644, 0), false},
		{"files that a group writes", "/nowhere", machine, each(0o664, 0), each(0o644, 0), false},
	} {
		if c.do != nil {
			c.do()
		}
		cmd := exec.Command(prog, args...)
		cmd.Env = []string{"UNSPOOL_CACHE=" + c.cache, store.SharedVar + "=" + c.tables}
		out, err := cmd.Output()
		want := strings.Repeat(map[bool]string{true: "found\n", false: "none\n"}[c.found], len(args)/2)
		if err != nil || string(out) != want {
			t.Errorf("%s: %v\n got %q\nwant %q", c.what, err, out, want)
		}
		if c.undo != nil {
			c.undo()
		}
	}
}
