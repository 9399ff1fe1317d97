package pe

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// An overlay has the rows of a function: those of its prologue and body in out, and those of its epilogues, which win, in ends.
type overlay struct {
	out  []rows.Row // without epilogues, then with them
	ends []rows.Row
	room []rows.Row
}

// resume stands for the set that would hold without an epilogue.
const resume = ^rows.SetID(0)

func (o *overlay) reset() { o.out, o.ends = o.out[:0], o.ends[:0] }

// under says that from an address on, above all before, a set holds outside of epilogues.
func (o *overlay) under(at arch.Vaddr, id rows.SetID) {
	if n := len(o.out); n == 0 || o.out[n-1].Set != id {
		o.out = append(o.out, rows.Row{Lo: at, Set: id})
	}
}

// merge puts the rows of epilogues over the others, up to the function's end.
func (o *overlay) merge(hi arch.Vaddr) []rows.Row {
	if len(o.ends) == 0 {
		return o.out
	}
	under, over := o.out, o.ends
	out, below, above := o.room[:0], under[0].Set, resume
	for len(under) > 0 || len(over) > 0 {
		at := hi
		if len(under) > 0 {
			at = under[0].Lo
		}
		if len(over) > 0 && over[0].Lo < at {
			at = over[0].Lo
		}
		for len(under) > 0 && under[0].Lo <= at {
			below, under = under[0].Set, under[1:]
		}
		for len(over) > 0 && over[0].Lo <= at {
			above, over = over[0].Set, over[1:]
		}
		set := above
		if above == resume {
			set = below
		}
		if n := len(out); at < hi && (n == 0 || out[n-1].Set != set) {
			out = append(out, rows.Row{Lo: at, Set: set})
		}
		if at >= hi {
			break
		}
	}
	o.room, o.out = o.out, out
	return out
}
