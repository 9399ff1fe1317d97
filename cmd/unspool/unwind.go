package main

import (
	"context"
	"fmt"
	"io/fs"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/modules"
)

func unwindCmd() *cobra.Command {
	var flt filter
	var stepper func() (*modules.Set, error)
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
			if err := flt.compile(); err != nil {
				return err
			}
			mods, err := stepper()
			if err != nil {
				return err
			}
			defer mods.Close()
			return runUnwind(c.Context(), args[0], args[1], &flt, mods)
		},
	}
	flt.flags(c)
	stepper = stepperFlag(c)
	return c
}

func runUnwind(ctx context.Context, path, to string, flt *filter, mods *modules.Set) error {
	f, s, err := openFile(ctx, path, flt, mods, true, nil)
	if err != nil {
		return err
	}
	defer f.Close()
	o := output{formats: recordFormats, path: to, format: "data", inputs: []fs.FileInfo{f.Stat}}
	out, commit, err := o.create(ctx)
	if err != nil {
		return err
	}
	_, err = s.write(ctx, out, &o, false)
	if err = commit(err); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	s.warn()
	s.wrote(to)
	return nil
}
