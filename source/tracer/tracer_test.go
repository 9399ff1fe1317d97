package tracer

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

var workload struct {
	sync.Once
	dir, path string
	err       error
}

func TestMain(m *testing.M) {
	status := m.Run()
	if workload.dir != "" {
		os.RemoveAll(workload.dir)
	}
	os.Exit(status)
}

// work compiles the workload.
func work(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "gcc")
	workload.Do(func() {
		if workload.dir, workload.err = os.MkdirTemp("", "unspool-tracer"); workload.err != nil {
			return
		}
		workload.path = filepath.Join(workload.dir, "work")
		out, err := exec.Command("gcc", "-O1", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", workload.path, "testdata/work.c").CombinedOutput()
		if err != nil {
			workload.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if workload.err != nil {
		t.Fatal(workload.err)
	}
	return workload.path
}

// spawn starts the workload and waits until it says so. What it returns reads the rest of what it says.
func spawn(t testing.TB, args ...string) (pid int, out *bufio.Reader) {
	t.Helper()
	cmd := exec.Command(work(t), args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait()
		r.Close()
	})
	out = bufio.NewReader(r)
	if line, err := out.ReadString('\n'); err != nil {
		t.Fatalf("%v: %q, %v", cmd, line, err)
	}
	return cmd.Process.Pid, out
}

// open starts a recording.
func open(t testing.TB, o Options) *Recorder {
	t.Helper()
	r, err := Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	return r
}

// A got is what a recording had.
type got struct {
	source.Stats
	stacks  map[string]int // "comm;outermost;…;innermost"
	byPID   map[int32]map[string]int
	pids    map[int32]int
	tids    map[int32]int
	records map[uint32]int
}

var set = sync.OnceValue(modules.New)

// run reads a recording to its end. each is called with each sample.
func run(t testing.TB, r *Recorder, each func(s *source.Sample, stack string)) got {
	t.Helper()
	g := got{stacks: map[string]int{}, byPID: map[int32]map[string]int{}, pids: map[int32]int{}, tids: map[int32]int{}, records: map[uint32]int{}}
	names := symbol.New(symbol.Options{})
	var err error
	g.Stats, err = source.Run(context.Background(), r, source.Options{
		Mods: set().Module, Machine: r.Machine(), Prompt: true,
		Sample: func(s *source.Sample) error {
			stack := s.Comm
			for i := range s.User {
				stack += ";" + name(names, &s.User[len(s.User)-1-i])
			}
			g.stacks[stack]++
			if g.pids[s.PID]++; g.pids[s.PID] == 1 {
				g.byPID[s.PID] = map[string]int{}
			}
			g.byPID[s.PID][stack]++
			g.tids[s.TID]++
			if each != nil {
				each(s, stack)
			}
			return nil
		},
		Record: func(r *source.Record) error { g.records[r.Type]++; return nil },
	})
	if err != nil {
		t.Error(err)
	}
	if g.Bad+g.Unknown+g.Disordered+g.Orphans+g.NoTime > 0 {
		t.Errorf("%+v", g.Stats)
	}
	return g
}

func name(names *symbol.Resolver, f *unwind.Frame) string {
	if f.Mapping == nil {
		return "?"
	}
	table := names.Module(f.Mapping.Module.Path, f.Mapping.Module.BuildID)
	v, ok := table.OffToVaddr(f.Mapping.FileOff(f.Addr()))
	if !ok {
		return "?"
	}
	return table.Resolve([]arch.Vaddr{v})[0].Name
}

// has returns how many samples have all of parts in this order.
func (g *got) has(parts ...string) (n int) {
next:
	for s, k := range g.stacks {
		for _, p := range parts {
			i := strings.Index(s, p)
			if i < 0 {
				continue next
			}
			s = s[i+len(p):]
		}
		n += k
	}
	return n
}

func (g *got) String() string {
	var b strings.Builder
	for s, n := range g.stacks {
		fmt.Fprintf(&b, "%6d %s\n", n, s)
	}
	return b.String()
}

// A command is recorded with its threads and children, through fork, vfork and execve, and its status is passed on.
func TestCommand(t *testing.T) {
	r := open(t, Options{Command: []string{work(t), "family"}})
	g := run(t, r, nil)
	ws, ok := r.Wait()
	if !ok || ws.ExitStatus() != 23 {
		t.Errorf("%v, status %v", ok, ws)
	}
	for _, want := range [][]string{
		{"work;", ";main;", "in_first"}, {"named;", ";start_thread;", "in_thread"}, {"work;", ";main;", "in_child"}, {"executed;", ";main;", "in_executed"},
	} {
		if g.has(want...) == 0 {
			t.Errorf("no sample of %v\n%v%+v", want, g.String(), g.Stats)
		}
	}
	if whole := g.Stops[unwind.Outermost]; whole*10 < g.Samples*9 || len(g.pids) < 3 {
		t.Errorf("%d of %d samples are whole, of %d processes\n%v", whole, g.Samples, len(g.pids), g.String())
	}
	for typ, least := range map[uint32]int{source.RecordFork: 3, source.RecordExit: 4, source.RecordComm: 3, source.RecordMmap2: 6} {
		if g.records[typ] < least {
			t.Errorf("%d records of type %d", g.records[typ], typ)
		}
	}
}

// A program that a second thread executes is sampled from its beginning, however long the first thread, whose number it gets, has run.
func TestHeir(t *testing.T) {
	r := open(t, Options{Command: []string{work(t), "heir"}})
	g := run(t, r, nil)
	if ws, ok := r.Wait(); !ok || ws.ExitStatus() != 22 || g.has("executed;", ";main;", "in_executed") == 0 {
		t.Errorf("%v, status %v\n%v", ok, ws, g.String())
	}
}

// A process that runs already is recorded with the threads that it has and makes; threads that do not run are not sampled.
// Afterwards it goes on untraced.
func TestProcess(t *testing.T) {
	pid, _ := spawn(t, "threads", "2")
	r := open(t, Options{PIDs: []int{pid}})
	busy, n := map[string]bool{}, 0
	g := run(t, r, func(_ *source.Sample, stack string) {
		if strings.Contains(stack, "spin") {
			busy[stack] = true
			if n++; n == 20 {
				r.Stop()
			}
		}
	})
	if len(g.tids) < 2 || g.has("start_thread;", "spin") == 0 || g.has("asleep") > 0 {
		t.Errorf("%v\n%v", g.tids, g.String())
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	released(t, pid)
}

// Threads that begin and end meanwhile do not keep their process from being recorded.
func TestChurn(t *testing.T) {
	pid, _ := spawn(t, "churn")
	for range 50 {
		open(t, Options{PIDs: []int{pid}}).Close()
	}
	released(t, pid)
}

// Threads that run on a signal's stack are seen with the stack that they began with.
func TestAlternate(t *testing.T) {
	pid, _ := spawn(t, "alternate")
	r := open(t, Options{PIDs: []int{pid}})
	n := 0
	g := run(t, r, func(*source.Sample, string) {
		if n++; n == 40 {
			r.Stop()
		}
	})
	first, other := g.has(";main;", "alternate;", "in_handler"), g.has("start_thread;", "alternate;", "in_handler")
	if whole := g.Stops[unwind.Outermost]; int(whole) < n-4 || first == 0 || other == 0 { // those before the handler began are others
		t.Errorf("%d of %d are whole, %d of main, %d of the other\n%v", whole, n, first, other, g.String())
	}
}

// One thread that runs is sampled although thousands do not, and Stop is heard at once.
func TestThousands(t *testing.T) {
	pid, _ := spawn(t, "asleep", "5000")
	ticks := func() float64 { u, k := times(t, pid); return u + k } // of 10 ms
	// Where others want the processors, too, the tracer is late for many ticks: of three attempts, one is to have a quarter. It has a tenth if a
	// thread that runs is forgotten with each stop.
	for attempt := 1; ; attempt++ {
		began := time.Now()
		r := open(t, Options{PIDs: []int{pid}})
		opened := time.Since(began)
		before, n := ticks(), 0
		var stopped time.Time
		g := run(t, r, func(*source.Sample, string) {
			if n++; n == 50 {
				stopped = time.Now()
				r.Stop()
			}
		})
		took, used := time.Since(stopped), ticks()-before
		t.Logf("open %v, stop %v, %d samples of %.0f ms", opened, took, n, 10*used)
		if g.has("main;", "spin") < 50 || took > 10*time.Second {
			t.Fatalf("%d samples, stopped after %v\n%v", n, took, g.String())
		}
		released(t, pid)
		if float64(n) >= used/4 {
			return
		}
		if attempt == 3 {
			t.Fatalf("%d samples of %.0f ms\n%v", n, 10*used, g.String())
		}
	}
}

// A single thread is recorded, and nothing else.
func TestThread(t *testing.T) {
	pid, _ := spawn(t, "threads", "2")
	tids, err := procfs.Threads(pid)
	if err != nil || len(tids) < 3 {
		t.Fatalf("Threads(%d) = %v, %v, want 3 or more", pid, tids, err)
	}
	slices.Sort(tids)
	tid := tids[1] // the first that main has started
	r := open(t, Options{TIDs: []int{tid}})
	n := 0
	g := run(t, r, func(*source.Sample, string) {
		if n++; n == 5 {
			r.Stop()
		}
	})
	if len(g.tids) != 1 || g.tids[int32(tid)] < 5 {
		t.Errorf("%v, want %d", g.tids, tid)
	}
}

// released checks that nobody traces a process, and that none of its threads has stopped.
func released(t *testing.T, pid int) {
	t.Helper()
	eventually(t, "the process goes on untraced", func() bool {
		tids, err := procfs.Threads(pid)
		if err != nil || len(tids) == 0 {
			t.Fatalf("process %d has gone: %v", pid, err)
		}
		for _, tid := range tids {
			tracer, state := procfs.Status(tid, "TracerPid"), procfs.Status(tid, "State")
			if state != "" && (tracer != "0" || state[0] == 't' || state[0] == 'T') { // else the thread has gone
				return false
			}
		}
		return true
	})
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// A recording ends with what it records, and when it is told to; a command is told to end then.
func TestEnds(t *testing.T) {
	pid, _ := spawn(t, "threads", "1")
	r := open(t, Options{PIDs: []int{pid}})
	syscall.Kill(pid, syscall.SIGKILL)
	run(t, r, nil)

	r = open(t, Options{Command: []string{"sleep", "1000"}, Duration: 50 * time.Millisecond})
	run(t, r, nil)
	if ws, ok := r.Wait(); !ok || !ws.Signaled() || ws.Signal() != syscall.SIGTERM {
		t.Errorf("%v %v", ws, ok)
	}

	ctx, cancel := context.WithCancel(context.Background())
	r, err := Open(ctx, Options{Command: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	run(t, r, nil)
	if ws, ok := r.Wait(); !ok || ws.Signal() != syscall.SIGTERM {
		t.Errorf("%v %v", ws, ok)
	}
	r.Close()

	r = open(t, Options{Command: []string{"true"}})
	run(t, r, nil)
	if ws, ok := r.Wait(); !ok || ws != 0 {
		t.Errorf("%v %v", ws, ok)
	}
}

func TestOptions(t *testing.T) {
	refused := map[string]Options{
		"a command, or":         {},
		"no such process":       {PIDs: []int{1999999999}},
		"at most 1000":          {PIDs: []int{1}, Frequency: 1001},
		"multiple of 8":         {PIDs: []int{1}, StackSize: 12},
		"executable file not":   {Command: []string{"no-such-program"}},
		"no such file or":       {Command: []string{"/nonexistent"}},
		"exec format error":     {Command: []string{badProgram(t)}},
		"processes and threads": {Command: []string{"true"}, PIDs: []int{1}},
	}
	if procfs.Status(2, "Kthread") == "1" {
		refused["a kernel thread"] = Options{PIDs: []int{2}}
	}
	for want, o := range refused {
		r, err := Open(context.Background(), o)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
		if r != nil {
			r.Close()
		}
	}
}

func badProgram(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(path, []byte("\x7fELF is all there is of it"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// If the recorder is killed at any moment, what it records goes on.
func TestKilled(t *testing.T) {
	if pid := os.Getenv(asRecorder); pid != "" {
		var n int
		fmt.Sscan(pid, &n)
		r := open(t, Options{PIDs: []int{n}, Frequency: MaxFrequency})
		fmt.Println("recording")
		for {
			if _, _, err := r.Next(); err == io.EOF {
				return
			}
		}
	}
	pid, _ := spawn(t, "threads", "4")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		cmd := exec.Command(self, "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", asRecorder, pid))
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		if i%4 > 0 {
			bufio.NewReader(out).ReadString('\n')
			time.Sleep(time.Duration(i) * 771 * time.Microsecond) // at any moment
		}
		cmd.Process.Kill()
		cmd.Wait()
		released(t, pid)
	}
}

const asRecorder = "UNSPOOL_TEST_RECORD"
