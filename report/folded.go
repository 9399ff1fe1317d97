package report

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/profile"
)

// Folded writes a line for each distinct stack of functions: the name of the thread, then the functions
// from the outermost to the innermost, separated by semicolons, then a space and the weight. Lines are
// sorted by their bytes. A semicolon in a name becomes a colon, a control character a space.
//
// Stacks that are not whole look like others, as in what other tools write.
func Folded(w io.Writer, p *profile.Profile, o Options) error {
	names := make([]string, len(p.Funcs))
	for i := range p.Funcs {
		names[i] = foldName(p.Funcs[i].Name)
	}
	sums := map[string]uint64{}
	var b []byte
	for i := range p.Stacks {
		s := &p.Stacks[i]
		b = append(b[:0], foldName(s.Comm)...)
		for _, f := range slices.Backward(s.Frames) {
			b = append(b, ';')
			b = append(b, names[p.Locs[f].Func]...)
		}
		sums[string(b)] += o.weight(s)
	}
	lines := make([]string, 0, len(sums))
	for s := range sums {
		lines = append(lines, s)
	}
	slices.Sort(lines)
	bw := bufio.NewWriterSize(w, 1<<16)
	for _, s := range lines {
		if n := sums[s]; n > 0 {
			b = append(append(b[:0], s...), ' ')
			b = append(strconv.AppendUint(b, n, 10), '\n')
			bw.Write(b)
		}
	}
	if o.Summary {
		fmt.Fprintf(bw, "# %s\n", headline(p))
	}
	return bw.Flush()
}

func foldName(s string) string {
	if s == "" {
		return profile.Unknown
	}
	if strings.IndexFunc(s, func(r rune) bool { return r == ';' || r < ' ' || r == 0x7f }) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		switch {
		case r == ';':
			return ':'
		case r < ' ' || r == 0x7f:
			return ' '
		}
		return r
	}, s)
}

// printable returns s fit for a line of text: control characters become spaces.
func printable(s string) string {
	if strings.IndexFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }) < 0 {
		return s
	}
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, s)
}
