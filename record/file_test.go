package record

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
)

// TestOpen: a recording and the pprof profile that was made of it have the same samples, with the same filters; what has none says why.
func TestOpen(t *testing.T) {
	mods := modules.New()
	mods.Files = names.Files("../testdata/root", nil)
	open := func(path string, filter Filter) (*profile.Profile, error) {
		f, err := Open(path, FileOptions{Mods: mods, Filter: filter})
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if f.Stat.Size() == 0 || (f.Session == nil) != (f.Pprof != nil) {
			t.Errorf("%s: %d bytes, session %v, profile %v", path, f.Stat.Size(), f.Session != nil, f.Pprof != nil)
		}
		if f.Pprof != nil {
			return f.Pprof, nil
		}
		p, err := f.Profile(context.Background(), nil)
		if done, total := f.Read(); done == 0 || total < done || err != nil {
			t.Errorf("%s: %d of %d bytes read, %v", path, done, total, err)
		}
		if p.Totals.Samples == 0 {
			return nil, f.NoSamples()
		}
		return p, nil
	}
	p, err := open("../testdata/perf.data", Filter{})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := pprof.Write(&b, p); err != nil {
		t.Fatal(err)
	}
	packed := filepath.Join(t.TempDir(), "spin.pb.gz")
	if err := os.WriteFile(packed, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		filter  Filter
		samples uint64
		err     string // "": none
	}{
		{Filter{}, p.Totals.Samples, ""},
		{Filter{Comm: regexp.MustCompile("^spin$")}, p.Totals.Samples, ""},
		{Filter{Comm: regexp.MustCompile("^other$")}, 0, "none of 10 samples matches"},
		{Filter{PIDs: []int{1}}, 0, "none of 10 samples matches"},
	} {
		for _, path := range []string{"../testdata/perf.data", packed} {
			got, err := open(path, c.filter)
			switch {
			case c.err != "":
				if err == nil || !strings.HasSuffix(err.Error(), c.err) {
					t.Errorf("%s, %+v: %v, want %s", path, c.filter, err, c.err)
				}
			case err != nil || got.Totals.Samples != c.samples:
				t.Errorf("%s, %+v: %v, %v, want %d samples", path, c.filter, got, err, c.samples)
			}
		}
	}
	if _, err := open(packed, Filter{Timed: true}); !errors.Is(err, ErrTimeless) {
		t.Errorf("a pprof profile by time: %v", err)
	}
	if f, err := Open(packed, FileOptions{Mods: mods, Single: true}); err == nil {
		f.Close()
		t.Errorf("Open takes %s, a pprof profile of %d bytes, for single samples; want an error", packed, f.Stat.Size())
	}
	for text, want := range map[string]string{"": "it is empty; want ", "hello": `it starts with "hello"; want `, "\n\x04\b\x01": `it starts with "\n\x04\b\x01", as a pprof profile, which has no single samples; want `} {
		path := filepath.Join(t.TempDir(), "x")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		want = path + ": not a recording: " + want + "a perf.data file, as perf record and unspool record write"
		if _, err := Open(path, FileOptions{Mods: mods, Single: true}); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
		if isPprof([]byte(text)) {
			continue
		}
		want += ", or a pprof profile"
		if _, err := Open(path, FileOptions{Mods: mods}); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
		if err := CheckInput(path); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	if f, err := Open(filepath.Join(t.TempDir(), "none"), FileOptions{Mods: mods}); !errors.Is(err, os.ErrNotExist) {
		f.Close()
		t.Errorf("what is not there: %v", err)
	}
}

// TestSampledFiles: a recording says in its header which files it has samples of. What is no recording has none, and no pipe is waited for.
func TestSampledFiles(t *testing.T) {
	mods := modules.New()
	f, err := Open("../testdata/perf.data", FileOptions{Mods: mods})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := t.TempDir()
	path := filepath.Join(dir, "header.data")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := perfdata.NewWriter(out, perfdata.WriterOptions{
		Events: f.data.Decoder().Events(), Info: f.data.Info(), BuildID: func(string) string { return "b4e4ceee2690ca953fbe41bdb3d527d97a84cddc" },
	})
	if err != nil {
		t.Fatal(err)
	}
	err = f.run(context.Background(), func(*profile.Sample) error { return nil }, func(r *source.Record) error {
		bare := *r
		bare.BuildID = nil // those go into the header that no record has
		return w.Record(&bare)
	}, w.Sample)
	if err := errors.Join(err, w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	if got := SampledFiles(path); !slices.Contains(got, "/opt/spin") || !slices.IsSorted(got) {
		t.Errorf("files of the recording: %q", got)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, "/dev/zero", "file_test.go", "..", "none", ""} {
		if got := SampledFiles(path); got != nil {
			t.Errorf("%q: %q", path, got)
		}
	}
}

// TestOpenMachines: while a recording is read, files for its machine are wanted, whichever was read before; after recordings of two machines, those of all.
func TestOpenMachines(t *testing.T) {
	mods := modules.New()
	defer mods.Close()
	made := func(m *arch.Machine) string {
		path := filepath.Join(t.TempDir(), m.Name)
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w, err := perfdata.NewWriter(out, perfdata.WriterOptions{Events: []source.Event{{Name: "cycles"}}, Info: perfdata.Info{Arch: m.Name, Machine: m}})
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(w.Close(), out.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	wants := func() *arch.Machine {
		m := mods.Files.For(nil)
		mods.Files.For(m)
		return m
	}
	for i, c := range []struct{ m, after *arch.Machine }{{arch.AMD64, arch.AMD64}, {arch.AMD64, arch.AMD64}, {arch.ARM64, nil}, {arch.ARM64, arch.ARM64}} {
		f, err := Open(made(c.m), FileOptions{Mods: mods})
		if err != nil {
			t.Fatal(err)
		}
		if got := wants(); got != c.m {
			t.Errorf("recording %d, of %s: files for %v are wanted", i, c.m.Name, got)
		}
		if err := f.Close(); err != nil || wants() != c.after {
			t.Errorf("after recording %d, of %s: files for %v are wanted, %v", i, c.m.Name, wants(), err)
		}
	}
}
