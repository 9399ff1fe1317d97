package compact

import (
	"iter"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// originsOf returns what a table's rows were made from as the layout has it: one origin for all, or manyOrigins and the ranges.
func originsOf(t *rows.Table) (one byte, list []byte, err error) {
	if len(t.Origins) == 0 {
		return byte(rows.Unknown), nil, nil
	}
	for _, r := range t.Origins {
		if r.Origin >= manyOrigins {
			return 0, nil, bad(hdrOrigin, "origin %d", r.Origin)
		}
		list = le.AppendUint64(le.AppendUint64(list, uint64(r.Lo)), uint64(r.Origin))
	}
	if len(t.Origins) == 1 {
		return byte(t.Origins[0].Origin), nil, nil
	}
	return manyOrigins, list, nil
}

// loadOrigins finds the ranges, which fill the table behind the expressions, and checks them.
func (t *Table) loadOrigins() error {
	if t.b[hdrOrigin] != manyOrigins {
		return nil
	}
	at := t.off(hdrExprs) + len(t.exprs)
	at += -at & (align - 1)
	if at > len(t.b) || (len(t.b)-at)%originSize != 0 || len(t.b)-at < 2*originSize {
		return bad(hdrOrigin, "no list of origins at %#x of %#x", at, len(t.b))
	}
	t.origins = t.b[at:]
	for i := 0; i < len(t.origins); i += originSize {
		r := t.origins[i:]
		switch what := le.Uint64(r[originWhat:]); {
		case what >= manyOrigins:
			return bad(at+i, "origin %d", what)
		case i == 0 && (t.nspans == 0 || le.Uint64(r) != t.span(0).lo):
			return bad(at, "origins do not start with the first row")
		case i > 0 && (le.Uint64(r) <= le.Uint64(t.origins[i-originSize:]) || what == le.Uint64(t.origins[i-originSize+originWhat:])):
			return bad(at+i, "origins do not ascend, or are equal")
		}
	}
	return nil
}

// Origins returns the ranges of addresses whose rows were made from one source each, in ascending order. There are none in a table whose rows
// have an unknown origin.
func (t *Table) Origins() iter.Seq[rows.OriginRange] {
	return func(yield func(rows.OriginRange) bool) {
		if o := rows.Origin(t.b[hdrOrigin]); o != manyOrigins {
			if o != rows.Unknown && t.nspans > 0 {
				yield(rows.OriginRange{Lo: arch.Vaddr(t.first.lo), Origin: o})
			}
			return
		}
		for r := t.origins; len(r) >= originSize; r = r[originSize:] {
			if !yield(rows.OriginRange{Lo: arch.Vaddr(le.Uint64(r)), Origin: rows.Origin(le.Uint64(r[originWhat:]))}) {
				return
			}
		}
	}
}

// Origin returns what the row at pc was made from. In a gap it means nothing.
func (t *Table) Origin(pc arch.Vaddr) (o rows.Origin) {
	for r := range t.Origins() {
		if r.Lo > pc {
			break
		}
		o = r.Origin
	}
	return o
}
