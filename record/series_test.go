package record

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// heapAt is a heap profile of a run with bytes in use and allocated by f, and as much in a function of its own.
func heapAt(start time.Time, after time.Duration, inuse, alloc uint64, own string) *profile.Profile {
	p := &profile.Profile{
		Info:    profile.Info{Events: []profile.Event{profile.HeapEvent(profile.HeapAlloc), profile.HeapEvent(profile.HeapInUse)}, Start: start, Duration: after, Host: "h"},
		Modules: []profile.Module{{Path: "/bin/x"}}, Files: []string{""},
		Funcs: []profile.Func{{Name: "f", Named: true}, {Name: own, Named: true}},
		Locs:  []profile.Loc{{Func: 0, Mapping: -1}, {Func: 1, Mapping: -1, Off: 9}},
	}
	for fn := range uint32(2) {
		p.Stacks = append(p.Stacks, profile.Stack{Frames: []uint32{fn}, Comm: "x", PID: 1, Event: 0, Count: 1, Period: alloc}, profile.Stack{Frames: []uint32{fn}, Comm: "x", PID: 1, Event: 1, Count: 1, Period: inuse})
	}
	return p.Filter(func(*profile.Stack) bool { return true })
}

// TestSeries: a heap profile comes with the snapshots of its own run that lie beside it, in order of time, and counts as it does alone.
func TestSeries(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, p *profile.Profile) {
		t.Helper()
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := pprof.Write(f, p); err != nil {
			t.Fatal(err)
		}
	}
	run, other := time.Unix(1_700_000_000, 1), time.Unix(1_700_000_000, 2)
	put("h.pb.gz", heapAt(run, 9*time.Second, 90, 900, "end"))
	put("h.001.pb.gz", heapAt(other, 3*time.Second, 33, 333, "other"))
	put("h.002.pb.gz", heapAt(run, 6*time.Second, 60, 600, "two"))
	put("h.003.pb.gz", heapAt(run, 3*time.Second, 30, 300, "one"))
	put("h.004.pb.gz", heapAt(run, 12*time.Second, 120, 1200, "after"))
	put("x.005.pb.gz", heapAt(run, 4*time.Second, 40, 400, "another output"))
	if err := os.WriteFile(filepath.Join(dir, "h.006.pb.gz"), []byte("no profile"), 0o600); err != nil {
		t.Fatal(err)
	}
	for value, scale := range map[string]uint64{"": 1, "inuse_objects": 1, "alloc_space": 10} {
		var bytes []uint64
		var stacks [][]int32
		f, err := Open(filepath.Join(dir, "h.pb.gz"), FileOptions{Heap: value, Added: func(p *profile.Profile, to []int32) {
			bytes, stacks = append(bytes, p.Totals.Period/scale), append(stacks, to)
		}})
		if err != nil {
			t.Fatal(err)
		}
		p := f.Pprof
		if len(bytes) != 3 || bytes[0] != 60 || bytes[1] != 120 || bytes[2] != 180 || p.Totals.Period != 180*scale || p.Duration != 9*time.Second || len(p.Events) != 1 {
			t.Fatalf("%s: %v in snapshots, %d in all", value, bytes, p.Totals.Period)
		}
		name := func(at int32) string { return p.Funcs[p.Locs[p.Stacks[at].Frames[0]].Func].Name }
		want := map[string]uint64{"f": 90 * scale, "end": 90 * scale, "one": 0, "two": 0}
		for i := range p.Stacks {
			if n, ok := want[name(int32(i))]; !ok || p.Stacks[i].Period != n || p.Stacks[i].Count != min(n, 1) {
				t.Errorf("%s: %s has %+v", value, name(int32(i)), p.Stacks[i])
			}
		}
		for i, own := range []string{"one", "two", "end"} {
			if len(p.Stacks) != 4 || name(stacks[i][0]) != "f" || name(stacks[i][1]) != own {
				t.Errorf("%s: snapshot %d is at %v of %d", value, i, stacks[i], len(p.Stacks))
			}
		}
		f.Close()
	}
	if _, err := Open(filepath.Join(dir, "h.pb.gz"), FileOptions{Heap: "peak_space"}); err == nil || err.Error() != filepath.Join(dir, "h.pb.gz")+": it has nothing of peak: it counts alloc, inuse" {
		t.Errorf("Open with peak_space = %v, want nothing of peak, but of alloc and inuse", err)
	}
}
