package main

import (
	"math"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/profile"
)

// A filter says which samples are of interest.
type filter struct {
	pids, tids []int
	comm, time string

	re       *regexp.Regexp
	from, to uint64 // ns, as recorded
}

func (f *filter) flags(c *cobra.Command) {
	c.Flags().IntSliceVar(&f.pids, "pid", nil, "only these processes")
	c.Flags().IntSliceVar(&f.tids, "tid", nil, "only these threads")
	c.Flags().StringVar(&f.comm, "comm", "", "only commands that match this regular expression")
	c.Flags().StringVar(&f.time, "time", "", "only the time FROM,TO, in seconds of the recording's clock; either may be empty")
}

// compile checks the flags.
func (f *filter) compile() error {
	f.to = math.MaxUint64
	if f.comm != "" {
		re, err := regexp.Compile(f.comm)
		if err != nil {
			return usage("--comm: %v", err)
		}
		f.re = re
	}
	if f.time == "" {
		return nil
	}
	from, to, ok := strings.Cut(f.time, ",")
	if !ok {
		return usage("--time is FROM,TO in seconds, not %q", f.time)
	}
	for _, x := range []struct {
		s  string
		to *uint64
	}{{from, &f.from}, {to, &f.to}} {
		if x.s == "" {
			continue
		}
		ns, err := parseSeconds(x.s)
		if err != nil {
			return usage("--time: %q is no number of seconds", x.s)
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

// active says whether the filter refuses anything.
func (f *filter) active() bool {
	return len(f.pids) > 0 || len(f.tids) > 0 || f.re != nil || f.time != ""
}

// want is the filter on samples as they come.
func (f *filter) want(pid, tid int32, comm string, time uint64) bool {
	return f.who(pid, tid, comm) && time >= f.from && time <= f.to
}

func (f *filter) who(pid, tid int32, comm string) bool {
	has := func(list []int, v int32) bool {
		for _, x := range list {
			if x == int(v) {
				return true
			}
		}
		return len(list) == 0
	}
	return has(f.pids, pid) && has(f.tids, tid) && (f.re == nil || f.re.MatchString(comm))
}

// stack is the filter on aggregated stacks, which have no time.
func (f *filter) stack(s *profile.Stack) bool { return f.who(s.PID, s.TID, s.Comm) }
