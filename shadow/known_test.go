package shadow

import (
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
)

// TestFindings holds known.txt against docs/FINDINGS.md: each has a section for each of the other's names.
func TestFindings(t *testing.T) {
	doc, err := os.ReadFile("../docs/FINDINGS.md")
	if err != nil {
		t.Fatal(err)
	}
	var sections, names []string
	for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(doc), -1) {
		sections = append(sections, m[1])
	}
	for _, k := range Knowns() {
		if !slices.Contains(names, k.Name) {
			names = append(names, k.Name)
		}
		for _, w := range k.What {
			_, ok := arch.AMD64.RegByName(w)
			if _, arm := arch.ARM64.RegByName(w); !ok && !arm && w != "ra" && w != "cfa" {
				t.Errorf("%s: %q is nothing that can be wrong", k.Name, w)
			}
		}
	}
	slices.Sort(sections)
	slices.Sort(names)
	if !slices.Equal(sections, names) {
		t.Errorf("docs/FINDINGS.md has %v\nknown.txt has %v", sections, names)
	}
}

// TestKnown holds what an entry matches against what it must not.
func TestKnown(t *testing.T) {
	k := parseKnown("# comment\n\nname lib*.so.3 f|g ra,rbx\nother * code:c3aa rbx\n")
	wrong := func(names ...string) (d []Difference) {
		for _, n := range names {
			d = append(d, Difference{Register: n})
		}
		return d
	}
	for _, c := range []struct {
		f    Finding
		want [2]bool
	}{
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx")}, [2]bool{true, false}},
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx", "ra")}, [2]bool{true, false}},
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx", "cfa")}, [2]bool{}},
		{Finding{Module: "/x/liba.so.3", Function: "gg", Wrong: wrong("rbx")}, [2]bool{}},
		{Finding{Module: "/x/liba.so.4", Function: "g", Wrong: wrong("rbx")}, [2]bool{}},
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx"), Ours: true}, [2]bool{}},
		{Finding{Module: "/y", code: []byte{0xc3, 0xaa, 1}, Wrong: wrong("rbx")}, [2]bool{false, true}},
		{Finding{Module: "/y", code: []byte{0xc3}, Wrong: wrong("rbx")}, [2]bool{}},
		{Finding{Module: "/y", code: []byte{0x90}, first: []byte{0xc3, 0xaa, 2}, Wrong: wrong("rbx")}, [2]bool{false, true}},
	} {
		if got := [2]bool{k[0].matches(&c.f), k[1].matches(&c.f)}; len(k) != 2 || got != c.want {
			t.Errorf("%+v: %v, not %v", c.f, got, c.want)
		}
	}
}
