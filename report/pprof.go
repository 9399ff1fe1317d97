package report

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"
	"github.com/klauspost/compress/gzip"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

const (
	kernelStart   = 1 << 63
	commentPrefix = "unspool: "
	countsPrefix  = "unspool counts:"
)

// Pprof writes p in pprof's format (profile.proto), compressed. Sample types are samples/count and one for each
// event: cpu/nanoseconds for clocks, else its name and unit. Samples have the labels comm, pid, tid, and stop where a stack is
// not whole; the counts are in comments. An address is that of the first process that mapped the file.
func Pprof(w io.Writer, p *profile.Profile, _ Options) error {
	out := &pprof.Profile{
		SampleType:    []*pprof.ValueType{{Type: "samples", Unit: "count"}},
		DurationNanos: int64(p.Duration / time.Nanosecond),
		Comments:      comments(p),
	}
	if !p.Start.IsZero() {
		out.TimeNanos = p.Start.UnixNano()
	}
	for _, v := range eventTypes(p) {
		out.SampleType = append(out.SampleType, v)
		out.DefaultSampleType = out.SampleType[1].Type
	}
	if len(p.Events) == 1 && p.Totals.Samples > 0 && !p.Waits() { // waits have no rate
		out.PeriodType = out.SampleType[1]
		out.Period = clampInt64(p.Totals.Period / p.Totals.Samples)
	}
	locs := pprofLocations{p: p, out: out, funcs: map[funcFile]*pprof.Function{}, nodes: map[pprofStep]*pprofNode{}}
	locs.mappings()
	locs.places()
	labels := map[pprofLabels]*pprof.Sample{}
	samples := make([]pprof.Sample, len(p.Stacks))
	out.Sample = make([]*pprof.Sample, len(p.Stacks))
	for i := range p.Stacks {
		s := &p.Stacks[i]
		key := pprofLabels{comm: s.Comm, pid: s.PID, tid: s.TID}
		if s.Stop != unwind.Outermost && !p.Totals.NoStops {
			key.stop = s.Stop.String()
		}
		like := labels[key]
		if like == nil {
			like = key.sample()
			labels[key] = like
		}
		v := &samples[i]
		v.Value, v.Location, v.Label, v.NumLabel = make([]int64, len(out.SampleType)), locs.stack(s.Frames), like.Label, like.NumLabel
		v.Value[0] = clampInt64(s.Count)
		if e := int(s.Event) + 1; e > 0 && e < len(v.Value) {
			v.Value[e] = clampInt64(s.Period)
		}
		out.Sample[i] = v
	}
	if err := out.CheckValid(); err != nil {
		panic("BUG: " + err.Error())
	}
	// Half a second of a large profile went into pprof's own compression.
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	return errors.Join(out.WriteUncompressed(z), z.Close())
}

// A pprofLabels is what a sample is labelled with. Many samples have the same, and share them.
type pprofLabels struct {
	comm, stop string // "": none
	pid, tid   int32
}

// sample returns a sample with nothing but labels.
func (l *pprofLabels) sample() *pprof.Sample {
	v := &pprof.Sample{Label: map[string][]string{}, NumLabel: map[string][]int64{}}
	if l.comm != "" {
		v.Label["comm"] = []string{utf8Name(l.comm)}
	}
	if l.stop != "" {
		v.Label["stop"] = []string{l.stop}
	}
	if l.pid != 0 || l.tid != 0 {
		v.NumLabel["pid"], v.NumLabel["tid"] = []int64{int64(l.pid)}, []int64{int64(l.tid)}
	}
	return v
}

// utf8Name returns s with bytes that are not UTF-8 replaced: strings of protocol buffers must be valid.
func utf8Name(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// eventTypes returns one sample type for each event, no two with the same name.
func eventTypes(p *profile.Profile) []*pprof.ValueType {
	used := map[string]bool{"samples": true}
	var out []*pprof.ValueType
	for _, e := range p.Events {
		name := eventBase(e.Name)
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
		out = append(out, &pprof.ValueType{Type: utf8Name(name), Unit: e.Unit})
	}
	return out
}

// isExecutable guesses from its path whether a module is a program.
func isExecutable(m *profile.Module) bool {
	base := m.Base()
	return !m.Kernel && m.Path != "" && base[0] != '[' && !strings.HasSuffix(base, ".so") && !strings.Contains(base, ".so.") && !strings.HasPrefix(m.Path, "//")
}

// comments returns the counts twice, for people and for ReadPprof.
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
	out := []string{commentPrefix + headline(p), b.String()}
	if p.Command != "" {
		out = append(out, "command: "+utf8Name(p.Command))
	}
	if p.Host != "" {
		out = append(out, "host: "+utf8Name(p.Host))
	}
	return out
}
