package record

import (
	"regexp"
	"slices"

	"github.com/unspool/unspool/profile"
)

// A Filter says which samples are of interest. The zero value takes all.
type Filter struct {
	PIDs, TIDs []int          // one of these; none: any
	Comm       *regexp.Regexp // matches the command's name; nil: any
	Timed      bool           // of the time from From to To
	From, To   uint64         // ns of the recording's clock, both included
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
