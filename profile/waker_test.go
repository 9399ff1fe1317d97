package profile

import (
	"slices"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// TestWaker: the frames of a waker are above those of the wait, upside down, and each has its address.
func TestWaker(t *testing.T) {
	f := func(a arch.Addr) unwind.Frame { return unwind.Frame{PC: a, Exact: true} }
	const k = 1 << 63
	s := Sample{
		Kernel: []uint64{k + 1, k + 2}, User: []unwind.Frame{f(3), f(4)}, HasUser: true,
		Waker: &Waker{By: f(10), Kernel: []uint64{k + 11, k + 12}, User: []unwind.Frame{f(13), f(14)}, End: []unwind.Frame{f(15)}},
	}
	want := []uint64{15, 14, 13, k + 12, k + 11, 10, k + 1, k + 2, 3, 4}
	l := NewLocations()
	for i, id := range l.Intern(&s, nil) {
		if a := l.Loc(id).Addr; a != want[i] || s.Addr(i) != want[i] {
			t.Errorf("frame %d is %#x, and %#x by Addr, not %#x", i, a, s.Addr(i), want[i])
		}
	}
	b := NewBuilder()
	b.Add(&s)
	b.Add(&s)
	other := s
	other.Waker = nil
	b.Add(&other)
	p := b.Profile(nil, Info{})
	if len(p.Stacks) != 2 || p.Stacks[0].Count != 2 {
		t.Fatalf("%d stacks, the first %d times", len(p.Stacks), p.Stacks[0].Count)
	}
	var got []uint64
	for _, id := range p.Stacks[0].Frames {
		got = append(got, p.Locs[id].Addr)
	}
	if !slices.Equal(got, want) {
		t.Errorf("%#x, not %#x", got, want)
	}
	// What was inlined in the waker is upside down, too.
	m := &unwind.Mapping{Lo: 0x10000, Hi: 0x20000, Module: unwind.NewModule("/m", "", nil)}
	g := []unwind.Frame{{PC: 0x11002, Exact: true, Mapping: m}, {PC: 0x12001, Exact: true, Mapping: m}}
	names := func(w *Waker) (out []string) {
		p := built([]Sample{{User: g, HasUser: true, Waker: w}}, inliner{})
		for _, id := range p.Stacks[0].Frames {
			out = append(out, p.Funcs[p.Locs[id].Func].Name)
		}
		return out
	}
	wait := names(nil)
	woken := names(&Waker{By: f(10), User: g})
	slices.Reverse(wait)
	if head := woken[:len(wait)]; len(wait) != 8 || !slices.Equal(head, wait) {
		t.Errorf("the waker's frames are %q, not %q", head, wait)
	}
	again := p.Filter(func(*Stack) bool { return true })
	if again.Totals != p.Totals {
		t.Errorf("totals %+v, filtered %+v", p.Totals, again.Totals)
	}
}
