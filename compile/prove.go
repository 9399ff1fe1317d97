package compile

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/rows"
)

// A Proof has the proven counts of a file, and how its sources agree with each other.
type Proof struct {
	File                 string
	Rows, Rules, Damaged int
	Comparisons          []Comparison
	Unindexed            []arch.Vaddr // functions with an FDE that .eh_frame_hdr does not lead to
}

// Prove proves that the compact table of a file is equal to its unwind information, and with code that machine code is, in the layouts Page and
// Tree and with each way of reading memory. It compares the sources of the file with each other. The error of a file without unwind information is ErrNoRows.
func Prove(path string, code bool) (Proof, error) {
	img, f, err := Open(path)
	if err != nil {
		return Proof{}, err
	}
	defer img.Close()
	ref, damage := f.Rows()
	if len(ref.Rows) == 0 {
		if len(damage) > 0 {
			return Proof{}, fmt.Errorf("%s: none of its unwind information can be read: %w", path, damage[0])
		}
		return Proof{}, ErrNoRows
	}
	b, err := compact.Emit(ref)
	if err != nil {
		return Proof{}, fmt.Errorf("%s: %w", path, err)
	}
	t, err := compact.Load(b)
	if err == nil {
		err = compact.Verify(t, ref, 1)
	}
	if err == nil && code {
		err = proveNative(ref)
	}
	if err != nil {
		return Proof{}, fmt.Errorf("%s: %w", path, err)
	}
	s := t.Stats()
	list, _ := Compare(img, f) // ref's damage is the same
	p := Proof{path, s.Rows, s.Rules, len(damage), list, nil}
	for lo := range f.Unindexed {
		p.Unindexed = append(p.Unindexed, lo)
	}
	return p, nil
}

func proveNative(ref *rows.Table) error {
	for _, l := range []native.Layout{native.Page, native.Tree} {
		for _, d := range []native.Deref{native.Self, native.Callback, native.Slice} {
			b, err := native.Emit(ref, native.Options{Layout: l, Deref: d})
			if err != nil {
				return err
			}
			c, err := native.Load(b)
			if err != nil {
				return err
			}
			err = native.Verify(c, ref, 1)
			c.Close()
			if err != nil {
				return fmt.Errorf("%v, %v: %w", l, d, err)
			}
		}
	}
	return nil
}

// Proofs are what Prove found of many files.
type Proofs struct {
	proven, without, rows, rules, damaged uint64

	several, equal, otherBase, differ, padding uint64 // of files with several sources: how many, and addresses
	differing                                  []Proof
	unindexed                                  []Proof
}

// Add adds what Prove returned.
func (c *Proofs) Add(p Proof, err error) {
	switch {
	case errors.Is(err, ErrNoRows):
		c.without++
		return
	case err != nil:
		return
	}
	c.proven, c.rows, c.rules, c.damaged = c.proven+1, c.rows+uint64(p.Rows), c.rules+uint64(p.Rules), c.damaged+uint64(p.Damaged)
	differs := false
	for _, x := range p.Comparisons {
		c.equal, c.otherBase, c.differ, c.padding = c.equal+x.Equal, c.otherBase+x.OtherBase, c.differ+x.Differ, c.padding+x.Padding
		differs = differs || x.Differ > 0
	}
	if len(p.Comparisons) > 0 {
		c.several++
	}
	if differs {
		c.differing = append(c.differing, p)
	}
	if len(p.Unindexed) > 0 {
		c.unindexed = append(c.unindexed, p)
	}
}

// Differ says whether two sources of a file contradict each other.
func (c *Proofs) Differ() bool { return len(c.differing) > 0 }

// WriteText says what was proven, and how sources of a file agree, with at most so many differences of each two. It writes nothing if all files were errors.
func (c *Proofs) WriteText(w io.Writer, most int) {
	n := printable.Count
	if c.proven+c.without > 0 {
		fmt.Fprintf(w, "%s: %s and %s equal the reference; %s; %s without unwind information\n", n(c.proven+c.without, "file", "files"),
			n(c.rows, "row", "rows"), n(c.rules, "rule", "rules"), n(c.damaged, "damaged entry", "damaged entries"), n(c.without, "file", "files"))
	}
	slices.SortFunc(c.unindexed, func(a, b Proof) int { return strings.Compare(a.File, b.File) })
	for _, p := range c.unindexed {
		fmt.Fprintf(w, "%s: .eh_frame_hdr does not lead to the FDEs of %s: libgcc and libunwind find nothing there\n", printable.Line(p.File),
			n(uint64(len(p.Unindexed)), "function", "functions"))
		for i, lo := range p.Unindexed {
			if i == most {
				fmt.Fprintf(w, "  and %s; --differences N prints more\n", n(uint64(len(p.Unindexed)-i), "other", "others"))
				break
			}
			fmt.Fprintf(w, "  %x\n", uint64(lo))
		}
	}
	if c.several == 0 {
		return
	}
	fmt.Fprintf(w, "%s with several sources of unwind information: they agree at %s, count from different registers at %s and contradict each other at %s",
		n(c.several, "file", "files"), n(c.equal, "address", "addresses"), printable.Comma(c.otherBase), printable.Comma(c.differ))
	if c.padding > 0 {
		fmt.Fprintf(w, "; in padding, which nothing reaches, they do so at %s", printable.Comma(c.padding))
	}
	fmt.Fprintln(w)
	slices.SortFunc(c.differing, func(a, b Proof) int { return strings.Compare(a.File, b.File) })
	for _, p := range c.differing {
		for _, x := range p.Comparisons {
			if x.Differ == 0 {
				continue
			}
			fmt.Fprintf(w, "%s: %s and %s differ at %s, in %s\n", printable.Line(p.File), x.First, x.Second, n(x.Differ, "address", "addresses"),
				n(uint64(len(x.Differences)), "range", "ranges"))
			for i, d := range x.Differences {
				in := ""
				if d.Section != "" {
					in = printable.Line(d.Section) + "+"
				}
				if i == most {
					fmt.Fprintf(w, "  and %s; --differences N prints more\n", n(uint64(len(x.Differences)-i), "other range", "other ranges"))
					break
				}
				for _, r := range d.Rules {
					fmt.Fprintf(w, "  %s%x-%x  %s: %s by %s, %s by %s\n", in, uint64(d.Lo), uint64(d.Hi), r.Of, r.First, x.First, r.Second, x.Second)
				}
			}
		}
	}
}
