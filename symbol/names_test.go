package symbol

import (
	"fmt"
	"strings"
	"testing"
)

// TestNamesBound: names that are asked for stay, all others go after a while, and none is shown as it is linked.
func TestNamesBound(t *testing.T) {
	n := names{most: 4 << 10}
	name := func(i int) (linkage, full string) { return fmt.Sprintf("_Z6fn%04dv", i), fmt.Sprintf("fn%04d()", i) }
	hot, fullHot := name(0)
	for i := range 5000 {
		if linkage, full := name(i); n.get(linkage, false) != full || n.get(linkage, true) != strings.TrimSuffix(full, "()") {
			t.Fatalf("%s is %s and %s, want %s", linkage, n.get(linkage, false), n.get(linkage, true), full)
		}
		if n.get(hot, false) != fullHot {
			t.Fatalf("%s is %s, want %s", hot, n.get(hot, false), fullHot)
		}
		kept := 0
		for _, m := range append(n.young[:], n.old[:]...) {
			for linkage, s := range m {
				kept += len(linkage) + len(s) + nameCost
			}
		}
		if kept > 2*n.most+1<<10 {
			t.Fatalf("after %d names, %d bytes are kept, want %d at most", i, kept, 2*n.most)
		}
		if _, young := n.young[0][hot]; !young {
			t.Fatalf("after %d names, one that is asked for again and again is not remembered", i)
		}
	}
}
