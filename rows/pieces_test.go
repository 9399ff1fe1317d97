package rows

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestPieces: rows are parted where functions are, and begin anew behind gaps; losses count a row once.
func TestPieces(t *testing.T) {
	table, err := ParseText(strings.NewReader("machine x86_64\n1000  cfa=rsp+8  ra=c-8\n1010  cfa=rsp+16  ra=c-8\n1030  gap\n1040  cfa=rsp+8  ra=c-8\n1050  gap\n"))
	if err != nil {
		t.Fatal(err)
	}
	bounds := func(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool) { return pc &^ 0x1f, pc&^0x1f + 0x20, pc < 0x1040 }
	for name, c := range map[string]struct {
		bounds Bounds
		want   string
	}{
		"bounds":    {bounds, "[1000-1010 1 true true 1010-1020 2 true false 1020-1030 2 false true 1040-1050 1 true true]"},
		"no bounds": {nil, "[1000-1010 1 true true 1010-1030 2 true false 1040-1050 1 true true]"},
	} {
		var got []string
		losses := Losses{}
		for p := range table.Pieces(c.bounds) {
			got = append(got, fmt.Sprintf("%x-%x %d %v %v", uint64(p.Lo), uint64(p.Hi), p.Set, p.First, p.Begins))
			losses.Add([]string{"", "a", "b"}[p.Set], p)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s:\n got %v\nwant %s", name, got, c.want)
		}
		// Of two reasons with as many addresses, the first by name comes first.
		if got, want := losses.List(), []Loss{{"a", 2, 0x20}, {"b", 1, 0x20}}; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
