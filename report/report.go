// Package report writes profiles: as tables and trees for a terminal, as folded stacks, as a flame graph, as pprof, for the Firefox Profiler
// and speedscope, as the text of perf script, and as lines of JSON. All of them show the same numbers, and each inlined call as a frame.
//
// A report of a whole profile is a function of a writer, a profile.Profile and Options. A Stream writes single samples as they come, without
// keeping them. Nothing here decides what to count or how to name it; package profile did both.
package report

import (
	"io"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
)

// A Weight says what numbers mean.
type Weight = profile.Weight

const (
	Samples = profile.Samples
	Periods = profile.Periods
)

// Options shape a report. The zero value is the usual one.
type Options struct {
	By Weight

	Title    string  // Flame; empty: made from the profile
	Icicle   bool    // Flame: the root is at the top at first
	MinShare float64 // Flame, Tree, Callers, Callees: leaves out what is less than this part of all; 0: a sensible one; negative: nothing

	Width int    // Top, Tree, Callers, Callees: columns of the terminal; 0: lines are not cut
	Rows  int    // Top, Diff: rows of the terminal, where Limit is 0; 0: no bound
	Limit int    // Top, Callers, Callees: functions to show; 0: all (Callers, Callees: ten)
	Total bool   // Top, Callers, Callees: the functions with the largest total come first, not those with the most of their own
	Func  string // Callers, Callees: a regular expression that functions must match; empty: those with the most of their own

	// Absolute compares two profiles by what things weigh, not by their parts of all.
	Absolute bool

	// Summary adds the counts of whole, truncated and broken stacks to JSON, as a last object
	// {"summary": …}, which readers may not expect. All other reports have them anyway.
	Summary bool
}

// A Func writes a report.
type Func func(io.Writer, *profile.Profile, Options) error

// limit is how many lines a table may have, with so many others around it; 0: no bound.
func (o *Options) limit(others int) int {
	if o.Limit > 0 || o.Rows == 0 {
		return o.Limit
	}
	return max(o.Rows-others, 10)
}

func (o *Options) weight(s *profile.Stack) uint64 { return o.By.Of(s) }

func (o *Options) total(p *profile.Profile) uint64 { return o.By.All(&p.Totals) }

// unit names what weights count: "samples", "ns", "cycles".
func (o *Options) unit(p *profile.Profile) string {
	switch {
	case o.By == Samples && p.Heap():
		return "objects"
	case o.By == Samples:
		return "samples"
	case len(p.Events) != 1:
		return "events"
	case p.Events[0].Unit == "nanoseconds":
		return "ns"
	case p.Events[0].Unit != "count":
		return printable.String(p.Events[0].Unit)
	}
	return p.Events[0].Base()
}
