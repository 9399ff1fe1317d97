package profile

import (
	"encoding/binary"
	"strings"
	"time"
)

// A Merger makes one profile of many, such as those of the intervals of one machine. Modules with the same path and build ID are one (without build IDs: of
// one file), and so are functions of the same name and module, and places of the same offset. The zero value is ready to use.
type Merger struct {
	p        Profile
	tags     []Place // by stack
	end      time.Time
	modules  map[Module]int32
	mappings map[Mapping]int32
	funcs    map[funcKey]int32
	files    map[string]uint32
	locs     map[Loc]uint32
	frames   map[string][]uint32
	stacks   map[stackKey]int32
	buf      []byte
}

// A Place is where an agent has taken samples.
type Place struct {
	Service string
	Pod     string // NAMESPACE/NAME; "": none
}

// NewPlace returns the place of a service, in a pod or in none.
func NewPlace(service, namespace, pod string) Place {
	if pod == "" {
		return Place{Service: service}
	}
	return Place{service, namespace + "/" + pod}
}

// Label returns the value of a label; "" if it is not there.
func (i *Info) Label(name string) string {
	for _, l := range i.Labels {
		if n, value, ok := strings.Cut(l, "="); ok && n == name {
			return value
		}
	}
	return ""
}

// A stackKey is what the samples of a stack have in common.
type stackKey struct {
	frames   *uint32 // the first: lists are kept once; nil: none
	comm     string
	tag      Place
	pid, tid int32
	stop     uint8
	event    int32
}

// Add adds a profile. Stacks of different places stay apart. It returns the index of each of the profile's stacks
// in the profile that is made.
func (m *Merger) Add(p *Profile, at Place) []int32 {
	return m.add(p, func(int) Place { return at })
}

// AddMerged is Add for a profile that another Merger has made, with the place of each stack.
func (m *Merger) AddMerged(p *Profile, at []Place) []int32 {
	return m.add(p, func(i int) Place { return at[i] })
}

func (m *Merger) add(p *Profile, tagged func(stack int) Place) []int32 {
	if m.modules == nil {
		m.modules, m.mappings, m.funcs, m.files = map[Module]int32{}, map[Mapping]int32{}, map[funcKey]int32{}, map[string]uint32{"": 0}
		m.locs, m.frames, m.stacks = map[Loc]uint32{}, map[string][]uint32{}, map[stackKey]int32{}
		m.p.Files = []string{""}
		m.p.Info = Info{Host: p.Host, Command: p.Command, Start: p.Start}
		m.p.Totals.NoStops = p.Totals.NoStops
	}
	m.about(p)
	events := make([]int32, len(p.Events))
	for i, e := range p.Events {
		events[i] = m.event(e)
	}
	locs := m.places(p)
	out := make([]int32, len(p.Stacks))
	for i := range p.Stacks {
		s, tag := p.Stacks[i], tagged(i)
		s.Frames = m.list(s.Frames, locs)
		if s.Event >= 0 && int(s.Event) < len(events) {
			s.Event = events[s.Event]
		}
		k := stackKey{comm: s.Comm, tag: tag, pid: s.PID, tid: s.TID, stop: uint8(s.Stop), event: s.Event}
		if len(s.Frames) > 0 {
			k.frames = &s.Frames[0]
		}
		at, ok := m.stacks[k]
		if !ok {
			at = int32(len(m.p.Stacks))
			m.stacks[k] = at
			m.p.Stacks = append(m.p.Stacks, s)
			m.tags = append(m.tags, tag)
		} else {
			m.p.Stacks[at].Count += s.Count
			m.p.Stacks[at].Period += s.Period
		}
		out[i] = at
	}
	return out
}

// Profile returns what has been added, and the place of each stack. Its time is from the first beginning to the last end. What is added afterwards
// changes what it has returned.
func (m *Merger) Profile() (p *Profile, at []Place) {
	if !m.p.Start.IsZero() {
		m.p.Duration = m.end.Sub(m.p.Start)
	}
	return &m.p, m.tags
}

// about merges what profiles say of themselves; host and command are those that all have.
func (m *Merger) about(p *Profile) {
	q := &m.p
	if p.Host != q.Host {
		q.Host = ""
	}
	if p.Command != q.Command {
		q.Command = ""
	}
	if !p.Start.IsZero() && (q.Start.IsZero() || p.Start.Before(q.Start)) {
		q.Start = p.Start
	}
	if end := p.Start.Add(p.Duration); end.After(m.end) {
		m.end = end
	}
	q.Loss.Samples += p.Loss.Samples
	q.Loss.Throttles += p.Loss.Throttles
	q.Loss.Skipped += p.Loss.Skipped
	q.Loss.Damaged += p.Loss.Damaged
	q.Totals.Merge(&p.Totals)
}

func (m *Merger) event(e Event) int32 {
	for i, have := range m.p.Events {
		if have == e {
			return int32(i)
		}
	}
	m.p.Events = append(m.p.Events, e)
	return int32(len(m.p.Events) - 1)
}

// number returns the number of a key, and whether it is a new one.
func number[K comparable, N int32 | uint32](numbers map[K]N, k K) (n N, added bool) {
	n, ok := numbers[k]
	if !ok {
		n = N(len(numbers))
		numbers[k] = n
	}
	return n, !ok
}

// places returns the number of each location of p.
func (m *Merger) places(p *Profile) []uint32 {
	q := &m.p
	modules, files, funcs := make([]int32, len(p.Modules)), make([]uint32, len(p.Files)), make([]int32, len(p.Funcs))
	added := false
	for i, mod := range p.Modules {
		if modules[i], added = number(m.modules, mod); added {
			q.Modules = append(q.Modules, mod)
		}
	}
	for i, f := range p.Files {
		if files[i], added = number(m.files, f); added {
			q.Files = append(q.Files, f)
		}
	}
	for i, f := range p.Funcs {
		f.Module = modules[f.Module]
		if funcs[i], added = number(m.funcs, funcKey{f.Name, f.Module}); added {
			q.Funcs = append(q.Funcs, f)
		}
	}
	locs := make([]uint32, len(p.Locs))
	for i, l := range p.Locs {
		l.Func, l.Module, l.File = funcs[l.Func], modules[l.Module], at(files, l.File)
		k := l
		if k.Off != k.Addr { // in a file: each process has it elsewhere
			k.Addr, k.Mapping = 0, -1
		}
		if locs[i], added = number(m.locs, k); added {
			if l.Mapping >= 0 {
				o := p.Mappings[l.Mapping]
				o.Module = modules[o.Module]
				if l.Mapping, added = number(m.mappings, o); added {
					q.Mappings = append(q.Mappings, o)
				}
			}
			q.Locs = append(q.Locs, l)
		}
	}
	return locs
}

// at returns the number of a source file; 0 where a profile has none, not even the first.
func at(files []uint32, i uint32) uint32 {
	if int(i) < len(files) {
		return files[i]
	}
	return 0
}

// list returns the one copy of a list of locations.
func (m *Merger) list(frames, locs []uint32) []uint32 {
	m.buf = m.buf[:0]
	for _, f := range frames {
		m.buf = binary.LittleEndian.AppendUint32(m.buf, locs[f])
	}
	if have, ok := m.frames[string(m.buf)]; ok {
		return have
	}
	out := make([]uint32, len(frames))
	for i, f := range frames {
		out[i] = locs[f]
	}
	m.frames[string(m.buf)] = out
	return out
}
