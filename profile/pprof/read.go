package pprof

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// Read reads a profile in pprof's format, compressed or not. From profiles that Write wrote it restores
// all that reports need; what is missing in others shows as unknown. Negative values, which only
// differences of profiles have, are counted as damaged and left out.
func Read(r io.Reader) (*profile.Profile, error) {
	b, err := inflate(r)
	if err != nil {
		return nil, fmt.Errorf("pprof: %w", err)
	}
	if len(b) == 0 {
		return nil, errors.New("pprof: empty")
	}
	if bytes.HasPrefix(b, []byte("PERFILE2")) {
		return nil, errors.New("a perf.data file that gzip has compressed: gunzip it first")
	}
	size, err := parsedSize(b)
	if err == nil && size > min(freeParsed+maxParsed*int64(len(b)), maxMemory) {
		return nil, fmt.Errorf("pprof: its %d MiB would take %d MiB of memory, which is too much", len(b)>>20, size>>20)
	}
	var in *proto.Profile
	if err == nil {
		in, err = proto.ParseUncompressed(b)
	}
	if err != nil {
		return nil, fmt.Errorf("not a recording and not a pprof profile: %w", err)
	}
	if err := in.CheckValid(); err != nil {
		return nil, fmt.Errorf("pprof: %w", err)
	}
	// Locations are small in the file, and calls inlined in them are written once only.
	return fromProto(in, min(16*len(b)+1<<16, maxExpanded))
}

// values says which of a sample's values mean what.
type values struct {
	count  int // -1: none
	events []int
	heap   []int // of a heap profile, by event: the value of objects; that of bytes is next to it
}

func valuesOf(in *proto.Profile, p *profile.Profile, ours bool) values {
	v := values{count: -1}
	if v.heap = heapOf(in, p); v.heap != nil {
		return v
	}
	for i, t := range in.SampleType {
		if t.Type == "samples" && t.Unit == "count" {
			v.count = i
		}
	}
	if v.count < 0 {
		v.count = slices.IndexFunc(in.SampleType, func(t *proto.ValueType) bool { return t.Unit == "count" })
	}
	for i := range in.SampleType {
		if i != v.count && ours {
			v.events = append(v.events, i)
		}
	}
	if len(v.events) == 0 && len(in.SampleType) > 0 {
		// One value of several: the one that is shown first.
		i := slices.IndexFunc(in.SampleType, func(t *proto.ValueType) bool { return t.Type == in.DefaultSampleType })
		if i < 0 {
			i = len(in.SampleType) - 1
		}
		v.events = []int{i}
	}
	for _, i := range v.events {
		t := in.SampleType[i]
		name, unit := t.Type, t.Unit
		if unit == "" {
			unit = "count"
		}
		p.Events = append(p.Events, profile.Event{Name: name, Unit: unit})
	}
	return v
}

// fromProto makes a profile of at most so many frames.
func fromProto(in *proto.Profile, most int) (*profile.Profile, error) {
	p := &profile.Profile{Info: profile.Info{Duration: time.Duration(max(in.DurationNanos, 0))}}
	if in.TimeNanos != 0 {
		p.Start = time.Unix(0, in.TimeNanos)
	}
	ours := readComments(in.Comments, p)
	p.Totals.NoStops = !ours
	v := valuesOf(in, p, ours)

	modules := map[[2]string]int32{}
	module := func(m *proto.Mapping) int32 {
		var k [2]string
		if m != nil {
			k = [2]string{m.File, m.BuildID}
		}
		i, ok := modules[k]
		if !ok {
			i = int32(len(p.Modules))
			modules[k] = i
			kernel := m != nil && strings.HasPrefix(m.File, "[") && (m.Start >= kernelStart || m.File == "[kernel.kallsyms]" || m.File == "[kernel]")
			if kernel && k[0] == "[kernel.kallsyms]" {
				k[0] = "[kernel]"
			}
			p.Modules = append(p.Modules, profile.Module{Path: k[0], BuildID: k[1], Kernel: kernel})
		}
		return i
	}
	module(nil)
	maps := map[*proto.Mapping]int32{}
	for _, m := range in.Mapping {
		mod := module(m)
		if p.Modules[mod].Kernel || m.File == "" {
			continue
		}
		maps[m] = int32(len(p.Mappings))
		p.Mappings = append(p.Mappings, profile.Mapping{Lo: m.Start, Hi: m.Limit, Off: m.Offset, Module: mod})
	}

	type funcKey struct {
		name   string
		module int32
	}
	funcs := map[funcKey]int32{}
	function := func(name, linkage string, mod int32) int32 {
		k := funcKey{name, mod}
		i, ok := funcs[k]
		if !ok {
			i = int32(len(p.Funcs))
			funcs[k] = i
			named := !strings.HasPrefix(name, "[")
			if linkage == name || !named {
				linkage = ""
			}
			p.Funcs = append(p.Funcs, profile.Func{Name: name, Linkage: linkage, Module: mod, Named: named})
		}
		return i
	}
	p.Files = []string{""}
	files := map[string]uint32{"": 0}
	file := func(name string) uint32 {
		i, ok := files[name]
		if !ok {
			i = uint32(len(p.Files))
			files[name] = i
			p.Files = append(p.Files, name)
		}
		return i
	}
	// A location of pprof with inlined functions becomes one location for each of them.
	locs := map[*proto.Location][]uint32{}
	for _, l := range in.Location {
		mod := module(l.Mapping)
		loc := profile.Loc{Addr: l.Address, Off: l.Address, Module: mod, Mapping: -1, How: profile.HowUnknown}
		if p.Modules[mod].Kernel {
			loc.How = profile.HowKernel
		} else if m := l.Mapping; m != nil {
			loc.Off = l.Address - m.Start + m.Offset
			if i, ok := maps[m]; ok {
				loc.Mapping = i
			}
		}
		for _, line := range l.Line {
			if line.Function == nil || line.Function.Name == "" {
				continue
			}
			loc.Func = function(line.Function.Name, line.Function.SystemName, mod)
			loc.File, loc.Line, loc.Column = file(line.Function.Filename), count32(line.Line), count32(line.Column)
			loc.Inlined = true
			locs[l] = append(locs[l], uint32(len(p.Locs)))
			p.Locs = append(p.Locs, loc)
		}
		loc.File, loc.Line, loc.Column, loc.Inlined = 0, 0, 0, false
		if len(locs[l]) == 0 {
			name := profile.Unknown
			if base := p.Modules[mod].Base(); base != profile.Unknown {
				name = "[" + strings.Trim(base, "[]") + "]"
			}
			loc.Func = function(name, "", mod)
			locs[l] = []uint32{uint32(len(p.Locs))}
			p.Locs = append(p.Locs, loc)
		}
		p.Locs[len(p.Locs)-1].Inlined = false
	}

	comm := ""
	if len(in.Mapping) > 0 && in.Mapping[0].File != "" {
		comm = path.Base(in.Mapping[0].File)
	}
	for _, s := range in.Sample {
		st := profile.Stack{Comm: comm, Stop: unwind.Outermost}
		if v.heap == nil && !readValues(s, v, &st) {
			p.Loss.Damaged++
			continue
		}
		for _, l := range s.Location {
			if most -= len(locs[l]); most < 0 {
				return nil, errors.New("pprof: far more frames than the file has room for")
			}
			st.Frames = append(st.Frames, locs[l]...)
		}
		if c := s.Label["comm"]; len(c) > 0 {
			st.Comm = c[0]
		}
		if c := s.Label["stop"]; len(c) > 0 {
			st.Stop = parseStop(c[0])
		}
		st.PID, st.TID = number(s, "pid"), cmp.Or(number(s, "tid"), number(s, "thread_id"))
		if v.heap != nil {
			readHeap(s, v.heap, &st, p)
			continue
		}
		p.Stacks = append(p.Stacks, st)
	}
	hows := p.Totals.Hows
	q := p.Filter(func(*profile.Stack) bool { return true })
	if ours {
		q.Totals.Hows = hows
	}
	return q, nil
}

// readValues sets a stack's numbers. It returns false if there are none, or negative ones.
func readValues(s *proto.Sample, v values, st *profile.Stack) bool {
	if len(v.events) == 0 {
		return false
	}
	for k, i := range v.events {
		if n := s.Value[i]; n != 0 {
			st.Event, st.Period = int32(k), uint64(max(n, 0))
			if n < 0 {
				return false
			}
			break
		}
	}
	st.Count = st.Period
	if v.count >= 0 {
		if s.Value[v.count] < 0 {
			return false
		}
		st.Count = uint64(s.Value[v.count])
	}
	return true
}

// count32 returns a line or column; 0 where it can be none.
func count32(n int64) uint32 {
	if n < 0 || n > math.MaxUint32 {
		return 0
	}
	return uint32(n)
}

func number(s *proto.Sample, label string) int32 {
	if n := s.NumLabel[label]; len(n) > 0 {
		return int32(max(min(n[0], 1<<31-1), -1<<31))
	}
	return 0
}

func parseStop(s string) unwind.Stop {
	for i := unwind.Stop(0); i < unwind.NumStops; i++ {
		if i.String() == s {
			return i
		}
	}
	return unwind.NoInfo
}

// readComments restores what Write wrote into comments, and says whether it was Write.
func readComments(lines []string, p *profile.Profile) (ours bool) {
	for _, c := range lines {
		if s, ok := strings.CutPrefix(c, "command: "); ok && ours {
			p.Command = s
		}
		if s, ok := strings.CutPrefix(c, "host: "); ok && ours {
			p.Host = s
		}
		if s, ok := strings.CutPrefix(c, "label: "); ok && ours {
			p.Labels = append(p.Labels, s)
		}
		s, ok := strings.CutPrefix(c, countsPrefix)
		if !ok {
			continue
		}
		for f := range strings.FieldsSeq(s) {
			name, value, _ := strings.Cut(f, "=")
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				continue
			}
			switch name {
			case "lost":
				p.Loss.Samples += n
			case "throttled":
				p.Loss.Throttles += n
			case "skipped":
				p.Loss.Skipped += n
			case "damaged":
				p.Loss.Damaged += n
			}
			if name, ok := strings.CutPrefix(name, "stop."); ok && name == unwind.Outermost.String() {
				ours = true
			}
			if name, ok := strings.CutPrefix(name, "how."); ok {
				for h := range p.Totals.Hows {
					if profile.How(h).String() == name {
						p.Totals.Hows[h] += n
					}
				}
			}
		}
	}
	return ours
}
