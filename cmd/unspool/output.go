package main

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/report"
)

// recordingFormat is what record and unwind write besides what package report does.
var recordingFormat = report.Format{Name: "data", Endings: []string{".data"}, About: "perf.data with callchains, for unspool report and perf report", Private: true}

// An output is a report.Output with its flags, which report and record share, and with messages to its user.
type output struct{ report.Output }

func (o *output) flags(c *cobra.Command) {
	f, names := c.Flags(), o.Known().Names()
	f.StringVarP(&o.Path, "output", "o", "", "file to write; its ending picks the format")
	f.StringVar(&o.Format, "format", "", printable.Either(names)+" (default: by the ending of -o, else top)")
	f.BoolVar(&o.Icicle, "icicle", false, "draw the flame graph upside down, the root on top")
	f.BoolVar(&o.Summary, "summary", false, o.users("summary")+"end with an object that counts whole, cut off and broken stacks")
	cli.Var(c, &o.Func, "function", "", o.users("function")+"only functions whose names match this regular expression", pattern)
	sortFlag(c, &o.Sort, o.users("sort"))
	f.IntVar(&o.Limit, "limit", 0, o.users("limit")+"show this many functions")
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
func (o *output) users(flag string) string { return strings.Join(o.Known().Using(flag), ", ") + ": " }

// resolve picks the format.
func (o *output) resolve() error { return wrong(o.Resolve("top")) }

// unused refuses flags that change nothing in the format, nor in the table besides. It is called after Resolve.
func (o *output) unused(c *cobra.Command) (err error) {
	c.Flags().Visit(func(f *pflag.Flag) {
		if ignored := o.Ignored(f.Name); err == nil && ignored != nil && f.Value.String() != f.DefValue {
			err = usage("%w", ignored)
		}
	})
	return err
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
func (o *output) create(ctx context.Context) (w *outfile.File, commit func(error) error, err error) {
	w, err = o.Create(ctx)
	if errors.Is(err, outfile.ErrInput) {
		err = usage("%s is the input: it would be overwritten", o.Path)
	}
	return w, func(err error) error {
		err = w.Finish(err)
		notify(w.Notes)
		return err
	}, err
}
