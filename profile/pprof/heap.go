package pprof

import (
	"slices"
	"strings"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
)

// heapKey is what samples of a heap profile agree in that are one to pprof.
type heapKey struct {
	frames *uint32
	n      int
	labels labels
}

// heapTypes returns the sample types of a heap profile, two for each event, and the one that is shown first.
func heapTypes(p *profile.Profile) (types []*proto.ValueType, first string) {
	for _, e := range p.Events {
		types = append(types, &proto.ValueType{Type: e.Name + "_objects", Unit: "count"}, &proto.ValueType{Type: e.Name + "_space", Unit: "bytes"})
		if first == "" || e.Name == profile.HeapInUse {
			first = e.Name + "_space"
		}
	}
	return types, first
}

// addHeap adds a stack's objects and bytes to its sample.
func addHeap(v *proto.Sample, s *profile.Stack) {
	if at := 2 * int(s.Event); at >= 0 && at+1 < len(v.Value) {
		v.Value[at] = clamp(uint64(v.Value[at]) + s.Count)
		v.Value[at+1] = clamp(uint64(v.Value[at+1]) + s.Period)
	}
}

// heapOf returns the values of a heap profile, by event, and sets p's events; nil for any other profile.
func heapOf(in *proto.Profile, p *profile.Profile) (objects []int) {
	for i := 0; i+1 < len(in.SampleType); i += 2 {
		o, b := in.SampleType[i], in.SampleType[i+1]
		name, ok := strings.CutSuffix(o.Type, "_objects")
		if !ok || b.Type != name+"_space" || o.Unit != "count" || b.Unit != "bytes" || !slices.Contains(profile.HeapEvents, name) {
			p.Events = nil
			return nil
		}
		objects = append(objects, i)
		p.Events = append(p.Events, profile.HeapEvent(name))
	}
	if in.PeriodType != nil && in.PeriodType.Unit == "bytes" {
		p.Every = uint64(max(in.Period, 0))
	}
	return objects
}

// readHeap adds a stack to p for each event of a sample.
func readHeap(s *proto.Sample, objects []int, st *profile.Stack, p *profile.Profile) {
	for event, at := range objects {
		n, bytes := s.Value[at], s.Value[at+1]
		if n < 0 || bytes < 0 {
			p.Loss.Damaged++
			continue
		}
		if n == 0 && bytes == 0 {
			continue
		}
		one := *st
		one.Event, one.Count, one.Period = int32(event), uint64(n), uint64(bytes)
		p.Stacks = append(p.Stacks, one)
	}
}
