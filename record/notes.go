package record

import (
	"strings"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// A Note says what the reader of a recording should know. What can be done about it is said by whoever knows how a recording is asked for.
type Note struct {
	Text   string
	Advice Advice
	Event  string // of OneOfMany
	Period uint64 // of LongerPeriod: in events
}

// An Advice is how a recording becomes better.
type Advice uint8

const (
	NoAdvice       Advice = iota
	LargerCopies          // of stacks
	LowerFrequency        // of samples
	LongerPeriod          // than Note.Period
	OneOfMany             // of Note.Event
	FewerTasks            // to record
	MoreMemory            // of the kernel, for tables
	WholeCopies           // of stacks, however many wait
	OtherTime             // of an agent's directory
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

// recordLess returns a note with the advice to record less, by what the events take.
func recordLess(text string, events []source.Event) Note {
	for _, e := range events {
		switch {
		case e.Name == perfevent.OffCPU:
			return Note{Text: text, Advice: FewerTasks}
		case !e.Attr.Has(source.FlagFreq) && e.Attr.SamplePeriod > 1:
			return Note{Text: text, Advice: LongerPeriod, Period: e.Attr.SamplePeriod}
		case !e.Attr.Has(source.FlagFreq):
			return Note{Text: text, Advice: OneOfMany, Event: e.Name}
		}
	}
	return Note{Text: text, Advice: LowerFrequency}
}

// largerCopies returns a note with the advice to copy more of each stack, unless the events say that they copy all that they can.
func largerCopies(text string, events []source.Event) Note {
	for _, e := range events {
		if e.Attr.SampleStackUser >= min(perfevent.MaxStackSize, tracer.MaxStackSize) {
			return Note{Text: text}
		}
	}
	return Note{Text: text, Advice: LargerCopies}
}
