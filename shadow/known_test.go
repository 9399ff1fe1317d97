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
	k := parseKnown("# comment\n\nname lib*.so.3 f|g ra,rbx\nother * code:c3aa rbx\ncall * code:c3aa..9[4-7]|bb rbx\n")
	wrong := func(names ...string) (d []Difference) {
		for _, n := range names {
			d = append(d, Difference{Register: n})
		}
		return d
	}
	for _, c := range []struct {
		f    Finding
		want [3]bool
	}{
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx")}, [3]bool{true, false}},
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx", "ra")}, [3]bool{true, false}},
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx", "cfa")}, [3]bool{}},
		{Finding{Module: "/x/liba.so.3", Function: "gg", Wrong: wrong("rbx")}, [3]bool{}},
		{Finding{Module: "/x/liba.so.4", Function: "g", Wrong: wrong("rbx")}, [3]bool{}},
		{Finding{Module: "/x/liba.so.3", Function: "g", Wrong: wrong("rbx"), Ours: true}, [3]bool{}},
		{Finding{Module: "/y", code: []byte{0xc3, 0xaa, 1}, Wrong: wrong("rbx")}, [3]bool{false, true}},
		{Finding{Module: "/y", code: []byte{0xc3}, Wrong: wrong("rbx")}, [3]bool{}},
		{Finding{Module: "/y", code: []byte{0x90}, first: []byte{0xc3, 0xaa, 2}, Wrong: wrong("rbx")}, [3]bool{false, true}},
		{Finding{Module: "/y", code: []byte{0xc3, 0xaa, 7, 0x97, 1}, Wrong: wrong("rbx")}, [3]bool{false, true, true}},
		{Finding{Module: "/y", code: []byte{0xc3, 0xaa, 7, 0x98, 1}, Wrong: wrong("rbx")}, [3]bool{false, true}},
		{Finding{Module: "/y", code: []byte{0xbb}, Wrong: wrong("rbx")}, [3]bool{false, false, true}},
		{Finding{Module: "/y", code: []byte{0x0b, 0xb0}, Wrong: wrong("rbx")}, [3]bool{}},
	} {
		if got := [3]bool{k[0].matches(&c.f), k[1].matches(&c.f), k[2].matches(&c.f)}; len(k) != 3 || got != c.want {
			t.Errorf("%+v: %v, not %v", c.f, got, c.want)
		}
	}
}

// TestKnownElsewhere holds functions that are wrong on one machine only against wrong rows of the same name.
func TestKnownElsewhere(t *testing.T) {
	f := Finding{Module: "/lib/libc.so.6", Function: "_Fork", code: []byte{0x48, 0x89, 0xe5}, Wrong: []Difference{{Register: "ra"}}}
	if k := known(&f); k != nil {
		t.Errorf("%s is listed as %s on every machine", f.Function, k.Name)
	}
	for _, distance := range []byte{0x61, 0x17} { // that _Fork calls over
		f.code = []byte{distance, 0xc0, 0x00, 0x94, 0xfe, 0x03, 0x00, 0xaa, 0x20, 0x02, 0x80, 0xd2}
		if k := known(&f); k == nil || k.Name != "fork" {
			t.Errorf("AArch64's %s, %x: %v", f.Function, f.code, k)
		}
	}
}
