package names

import (
	"fmt"
	"testing"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// TestLabels: a label is named by its text, one text is one frame, and names of threads cannot make more of them than there may be.
func TestLabels(t *testing.T) {
	n := New(Options{})
	defer n.Close()
	name := func(f unwind.Frame) string {
		var names [1]profile.Name
		n.User(f.Mapping.Module, []uint64{f.Mapping.FileOff(f.Addr())}, names[:])
		return names[0].Func
	}
	first := n.Label("[woken by 0]", "[others]")
	if n.Label("[woken by 0]", "[others]") != first || name(first) != "[woken by 0]" {
		t.Errorf("%+v is %q", first, name(first))
	}
	for i := range maxLabels - 1 {
		n.Label(fmt.Sprintf("[woken by %d]", i+1), "[others]")
	}
	for _, c := range [][3]string{{"[woken by 65535]", "[others]", "[woken by 65535]"}, {"[new]", "[others]", "[others]"}, {"[newer]", "[others]", "[others]"}, {"[newest]", "[some]", "[others]"}, {"[woken by 7]", "[others]", "[woken by 7]"}} {
		if got := name(n.Label(c[0], c[1])); got != c[2] {
			t.Errorf("%s, or %s: %q, want %q", c[0], c[1], got, c[2])
		}
	}
	if got := len(n.labels.texts); got > maxLabels+1 {
		t.Errorf("%d labels", got)
	}
	if f := n.Label("[x]", "[others]"); uint64(f.PC) >= uint64(f.Mapping.Hi) {
		t.Errorf("%+v is outside of its mapping", f)
	}
}
