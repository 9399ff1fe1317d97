package rows

import (
	"sort"
	"strconv"
	"strings"

	"github.com/unspool/unspool/arch"
)

// A SectionStart says that the addresses from Lo on, until the next one, are in a section.
type SectionStart struct {
	Lo   arch.Vaddr
	Name string
}

// In returns the table with the sections of a file that is not linked, sorted by address: its text and JSON name addresses by section and
// offset then. Its rows are those of t.
func (t *Table) In(sections []SectionStart) *Table {
	in := *t
	in.Sections = sections
	return &in
}

// section returns the section of an address; nil where t has none.
func (t *Table) section(v arch.Vaddr) *SectionStart {
	i := sort.Search(len(t.Sections), func(i int) bool { return t.Sections[i].Lo > v }) - 1
	if i < 0 {
		return nil
	}
	return &t.Sections[i]
}

// addrCell returns the text of an address: in hex, or section+hex.
func (s *SectionStart) addrCell(v arch.Vaddr) string {
	if s == nil {
		return strconv.FormatUint(uint64(v), 16)
	}
	return nameCell(s.Name) + "+" + strconv.FormatUint(uint64(v-s.Lo), 16)
}

// parseAddr reads the text of addrCell, in the last of some sections.
func parseAddr(cell string, in []SectionStart) (arch.Vaddr, bool) {
	base := arch.Vaddr(0)
	if k := len(in); k > 0 {
		off, ok := strings.CutPrefix(cell, nameCell(in[k-1].Name)+"+")
		if !ok {
			return 0, false
		}
		base, cell = in[k-1].Lo, off
	}
	v, err := strconv.ParseUint(cell, 16, 64)
	return base + arch.Vaddr(v), err == nil && base+arch.Vaddr(v) >= base
}

// nameCell returns a section's name as a cell: quoted where it has spaces, anything that is not to be printed, or what begins a comment.
func nameCell(name string) string {
	for _, c := range []byte(name) {
		if c <= ' ' || c >= 0x7f || c == '"' || c == '#' {
			return quoted(name)
		}
	}
	if name == "" {
		return `""`
	}
	return name
}

// quoted quotes a name, its spaces too: cells are set apart by these.
func quoted(name string) string { return strings.ReplaceAll(strconv.QuoteToASCII(name), " ", `\x20`) }
