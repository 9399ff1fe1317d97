package pprof

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	rpprof "runtime/pprof"
	"testing"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/profile"
)

// heapProfile is a profile of random stacks, each counted by some events.
func heapProfile() *profile.Profile {
	p := random(40)
	p.Events, p.Every = nil, 512<<10
	for _, e := range profile.HeapEvents {
		p.Events = append(p.Events, profile.HeapEvent(e))
	}
	stacks := p.Stacks
	p.Stacks = nil
	for i, s := range stacks {
		for e := range p.Events {
			if s.Event, s.Count, s.Period = int32(e), uint64(1+i), uint64(100*i+e+1); e == 0 || i%(e+1) == 0 {
				p.Stacks = append(p.Stacks, s)
			}
		}
	}
	return p.Filter(func(*profile.Stack) bool { return true })
}

// TestHeap: a heap profile has the sample types of Go's, one sample for each stack, and comes back as it was.
func TestHeap(t *testing.T) {
	p := heapProfile()
	var b bytes.Buffer
	if err := Write(&b, p); err != nil {
		t.Fatal(err)
	}
	out, err := proto.ParseData(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	var rb bytes.Buffer
	runtime.GC()
	if err := rpprof.Lookup("heap").WriteTo(&rb, 0); err != nil {
		t.Fatal(err)
	}
	gos, err := proto.ParseData(rb.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(out.SampleType[:4], gos.SampleType) || !reflect.DeepEqual(out.PeriodType, gos.PeriodType) || out.DefaultSampleType != "inuse_space" || out.Period != 512<<10 {
		t.Errorf("sample types %v, period %v; Go's %v, %v", out.SampleType, out.PeriodType, gos.SampleType, gos.PeriodType)
	}
	if len(out.Sample) != 40 {
		t.Errorf("%d samples, want 40", len(out.Sample))
	}
	q, err := Read(&b)
	if err != nil || !reflect.DeepEqual(q.Events, p.Events) || q.Every != p.Every || !reflect.DeepEqual(q.Totals, p.Totals) || q.Headline() != p.Headline() {
		t.Errorf("read %+v, %v: want %+v", q.Info, err, p.Info)
	}
	for _, e := range profile.HeapEvents {
		if a, b := p.Only(e), q.Only(e); !a.Heap() || a.Totals.Samples != b.Totals.Samples || a.Totals.Period != b.Totals.Period || a.Totals.Stops != b.Totals.Stops || len(a.Stacks) != len(b.Stacks) {
			t.Errorf("%s: %+v, read %+v", e, a.Totals, b.Totals)
		}
	}
}

// TestGoHeap: Go's own heap profiles are read as heap profiles.
func TestGoHeap(t *testing.T) {
	path := filepath.Join(t.TempDir(), "heap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	runtime.GC()
	if err := rpprof.Lookup("heap").WriteTo(f, 0); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	in, err := proto.ParseData(b)
	if err != nil {
		t.Fatal(err)
	}
	want := int64(0)
	for _, s := range in.Sample {
		want += s.Value[3]
	}
	p, err := Read(bytes.NewReader(b))
	if err != nil || !p.Heap() || p.Only(profile.HeapInUse).Totals.Period != uint64(want) || p.Every != uint64(runtime.MemProfileRate) {
		t.Errorf("%+v, %v: want %d bytes in use", p, err, want)
	}
}
