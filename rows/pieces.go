package rows

import (
	"cmp"
	"iter"
	"math"
	"slices"

	"github.com/unspool/unspool/arch"
)

// Bounds returns the range of the function that has an address, as far as it is known.
type Bounds func(pc arch.Vaddr) (lo, hi arch.Vaddr, ok bool)

// A Piece is a row that is no gap, or the part of one that lies in one function.
type Piece struct {
	Lo, Hi arch.Vaddr
	Set    SetID
	First  bool // of its row
	Begins bool // a function, or code behind a gap
}

// Pieces yields the rows of t function by function: a row may go on in the next one. Without bounds, only gaps part functions.
func (t *Table) Pieces(bounds Bounds) iter.Seq[Piece] {
	return func(yield func(Piece) bool) {
		var end arch.Vaddr // of the function at hand
		for i, r := range t.Rows {
			if r.Set == GapID {
				end = 0
				continue
			}
			for lo, hi := r.Lo, t.Hi(i); lo < hi; {
				begins := lo >= end
				if begins {
					end = math.MaxUint64
					if bounds != nil {
						if _, fhi, ok := bounds(lo); ok && fhi > lo {
							end = fhi
						}
					}
				}
				to := min(hi, end)
				if !yield(Piece{lo, to, r.Set, lo == r.Lo, begins}) {
					return
				}
				lo = to
			}
		}
	}
}

// A Loss counts rows of a table that an emitter leaves out, because its format cannot say them.
type Loss struct {
	Reason string
	Rows   int
	Bytes  uint64 // of code
}

// Losses are what an emitter leaves out, by reason.
type Losses map[string]Loss

// Add counts a piece.
func (l Losses) Add(reason string, p Piece) {
	x := l[reason]
	x.Reason = reason
	if p.First {
		x.Rows++
	}
	x.Bytes += uint64(p.Hi - p.Lo)
	l[reason] = x
}

// List returns all losses, the most addresses first.
func (l Losses) List() (list []Loss) {
	for _, x := range l {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b Loss) int { return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Reason, b.Reason)) })
	return list
}
