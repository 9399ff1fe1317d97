package report

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
	"github.com/unspool/unspool/stacks"
)

// A Format is a form that a report can have.
type Format struct {
	Name    string
	Endings []string // of the names of files that have it, the usual one first
	About   string   // what it is, or for whom, in a few words

	Whole  Func                                                          // writes a profile; nil: it has single samples only
	Stream func(io.Writer, profile.Namer, profile.Info, Options) *Stream // writes samples as they come; nil: it has whole profiles only

	Compare func(w io.Writer, before, after *profile.Profile, o Options) error // of Diffs: writes how two profiles differ

	Stacks func(io.Writer, *stacks.Process) error // of StackFormats: writes the stacks of a process

	Uses []string // the options that its reports obey, by the names of their flags: "sort"; all others change nothing

	Text    bool // for people: lines, so that one report can follow the other
	Binary  bool // not for a terminal
	Private bool // it has addresses, the kernel's too: its files are for their owner
	Grows   bool // what is there of it can be read before it is whole
}

// Formats are all forms that this package writes, those for a terminal first.
var Formats = Table{
	{Name: "top", Endings: []string{".txt"}, About: "table of functions", Whole: Top, Uses: []string{"sort", "limit"}, Text: true},
	{Name: "tree", About: "tree of calls", Whole: Tree, Text: true},
	{Name: "callers", About: "functions, each with what calls it", Whole: Callers, Uses: []string{"function", "sort", "limit"}, Text: true},
	{Name: "callees", About: "functions, each with what it calls", Whole: Callees, Uses: []string{"function", "sort", "limit"}, Text: true},
	{Name: "folded", Endings: []string{".folded"}, About: "a line for each stack, for flamegraph.pl and inferno", Whole: Folded, Text: true},
	{Name: "flame", Endings: []string{".svg"}, About: "flame graph", Whole: Flame, Uses: []string{"icicle"}},
	{Name: "pprof", Endings: []string{".pb.gz", ".pb", ".pprof"}, About: "for pprof and other readers of its profiles", Whole: func(w io.Writer, p *profile.Profile, _ Options) error { return pprof.Write(w, p) }, Binary: true},
	{Name: "firefox", Endings: []string{".firefox.json"}, About: "for profiler.firefox.com", Whole: Firefox, Stream: NewFirefox},
	{Name: "speedscope", Endings: []string{".speedscope.json"}, About: "for speedscope.app", Whole: Speedscope, Stream: NewSpeedscope},
	{Name: "perf", Endings: []string{".perf"}, About: "text for tools that read perf script", Whole: Perf, Stream: NewPerf, Private: true},
	{Name: "json", Endings: []string{".json"}, About: "an object for each sample", Stream: NewJSON, Private: true, Uses: []string{"summary"}},
	{Name: "jsonl", Endings: []string{".jsonl"}, About: "an object for each sample; can be read while it grows", Stream: NewJSON, Private: true, Grows: true, Uses: []string{"summary"}},
	{Name: "stacks", Endings: []string{".stacks.json"}, About: "an object for each different stack, with its count", Whole: JSON, Private: true, Uses: []string{"summary"}},
}

// Diffs are the forms of a comparison of two profiles. Their endings are those of Formats.
var Diffs = Table{
	{Name: "top", Compare: Diff, Uses: []string{"all", "limit"}}, {Name: "flame", Compare: FlameDiff, Uses: []string{"all", "icicle"}},
	{Name: "folded", Compare: DiffFolded}, {Name: "json", Compare: DiffJSON},
}

// A Table lists formats: what flags, help, completion and messages say of them comes from here.
type Table []Format

// Named returns the format of a name; nil if there is none.
func (t Table) Named(name string) *Format {
	for i := range t {
		if t[i].Name == name {
			return &t[i]
		}
	}
	return nil
}

// ByEnding returns the format that the name of a file asks for, by the longest of the endings that match; nil if there is none.
func (t Table) ByEnding(path string) (f *Format) {
	longest := 0
	for i := range t {
		for _, e := range t[i].Endings {
			if len(e) > longest && strings.HasSuffix(path, e) {
				f, longest = &t[i], len(e)
			}
		}
	}
	return f
}

// Choose returns the format with a name, else the one that the ending of path asks for. Without a name, "" and "-", which have no endings, stand for
// fallback. Errors call the name by the command's flag.
func (t Table) Choose(name, path, fallback string) (*Format, error) {
	f := t.Named(name)
	switch {
	case f != nil:
	case name != "":
		return nil, fmt.Errorf("--format is %s, not %q", printable.Either(t.Names()), name)
	case t.ByEnding(path) != nil:
		f = t.ByEnding(path)
	case path != "" && path != "-":
		return nil, fmt.Errorf("no format has the ending of %q: use %s, or give --format", path, strings.Join(t.Endings(), " "))
	default:
		f = t.Named(fallback)
	}
	return f, nil
}

// Names returns the names.
func (t Table) Names() (names []string) {
	for i := range t {
		names = append(names, t[i].Name)
	}
	return names
}

// Described is the names, each with what About says of it: "a, b (about b) or c".
func (t Table) Described() string {
	names := t.Names()
	for i := range t {
		if about := t[i].About; about != "" {
			names[i] += " (" + about + ")"
		}
	}
	return printable.Either(names)
}

// Using returns the names of the formats that obey an option.
func (t Table) Using(option string) (names []string) {
	for i := range t {
		if slices.Contains(t[i].Uses, option) {
			names = append(names, t[i].Name)
		}
	}
	return names
}

// Whole returns the formats of whole profiles.
func (t Table) Whole() Table { return t.only(func(f *Format) bool { return f.Whole != nil }) }

// Text returns the formats that are text for people.
func (t Table) Text() Table { return t.only(func(f *Format) bool { return f.Text }) }

func (t Table) only(yes func(*Format) bool) Table {
	return slices.DeleteFunc(slices.Clone(t), func(f Format) bool { return !yes(&f) })
}

// PrivateEndings lists the usual endings of files that are for their owner only: ".data, .perf or .json".
func (t Table) PrivateEndings() string {
	return printable.Either(t.only(func(f *Format) bool { return f.Private }).Endings())
}

// Endings returns the usual endings.
func (t Table) Endings() (endings []string) {
	for i := range t {
		if e := t[i].Endings; len(e) > 0 {
			endings = append(endings, e[0])
		}
	}
	return endings
}

// Help returns a line for each usual ending, with what it is for.
func (t Table) Help() string {
	width := 0
	for _, e := range t.Endings() {
		width = max(width, len(e))
	}
	var b strings.Builder
	for i := range t {
		if f := &t[i]; len(f.Endings) > 0 {
			fmt.Fprintf(&b, "  %-*s  %s\n", width, f.Endings[0], f.About)
		}
	}
	return b.String()
}
