package record

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/unspool/unspool/profile"
)

// A Filter says which samples are of interest. The zero value takes all.
type Filter struct {
	PIDs, TIDs []int          // one of these; none: any
	Comm       *regexp.Regexp // matches the command's name; nil: any
	Timed      bool           // of the time from From to To
	From, To   uint64         // ns of the recording's clock, both included

	// Of an agent's directory.
	Since, Until time.Time      // zero: open
	Service      *regexp.Regexp // matches the service's name; nil: any
	Event        string         // the event's name; "": that of time on processors, where there are several
}

// SetTime takes the time from a text: FROM,TO, of which either may be empty, in seconds of the recording's clock, or as times of day, dates, or
// times before now.
func (f *Filter) SetTime(text string, now time.Time) error {
	from, to, ok := strings.Cut(text, ",")
	if !ok {
		return fmt.Errorf("is FROM,TO, not %q", text)
	}
	if _, err := parseSeconds(cmp.Or(from, to, "0")); err != nil {
		return f.setWall(from, to, now)
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

// setWall takes the time of an agent's directory.
func (f *Filter) setWall(from, to string, now time.Time) (err error) {
	if from != "" {
		if f.Since, err = parseWall(from, now, time.Time{}); err != nil {
			return err
		}
	}
	if to != "" {
		if f.Until, err = parseWall(to, now, f.Since); err != nil {
			return err
		}
		if f.Until.Before(f.Since) {
			return fmt.Errorf("ends at %s, before it begins at %s", to, from)
		}
	}
	return nil
}

// ofRing says whether the filter asks for what only an agent's directory has.
func (f *Filter) ofRing() bool {
	return !f.Since.IsZero() || !f.Until.IsZero() || f.Service != nil || f.Event != ""
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
