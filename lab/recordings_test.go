package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/unwind"
)

var small struct {
	sync.Once
	dir string
	err error
	out []byte
}

// recordings returns the recordings to work on.
func recordings(t testing.TB) []string {
	t.Helper()
	dir := os.Getenv("UNSPOOL_RECORDINGS")
	if dir == "" {
		oracle.Need(t, "perf", "g++", "python3", "openssl", "gcc")
		if err := exec.Command("perf", "record", "-q", "-o", os.DevNull, "--call-graph", "dwarf", "true").Run(); err != nil {
			oracle.Lacks(t, "the permission to record")
		}
		small.Do(func() {
			// Not t.TempDir: the recordings serve all tests of the process. TestMain removes them.
			if small.dir, small.err = os.MkdirTemp("", "unspool-lab"); small.err == nil {
				small.out, small.err = exec.Command("sh", "record.sh", "small", small.dir).CombinedOutput()
			}
		})
		if small.err != nil {
			t.Fatalf("record.sh: %v\n%s", small.err, small.out)
		}
		dir = small.dir
	}
	files, _ := filepath.Glob(filepath.Join(dir, "*.data"))
	if len(files) == 0 {
		t.Fatalf("no recordings in %s", dir)
	}
	return files
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, dir := range []string{small.dir, built.dir} {
		if dir != "" {
			os.RemoveAll(dir)
		}
	}
	os.Exit(code)
}

// batches calls f with the samples of a recording that have a user stack, in order, some thousand at a time,
// with the spaces they are in. What f is given is a copy, in memory, and valid until it returns.
func batches(t testing.TB, file string, size int, f func(snaps []oracle.Snapshot, in []*oracle.Space)) {
	t.Helper()
	r, err := oracle.OpenRecording(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var snaps []oracle.Snapshot
	var in []*oracle.Space
	var pool []byte
	flush := func() {
		if len(snaps) > 0 {
			f(snaps, in)
		}
		snaps, in, pool = snaps[:0], in[:0], pool[:0]
	}
	err = r.Samples(func(s *oracle.RecordedSample) bool {
		if !s.User {
			return true
		}
		if len(snaps) == size || cap(pool)-len(pool) < len(s.Stack) {
			flush()
			pool = make([]byte, 0, max(cap(pool), size*(8<<10), len(s.Stack)))
		}
		x := s.Snapshot
		pool = append(pool, s.Stack...)
		x.Stack = pool[len(pool)-len(s.Stack):]
		snaps, in = append(snaps, x), append(in, s.Space)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	flush()
}

// A shared space is what a walker has been told of.
type told map[uint32]int

// tell maps what w has not heard of yet.
func (k told) tell(t testing.TB, w *oracle.Walker, in []*oracle.Space) {
	t.Helper()
	for _, s := range in {
		if n, ok := k[s.ID]; !ok || n < len(s.Maps) {
			if err := w.Map(s.ID, s.Maps[n:]...); err != nil {
				t.Fatal(err)
			}
			k[s.ID] = len(s.Maps)
		}
	}
}

// spaces makes walkable address spaces of those of a recording.
type spaces struct {
	module func(path, buildID string) *unwind.Module
	known  map[uint32]*unwind.Space
	size   map[uint32]int
}

func newSpaces(mods *modules.Set) *spaces { return spacesOf(mods.Module) }

func spacesOf(module func(path, buildID string) *unwind.Module) *spaces {
	return &spaces{module, map[uint32]*unwind.Space{}, map[uint32]int{}}
}

// space returns the walkable space of s as it is now.
func (k *spaces) space(s *oracle.Space) *unwind.Space {
	u := k.known[s.ID]
	if u == nil || k.size[s.ID] > len(s.Maps) { // the recording is read again
		u, k.size[s.ID] = unwind.NewSpace(), 0
	}
	for _, m := range s.Maps[k.size[s.ID]:] {
		u = u.With(unwind.Mapping{Lo: arch.Addr(m.Lo), Hi: arch.Addr(m.Hi), Off: m.Off, Module: k.module(m.Path, "")})
	}
	k.known[s.ID], k.size[s.ID] = u, len(s.Maps)
	return u
}

// TestSpaceAgain: a recording may be read again with the same spaces, which have fewer mappings at its beginning.
func TestSpaceAgain(t *testing.T) {
	k := spacesOf(func(path, _ string) *unwind.Module { return unwind.NewModule(path, "", nil) })
	maps := []oracle.Map{{Lo: 0x1000, Hi: 0x2000, Path: "/a"}, {Lo: 0x2000, Hi: 0x3000, Path: "/b"}, {Lo: 0x3000, Hi: 0x4000, Path: "/c"}}
	for _, n := range []int{1, 3, 2, 3} {
		if got := len(k.space(&oracle.Space{ID: 1, Maps: maps[:n]}).Mappings()); got != n {
			t.Errorf("%d mappings, want %d", got, n)
		}
	}
}

// snapshot translates for our own walker.
func snapshot(s *oracle.Snapshot, in *unwind.Space) (u unwind.Snapshot) {
	u.Machine, u.Space, u.PC, u.Known = arch.AMD64, in, s.Regs[16], 1<<17-1
	copy(u.Regs[:], s.Regs[:])
	u.Mem.Lo, u.Mem.Bytes = s.Base, s.Stack
	return u
}
