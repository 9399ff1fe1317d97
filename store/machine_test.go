package store

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestMachine: what has not changed is known without being opened; what has changed or gone is removed, and so is what earlier versions made.
// Nothing else in the directory is.
func TestMachine(t *testing.T) {
	settled = 0
	defer func() { settled = settledBefore }()
	dir := machineDir(t)
	in := t.TempDir()
	a, b, c := filepath.Join(in, "a"), filepath.Join(in, "b"), filepath.Join(in, "c\n \"")
	sh, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string][]byte{a: sh, c: bareELF()} {
		if err := os.WriteFile(path, data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	poisoned(t, "/bin/sh", b)
	time.Sleep(20 * time.Millisecond) // a tick of the clock of files
	m := openMachine(t, "")
	names := map[string]string{}
	for _, path := range []string{a, b, c} {
		if _, known := m.Known(path); known {
			t.Errorf("%q is known", path)
		}
		names[path] = keepAt(t, m, path)
	}
	if names[c] != "" || names[a] == names[b] {
		t.Errorf("%q", names)
	}
	foreign := filepath.Join(dir, "foreign")
	old := filepath.Join(dir, strings.TrimSuffix(names[a], tableEnding)+".1")
	for _, path := range []string{foreign, old} {
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	p, err := m.Prune()
	if err != nil || p.Gone != 1 || p.Left != 2 || p.LeftBytes == 0 {
		t.Errorf("%+v, %v", p, err)
	}
	again := func() *Machine { m.Close(); m = openMachine(t, ""); return m }
	again()
	for path, name := range names {
		if size, known := m.Known(path); !known || size > 0 != (name != "") {
			t.Errorf("%q: %d bytes, known %v", path, size, known)
		}
	}
	if p, err := m.Prune(); err != nil || p.Gone != 0 || p.Left != 2 {
		t.Errorf("nothing has changed: %+v, %v", p, err)
	}
	// a changes, b goes.
	if err := errors.Join(os.Remove(b), os.Remove(a), os.WriteFile(a, sh, 0o755)); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	again()
	if size, known := m.Known(a); known {
		t.Errorf("%s, which has changed, is known, with a table of %d bytes; want false", a, size)
	}
	if got := keepAt(t, m, a); got != names[a] || m.Stats().Built != 0 {
		t.Errorf("%s, %+v: the same contents have the same table", got, m.Stats())
	}
	p, err = m.Prune()
	if err != nil || p.Gone != 1 || p.Left != 1 {
		t.Errorf("one has gone: %+v, %v", p, err)
	}
	links, _ := filepath.Glob(filepath.Join(dir, "at-*"))
	if list := readDir(t, dir); len(list) != 5 || len(links) != 1 { // index, lock, foreign, a table, a link
		t.Errorf("left: %q", list)
	}
	// A table that somebody has removed is made again; an index of another version says nothing, and costs no table.
	os.Remove(filepath.Join(dir, names[a]))
	again()
	if size, known := m.Known(a); known {
		t.Errorf("%s, whose table %s is gone, is known, with a table of %d bytes; want false", a, names[a], size)
	}
	keepAt(t, m, a)
	if _, err := m.Prune(); err != nil {
		t.Fatal(err)
	}
	index := filepath.Join(dir, indexName)
	text, err := os.ReadFile(index)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(index, []byte("unspool index 0\n"+strings.SplitN(string(text), "\n", 2)[1]), 0o644); err != nil {
		t.Fatal(err)
	}
	again()
	if size, known := m.Known(a); known {
		t.Errorf("an index of another version is believed: it knows %s, with a table of %d bytes; want false", a, size)
	}
	keepAt(t, m, a)
	if p, err := m.Prune(); err != nil || p.Gone != 0 || p.Left != 1 || m.Stats().Built != 0 {
		t.Errorf("%+v, %v, %+v", p, err, m.Stats())
	}
}

// TestMachineAlone: two that write do so one after the other, and who need not wait any more does not. Others than root, and directories of others,
// are refused.
func TestMachineAlone(t *testing.T) {
	dir := machineDir(t)
	m := openMachine(t, dir)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := OpenMachine(ctx, dir); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a second one: %v", err)
	}
	time.AfterFunc(50*time.Millisecond, func() { m.Close() })
	openMachine(t, dir)
	bad := t.TempDir()
	if err := os.Chmod(bad, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenMachine(t.Context(), bad); err == nil {
		t.Errorf("OpenMachine takes %s, of mode %v, which all can write to; want an error", bad, stat(t, bad).Mode())
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	oracle.Need(t, "setpriv")
	cmd := exec.Command("setpriv", "--reuid", "65534", "--clear-groups", exe, "-test.run", "TestMachineUser")
	cmd.Env = []string{"UNSPOOL_TEST_DIR=" + dir}
	cmd.Dir = "/"
	if out, err := cmd.CombinedOutput(); err != nil && strings.Contains(string(out), "denied") && !strings.Contains(string(out), "FAIL") {
		t.Skipf("this test lacks a test binary that others may run: %s", out)
	} else if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMachineUser is a part of TestMachineAlone, for another user.
func TestMachineUser(t *testing.T) {
	if os.Getenv("UNSPOOL_TEST_DIR") == "" {
		t.Skip("part of TestMachineAlone")
	}
	if _, err := OpenMachine(t.Context(), os.Getenv("UNSPOOL_TEST_DIR")); err == nil || !strings.Contains(err.Error(), "written by root only") {
		t.Errorf("OpenMachine of a user's directory = %v, want that root only may write it", err)
	}
}

func FuzzIndex(f *testing.F) {
	f.Add([]byte(indexHead + "\nat-1-2 name-own-x." + "3 \"/a\"\nat-1 - \"/b\"\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for path, e := range readIndex(b) {
			if strings.Contains(e.name, "/") || !strings.HasPrefix(e.file, "at-") {
				t.Errorf("%q: %q", path, e)
			}
		}
	})
}
