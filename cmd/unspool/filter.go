package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

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
	if f.comm != "" {
		re, err := regexp.Compile(f.comm)
		if err != nil {
			return usage("--comm: %v", err)
		}
		f.Comm = re
	}
	if f.time == "" {
		return nil
	}
	f.Timed, f.To = true, math.MaxUint64
	from, to, ok := strings.Cut(f.time, ",")
	if !ok {
		return usage("--time is FROM,TO in seconds, not %q", f.time)
	}
	for _, x := range []struct {
		s  string
		to *uint64
	}{{from, &f.From}, {to, &f.To}} {
		if x.s == "" {
			continue
		}
		ns, err := parseSeconds(x.s)
		if err != nil {
			return usage("--time takes numbers of seconds, not %q", x.s)
		}
		*x.to = ns
	}
	return nil
}

// parseSeconds reads "4918.072454123" as nanoseconds, exactly.
func parseSeconds(s string) (uint64, error) {
	whole, frac, _ := strings.Cut(s, ".")
	sec, err := strconv.ParseUint(whole, 10, 33)
	if err != nil {
		return 0, err
	}
	frac = (frac + "000000000")[:9]
	ns, err := strconv.ParseUint(frac, 10, 64)
	return sec*1e9 + ns, err
}
