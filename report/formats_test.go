package report

import (
	"strings"
	"testing"
)

// TestFormats: each format writes something, says what it is for, and is the only one with its name and its endings; a longer ending goes
// before a shorter one that it contains.
func TestFormats(t *testing.T) {
	names, endings := map[string]bool{}, map[string]bool{}
	for i := range Formats {
		f := &Formats[i]
		if f.Name == "" || f.About == "" || f.Whole == nil && f.Stream == nil || names[f.Name] || Formats.Named(f.Name) != f {
			t.Errorf("%+v", f)
		}
		names[f.Name] = true
		for _, e := range f.Endings {
			if !strings.HasPrefix(e, ".") || endings[e] {
				t.Errorf("%s: ending %q", f.Name, e)
			}
			endings[e] = true
			if got := Formats.ByEnding("dir/x" + e); got != f {
				t.Errorf("x%s is %v, not %s", e, got, f.Name)
			}
		}
	}
	for _, path := range []string{"", "x", "x.data", "svg", "x.svg.old"} {
		if f := Formats.ByEnding(path); f != nil {
			t.Errorf("%q is %s", path, f.Name)
		}
	}
}
