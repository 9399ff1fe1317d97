package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/record"
)

// A filter says which samples are of interest.
type filter struct {
	record.Filter
	comm, time, service string
}

func (f *filter) flags(c *cobra.Command) {
	c.Flags().IntSliceVar(&f.PIDs, "pid", nil, "only these processes")
	c.Flags().IntSliceVar(&f.TIDs, "tid", nil, "only these threads")
	c.Flags().StringVar(&f.comm, "comm", "", "only commands that match this regular expression")
	c.Flags().StringVar(&f.time, "time", "", "only the time FROM,TO, in seconds of the recording's clock; either may be empty")
}

// ring adds the flags for an agent's directory.
func (f *filter) ring(c *cobra.Command) {
	const usage = "of an agent's directory, only the time FROM,TO, such as 14:30, 2026-11-26T14:30 or -15m; either may be empty"
	if time := c.Flags().Lookup("time"); time != nil {
		time.Usage = "only the time FROM,TO, in seconds of the recording's clock; " + usage
	} else {
		c.Flags().StringVar(&f.time, "time", "", usage)
	}
	c.Flags().StringVar(&f.service, "service", "", "only services that match this regular expression, of an agent's directory")
}

// compile checks the flags.
func (f *filter) compile() error {
	var err error
	if f.Comm, err = cli.Regexp("--comm", f.comm); err != nil {
		return err
	}
	if f.Service, err = cli.Regexp("--service", f.service); err != nil {
		return err
	}
	if f.time == "" {
		return nil
	}
	if err := f.SetTime(f.time, time.Now()); err != nil {
		return usage("--time %w", err)
	}
	return nil
}
