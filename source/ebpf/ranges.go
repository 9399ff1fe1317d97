package ebpf

import (
	"cmp"
	"slices"

	"github.com/unspool/unspool/unwind"
)

// A Range is a part of an address space as the kernel's program knows it: struct range of c/walk.h.
type Range struct {
	Lo, Hi uint64
	Bias   uint64 // a link-time address is the run-time address minus this
	Table  uint32 // 0 for none
	Kind   Kind
}

// A Kind says how a walk steps in a Range.
type Kind uint32

const (
	Code     Kind = 1 + iota // by the table's rules; where there is none, by frame pointers
	Terminal                 // nothing: there is no caller
	PLT                      // as Code, but where there is no rule, as in a procedure linkage table
	LazyPLT                  // the same, whose stubs push
	Injected                 // as Code, but the caller's PC is exact: unwind.Code
	Moved                    // as Code, but the register of arch.GoMove has the stack pointer
	Forks                    // as Code, but a thread that has just been made has no caller: unwind.Code
)

// Pending is the table of a module that is not compiled yet.
const Pending = 1<<32 - 1

// Ranges returns the executable mappings of a space, cut where the Kind changes: ascending and disjoint. table gives the number of a module's
// table: 0 where it has none, Pending where it may have one later.
func Ranges(space *unwind.Space, table func(*unwind.Module) uint32) []Range {
	return rangesOf(space, func(m *unwind.Module) (uint32, *unwind.Code) { return table(m), m.Code() })
}

// rangesOf is Ranges for who has the code of modules: it may be loaded no more.
func rangesOf(space *unwind.Space, of func(*unwind.Module) (table uint32, c *unwind.Code)) []Range {
	var out []Range
	for i := range space.Mappings() {
		m := &space.Mappings()[i]
		blind := func(lo, hi uint64) {
			if lo < hi {
				out = append(out, Range{Lo: lo, Hi: hi, Kind: Code})
			}
		}
		at := uint64(m.Lo)
		id, c := of(m.Module)
		if id == Pending {
			out = append(out, Range{Lo: at, Hi: uint64(m.Hi), Table: id, Kind: Code})
			continue
		}
		for _, s := range segments(c) {
			// The part of the mapping that is of this segment. What lies before, on the same page, is another's.
			lo, hi := max(m.Off, s.Off), min(m.Off+uint64(m.Hi-m.Lo), s.Off+s.Size)
			if lo >= hi {
				continue
			}
			r := Range{Lo: uint64(m.Lo) + lo - m.Off, Hi: uint64(m.Lo) + hi - m.Off, Table: id, Kind: Code}
			if r.Lo < at {
				continue // segments that overlap: the first counts
			}
			r.Bias = r.Lo - uint64(s.Vaddr) - (lo - s.Off)
			blind(at, r.Lo)
			out = append(out, cut(r, c)...)
			at = r.Hi
		}
		blind(at, uint64(m.Hi))
	}
	return out
}

// segments returns those of c, in the order of the file; none where there is no code.
func segments(c *unwind.Code) []unwind.Segment {
	if c == nil {
		return nil
	}
	return slices.SortedFunc(slices.Values(c.Segments), func(a, b unwind.Segment) int { return cmp.Compare(a.Off, b.Off) })
}

// maxParts bounds what a module's range is cut into: real ones have a few.
const maxParts = 64

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
		slices.SortFunc(parts, func(a, b Range) int { return cmp.Compare(a.Lo, b.Lo) })
	}
	if len(c.PLT)+len(c.Injected)+len(c.Moved)+len(c.Forks)+len(c.Terminal) > maxParts {
		return parts
	}
	for _, p := range c.PLT {
		k := PLT
		if p.Lazy {
			k = LazyPLT
		}
		lay(at(p.Range, k))
	}
	for _, x := range c.Injected {
		lay(at(x, Injected))
	}
	for _, x := range c.Moved {
		if x.SP == c.Machine.GoMove.To {
			lay(at(x.Range, Moved))
		}
	}
	for _, x := range c.Forks {
		lay(at(x, Forks))
	}
	for _, x := range c.Terminal {
		lay(at(x, Terminal))
	}
	return parts
}
