package main

import (
	"cmp"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
	"github.com/unspool/unspool/report/annotate"
)

// An annotator writes functions with the samples at their lines and instructions.
type annotator struct {
	syntax  string
	sources annotate.Sources
	paths   []string     // as given
	mods    *modules.Set // has the files; may be nil
	names   *names.Namer // of what is annotated; nil: one for mods is made
}

func (a *annotator) flags(c *cobra.Command) {
	a.syntax = annotate.Syntaxes[0]
	cli.OneOf(c, &a.syntax, "asm", "annotate, disasm: syntax of instructions: "+printable.Either(annotate.Syntaxes), annotate.Syntaxes...)
	c.Flags().StringVar(&a.sources.Root, "source-root", "", "annotate: look for source files below this directory first")
	c.Flags().StringArrayVar(&a.paths, "source-path", nil, "annotate: replace the beginning of source paths, OLD=NEW; may be repeated")
	c.MarkFlagDirname("source-root")
}

// formats returns the formats that need code.
func (a *annotator) formats() report.Table {
	form := func(name, about string, source bool, uses ...string) report.Format {
		return report.Format{Name: name, About: about, Uses: append(uses, "function", "limit", "asm"), Whole: func(w io.Writer, p *profile.Profile, o report.Options) error { return a.write(w, p, o, source) }}
	}
	return report.Table{form("annotate", "functions, line by line", true, "source-root", "source-path"), form("disasm", "functions, instruction by instruction", false)}
}

// check checks the flags.
func (a *annotator) check() error {
	if err := cli.Directories("--source-root", a.sources.Root); err != nil {
		return err
	}
	for _, p := range a.paths {
		from, to, ok := strings.Cut(p, "=")
		if !ok || from == "" {
			return usage("--source-path: %q is not OLD=NEW", p)
		}
		a.sources.Paths = append(a.sources.Paths, [2]string{from, to})
	}
	return nil
}

// write writes the functions that o.Func matches, the hottest first.
func (a *annotator) write(w io.Writer, p *profile.Profile, o report.Options, source bool) error {
	re, err := regexp.Compile(o.Func)
	if err != nil {
		return err
	}
	namer := a.names
	if namer == nil {
		namer = newNamer(names.Options{Mods: a.mods}, true)
		defer namer.Close()
	}
	opts := annotate.OptionsOf(namer, a.sources)
	opts.Syntax, opts.By = a.syntax, o.By
	n, err := annotate.Write(w, p, re.MatchString, opts, annotate.TextOptions{Source: source, Width: o.Width}, cmp.Or(o.Limit, 3))
	if n == 0 && err == nil {
		return report.NoFunction(o.Func)
	}
	return err
}
