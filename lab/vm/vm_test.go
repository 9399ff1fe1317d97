package vm

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestResults: results are found on a console that shows other text, too.
func TestResults(t *testing.T) {
	want := []Result{
		{Name: "one", Seconds: 1.5, Stdout: []byte("a\x00b\n"), Stderr: []byte("@unspool no\n")},
		{Name: "two", Exit: -1, PID: 7, Files: map[string][]byte{"/tmp/x": bytes.Repeat([]byte("0123456789"), 5000)}},
	}
	var b bytes.Buffer
	b.WriteString("\x1b[2J\x1b[01;00HBooting from ROM..")
	for _, r := range want {
		if err := Print(&b, r); err != nil {
			t.Fatal(err)
		}
		b.WriteString("[    1.0] a message\n")
	}
	// As a terminal writes it.
	got, other, err := results(strings.NewReader(strings.ReplaceAll(b.String(), "\n", "\r\n")))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, err, want)
	}
	if string(other) != strings.Repeat("[    1.0] a message\n", 2) {
		t.Errorf("besides: %q", other)
	}
	cut := b.Bytes()[:b.Len()/2]
	if got, _, _ := results(bytes.NewReader(cut)); len(got) != 1 {
		t.Errorf("of the first half: %d results", len(got))
	}
}

// TestDirectories: directories come before what is in them, once each.
func TestDirectories(t *testing.T) {
	var r Root
	r.Add("/a/b/c", 0o644, []byte("x"))
	r.Add("a/b/d", 0o755, nil)
	r.Link("a/l", "b/c")
	var names []string
	for _, f := range r.files {
		names = append(names, f.name)
	}
	if got, want := strings.Join(names, " "), "a a/b a/b/c a/b/d a/l"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestTree: a directory's files, directories and links are at the same places in the root, executable ones still so.
func TestTree(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"usr/bin", "empty"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(dir, "bin")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "usr/bin/x"), []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	var r Root
	if err := r.Tree(dir); err != nil {
		t.Fatal(err)
	}
	want := []file{{"bin", 0o120777, []byte("usr/bin")}, {"empty", 0o040755, nil}, {"usr", 0o040755, nil}, {"usr/bin", 0o040755, nil}, {"usr/bin/x", 0o100755, []byte("x")}}
	if !reflect.DeepEqual(r.files, want) {
		t.Errorf("%v, want %v", r.files, want)
	}
}
