// Package pprof reads and writes profiles in pprof's format (profile.proto of github.com/google/pprof). What Write writes of a profile, Read
// restores, with the counts and how each stack ends; profiles of other tools have less.
//
// A profile that is read may be hostile: its size in memory is known before it is parsed, and bounded by the size of what was read.
package pprof

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"sync"
	"time"

	proto "github.com/google/pprof/profile"
	"github.com/klauspost/compress/gzip"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

const (
	kernelStart   = 1 << 63
	commentPrefix = "unspool: "
	countsPrefix  = "unspool counts:"
)

// Write writes p in pprof's format (profile.proto), compressed. Sample types are samples/count and one for each
// event: cpu/nanoseconds for clocks, else its name and unit. Heap profiles have two for each event, as Go's have: alloc_objects/count,
// alloc_space/bytes, inuse_objects/count, inuse_space/bytes, and two more pairs. Samples have the labels comm, pid, tid, and stop where a stack is
// not whole; the counts are in comments. An address is that of the first process that mapped the file.
func Write(w io.Writer, p *profile.Profile) error { return WriteUnnamed(w, p, nil) }

// WriteUnnamed is Write, but leaves out functions, lines and inlined calls of the modules for which unnamed returns true: whoever reads the
// profile names their addresses. unnamed may be nil.
func WriteUnnamed(w io.Writer, p *profile.Profile, unnamed func(*profile.Module) bool) error {
	out := &proto.Profile{
		SampleType:    []*proto.ValueType{{Type: "samples", Unit: "count"}},
		DurationNanos: int64(p.Duration / time.Nanosecond),
		Comments:      comments(p),
	}
	if !p.Start.IsZero() {
		out.TimeNanos = p.Start.UnixNano()
	}
	heap := p.Heap()
	if heap {
		out.SampleType, out.DefaultSampleType = heapTypes(p)
		out.PeriodType, out.Period = &proto.ValueType{Type: "space", Unit: "bytes"}, clamp(max(p.Every, 1))
	} else {
		for _, v := range eventTypes(p) {
			out.SampleType = append(out.SampleType, v)
			out.DefaultSampleType = out.SampleType[1].Type
		}
	}
	if !heap && len(p.Events) == 1 && p.Totals.Samples > 0 && !p.Waits() { // waits have no rate
		out.PeriodType = out.SampleType[1]
		out.Period = clamp(p.Totals.Period / p.Totals.Samples)
	}
	locs := locations{p: p, out: out, funcs: map[funcFile]*proto.Function{}, nodes: map[step]*node{}}
	locs.unname(unnamed)
	locs.mappings()
	locs.places()
	like := map[labels]*proto.Sample{} // nothing but labels
	samples := make([]proto.Sample, len(p.Stacks))
	out.Sample = make([]*proto.Sample, 0, len(p.Stacks))
	one := map[heapKey]*proto.Sample{}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		key := labels{comm: s.Comm, pid: s.PID, tid: s.TID}
		if s.Stop != unwind.Outermost && !p.Totals.NoStops {
			key.stop = s.Stop.String()
		}
		l := like[key]
		if l == nil {
			l = key.sample()
			like[key] = l
		}
		if heap && len(s.Frames) > 0 { // one sample has what all events count
			k := heapKey{&s.Frames[0], len(s.Frames), key}
			if v := one[k]; v != nil {
				addHeap(v, s)
				continue
			}
			one[k] = &samples[i]
		}
		v := &samples[i]
		v.Value, v.Location, v.Label, v.NumLabel = make([]int64, len(out.SampleType)), locs.stack(s.Frames), l.Label, l.NumLabel
		out.Sample = append(out.Sample, v)
		if heap {
			addHeap(v, s)
			continue
		}
		v.Value[0] = clamp(s.Count)
		if e := int(s.Event) + 1; e > 0 && e < len(v.Value) {
			v.Value[e] = clamp(s.Period)
		}
	}
	if err := out.CheckValid(); err != nil {
		panic("BUG: " + err.Error())
	}
	// Half a second of a large profile went into pprof's own compression.
	z := writers.Get().(*gzip.Writer)
	z.Reset(w)
	err := errors.Join(out.WriteUncompressed(z), z.Close())
	z.Reset(io.Discard)
	writers.Put(z)
	return err
}

// writers compress. A new one takes 1 MB: an agent writes a hundred small profiles one after another.
var writers = sync.Pool{New: func() any {
	z, err := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed)
	if err != nil {
		panic("BUG: " + err.Error())
	}
	return z
}}

// labels are what a sample is labelled with. Many samples have the same, and share them.
type labels struct {
	comm, stop string // "": none
	pid, tid   int32
}

// sample returns a sample with nothing but labels.
func (l *labels) sample() *proto.Sample {
	v := &proto.Sample{Label: map[string][]string{}, NumLabel: map[string][]int64{}}
	if l.comm != "" {
		v.Label["comm"] = []string{valid(l.comm)}
	}
	if l.stop != "" {
		v.Label["stop"] = []string{l.stop}
	}
	if l.pid != 0 || l.tid != 0 {
		v.NumLabel["pid"], v.NumLabel["tid"] = []int64{int64(l.pid)}, []int64{int64(l.tid)}
	}
	return v
}

// clamp returns n as far as the format has room for it.
func clamp(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// valid returns s with bytes that are not UTF-8 replaced: strings of protocol buffers must be valid.
func valid(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// eventTypes returns one sample type for each event, no two with the same name.
func eventTypes(p *profile.Profile) []*proto.ValueType {
	used := map[string]bool{"samples": true}
	var out []*proto.ValueType
	for _, e := range p.Events {
		name := e.Base()
		if e.Unit == "nanoseconds" && e.Name != profile.OffCPU {
			name = "cpu"
		}
		if used[name] {
			name = e.Name
		}
		for used[name] {
			name += "'"
		}
		used[name] = true
		out = append(out, &proto.ValueType{Type: valid(name), Unit: e.Unit})
	}
	return out
}

// isExecutable guesses from its path whether a module is a program.
func isExecutable(m *profile.Module) bool {
	base := m.Base()
	return !m.Kernel && m.Path != "" && base[0] != '[' && !strings.HasSuffix(base, ".so") && !strings.Contains(base, ".so.") && !strings.HasPrefix(m.Path, "//")
}

// comments returns the counts twice, for people and for Read.
func comments(p *profile.Profile) []string {
	var b strings.Builder
	b.WriteString(countsPrefix)
	if !p.Totals.NoStops {
		for s, n := range p.Totals.Stops {
			fmt.Fprintf(&b, " stop.%s=%d", unwind.Stop(s), n)
		}
	}
	for h, n := range p.Totals.Hows {
		if n > 0 {
			fmt.Fprintf(&b, " how.%s=%d", profile.How(h), n)
		}
	}
	l := &p.Loss
	fmt.Fprintf(&b, " lost=%d throttled=%d skipped=%d damaged=%d", l.Samples, l.Throttles, l.Skipped, l.Damaged)
	out := []string{commentPrefix + p.Headline(), b.String()}
	if p.Command != "" {
		out = append(out, "command: "+valid(p.Command))
	}
	if p.Host != "" {
		out = append(out, "host: "+valid(p.Host))
	}
	for _, l := range p.Labels {
		out = append(out, "label: "+valid(l))
	}
	return out
}
