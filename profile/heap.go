package profile

import (
	"cmp"
	"slices"
	"strings"
)

// The events of heap profiles. Each counts objects (Stack.Count) and their bytes (Stack.Period).
const (
	HeapInUse = "inuse"     // allocated and not freed
	HeapAlloc = "alloc"     // allocated
	HeapPeak  = "peak"      // in use when most bytes were
	HeapBrief = "temporary" // freed before their thread had allocated anything else
)

// HeapEvents are all of them, in the order that pprof's readers expect.
var HeapEvents = []string{HeapAlloc, HeapInUse, HeapPeak, HeapBrief}

// HeapEvent returns the event of that name.
func HeapEvent(name string) Event { return Event{name, "bytes"} }

// HeapValues are what heap profiles can show: the bytes and the objects of each event, by the names that pprof has for them. DefaultHeapValue is
// shown unless another is asked for.
var HeapValues = heapValues()

const DefaultHeapValue = HeapInUse + space

const space, objects = "_space", "_objects"

func heapValues() (out []string) {
	for _, e := range HeapEvents {
		out = append(out, e+space, e+objects)
	}
	return out
}

// A HeapValue is one of HeapValues in parts.
type HeapValue struct {
	Event   string
	Objects bool // not bytes
}

// ParseHeapValue returns what one of HeapValues shows; "" is DefaultHeapValue.
func ParseHeapValue(name string) HeapValue {
	event, isObjects := strings.CutSuffix(cmp.Or(name, DefaultHeapValue), objects)
	return HeapValue{strings.TrimSuffix(event, space), isObjects}
}

// Of returns what the value shows of a heap profile.
func (v HeapValue) Of(p *Profile) *Profile {
	q := *p.Only(v.Event)
	q.Objects = v.Objects
	return &q
}

// Has says whether the profile counts an event of that name.
func (i *Info) Has(event string) bool {
	return slices.ContainsFunc(i.Events, func(e Event) bool { return e.Name == event })
}

// HeapGrows says of an event of heap profiles that its counts of a running process only grow.
func HeapGrows(event string) bool { return event == HeapAlloc || event == HeapBrief }

// Heap says that all that was counted are objects and bytes of memory.
func (i *Info) Heap() bool {
	for _, e := range i.Events {
		if e.Unit != "bytes" || !slices.Contains(HeapEvents, e.Name) {
			return false
		}
	}
	return len(i.Events) > 0
}

// Only returns the profile of one event, by its name; p if there is no other.
func (p *Profile) Only(event string) *Profile {
	at := slices.IndexFunc(p.Events, func(e Event) bool { return e.Name == event })
	if at < 0 || len(p.Events) == 1 {
		return p
	}
	q := p.Filter(func(s *Stack) bool { return int(s.Event) == at })
	q.Events = p.Events[at : at+1]
	for i := range q.Stacks {
		q.Stacks[i].Event = 0
	}
	return q
}

// InMemory says how much each event of a heap profile counted: "1.2 MiB in use, 45 objects".
func (p *Profile) InMemory() string {
	said := map[string]string{HeapAlloc: " allocated", HeapInUse: " in use", HeapPeak: " at the peak", HeapBrief: " temporary"}
	objects, bytes := make([]uint64, len(p.Events)), make([]uint64, len(p.Events))
	for i := range p.Stacks {
		if s := &p.Stacks[i]; int(s.Event) < len(p.Events) {
			objects[s.Event] += s.Count
			bytes[s.Event] += s.Period
		}
	}
	var out []string
	for i, e := range p.Events {
		out = append(out, Number(bytes[i], "bytes")+said[e.Name]+", "+Count(objects[i], "object", "objects"))
	}
	return strings.Join(out, " · ")
}
