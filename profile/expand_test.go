package profile

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// An inliner names functions by their offset, and at some offsets says what is inlined there.
type inliner struct{ plain bool }

func (n inliner) User(m *unwind.Module, offs []uint64, names []Name) {
	for i, off := range offs {
		names[i] = Name{Func: fmt.Sprintf("f%x", off>>12), Linkage: fmt.Sprintf("_f%x", off>>12), Start: off &^ 0xfff}
		if n.plain {
			continue
		}
		switch line := uint32(off & 0xfff); off % 5 {
		case 1:
			names[i].Source = []Source{{File: "/a.c", Line: line}}
		case 2:
			names[i].Source = []Source{{Func: "in", Linkage: "_in", File: "/in.h", Line: line, Column: 7}, {File: "/a.c", Line: 2}}
		case 3: // recursive, and with a call whose name is missing
			names[i].Source = []Source{{Func: "in", File: "/in.h", Line: line}, {}, {Func: "in", File: "/in.h", Line: 4}, {File: "/a.c", Line: 5}}
		}
	}
}

func (n inliner) Kernel(addrs []uint64, names []Name) {
	for i := range addrs {
		names[i] = Name{Func: "k", Module: "[mod]"}
		if !n.plain {
			names[i].Source = []Source{{Func: "kin", File: "/k.h", Line: 1}, {File: "/k.c", Line: 2}}
		}
	}
}

func built(samples []Sample, n Namer) *Profile {
	b := NewBuilder()
	for i := range samples {
		b.Add(&samples[i])
	}
	return b.Profile(n, Info{})
}

// TestExpandOrder: the calls inlined at a place come in front of its frame, innermost first, with its address, and the
// file and line that each is at.
func TestExpandOrder(t *testing.T) {
	m := &unwind.Mapping{Lo: 0x10000, Hi: 0x20000, Module: unwind.NewModule("/m", "", nil)}
	frame := func(off int) unwind.Frame {
		return unwind.Frame{PC: m.Lo + arch.Addr(off), Exact: true, How: unwind.HowCFI, Mapping: m}
	}
	s := Sample{HasUser: true, Kernel: []uint64{1 << 63}, User: []unwind.Frame{frame(0x1002), frame(0x2004), frame(0x1001), frame(0x3002)}}
	p := built([]Sample{s}, inliner{})
	var got []string
	for _, id := range p.Stacks[0].Frames {
		l := &p.Locs[id]
		line := fmt.Sprintf("%s %s:%d:%d", p.Funcs[l.Func].Name, p.File(l), l.Line, l.Column)
		if l.Inlined {
			line += " inlined"
		}
		if f := &p.Funcs[l.Func]; f.Named != (f.Name != Unknown) || f.Module != l.Module {
			t.Errorf("%s: %+v", line, f)
		}
		if l.How != HowKernel {
			line += fmt.Sprintf(" %x", l.Off)
		}
		got = append(got, line)
	}
	want := []string{
		"kin /k.h:1:0 inlined", "k /k.c:2:0",
		"in /in.h:2:0 inlined 1002", "[unknown] :0:0 inlined 1002", "in /in.h:4:0 inlined 1002", "f1 /a.c:5:0 1002",
		"f2 /a.c:4:0 2004",
		"in /in.h:1:7 inlined 1001", "f1 /a.c:2:0 1001",
		"f3 :0:0 3002",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if p.Totals.Frames != 5 || p.Totals.Hows[unwind.HowCFI] != 4 || p.Totals.Hows[HowKernel] != 1 {
		t.Errorf("inlined calls are counted as frames: %+v", p.Totals)
	}
	names := map[string]bool{}
	for _, f := range p.Funcs {
		k := fmt.Sprint(f.Name, " in ", p.Modules[f.Module].Path)
		if names[k] {
			t.Errorf("two functions %s", k)
		}
		names[k] = true
	}
}

// TestExpandNumbers: without the inlined calls, a profile is the one of a namer that knows none.
func TestExpandNumbers(t *testing.T) {
	samples := compilerLike(3000)
	for i := range samples {
		if i%7 == 0 {
			samples[i].Kernel = []uint64{1<<63 + uint64(i%3)}
		}
	}
	plain, p := built(samples, inliner{plain: true}), built(samples, inliner{})
	if p.Totals != plain.Totals || len(p.Stacks) != len(plain.Stacks) {
		t.Fatalf("%d stacks, %+v\nwant %d, %+v", len(p.Stacks), p.Totals, len(plain.Stacks), plain.Totals)
	}
	if q := p.Filter(func(*Stack) bool { return true }); q.Totals != p.Totals {
		t.Errorf("totals after an empty filter: %+v\nwant %+v", q.Totals, p.Totals)
	}
	shared := map[*uint32]*uint32{}
	for i := range p.Stacks {
		s, want := p.Stacks[i], plain.Stacks[i]
		var outer []uint32
		for k, id := range s.Frames {
			l := &p.Locs[id]
			if !l.Inlined {
				outer = append(outer, id)
				continue
			}
			if k+1 == len(s.Frames) {
				t.Fatalf("stack %d ends with an inlined call", i)
			}
			if next := &p.Locs[s.Frames[k+1]]; next.Addr != l.Addr || next.Off != l.Off || next.How != l.How || next.Mapping != l.Mapping || next.Module != l.Module {
				t.Fatalf("%+v\nis not in the frame %+v", l, next)
			}
		}
		if !slices.Equal(outer, want.Frames) {
			t.Fatalf("stack %d: frames %v\nwant %v", i, outer, want.Frames)
		}
		// Stacks of different threads that were one list still are.
		if got, ok := shared[&want.Frames[0]]; ok && got != &s.Frames[0] {
			t.Errorf("stack %d is a copy", i)
		}
		shared[&want.Frames[0]] = &s.Frames[0]
		s.Frames, want.Frames = nil, nil
		if !reflect.DeepEqual(s, want) {
			t.Errorf("stack %d: %+v\nwant %+v", i, s, want)
		}
	}
	for i := range plain.Locs {
		a, b := plain.Locs[i], p.Locs[i]
		if plain.Funcs[a.Func] != p.Funcs[b.Func] || a.Start != b.Start {
			t.Fatalf("location %d: %+v\nwant %+v", i, p.Funcs[b.Func], plain.Funcs[a.Func])
		}
	}
}
