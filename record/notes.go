package record

import (
	"fmt"
	"strings"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// repaired says what a recorder read from /proc because no record had told of it; "" if there is nothing.
func repaired(r *source.Repairs) string {
	var parts []string
	for _, p := range []struct {
		n         uint64
		one, many string
	}{
		{r.Processes, "process", "processes"}, {r.Mappings, "mapping", "mappings"}, {r.Gone, "mapping that had gone", "mappings that had gone"},
		{r.Names, "name", "names"},
	} {
		if p.n > 0 {
			parts = append(parts, profile.Count(p.n, p.one, p.many))
		}
	}
	if len(parts) == 0 {
		return ""
	}
	return "read from /proc, because no record told of them: " + strings.Join(parts, ", ")
}

// missed says what the processes and threads of the samples lack, and what that does to their stacks. What a sound recording has a little of is said
// from one in fifty samples on.
func missed(st *source.Stats) (out []string) {
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	many := func(n uint64) bool { return n*50 > st.Samples }
	if st.Dropped > 0 {
		say("%s left out: %s executable mappings of a process are kept, and %s of a user's processes; stacks that lead to others end there: record fewer processes",
			profile.Count(st.Dropped, "mapping or thread was", "mappings or threads were"), profile.Comma(source.MaxMappings), profile.Comma(source.MaxOwned))
	}
	if st.Disordered > 0 {
		say("%s too late: stacks and names near them can be those of another moment", profile.Count(st.Disordered, "record came", "records came"))
	}
	if many(st.NoTime) {
		say("%s of the samples have no time: their stacks and names are as the file has them in its order: record them with times",
			profile.Percent(st.NoTime, st.Samples))
	}
	if many(st.Orphans) {
		say("%s of the samples are of processes whose start was not recorded: where their mappings are missing, stacks end and code has no names",
			profile.Percent(st.Orphans, st.Samples))
	}
	if many(st.Compat) {
		say("%s of the samples are of 32-bit code on a 64-bit machine, whose stacks are not walked: perf record --call-graph fp follows frame pointers there",
			profile.Percent(st.Compat, st.Samples))
	}
	if many(st.Undeferred) {
		say("%s of the samples have no user stack: the record that has it is missing", profile.Percent(st.Undeferred, st.Samples))
	}
	return out
}

// recordLess adds to a note how to record less, by what the events take.
func recordLess(note string, events []source.Event) string {
	for _, e := range events {
		switch {
		case e.Name == perfevent.OffCPU:
			return note + ": record fewer tasks (-p, --cgroup, --comm)"
		case !e.Attr.Has(source.FlagFreq) && e.Attr.SamplePeriod > 1:
			return fmt.Sprintf("%s: record with a -c over %d", note, e.Attr.SamplePeriod)
		case !e.Attr.Has(source.FlagFreq):
			return fmt.Sprintf("%s: record only one of every N %s (-c N)", note, e.Name)
		}
	}
	return note + ": record with a lower frequency (-F)"
}

// largerCopies adds to a note how to copy more of each stack, unless the events say that they copy all that they can.
func largerCopies(note string, events []source.Event) string {
	for _, e := range events {
		if e.Attr.SampleStackUser >= min(perfevent.MaxStackSize, tracer.MaxStackSize) {
			return note
		}
	}
	return note + ": record with a larger --stack-size"
}
