package main

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/report"
)

// recordingFormat is what record and unwind write besides what package report does.
var recordingFormat = report.Format{Name: "data", Endings: []string{".data"}, About: "perf.data with callchains, for unspool report and perf report", Private: true}

// An output is where a report goes and what it looks like; its flags are shared by report and record.
type output struct {
	formats      report.Table // that it can have; nil: those of package report
	path, format string
	opts         report.Options
	sort         string        // "self" or "total"
	inputs       []fs.FileInfo // what is read, and must not be written
	keep         bool          // what is there, as PATH.old
	publish      func() error  // of what create has made: to be seen as it grows
}

// known returns the formats that there are.
func (o *output) known() report.Table {
	if o.formats == nil {
		return report.Formats
	}
	return o.formats
}

// form returns the format, which is known once resolve has picked it.
func (o *output) form() *report.Format { return o.known().Named(o.format) }

func (o *output) flags(c *cobra.Command) {
	names := o.known().Names()
	c.Flags().StringVarP(&o.path, "output", "o", o.path, "file to write; its ending picks the format")
	c.Flags().StringVar(&o.format, "format", o.format, printable.Either(names)+" (default: by the ending of -o, else top)")
	c.Flags().BoolVar(&o.opts.Icicle, "icicle", false, "draw the flame graph upside down, the root on top")
	c.Flags().BoolVar(&o.opts.Summary, "summary", false, o.users("summary")+"end with an object that counts whole, cut off and broken stacks")
	cli.Var(c, &o.opts.Func, "function", "", o.users("function")+"only functions whose names match this regular expression", pattern)
	sortFlag(c, &o.sort, o.users("sort"))
	c.Flags().IntVar(&o.opts.Limit, "limit", 0, o.users("limit")+"show this many functions")
	c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

// pattern reads the value of a flag that is a regular expression, and returns its text.
func pattern(flag, s string) (string, error) {
	_, err := cli.Regexp(flag, s)
	return s, err
}

// sortFlag adds the flag for the order of functions.
func sortFlag(c *cobra.Command, sort *string, users string) {
	*sort = "self"
	cli.OneOf(c, sort, "sort", users+"sort functions by self, their own weight, or by total, the weight of all stacks with them", "self", "total")
}

// users begins the help of a flag that only some formats obey.
func (o *output) users(flag string) string {
	return strings.Join(o.known().Using(flag), ", ") + ": "
}

// unused refuses flags that change nothing in the format, nor in what is shown besides. It is called after resolve.
func (o *output) unused(c *cobra.Command, shown ...string) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		users := o.known().Using(f.Name)
		obeys := func(format string) bool { return slices.Contains(users, format) }
		if err == nil && len(users) > 0 && f.Value.String() != f.DefValue && !obeys(o.format) && !slices.ContainsFunc(shown, obeys) {
			err = usage("--%s is for %s, and changes nothing in %s", f.Name, printable.Either(users), o.format)
		}
	})
	return err
}

// resolve picks the format.
func (o *output) resolve(fallback string) error {
	o.opts.Total = o.sort == "total"
	if o.opts.Limit < 0 {
		return usage("--limit takes a number of functions, not %d", o.opts.Limit)
	}
	if o.format == "" && o.opts.Func != "" && o.known().ByEnding(o.path) == nil {
		o.format = "callers"
	}
	f, err := o.known().Choose(o.format, o.path, fallback)
	if err != nil {
		return usage("%w", err)
	}
	o.format = f.Name
	if f.Binary && (o.path == "" || o.path == "-") && term.IsTerminal(int(os.Stdout.Fd())) {
		return usage("%s is binary: give -o FILE%s, or pipe it", f.Name, f.Endings[0])
	}
	return nil
}

// terminal returns the options for standard output: as wide as the terminal, if it is one.
func (o *output) terminal() report.Options {
	opts := o.opts
	if cols, rows, err := term.GetSize(int(os.Stdout.Fd())); err == nil {
		opts.Width, opts.Rows = cols, rows
	}
	return opts
}

// write calls f with the output.
func (o *output) write(ctx context.Context, f func(io.Writer) error) error {
	w, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	return commit(f(w))
}

// create begins the output. commit puts it into its place, and returns its argument or what went wrong then; after an error, what was
// there before is there still.
func (o *output) create(ctx context.Context) (w *os.File, commit func(error) error, err error) {
	o.publish = func() error { return nil }
	if o.path == "" || o.path == "-" {
		o.opts = o.terminal()
		return os.Stdout, func(err error) error { return err }, nil
	}
	form := o.form()
	f, err := outfile.Create(ctx, o.path, outfile.Options{Private: form != nil && form.Private, Keep: o.keep, Inputs: o.inputs})
	if errors.Is(err, outfile.ErrInput) {
		return nil, nil, usage("%s is the input: it would be overwritten", o.path)
	}
	if err != nil {
		return nil, nil, err
	}
	o.publish = f.Publish
	return f.File, func(err error) error {
		if err != nil {
			f.Discard()
			return err
		}
		err = f.Commit()
		say(f.Notes)
		return err
	}, nil
}
