package report

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/internal/pages"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// Folded writes a line for each distinct stack of functions: the name of the thread, then the functions
// from the outermost to the innermost, separated by semicolons, then a space and the weight. Lines are
// sorted by their names, one after the other. A semicolon in a name becomes a colon, a control character a space.
//
// Stacks that are not whole look like others, as in what other tools write. The last line has the counts of them: it
// is a comment to a person, and a stack that weighs nothing to a program.
func Folded(w io.Writer, p *profile.Profile, o Options) error {
	stacks, names := foldStacks(p, &o)
	sortFolded(stacks, 0)
	out := newBehind(w)
	var line []byte   // in out's buffer, or before it
	var ends []int    // of each name in line
	var last []uint32 // the names in line
	for len(stacks) > 0 {
		s := &stacks[0]
		same := 0
		for same < len(last) && same < len(s.names) && last[same] == s.names[same] {
			same++
		}
		last, ends = s.names, ends[:same]
		b := out.buf
		start := len(b)
		if same > 0 {
			b = append(b, line[:ends[same-1]]...)
		}
		for _, n := range s.names[same:] {
			if len(ends) > 0 {
				b = append(b, ';')
			}
			b = append(b, names[n]...)
			ends = append(ends, len(b)-start)
		}
		line = b[start:]
		sum := uint64(0)
		for len(stacks) > 0 && slices.Equal(stacks[0].names, last) {
			sum += stacks[0].weight
			stacks = stacks[1:]
		}
		if sum > 0 {
			out.buf = append(strconv.AppendUint(append(b, ' '), sum, 10), '\n')
			if len(out.buf) >= behindSize {
				line = slices.Clone(line) // the buffer goes away
				out.flush()
			}
		}
	}
	out.buf = fmt.Appendf(out.buf, "# %s 0\n", foldName(p.Headline()))
	return out.close()
}

// A folded is a stack as numbers of names, the thread's first.
type folded struct {
	names  []uint32
	weight uint64
	after  bool // of two profiles', the second's
}

// foldStacks numbers all names in their order.
func foldStacks(p *profile.Profile, o *Options) (stacks []folded, names []string) {
	for i := range p.Funcs {
		names = append(names, foldName(p.Funcs[i].Name))
	}
	all := 0
	for i := range p.Stacks {
		all += 1 + len(p.Stacks[i].Frames)
	}
	funcs := len(names)
	comms := map[string]int{}
	for i := range p.Stacks {
		if c := p.Stacks[i].Comm; comms[c] == 0 {
			comms[c] = len(names)
			names = append(names, foldName(c))
		}
	}
	order := make([]int, len(names))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(names[a], names[b]) })
	rank := make([]uint32, len(names))
	var sorted []string
	for _, n := range order {
		if len(sorted) == 0 || sorted[len(sorted)-1] != names[n] {
			sorted = append(sorted, names[n])
		}
		rank[n] = uint32(len(sorted) - 1)
	}
	ofFunc := rank[:funcs]
	ofLoc := make([]uint32, len(p.Locs))
	for i := range p.Locs {
		ofLoc[i] = ofFunc[p.Locs[i].Func]
	}
	stacks = pages.Populate(make([]folded, len(p.Stacks)))
	slab := pages.Populate(make([]uint32, 0, all))
	for i := range p.Stacks {
		s := &p.Stacks[i]
		start := len(slab)
		slab = append(slab, rank[comms[s.Comm]])
		for _, f := range slices.Backward(s.Frames) {
			slab = append(slab, ofLoc[f])
		}
		stacks[i] = folded{names: slab[start:len(slab):len(slab)], weight: o.weight(s)}
	}
	return stacks, sorted
}

// sortFolded sorts stacks that agree up to depth. It is a quicksort that looks at one name of each at a time
// (Bentley and Sedgewick, Fast Algorithms for Sorting and Searching Strings), because stacks have long beginnings in
// common.
func sortFolded(s []folded, depth int) {
	at := func(i int) uint32 {
		if depth < len(s[i].names) {
			return s[i].names[depth] + 1
		}
		return 0
	}
	for len(s) > 1 {
		pivot := at(len(s) / 2)
		lo, hi := 0, len(s)
		for i := 0; i < hi; {
			switch v := at(i); {
			case v < pivot:
				s[i], s[lo] = s[lo], s[i]
				lo++
				i++
			case v > pivot:
				hi--
				s[i], s[hi] = s[hi], s[i]
			default:
				i++
			}
		}
		sortFolded(s[:lo], depth)
		sortFolded(s[hi:], depth)
		if pivot == 0 {
			return
		}
		s, depth = s[lo:hi], depth+1
	}
}

func foldName(s string) string {
	if s == "" {
		return profile.Unknown
	}
	return strings.ReplaceAll(printable.String(s), ";", ":")
}
