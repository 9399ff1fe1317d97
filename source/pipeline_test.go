package source

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"
	"weak"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/unwind"
)

// A fakeStream gives records from memory, each in a Buffer of its own.
type fakeStream struct {
	dec     *Decoder
	records [][]byte
	err     error // after the last; nil is io.EOF

	buf      *Buffer
	live     sync.WaitGroup // Buffers that somebody holds
	mu       sync.Mutex
	held     int
	heldMost int
}

func (s *fakeStream) Decoder() *Decoder { return s.dec }

func (s *fakeStream) Next() ([]byte, *Buffer, error) {
	s.buf.Release()
	s.buf = nil
	if len(s.records) == 0 {
		if s.err != nil {
			return nil, nil, s.err
		}
		return nil, nil, io.EOF
	}
	raw := s.records[0]
	s.records = s.records[1:]
	s.live.Add(1)
	s.mu.Lock()
	s.held += len(raw)
	s.heldMost = max(s.heldMost, s.held)
	s.mu.Unlock()
	s.buf = NewBuffer(len(raw), func(b *Buffer) {
		s.mu.Lock()
		s.held -= len(b.Bytes)
		s.mu.Unlock()
		clear(b.Bytes) // whoever still uses it sees nothing
		s.live.Done()
	})
	copy(s.buf.Bytes, raw)
	return s.buf.Bytes, s.buf, nil
}

// testAttr is an event with a callchain.
var testAttr = Attr{SampleType: SampleIP | SampleTID | SampleTime | SampleCallchain, Flags: FlagSampleIDAll}

func newFake() *fakeStream {
	s := &fakeStream{dec: NewDecoder()}
	s.dec.AddAttr(&testAttr, nil, "test")
	return s
}

func words(vs ...uint64) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func record(typ uint32, misc uint16, body ...uint64) []byte {
	return finishRecord(append(appendHeader(nil, typ, misc), words(body...)...), 0)
}

func sampleRecord(pid, tid uint32, time uint64, chain ...uint64) []byte {
	return record(RecordSample, MiscUser, append([]uint64{7, uint64(pid) | uint64(tid)<<32, time, uint64(len(chain))}, chain...)...)
}

var round = record(RecordFinishedRound, 0)

func (s *fakeStream) add(r *Record) { s.records = append(s.records, s.dec.Append(nil, 0, r)) }

// settled waits for what Run has started to end.
func settled(t *testing.T, before int) {
	t.Helper()
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	buf := make([]byte, 1<<16)
	t.Errorf("%d goroutines, were %d\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
}

// released fails the test unless all Buffers have been given up.
func (s *fakeStream) released(t *testing.T) {
	t.Helper()
	s.buf.Release()
	s.buf = nil
	done := make(chan struct{})
	go func() { s.live.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		t.Errorf("%d bytes are still held", s.held)
	}
}

// TestRunOrder delivers what several processors' buffers hold, round by round, in the order of time, and holds the
// state of the World at each sample: its process's name is that of the last COMM before it.
func TestRunOrder(t *testing.T) {
	seeds := uint64(40)
	if testing.Short() { // with the race detector, each takes a second
		seeds = 10
	}
	for seed := range seeds {
		before := runtime.NumGoroutine()
		rnd := rand.New(rand.NewPCG(seed, 4))
		s := newFake()
		const cpus = 4
		var now uint64 = 1000
		var total, comms int
		for range 30 { // rounds
			var bufs [cpus][][]byte
			for range rnd.IntN(400) {
				now += uint64(rnd.IntN(3)) // some at the same time
				cpu := rnd.IntN(cpus)
				if rnd.IntN(20) == 0 {
					now++
					comms++
					bufs[cpu] = append(bufs[cpu], s.dec.Append(nil, 0, &Record{Type: RecordComm, PID: 1, TID: 1, Time: now, Comm: fmt.Appendf(nil, "%d", now)}))
					now++
					continue
				}
				total++
				bufs[cpu] = append(bufs[cpu], sampleRecord(1, 1, now, ContextUser, uint64(total)))
			}
			for _, b := range bufs {
				s.records = append(s.records, b...)
			}
			s.records = append(s.records, round)
		}
		var last, comm uint64
		var n int
		st, err := Run(context.Background(), s, Options{
			Sample: func(x *Sample) error {
				n++
				if x.Time < last {
					t.Fatalf("seed %d: %d after %d", seed, x.Time, last)
				}
				last = x.Time
				if comm > 0 && x.Comm != fmt.Sprint(comm) {
					t.Fatalf("seed %d: at %d the name is %s, was set to %d", seed, x.Time, x.Comm, comm)
				}
				if len(x.User) != 1 || x.From != Recorded {
					t.Fatalf("seed %d: %+v", seed, x)
				}
				return nil
			},
			Record: func(r *Record) error {
				if r.Time < last {
					t.Fatalf("seed %d: %d after %d", seed, r.Time, last)
				}
				last, comm = r.Time, r.Time
				return nil
			},
		})
		if err != nil || n != total || st.Samples != uint64(total) || st.Records != uint64(total+comms) || st.Disordered != 0 {
			t.Fatalf("seed %d: %v, %d of %d samples: %+v", seed, err, n, total, st)
		}
		s.released(t)
		settled(t, before)
	}
}

// TestQueue holds the merge sort against a stable sort, and what each round gives against what is due.
func TestQueue(t *testing.T) {
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		var q queue
		var all, got, want []entry
		for i := range rnd.IntN(500) {
			e := entry{time: uint64(1 + rnd.IntN(50)), pid: int32(i)}
			all = append(all, e)
			q.add(e)
		}
		want = slices.Clone(all)
		slices.SortStableFunc(want, func(a, b entry) int { return int(a.time) - int(b.time) })
		got = append(got, q.round()...) // nothing is due yet
		if len(got) != 0 {
			t.Fatalf("seed %d: the first round gives %d records", seed, len(got))
		}
		got = append(got, q.half()...)
		if len(got) != (len(all)+1)/2 {
			t.Fatalf("seed %d: half of %d is %d", seed, len(all), len(got))
		}
		got = append(got, q.round()...) // up to the newest of the round before
		if len(got) != len(want) || len(q.pending) != 0 {
			t.Fatalf("seed %d: %d of %d", seed, len(got), len(want))
		}
		for i := range want {
			if got[i].time != want[i].time || got[i].pid != want[i].pid {
				t.Fatalf("seed %d: %d is %+v, want %+v", seed, i, got[i], want[i])
			}
		}
	}
}

// TestRunBounds reads a stream without rounds, and one whose rounds never end: memory stays bounded.
func TestRunBounds(t *testing.T) {
	oracle.Long(t)
	s := newFake()
	chain := make([]uint64, 4000)
	raw := sampleRecord(1, 1, 5, chain...)
	for i := range 3 * maxHeld / len(raw) {
		x := raw
		if i%100 == 0 {
			x = sampleRecord(1, 1, uint64(5+i), chain...)
		}
		s.records = append(s.records, x)
	}
	n := uint64(len(s.records))
	st, err := Run(context.Background(), s, Options{})
	if err != nil || st.Samples != n {
		t.Errorf("%v: %+v", err, st)
	}
	if s.heldMost > maxHeld+maxHeld/4 {
		t.Errorf("%d MB held, want %d at most", s.heldMost>>20, maxHeld>>20)
	}
	s.released(t)
}

// TestRunErrors ends a Run in every way there is.
func TestRunErrors(t *testing.T) {
	bad := errors.New("bad")
	fill := func() *fakeStream {
		s := newFake()
		for i := range uint64(20000) {
			if i%7 == 0 {
				s.add(&Record{Type: RecordComm, PID: 1, TID: 1, Time: i + 1, Comm: []byte("x")})
			} else {
				s.records = append(s.records, sampleRecord(1, 1, i+1, ContextUser, 1))
			}
			if i%1000 == 999 {
				s.records = append(s.records, round)
			}
		}
		return s
	}
	fault := func() byte { // reads a mapped file beyond its end
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(4096); err != nil {
			t.Fatal(err)
		}
		b, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)
		if err != nil {
			t.Fatal(err)
		}
		defer syscall.Munmap(b)
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		return b[100]
	}
	for _, test := range []struct {
		name string
		want error
		opts func(cancel func(), n *int) Options
		err  error
	}{
		{"stream", bad, nil, bad},
		{"sample", bad, func(_ func(), n *int) Options {
			return Options{Sample: func(*Sample) error {
				if *n++; *n == 5000 {
					return bad
				}
				return nil
			}}
		}, nil},
		{"record", bad, func(_ func(), n *int) Options {
			return Options{Record: func(*Record) error {
				if *n++; *n == 500 {
					return bad
				}
				return nil
			}}
		}, nil},
		{"cancel", context.Canceled, func(cancel func(), n *int) Options {
			return Options{Sample: func(*Sample) error {
				if *n++; *n == 5000 {
					cancel()
				}
				return nil
			}}
		}, nil},
		{"fault while walking", ErrTruncated, func(_ func(), n *int) Options {
			var once sync.Once
			return Options{Prepare: func(x *Sample) uint64 {
				if x.Time > 9000 {
					once.Do(func() { fault() })
				}
				return 0
			}}
		}, nil},
		{"fault while delivering", ErrTruncated, func(_ func(), n *int) Options {
			return Options{Sample: func(x *Sample) error {
				if *n++; *n == 9000 {
					fault()
				}
				return nil
			}}
		}, nil},
		{"fault while reading", ErrTruncated, func(_ func(), n *int) Options {
			return Options{Want: func(_, _ int32, _ string, time uint64) bool {
				if time == 9000 {
					fault()
				}
				return true
			}}
		}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := runtime.NumGoroutine()
			s := fill()
			s.err = test.err
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			var n int
			var o Options
			if test.opts != nil {
				o = test.opts(cancel, &n)
			}
			st, err := Run(ctx, s, o)
			if !errors.Is(err, test.want) {
				t.Errorf("%v, want %v", err, test.want)
			}
			if test.err != nil && st.Samples == 0 {
				t.Errorf("nothing was delivered of what came before: %+v", st)
			}
			settled(t, before)
			if test.name != "fault while reading" {
				s.released(t)
			}
		})
	}
	t.Run("panic", func(t *testing.T) { // is no fault, and nobody's to hide
		var err error
		defer func() {
			if recover() == nil {
				t.Errorf("Guard hides a panic and returns %v", err)
			}
		}()
		err = Guard(func() error { panic("BUG") })
	})
}

// TestRunPrompt delivers what is due although the stream waits.
func TestRunPrompt(t *testing.T) {
	s := newFake()
	s.records = [][]byte{sampleRecord(1, 1, 10), round, sampleRecord(1, 1, 20), round}
	got := make(chan uint64, 10)
	waiting := &waitStream{fakeStream: s, stop: make(chan struct{})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		_, err := Run(ctx, waiting, Options{Prompt: true, Sample: func(x *Sample) error { got <- x.Time; return nil }})
		done <- err
	}()
	select {
	case v := <-got:
		if v != 10 {
			t.Errorf("got %d", v)
		}
	case <-time.After(5 * time.Second):
		s.mu.Lock()
		t.Errorf("while the stream waits, the sample of time 10 is not delivered within 5 s; %d bytes of records are held", s.held)
		s.mu.Unlock()
	}
	cancel() // calls Stop
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	case <-time.After(5 * time.Second):
		t.Fatalf("Run does not end within 5 s of its context (%v); %d samples wait", ctx.Err(), len(got))
	}
	s.released(t)
}

// TestRunForgets: while a stream goes on slowly, the buffers of a burst before are not kept by what was made of their records.
func TestRunForgets(t *testing.T) {
	const burst, later = 1000, 5
	s := newFake()
	s.add(&Record{Type: RecordComm, PID: 1, TID: 1, Time: 1, Comm: []byte("prog")})
	s.add(&Record{Type: RecordMmap2, PID: 1, TID: 1, Time: 1, Addr: 0x1000, Len: 0x1000, Prot: ProtExec, Filename: []byte("/prog")})
	for _, from := range []uint64{10, 3000} { // two rounds of two processors
		for cpu := range uint64(2) {
			for i := range uint64(burst / 4) {
				s.records = append(s.records, sampleRecord(1, 1, from+2*i+cpu, 0x1000))
			}
		}
		s.records = append(s.records, round)
	}
	for i := range uint64(later) {
		s.records = append(s.records, sampleRecord(1, 1, 10000+3*i, 0x1000), sampleRecord(1, 1, 9999+3*i, 0x1000), round)
	}
	made := make(chan weak.Pointer[byte], len(s.records))
	waiting := &waitStream{fakeStream: s, stop: make(chan struct{}), made: made}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	samples := make(chan uint64, burst+2*later)
	go func() {
		_, err := Run(ctx, waiting, Options{Prompt: true, Sample: func(x *Sample) error { samples <- x.Time; return nil }})
		done <- err
	}()
	for range burst {
		select {
		case <-samples:
		case <-time.After(5 * time.Second):
			t.Fatalf("the stream waits, and %d samples of %d have been delivered", len(samples), burst)
		}
	}
	var kept int
	for began := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		runtime.GC()
		kept = 0
		for range len(made) {
			b := <-made
			if made <- b; b.Value() != nil {
				kept++
			}
		}
		if kept <= 3*later || time.Since(began) > 5*time.Second {
			break
		}
	}
	if kept > 3*later { // what came last
		t.Errorf("%d buffers of %d are not freed", kept, len(made))
	}
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("the pipeline ends with %v, want %v", err, context.Canceled)
	}
	s.released(t)
}

// A lossyStream says which processes are gone.
type lossyStream struct {
	*fakeStream
	gone []map[int32]bool // at each call
	now  uint64
}

func (l *lossyStream) Gone(pids []int32) (gone []int32, now uint64) {
	if len(l.gone) > 0 {
		gone = slices.DeleteFunc(pids, func(pid int32) bool { return !l.gone[0][pid] })
		l.gone = l.gone[1:]
	}
	return gone, l.now
}

// TestRunReaps: where records were lost, processes that are gone and never said so end, and no others: not one of the same number that came later, be
// its FORK lost or not, and none before its last samples.
func TestRunReaps(t *testing.T) {
	const second = 1e9
	s := &lossyStream{fakeStream: newFake(), gone: []map[int32]bool{{2: true, 3: true, 4: true}, {2: true, 3: true}}, now: 21 * second}
	fork := func(pid int32, at uint64) {
		s.add(&Record{Type: RecordFork, PID: pid, TID: pid, PPID: 1, PTID: 1, Time: at})
	}
	mmap := func(pid int32, at uint64) {
		s.add(&Record{Type: RecordMmap2, PID: pid, TID: pid, Time: at, Addr: 0x1000, Len: 0x1000, Prot: ProtExec, Filename: []byte("/prog")})
	}
	for pid := range int32(5) {
		fork(pid+1, second)
		mmap(pid+1, second)
	}
	s.records = append(s.records, round, round, sampleRecord(1, 1, 2*second, 0x1000), round, round)
	s.add(&Record{Type: RecordLost, Time: 20 * second, Lost: 1})
	s.records = append(s.records, round, round,
		sampleRecord(2, 2, 20.5*second, 0x1000), round, round) // when they were looked for, it was in a ring
	fork(3, 20.8*second) // another one
	mmap(3, 20.8*second)
	s.records = append(s.records, round, round, sampleRecord(1, 1, 22*second, 0x1000), round, round,
		sampleRecord(2, 2, 23*second, 0x1000), sampleRecord(3, 3, 23*second, 0x1000), sampleRecord(4, 4, 23*second, 0x1000),
		sampleRecord(5, 5, 23*second, 0x1000), round, round)
	mapped := map[string]bool{}
	_, err := Run(t.Context(), s, Options{
		Mods: func(path, _ string) *unwind.Module { return unwind.NewModule(path, "", nil) },
		Sample: func(x *Sample) error {
			mapped[fmt.Sprintf("%d at %g", x.PID, float64(x.Time)/second)] = len(x.User) > 0 && x.User[0].Mapping != nil
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"1 at 2": true, "2 at 20.5": true, "1 at 22": true, "2 at 23": false, "3 at 23": true, "4 at 23": true, "5 at 23": true}
	if !maps.Equal(mapped, want) {
		t.Errorf("mappings known: %v, want %v", mapped, want)
	}
	if len(s.gone) > 0 {
		t.Errorf("asked %d times less than twice", len(s.gone))
	}
}

// A waitStream waits at its end until it is stopped.
type waitStream struct {
	*fakeStream
	stop chan struct{}
	made chan<- weak.Pointer[byte] // of each Buffer, if not nil
}

func (w *waitStream) Stop() { close(w.stop) }
func (w *waitStream) Next() ([]byte, *Buffer, error) {
	raw, buf, err := w.fakeStream.Next()
	if err == io.EOF {
		<-w.stop
	}
	if w.made != nil && buf != nil {
		w.made <- weak.Make(&buf.Bytes[0])
	}
	return raw, buf, err
}

// TestRunCounts holds the counts of what is lost, late, unknown or damaged.
func TestRunCounts(t *testing.T) {
	s := newFake()
	s.add(&Record{Type: RecordComm, PID: 1, TID: 1, Comm: []byte("x")}) // time 0
	s.add(&Record{Type: RecordLost, Lost: 5, Time: 1})
	s.records = append(s.records,
		record(RecordLostSamples, 0, 7, 1<<32|1, 2),
		record(RecordLostSamples, 0, 6, 1<<32|1, 0),           // a sum, of which LOST has 5
		record(RecordLostSamples, MiscLostBPF, 9, 1<<32|1, 0), // none
		record(RecordThrottle, 0, 3, 1, 1, 1<<32|1, 3),
		record(99, 0), record(200, 0, 1, 2),
		record(40, 0, 1<<32|1, 4),
		sampleRecord(1, 1, 50, ContextUser, 1),
		record(RecordSample, 0, 1),             // too short
		record(RecordComm, 0),                  // without a trailer
		sampleRecord(2, 2, 60, ContextUser, 1), // of a process without beginning
		sampleRecord(1, 1, 70, ContextUser, 1), // unwanted
		round, sampleRecord(1, 1, 80), round, round,
		sampleRecord(1, 1, 55, ContextUser, 1), // too late
		sampleRecord(1, 1, 0, ContextKernel, 1<<63),
	)
	st, err := Run(context.Background(), s, Options{Want: func(_, _ int32, _ string, time uint64) bool { return time != 70 }})
	if err != nil {
		t.Fatal(err)
	}
	want := Stats{Records: 15, Samples: 5, Unwanted: 1, Frames: 4, Lost: 5, LostSamples: 8, Throttled: 1, Unknown: 3, Bad: 2, BadErr: st.BadErr,
		Disordered: 1, NoTime: 1, Orphans: 1, First: 50, Last: 80, Stops: st.Stops}
	if st != want || !errors.Is(st.BadErr, ErrMalformed) {
		t.Errorf(" got %+v\nwant %+v", st, want)
	}
	s.released(t)
}

// TestRunDeferred joins user callchains that the kernel records later with their samples.
func TestRunDeferred(t *testing.T) {
	s := newFake()
	late := func(time, cookie uint64, chain ...uint64) []byte {
		b := append([]uint64{cookie, uint64(len(chain))}, chain...)
		return record(RecordCallchainDeferred, 0, append(b, 1<<32|1, time)...)
	}
	s.records = [][]byte{
		sampleRecord(1, 1, 10, ContextKernel, 1<<63|1, ContextUserDeferred, 777),
		sampleRecord(1, 1, 11, ContextKernel, 1<<63|2, ContextUserDeferred, 777), // both wait for one
		sampleRecord(1, 1, 12, ContextKernel, 1<<63|3, ContextUserDeferred, 888), // it never comes
		late(15, 777, ContextUser, 0x1000, 0x2000),
		round,
		sampleRecord(1, 1, 20, ContextUser, 0x3000),
		late(30, 999, 0x4000),
		round,
	}
	var got []string
	st, err := Run(context.Background(), s, Options{Sample: func(x *Sample) error {
		line := fmt.Sprintf("%d %v %x", x.Time, x.From, x.Kernel)
		for i := range x.User {
			line += fmt.Sprintf(" %#x", uint64(x.User[i].PC))
		}
		got = append(got, line)
		return nil
	}})
	want := []string{
		"10 deferred [8000000000000001] 0x1000 0x2000",
		"11 deferred [8000000000000002] 0x1000 0x2000",
		"12 none [8000000000000003]",
		"20 recorded [] 0x3000",
	}
	if err != nil || !slices.Equal(got, want) || st.Undeferred != 1 {
		t.Errorf("%v, %+v\n got %q\nwant %q", err, st, got, want)
	}
	s.released(t)

	s = newFake() // more of them than are remembered
	for i := range uint64(3 * maxLate) {
		s.records = append(s.records, late(i+1, i, 0x1000))
	}
	if _, err := Run(context.Background(), s, Options{}); err != nil {
		t.Error(err)
	}
	s.released(t)
}

// FuzzRun gives Run any records.
func FuzzRun(f *testing.F) {
	seed := newFake()
	seed.add(&Record{Type: RecordMmap2, PID: 1, TID: 1, Time: 1, Addr: 0x1000, Len: 0x1000, Prot: ProtExec, Filename: []byte("/a")})
	seed.add(&Record{Type: RecordFork, PID: 2, TID: 2, PPID: 1, PTID: 1, Time: 2})
	seed.records = append(seed.records, sampleRecord(2, 2, 3, ContextUser, 0x1100), round)
	f.Add(testAttr.Append(nil), bytes.Join(seed.records, nil))
	dwarf := Attr{SampleType: SampleIP | SampleTID | SampleTime | SampleRegsUser | SampleStackUser, SampleRegsUser: 0xff0fff, Flags: FlagSampleIDAll}
	f.Add(dwarf.Append(nil), bytes.Join(seed.records, nil))
	f.Fuzz(func(t *testing.T, attr, b []byte) {
		a, err := ParseAttr(attr)
		if err != nil {
			return
		}
		s := &fakeStream{dec: NewDecoder()}
		s.dec.AddAttr(&a, nil, "")
		for len(b) >= headerSize {
			n := min(max(int(binary.LittleEndian.Uint16(b[6:])), headerSize), len(b))
			s.records = append(s.records, b[:n])
			b = b[n:]
		}
		n := uint64(0)
		st, err := Run(context.Background(), s, Options{
			Workers: 2,
			Sample: func(x *Sample) error {
				n++
				w := s.dec.Events()[x.Event].Attr.Walked()
				AppendSample(nil, &w, x)
				for i := range x.User {
					_ = unwind.Stop(x.User[i].How).String()
				}
				return nil
			},
			Record: func(*Record) error { return nil },
		})
		if err != nil || st.Samples != n {
			t.Errorf("%v, %d samples, %+v", err, n, st)
		}
		s.released(t)
	})
}
