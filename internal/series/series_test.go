package series

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

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
		if got := Name(c.output, c.endings, 7); got != c.want {
			t.Errorf("%s: %s, want %s", c.output, got, c.want)
		}
	}
	dir := t.TempDir()
	out := filepath.Join(dir, "heap.pb.gz")
	if n := Next(out, pprof); n != 1 {
		t.Errorf("the first is %d", n)
	}
	for _, name := range []string{"heap.pb.gz", "heap.002.pb.gz", "heap.1000.pb.gz", "heap.0001.pb.gz", "heap.1.pb.gz", "heap.-01.pb.gz", "heap.00x.pb.gz", "heap.999.svg", "other.5000.pb.gz", "heap.000.pb.gz", "heap.99999999999.pb.gz"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := Next(out, pprof); n != 1001 {
		t.Errorf("the next is %d", n)
	}
	if got, want := Beside(dir, "heap.pb.gz"), []string{"heap.002.pb.gz", "heap.1000.pb.gz"}; !slices.Equal(got, want) && !slices.Equal(got, []string{want[1], want[0]}) {
		t.Errorf("%q, want %q", got, want)
	}
	if Next(filepath.Join(dir, "none", "x.svg"), pprof) != 1 {
		t.Error("a directory that is not there")
	}
}
