package compact

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/rows"
)

// Functions are the optional section behind a table: where functions start, and who handles exceptions in them. It is used where its bytes lie,
// and is safe for concurrent use.
type Functions struct {
	handlers, ranges []byte
}

// AppendFunctions returns a table with the section behind it. Of functions that overlap, the one that starts first is kept; of those
// that start at one address the first in the list. Empty ones are left out.
func AppendFunctions(table []byte, list []rows.Function) ([]byte, error) {
	list = slices.DeleteFunc(slices.Clone(list), func(f rows.Function) bool { return f.Lo >= f.Hi })
	slices.SortStableFunc(list, func(a, b rows.Function) int { return cmp.Compare(a.Lo, b.Lo) })
	type handler struct {
		at       arch.Vaddr
		indirect bool
	}
	var handlers, ranges []byte
	numbers := map[handler]uint32{{}: 0}
	end := arch.Vaddr(0)
	for _, f := range list {
		if f.Lo < end {
			continue
		}
		end = f.Hi
		h := handler{f.Personality, f.Indirect && f.Personality != 0}
		number, ok := numbers[h]
		if !ok {
			number = uint32(len(numbers))
			numbers[h] = number
			indirect := uint64(0)
			if h.indirect {
				indirect = 1
			}
			handlers = le.AppendUint64(le.AppendUint64(handlers, uint64(h.at)), indirect)
		}
		ranges = le.AppendUint64(le.AppendUint64(ranges, uint64(f.Lo)), uint64(f.Hi))
		if f.HasLSDA {
			ranges = le.AppendUint32(le.AppendUint64(ranges, uint64(f.LSDA)), 1)
		} else {
			ranges = le.AppendUint32(le.AppendUint64(ranges, 0), 0)
		}
		ranges = le.AppendUint32(ranges, number)
	}
	b := make([]byte, fhdrSize, fhdrSize+len(handlers)+len(ranges))
	copy(b, FunctionsMagic)
	b = append(append(b, handlers...), ranges...)
	if uint64(len(b)) > math.MaxUint32 {
		return nil, ErrTooLarge
	}
	le.PutUint32(b[fhdrLength:], uint32(len(b)))
	le.PutUint32(b[fhdrHandlers:], uint32(len(handlers)/handlerSize))
	le.PutUint32(b[fhdrRanges:], uint32(len(ranges)/rangeSize))
	le.PutUint32(b[fhdrChecksum:], checksum(b))
	return append(table[:len(table):len(table)], b...), nil
}

// LoadFunctions checks the section behind the table at the start of b, the checksum first, and returns it; nil if there is none. Load has
// checked the table. b must not change. Offsets in errors count from the section's start.
func LoadFunctions(b []byte) (*Functions, error) {
	if len(b) < headerSize || uint64(le.Uint32(b[hdrSize:])) > uint64(len(b)) {
		return nil, bad(0, "truncated: %d bytes", len(b))
	}
	b = b[le.Uint32(b[hdrSize:]):]
	if len(b) < len(FunctionsMagic) || string(b[:len(FunctionsMagic)]) != FunctionsMagic {
		return nil, nil
	}
	if len(b) < fhdrSize {
		return nil, bad(0, "functions: truncated: %d bytes", len(b))
	}
	n := uint64(le.Uint32(b[fhdrLength:]))
	if n < fhdrSize || n > uint64(len(b)) {
		return nil, bad(fhdrLength, "functions: %d of %d bytes", n, len(b))
	}
	b = b[:n:n]
	if want, got := le.Uint32(b[fhdrChecksum:]), checksum(b); got != want {
		return nil, bad(fhdrChecksum, "functions: checksum %#x, not %#x", got, want)
	}
	nh, nr := uint64(le.Uint32(b[fhdrHandlers:])), uint64(le.Uint32(b[fhdrRanges:]))
	if fhdrSize+nh*handlerSize+nr*rangeSize != n {
		return nil, bad(fhdrHandlers, "functions: %d handlers and %d ranges in %d bytes", nh, nr, n)
	}
	at := fhdrSize + int(nh)*handlerSize
	f := &Functions{handlers: b[fhdrSize:at], ranges: b[at:]}
	for i := 0; i < len(f.handlers); i += handlerSize {
		if le.Uint64(f.handlers[i:]) == 0 || le.Uint64(f.handlers[i+handlerIndirect:]) > 1 {
			return nil, bad(fhdrSize+i, "functions: no handler")
		}
	}
	end := uint64(0)
	for i := 0; i < len(f.ranges); i += rangeSize {
		r := f.ranges[i:]
		lo, hi, has := le.Uint64(r), le.Uint64(r[rangeHi:]), le.Uint32(r[rangeHasLSDA:])
		if lo < end || hi <= lo || has > 1 || has == 0 && le.Uint64(r[rangeLSDA:]) != 0 || uint64(le.Uint32(r[rangeHandler:])) > nh {
			return nil, bad(at+i, "functions: range [%#x, %#x)", lo, hi)
		}
		end = hi
	}
	return f, nil
}

// Len returns the number of functions.
func (f *Functions) Len() int { return len(f.ranges) / rangeSize }

// At returns the i-th function.
func (f *Functions) At(i int) rows.Function {
	r := f.ranges[i*rangeSize:]
	x := rows.Function{Lo: arch.Vaddr(le.Uint64(r)), Hi: arch.Vaddr(le.Uint64(r[rangeHi:])),
		LSDA: arch.Vaddr(le.Uint64(r[rangeLSDA:])), HasLSDA: le.Uint32(r[rangeHasLSDA:]) != 0}
	if n := int(le.Uint32(r[rangeHandler:])); n > 0 && n*handlerSize <= len(f.handlers) {
		h := f.handlers[(n-1)*handlerSize:]
		x.Personality, x.Indirect = arch.Vaddr(le.Uint64(h)), le.Uint64(h[handlerIndirect:]) != 0
	}
	return x
}

// Find returns the function that has an address.
func (f *Functions) Find(pc arch.Vaddr) (rows.Function, bool) {
	i := sort.Search(f.Len(), func(i int) bool { return le.Uint64(f.ranges[i*rangeSize:]) > uint64(pc) }) - 1
	if i < 0 {
		return rows.Function{}, false
	}
	x := f.At(i)
	return x, pc < x.Hi
}
