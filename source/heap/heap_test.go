package heap

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// records makes a chunk of records: each a kind and its words.
func records(number uint32, recs ...[]byte) []byte {
	b := make([]byte, chunkSize)
	e := binary.NativeEndian
	e.PutUint64(b, magic)
	e.PutUint32(b[8:], version)
	e.PutUint32(b[12:], 7)
	e.PutUint64(b[16:], 5)
	e.PutUint32(b[24:], number)
	for _, r := range recs {
		b = append(b, r...)
	}
	e.PutUint64(b[32:], uint64(len(b)))
	return b
}

func rec(kind uint32, words []uint64, tail string) []byte {
	b := make([]byte, 8)
	for _, w := range words {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	b = append(b, tail...)
	for len(b)%8 != 0 {
		b = append(b, 0)
	}
	binary.NativeEndian.PutUint32(b, kind)
	binary.NativeEndian.PutUint32(b[4:], uint32(len(b)))
	return b
}

// sample is a process of two chunks, each with a stack; the second has the first's outermost frame.
func sample() [][]byte {
	half := func(lo, hi uint64) uint64 { return lo | hi<<32 }
	process := rec(recordProcess, []uint64{1000, 0, 0, 2, 3 * unit, 300, 4 * unit, 400, 9}, "comm\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00/bin/prog\x00")
	id := make([]uint64, 4)
	id[0] = 0xabcd
	segments := make([]uint64, 3*maxSegments)
	copy(segments, []uint64{0x1000, 0x3000, 0x500})
	module := rec(recordModule, slices.Concat([]uint64{half(3, 8), half(1, 0)}, id, segments), "/bin/prog\x00")
	one := rec(recordStack, []uint64{77, half(0, 2<<16), 5 * unit, 500, 2 * unit, 200, unit, 100, 4 * unit, 400, 9, 3<<48 | 0x1234, 0x99}, "")
	two := rec(recordStack, []uint64{78, half(uint64(chunkSize+len(process)+len(module))/8, 1<<16|1), unit, 10, unit, 10, 0, 0, unit, 10, 8, 4<<48 | 0x1234}, "")
	return [][]byte{records(0, process, module, one), records(1, two)}
}

func write(t testing.TB, chunks [][]byte) (dir string) {
	dir = t.TempDir()
	for i, b := range chunks {
		if err := os.WriteFile(filepath.Join(dir, []string{"7-5-0", "7-5-1", "7-5-2"}[i]), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestRead(t *testing.T) {
	all, err := Read(write(t, sample()))
	if err != nil || len(all) != 1 {
		t.Fatalf("Read = %d processes, %v, want 1", len(all), err)
	}
	p := all[0]
	if p.PID != 7 || p.Comm != "comm" || p.Path != "/bin/prog" || p.Period != 1000 || p.Nested != 2 || p.Damaged != 0 || p.InUse != (Amount{3, 300}) || p.Peak != (Amount{4, 400}) {
		t.Errorf("%+v", p)
	}
	want := []Stack{
		{[]Frame{{0x1234, 0}, {0x99, -1}}, false, false, Amount{5, 500}, Amount{3, 300}, Amount{4, 400}, Amount{1, 100}},
		{[]Frame{{0x1234, -1}, {0x99, -1}}, false, false, Amount{1, 10}, Amount{}, Amount{}, Amount{}},
	}
	if !reflect.DeepEqual(p.Stacks, want) {
		t.Errorf("got %+v, want %+v", p.Stacks, want)
	}
	if m := p.Modules; len(m) != 1 || m[0].Path != "/bin/prog" || m[0].BuildID != "cdab000000000000" || !reflect.DeepEqual(m[0].Segments, []Segment{{0x1000, 0x3000, 0x500}}) {
		t.Errorf("%+v", m)
	}
}

// TestDamaged: a missing chunk is counted, and a cut one costs what follows the cut.
func TestDamaged(t *testing.T) {
	oracle.Long(t)
	s := sample()
	for n := range s[0] {
		all, err := Read(write(t, [][]byte{s[0][:n], s[1]}))
		if err != nil || len(all) != 1 || len(all[0].Stacks) > 2 {
			t.Fatalf("Read of %d bytes of the first chunk = %d processes, %v, want 1 with 2 stacks at most", n, len(all), err)
		}
	}
	dir := write(t, s)
	os.Remove(filepath.Join(dir, "7-5-0"))
	if all, err := Read(dir); err != nil || len(all) != 1 || all[0].Damaged != 1 || all[0].Full {
		t.Errorf("Read without 7-5-0 = %d processes, %v: %+v; want 1, damaged and not full", len(all), err, all)
	}
	if all, err := Read(write(t, [][]byte{s[0], s[1], nil})); err != nil || len(all) != 1 || all[0].Damaged != 0 || !all[0].Full {
		t.Error("a file that found no room:", all[0], err)
	}
}

// An outer says whose outermost frames a stack has, so many stacks before, and how many.
type outer struct{ before, shared int }

// chain is a chunk of stacks, each of a frame of its own and of those of another.
func chain(outers ...outer) []byte {
	var recs [][]byte
	for i, o := range outers {
		at := (chunkSize + (i-o.before)*(stackSize+8)) / 8
		recs = append(recs, rec(recordStack, []uint64{0, uint64(uint32(at)) | uint64(o.shared)<<32 | 1<<48, unit, 1, 0, 0, 0, 0, 0, 0, 0, uint64(i + 1)}, ""))
	}
	return records(0, recs...)
}

// TestOuter: a stack has another's outermost frames only where that was written before and has as many. Else it is cut, and counts.
func TestOuter(t *testing.T) {
	for _, c := range []struct {
		outers  []outer
		shared  int
		damaged uint64
		frames  []int
	}{
		{[]outer{{}, {1, 1}, {1, 2}, {2, 1}, {1, 2}}, 100, 0, []int{1, 2, 3, 2, 3}},
		{[]outer{{}, {1, 2}, {1, 1}}, 100, 2, []int{1, 1, 1}},          // more than there are, and of a stack that lacks frames
		{[]outer{{0, 1}, {-1, 1}, {1, 1}}, 100, 3, []int{1, 1, 1}},     // itself, a later one
		{[]outer{{}, {1, 1}, {1, 1}, {1, 1}}, 2, 1, []int{1, 2, 2, 1}}, // too many of all
	} {
		p := newProcess(7, 5, c.shared)
		if !p.add(chain(c.outers...), 7, 5, 0) || p.Damaged != c.damaged {
			t.Errorf("%v: %d damaged", c.outers, p.Damaged)
		}
		var frames []int
		for i, s := range p.Stacks {
			frames = append(frames, len(s.Frames))
			if s.Frames[0].PC != uint64(i+1) || s.Alloc != (Amount{1, 1}) {
				t.Errorf("%v: %+v", c.outers, s)
			}
		}
		if !slices.Equal(frames, c.frames) {
			t.Errorf("%v: %d frames", c.outers, frames)
		}
	}
	s := sample()
	all, err := Read(write(t, [][]byte{records(0), s[1]}))
	if err != nil || len(all) != 1 || all[0].Damaged != 1 || len(all[0].Stacks) != 1 || !all[0].Stacks[0].Lacks || len(all[0].Stacks[0].Frames) != 1 {
		t.Errorf("%+v, %v", all[0], err)
	}
}

func FuzzChunk(f *testing.F) {
	f.Add(chain(outer{}, outer{1, 1}, outer{1, 2}, outer{2, 9}, outer{-1, 1}, outer{0, 1}), uint32(0))
	for i, b := range sample() {
		f.Add(b, uint32(i))
	}
	f.Fuzz(func(t *testing.T, b []byte, number uint32) {
		p := newProcess(7, 5, 1000)
		p.add(b, 7, 5, number)
		p.finish()
		frames := 0
		for _, s := range p.Stacks {
			if len(s.Frames) > maxFrames {
				t.Fatalf("a stack has %d frames, want %d at most", len(s.Frames), maxFrames)
			}
			frames += len(s.Frames)
			for _, fr := range s.Frames {
				if fr.Module >= len(p.Modules) {
					t.Fatalf("a frame is %+v, want one of %d modules", fr, len(p.Modules))
				}
			}
		}
		if 8*(frames-1000) > len(b) || stackSize*len(p.Stacks) > len(b) || moduleSize*len(p.Modules) > len(b) {
			t.Fatalf("%d bytes make %d frames, %d stacks and %d modules, want at most %d, %d and %d",
				len(b), frames, len(p.Stacks), len(p.Modules), 1000+len(b)/8, len(b)/stackSize, len(b)/moduleSize)
		}
	})
}
