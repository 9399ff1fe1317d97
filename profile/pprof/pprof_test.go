package pprof

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// random is a profile of n random stacks, of which no two have the same labels.
func random(n int) *profile.Profile {
	r := rand.New(rand.NewPCG(7, 7))
	p := &profile.Profile{Modules: []profile.Module{{Path: "[kernel]", Kernel: true}, {}, {Path: "/usr/lib/lib.so"}}}
	for i := range 400 {
		p.Funcs = append(p.Funcs, profile.Func{Name: fmt.Sprint("function", i), Module: int32(i % 3), Named: true})
		p.Locs = append(p.Locs, profile.Loc{Addr: uint64(i), Off: uint64(i), Func: int32(i), Module: int32(i % 3), Mapping: -1})
	}
	for i := range n {
		s := profile.Stack{Comm: fmt.Sprint("thread", i), Stop: unwind.Stop(r.IntN(int(unwind.NumStops))), Count: 1 + uint64(r.IntN(9)), Period: 1}
		for d := range 1 + r.IntN(40) {
			s.Frames = append(s.Frames, uint32(r.IntN(min(400, 3+d*d))))
		}
		p.Stacks = append(p.Stacks, s)
		p.Totals.Samples += s.Count
		p.Totals.Stops[s.Stop] += s.Count
	}
	return p
}

// A duration that a file makes up is none.
func TestDuration(t *testing.T) {
	var b bytes.Buffer
	in := &proto.Profile{SampleType: []*proto.ValueType{{Type: "samples", Unit: "count"}}, DurationNanos: -5}
	if err := in.Write(&b); err != nil {
		t.Fatal(err)
	}
	if p, err := Read(&b); err != nil || p.Duration != 0 {
		t.Errorf("%v, %v", p, err)
	}
}

// A small file cannot ask for a large profile.
func TestExpands(t *testing.T) {
	oracle.Long(t)
	fn := &proto.Function{ID: 1, Name: "f"}
	l := &proto.Location{ID: 1, Line: make([]proto.Line, 30_000)}
	for i := range l.Line {
		l.Line[i].Function = fn
	}
	s := &proto.Sample{Value: []int64{1}, Location: make([]*proto.Location, 30_000)}
	for i := range s.Location {
		s.Location[i] = l
	}
	p := &proto.Profile{SampleType: []*proto.ValueType{{Type: "samples", Unit: "count"}}, Function: []*proto.Function{fn}, Location: []*proto.Location{l}, Sample: []*proto.Sample{s}}
	var b bytes.Buffer
	if err := p.WriteUncompressed(&b); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(&b); err == nil || !strings.Contains(err.Error(), "more frames") {
		t.Errorf("%v", err)
	}
}

// TestBombs: what is small and becomes large is refused before it is, and what real tools write is not.
func TestBombs(t *testing.T) {
	oracle.Long(t)
	zip := func(b []byte) []byte {
		var out bytes.Buffer
		z := gzip.NewWriter(&out)
		z.Write(b)
		z.Close()
		return out.Bytes()
	}
	for _, c := range []struct {
		name, want string
		data       []byte
	}{
		{"zeros", "inflate to", zip(make([]byte, maxSize/2))},
		{"zeros, large", "more than 256 MiB", make([]byte, maxSize+1)},
		{"empty locations", "of memory", zip(bytes.Repeat([]byte{4<<3 | 2, 0}, 8<<20))},
		{"lines", "of memory", zip(append([]byte{4<<3 | 2, 0x80, 0x80, 0x80, 0x07}, bytes.Repeat([]byte{4<<3 | 2, 0}, 7<<20)...))},
		{"labels", "of memory", zip(append([]byte{2<<3 | 2, 0x80, 0x80, 0x80, 0x07}, bytes.Repeat([]byte{3<<3 | 2, 0}, 7<<20)...))},
		{"malformed", "at byte 0: unexpected EOF", []byte{4<<3 | 2, 0x7f}},
		{"compressed text", "not a recording and not a pprof profile", zip([]byte("main;work 3\n"))},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Read(bytes.NewReader(c.data))
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 3*maxSize {
			t.Errorf("%s: %d bytes of input took %d MiB", c.name, len(c.data), took>>20)
		}
	}
	// Short stacks with labels, deep ones without: of real profiles the largest for their size.
	for _, depth := range []int{1, 100} {
		p := random(1000)
		for i := range p.Stacks {
			for len(p.Stacks[i].Frames) < depth {
				p.Stacks[i].Frames = append(p.Stacks[i].Frames, p.Stacks[i].Frames[0])
			}
		}
		var b bytes.Buffer
		if err := Write(&b, p); err != nil {
			t.Fatal(err)
		}
		raw, err := inflate(&b)
		size, serr := parsedSize(raw)
		if err != nil || serr != nil || size > maxParsed*2/3*int64(len(raw)) {
			t.Errorf("depth %d: %d bytes take %d, %v %v", depth, len(raw), size, err, serr)
		}
	}
}

// TestEvents: types and units say what was counted, and come back as they were.
func TestEvents(t *testing.T) {
	for _, c := range []struct{ event, typ, unit string }{
		{profile.OffCPU, "off-cpu", "nanoseconds"},
		{"cpu-clock:u", "cpu", "nanoseconds"},
		{"task-clock", "cpu", "nanoseconds"},
		{"page-faults", "page-faults", "count"},
		{"sched:sched_switch", "sched:sched_switch", "count"},
		{"cycles:P", "cycles", "count"},
	} {
		p := random(3)
		p.Events = []profile.Event{profile.NewEvent(c.event)}
		var b bytes.Buffer
		if err := Write(&b, p); err != nil {
			t.Fatal(err)
		}
		out, err := proto.ParseData(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		if v := out.SampleType[1]; v.Type != c.typ || v.Unit != c.unit || out.DefaultSampleType != c.typ {
			t.Errorf("%s: type %s, unit %s, shown %s", c.event, v.Type, v.Unit, out.DefaultSampleType)
		}
		if waits := c.event == profile.OffCPU; (out.PeriodType.Type == "") != waits {
			t.Errorf("%s: period type %v", c.event, out.PeriodType)
		}
		q, err := Read(&b)
		if err != nil || q.Waits() != p.Waits() || q.Events[0].Unit != p.Events[0].Unit {
			t.Errorf("%s: read as %+v, %v", c.event, q.Events, err)
		}
	}
}
