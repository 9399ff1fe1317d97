package record

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/unspool/unspool/profile"
)

// A Filter says which samples are of interest. The zero value takes all.
type Filter struct {
	PIDs, TIDs []int          // one of these; none: any
	Comm       *regexp.Regexp // matches the command's name; nil: any
	Timed      bool           // of the time from From to To
	From, To   uint64         // ns of the recording's clock, both included
}

// SetTime takes the time from a text: FROM,TO in seconds of the recording's clock, of which either may be empty.
func (f *Filter) SetTime(text string) error {
	from, to, ok := strings.Cut(text, ",")
	if !ok {
		return fmt.Errorf("is FROM,TO in seconds, not %q", text)
	}
	f.Timed, f.From, f.To = true, 0, math.MaxUint64
	for _, x := range []struct {
		text string
		ns   *uint64
	}{{from, &f.From}, {to, &f.To}} {
		if x.text == "" {
			continue
		}
		ns, err := parseSeconds(x.text)
		if err != nil {
			return fmt.Errorf("takes numbers of seconds, not %q", x.text)
		}
		*x.ns = ns
	}
	if f.From > f.To {
		return fmt.Errorf("ends at %s, before it begins at %s", to, from)
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
func (f *Filter) active() bool { return len(f.PIDs)+len(f.TIDs) > 0 || f.Comm != nil || f.Timed }

// wants is the filter on samples as they come.
func (f *Filter) wants(pid, tid int32, comm string, time uint64) bool {
	return f.who(pid, tid, comm) && (!f.Timed || f.From <= time && time <= f.To)
}

// stack is the filter on aggregated stacks, which have no time.
func (f *Filter) stack(s *profile.Stack) bool { return f.who(s.PID, s.TID, s.Comm) }

func (f *Filter) who(pid, tid int32, comm string) bool {
	has := func(list []int, v int32) bool { return len(list) == 0 || slices.Contains(list, int(v)) }
	return has(f.PIDs, pid) && has(f.TIDs, tid) && (f.Comm == nil || f.Comm.MatchString(comm))
}
