package series

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestPossible: snapshots lie beside files, and not beside pipes or devices.
func TestPossible(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "heap.svg")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for output, want := range map[string]bool{"": false, "-": false, "/dev/null": false, dir: false, file: true, filepath.Join(dir, "new.svg"): true} {
		if got := Possible(output); got != want {
			t.Errorf("%q: %v, want %v", output, got, want)
		}
	}
}

// TestNames: snapshots lie beside their output, sorted by number, and none gets the name of another.
func TestNames(t *testing.T) {
	pprof := []string{".pb.gz", ".pprof"}
	for _, c := range []struct {
		output, want string
		endings      []string
	}{
		{"heap.pb.gz", "heap.007.pb.gz", pprof},
		{"a/b.x.pprof", "a/b.x.007.pprof", pprof},
		{"heap.svg", "heap.007.svg", []string{".svg"}},
		{"heap", "heap.007", []string{".svg"}},
		{"heap.unknown", "heap.007.unknown", pprof},
		{".pb.gz", ".pb.007.gz", pprof},
		{"d.e/.heap", "d.e/.heap.007", pprof},
	} {
		if got := name(c.output, c.endings, 7); got != c.want {
			t.Errorf("%s: %s, want %s", c.output, got, c.want)
		}
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "heap.pb.gz")
	if n := next(out, pprof); n != 1 {
		t.Errorf("the first is %d", n)
	}
	for _, name := range []string{"heap.pb.gz", "heap.002.pb.gz", "heap.1000.pb.gz", "heap.0001.pb.gz", "heap.1.pb.gz", "heap.-01.pb.gz", "heap.00x.pb.gz", "heap.999.svg", "other.5000.pb.gz", "heap.000.pb.gz", "heap.99999999999.pb.gz"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := next(out, pprof); n != 1001 {
		t.Errorf("the next is %d", n)
	}
	if got, want := Beside(dir, "heap.pb.gz"), []string{"heap.002.pb.gz", "heap.1000.pb.gz"}; !slices.Equal(got, want) && !slices.Equal(got, []string{want[1], want[0]}) {
		t.Errorf("%q, want %q", got, want)
	}
	if n := next(filepath.Join(dir, "none", "x.svg"), pprof); n != 1 {
		t.Errorf("in a directory that is not there, the next is %d, want 1", n)
	}
}

// TestLast: the next number is one that is found again, whatever lies beside an output.
func TestLast(t *testing.T) {
	out := filepath.Join(t.TempDir(), "heap.pb.gz")
	for _, n := range []int{3, math.MaxInt32, math.MaxInt32 - 1} {
		if err := os.WriteFile(name(out, []string{".pb.gz"}, n), nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		next := name(out, []string{".pb.gz"}, next(out, []string{".pb.gz"}))
		if _, err := os.Stat(next); err == nil {
			t.Fatalf("%s would be overwritten", next)
		}
		if err := os.WriteFile(next, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWrite: who finds a number taken takes the next one.
func TestWrite(t *testing.T) {
	out, tries := filepath.Join(t.TempDir(), "heap.pb.gz"), 0
	first := name(out, nil, 1)
	path, err := Write(context.Background(), out, nil, func(w io.Writer) error {
		if tries++; tries == 1 { // another one is faster
			if err := os.WriteFile(first, []byte("other"), 0o666); err != nil {
				t.Fatal(err)
			}
		}
		_, err := io.WriteString(w, "mine")
		return err
	})
	if err != nil || tries != 2 || path != name(out, nil, 2) {
		t.Errorf("%s, %v, %d tries", path, err, tries)
	}
	for name, want := range map[string]string{first: "other", path: "mine"} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}
