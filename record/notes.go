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
