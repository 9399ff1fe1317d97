package tracer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/source"
)

// times returns the ticks that a process has spent in user and in kernel mode.
func times(t *testing.T, pid int) (user, kernel float64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	f := bytes.Fields(b)
	if err != nil || len(f) < 15 { // the program's name has no spaces
		t.Fatalf("/proc/%d/stat has %d fields, %v, want 15 or more", pid, len(f), err)
	}
	user, _ = strconv.ParseFloat(string(f[13]), 64)
	kernel, _ = strconv.ParseFloat(string(f[14]), 64)
	return user, kernel
}

// System calls have the share of samples that they have of the time, whether they are many and short or few and long. perf says what that is,
// of the same programs at the same time. The kernel's account of user and system time has interrupts and stops in it, too.
func TestShares(t *testing.T) {
	if testing.Short() {
		t.Skip("takes ten seconds or more")
	}
	oracle.Need(t, "perf")
	// Being stopped cuts a read of /dev/zero short, of which perf sees less then: the longest take some tens of microseconds of a tick.
	programs := []struct{ share, size string }{{"1", "4096"}, {"10", "4096"}, {"50", "200000"}, {"90", "200000"}}
	var pids []int
	var list []string
	user, kernel := make([]float64, len(programs)), make([]float64, len(programs))
	for _, p := range programs {
		pid, _ := spawn(t, "share", p.share, p.size)
		pids, list = append(pids, pid), append(list, fmt.Sprint(pid))
	}
	for i, pid := range pids {
		user[i], kernel[i] = times(t, pid)
	}
	// Chance is less than a point for so many samples of a program, however busy the machine.
	const longest, enough = 100 * time.Second, 4000
	data := filepath.Join(t.TempDir(), "perf.data")
	perf := exec.Command("perf", "record", "-q", "-g", "-e", "cpu-clock", "-F", "2999", "-k", "CLOCK_MONOTONIC", "-o", data, "-p", strings.Join(list, ","))
	if err := perf.Start(); err != nil {
		t.Fatal(err)
	}
	defer perf.Process.Kill()
	r := open(t, Options{PIDs: pids, Frequency: 997, Duration: longest})
	shown, truth := shares{}, shares{}
	n := map[int]int{}
	full := 0
	run(t, r, func(s *source.Sample, stack string) {
		pid := int(s.PID)
		shown.add(pid, s.Time/1e9, strings.Contains(stack, "in_call"))
		if n[pid]++; n[pid] == enough {
			if full++; full == len(programs) {
				r.Stop()
			}
		}
	})
	perf.Process.Signal(os.Interrupt)
	for i, pid := range pids {
		u, k := times(t, pid)
		user[i], kernel[i] = u-user[i], k-kernel[i]
	}
	perf.Wait() // its status says that it was interrupted
	out, err := exec.Command("perf", "script", "-i", data, "-F", "pid,time,ip,sym").Output()
	if err != nil {
		t.Fatal(err)
	}
	// In the call is whose innermost frame outside of the kernel is in it. Being stopped does not count.
	for sample := range strings.SplitSeq(string(out), "\n\n") {
		head, chain, _ := strings.Cut(strings.TrimLeft(sample, "\n"), "\n")
		var pid int
		var at float64
		if fmt.Sscanf(head, "%d %f:", &pid, &at); !slices.Contains(pids, pid) || strings.Contains(chain, "ptrace") || strings.Contains(chain, "get_signal") {
			continue
		}
		for line := range strings.Lines(chain) {
			addr, symbol, _ := strings.Cut(strings.TrimSpace(line), " ")
			if ip, err := strconv.ParseUint(addr, 16, 64); err == nil && ip < 1<<63 {
				truth.add(pid, uint64(at), strings.Contains(symbol, "read") || symbol == "in_call")
				break
			}
		}
	}
	b, _ := os.ReadFile("/proc/cmdline")
	judged := !bytes.Contains(b, []byte("pvm_"))
	for i, p := range programs {
		shown, truth, total := shown.compare(truth, pids[i])
		accounted := 100 * kernel[i] / (kernel[i] + user[i])
		t.Logf("%s %%: shown %.1f %% of %.0f samples; perf %.1f %%, the kernel's account %.1f %%", p.share, shown, total, truth, accounted)
		if judged && math.Abs(shown-truth) > 3 || total < 1000 {
			t.Errorf("%s %%: shown %.1f %% of %.0f samples, want %.1f %%", p.share, shown, total, truth)
		}
	}
	if !judged {
		t.Skip("this test lacks a processor that is interrupted at once: under the hypervisor PVM, calls have up to seven points too many")
	}
}

// shares count the samples of each second of a process, and how many of them are in the call.
type shares map[int]map[uint64]*[2]float64

func (s shares) add(pid int, second uint64, call bool) {
	if s[pid] == nil {
		s[pid] = map[uint64]*[2]float64{}
	}
	c := s[pid][second]
	if c == nil {
		c = new([2]float64)
		s[pid][second] = c
	}
	if c[0]++; call {
		c[1]++
	}
}

// compare returns the shares of the call in percent, by s and by a judge, in the seconds that both have, of so many samples of s. Each second
// weighs what it does in s: on a busy machine, the call's share of the time changes, and so does how often there are samples.
func (s shares) compare(judge shares, pid int) (share, truth, total float64) {
	const least = 50 // samples of a second that can be judged
	for second, c := range s[pid] {
		j := judge[pid][second]
		if j == nil || j[0] < least {
			continue
		}
		total += c[0]
		share += 100 * c[1]
		truth += 100 * c[0] * j[1] / j[0]
	}
	return share / total, truth / total, total
}

// A thread that never runs for as long as a tick is sampled for as long as it runs.
func TestBursts(t *testing.T) {
	oracle.Long(t)
	pid, _ := spawn(t, "bursts", "1")
	ticks := func() float64 { u, k := times(t, pid); return u + k } // of 10 ms
	before := ticks()
	g := run(t, open(t, Options{PIDs: []int{pid}, Frequency: 300, Duration: 5 * time.Second}), nil)
	due := (ticks() - before) * 3
	t.Logf("%d samples and %d lost of %.0f", g.Samples, g.Lost+g.LostSamples, due)
	// Kernels before Linux 6.12 let a thread end its slice, and many of these bursts, before they run the tracer.
	if due == 0 || float64(g.Samples+g.Lost+g.LostSamples) < due/4 {
		t.Errorf("%d samples and %d lost, want %.0f", g.Samples, g.Lost+g.LostSamples, due)
	}
}

// A thread that is asked to stop while it makes processes stops to tell of one, and the kernel forgets that it was asked. It is sampled all the same,
// and from then on.
func TestForks(t *testing.T) {
	oracle.Long(t)
	pid, _ := spawn(t, "forks")
	ticks := func() float64 { u, k := times(t, pid); return u + k } // of 10 ms
	before := ticks()
	var first, last uint64
	g := run(t, open(t, Options{PIDs: []int{pid}, Frequency: 300, Duration: 3 * time.Second}), func(s *source.Sample, _ string) {
		if int(s.TID) == pid {
			first, last = cmp.Or(first, s.Time), s.Time
		}
	})
	due := (ticks() - before) * 3
	t.Logf("%d samples and %d lost of %.0f, in %v", g.tids[int32(pid)], g.Lost+g.LostSamples, due, time.Duration(last-first))
	// On an idle machine, its children run elsewhere, and it is in the kernel's fork nearly always: where it is asked there, the sample is lost, and counted.
	if n, lost := float64(g.tids[int32(pid)]), float64(g.Lost+g.LostSamples); n < due/20 || n+lost < due/4 || due < 50 || time.Duration(last-first) < 2*time.Second {
		t.Errorf("%.0f samples and %.0f lost in %v, want %.0f in 3 s", n, lost, time.Duration(last-first), due)
	}
}

// A thread that is taken to another processor after it has been asked to stop is sampled where it was interrupted; one that was taken there
// before may have run on, and is not.
func TestMoved(t *testing.T) {
	var all unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil || all.Count() < 2 {
		oracle.Lacks(t, "two processors")
	}
	var cpus []int
	for cpu := 0; len(cpus) < 2; cpu++ {
		if all.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	pid, _ := spawn(t, "share", "1", "4096")
	move := func(tid, cpu int) {
		var set unix.CPUSet
		set.Set(cpu)
		if err := unix.SchedSetaffinity(tid, &set); err != nil {
			t.Error(err)
		}
	}
	r := quiet(pid)
	// samples stops the thread, which is moved before or after it is asked, and returns how often it is sampled.
	samples := func(before, after bool) (n int) {
		move(0, cpus[0])
		r.here = cpus[0]
		move(pid, cpus[0]) // where it waits, while this thread runs
		th := r.threads[pid]
		_, th.on = r.look(th)
		if before {
			move(pid, cpus[1])
		}
		if !r.ask(th) {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			t.Errorf("thread %d, moved before: %v, cannot be interrupted: %s (%v)", pid, before, stat, err)
			return 0
		}
		if after {
			move(pid, cpus[1])
		}
		r.out = nil
		for th.wanted {
			if s, ok, err := ptrace.Next(pid); err != nil {
				t.Error(err)
				return 0
			} else if ok {
				r.handle(s)
			} else {
				ptrace.Nap()
			}
		}
		return sampled(r)
	}
	ptrace.Do(func() {
		if err := r.attach(pid); err != nil {
			t.Error(err)
			return
		}
		stayed, later, earlier := 0, 0, 0
		for range 20 {
			stayed += samples(false, false)
			later += samples(false, true)
			earlier += samples(true, false)
		}
		if stayed < 18 || later < 18 || earlier > 2 { // another thread may take the processor from this one
			t.Errorf("of 20 each: %d samples where it stayed, %d where it was moved after it had been asked, %d before", stayed, later, earlier)
		}
		if lost := int(r.Lost()); stayed+later+earlier+lost != 3*20 {
			t.Errorf("%d samples and %d lost, want 60", stayed+later+earlier, lost)
		}
	})
}

// What processor time lacks in samples counts as lost at the end, unless it may be chance; and there is a record of it if there is none else.
func TestSettle(t *testing.T) {
	for _, c := range []struct {
		ticks           time.Duration
		told, want, not uint64 // samples and lost before, lost by this, threads that have not stopped
	}{
		{ticks: 30, told: 0, want: 30},
		{ticks: 30, told: 25},
		{ticks: 30, told: 13}, // by chance: the deviation is 5.5
		{ticks: 30, told: 12, want: 18},
		{ticks: 30, told: 60},
		{ticks: 10_000, told: 9000, want: 1000},
		{ticks: 10_000, told: 9750},
		{ticks: 1, told: 0},
		{ticks: 4, told: 2, want: 1, not: 1},
		{},
	} {
		r := quiet(os.Getpid())
		r.spent, r.counted = c.ticks*r.tick+r.tick/2, c.told
		for i := range int(c.not) {
			r.threads[i] = &thread{tid: i, wanted: true}
		}
		r.settle()
		r.flush()
		r.queue.close()
		var said uint64
		for b, err := r.queue.take(); err == nil; b, err = r.queue.take() {
			for ; len(b) > 0; b = b[recordSize(b):] {
				var rec source.Record
				if err := r.dec.Decode(b[:recordSize(b)], &rec); err != nil {
					t.Fatal(err)
				}
				if rec.Type == source.RecordLost {
					said += rec.Lost
				}
			}
		}
		if r.Lost() != c.want || said != c.want {
			t.Errorf("%d ticks, %d told: %d lost, %d in records, want %d", c.ticks, c.told, r.Lost(), said, c.want)
		}
	}
}

// The processor time of a thread is counted once, whoever counts it: one that no visit meets lacks all samples.
func TestSpent(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := quiet(os.Getpid())
	file := filepath.Join(t.TempDir(), "schedstat")
	ran := func(ms int) {
		if err := os.WriteFile(file, fmt.Appendf(nil, "%d 0 1\n", ms*1e6), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	ran(5)
	fd, err := unix.Open(file, unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	th := &thread{tid: 1, proc: &proc{pid: 2}, sched: fd, stat: -1, ran: 5e6, counted: 5e6}
	defer unix.Close(fd)
	r.threads[1] = th
	ran(305)
	r.ticks = 1
	r.consider(th)
	ran(405)
	r.next = time.Now().Add(-9*r.tick - r.tick/2) // nine ticks are overdue, of which one still has its visit
	r.reckoned, r.used = r.next.Add(-r.tick), processorTime()
	r.overdue(0)
	if late := time.Since(r.next); late < 0 || late > time.Since(r.reckoned)+r.tick {
		t.Errorf("the next visit is late by %v: overdue ticks are counted, and made up for", late)
	}
	ran(505)
	r.ticks = 2
	r.consider(th)
	ran(605)
	r.next = time.Now().Add(time.Minute)
	r.overdue(th.tid) // it has ended in this tick
	ran(1)
	r.ticks = 3
	r.consider(th) // another thread has its number since execve
	if th.credit < 0 {
		t.Errorf("a credit of %v", th.credit)
	}
	if want := 600 * time.Millisecond; r.spent != want {
		t.Errorf("%v, want %v", r.spent, want)
	}
	const overdue = 8 // of 90 ms
	if r.Lost() != overdue {
		t.Errorf("%d lost, want %d", r.Lost(), overdue)
	}
	r.settle()
	if r.Lost() != 59 { // of 59.4 ticks
		t.Errorf("%d lost, want 59", r.Lost())
	}
}

// Until the tracer is told that a thread has executed a program, that thread has the number of the first: its time is not the first's, too.
func TestOwns(t *testing.T) {
	const gone = 1 << 30
	pid := os.Getpid()
	p := &proc{pid: pid, threads: map[int]*thread{}}
	first := &thread{tid: pid, proc: p}
	other := &thread{proc: p}
	for _, c := range []struct {
		th    *thread
		tid   int // of the other
		sched int
		want  bool
	}{
		{first, 0, 0, true}, {first, gone, 0, false}, {first, gone, -1, false}, {other, gone, 0, true}, {other, gone, -1, false},
	} {
		clear(p.threads)
		p.threads[pid] = first
		if other.tid = c.tid; other.tid != 0 {
			p.threads[other.tid] = other
		}
		if c.th.sched = c.sched; c.th.owns() != c.want {
			t.Errorf("%d beside %d, with the file %d: %v, want %v", c.th.tid, c.tid, c.sched, !c.want, c.want)
		}
	}
	r := quiet(pid)
	other.tid = gone
	p.threads[gone] = other
	first.sched, first.counted = 0, 1e6
	r.spend(first, 9e6)
	if r.spent != 0 || first.counted != 1e6 {
		t.Errorf("%v are counted of another's time", r.spent)
	}
	delete(p.threads, gone)
	r.spend(first, 9e6)
	if r.spent != 8e6 {
		t.Errorf("%v are counted, want 8ms", r.spent)
	}
}

// A thread that has gone, and has not been told of, has not run on.
func TestGoneRuntime(t *testing.T) {
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/schedstat", c.Process.Pid), unix.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	in.Close()
	c.Wait()
	r := quiet(os.Getpid())
	if ran := r.runtime(&thread{sched: fd, ran: 7}); ran != 7 {
		t.Errorf("%d, want 7", ran)
	}
	if ran := r.runtime(&thread{sched: -1, ran: 7}); ran != 7+r.tick {
		t.Errorf("%v where the kernel does not tell, want a tick more", ran)
	}
}

// A visit finds who ran when it was due: nobody, if the tracer did, or who was stopped.
func TestAwake(t *testing.T) {
	a, err := newAlarm(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer a.close()
	ptrace.Do(func() {
		ptrace.Hurry()
		const often = 20
		awake, asleep := 0, 0
		for range often {
			due := time.Now().Add(2 * time.Millisecond)
			for !a.wait(due) {
			}
			if a.ran() {
				asleep++
			}
			due = time.Now()
			for end := processorTime() + time.Millisecond; processorTime() < end; {
			}
			for !a.wait(due) {
			}
			if a.ran() {
				awake++
			}
		}
		if asleep > 0 || awake < often/5 { // a busy machine takes the processor away from it, too
			t.Errorf("it ran when %d of %d visits were due that found it asleep, and %d that found it awake", asleep, often, awake)
		}
	})
	pid, _ := spawn(t, "share", "1", "4096")
	r := quiet(pid)
	r.alarm, r.here = a, -1
	ptrace.Do(func() {
		if err := r.attach(pid); err != nil {
			t.Error(err)
			return
		}
		th := r.threads[pid]
		asked := func(resumed time.Time) (n int) {
			for range 20 {
				_, cpu := r.look(th)
				r.ready, r.next, th.credit, th.resumed = []*thread{th}, time.Now(), r.tick, resumed
				k, _ := r.visit(cpu)
				n += k
				for th.wanted {
					if s, ok, err := ptrace.Next(pid); err != nil {
						t.Error(err)
						return n
					} else if ok {
						r.handle(s)
					} else {
						ptrace.Nap()
					}
				}
			}
			return n
		}
		before, after := asked(time.Time{}), asked(time.Now().Add(time.Hour))
		if before < 10 || after > 0 {
			t.Errorf("of 20 visits each, %d sample who ran, and %d who was stopped when they were due", before, after)
		}
	})
}

// TestBrief: of processes that live for a fraction of a tick, and of threads that execute a program after one, samples and what is counted as lost
// are the processor time that they took.
func TestBrief(t *testing.T) {
	for name, command := range map[string][]string{
		"processes": {"sh", "-c", "i=0; while [ $i -lt 500 ]; do /bin/true; i=$((i+1)); done"},
		"heirs":     {work(t), "heirs", "400"},
	} {
		t.Run(name, func(t *testing.T) {
			children := func() time.Duration {
				var u unix.Rusage
				if err := unix.Getrusage(unix.RUSAGE_CHILDREN, &u); err != nil {
					t.Fatal(err)
				}
				return time.Duration(u.Utime.Nano() + u.Stime.Nano())
			}
			from := children()
			r := open(t, Options{Command: command, Frequency: 199})
			g := run(t, r, nil)
			if st, ok := r.Wait(); !ok || st != 0 {
				t.Errorf("Wait = %v, %v, want 0, true", st, ok)
			}
			due := (children() - from).Seconds() * 199
			chance := 3 * math.Sqrt(due) // a lack is not counted up to there: see settle
			if all := float64(g.Samples + r.Lost()); due < 50 || all < 0.95*due-chance || all > 1.15*due+chance {
				t.Errorf("%d samples and %d lost, want %.0f together", g.Samples, r.Lost(), due)
			}
			t.Logf("%d samples and %d lost of %.0f", g.Samples, r.Lost(), due)
		})
	}
}

// quiet is a recorder of a process that does nothing by itself.
func quiet(pid int) *Recorder {
	r := &Recorder{o: Options{PIDs: []int{pid}, StackSize: 1 << 10}, dec: source.NewDecoder(), tick: time.Second / DefaultFrequency}
	r.attr = source.Attr{
		SampleType:     source.SampleIP | source.SampleTID | source.SampleTime | source.SamplePeriod | source.SampleRegsUser | source.SampleStackUser,
		Flags:          source.FlagSampleIDAll,
		SampleRegsUser: source.UserRegsMask(ptrace.Machine), SampleStackUser: 1 << 10,
	}
	r.dec.AddAttr(&r.attr, nil, "cpu-clock")
	r.queue.init()
	r.tracer.init()
	return r
}

// sampled counts the samples that have not been put yet.
func sampled(r *Recorder) (n int) {
	for b := r.out; len(b) > 0; b = b[recordSize(b):] {
		if binary.NativeEndian.Uint32(b) == source.RecordSample {
			n++
		}
	}
	return n
}

// preempted counts how often this thread has lost its processor although it had more to do.
func preempted() int64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return -1
	}
	return int64(u.Nivcsw)
}

// On one processor, a tracer that is slow samples what it has displaced, though the scheduler has counted its time meanwhile.
func TestSlow(t *testing.T) {
	pid, _ := spawn(t, "share", "1", "4096")
	r := quiet(pid)
	var err error
	if r.alarm, err = newAlarm(nil); err != nil {
		t.Fatal(err)
	}
	defer r.alarm.close()
	var cpus, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		t.Fatal(err)
	}
	for !cpus.IsSet(r.here) {
		r.here++
	}
	one.Set(r.here)
	// On a busy machine, it displaces others more often than this process.
	const enough = 20
	began, due, n := time.Now(), 0, 0
	ptrace.Do(func() {
		ptrace.Hurry()
		if err := errors.Join(unix.SchedSetaffinity(pid, &one), unix.SchedSetaffinity(0, &one)); err != nil {
			t.Error(err)
			return
		}
		if err := r.attach(pid); err != nil {
			t.Error(err)
			return
		}
		th := r.threads[pid]
		for due < enough && (time.Since(began) < 5*time.Second || due < 4 && time.Since(began) < time.Minute) {
			for !r.alarm.wait(time.Now().Add(5 * time.Millisecond)) {
			}
			if at, _ := r.began(pid, pid); at < r.displaced() {
				continue
			}
			before := preempted()
			// As if all that a visit does took longer than a tick of the scheduler.
			for end := processorTime() + 500*time.Microsecond; processorTime() < end; {
			}
			r.ready, r.out, r.next = []*thread{th}, nil, time.Now()
			r.visit(r.here)
			for th.wanted {
				if s, ok, err := ptrace.Next(pid); err != nil {
					t.Error(err)
					return
				} else if ok {
					r.handle(s)
				} else {
					ptrace.Nap()
				}
			}
			if preempted() != before {
				continue // others have displaced both
			}
			due++
			n += sampled(r)
		}
	})
	if due < 4 || n*5 < due { // where Go's scheduler has made it wait, it samples nothing
		t.Errorf("it was displaced in %d visits, and sampled in %d", due, n)
	}
	t.Logf("%d samples in %d visits", n, due)
}
