package symbol

import (
	"fmt"
	"testing"
)

// TestNamesBound: when there are too many names, those that are known stay, further ones are shown as they are linked, and a note says so.
func TestNamesBound(t *testing.T) {
	defer func(was int) { maxNames = was }(maxNames)
	maxNames = 1 << 10
	r := New(Options{})
	defer r.Close()
	name := func(i int) (linkage, full string) { return fmt.Sprintf("_Z4fn%02dv", i), fmt.Sprintf("fn%02d()", i) }
	last := 0
	for ; !r.names.full(); last++ {
		if linkage, full := name(last); r.names.get(linkage, false) != full {
			t.Fatalf("%s is %s, want %s", linkage, r.names.get(linkage, false), full)
		}
	}
	if notes := r.Notes(); notes != nil {
		t.Errorf("notes before a name was left as it is linked: %q", notes)
	}
	for _, plain := range []string{"main", "_start"} {
		r.names.get(plain, false)
	}
	if linkage, full := name(last - 1); r.names.get(linkage, false) != full || r.Notes() != nil {
		t.Errorf("%s is %s, want %s; notes %q", linkage, r.names.get(linkage, false), full, r.Notes())
	}
	linkage, _ := name(last)
	if got := r.names.get(linkage, false); got != linkage {
		t.Errorf("%s is %s beyond the bound", linkage, got)
	}
	if notes := r.Notes(); len(notes) != 1 {
		t.Errorf("notes %q, want one", notes)
	}
}
