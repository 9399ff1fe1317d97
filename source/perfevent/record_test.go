package perfevent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
)

var workload struct {
	once sync.Once
	path string
	err  error
}

// work compiles testdata/work.c once.
func work(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "cc")
	workload.once.Do(func() {
		dir, err := os.MkdirTemp("", "perfevent")
		if err != nil {
			workload.err = err
			return
		}
		os.Chmod(dir, 0o755)
		workload.path = filepath.Join(dir, "work")
		out, err := exec.Command("cc", "-O1", "-fomit-frame-pointer", "-pthread", "-o", workload.path, "testdata/work.c").CombinedOutput()
		if err != nil {
			workload.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if workload.err != nil {
		t.Fatal(workload.err)
	}
	return workload.path
}

func TestMain(m *testing.M) {
	code := m.Run()
	if workload.path != "" && os.Getenv(asNobody) == "" {
		os.RemoveAll(filepath.Dir(workload.path))
	}
	os.Exit(code)
}

// What source.Run saw of a recording.
type seen struct {
	source.Stats
	byTID, byPID map[int32]int
	comms        map[string]int
	disorder     int
	cut          int // stack copies that are full to the brim
	stacks       int
	mapped       int // samples whose PC lies in a mapping
	kernel       int
	cpus         map[uint32]int
}

// most is how many samples a thread that computes all the time can have had.
func (s *seen) most() int {
	return int(float64(s.Last-s.First)*1e-9*DefaultFrequency*1.1) + 20
}

// held returns for how long threads of this process, in all, could have run and did not, for others had the processors (the second number
// of schedstat, in nanoseconds).
func held(t *testing.T) (sum time.Duration) {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		var ran, waited int64
		b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/schedstat")
		if err != nil {
			continue // it has ended
		}
		if _, err := fmt.Sscan(string(b), &ran, &waited); err != nil {
			t.Fatalf("schedstat %q: %v", b, err)
		}
		sum += time.Duration(waited)
	}
	return sum
}

func run(t *testing.T, r *Recorder) seen {
	t.Helper()
	before := held(t)
	s := seen{byTID: map[int32]int{}, byPID: map[int32]int{}, comms: map[string]int{}, cpus: map[uint32]int{}}
	var last uint64
	var err error
	s.Stats, err = source.Run(context.Background(), r, source.Options{Machine: r.Machine(), Sample: func(p *source.Sample) error {
		if p.TID != -1 { // a thread that ends has no number any more (kernel/events/core.c, perf_event_pid_type)
			s.byTID[p.TID]++
			s.byPID[p.PID]++
		}
		s.comms[p.Comm]++
		s.cpus[p.CPU]++
		if p.Time < last {
			s.disorder++
		}
		last = p.Time
		if len(p.Record.Stack) > 0 {
			s.stacks++
			if p.Record.StackDyn >= uint64(len(p.Record.Stack)) {
				s.cut++
			}
		}
		if len(p.Kernel) > 0 {
			s.kernel++
		}
		if len(p.User) > 0 && p.User[0].Mapping != nil {
			s.mapped++
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	t.Logf("%s %q: %+v; %+v; comms %v", r.Event(), r.EventNote(), r.Stats(), s.Stats, s.comms)
	// A ring that nobody empties is full after so long. Where others had the processors for longer, what is lost is theirs.
	st := r.Stats()
	ring := time.Duration(float64(time.Second) * float64(st.RingSize) / float64(max(st.StackSize, 1)) / DefaultFrequency)
	late := held(t) - before
	if (s.Lost+s.LostSamples)*100 > s.Records && late < ring {
		t.Errorf("%s: of %d records %d and %d are lost, and this process never waited for a processor for longer than %v; a ring of %d bytes lasts %v: %+v",
			r.Event(), s.Records, s.Lost, s.LostSamples, late, st.RingSize, ring, st)
	}
	if st.Lost != s.Lost {
		t.Errorf("%s: the rings' records say that %d were lost, the stream's %d", r.Event(), st.Lost, s.Lost)
	}
	if s.Bad+s.Unknown+s.Disordered > 0 || s.disorder > 0 {
		t.Errorf("%s: bad %d (%v), unknown %d, out of order %d and %d: %+v", r.Event(), s.Bad, s.BadErr, s.Unknown, s.Disordered, s.disorder, st)
	}
	return s
}

// canRecord skips the test where perf events are refused.
func canRecord(t *testing.T) {
	t.Helper()
	r := open(t, Options{PIDs: []int{os.Getpid()}})
	r.Close()
}

func open(t *testing.T, o Options) *Recorder {
	t.Helper()
	r, err := Open(context.Background(), o)
	if errors.Is(err, os.ErrPermission) {
		oracle.Lacks(t, "the permission to record: "+err.Error())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// between fails unless n is near what is expected of CPU time at a frequency. The machine may be busy, and the
// kernel's own idea of a frequency takes some time to settle, so the lower bound is low.
func between(t *testing.T, what string, n, lo, hi int) {
	t.Helper()
	if n < lo || n > hi {
		t.Errorf("%s: %d, want %d to %d", what, n, lo, hi)
	}
}

func TestCommand(t *testing.T) {
	w := work(t)
	r := open(t, Options{Command: []string{w, "spin", "0.5"}})
	s := run(t, r)
	st, err := r.Wait()
	if err != nil || !st.Success() {
		t.Errorf("%v, %v", st, err)
	}
	between(t, "samples, with those that were lost", int(s.Samples+s.Lost+s.LostSamples), 300, s.most())
	if s.comms["work"] != int(s.Samples) || len(s.byPID) != 1 {
		t.Errorf("samples of others: %v", s.comms)
	}
	if s.Orphans > 0 {
		t.Errorf("%d samples from before the execve", s.Orphans)
	}
	if s.mapped < int(s.Samples)-s.kernel*2-2 {
		t.Errorf("%d of %d samples in a mapping", s.mapped, s.Samples)
	}
	if s.cut > 0 {
		t.Errorf("%d of %d stacks cut", s.cut, s.stacks)
	}
}

func TestCommandThreadsAndForks(t *testing.T) {
	w := work(t)
	s := run(t, open(t, Options{Command: []string{w, "threads", "0.4"}}))
	if len(s.byTID) != 5 && len(s.byTID) != 4 || len(s.byPID) != 1 {
		t.Errorf("threads %v", s.byTID) // the one that only waits may have no sample
	}
	s = run(t, open(t, Options{Command: []string{w, "fork", "0.4"}}))
	if len(s.byPID) < 3 || len(s.byPID) > 4 || s.comms["exe"]+s.comms["work"] != int(s.Samples) || s.comms["exe"] == 0 {
		t.Errorf("processes %v, comms %v", s.byPID, s.comms)
	}
	if s.Orphans > 0 {
		t.Errorf("%d orphans", s.Orphans)
	}
}

func TestCommandStatus(t *testing.T) {
	r := open(t, Options{Command: []string{work(t), "exit"}})
	run(t, r)
	if st, err := r.Wait(); err != nil || st.ExitCode() != 7 {
		t.Errorf("%v, %v", st, err)
	}
	_, err := Open(context.Background(), Options{Command: []string{"no-such-command-here"}})
	if !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("%v", err)
	}
	bad := filepath.Join(t.TempDir(), "notelf")
	os.WriteFile(bad, []byte("\x7fELF nonsense"), 0o755)
	if _, err = Open(context.Background(), Options{Command: []string{bad}}); err == nil || !strings.Contains(err.Error(), bad) {
		t.Errorf("%v", err)
	}
}

// TestStop ends a recording whose command would go on.
func TestStop(t *testing.T) {
	r := open(t, Options{Command: []string{work(t), "spin", "1000"}})
	stopped := make(chan time.Time, 1)
	go func() {
		stat := fmt.Sprintf("/proc/%d/schedstat", r.cmd.Process.Pid)
		for ran := int64(0); ran < int64(300*time.Millisecond); time.Sleep(5 * time.Millisecond) {
			b, err := os.ReadFile(stat)
			if err != nil {
				break // it has ended by itself
			}
			fmt.Sscan(string(b), &ran)
		}
		stopped <- time.Now()
		r.Stop()
		r.Stop()
	}()
	s := run(t, r)
	start := <-stopped
	between(t, "samples", int(s.Samples), 20, s.most())
	if r.TimedOut() {
		t.Errorf("a recording without a duration says that its duration was over: %d samples, Stop was called %v ago", s.Samples, time.Since(start).Round(time.Millisecond))
	}
	if st, _ := r.Wait(); st.ExitCode() != -1 || st.String() != "signal: terminated" {
		t.Errorf("%v", st)
	}
	r = open(t, Options{Command: []string{"sleep", "1000"}, Duration: 100 * time.Millisecond})
	opened := time.Now()
	if run(t, r); !r.TimedOut() {
		t.Errorf("a recording of 100 ms ended after %v, and does not say that its duration was over; it was told to end: %v", time.Since(opened).Round(time.Millisecond), r.stop.Load())
	}
	r = open(t, Options{Command: []string{"false"}, Duration: time.Hour})
	run(t, r)
	r.Wait()
	r.finish(true) // the duration is over while whoever records still writes
	if r.TimedOut() {
		t.Errorf("a recording whose command has ended (%v) says that its duration was over", r.cmd.ProcessState)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r, err := Open(ctx, Options{Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	for {
		if _, _, err = r.Next(); err != nil {
			break
		}
	}
	if err != io.EOF {
		t.Errorf("Next after cancel = %v, want %v", err, io.EOF)
	}
	r.Close()
	if d := time.Since(start); d > time.Minute { // of a thousand seconds
		t.Errorf("it took %v", d)
	}
	if _, err := Open(ctx, Options{Command: []string{"true"}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Open after cancel = %v, want %v", err, context.Canceled)
	}
}

// spawn starts the workload by itself. In mode wait, finish makes it go on, and waits for its end.
func spawn(t *testing.T, args ...string) (pid int, finish func()) {
	t.Helper()
	cmd := exec.Command(work(t), args...)
	in, _ := cmd.StdinPipe()
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reap := sync.OnceFunc(func() { cmd.Wait() })
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); reap() })
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, func() { in.Close(); reap() }
}

func TestProcess(t *testing.T) {
	pid, finish := spawn(t, "wait", "0.5")
	r := open(t, Options{PIDs: []int{pid}})
	go finish()
	s := run(t, r) // to its end
	computing := 0
	for tid, n := range s.byTID { // the thread that only waits for its own has few samples or none
		between(t, fmt.Sprint("samples of thread ", tid), n, 0, s.most())
		if n >= 5 {
			computing++
		}
	}
	if computing != 4 || len(s.byPID) != 1 || s.Orphans > 0 {
		t.Errorf("threads %v, want 4 that compute; %d orphans", s.byTID, s.Orphans)
	}
}

// TestBreedingProcess attaches to a process that makes threads all the time: none may be sampled twice, which
// would show as two samples at nearly the same time.
func TestBreedingProcess(t *testing.T) {
	pid, _ := spawn(t, "breed", "2")
	r := open(t, Options{PIDs: []int{pid}, Duration: 700 * time.Millisecond})
	last := map[int32]uint64{}
	close, n := 0, 0
	_, err := source.Run(context.Background(), r, source.Options{Sample: func(p *source.Sample) error {
		n++
		if p.Time-last[p.TID] < 200_000 {
			close++
		}
		last[p.TID] = p.Time
		return nil
	}})
	t.Logf("%d samples of %d threads, %d too close; %+v", n, len(last), close, r.Stats())
	if err != nil || n < 100 || close > n/20 {
		t.Errorf("%d of %d samples too close, %v", close, n, err)
	}
}

func TestThread(t *testing.T) {
	pid, finish := spawn(t, "wait", "0.4")
	r := open(t, Options{TIDs: []int{pid}})
	go finish()
	s := run(t, r)
	if len(s.byTID) != 1 || s.byTID[int32(pid)] < 20 {
		t.Errorf("threads %v", s.byTID)
	}
}

func TestAll(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("for root")
	}
	pid, finish := spawn(t, "wait", "0.6")
	go finish()
	r := open(t, Options{All: true, Duration: 400 * time.Millisecond})
	s := run(t, r)
	if s.byPID[int32(pid)] < 50 || s.comms["work"] < 50 || s.Orphans > s.Samples/20 {
		t.Errorf("processes %v, %d orphans", s.byPID, s.Orphans)
	}
	s = run(t, open(t, Options{All: true, Command: []string{work(t), "spin", "0.3"}}))
	if s.comms["work"] < 20 {
		t.Errorf("comms %v", s.comms)
	}
}

func TestGoneProcess(t *testing.T) {
	canRecord(t)
	for i := range 20 {
		cmd := exec.Command(work(t), "spin", "0.01")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		r, err := Open(context.Background(), Options{PIDs: []int{cmd.Process.Pid}})
		if err != nil { // only a process that nobody has waited for is sure to have a number
			t.Fatal(err)
		}
		run(t, r)
		cmd.Wait()
		for _, o := range []Options{{PIDs: []int{cmd.Process.Pid}}, {TIDs: []int{cmd.Process.Pid}}} {
			if _, err := Open(context.Background(), o); err == nil || !strings.Contains(err.Error(), "no such") {
				t.Errorf("%v", err)
			}
		}
	}
}

func TestEvents(t *testing.T) {
	w := work(t)
	for _, c := range []struct {
		event, mode string
		least       int
	}{
		{"cpu-clock", "spin", 20}, {"cpu-clock:u", "spin", 20}, {"task-clock", "spin", 20}, {"page-faults", "faults", 10},
		{"minor-faults:u", "faults", 10}, {"", "deep", 20},
	} {
		r := open(t, Options{Event: c.event, Command: []string{w, c.mode, "0.3"}})
		s := run(t, r)
		between(t, c.event, int(s.Samples), c.least, 1<<20)
		if c.mode == "deep" && s.cut < int(s.Samples)/2 {
			t.Errorf("%d of %d stacks are cut", s.cut, s.Samples)
		}
	}
	r, err := Open(context.Background(), Options{Event: "cycles:u", Command: []string{w, "spin", "0.2"}})
	if err == nil {
		run(t, r)
	} else if !strings.Contains(err.Error(), "this machine lacks it") {
		t.Error(err)
	}
	if os.Geteuid() == 0 {
		s := run(t, open(t, Options{Event: "context-switches", Period: 1, Command: []string{"sleep", "0.1"}}))
		between(t, "context-switches", int(s.Samples), 1, 100)
		s = run(t, open(t, Options{Event: "cpu-clock", Kernel: true, Command: []string{w, "faults", "0.3"}}))
		if s.kernel != int(s.Samples) || s.kernel == 0 {
			t.Errorf("%d of %d in the kernel", s.kernel, s.Samples)
		}
		if _, err := kernelPlaces.events(); err == nil {
			s = run(t, open(t, Options{Event: "sched:sched_switch", Command: []string{"sleep", "0.1"}}))
			between(t, "sched_switch", int(s.Samples), 1, 100)
		} else {
			t.Log(err)
		}
	}
}

func TestOptions(t *testing.T) {
	canRecord(t)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "nothing to record"},
		{Options{All: true, PIDs: []int{1}}, "exclude"},
		{Options{Command: []string{"true"}, Frequency: 1, Period: 1}, "exclude each other"},
		{Options{Command: []string{"true"}, StackSize: 9}, "multiple of 8"},
		{Options{Command: []string{"true"}, StackSize: 65536}, "multiple of 8"},
		{Options{PIDs: []int{-1}}, "no such process"},
		{Options{PIDs: []int{1 << 30}}, "no such process"},
		{Options{Command: []string{"true"}, Event: "cycels"}, "did you mean cycles"},
		{Options{Command: []string{"true"}, Event: "cpu-clock:u", Kernel: true}, "leave nothing to record"},
		{Options{Command: []string{"true"}, Event: "context-switches:u"}, "in the kernel"},
	} {
		r, err := Open(context.Background(), c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
		if r != nil {
			r.Close()
		}
	}
	for _, o := range []Options{{Frequency: 1 << 40}, {Period: 1}} {
		o.Command, o.Event = []string{"true"}, "cpu-clock"
		r := open(t, o)
		if n := r.EventNote(); o.Frequency > 0 && !strings.Contains(n, "max_sample_rate") || !strings.Contains(n, "at most 20000 times a second") {
			t.Errorf("note %q", n)
		}
	}
}

// computes waits until a process has computed for so long, for a minute at most.
func computes(pid int, long time.Duration) {
	ran := func() (ns int64) {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		fmt.Sscan(string(b), &ns)
		return ns
	}
	for from, until := ran(), time.Now().Add(time.Minute); ran() < from+int64(long) && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// TestBegin: mappings that are read while a program runs hold from then on. So samples from before are none of the recording, and do not wait for
// whoever takes records when all has been read. The command that ends the recording starts after: it has samples.
func TestBegin(t *testing.T) {
	pid, _ := spawn(t, "wait", "0")
	spin := exec.Command(work(t), "spin", "1000")
	if err := spin.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { spin.Process.Kill(); spin.Wait() })
	for _, o := range []Options{
		{PIDs: []int{spin.Process.Pid, pid}},
		{PIDs: []int{spin.Process.Pid}, Command: []string{work(t), "spin", "0.2"}},
		{All: true, Command: []string{work(t), "spin", "0.2"}},
	} {
		var drained, read uint64
		var rounds atomic.Int64
		o.round = func() { rounds.Add(1) }
		o.read = func() { // not before the program has computed, and the rings have been read since
			computes(spin.Process.Pid, 50*time.Millisecond)
			drained = monotonic()
			for whole, until := rounds.Load()+2, time.Now().Add(time.Minute); rounds.Load() < whole; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Errorf("%v %v: a minute after the program has computed, the rings have been read %d times, want %d", o.PIDs, o.Command, rounds.Load(), whole)
					break
				}
			}
			read = monotonic()
		}
		r := open(t, o)
		waiting := 0
		r.queue.mu.Lock()
		for _, b := range r.queue.batches {
			for raw := b.b; len(raw) > 0; {
				var one []byte
				if one, raw = cutRecord(raw); binary.LittleEndian.Uint32(one) == source.RecordSample && binary.LittleEndian.Uint64(one[r.timeAt:]) < drained {
					waiting++
				}
			}
		}
		r.queue.mu.Unlock()
		if waiting > 0 {
			t.Errorf("%v %v: %d samples wait that are older than the mappings", o.PIDs, o.Command, waiting)
		}
		if o.Command == nil {
			go func() { computes(spin.Process.Pid, 50*time.Millisecond); r.Stop() }()
		}
		n, early, command := 0, 0, 0
		_, err := source.Run(context.Background(), r, source.Options{Sample: func(p *source.Sample) error {
			if n++; p.Time < read {
				early++
			}
			if r.cmd != nil && int(p.PID) == r.cmd.Process.Pid {
				command++
			}
			return nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		r.Close()
		if n == 0 || early > 0 || o.All && command == 0 {
			t.Errorf("%v %v: %d of %d samples are older than the mappings, %d are the command's", o.PIDs, o.Command, early, n, command)
		}
	}
}

// TestCutWait: what had begun before the recording, of a wait that ends in it, is not counted, and is said to be cut off.
func TestCutWait(t *testing.T) {
	const began = 500
	id := uint64(source.WalkedID)
	sample := func(misc uint16, time, period uint64) []byte {
		var body []byte
		for _, v := range []uint64{id, 0x1000, 5 | 6<<32, time, 1, period, 0} {
			body = binary.LittleEndian.AppendUint64(body, v)
		}
		b := record(source.RecordSample, body)
		binary.LittleEndian.PutUint16(b[4:], misc)
		return b
	}
	const user, begin, end = source.MiscUser, source.MiscCutBegin, source.MiscCutEnd
	for _, c := range []struct {
		kind       source.TriggerKind
		began      uint64
		misc       uint16
		time, took uint64
		left       uint64
		says       uint16
	}{
		{source.OnBlocking, began, user, 900, 399, 399, user},
		{source.OnBlocking, began, user, 900, 400, 400, user},
		{source.OnBlocking, began, user, 900, 401, 400, user | begin},
		{source.OnBlocking, began, user | source.MiscNoWaker, 900, 5000, 400, user | begin | source.MiscNoWaker},
		{source.OnBlocking, began, user | end, 900, 600, 400, user | begin | end},
		{source.OnBlocking, began, user | begin, 900, 300, 300, user | begin},
		{source.OnBlocking, began, user, 500, 1, 0, user | begin},
		{source.OnBlocking, began, user | source.MiscWaker, 900, 0, 0, user | source.MiscWaker},
		{source.OnBlocking, began, user | source.MiscWeighted, 900, 5000, 5000, user | source.MiscWeighted},
		{source.OnBlocking, 0, user, 900, 5000, 5000, user},             // nothing was there before
		{source.OnEvents, began, user, 900, 1_000_000, 1_000_000, user}, // a number of events
	} {
		r := &Recorder{queue: newBacklog(memoryOf(1 << 62).backlog), timeAt: recordHeader + 3*8, trigger: source.Trigger{Kind: c.kind}}
		r.began.Store(c.began)
		r.queue.put(batch{b: append(sample(user, 499, 100), sample(c.misc, c.time, c.took)...)})
		if c.began == 0 {
			r.Next()
		}
		raw, _, err := r.Next()
		want := sample(c.says, c.time, c.left)
		if err != nil || !bytes.Equal(raw, want) {
			t.Errorf("%+v: %v\n got %x\nwant %x", c, err, raw, want)
		}
	}
	// Where waits are a second event, only they are times.
	for of, left := range map[uint64]uint64{source.WalkedID: 5000, 3: 5000, source.WaitID: 400, source.WaitCopyID: 400} {
		id = of
		r := &Recorder{queue: newBacklog(memoryOf(1 << 62).backlog), timeAt: recordHeader + 3*8, trigger: source.Trigger{Waits: true}}
		r.began.Store(began)
		r.queue.put(batch{b: sample(user, 900, 5000)})
		raw, _, err := r.Next()
		if got := binary.LittleEndian.Uint64(raw[pastPeriod-8:]); err != nil || got != left {
			t.Errorf("ID %#x: %d, %v, want %d", of, got, err, left)
		}
	}
}
