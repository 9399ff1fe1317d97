package record

import (
	"encoding/binary"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// TestRecordLess: what is advised against losses is what the event takes.
func TestRecordLess(t *testing.T) {
	for _, c := range []struct {
		name string
		attr source.Attr
		want string
	}{
		{"cycles", source.Attr{Flags: source.FlagFreq, SamplePeriod: 999}, "record with a lower frequency (-F)"},
		{"page-faults", source.Attr{SamplePeriod: 1}, "record only one of every N page-faults (-c N)"},
		{"page-faults", source.Attr{SamplePeriod: 100}, "record with a -c over 100"},
		{perfevent.OffCPU, source.Attr{SamplePeriod: 1}, "record fewer tasks (-p, --cgroup, --comm)"},
	} {
		const lost = "3 records were lost"
		if got := recordLess(lost, []source.Event{{Name: c.name, Attr: c.attr}}); got != lost+": "+c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// manyMappings is a recording of a process with one executable mapping more than are kept, and of one that nothing tells the start of.
type manyMappings struct {
	dec *source.Decoder
	n   uint64
}

func (m *manyMappings) Decoder() *source.Decoder { return m.dec }

func (m *manyMappings) Next() ([]byte, *source.Buffer, error) {
	m.n++
	switch {
	case m.n == 1:
		return m.dec.Append(nil, 0, &source.Record{Type: source.RecordComm, PID: 7, TID: 7, Time: 1, Comm: []byte("jit"), Misc: source.MiscCommExec}), nil, nil
	case m.n <= source.MaxMappings+2:
		return m.dec.Append(nil, 0, &source.Record{
			Type: source.RecordMmap2, PID: 7, TID: 7, Time: m.n, Addr: m.n << 16, Len: 1 << 12, Prot: source.ProtExec, Filename: []byte("/lib"),
		}), nil, nil
	case m.n <= source.MaxMappings+4: // a sample of each
		pid := uint64(m.n - source.MaxMappings + 4)
		b := binary.LittleEndian.AppendUint32(nil, source.RecordSample)
		b = binary.LittleEndian.AppendUint32(b, 40<<16|source.MiscUser)
		for _, v := range []uint64{7 << 16, pid<<32 | pid, m.n, 0} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b, nil, nil
	}
	return nil, nil, io.EOF
}

// TestMissed: what a recording lacks is said, and what it does to stacks; a sound recording has nothing to say.
func TestMissed(t *testing.T) {
	in := &manyMappings{dec: source.NewDecoder()}
	in.dec.AddAttr(&source.Attr{
		SampleType: source.SampleIP | source.SampleTID | source.SampleTime | source.SampleCallchain, Flags: source.FlagSampleIDAll | source.FlagMmap2,
	}, nil, "test")
	o := Options{Mods: modules.Interpreted(), Names: names.New(names.Options{Recorded: true})}
	defer o.Names.Close()
	s := newSession(in, func() perfdata.Info { return perfdata.Info{} }, o)
	if err := s.Run(t.Context(), func(*profile.Sample) error { return nil }); err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(s.Notes(), "\n")
	for _, want := range []string{
		"1 mapping or thread was left out: 8,192 executable mappings of a process are kept, and 131,072 of a user's processes; stacks that lead to others end",
		"50.0 % of the samples are of processes whose start was not recorded",
	} {
		if !strings.Contains(notes, want) {
			t.Errorf("%s\nlack %q; %+v", notes, want, s.Stats)
		}
	}
	for _, path := range []string{"/a", "/b", "/a"} {
		s.noteDoubtful(path)
	}
	if notes := strings.Join(s.Notes(), "\n"); !strings.Contains(notes, "2 files were recorded without a build ID, and may be other files now, whose names are wrong; the first: /a") {
		t.Errorf("Notes = %q, want 2 files recorded without a build ID, the first /a", notes)
	}
	for want, st := range map[string]source.Stats{
		"":                                    {Samples: 1000, Orphans: 20, Compat: 20, Undeferred: 20},
		"1 record came too late":              {Samples: 1000, Disordered: 1},
		"100.0 % of the samples have no time": {Samples: 5, NoTime: 5},
		"3.0 % of the samples are of 32-bit code": {Samples: 1000, Compat: 30},
		"3.0 % of the samples have no user stack": {Samples: 1000, Undeferred: 30},
	} {
		got := missed(&st)
		if len(got) > 1 || (len(got) == 1) != (want != "") || !strings.HasPrefix(strings.Join(got, ""), want) {
			t.Errorf("%+v: %q, want %q", st, got, want)
		}
	}
}

// TestLargerCopies: larger copies are advised where there are larger ones.
func TestLargerCopies(t *testing.T) {
	for size, larger := range map[uint32]bool{0: true, 8: true, 32 << 10: true, tracer.MaxStackSize: false, perfevent.MaxStackSize: false} {
		want := "cut off"
		if larger {
			want += ": record with a larger --stack-size"
		}
		if got := largerCopies("cut off", []source.Event{{}, {Attr: source.Attr{SampleStackUser: size}}}); got != want {
			t.Errorf("of copies of %d bytes: %q, want %q", size, got, want)
		}
	}
}

// TestCuts: what is said of waits that are longer than they look is what was seen of them.
func TestRepaired(t *testing.T) {
	for _, c := range []struct {
		r    source.Repairs
		want string
	}{
		{source.Repairs{}, ""},
		{source.Repairs{Mappings: 1}, "read from /proc, because no record told of them: 1 mapping"},
		{source.Repairs{Mappings: 1900, Gone: 1, Processes: 2, Names: 1},
			"read from /proc, because no record told of them: 2 processes, 1,900 mappings, 1 mapping that had gone, 1 name"},
	} {
		if got := repaired(&c.r); got != c.want {
			t.Errorf("%+v: %q, want %q", c.r, got, c.want)
		}
	}
}

func TestCuts(t *testing.T) {
	for _, c := range []struct {
		misc []uint16
		want string
	}{
		{nil, ""},
		{[]uint16{0, 0}, ""},
		{[]uint16{source.MiscCutBegin, 0}, "1 wait had begun before the recording: time counts from its beginning"},
		{[]uint16{source.MiscCutEnd, source.MiscCutEnd}, "2 waits had not ended with the recording: time counts to its end"},
		{
			[]uint16{source.MiscCutBegin | source.MiscCutEnd, source.MiscCutBegin},
			"2 waits had begun before the recording, 1 had not ended with it: time counts from its beginning, and to its end",
		},
	} {
		var cut cuts
		for _, misc := range c.misc {
			cut.observe(&source.Sample{Record: &source.Record{Misc: misc}})
		}
		if got := cut.String(); got != c.want {
			t.Errorf("%x: %q, want %q", c.misc, got, c.want)
		}
	}
}

// TestTally: an interval has what came since the one before, losses too; processors with nothing to do are counted apart.
func TestTally(t *testing.T) {
	t0 := time.Unix(100, 0)
	tally := NewTally(t0)
	add := func(s profile.Sample, n int) {
		for range n {
			if err := tally.Add(&s); err != nil {
				t.Fatal(err)
			}
		}
	}
	add(profile.Sample{PID: 7, TID: 7, HasUser: true}, 3)
	add(profile.Sample{Kernel: []uint64{1 << 63}}, 2)     // the idle task
	add(profile.Sample{PID: 0, TID: 0, HasUser: true}, 1) // of another PID namespace
	for _, want := range []struct {
		samples, idle, lost, lostNow uint64
		dur                          time.Duration
	}{{4, 2, 5, 5, time.Second}, {0, 0, 5, 0, 2 * time.Second}, {0, 0, 4, 0, time.Second}} {
		t0 = t0.Add(want.dur)
		got := tally.Cut(t0, want.lost, nil, profile.Info{})
		if got.Profile.Totals.Samples != want.samples || got.Idle != want.idle || got.Lost != want.lostNow || got.Duration != want.dur {
			t.Errorf("%d samples, %d idle, %d lost in %v; want %+v", got.Profile.Totals.Samples, got.Idle, got.Lost, got.Duration, want)
		}
	}
}

func TestRecorded(t *testing.T) {
	for line, want := range map[string]string{
		"perf record -g -- ls -l": "ls -l", "perf record -a": "perf record -a", "unspool record -- sh -c --": "sh -c --", "x --": "x --", "": "",
	} {
		if got := strings.Join(recorded(strings.Fields(line)), " "); got != want {
			t.Errorf("recorded(%q) = %q, want %q", line, got, want)
		}
	}
}
