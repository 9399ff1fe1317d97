package files

import (
	"context"
	crand "crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/agent/export"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/ring"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

func newRing(t *testing.T, dir, query string) *Ring {
	t.Helper()
	r, err := New(&url.URL{Path: dir, RawQuery: query})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func write(t *testing.T, r *Ring, service string, at time.Time) string {
	t.Helper()
	b, err := export.NewBatch(&profile.Profile{Info: profile.Info{Start: at, Duration: 10 * time.Second}}, []export.Label{{Name: export.ServiceName, Value: service}}, at)
	if err != nil {
		t.Fatal(err)
	}
	q, err := r.Encode(b)
	if err != nil {
		t.Fatal(err)
	}
	r.pruned = time.Time{}
	if _, err := r.Send(context.Background(), q); err != nil {
		t.Fatal(err)
	}
	return q.Query
}

// TestSlowDisk: profiles are made while a disk does not answer.
func TestSlowDisk(t *testing.T) {
	r := newRing(t, t.TempDir(), "")
	b, err := export.NewBatch(&profile.Profile{}, nil, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock() // as Send holds it
	defer r.mu.Unlock()
	encoded := make(chan error, 1)
	go func() { _, err := r.Encode(b); encoded <- err }()
	select {
	case err := <-encoded:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Errorf("after 20 s, Encode has not ended: a profile waits for the disk of %s, which Send uses", r.dir)
	}
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		out = append(out, e.Name())
	}
	return out
}

// TestAhead: files that were written while the clock was ahead go before all others when there are too many bytes, the oldest of them first, and not
// sooner: where the clock is behind, after a start, they are the good ones.
func TestAhead(t *testing.T) {
	dir := t.TempDir()
	r := newRing(t, dir, "age=1h&size="+fmt.Sprint(20*block))
	now := time.Now()
	have := func() (ahead, right []string) {
		for _, name := range names(t, dir) { // by time
			if strings.Contains(name, "-ahead.") {
				ahead = append(ahead, name)
			} else {
				right = append(right, name)
			}
		}
		return ahead, right
	}
	var written []string
	for i := range 15 {
		written = append(written, write(t, r, "ahead", now.AddDate(1, 0, 0).Add(time.Duration(i)*time.Minute)))
	}
	for i := range 30 {
		name := write(t, r, "right", now.Add(time.Duration(i-30)*time.Second))
		ahead, right := have()
		if i == 4 && len(ahead) != 15 {
			t.Errorf("there is room, and %d are left of 15 files that are ahead", len(ahead))
		}
		if len(ahead) > 0 && (len(right) != i+1 || ahead[len(ahead)-1] != written[14]) || !slices.Contains(right, name) || len(right)+len(ahead) < 18 && i > 3 {
			t.Errorf("after file %d: %q, %q", i, ahead, right)
		}
	}
	if ahead, right := have(); len(ahead) != 0 || len(right) < 18 {
		t.Errorf("at the end: %q, %q", ahead, right)
	}
}

// A ring's files are profiles that only their owner reads. The oldest go first, by time and by size; what is not the ring's stays.
func TestRing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	r := newRing(t, dir, "")
	now := time.Now()
	first := write(t, r, "shop", now.Add(-time.Hour))
	f, err := os.Open(filepath.Join(dir, first))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if p, err := pprof.Read(f); err != nil || p.Duration != 10*time.Second || p.Label(export.ServiceName) != "shop" {
		t.Errorf("%+v, %v", p, err)
	}
	others := []string{"unspool.data", "unspool-20200101T000000.000Z-1-x.pb.gz.old", "unspool-20201301T000000.000Z-1-x.pb.gz"}
	for _, name := range others {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	second := write(t, r, "../../etc/passwd\n☃", now)
	if strings.ContainsAny(second, "/\n") || len(second) > 255 {
		t.Errorf("%q", second)
	}
	if got, want := names(t, dir), append(slices.Clone(others), first, second); len(got) != len(want) {
		t.Errorf("%q, want %q", got, want)
	}
	// By age.
	r = newRing(t, dir, "age=30m")
	third := write(t, r, "shop", now.Add(time.Second))
	if got := names(t, dir); slices.Contains(got, first) || !slices.Contains(got, second) || !slices.Contains(got, third) {
		t.Errorf("%q", got)
	}
	// By size: three files of these.
	r = newRing(t, dir, "age=30m&size="+fmt.Sprint(3*block+block/2))
	var last []string
	for i := range 10 {
		last = append(last, write(t, r, "shop", now.Add(time.Duration(i+2)*time.Second)))
	}
	got := names(t, dir)
	for _, name := range append(slices.Clone(others), last[7:]...) {
		if !slices.Contains(got, name) {
			t.Errorf("%s has gone: %q", name, got)
		}
	}
	if len(got) != len(others)+3 {
		t.Errorf("%q, want %d of others and 3", got, len(others))
	}
}

// TestBounds: whatever is written, in whatever order, the newest files stay: what is too old or too much goes, and a 64th of the size more. The ring's
// counts are the directory's.
func TestBounds(t *testing.T) {
	oracle.Long(t)
	for seed := range uint64(6) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		dir := t.TempDir()
		size, age := int64(100_000+rnd.IntN(200_000)), time.Duration(1+rnd.IntN(10))*time.Minute
		r := newRing(t, dir, fmt.Sprintf("size=%d&age=%v", size, age))
		now, largest, forSize := time.Now().Truncate(time.Millisecond), int64(0), 0
		sizes := map[string]int64{} // of what is there
		began := func(name string) time.Time { at, _, _ := ring.Parse(name); return at }
		for i := range 500 {
			now = now.Add(time.Duration(rnd.IntN(2000)) * time.Millisecond)
			q := &export.Request{Body: make([]byte, 100+rnd.IntN(9000)), Query: ring.Name(now.Add(-time.Duration(rnd.IntN(30))*time.Second), i, "shop")}
			bytes := taken(int64(len(q.Body)))
			largest = max(largest, bytes)
			r.prune(bytes, now)
			there := names(t, dir) // by time
			_, sum := r.sum()
			if sum+bytes > size {
				t.Fatalf("seed %d: %d bytes, and %d come: more than %d", seed, sum, bytes, size)
			}
			counted, aged := int64(0), false
			for _, name := range there {
				if counted += sizes[name]; now.Sub(began(name)) > age+age/256 {
					t.Fatalf("seed %d: %s is too old", seed, name)
				}
			}
			if files, _ := r.sum(); files != len(there) || counted != sum {
				t.Fatalf("seed %d: %d files of %d bytes, counted as %d of %d", seed, len(there), counted, files, sum)
			}
			was := len(sizes)
			for name := range sizes {
				if slices.Contains(there, name) {
					continue
				}
				delete(sizes, name)
				aged = aged || now.Sub(began(name)) > age
				if len(there) > 0 && began(name).After(began(there[0])) {
					t.Fatalf("seed %d: %s has gone, and %s is there", seed, name, there[0])
				}
			}
			if len(there) < was && !aged {
				if forSize++; sum < size-size/64-bytes-largest {
					t.Fatalf("seed %d: of %d bytes, only %d are left", seed, size, sum)
				}
			}
			r.pruned = time.Now() // else Send asks the clock
			if _, err := r.Send(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			sizes[q.Query] = bytes
		}
		if forSize == 0 {
			t.Errorf("seed %d: nothing went for its size", seed)
		}
	}
}

// TestOthers: files that others write or remove count after recount.
func TestOthers(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	a, b := newRing(t, dir, "size=12500"), newRing(t, dir, "size=1G")
	for i, r := range []*Ring{a, b, b, b, b} {
		if r.prune(0, now); r.pruned != now {
			r.pruned = time.Now()
		}
		if _, err := r.Send(t.Context(), &export.Request{Body: make([]byte, 1500), Query: ring.Name(now.Add(time.Duration(i)*time.Second), i, "shop")}); err != nil {
			t.Fatal(err)
		}
	}
	a.prune(1500, now.Add(recount-time.Second))
	if got := names(t, dir); len(got) != 5 {
		t.Errorf("%q", got)
	}
	a.prune(1500, now.Add(recount))
	got := names(t, dir)
	if files, bytes := a.sum(); len(got) != 2 || files != 2 || bytes != 2*block {
		t.Errorf("%q, counted as %d files of %d bytes", got, files, bytes)
	}
	for _, name := range got {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if a.prune(0, now.Add(2*recount)); len(a.spans) != 0 {
		t.Errorf("%v is counted, and nothing there", a.spans)
	}
}

// TestMemory: the check of a ring that is within its bounds takes no memory, however many files there are.
func TestMemory(t *testing.T) {
	oracle.Long(t)
	dir := t.TempDir()
	r := newRing(t, dir, "")
	for i := range 2000 {
		if err := os.WriteFile(filepath.Join(dir, ring.Name(time.Now().Add(-time.Duration(i)*time.Minute), i, "shop")), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	r.prune(1000, now)
	if files, _ := r.sum(); files != 2000 {
		t.Errorf("%d files are counted", files)
	}
	if n := testing.AllocsPerRun(10, func() { r.prune(1000, now.Add(every)) }); n > 0 {
		t.Errorf("the check takes memory %v times", n)
	}
}

// TestFull: a disk that is full takes a profile later, and keeps no part of it.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		oracle.Lacks(t, fmt.Sprintf("the permission to mount a file system (%v)", err))
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	r := newRing(t, dir, "")
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 60<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	q := &export.Request{Body: make([]byte, 32<<10), Query: ring.Name(time.Now(), 1, "shop")}
	var later *export.Later
	if _, err := r.Send(t.Context(), q); !errors.As(err, &later) || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("%v", err)
	}
	if got := names(t, dir); len(got) != 1 {
		t.Errorf("%q", got)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Send(t.Context(), q); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); len(got) != 1 || got[0] != q.Query {
		t.Errorf("%q", got)
	}
}

// TestFullOfProfiles: on a disk that the ring itself has filled, the oldest profiles make room for new ones.
func TestFullOfProfiles(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		oracle.Lacks(t, fmt.Sprintf("the permission to mount a file system (%v)", err))
	}
	defer unix.Unmount(dir, unix.MNT_DETACH)
	r := newRing(t, dir, "")
	began := time.Now().Add(-time.Hour)
	const files = 200
	var last string
	for i := range files {
		last = ring.Name(began.Add(time.Duration(i)*10*time.Second), i, "shop")
		if _, err := r.Send(t.Context(), &export.Request{Body: make([]byte, 5000), Query: last}); err != nil {
			t.Fatalf("file %d: %v", i, err)
		}
	}
	got := names(t, dir)
	if n := len(got); n < 20 || n > 256/8 || got[n-1] != last {
		t.Errorf("%d files, the last is %s, want %s", n, got[len(got)-1], last)
	}
	for i, name := range got {
		if want := ring.Name(began.Add(time.Duration(files-len(got)+i)*10*time.Second), files-len(got)+i, "shop"); name != want {
			t.Errorf("file %d of those left is %s, want %s: the oldest go", i, name, want)
		}
	}
	if n, bytes := r.sum(); n != len(got) || bytes != int64(n)*2*block {
		t.Errorf("%d files of %d bytes are counted, %d are there", n, bytes, len(got))
	}
}

func TestNew(t *testing.T) {
	dir := t.TempDir()
	for _, bad := range []string{"", "http://x/y", "//host/x", dir + "?age=", dir + "?age=-1h", dir + "?size=x", dir + "?color=red", dir + "#x", "/proc/nowhere"} {
		u, err := url.Parse(bad)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := New(u); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

// TestFitted: a profile that waits takes as much memory as it is long.
func TestFitted(t *testing.T) {
	r := newRing(t, t.TempDir(), "")
	for size := 100_000; size < 600_000; size += 100_000 {
		value := make([]byte, size)
		crand.Read(value)
		b, err := export.NewBatch(&profile.Profile{}, []export.Label{{Name: "x", Value: hex.EncodeToString(value)}}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		q, err := r.Encode(b)
		if err != nil {
			t.Fatal(err)
		}
		if n := len(q.Body); n < size || cap(q.Body) > n+n/8 {
			t.Errorf("%d bytes in a buffer of %d", n, cap(q.Body))
		}
	}
}
