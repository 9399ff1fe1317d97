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
	heapValue string // one of profile.HeapValues; "": as for ""
}

func (f *filter) flags(c *cobra.Command) {
	c.Flags().IntSliceVar(&f.PIDs, "pid", nil, "only these processes")
	c.Flags().IntSliceVar(&f.TIDs, "tid", nil, "only these threads")
	cli.Var(c, &f.Comm, "comm", "", "only commands that match this regular expression", cli.Regexp)
	cli.Var(c, new(struct{}), "time", "", "only the time FROM,TO, in seconds of the recording's clock; either may be empty", f.setTime)
}

// ring adds the flags for an agent's directory, and for heap profiles.
func (f *filter) ring(c *cobra.Command) {
	const usage = "of an agent's directory, only the time FROM,TO, such as 14:30, 2026-11-26T14:30 or -15m; either may be empty"
	if time := c.Flags().Lookup("time"); time != nil {
		time.Usage = "only the time FROM,TO, in seconds of the recording's clock; " + usage
	} else {
		cli.Var(c, new(struct{}), "time", "", usage, f.setTime)
	}
	c.Flags().StringVar(&f.Event, "event", "", "of an agent's directory with several, show this event (default cpu)")
	cli.Var(c, &f.Service, "service", "", "only services that match this regular expression, of an agent's directory", cli.Regexp)
	heapValueFlag(c, &f.heapValue)
}

// setTime reads --time into the Filter.
func (f *filter) setTime(flag, s string) (none struct{}, err error) {
	if s != "" {
		err = f.SetTime(s, time.Now())
	}
	if err != nil {
		err = usage("%s %w", flag, err)
	}
	return none, err
}
