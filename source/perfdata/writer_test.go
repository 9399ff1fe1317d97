package perfdata

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// loadModule gives modules that can be walked.
var loadModule = func() func(path, id string) *unwind.Module {
	var mu sync.Mutex
	mods := map[string]*unwind.Module{}
	return func(path, id string) *unwind.Module {
		mu.Lock()
		defer mu.Unlock()
		if mods[path+id] == nil {
			mods[path+id] = unwind.NewModule(path, id, func(m *unwind.Module) *unwind.Code {
				img, err := module.Open(m.Path)
				if err != nil {
					return nil
				}
				c := &unwind.Code{Machine: img.Machine(), Vaddr: func(off uint64) (arch.Vaddr, bool) { return img.OffToVaddr(off) }}
				if f, err := dwarf.Open(img); err == nil {
					t, _ := f.Build(dwarf.Both)
					c.Stepper = rows.Interp{Table: t}
				}
				return c
			})
		}
		return mods[path+id]
	}
}()

// rewrite writes what f has, walked, to w.
func rewrite(t testing.TB, f *File, w io.Writer) (samples []string, st source.Stats) {
	t.Helper()
	x, err := NewWriter(w, WriterOptions{Events: f.Decoder().Events(), Info: f.Info(), BuildID: f.BuildID})
	if err != nil {
		t.Fatal(err)
	}
	st = run(t, f, source.Options{
		Mods: loadModule,
		Sample: func(s *source.Sample) error {
			samples = append(samples, sampleText(s))
			return x.Sample(s)
		},
		Record: x.Record,
	})
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if x.Dropped() > 0 {
		t.Errorf("%d records dropped", x.Dropped())
	}
	return samples, st
}

// TestRoundTrip holds what is read of a written file or stream against what was read of the original: all that a
// report can show of each sample, with its mappings and how its frames were found. A stream has its build IDs at its end, when most samples
// are read: they are compared by themselves.
func TestRoundTrip(t *testing.T) {
	oracle.Long(t)
	id := regexp.MustCompile(`(?m) (\S+) ([0-9a-f]{8,40})$`)
	eachRecording(t, func(t *testing.T, path string) {
		in := path
		for i, kind := range []string{"file", "stream", "again"} {
			f := openTest(t, in)
			out := filepath.Join(t.TempDir(), "out.data")
			file, err := os.Create(out)
			if err != nil {
				t.Fatal(err)
			}
			var w io.Writer = file
			if kind == "stream" {
				w = struct{ io.Writer }{file}
			}
			want, st := rewrite(t, f, w)
			file.Close()

			g := openTest(t, out)
			if gi := g.Info(); !gi.Ours || gi.Piped != (kind == "stream") || gi.Damage != nil {
				t.Errorf("%s: %+v", kind, gi)
			}
			var got []string
			gst := run(t, g, source.Options{Mods: loadModule, Sample: func(s *source.Sample) error {
				got = append(got, sampleText(s))
				return nil
			}})
			if len(want) == 0 || len(got) != len(want) {
				t.Fatalf("%s: %d samples, want %d", kind, len(got), len(want))
			}
			ids := map[string]string{}
			bad := 0
			for i := range want {
				got, want := got[i], want[i]
				if !judged(path, want) {
					got, _, _ = strings.Cut(got, " ip ")
					want, _, _ = strings.Cut(want, " ip ")
				}
				if kind == "stream" {
					// What was mapped in the last round has its ID, and what the same process mapped before has none.
					have, lines := strings.SplitAfter(got, "\n"), strings.SplitAfter(want, "\n")
					for k := range min(len(have), len(lines)) {
						if m := id.FindStringSubmatch(lines[k]); m != nil && !id.MatchString(have[k]) {
							ids[m[1]] = m[2]
							lines[k] = id.ReplaceAllString(lines[k], " $1 ")
						}
					}
					want = strings.Join(lines, "")
				}
				if got != want {
					t.Errorf("%s: got %swant %s", kind, got, want)
					if bad++; bad > 3 {
						t.FailNow()
					}
				}
			}
			for path, want := range ids {
				if got := g.BuildID(path); got != want {
					t.Errorf("%s: BuildID(%q) = %q at its end, want %q", kind, path, got, want)
				}
			}
			if judged(path, "") && (gst.Stops != st.Stops || gst.Frames != st.Frames) || gst.Orphans != st.Orphans || gst.Lost != st.Lost || gst.Disordered != 0 {
				t.Errorf("%s: got %+v\nwant %+v", kind, gst, st)
			}
			for k, e := range f.dec.Events() {
				if name := g.dec.Events()[k].Name; name != e.Name {
					t.Errorf("%s: event %d is %q, was %q", kind, k, name, e.Name)
				}
			}
			fi, gi := f.Info(), g.Info()
			if gi.Hostname != fi.Hostname || gi.Machine != fi.Machine || !slices.Equal(gi.Cmdline, fi.Cmdline) || gi.ClockID != fi.ClockID || gi.ClockWall != fi.ClockWall {
				t.Errorf("%s: got %+v\nwant %+v", kind, gi, fi)
			}
			if i > 0 {
				continue
			}
			in = out // a written file can be written again
			if strings.HasSuffix(path, "dwarf.data") && st.Stops[unwind.Outermost] == 0 {
				t.Errorf("no stack is whole: %v", st.Stops)
			}
		}
	})
}

// TestPerfReads holds the stacks that perf script shows of a written file against those written, and has perf report
// read it.
func TestPerfReads(t *testing.T) {
	oracle.Long(t)
	eachRecording(t, func(t *testing.T, path string) {
		for _, kind := range []string{"file", "stream"} {
			out := filepath.Join(t.TempDir(), kind+".data")
			file, err := os.Create(out)
			if err != nil {
				t.Fatal(err)
			}
			var w io.Writer = file
			if kind == "stream" {
				w = struct{ io.Writer }{file}
			}
			f := openTest(t, path)
			events := f.dec.Events()
			rewrite(t, f, w)
			file.Close()

			type sample struct {
				head   string
				kernel []uint64
				user   []unwind.Frame
			}
			var want []sample
			run(t, openTest(t, out), source.Options{Mods: loadModule, Sample: func(s *source.Sample) error {
				want = append(want, sample{fmt.Sprint(s.Comm, s.PID, s.TID, s.Time), slices.Clone(s.Kernel), slices.Clone(s.User)})
				return nil
			}})
			frames, last := 0, ""
			for _, s := range script(t, out) {
				if fmt.Sprint(s.Comm, s.PID, s.TID, s.Time) == last {
					continue // perf shows a sample that reads a group once for each of its counters
				}
				if len(want) == 0 {
					t.Errorf("%s: perf has another sample, %v", kind, s)
					break
				}
				w := want[0]
				want = want[1:]
				if head := fmt.Sprint(s.Comm, s.PID, s.TID, s.Time); head != w.head {
					t.Errorf("%s: perf has the sample %s, written was %s", kind, head, w.head)
					break
				}
				last = w.head
				frames += len(s.Frames)
				if !judged(path, s.Comm) {
					continue
				}
				same := len(s.Frames) == len(w.kernel)+len(w.user) || len(s.Frames) > 120
				for i, f := range s.Frames {
					switch k := i - len(w.kernel); {
					case k < 0:
						same = same && f.IP == w.kernel[i]
					case k < len(w.user):
						addr, m := w.user[k].Addr(), w.user[k].Mapping
						// perf keeps the mappings that an execve has ended, and finds the old
						// program's addresses in them.
						ok := f.IP == uint64(addr) || m == nil
						if m != nil && m.Module.Path == f.DSO {
							v, _ := m.Vaddr(addr)
							ok = ok || f.IP == m.FileOff(addr) || f.IP == uint64(v)
						}
						same = same && ok
					}
				}
				if !same {
					t.Errorf("%s: %s: perf shows %+v\nwritten %#x %+v", kind, w.head, s.Frames, w.kernel, w.user)
				}
				if !same {
					break
				}
			}
			if len(want) > 0 {
				t.Errorf("%s: perf lacks %d samples", kind, len(want))
			}
			if frames == 0 && !strings.Contains(path, "no-chain") {
				t.Errorf("%s: perf shows no frames", kind)
			}

			report, stderr := perf(t, "report", "--stdio", "--header", "-g", "caller", "-i", out)
			for _, e := range events {
				if !strings.Contains(report, "of event '"+e.Name+"'") && !strings.Contains(report, "of events '") && !strings.HasPrefix(e.Name, "dummy:") {
					t.Errorf("%s: perf report does not show the event %s:\n%.2000s", kind, e.Name, report)
				}
			}
			if !strings.Contains(report, "perf version : unspool 1") || !regexp.MustCompile(`\n +\d+\.\d+%`).MatchString(report) {
				t.Errorf("%s: perf report:\n%.3000s", kind, report)
			}
			for _, line := range strings.Split(stderr, "\n") {
				if strings.Contains(line, "unordered") || strings.Contains(line, "nvalid") || strings.Contains(line, "orrupt") {
					t.Errorf("%s: perf report says %q", kind, line)
				}
			}
		}
	})
}

// TestTracing has perf script show the fields of tracepoints, by the description that the recording came with and by
// that which a Writer makes.
func TestTracing(t *testing.T) {
	oracle.Long(t)
	path := record(t, "tracepoint")
	fields := func(path string) string {
		out, _ := perf(t, "script", "-i", path, "-G", "-F", "time,event,trace")
		return out
	}
	want := fields(path)
	if !strings.Contains(want, "sched:sched_switch: prev_comm=") {
		t.Fatalf("perf shows no fields:\n%.1000s", want)
	}
	for _, made := range []bool{false, true} {
		for _, kind := range []string{"file", "stream"} {
			f := openTest(t, path)
			if made {
				f.info.Tracing = nil
			}
			out := filepath.Join(t.TempDir(), "out.data")
			file, err := os.Create(out)
			if err != nil {
				t.Fatal(err)
			}
			var w io.Writer = file
			if kind == "stream" {
				w = struct{ io.Writer }{file}
			}
			rewrite(t, f, w)
			file.Close()
			if got := fields(out); got != want {
				t.Errorf("%s, made %v: got\n%.600s\nwant\n%.600s", kind, made, got, want)
			}
		}
	}
}

// script returns what perf script shows of a file. perf 6.1 aborts now and then, by an assertion on build IDs: another
// try helps.
func script(t testing.TB, path string) (list []oracle.ScriptSample) {
	t.Helper()
	for try := 1; ; try++ {
		list = list[:0]
		err := oracle.PerfScript(path, func(s *oracle.ScriptSample) bool {
			c := *s
			c.Frames = slices.Clone(s.Frames)
			list = append(list, c)
			return true
		})
		if err == nil {
			return list
		}
		if try == 8 {
			t.Fatal(err)
		}
	}
}

// perf returns what perf writes to standard output, and to standard error.
func perf(t testing.TB, args ...string) (out, stderr string) {
	t.Helper()
	for try := 1; ; try++ {
		cmd := exec.Command("perf", args...)
		var o, e strings.Builder
		cmd.Stdout, cmd.Stderr = &o, &e
		err := cmd.Run()
		if err == nil {
			return o.String(), e.String()
		}
		if try == 8 {
			t.Fatalf("perf %q: %v\n%s", args, err, e.String())
		}
	}
}

// TestUnfinished reads a file whose Writer was never closed.
func TestUnfinished(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out.data")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	a := plainAttr
	x, err := NewWriter(file, WriterOptions{Events: []source.Event{{Attr: a, Name: "x"}}})
	if err != nil {
		t.Fatal(err)
	}
	const n = 50000
	for i := range uint64(n) {
		s := &source.Sample{Record: &source.Record{HasTime: true, Time: i + 1}, Time: i + 1, Kernel: []uint64{1 << 63}, Space: unwind.NewSpace()}
		if err := x.Sample(s); err != nil {
			t.Fatal(err)
		}
	}
	samples, info, st, err := try(path)
	if err != nil || !info.Unfinished || len(samples) < n*9/10 || st.Bad > 0 {
		t.Errorf("%d samples, %+v, %v", len(samples), info, err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if samples, info, _, err := try(path); err != nil || info.Unfinished || !info.Ours || len(samples) != n {
		t.Errorf("closed: %d samples, %+v, %v", len(samples), info, err)
	}
	if x.Sample(&source.Sample{Record: &source.Record{}}) == nil {
		t.Errorf("a closed Writer takes a sample: it has %d bytes, and its error is %v", x.n, x.err)
	}
}

// TestFullDisk has writes fail, at the start and later.
func TestFullDisk(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		oracle.Lacks(t, "/dev/full")
	}
	defer full.Close()
	if _, err := NewWriter(full, WriterOptions{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a file: %v, want ENOSPC", err)
	}
	if _, err := NewWriter(struct{ io.Writer }{full}, WriterOptions{}); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a stream: %v, want ENOSPC", err)
	}

	for room := 200; room < 3<<20; room = room*3 + 1 {
		w := &limited{room: room}
		x, err := NewWriter(w, WriterOptions{Events: []source.Event{{}}})
		r := &source.Record{Type: source.RecordComm, Comm: []byte("full")}
		for range 1 << 17 {
			if err == nil {
				err = x.Record(r)
			}
		}
		if err == nil {
			err = x.Close()
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("room for %d bytes: %v, want ENOSPC", room, err)
		}
		if x != nil && !errors.Is(x.Close(), syscall.ENOSPC) {
			t.Errorf("room for %d bytes: Close has forgotten the error", room)
		}
	}
}

type limited struct{ room int }

func (l *limited) Write(b []byte) (int, error) {
	if len(b) > l.room {
		n := l.room
		l.room = 0
		return n, syscall.ENOSPC
	}
	l.room -= len(b)
	return len(b), nil
}
