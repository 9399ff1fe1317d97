package profile

import (
	"strings"

	"github.com/unspool/unspool/internal/printable"
)

// Base is the event's name without its modifiers, fit for a line of text: "cpu-clock" of "cpu-clock:ppp".
func (e Event) Base() string {
	s := printable.String(e.Name)
	base, mod, ok := strings.Cut(s, ":")
	if ok && strings.Trim(mod, "ukhGHpPSDWebI") == "" {
		return base
	}
	return s
}

// Headline is the line of counts on top of every report that has room for one: Summary, and what was counted.
func (p *Profile) Headline() string {
	if p.Heap() {
		_, rest, _ := strings.Cut(p.Summary(), " · ")
		return p.InMemory() + " · " + rest
	}
	return p.Title(p.Summary())
}

// Counted names the events: "cycles and faults"; "" if there is none but samples.
func (i *Info) Counted() string {
	var names []string
	for _, e := range i.Events {
		names = append(names, e.Base())
	}
	if events := strings.Join(names, " and "); events != "samples" {
		return events
	}
	return ""
}

// Title puts the events into a summary: "10 samples of cycles and faults · …".
func (i *Info) Title(summary string) string {
	if events := i.Counted(); events != "" {
		what, rest, _ := strings.Cut(summary, " · ")
		return what + " of " + events + " · " + rest
	}
	return summary
}
