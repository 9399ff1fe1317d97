package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// stress says that tests may take as long as they need: UNSPOOL_STRESS=1.
var stress = os.Getenv("UNSPOOL_STRESS") == "1"

// shortly is what a test of every commit takes, or, under stress, what is long.
func shortly[T any](short, long T) T {
	if stress {
		return long
	}
	return short
}

// A kernelObject is a BPF object.
type kernelObject struct {
	kind string // prog, map or link
	id   uint32
}

// kernelObjects returns the programs, maps and links that a process holds.
func kernelObjects(t testing.TB, pid int) map[kernelObject]bool {
	t.Helper()
	got := map[kernelObject]bool{}
	dir := fmt.Sprintf("/proc/%d/fdinfo", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		b, _ := os.ReadFile(filepath.Join(dir, fd.Name()))
		for line := range strings.Lines(string(b)) {
			name, v, _ := strings.Cut(line, ":")
			kind, ok := strings.CutSuffix(name, "_id")
			id, err := strconv.ParseUint(strings.TrimSpace(v), 10, 32)
			if ok && err == nil && (kind == "prog" || kind == "map" || kind == "link") {
				got[kernelObject{kind, uint32(id)}] = true
			}
		}
	}
	return got
}

// exists says whether the kernel has the object still.
func (o kernelObject) exists() bool {
	var c io.Closer
	var err error
	switch o.kind {
	case "prog":
		c, err = bpf.NewProgramFromID(bpf.ProgramID(o.id))
	case "map":
		c, err = bpf.NewMapFromID(bpf.MapID(o.id))
	case "link":
		return false // they hold a program, which is asked for
	}
	if err != nil {
		return !errors.Is(err, os.ErrNotExist)
	}
	c.Close()
	return true
}

// wantGone waits until the kernel has none of these. It frees them beside other work, which on a busy machine can wait for seconds: what stays for good
// is a fault.
func wantGone(t testing.TB, objects map[kernelObject]bool) {
	t.Helper()
	began := time.Now()
	for ; ; time.Sleep(20 * time.Millisecond) {
		for o := range objects {
			if !o.exists() {
				delete(objects, o)
			}
		}
		took := time.Since(began)
		if len(objects) == 0 {
			if took > 5*time.Second {
				t.Logf("the kernel has freed all after %v", took)
			}
			return
		}
		if took > time.Minute {
			t.Errorf("still in the kernel: %v", objects)
			return
		}
	}
}

// A kernelRun is a recording that goes on while the test does something else.
type kernelRun struct {
	prog *ebpf.Program
	rec  *perfevent.Recorder
	done chan error
	st   source.Stats
}

// startKernel starts a recording; sample may be nil. stop ends it.
func startKernel(t *testing.T, o perfevent.Options, sample func(*source.Sample) error) *kernelRun {
	t.Helper()
	r := &kernelRun{done: make(chan error, 1)}
	mods := modules.New()
	var err error
	r.prog = loadKernel(t, ebpf.Options{Mods: mods.Module})
	t.Cleanup(func() { r.prog.Close() })
	o.Program = r.prog
	if r.rec, err = quietly(func() (*perfevent.Recorder, error) { return perfevent.Open(t.Context(), o) }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.rec.Close() })
	go func() {
		var err error
		r.st, err = source.Run(context.Background(), r.rec, source.Options{Mods: mods.Module, Ours: true, Sample: sample})
		r.done <- err
	}()
	return r
}

// wait waits for the recording to end.
func (r *kernelRun) wait(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("the recording does not end within a minute: %+v; its program: %+v", r.rec.Stats(), r.prog.Stats())
		return nil
	}
}

func (r *kernelRun) stop(t *testing.T) {
	t.Helper()
	r.rec.Stop()
	if err := r.wait(t); err != nil {
		t.Error(err)
	}
}

// kernelMap opens one of the maps of a process's only Program by its name.
func kernelMap(t *testing.T, pid int, name string) *bpf.Map {
	t.Helper()
	for o := range kernelObjects(t, pid) {
		if o.kind != "map" {
			continue
		}
		m, err := bpf.NewMapFromID(bpf.MapID(o.id))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := m.Info(); err == nil && info.Name == name {
			return m
		}
		m.Close()
	}
	t.Fatalf("there is no map %q", name)
	return nil
}

// ghosts returns the processes that the kernel's program knows and that are not there.
func ghosts(t *testing.T, m *bpf.Map) (pids []uint32) {
	t.Helper()
	var key, pid uint32
	value := make([]byte, m.ValueSize())
	for it := m.Iterate(); it.Next(&key, &value); {
		if pid = key; syscall.Kill(int(pid), 0) == syscall.ESRCH {
			pids = append(pids, pid)
		}
	}
	return pids
}

// stillGhosts returns those of before that are known still: other tests' processes end all the time.
func stillGhosts(t *testing.T, m *bpf.Map, before []uint32) []uint32 {
	now := ghosts(t, m)
	return slices.DeleteFunc(before, func(pid uint32) bool { return !slices.Contains(now, pid) })
}

// anonymousMemory is what this process has, in bytes.
func anonymousMemory(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(b, []byte("RssAnon:"))
	fmt.Sscan(string(rest), &n)
	return n << 10
}

// TestKernelShortLives records the whole machine while hundreds of processes a second live for a millisecond.
func TestKernelShortLives(t *testing.T) {
	needKernel(t)
	tiny, static := compiled(t, "gcc", "tiny.c"), compiled(t, "gcc", "tiny.c", "-static")
	named := filepath.Join(filepath.Dir(static), "tiny-static")
	if err := os.Rename(static, named); err != nil {
		t.Fatal(err)
	}
	took := shortly(10*time.Second, time.Minute)
	programs := []string{tiny, named, "/usr/bin/true", "/usr/bin/env", "/usr/bin/date", "/usr/bin/ls", "/usr/bin/sed", "/usr/bin/sort"}
	c, names := newTally(), map[string]bool{"spawn": true}
	for _, p := range programs {
		names[filepath.Base(p)] = true
	}
	r := startKernel(t, perfevent.Options{All: true, Frequency: 999}, func(s *source.Sample) error {
		if names[s.Comm] {
			c.add(s)
		}
		return nil
	})
	procs := kernelMap(t, os.Getpid(), "processes")
	defer procs.Close()
	began := anonymousMemory(t)
	spawn := exec.Command(compiled(t, "gcc", "spawn.c"), append([]string{"500", fmt.Sprint(took.Seconds())}, programs...)...)
	var out, complaints bytes.Buffer
	spawn.Stdout, spawn.Stderr = &out, &complaints
	if err := spawn.Start(); err != nil {
		t.Fatal(err)
	}
	over := make(chan error, 1)
	go func() { over <- spawn.Wait() }()
	peak, known := int64(0), 0
	var memory []int64 // a second
	for tick := time.NewTicker(time.Second); ; {
		select {
		case err := <-over:
			if err != nil {
				t.Fatalf("spawn: %v\n%s", err, complaints.Bytes())
			}
		case <-tick.C:
			memory = append(memory, anonymousMemory(t)>>20)
			peak, known = max(peak, memory[len(memory)-1]<<20), max(known, r.prog.Stats().Processes)
			continue
		}
		break
	}
	// What has ended is soon forgotten.
	left := ghosts(t, procs)
	for deadline := time.Now().Add(5 * time.Second); len(left) > 0 && time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		left = stillGhosts(t, procs, left)
	}
	ks := r.prog.Stats()
	r.stop(t)
	t.Logf("%s; %v", strings.TrimSpace(out.String()), c)
	t.Logf("processes known: %d at most, %d at the end; lost %d, %d and %d; %d failed (%v)", known, ks.Processes, r.st.Lost+r.st.LostSamples, ks.RingFull, ks.Nested, ks.Failed, ks.Err)
	t.Logf("MB by the second: %d", memory)
	if len(left) > 0 {
		t.Errorf("%d processes have ended and are still known: %d...", len(left), left[:min(len(left), 5)])
	}
	// The tables of what else starts on the machine come in the beginning.
	if half := slices.Max(memory[:len(memory)/2+1]) << 20; peak-began > 256<<20 || peak-half > 32<<20 {
		t.Errorf("memory went from %d to %d MB, and then to %d", began>>20, half>>20, peak>>20)
	}
	if ks.Failed > 0 {
		t.Errorf("%d failed: %v", ks.Failed, ks.Err)
	}
	if c.user < 500 {
		t.Errorf("%d samples of the target, want 500 or more: %v", c.user, c)
	}
}

// TestKernelStarved: when the profiler could not read for a while what processes did, and records were lost, it finds out what there
// is now.
func TestKernelStarved(t *testing.T) {
	needKernel(t)
	program, tiny, late := build(t), compiled(t, "gcc", "tiny.c"), compiled(t, "gcc", "execs.c")
	spawn := exec.Command(compiled(t, "gcc", "spawn.c"), "500", "4", tiny)
	out := filepath.Join(t.TempDir(), "x.stacks.json")
	// Calls that compilers inlined would be looked up in the debug information of all that runs on the machine.
	cmd := exec.Command(program, "record", "--source", "ebpf", "-a", "--no-inline", "-o", out)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	untilRecording(t, cmd.Process.Pid)
	procs := kernelMap(t, cmd.Process.Pid, "processes")
	defer procs.Close()
	if err := spawn.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(2 * time.Second)
	latecomer := exec.Command(late, "0", "4000", late)
	if err := latecomer.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	unread := len(ghosts(t, procs))
	cmd.Process.Signal(syscall.SIGCONT)
	if err := errors.Join(spawn.Wait(), latecomer.Wait()); err != nil {
		t.Fatal(err)
	}
	left := ghosts(t, procs)
	for wait := 0; wait < 20 && len(left) > 0; wait++ { // the last ones have ended this moment
		time.Sleep(100 * time.Millisecond)
		left = stillGhosts(t, procs, left)
	}
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	n, whole := 0, 0
	for _, s := range jsonStacks(t, out) {
		if s.PID == latecomer.Process.Pid && s.Stop != unwind.NoUserStack.String() {
			if n += s.Count; s.Stop == unwind.Outermost.String() {
				whole += s.Count
			}
		}
	}
	t.Logf("%d processes had ended unread, %d are still known; %d of %d stacks of the program that began meanwhile are whole\n%s", unread, len(left), whole, n, complaints.Bytes())
	if len(left) > 0 {
		t.Errorf("%d processes have ended and are still known: %d", len(left), left)
	}
	if n < 500 || float64(whole) < 0.9*float64(n) {
		t.Errorf("%d of %d stacks of the program that began meanwhile are whole, want 90 %% of at least 500", whole, n)
	}
}

// untilRecording waits until a process has a perf event for each processor: it has loaded its programs by then.
func untilRecording(t *testing.T, pid int) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		events := 0
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); to == "anon_inode:[perf_event]" {
				events++
			}
		}
		if events >= runtime.NumCPU() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d perf events a minute after the start of process %d", events, pid)
		}
	}
}

// A jsonStack is a line that unspool record writes as .stacks.json.
type jsonStack struct {
	PID   int
	Count int
	Stop  string
}

func jsonStacks(t *testing.T, path string) (all []jsonStack) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var s jsonStack
		if err := json.Unmarshal(line, &s); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if s.Stop != "" {
			all = append(all, s)
		}
	}
	return all
}

// TestKernelKilledTargets: programs that are killed while they are recorded end the recording.
func TestKernelKilledTargets(t *testing.T) {
	needKernel(t)
	deep, throws := compiled(t, "gcc", "deep.c"), compiled(t, "g++", "throws.cc", "-pthread")
	for i := range shortly(4, 100) {
		target := exec.Command(deep, "500")
		if i&1 == 1 {
			target = exec.Command(throws, "8", "10000")
		}
		if err := target.Start(); err != nil {
			t.Fatal(err)
		}
		after := time.Duration(rand.Int64N(int64(200 * time.Millisecond)))
		if i < 2 {
			time.AfterFunc(after/10, func() { target.Process.Kill() }) // perhaps before it is attached to
		}
		prog := loadKernel(t, ebpf.Options{Mods: modules.New().Module})
		rec, err := perfevent.Open(t.Context(), perfevent.Options{PIDs: []int{target.Process.Pid}, Program: prog})
		if err != nil && i >= 2 {
			t.Fatal(err)
		}
		if err == nil {
			time.AfterFunc(after, func() { target.Process.Kill() })
			time.AfterFunc(after, func() { time.AfterFunc(10*time.Second, rec.Stop) })
			began := time.Now()
			if _, err := source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true}); err != nil {
				t.Error(err)
			}
			t.Logf("killed after %v, ended after %v", after, time.Since(began))
			if took := time.Since(began); took > after+5*time.Second {
				t.Errorf("the recording ended after %v, the target after %v", took, after)
			}
			rec.Close()
		}
		target.Wait()
		prog.Close()
	}
	for range shortly(1, 50) {
		n := 0
		kill := fmt.Sprintf("(sleep %.3f; kill -KILL $$) & exec %s 500", rand.Float64()/3, deep)
		kernelRecording(t, ebpf.Options{}, perfevent.Options{Command: []string{"sh", "-c", kill}}, func(*source.Sample) error { n++; return nil })
		t.Logf("%d samples", n)
	}
}

// TestKernelKilledProfiler: when the program that records is killed, nothing of it stays in the kernel, and what it records goes
// on.
func TestKernelKilledProfiler(t *testing.T) {
	needKernel(t)
	program := build(t)
	target := exec.Command(compiled(t, "g++", "throws.cc", "-pthread"), "2", "1000000")
	target.Env = []string{}
	if err := target.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { target.Process.Kill(); target.Wait() }()
	most := 0
	reach := 300 * time.Millisecond // of the moments; longer where the machine lets the profiler wait
	for i := 0; i < shortly(20, 200) || most < 5 && reach < 10*time.Second; i++ {
		if most < 5 {
			reach += 50 * time.Millisecond
		}
		args := []string{"record", "--source", "ebpf", "-o", filepath.Join(t.TempDir(), "x.stacks.json")}
		if i&1 == 0 {
			args = append(args, "-a")
		} else {
			args = append(args, "-p", fmt.Sprint(target.Process.Pid))
		}
		cmd := exec.Command(program, args...)
		var out bytes.Buffer
		cmd.Stderr = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(rand.Int64N(int64(reach))))
		cmd.Process.Signal(syscall.SIGSTOP) // so that it makes nothing after it was looked at
		waitStopped(cmd.Process.Pid)
		objects := kernelObjects(t, cmd.Process.Pid)
		most = max(most, len(objects))
		cmd.Process.Kill()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Exited() {
			t.Fatalf("it ended by itself: %v\n%s", err, out.Bytes())
		}
		wantGone(t, objects)
	}
	t.Logf("%d objects at most", most)
	if most < 5 {
		t.Errorf("the profiler was never seen at work: it had at most %d objects in the kernel, want 5; it was stopped within %v", most, reach)
	}
	before := ticks(t, target.Process.Pid)
	time.Sleep(100 * time.Millisecond)
	if ticks(t, target.Process.Pid) == before {
		t.Errorf("process %d, which was recorded, stands still: its state is %q, and it has used %s ticks, as 100 ms before", target.Process.Pid, procfs.Status(target.Process.Pid, "State"), before)
	}
}

// stat returns the fields of /proc/PID/stat from the third on.
func stat(pid int) []string {
	b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(b), ") ")
	return strings.Fields(rest)
}

func waitStopped(pid int) {
	for range 1000 {
		if f := stat(pid); len(f) > 0 && (f[0] == "T" || f[0] == "Z") {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// ticks is the time that a process has used.
func ticks(t *testing.T, pid int) string {
	f := stat(pid)
	if len(f) < 12 {
		t.Fatalf("process %d has gone", pid)
	}
	return f[11]
}

// TestKernelLoads: what is loaded and unloaded again and again leaves nothing behind.
func TestKernelLoads(t *testing.T) {
	needKernel(t)
	tiny := compiled(t, "gcc", "tiny.c")
	count := func() (fds, goroutines int, locked string) {
		list, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		b, _ := os.ReadFile("/proc/self/status")
		_, rest, _ := strings.Cut(string(b), "VmLck:")
		locked, _, _ = strings.Cut(rest, "\n")
		return len(list), runtime.NumGoroutine(), strings.TrimSpace(locked)
	}
	var objects map[kernelObject]bool
	once := func(run bool) {
		prog := loadKernel(t, ebpf.Options{Mods: modules.New().Module})
		if run {
			rec, err := perfevent.Open(t.Context(), perfevent.Options{Command: []string{tiny}, Program: prog})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true}); err != nil {
				t.Fatal(err)
			}
			rec.Close()
		}
		for o := range kernelObjects(t, os.Getpid()) {
			objects[o] = true
		}
		prog.Close()
	}
	objects = map[kernelObject]bool{}
	once(true)
	fds, goroutines, locked := count()
	began := time.Now()
	for i := range shortly(25, 200) {
		once(i%4 == 0)
	}
	took := time.Since(began)
	for range 3 { // which unmaps variables of programs, at its leisure
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	wantGone(t, objects)
	var fds2, goroutines2 int
	var locked2 string
	for range 100 {
		if fds2, goroutines2, locked2 = count(); fds2 <= fds && goroutines2 <= goroutines {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Logf("%v; descriptors %d, then %d; goroutines %d, then %d; locked %s, then %s", took, fds, fds2, goroutines, goroutines2, locked, locked2)
	if fds2 > fds || goroutines2 > goroutines || locked2 != locked {
		t.Errorf("something was left behind: descriptors %d, then %d; goroutines %d, then %d; locked %s, then %s", fds, fds2, goroutines, goroutines2, locked, locked2)
	}
}

// asNobody, in the environment, is the directory of the workload for a test binary that runs as an ordinary user.
const asNobody = "LAB_TEST_WORK"

// nobody returns a command that runs this test binary as an ordinary user who has these capabilities and may lock so many KiB
// of memory, and who has a directory with a workload in it.
func nobody(t *testing.T, tests string, kib int, caps ...uintptr) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	dir := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "test")
	if err := os.WriteFile(bin, self, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(compiled(t, "gcc", "signals.c"), filepath.Join(dir, "signals")); err != nil {
		t.Fatal(err)
	}
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", fmt.Sprintf(`ulimit -l %d && exec "$0" "$@"`, kib), bin, "-test.run=^("+tests+")$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), asNobody+"="+dir, "HOME="+dir, "TMPDIR="+dir, "UNSPOOL_REQUIRE_JUDGES=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}, AmbientCaps: caps}
	return cmd
}

// TestKernelMemlock: CAP_BPF and CAP_PERFMON are enough, and a limit on locked memory that cannot be raised is no obstacle.
func TestKernelMemlock(t *testing.T) {
	out, err := nobody(t, "TestKernelAsNobody", 64, unix.CAP_BPF, unix.CAP_PERFMON).CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// TestKernelAsNobody is part of TestKernelMemlock.
func TestKernelAsNobody(t *testing.T) {
	dir := os.Getenv(asNobody)
	if dir == "" {
		t.Skip("part of TestKernelMemlock")
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); err != nil || limit.Max != 64<<10 {
		t.Fatalf("the limit is %d: %v", limit.Max, err)
	}
	c := newTally()
	cmd := []string{filepath.Join(dir, "signals"), "300"} // with so little memory, the copies before the tables come are lost by the hundred
	st, ks := kernelRecording(t, ebpf.Options{}, perfevent.Options{Command: cmd, Frequency: 3999}, func(s *source.Sample) error { c.add(s); return nil })
	t.Logf("%v", c)
	t.Logf("lost %d, %d and %d; %d failed (%v)", st.Lost+st.LostSamples, ks.RingFull, ks.Nested, ks.Failed, ks.Err)
	if c.user < 500 || c.share() < most {
		t.Errorf("%.3f %% of %d stacks are whole", 100*c.share(), c.user)
	}
}

// TestKernelUnprivileged: who may not load programs into the kernel is told what it takes, and tests say what they lack.
func TestKernelUnprivileged(t *testing.T) {
	out, err := nobody(t, "TestKernelStacks", 64).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("this machine lacks the permission to load programs into the kernel")) || bytes.Contains(out, []byte("--- PASS")) {
		t.Errorf("%v\n%s", err, out)
	}
	cmd := nobody(t, "none", 64)
	program, err := os.ReadFile(build(t))
	if err == nil {
		err = os.WriteFile(filepath.Join(cmd.Dir, "unspool"), program, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	cmd.Args = []string{"sh", "-c", "exec ./unspool record --source ebpf -o x.stacks.json -- ./signals 1"}
	out, err = cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !bytes.Contains(out, []byte("CAP_BPF and CAP_PERFMON")) {
		t.Errorf("%v: %s", err, out)
	}
	t.Logf("%s", out)
	if st, err := os.Stat(filepath.Join(cmd.Dir, "x.stacks.json")); err == nil {
		t.Errorf("a recording that was not permitted leaves %s, of %d bytes", st.Name(), st.Size())
	}
}

// TestKernelProgram: what unspool record writes is what the API gives.
func TestKernelProgram(t *testing.T) {
	needKernel(t)
	program, out := build(t), filepath.Join(t.TempDir(), "x.stacks.json")
	cmd := exec.Command(program, "record", "--source", "ebpf", "-F", "3999", "-o", out, "--", compiled(t, "gcc", "signals.c"), "300")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	stops, n := map[string]int{}, 0
	for _, s := range jsonStacks(t, out) {
		if s.Stop != unwind.NoUserStack.String() {
			stops[s.Stop] += s.Count
			n += s.Count
		}
	}
	t.Logf("%d stacks: %v", n, stops)
	if share := float64(stops[unwind.Outermost.String()]) / float64(max(n, 1)); n < 500 || share < most {
		t.Errorf("%.3f %% of %d stacks are whole", 100*share, n)
	}
}
