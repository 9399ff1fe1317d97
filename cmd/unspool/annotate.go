package main

import (
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/report/annotate"
	"github.com/unspool/unspool/symbol"
)

// An annotator writes functions with the samples at their lines and instructions.
type annotator struct {
	syntax  string
	sources annotate.Sources
	paths   []string     // as given
	mods    *modules.Set // where files are looked for; may be nil
}

func (a *annotator) flags(c *cobra.Command) {
	c.Flags().StringVar(&a.syntax, "asm", "intel", "annotate, disasm: syntax of instructions: intel, gnu or go")
	c.Flags().StringVar(&a.sources.Root, "source-root", "", "annotate: look for source files below this directory first")
	c.Flags().StringArrayVar(&a.paths, "source-path", nil, "annotate: replace the beginning of source paths, OLD=NEW; may be repeated")
	c.RegisterFlagCompletionFunc("asm", cobra.FixedCompletions(annotate.Syntaxes, cobra.ShellCompDirectiveNoFileComp))
	c.MarkFlagDirname("source-root")
}

// formats checks the flags and returns the formats that they belong to.
func (a *annotator) formats() (map[string]report.Func, error) {
	if !slices.Contains(annotate.Syntaxes, a.syntax) {
		return nil, usage("--asm: %q is none of %s", a.syntax, strings.Join(annotate.Syntaxes, ", "))
	}
	for _, p := range a.paths {
		from, to, ok := strings.Cut(p, "=")
		if !ok || from == "" {
			return nil, usage("--source-path: %q is not OLD=NEW", p)
		}
		a.sources.Paths = append(a.sources.Paths, [2]string{from, to})
	}
	return map[string]report.Func{
		"annotate": func(w io.Writer, p *profile.Profile, o report.Options) error { return a.write(w, p, o, true) },
		"disasm":   func(w io.Writer, p *profile.Profile, o report.Options) error { return a.write(w, p, o, false) },
	}, nil
}

// write writes the functions that o.Func matches, the hottest first.
func (a *annotator) write(w io.Writer, p *profile.Profile, o report.Options, source bool) error {
	re, err := regexp.Compile(o.Func)
	if err != nil {
		return err
	}
	opts := newCode(a.mods).options()
	opts.Syntax, opts.Source, opts.Periods = a.syntax, a.sources.Read, o.By == report.Periods
	unit := "samples"
	if opts.Periods {
		unit = "events"
		if len(p.Events) == 1 && p.Events[0].Unit == "nanoseconds" {
			unit = "ns"
		}
	}
	fns := annotate.Hottest(p, re.MatchString, opts.Periods)
	limit := o.Limit
	if limit == 0 {
		limit = 3
	}
	if len(fns) == 0 {
		return report.NoFunction(o.Func)
	}
	if _, err := fmt.Fprintln(w, p.Summary()); err != nil {
		return err
	}
	for _, fn := range fns[:min(limit, len(fns))] {
		an, err := annotate.Function(p, fn, opts)
		if err != nil {
			return err
		}
		fmt.Fprintln(w)
		if err := an.Text(w, annotate.TextOptions{Source: source, Width: o.Width, Unit: unit}); err != nil {
			return err
		}
	}
	if n := len(fns) - limit; n > 0 {
		fmt.Fprintf(w, "\n%s more functions match: give --limit, or a --function that fewer match\n", profile.Comma(uint64(n)))
	}
	return nil
}

// code finds the code, the names and the bounds of functions for annotations. It is safe for concurrent use.
type code struct {
	symbols *symbol.Resolver
	search  *module.Search

	mu    sync.Mutex
	files map[string]*codeFile
}

// A codeFile is an open file.
type codeFile struct {
	once   sync.Once
	img    *module.Image
	err    error
	frames func() *dwarf.Frames
}

func newCode(mods *modules.Set) *code {
	n := newNamer(symbol.Options{}, mods)
	return &code{symbols: n.symbols, search: n.search(), files: map[string]*codeFile{}}
}

// options returns what annotations need, without what only the user can say.
func (c *code) options() annotate.Options {
	return annotate.Options{
		Open: func(m *profile.Module) (*module.Image, error) {
			f := c.file(m)
			return f.img, f.err
		},
		Bounds: c.bounds,
		Lines:  c.lines,
		Symbol: c.symbol,
	}
}

func (c *code) file(m *profile.Module) *codeFile {
	c.mu.Lock()
	key := m.Path + " " + m.BuildID
	f := c.files[key]
	if f == nil {
		f = new(codeFile)
		c.files[key] = f
	}
	c.mu.Unlock()
	f.once.Do(func() {
		f.img, f.err = modules.Find(c.search, m.Path, m.BuildID)
		f.frames = sync.OnceValue(func() (fr *dwarf.Frames) {
			if f.img != nil {
				fr, _ = dwarf.Open(f.img)
			}
			return fr
		})
	})
	return f
}

// bounds returns the range of a function: as the symbol table says, else as unwind information does.
func (c *code) bounds(m *profile.Module, v arch.Vaddr) (lo, hi arch.Vaddr, ok bool) {
	if s := c.symbols.Module(m.Path, m.BuildID).Resolve([]arch.Vaddr{v})[0]; s.Name != "" && s.Size > 0 {
		return s.Start, s.Start + arch.Vaddr(s.Size), true
	}
	if f := c.file(m).frames(); f != nil {
		return f.Bounds(v)
	}
	return 0, 0, false
}

func (c *code) symbol(m *profile.Module, v arch.Vaddr) (string, uint64) {
	s := c.symbols.Module(m.Path, m.BuildID).Resolve([]arch.Vaddr{v})[0]
	return s.Name, uint64(v - s.Start)
}

// lines returns the lines of [lo, hi): where the places of addresses change, a row begins.
func (c *code) lines(m *profile.Module, lo, hi arch.Vaddr) (out []annotate.Line) {
	t := c.symbols.Module(m.Path, m.BuildID)
	var addrs [1 << 12]arch.Vaddr
	for lo < hi {
		n := int(min(hi-lo, arch.Vaddr(len(addrs))))
		for i := range n {
			addrs[i] = lo + arch.Vaddr(i)
		}
		for i, places := range t.Places(addrs[:n]) {
			l := annotate.Line{Addr: addrs[i]}
			if len(places) > 0 {
				l.File, l.Line = places[0].File, places[0].Line
				for _, p := range places[:len(places)-1] {
					l.Inlined = append(l.Inlined, p.Name)
				}
			}
			if k := len(out); k == 0 || out[k-1].File != l.File || out[k-1].Line != l.Line || !slices.Equal(out[k-1].Inlined, l.Inlined) {
				out = append(out, l)
			}
		}
		lo += arch.Vaddr(n)
	}
	return out
}
