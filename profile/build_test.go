package profile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// Samples like those of a compiler: few hot paths, many cold ones, several processes with the same
// modules at different addresses.
func compilerLike(n int) []Sample {
	r := rand.New(rand.NewPCG(1, 2))
	var mods []*unwind.Module
	for i := range 12 {
		mods = append(mods, unwind.NewModule(fmt.Sprintf("/usr/lib/lib%d.so", i), "", nil))
	}
	spaces := make([][]unwind.Mapping, 50)
	for i := range spaces {
		for j, m := range mods {
			lo := arch.Addr(0x7f0000000000 + i<<32 + j<<24)
			spaces[i] = append(spaces[i], unwind.Mapping{Lo: lo, Hi: lo + 1<<24, Off: 0x1000, Module: m})
		}
	}
	samples := make([]Sample, n)
	for i := range samples {
		pid := r.IntN(len(spaces))
		s := &samples[i]
		*s = Sample{PID: int32(pid), TID: int32(pid), Comm: "cc1plus", Period: 250000, HasUser: true, Time: uint64(i)}
		depth := 10 + r.IntN(21)
		for d := range depth {
			m := &spaces[pid][r.IntN(3)*r.IntN(3)]
			off := uint64(d) << 12 // callers far out repeat, inner ones vary
			off += uint64(r.ExpFloat64()*float64(depth-d)/2) * 64
			s.User = append(s.User, unwind.Frame{PC: m.Lo + arch.Addr(off%(1<<24)), Exact: d == 0, How: unwind.HowCFI, Mapping: m})
		}
		if i%3 > 0 { // hot paths
			s.User = samples[i/3].User
			s.PID, s.TID = samples[i/3].PID, samples[i/3].TID
		}
	}
	return samples
}

func TestBuilder(t *testing.T) {
	samples := compilerLike(5000)
	b := NewBuilder()
	for i := range samples {
		b.Add(&samples[i])
	}
	p := b.Profile(nil, Info{})
	type place struct {
		path string
		off  uint64
	}
	want := map[place]uint64{}
	for i := range samples {
		for j := range samples[i].User {
			f := &samples[i].User[j]
			want[place{f.Mapping.Module.Path, f.Mapping.FileOff(f.Addr())}]++
		}
	}
	got := map[place]uint64{}
	var n, period, frames uint64
	seen := map[string]bool{}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		k := fmt.Sprint(s.Frames, s.PID)
		if seen[k] {
			t.Errorf("stack %v twice", k)
		}
		seen[k] = true
		n += s.Count
		period += s.Period
		frames += s.Count * uint64(len(s.Frames))
		for _, f := range s.Frames {
			l := &p.Locs[f]
			got[place{p.Modules[l.Module].Path, l.Off}] += s.Count
			m := &p.Mappings[l.Mapping]
			if l.Addr-m.Lo+m.Off != l.Off || l.Addr >= m.Hi {
				t.Fatalf("location %+v lies outside of %+v", l, m)
			}
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d places, want %d", len(got), len(want))
	}
	for k, c := range want {
		if got[k] != c {
			t.Errorf("%v: %d, want %d", k, got[k], c)
		}
	}
	if n != 5000 || period != 5000*250000 || p.Totals.Samples != n || p.Totals.Frames != frames || p.Totals.Hows[unwind.HowCFI] != frames {
		t.Errorf("%d samples, period %d, %d frames; totals %+v", n, period, frames, p.Totals)
	}
	if q := p.Filter(func(*Stack) bool { return true }); q.Totals != p.Totals {
		t.Errorf("totals after an empty filter: %+v\nwant %+v", q.Totals, p.Totals)
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	samples := compilerLike(100)
	b := NewBuilder()
	add := func() {
		for i := range samples {
			b.Add(&samples[i])
		}
	}
	add()
	if n := testing.AllocsPerRun(10, add); n != 0 {
		t.Errorf("%v allocations for 100 samples seen before", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	samples := compilerLike(104000)
	frames := 0
	for i := range samples {
		frames += len(samples[i].User)
	}
	b.ResetTimer()
	for b.Loop() {
		bl := NewBuilder()
		for i := range samples {
			bl.Add(&samples[i])
		}
		b.ReportMetric(float64(bl.locs.Len()), "locations")
		b.ReportMetric(float64(len(bl.samples)), "stacks")
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(frames), "ns/frame")
}

// TestAddShared adds random stacks of a few threads, most of which share their outer frames with the one before, and
// compares what comes out with a plain count.
func TestAddShared(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	mods := []*unwind.Module{unwind.NewModule("/a", "", nil), unwind.NewModule("/b", "", nil)}
	places := []*unwind.Mapping{{Lo: 0x1000, Hi: 0x2000, Module: mods[0]}, {Lo: 0x4000, Hi: 0x6000, Off: 0x1000, Module: mods[1]}, nil}
	frame := func() unwind.Frame {
		m := places[r.IntN(len(places))]
		lo := arch.Addr(0x9000)
		if m != nil {
			lo = m.Lo
		}
		return unwind.Frame{PC: lo + arch.Addr(1+r.IntN(4)), How: unwind.How(r.IntN(3)), Mapping: m}
	}
	b := NewBuilder()
	want := map[string]uint64{}
	stacks := map[int32][]unwind.Frame{}
	for range 20000 {
		tid := int32(r.IntN(40))
		old := stacks[tid]
		keep := old[min(len(old), r.IntN(4)):]
		user := append([]unwind.Frame{}, frame())
		for range r.IntN(3) {
			user = append(user, frame())
		}
		if user = append(user, keep...); len(user) > 12 || r.IntN(10) == 0 {
			user = user[:1]
		}
		stacks[tid] = user
		s := Sample{TID: tid, User: user, HasUser: true, Period: 1}
		for range r.IntN(3) {
			s.Kernel = append(s.Kernel, uint64(0xffff0000+r.IntN(5)))
		}
		b.Add(&s)
		line := fmt.Sprint(tid)
		for _, a := range s.Kernel {
			line += fmt.Sprintf(" %#x", a)
		}
		for i := range user {
			f := &user[i]
			path, off := "", uint64(f.Addr())
			if f.Mapping != nil {
				path, off = f.Mapping.Module.Path, f.Mapping.FileOff(f.Addr())
			}
			line += fmt.Sprintf(" %s+%#x/%d", path, off, f.How)
		}
		want[line]++
	}
	p := b.Profile(nil, Info{})
	got := map[string]uint64{}
	for i := range p.Stacks {
		s := &p.Stacks[i]
		line := fmt.Sprint(s.TID)
		for _, f := range s.Frames {
			if l := &p.Locs[f]; p.Modules[l.Module].Kernel {
				line += fmt.Sprintf(" %#x", l.Off)
			} else {
				line += fmt.Sprintf(" %s+%#x/%d", p.Modules[l.Module].Path, l.Off, l.How)
			}
		}
		got[line] += s.Count
	}
	if !maps.Equal(got, want) {
		t.Errorf("%d distinct stacks, want %d, or their counts differ", len(got), len(want))
	}
}

// TestSameStack: samples are told apart by all that a Stack has, in the order of their first appearance; only what is not the first of its stack
// takes a place in the table.
func TestSameStack(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	b := NewBuilder()
	type id struct {
		addr     uint64
		pid, tid int32
		comm     string
		event    int
		stop     unwind.Stop
	}
	var order []id
	at, count, stacks := map[id]int{}, map[id]uint64{}, map[uint64]bool{}
	for range 30_000 {
		k := id{uint64(rng.IntN(4000)) + 1, int32(rng.IntN(3)), int32(rng.IntN(4)), []string{"a", "b"}[rng.IntN(2)], rng.IntN(2), unwind.Stop(rng.IntN(2))}
		if rng.IntN(2) == 0 {
			k = id{addr: k.addr}
		}
		if _, ok := at[k]; !ok {
			at[k] = len(order)
			order = append(order, k)
		}
		count[k]++
		stacks[k.addr] = true
		s := Sample{PID: k.pid, TID: k.tid, Comm: k.comm, Event: k.event, Stop: k.stop, HasUser: true, Kernel: []uint64{k.addr}, Period: 2}
		if got := b.Add(&s); got != at[k] {
			t.Fatalf("%+v has index %d, want %d", k, got, at[k])
		}
	}
	p := b.Profile(nil, Info{})
	if len(p.Stacks) != len(order) || b.others != len(order)-len(stacks) {
		t.Fatalf("%d stacks, want %d; %d were hashed, want %d", len(p.Stacks), len(order), b.others, len(order)-len(stacks))
	}
	for i, k := range order {
		s := &p.Stacks[i]
		got := id{p.Locs[s.Frames[0]].Addr, s.PID, s.TID, s.Comm, int(s.Event), s.Stop}
		if got != k || s.Count != count[k] || s.Period != 2*count[k] {
			t.Errorf("stack %d is %+v, %d times; want %+v, %d times", i, got, s.Count, k, count[k])
		}
	}
}
