package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	pprof "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

const (
	kernelStart   = 1 << 63
	commentPrefix = "unspool: "
	countsPrefix  = "unspool counts:"
)

// Pprof writes p in pprof's format (profile.proto), compressed. Sample types are samples/count and one for each
// event: cpu/nanoseconds for clocks. Samples have the labels comm, pid, tid, and stop where a stack is
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
	if len(p.Events) == 1 && p.Totals.Samples > 0 {
		out.PeriodType = out.SampleType[1]
		out.Period = clampInt64(p.Totals.Period / p.Totals.Samples)
	}
	out.Function = make([]*pprof.Function, len(p.Funcs))
	for i := range p.Funcs {
		f := &p.Funcs[i]
		linkage := f.Linkage
		if linkage == "" {
			linkage = f.Name
		}
		out.Function[i] = &pprof.Function{ID: uint64(i + 1), Name: utf8Name(f.Name), SystemName: utf8Name(linkage)}
	}
	mappings := pprofMappings(p, out)
	locs := pprofLocations(p, out, mappings)
	for i := range p.Stacks {
		s := &p.Stacks[i]
		v := &pprof.Sample{
			Value:    make([]int64, len(out.SampleType)),
			Location: make([]*pprof.Location, len(s.Frames)),
			Label:    map[string][]string{},
			NumLabel: map[string][]int64{},
		}
		v.Value[0] = clampInt64(s.Count)
		if e := int(s.Event) + 1; e > 0 && e < len(v.Value) {
			v.Value[e] = clampInt64(s.Period)
		}
		for k, f := range s.Frames {
			v.Location[k] = locs[f]
		}
		if s.Comm != "" {
			v.Label["comm"] = []string{utf8Name(s.Comm)}
		}
		if s.Stop != unwind.Outermost && !p.Totals.NoStops {
			v.Label["stop"] = []string{s.Stop.String()}
		}
		if s.PID != 0 || s.TID != 0 {
			v.NumLabel["pid"] = []int64{int64(s.PID)}
			v.NumLabel["tid"] = []int64{int64(s.TID)}
		}
		out.Sample = append(out.Sample, v)
	}
	if err := out.CheckValid(); err != nil {
		panic("BUG: " + err.Error())
	}
	return out.Write(w)
}

// utf8Name returns s with bytes that are not UTF-8 replaced: strings of protocol buffers must be valid.
func utf8Name(s string) string { return strings.ToValidUTF8(s, "\ufffd") }

// eventTypes returns one sample type for each event, no two with the same name.
func eventTypes(p *profile.Profile) []*pprof.ValueType {
	used := map[string]bool{"samples": true}
	var out []*pprof.ValueType
	for _, e := range p.Events {
		name := eventBase(e.Name)
		if e.Unit == "nanoseconds" {
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

// pprofMappings gives out the mappings of p, and one more for each module of the kernel. It returns
// them by the indices of p.Mappings, and those of the kernel by module. The first is the executable with
// the most samples, as pprof expects.
func pprofMappings(p *profile.Profile, out *pprof.Profile) (m struct{ user, kernel []*pprof.Mapping }) {
	weight := make([]uint64, len(p.Mappings))
	used := make([]bool, len(p.Modules))
	for i := range p.Stacks {
		for _, f := range p.Stacks[i].Frames {
			l := &p.Locs[f]
			used[l.Module] = true
			if l.Mapping >= 0 {
				weight[l.Mapping] += p.Stacks[i].Count
			}
		}
	}
	main := -1
	for i := range p.Mappings {
		if isExecutable(&p.Modules[p.Mappings[i].Module]) && (main < 0 || weight[i] > weight[main]) {
			main = i
		}
	}
	add := func(v *pprof.Mapping) *pprof.Mapping {
		v.ID = uint64(len(out.Mapping) + 1)
		v.HasFunctions = true
		out.Mapping = append(out.Mapping, v)
		return v
	}
	m.user = make([]*pprof.Mapping, len(p.Mappings))
	m.kernel = make([]*pprof.Mapping, len(p.Modules))
	user := func(i int) {
		k := &p.Mappings[i]
		mod := &p.Modules[k.Module]
		m.user[i] = add(&pprof.Mapping{Start: k.Lo, Limit: k.Hi, Offset: k.Off, File: utf8Name(mod.Path), BuildID: mod.BuildID})
	}
	if main >= 0 {
		user(main)
	}
	for i := range p.Mappings {
		if i != main {
			user(i)
		}
	}
	for i := range p.Modules {
		if mod := &p.Modules[i]; mod.Kernel && used[i] {
			m.kernel[i] = add(&pprof.Mapping{Start: kernelStart, Limit: 1<<64 - 1, Offset: kernelStart, File: utf8Name(mod.Path), BuildID: mod.BuildID})
		}
	}
	return m
}

// isExecutable guesses from its path whether a module is a program.
func isExecutable(m *profile.Module) bool {
	base := m.Base()
	return !m.Kernel && m.Path != "" && base[0] != '[' && !strings.HasSuffix(base, ".so") && !strings.Contains(base, ".so.") && !strings.HasPrefix(m.Path, "//")
}

// pprofLocations gives out the locations of p; those that differ only in how they were found are one.
func pprofLocations(p *profile.Profile, out *pprof.Profile, maps struct{ user, kernel []*pprof.Mapping }) []*pprof.Location {
	type key struct {
		m    *pprof.Mapping
		addr uint64
		fn   int32
	}
	seen := map[key]*pprof.Location{}
	locs := make([]*pprof.Location, len(p.Locs))
	for i := range p.Locs {
		l := &p.Locs[i]
		m := maps.kernel[l.Module]
		if l.Mapping >= 0 {
			m = maps.user[l.Mapping]
		}
		k := key{m, l.Addr, l.Func}
		v := seen[k]
		if v == nil {
			v = &pprof.Location{ID: uint64(len(out.Location) + 1), Mapping: m, Address: l.Addr, Line: []pprof.Line{{Function: out.Function[l.Func]}}}
			seen[k] = v
			out.Location = append(out.Location, v)
		}
		locs[i] = v
	}
	return locs
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
