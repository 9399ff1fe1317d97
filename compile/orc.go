package compile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/orc"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// orcVersion reads "orc-6.12". "orc" is that of Linux 7.1, the newest that differs from the one before.
func orcVersion(emit string) (v orc.Version, ok bool) {
	if emit == "orc" {
		return orc.Version{Major: 7, Minor: 1}, true
	}
	n, _ := fmt.Sscanf(emit, "orc-%d.%d", &v.Major, &v.Minor)
	return v, n == 2 && fmt.Sprintf("orc-%d.%d", v.Major, v.Minor) == emit
}

// addORC adds ORC for a version of Linux to an object file.
func addORC(img *module.Image, t *rows.Table, v orc.Version) (added, error) {
	b, x, err := orc.Add(img.Bytes(), t, v, placesOf(img))
	if err != nil {
		return added{}, err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%s in %s, for Linux %d.%d", printable.Count(uint64(len(x.Addrs)), "entry", "entries"), printable.Bytes(int64(10*len(x.Addrs))), v.Major, v.Minor)
	for i, l := range leftOut(x) {
		if i == maxReasons {
			text.WriteString("\n  left out: code for other reasons")
			break
		}
		fmt.Fprintf(&text, "\n  left out: %s of code: %s", printable.Bytes(l.bytes), l.reason)
	}
	return added{bytes: b, text: text.String()}, nil
}

// placesOf returns where addresses of an object's code are. Sections are numbered as in the file.
func placesOf(img *module.Image) orc.Place {
	secs := img.Sections()
	var code []int // in the order of addresses
	for i := range secs {
		if secs[i].Perm&module.Exec != 0 && secs[i].Addr != 0 {
			code = append(code, i)
		}
	}
	return func(a arch.Vaddr) (section int, off uint64, ok bool) {
		k, found := slices.BinarySearchFunc(code, a, func(i int, a arch.Vaddr) int { return cmp.Compare(secs[i].Addr, a) })
		if !found {
			k--
		}
		if k < 0 || uint64(a-secs[code[k]].Addr) > secs[code[k]].Size {
			return 0, 0, false
		}
		return code[k], uint64(a - secs[code[k]].Addr), true
	}
}

// maxReasons bounds the reasons that are listed: some name offsets.
const maxReasons = 10

// A left is code that no entry describes.
type left struct {
	bytes  int64
	reason string
}

// leftOut adds up what was refused, by reason; the most first.
func leftOut(x *orc.Table) (list []left) {
	all := map[string]int64{}
	for _, r := range x.Refused {
		all[r.Reason] += int64(r.Hi - r.Lo)
	}
	for reason, n := range all {
		list = append(list, left{n, reason})
	}
	slices.SortFunc(list, func(a, b left) int { return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.reason, b.reason)) })
	return list
}
