package rows

import (
	"fmt"
	"sort"

	"github.com/unspool/unspool/arch"
)

// An Origin says what rows were made from.
type Origin uint8

const (
	Unknown           Origin = iota // a text, or a format without a number
	FromEHFrame                     // DWARF, loaded with the program
	FromDebugFrame                  // DWARF, for debuggers
	FromPCLNTab                     // Go's own table
	FromSFrame                      // .sframe
	Synthesised                     // the code itself: no table had rules
	FromORC                         // the Linux kernel's .orc_unwind
	FromCompactUnwind               // Apple's __unwind_info
	FromEHABI                       // ARM's .ARM.exidx
	FromWindows                     // .pdata and .xdata
	FromMIPS                        // MIPS compact tables, in .eh_frame_hdr
)

var originNames = [...]string{"unknown", ".eh_frame", ".debug_frame", "pclntab", ".sframe", "synthesised",
	".orc_unwind", "__unwind_info", ".ARM.exidx", ".pdata", "mips-compact"}

// String returns the name of the source; of one that has none here, its number.
func (o Origin) String() string {
	if int(o) < len(originNames) {
		return originNames[o]
	}
	return fmt.Sprintf("origin-%d", uint8(o))
}

// originByName reads what String writes.
func originByName(name string) (Origin, bool) {
	for o := range Origin(255) {
		if o.String() == name {
			return o, true
		}
	}
	return 0, false
}

// An OriginRange says what rows were made from, from Lo on up to the next range.
type OriginRange struct {
	Lo     arch.Vaddr
	Origin Origin
}

// Origin returns what the row at pc was made from. In a gap it means nothing.
func (t *Table) Origin(pc arch.Vaddr) Origin {
	if i := sort.Search(len(t.Origins), func(i int) bool { return t.Origins[i].Lo > pc }); i > 0 {
		return t.Origins[i-1].Origin
	}
	return Unknown
}

// From returns t as made from o: the rows are shared.
func (t *Table) From(o Origin) *Table {
	from := *t
	from.Origins = nil
	if o != Unknown && len(t.Rows) > 0 {
		from.Origins = []OriginRange{{t.Rows[0].Lo, o}}
	}
	return &from
}

// appendOrigins appends what t's rows in [lo, hi) were made from, unless the list says so already.
func (t *Table) appendOrigins(list []OriginRange, lo, hi arch.Vaddr) []OriginRange {
	add := func(lo arch.Vaddr, o Origin) {
		if n := len(list); n == 0 || list[n-1].Origin != o {
			list = append(list, OriginRange{lo, o})
		}
	}
	add(lo, t.Origin(lo))
	first := sort.Search(len(t.Origins), func(i int) bool { return t.Origins[i].Lo > lo })
	for _, r := range t.Origins[first:] {
		if r.Lo >= hi {
			break
		}
		add(r.Lo, r.Origin)
	}
	return list
}
