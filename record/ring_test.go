package record

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/ring"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// TestRing: of a directory of profiles, those of the time, the services and the processes are one profile; what is damaged, or no profile, changes
// nothing in it.
func TestRing(t *testing.T) {
	dir := t.TempDir()
	begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	at := func(minutes int) time.Time { return begin.Add(time.Duration(minutes) * time.Minute) }
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	pods := map[string][]string{"db": {"region=north", "namespace=market", "pod=db-0"}}
	// Each minute for two hours, web has one sample, and db two in another process.
	for i := range 120 {
		for pid, service := range map[int32]string{1: "web", 2: "db"} {
			p := &profile.Profile{
				Info:    profile.Info{Events: []profile.Event{{Name: "cpu-clock", Unit: "nanoseconds"}}, Start: at(i), Duration: time.Minute, Host: "here", Labels: pods[service]},
				Modules: []profile.Module{{Path: "/bin/" + service}}, Funcs: []profile.Func{{Name: "main", Named: true}}, Files: []string{""},
				Mappings: []profile.Mapping{{Lo: uint64(i+1) << 12, Hi: uint64(i+2) << 12}}, // each process has it elsewhere
				Locs:     []profile.Loc{{Addr: uint64(i+1)<<12 + 0x10, Off: 0x10}}, Stacks: []profile.Stack{{Frames: []uint32{0}, Comm: service, PID: pid, TID: pid, Count: uint64(pid), Period: 7}},
			}
			p = p.Filter(func(*profile.Stack) bool { return true })
			var b bytes.Buffer
			if err := pprof.Write(&b, p); err != nil {
				t.Fatal(err)
			}
			write(ring.Name(at(i), i, service), b.Bytes())
		}
	}
	open := func(f Filter) (*File, error) {
		out, err := Open(dir, FileOptions{Filter: f})
		if err == nil {
			out.Close()
		}
		return out, err
	}
	ahead := ring.Name(time.Now().Add(48*time.Hour), 120, "web")
	for _, c := range []struct {
		name           string
		f              Filter
		web, db, files int
	}{
		{"the last hour", Filter{}, 61, 122, 122},
		{"all", Filter{Timed: true, To: math.MaxUint64}, 120, 240, 240},
		{"since", Filter{Since: at(100).Add(time.Second)}, 20, 40, 40}, // the one that began before it, too
		{"until", Filter{Until: at(4).Add(time.Second)}, 5, 10, 10},
		{"between", Filter{Since: at(10).Add(time.Second), Until: at(11)}, 2, 4, 4},
		{"a service", Filter{Service: regexp.MustCompile("^web$")}, 61, 0, 61},
		{"a process", Filter{PIDs: []int{2}, Since: at(110).Add(time.Second)}, 0, 20, 10},
		{"the last hour, and what a clock that was ahead has left", Filter{}, 62, 122, 123},
	} {
		if strings.Contains(c.name, "ahead") {
			b, err := os.ReadFile(filepath.Join(dir, ring.Name(at(119), 119, "web")))
			if err != nil {
				t.Fatal(err)
			}
			write(ahead, b)
		}
		f, err := open(c.f)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		got := map[string]int{}
		for i := range f.Pprof.Stacks {
			if at := f.Ring.Places[i]; at.Service == "db" && at.Pod != "market/db-0" || at.Service == "web" && at.Pod != "" {
				t.Errorf("%s: a stack of %+v", c.name, at)
			}
			got[f.Ring.Places[i].Service] += int(f.Pprof.Stacks[i].Count)
		}
		if got["web"] != c.web || got["db"] != c.db || f.Ring.Files != c.files || f.Pprof.Totals.Samples != uint64(c.web+c.db) || len(f.Pprof.Stacks) > 2 || f.Pprof.Host != "here" {
			t.Errorf("%s: %v in %d files, %d stacks; want %d, %d in %d", c.name, got, f.Ring.Files, len(f.Pprof.Stacks), c.web, c.db, c.files)
		}
	}
	os.Remove(filepath.Join(dir, ahead))
	for want, f := range map[string]Filter{
		"no samples of that time":   {Since: at(1000)},
		"no samples of that time, ": {Service: regexp.MustCompile("^x$")},
		"times of day":              {Timed: true, From: 1, To: 2},
	} {
		if _, err := open(f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", f, err, want)
		}
	}

	write(ring.Name(at(119), 1000, "web"), []byte("\x1f\x8bno profile"))
	if err := os.Mkdir(filepath.Join(dir, ring.Name(at(119), 1001, "web")), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/zero", filepath.Join(dir, ring.Name(at(119), 1002, "web"))); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, ring.Name(at(119), 1003, "web")), 0o600); err != nil {
		t.Fatal(err)
	}
	write("unspool.pb.gz", []byte("not ours"))
	f, err := open(Filter{Since: at(119).Add(time.Second)})
	if err != nil || f.Ring.Failed != 4 || f.Ring.Files != 2 || len(f.Ring.Unread) != 4 {
		t.Errorf("%+v, %v", f.Ring, err)
	}

	// Reading can be given up, and says which stack became which.
	stop := errors.New("enough")
	if _, err := Open(dir, FileOptions{Reading: func(done, total int, samples uint64) error {
		if done == 7 {
			return stop
		}
		return nil
	}}); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
	var log []string
	if _, err := Open(dir, FileOptions{Filter: Filter{Until: at(0).Add(time.Second)}, Added: func(p *profile.Profile, stacks []int32) { log = append(log, fmt.Sprint(p.Stacks[0].Comm, stacks)) }}); err != nil || fmt.Sprint(log) != "[db[0] web[1]]" && fmt.Sprint(log) != "[web[0] db[1]]" {
		t.Errorf("%v, %v", log, err)
	}

	// A directory is none for a filter by seconds, and a file none for one by the clock on the wall.
	if _, err := Open("../testdata/perf.data", FileOptions{Filter: Filter{Since: begin}}); !errors.Is(err, ErrNotRing) {
		t.Errorf("error %v", err)
	}
	if _, err := Open(t.TempDir(), FileOptions{}); err == nil || !strings.Contains(err.Error(), "has no profiles of unspool agent") {
		t.Errorf("error %v", err)
	}
}

// TestRingEvents: of time on processors and waits, a directory shows the former, or what is asked for, and says so; who tells them apart gets both.
func TestRingEvents(t *testing.T) {
	dir, begin := t.TempDir(), time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	for i, event := range []string{"off-cpu", "cpu-clock:u"} {
		p := &profile.Profile{Info: profile.Info{Events: []profile.Event{profile.NewEvent(event)}, Start: begin, Duration: time.Minute}, Files: []string{""},
			Stacks: []profile.Stack{{Comm: "a", PID: 1, TID: 1, Count: uint64(i) + 3, Period: 7}}}
		var b bytes.Buffer
		if err := pprof.Write(&b, p.Filter(func(*profile.Stack) bool { return true })); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, ring.Name(begin, i, "web")), b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		event   string
		samples uint64
		note    string
	}{{"", 4, "only cpu; --event shows off-cpu"}, {"cpu", 4, ""}, {"off-cpu", 3, ""}} {
		f, err := Open(dir, FileOptions{Filter: Filter{Event: c.event}})
		if err != nil {
			t.Fatal(err)
		}
		if note := strings.Join(f.Ring.Notes(), "\n"); f.Pprof.Totals.Samples != c.samples || len(f.Pprof.Events) != 1 || note != c.note {
			t.Errorf("%q: %d samples of %v, %q", c.event, f.Pprof.Totals.Samples, f.Pprof.Events, note)
		}
		f.Close()
	}
	if _, err := Open(dir, FileOptions{Filter: Filter{Event: "cycles"}}); err == nil || !strings.Contains(err.Error(), "no samples of cycles, but of off-cpu and cpu") {
		t.Errorf("Open with cycles = %v, want no samples of cycles, but of off-cpu and cpu", err)
	}
	f, err := Open(dir, FileOptions{Added: func(*profile.Profile, []int32) {}})
	if err != nil || f.Pprof.Totals.Samples != 7 || len(f.Ring.Notes()) > 0 {
		t.Errorf("%v, %v", f, err)
	}
}
