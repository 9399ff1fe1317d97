package main

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/report"
)

func unwindCmd() *cobra.Command {
	var in reading
	c := &cobra.Command{
		Use:   "unwind IN OUT",
		Short: "Turn a recording with stack copies into a small one with callchains",
		Long: `Unwind the stack copies of a perf.data file (perf record --call-graph dwarf), and write a perf.data file with plain
callchains. perf report, perf script and unspool report read the result. Each frame still says how it was found. "-" is
standard input or output.`,
		Example: "  unspool unwind perf.data small.data && perf report -i small.data\n  perf record --call-graph dwarf -o - ./program | unspool unwind - small.data",
		Args:    cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			cli.CollectLate()
			end, err := in.begin()
			if err != nil {
				return err
			}
			defer end()
			return runUnwind(c.Context(), args[0], args[1], &in)
		},
	}
	in.filter.flags(c)
	in.look = stepperFlag(c)
	return c
}

func runUnwind(ctx context.Context, path, to string, in *reading) error {
	f, err := in.open(ctx, path, record.FileOptions{Single: true})
	if err != nil {
		return err
	}
	defer f.Close()
	o := output{report.Output{Formats: recordFormats, Path: to, Format: recordingFormat.Name, Inputs: []fs.FileInfo{f.Stat}}}
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	_, err = recording(ctx, f.Session, out.File, false)
	if err = commit(err); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	notify(f.Notes())
	wrote(&o, f.Summary())
	return nil
}
