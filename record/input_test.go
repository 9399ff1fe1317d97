package record

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// TestOpenInput: what a file is said by its first bytes, which are still there, of a pipe, too.
func TestOpenInput(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		head  []byte
		pprof bool
	}{
		"perf.data":      {[]byte("PERFILE2 and so on"), false},
		"gzip":           {[]byte{0x1f, 0x8b, 8, 0}, true},
		"pprof":          {[]byte{0x0a, 4, 8, 1, 16, 2}, true},
		"one byte":       {[]byte{0x1f}, false},
		"empty":          {nil, false},
		"something else": {[]byte("\x7fELF"), false},
	} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, c.head, 0o600); err != nil {
			t.Fatal(err)
		}
		check := func(how, path string) {
			in, err := openInput(path)
			if err != nil {
				t.Fatalf("%s, %s: %v", name, how, err)
			}
			defer in.Close()
			if b, err := io.ReadAll(in); in.pprof != c.pprof || err != nil || !bytes.Equal(b, c.head) {
				t.Errorf("%s, %s: pprof %v, %q, %v; want %v, %q", name, how, in.pprof, b, err, c.pprof, c.head)
			}
		}
		check("a file", path)
		if err := CheckInput(path); (err == nil) != c.pprof {
			t.Errorf("CheckInput of %s: %v", name, err)
		}

		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		go func() { w.Write(c.head); w.Close() }()
		was := os.Stdin
		os.Stdin = r
		check("a pipe", "-")
		os.Stdin = was
	}
	if err := CheckInput("-"); err != nil {
		t.Errorf("CheckInput(-): %v", err)
	}
	for _, path := range []string{filepath.Join(dir, "none"), dir} {
		if in, err := openInput(path); err == nil && path != dir {
			in.Close()
			t.Errorf("openInput(%s): no error", path)
		}
	}
	if err := CheckInput(filepath.Join(dir, "none")); !os.IsNotExist(err) {
		t.Errorf("CheckInput of what is not there: %v", err)
	}
}
