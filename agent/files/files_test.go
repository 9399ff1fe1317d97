package files

import (
	"context"
	"errors"
	"fmt"
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
	if p, err := pprof.Read(f); err != nil || p.Duration != 10*time.Second {
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
	st, err := os.Stat(filepath.Join(dir, third))
	if err != nil {
		t.Fatal(err)
	}
	r = newRing(t, dir, "age=30m&size="+fmt.Sprint(3*st.Size()+st.Size()/2))
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
