package ebpf

import (
	"slices"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// A Range is a part of an address space as the kernel's program knows it: struct range of c/walk.h.
type Range struct {
	Lo, Hi uint64
	Bias   uint64 // a link-time address is the run-time address minus this
	Table  uint32 // 0 for none
	Kind   Kind
}

// A Kind says what walking does in a Range.
type Kind uint32

const (
	Code     Kind = 1 + iota // by the table's rules; where there is none, by frame pointers
	Terminal                 // nothing: there is no caller
	PLT                      // as Code, but where there is no rule, as in a procedure linkage table
	LazyPLT                  // the same, whose stubs push
)

// Ranges returns the executable mappings of a space, cut where what walking does changes: ascending and disjoint. table
// gives the number of a module's table, and 0 where it has none.
func Ranges(space *unwind.Space, table func(*unwind.Module) uint32) []Range {
	var out []Range
	for i := range space.Mappings() {
		m := &space.Mappings()[i]
		r := Range{Lo: uint64(m.Lo), Hi: uint64(m.Hi), Kind: Code}
		v, ok := m.Vaddr(m.Lo)
		if !ok {
			out = append(out, r)
			continue
		}
		r.Bias, r.Table = r.Lo-uint64(v), table(m.Module)
		out = append(out, cut(r, m.Module.Code())...)
	}
	return out
}

// cut divides a module's range by where stacks begin, and where procedure linkage tables are.
func cut(r Range, c *unwind.Code) []Range {
	at := func(x unwind.Range, k Kind) Range {
		return Range{Lo: max(r.Lo, uint64(x.Lo)+r.Bias), Hi: min(r.Hi, uint64(x.Hi)+r.Bias), Bias: r.Bias, Table: r.Table, Kind: k}
	}
	parts := []Range{r}
	lay := func(x Range) {
		if x.Lo >= x.Hi {
			return
		}
		var next []Range
		for _, p := range parts {
			left, right := p, p
			left.Hi, right.Lo = min(p.Hi, x.Lo), max(p.Lo, x.Hi)
			if left.Lo < left.Hi {
				next = append(next, left)
			}
			if right.Lo < right.Hi {
				next = append(next, right)
			}
		}
		parts = append(next, x)
		slices.SortFunc(parts, func(a, b Range) int {
			if a.Lo < b.Lo {
				return -1
			}
			return 1
		})
	}
	if c.Machine != arch.AMD64 {
		return parts
	}
	for _, p := range c.PLT {
		k := PLT
		if p.Lazy {
			k = LazyPLT
		}
		lay(at(p.Range, k))
	}
	for _, x := range c.Terminal {
		lay(at(x, Terminal))
	}
	return parts
}
