package unwind

import (
	"testing"
	"unsafe"

	"github.com/unspool/unspool/arch"
)

// TestSite: two sites share a cache line. Most of a walk's time is spent on waiting for them.
func TestSite(t *testing.T) {
	if n := unsafe.Sizeof(site{}); n != 32 {
		t.Errorf("a site has %d bytes, not 32", n)
	}
}

// TestEpoch: spaces that have the same tag are told apart, and so are those with the same number in the cache.
func TestEpoch(t *testing.T) {
	module := func(name string) *Module { return NewModule(name, "", func(*Module) *Code { return nil }) }
	w := NewWalker(0)
	for round := range uint64(3) {
		for _, id := range []uint64{1, 7, maxTag - 1, maxTag} {
			want := module("")
			s := NewSpace(Mapping{Lo: 0x1000, Hi: 0x2000, Module: want})
			s.id = id + round*maxTag
			if tag := tagOf(s, false); tag == 0 || tag&1 != 0 || tagOf(s, true) != tag|1 {
				t.Fatalf("space %d has tag %#x, and exact %#x", s.id, tag, tagOf(s, true))
			}
			for range 2 {
				frames, _ := w.Walk(&Snapshot{Machine: arch.AMD64, Space: s, PC: 0x1800}, nil)
				if got := frames[0].Mapping; got == nil || got.Module != want {
					t.Fatalf("space %d: the frame is in %+v", s.id, got)
				}
			}
		}
	}
}
