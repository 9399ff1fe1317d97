package main

import (
	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/record"
)

// A filter says which samples are of interest.
type filter struct {
	record.Filter
	comm, time string
}

func (f *filter) flags(c *cobra.Command) {
	c.Flags().IntSliceVar(&f.PIDs, "pid", nil, "only these processes")
	c.Flags().IntSliceVar(&f.TIDs, "tid", nil, "only these threads")
	c.Flags().StringVar(&f.comm, "comm", "", "only commands that match this regular expression")
	c.Flags().StringVar(&f.time, "time", "", "only the time FROM,TO, in seconds of the recording's clock; either may be empty")
}

// compile checks the flags.
func (f *filter) compile() error {
	var err error
	if f.Comm, err = cli.Regexp("--comm", f.comm); err != nil {
		return err
	}
	if f.time == "" {
		return nil
	}
	if err := f.SetTime(f.time); err != nil {
		return usage("--time %w", err)
	}
	return nil
}
