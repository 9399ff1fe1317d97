package stacks

import (
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/corefile"
	"github.com/unspool/unspool/unwind"
)

// opened returns the process of testdata/core, whose only thread has four frames, and what names it.
func opened(t *testing.T) (*source.Process, *names.Namer) {
	t.Helper()
	mods := modules.Interpreted()
	mods.Files = names.Files("../testdata/root", nil)
	namer := names.New(names.Options{Mods: mods})
	core, err := corefile.Open("../testdata/core", corefile.Options{Mods: mods.Module, Image: namer.Image, Files: mods.Files})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { namer.Close(); core.Close(); mods.Close() })
	return &core.Process, namer
}

func functions(t *Thread) (out []string) {
	for i := range t.Frames {
		out = append(out, t.Frames[i].Name.Func)
	}
	return out
}

func TestWalk(t *testing.T) {
	p, namer := opened(t)
	s, err := Walk(p, Options{Registers: true})
	if err != nil {
		t.Fatal(err)
	}
	if !s.Raw || len(s.Threads) != 1 || s.Threads[0].Incomplete() != "" || s.Signal.String() != "SIGILL: illegal operand (ILL_ILLOPN), address 0x400176" {
		t.Errorf("Walk = %+v, signal %v", s, s.Signal)
	}
	s.Name(namer)
	th := &s.Threads[0]
	if want := []string{"spin", "work", "main", "_start"}; s.Raw || !slices.Equal(functions(th), want) {
		t.Errorf("frames of %q, want %q", functions(th), want)
	}
	for i := range th.Frames {
		f := &th.Frames[i]
		if k := slices.IndexFunc(f.Regs, func(r Register) bool { return r.Name == p.Machine.RegName(p.Machine.PC) }); k < 0 || f.Regs[k].Value != uint64(f.PC) {
			t.Errorf("frame %d at %#x has registers %v", i, f.PC, f.Regs)
		}
	}

	s, err = Walk(p, Options{Depth: 2})
	if err != nil || len(s.Threads[0].Frames) != 2 || s.Threads[0].Stop != unwind.DepthLimit {
		t.Errorf("Walk to depth 2 = %+v, %v", s, err)
	}
	if s, err = Walk(p, Options{TID: p.Threads[0].TID + 1}); err == nil || s != nil {
		t.Errorf("Walk of a thread that is not there = %+v, %v", s, err)
	}
}

// Threads with the same stack become one, in the order of the first of each; a thread whose registers differ in what its frames are does not.
func TestMerge(t *testing.T) {
	p, _ := opened(t)
	first := p.Threads[0]
	p.Threads = nil
	for i := range 5 {
		th := first
		th.TID = 10 + i
		if i == 1 {
			th.Snapshot.PC++
		}
		p.Threads = append(p.Threads, th)
	}
	s, err := Walk(p, Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.Merge()
	if len(s.Threads) != 2 || s.Threads[0].TID != 10 || !slices.Equal(s.Threads[0].Same, []int{12, 13, 14}) || s.Threads[1].TID != 11 || s.Threads[1].Same != nil {
		t.Errorf("merged: %+v", s.Threads)
	}
}

// When all threads together have more frames than are kept, the others are cut short, and a note says so.
func TestLimit(t *testing.T) {
	p, _ := opened(t)
	p.Threads = slices.Repeat(p.Threads, 10)
	s, err := Walk(p, Options{Frames: 11})
	if want := "more than 11 frames: of the last 7 threads, only the innermost 64 are shown"; err != nil || !strings.Contains(strings.Join(s.Notes, "\n"), want) {
		t.Errorf("notes %q, %v, want %q", s.Notes, err, want)
	}
}
