package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/outfile"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/report"
)

func diffCmd() *cobra.Command {
	var o output
	var in reading
	by, all := "share", false
	c := &cobra.Command{
		Use:   "diff [BEFORE AFTER]",
		Short: "Show what has changed between two recordings",
		Long: `Compare two recordings, or pprof profiles: which functions take more time, and which take less? Without arguments,
diff compares ` + defaultRecording + ` with the previous recording, ` + defaultRecording + `.old. If ` + defaultRecording + ` is a link, the
previous recording is beside the link's target.

The table sorts functions by the certainty of their change, "sigma": the number of standard deviations between the two
counts of samples, self or total, whichever is greater. How far all functions have moved sets the scale. Changes that
may be chance are only counted; --all shows them.

--by share compares shares of the whole, so the recordings can differ in length. --by samples and --by periods compare
absolute numbers. Without --by, heap profiles are compared by their bytes or objects.

--time and the other filters hold for both. To compare two times of an agent's directory, write each to a file first:
unspool report DIR --time 14:30,14:45 -o a.pb.gz.

In a flame graph (-o diff.svg), functions that take more are red, functions that take less are blue. folded has two
numbers a line, before and after, as flamegraph.pl reads them.`,
		Example: `  unspool diff before.data after.data
  unspool diff before.data after.data -o diff.svg
  unspool diff monday.pb.gz friday.pb.gz --comm '^nginx'
  unspool diff before.data after.data --by samples --format folded | flamegraph.pl > diff.svg`,
		Args: cli.NoneOr(2),
		RunE: func(c *cobra.Command, args []string) error {
			cli.CollectLate()
			args, err := recordings(args, outfile.Old(defaultRecording), defaultRecording)
			if err != nil {
				return err
			}
			if err := o.resolve(); err != nil {
				return err
			}
			if report.Diffs.Named(o.Format) == nil {
				return usage("a comparison is %s, not %s", printable.Either(report.Diffs.Names()), o.Format)
			}
			if err := (&output{report.Output{Formats: report.Diffs, Format: o.Format}}).unused(c); err != nil {
				return err
			}
			if o.Absolute = by != "share"; by == "periods" {
				o.By = report.Periods
			}
			if args[0] == "-" && args[1] == "-" {
				return usage("only one of the two recordings can be standard input")
			}
			if all {
				o.MinShare = -1
			}
			end, err := in.begin()
			if err != nil {
				return err
			}
			defer end()
			var p [2]*profile.Profile
			for i, path := range args {
				if p[i], err = in.profile(c.Context(), path, &o); err != nil {
					return err
				}
			}
			if p[0].Heap() != p[1].Heap() || p[0].Waits() != p[1].Waits() {
				fmt.Fprintf(stderr, "unspool: unlike things are compared: %s in %s, %s in %s\n", p[0].Counted(), printable.String(args[0]), p[1].Counted(), printable.String(args[1]))
			}
			if p[0].Heap() && p[1].Heap() && !c.Flags().Changed("by") { // how much more, not which part of all
				o.Absolute = true
			}
			return o.write(c.Context(), func(w io.Writer) error { return o.Compare(w, p[0], p[1]) })
		},
	}
	f := c.Flags()
	f.StringVarP(&o.Path, "output", "o", "", "file to write; its ending picks the format")
	f.StringVar(&o.Format, "format", "", printable.Either(report.Diffs.Names())+" (default: by the ending of -o, else top)")
	cli.OneOf(c, &by, "by", "compare share, samples or periods", "share", "samples", "periods")
	f.BoolVar(&all, "all", false, "top: show changes that can be chance, too; flame: draw the smallest frames, too")
	f.IntVar(&o.Limit, "limit", 0, "top: show this many functions")
	f.BoolVar(&o.Icicle, "icicle", false, "draw the flame graph upside down, the root on top")
	c.RegisterFlagCompletionFunc("format", cobra.FixedCompletions(report.Diffs.Names(), cobra.ShellCompDirectiveNoFileComp))
	in.filter.flags(c)
	in.flags(c)
	return c
}
