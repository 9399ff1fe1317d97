package tracer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
)

// A thread that runs on another processor goes on for microseconds after it has been asked to stop, until an interrupt comes. If it leaves
// a system call meanwhile, it stops there: calls that take 1 % of the time would get 45 % of the samples. So the tracer sleeps on the
// processor that threads run on. The timer that ends the sleep interrupts one of them, which does not run while the tracer does: it stops
// where it was interrupted. Others that wait for the processor are left alone: they gave it up earlier, in a system call perhaps.

// A visit is to a processor, to sample what runs there; -1 is to none.
type visit int

const (
	maxVisits = 64                    // in a tick
	maxLooked = 256                   // threads that are looked at in every visit, wherever they ran when it was planned; and those that rest
	leastNap  = 50 * time.Microsecond // before a visit
	maxCredit = 100                   // ticks that a thread may lag behind
	maxAgain  = 4                     // times that a visit is repeated at which this thread came late
	lately    = 2 * time.Second       // for which threads that sleep are visited where any of them ran: one may run again for less than a tick
	maxNobody = 2                     // visits in a row that find nobody as this thread ran: of thousands, it may run all the time
	maxPlaces = 8                     // visits of a tick beyond which there are none to where no thread is

	// moment is how long a thread that runs takes at most to stop, unless it has to wait for a processor.
	moment = 2 * time.Millisecond
)

// look returns the state of a thread, and the processor that it runs on, or did last (proc_pid_stat(5)). It takes note of a new name.
func (r *Recorder) look(th *thread) (state byte, cpu int) {
	b := r.read(th.stat)
	state = procfs.State(b)
	lo, hi := bytes.IndexByte(b, '('), bytes.LastIndexByte(b, ')')
	if lo < 0 || hi < lo {
		return 0, -1
	}
	if string(b[lo+1:hi]) != th.comm {
		r.call(th, string(b[lo+1:hi]), 0, now())
	}
	const processor = 39 - 3 // of the fields after the name
	if f := bytes.Fields(b[hi+1:]); len(f) > processor {
		if n, err := strconv.Atoi(string(f[processor])); err == nil {
			return state, n
		}
	}
	return state, -1
}

// plan makes the visits of the tick that begins now: to where threads run or have run lately. Of thousands of threads, those that ran when last
// looked at come first, and then as many others, of any, as a quarter of the tick allows.
func (r *Recorder) plan() {
	r.overdue(0) // this thread may have had to wait in the last visit
	r.flush()
	r.ticks++
	r.reckoned, r.used = time.Now(), processorTime()
	hot := r.ready
	r.visits, r.at, r.ready, r.spare, r.resting = r.visits[:0], 0, r.spare[:0], hot, r.resting[:0]
	for _, th := range hot {
		switch {
		case r.threads[th.tid] != th:
		case th.wanted: // it has not stopped yet, and is one that runs all the same
			r.ready = append(r.ready, th)
		default:
			r.consider(th)
		}
	}
	end := time.Now().Add(r.tick / 4)
	for _, th := range r.threads {
		if r.consider(th) && time.Now().After(end) {
			break
		}
	}
	for cpu, tick := range r.places {
		switch v := visit(cpu); {
		case !r.isLately(tick):
			delete(r.places, cpu)
		case len(r.ready)+len(r.resting) > 0 && len(r.visits) < maxPlaces && !slices.Contains(r.visits, v):
			r.visits = append(r.visits, v) // a thread may wake up there
		}
	}
	if r.since = r.next; time.Since(r.since) > r.tick {
		r.since = time.Now()
	}
	r.await()
}

// consider makes a thread ready to be visited in this tick, if it may run. It returns false if it has been called for it in this tick.
func (r *Recorder) consider(th *thread) bool {
	if th.wanted || th.fresh || th.seen == r.ticks {
		return false // it has been asked, and has not got a processor since, or has been seen
	}
	th.seen = r.ticks
	ran := r.runtime(th)
	recent := ran != th.ran
	th.credit = min(th.credit+max(ran-th.ran, 0), maxCredit*r.tick) // less since another thread has the number: exec is yet to be heard of
	th.ran = ran
	r.spend(th, ran)
	if recent {
		th.last = r.ticks
	}
	if recent || th.state == 'R' {
		th.state, th.on = r.look(th)
		if th.on >= 0 {
			r.places[th.on] = r.ticks
		}
	}
	switch {
	case recent || th.state == 'R':
		r.ready = append(r.ready, th)
	case th.last > 0 && r.isLately(th.last) && len(r.resting) < maxLooked:
		r.resting = append(r.resting, th)
	default:
		return true
	}
	if v := visit(th.on); !slices.Contains(r.visits, v) && len(r.visits) < maxVisits {
		r.visits = append(r.visits, v) // the order of threads is another each time
	}
	return true
}

func (r *Recorder) isLately(tick int) bool { return r.tick*time.Duration(r.ticks-tick) < lately }

// await goes to the processor of the next visit, and says when that is due. The visits of a tick are spread over it.
func (r *Recorder) await() {
	r.next = r.since.Add(r.tick * time.Duration(r.at+1) / time.Duration(max(len(r.visits), 1)))
	if r.at == len(r.visits) || int(r.visits[r.at]) == r.here {
		return
	}
	cpu := int(r.visits[r.at])
	var set unix.CPUSet
	set.Set(max(cpu, 0))
	if r.here = -1; cpu >= 0 && unix.SchedSetaffinity(0, &set) == nil { // it fails where others may run, but not this process
		r.here = cpu
	}
}

// tickOver makes the visit that is due. One at which this thread came late is made again a little later, where the timer falls by chance, too.
func (r *Recorder) tickOver() {
	r.overdue(0)
	busy := r.alarm.ran()
	if r.at < len(r.visits) {
		ran, late := 0, false
		if busy && r.here >= 0 && r.nobody < maxNobody && len(r.threads) <= maxLooked {
			r.nobody++
		} else {
			r.nobody = 0
			ran, late = r.visit(int(r.visits[r.at]))
		}
		if late && r.again < maxAgain {
			r.again++
			r.next = time.Now().Add(r.tick / 16)
			return
		}
		if late {
			r.missed += r.tick * time.Duration(min(ran, 1))
		}
		r.again = 0
		r.at++
	}
	if r.at < len(r.visits) {
		r.await()
	} else {
		r.plan()
	}
}

// overdue counts the samples that are missing since ticks went by without a visit: this thread had no processor. It is called when there is something
// to hear of a thread, and before it is heard: who has heard of a thread's end cannot read any more for how long the thread ran. So of a thread that
// has ended, it counts the time since it was last looked at. The ticks are left out: visits are not made up for.
func (r *Recorder) overdue(ended int) {
	if late := time.Since(r.next) / r.tick * r.tick; late > 0 {
		// While this thread runs, those that wait for it do not.
		now, used := time.Now(), processorTime()
		own := used - r.used
		part := max(0, float64(late-own)) / float64(max(late, now.Sub(r.reckoned)-own))
		for _, th := range r.threads {
			if ran := r.runtime(th); ran > th.counted && th.owns() {
				r.missed += time.Duration(part * float64(ran-th.counted))
				r.spend(th, ran)
			}
		}
		r.reckoned, r.used = now, used
		if len(r.threads) <= maxLooked { // with more, this thread may run all the time: what it leaves out, it never does
			r.since, r.next = r.since.Add(late), r.next.Add(late)
		}
	}
	if th := r.threads[ended]; th != nil {
		r.spend(th, r.runtime(th))
	}
	for ; r.missed >= r.tick; r.missed -= r.tick {
		r.lose()
	}
}

// spend counts for how long a thread has run by now.
func (r *Recorder) spend(th *thread, ran time.Duration) {
	if !th.owns() {
		return
	}
	r.spent += max(ran-th.counted, 0)
	th.counted = ran
}

// owns says whether what was just read of a thread's time is known, and its own. From when a thread has executed a program until that is told,
// it has the number of the process's first thread, and the others are gone.
func (th *thread) owns() bool {
	if th.sched >= 0 && th.tid == th.proc.pid {
		for tid := range th.proc.threads {
			if tid != th.tid {
				return unix.Tgkill(th.proc.pid, tid, 0) != unix.ESRCH
			}
		}
	}
	return th.sched >= 0
}

// settle counts as lost, at the end, the samples of threads that have not stopped yet, and what the processor time of all threads lacks in
// samples for whatever reason, such as that no visit met them. Which thread the timer falls on is chance: a lack of up to three standard
// deviations is not counted, which is exceeded by chance in one recording of a thousand.
func (r *Recorder) settle() {
	for _, th := range r.threads {
		if th.wanted {
			r.lose()
		}
	}
	due := float64(r.spent) / float64(r.tick)
	lack := due - float64(r.counted)
	if lack <= 1+3*math.Sqrt(due) {
		return
	}
	for range int(lack) {
		r.lose()
	}
}

// visit asks the thread that was interrupted to stop, and waits a moment for it: handle samples it. If late, it has asked nobody: after the timer,
// others have run, such as the threads that it counts.
func (r *Recorder) visit(cpu int) (threads int, late bool) {
	since := r.displaced()
	r.wake(cpu)
	var ran []*thread
	for _, th := range r.ready {
		if th.resumed.After(r.next) {
			continue // it was stopped when the visit was due
		}
		if r.threads[th.tid] != th || th.wanted || th.on != cpu && len(r.ready) > maxLooked {
			continue
		}
		var state byte
		if state, th.on = r.look(th); state != 'R' {
			continue
		}
		switch {
		case r.here < 0 || since == 0: // it is not known what ran
			if th.on == cpu && th.credit >= r.tick {
				ran = append(ran, th)
			}
		case th.on == r.here:
			if at, _ := r.began(th.proc.pid, th.tid); at >= since {
				ran = append(ran, th)
			}
		}
	}
	if r.here >= 0 && !r.alarm.straight() {
		return len(ran), true
	}
	asked := 0
	for _, th := range ran {
		if r.ask(th) {
			asked++
		}
	}
	for end := time.Now().Add(min(r.tick/2, moment)); asked > 0 && time.Now().Before(end); {
		switch s, ok, err := ptrace.NextAfter(-1, r.overdue); {
		case err != nil:
			return asked, false
		case ok:
			th := r.threads[s.TID]
			wanted := th != nil && th.wanted
			if r.handle(s); wanted && (!th.wanted || s.GroupStop()) {
				asked--
			}
		default:
			ptrace.Nap()
		}
	}
	return len(ran), false
}

// wake makes threads ready that have run since they rested. The scheduler has counted the time of one that this thread displaced.
func (r *Recorder) wake(cpu int) {
	all := len(r.ready)+len(r.resting) <= maxLooked
	r.resting = slices.DeleteFunc(r.resting, func(th *thread) bool {
		switch {
		case r.threads[th.tid] != th:
			return true
		case th.on != cpu && !all || r.runtime(th) == th.ran:
			return false
		}
		r.ready = append(r.ready, th)
		return true
	})
}

// processorTime returns for how long this thread has run.
func processorTime() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return time.Duration(ts.Nano())
}

// began returns when the scheduler last began to count a thread's time, by the processor's clock in nanoseconds, and what it had counted by
// then; 0 if it is not told. For the thread that runs, that is no earlier than when it got the processor, and for others when they lost it.
func (r *Recorder) began(pid, tid int) (at uint64, ran time.Duration) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/task/%d/sched", pid, tid))
	if err != nil {
		return 0, 0
	}
	defer f.Close()
	n, _ := f.Read(r.text)
	field := func(name string) uint64 {
		_, b, _ := bytes.Cut(r.text[:n], []byte("\n"+name))
		b, _, _ = bytes.Cut(b, []byte("\n"))
		_, b, _ = bytes.Cut(b, []byte(":"))
		ms, frac, _ := bytes.Cut(bytes.TrimSpace(b), []byte("."))
		ns, err := strconv.ParseUint(string(ms)+string(frac), 10, 64) // six digits follow the point
		if err != nil || len(frac) != 6 {
			return 0
		}
		return ns
	}
	return field("se.exec_start"), time.Duration(field("se.sum_exec_runtime"))
}

// displaced returns when this thread got the processor, or a few microseconds before; 0 if it is not told. Whoever lost it since then lost it to
// this thread. Who lost it to another a moment earlier is not sampled: the other may have been woken by another processor, and who has to make
// way for it goes on until that processor's interrupt comes, or to the end of its next system call.
func (r *Recorder) displaced() uint64 {
	at, ran := r.began(unix.Getpid(), unix.Gettid())
	// Where this processor is slow, the scheduler has counted some of the time since the timer woke this thread.
	return at - min(at, uint64(max(0, ran-r.alarm.spent)))
}

// ask asks a thread to stop. One that still waits for this thread's processor when it has been asked stops where it was interrupted: before it
// runs on, wherever the scheduler takes it meanwhile. One that had gone to another processor may have run on there.
func (r *Recorder) ask(th *thread) bool {
	if ptrace.Interrupt(th.tid) != nil {
		return false
	}
	_, cpu := r.look(th)
	th.wanted, th.moved = true, r.here >= 0 && cpu != th.on
	return true
}

// An alarm wakes the thread that traces: at a time, or when there is something to tell.
type alarm struct {
	fd         int
	news       chan os.Signal
	quit, gone chan struct{}
	switches   int64         // of this thread, before it slept
	spent      time.Duration // its processorTime then
	woke       time.Time     // when it had slept
	busy       float64       // times that it was running when it should have slept until then
}

// newAlarm makes an alarm that tells of news of tracees and of the end of stop. The kernel sends SIGCHLD when a tracee has stopped or exited.
func newAlarm(stop <-chan struct{}) (*alarm, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	a := &alarm{fd: fd, news: make(chan os.Signal, 1), quit: make(chan struct{}), gone: make(chan struct{})}
	signal.Notify(a.news, unix.SIGCHLD)
	go func() {
		defer close(a.gone)
		one := binary.NativeEndian.AppendUint64(nil, 1)
		for {
			select {
			case <-a.news:
			case <-stop:
				stop = nil
			case <-a.quit:
				return
			}
			_, _ = unix.Write(fd, one) // of a counter, which cannot be full
		}
	}()
	return a, nil
}

func (a *alarm) close() {
	signal.Stop(a.news)
	close(a.quit)
	<-a.gone
	unix.Close(a.fd)
}

// wait sleeps until t, or until there are news. It says whether it is t.
func (a *alarm) wait(t time.Time) bool {
	ts := unix.NsecToTimespec(int64(max(time.Until(t), leastNap)))
	fds := []unix.PollFd{{Fd: int32(a.fd), Events: unix.POLLIN}}
	spent := processorTime()
	if now := time.Now(); now.After(t) {
		a.busy += min(1, float64(spent-a.spent)/float64(max(now.Sub(a.woke), 1)))
	}
	a.switches, a.spent = switches(), spent
	if n, err := unix.Ppoll(fds, &ts, nil); n > 0 && err == nil {
		var b [8]byte
		_, _ = unix.Read(a.fd, b[:])
	}
	a.woke = time.Now()
	return !a.woke.Before(t)
}

// ran says whether this thread was running when the visit was due, and so nobody else on its processor. Had it waited for the processor for a part of
// the time for which it was awake, it says so as often as it was running.
func (a *alarm) ran() bool {
	if a.busy < 1 {
		return false
	}
	a.busy--
	return true
}

// straight says whether this thread has run since the timer woke it. If Go's scheduler made it wait, others have run meanwhile.
func (a *alarm) straight() bool { return switches() == a.switches+1 }

// switches returns how often this thread has waited (getrusage(2), ru_nvcsw).
func switches() int64 {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_THREAD, &u)
	return int64(u.Nvcsw)
}
