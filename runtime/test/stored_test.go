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
}
