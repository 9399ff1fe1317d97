package tracer

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/source"
)

// A tracer is what the thread that traces knows.
type tracer struct {
	threads map[int]*thread
	procs   map[int]*proc
	out     []byte // records not put yet
	text    []byte // scratch
	copied  []byte // scratch
	unsaid  uint64 // samples that were lost and not reported
	asker   procfs.Asker

	alarm    *alarm
	here     int         // the processor that this thread stays on; -1: any
	visits   []visit     // of this tick
	ready    []*thread   // that may run
	resting  []*thread   // that did lately, and have not in the last tick
	spare    []*thread   // scratch
	places   map[int]int // processors on which threads have run: the last tick in which one had
	ticks    int
	at       int           // the next of them
	since    time.Time     // when the tick has
	next     time.Time     // when the visit is due, or the next tick if there is none
	again    int           // how often it was repeated
	nobody   int           // visits were left out, one after the other, as this thread ran when they were due
	reckoned time.Time     // when the threads' time was last read: when the tick began, or for missing samples
	used     time.Duration // by this thread, until then
	missed   time.Duration // for which threads have run without being sampled, because this thread came late: a tick of it is a lost sample
	spent    time.Duration // for which all threads have run
	counted  uint64        // samples of that, and what is counted as lost
}

func (t *tracer) init() {
	t.threads, t.procs, t.places, t.text = map[int]*thread{}, map[int]*proc{}, map[int]int{}, make([]byte, 1024)
}

// follow makes what a thread starts traced from its first instruction.
const follow = unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_TRACEFORK | unix.PTRACE_O_TRACEVFORK | unix.PTRACE_O_TRACEEXEC

// trace is the whole life of the thread that traces. begun gets the error of the beginning, or nil.
func (r *Recorder) trace(path string, begun chan<- error) {
	defer r.release()
	var err error
	if r.alarm, err = newAlarm(r.stop); err == nil {
		defer r.alarm.close()
		err = r.begin(path)
	}
	begun <- err
	if err != nil {
		return
	}
	ptrace.Hurry()
	defer func() {
		r.settle()
		r.flush()
	}()
	r.here = -1
	r.plan()
	for r.drain() {
		select {
		case <-r.stop:
			return
		default:
		}
		if r.alarm.wait(r.next) {
			r.tickOver()
		}
	}
}

// begin starts the command, or attaches to what runs.
func (r *Recorder) begin(path string) error {
	if path != "" {
		return r.start(path)
	}
	for _, tid := range r.o.TIDs {
		if err := ptrace.Seize(tid, unix.PTRACE_O_TRACEEXEC); err != nil {
			return ptrace.Refused(procfs.Leader(tid), err)
		}
		r.found(procfs.Leader(tid), tid)
	}
	for _, pid := range r.o.PIDs {
		if err := r.attach(procfs.Leader(pid)); err != nil {
			return err
		}
	}
	r.flush()
	r.next = time.Now()
	return nil
}

// start starts the command. It begins as a tracee of the old kind, of which no thread could be stopped later: so it is let go
// before its first instruction, and seized. What it may have started in these microseconds is looked for.
func (r *Recorder) start(path string) error {
	std := cmp.Or(r.o.Files, &[3]*os.File{os.Stdin, os.Stdout, os.Stderr})
	pid, err := syscall.ForkExec(path, r.o.Command, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{std[0].Fd(), std[1].Fd(), std[2].Fd()}, Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		if errors.Is(err, unix.EPERM) && unix.Access(path, unix.X_OK) == nil {
			err = fmt.Errorf("%w (or the system refuses ptrace here)", err)
		}
		return fmt.Errorf("%s: %w", path, err)
	}
	r.pid = pid
	var ws unix.WaitStatus
	for {
		if _, err = unix.Wait4(pid, &ws, 0, nil); err != unix.EINTR {
			break
		}
	}
	if err == nil && !ws.Stopped() {
		r.gone(syscall.WaitStatus(ws)) // it was killed
		return nil
	}
	if err == nil {
		first := r.started(pid)
		r.next = time.Now()
		defer first.close()
		if err = ptrace.Detach(pid, 0); err == nil {
			err = r.attach(pid)
		}
		// It has run since, for long if this thread had to wait; and may have ended.
		if th := r.threads[pid]; th != nil {
			r.miss(th.ran - first.ran)
		} else if first.sched >= 0 {
			r.miss(r.runtime(first) - first.ran)
		}
	}
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	return err
}

// miss counts time for which a thread has run before it was traced.
func (r *Recorder) miss(ran time.Duration) {
	r.spent += ran
	r.missed += ran
}

// gone takes note of the command's end.
func (r *Recorder) gone(status syscall.WaitStatus) {
	select {
	case <-r.exited:
	default:
		r.status = status
		close(r.exited)
		r.end(false)
	}
}

// attach seizes all threads of a process, and of a command those of its children.
func (r *Recorder) attach(pid int) error {
	for fresh := true; fresh; {
		tids, err := procfs.Threads(pid)
		if err != nil && r.procs[pid] == nil {
			if pid == r.pid {
				return nil // it has exited already
			}
			return ptrace.Refused(pid, err)
		}
		fresh = false
		for _, tid := range tids {
			if r.threads[tid] != nil {
				continue
			}
			switch err := ptrace.Seize(tid, follow); {
			case err == nil:
				fresh = true
				if pid == r.pid {
					r.known(tid).fresh = false
				} else {
					r.found(pid, tid)
				}
			case r.tracedBy(tid):
				fresh = true // it has been born traced
			case err == unix.ESRCH, exited(tid) && (tid != pid || len(tids) > 1 || pid == r.pid):
				// Of threads that have exited, the first is there until all have.
			default:
				return ptrace.Refused(pid, err)
			}
		}
	}
	if pid == r.pid {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		for f := range strings.FieldsSeq(string(b)) {
			if child, err := strconv.Atoi(f); err == nil && ptrace.Seize(child, follow) == nil {
				r.known(child).fresh = false
			}
		}
	}
	return nil
}

// exited says whether a thread has exited.
func exited(tid int) bool {
	state := procfs.Status(tid, "State")
	return state == "" || strings.IndexByte("ZX", state[0]) >= 0
}

// tracedBy says whether a thread is traced by the calling thread already, and takes note of it then.
func (r *Recorder) tracedBy(tid int) bool {
	if procfs.Status(tid, "TracerPid") != strconv.Itoa(unix.Gettid()) {
		return false
	}
	r.known(tid)
	return true
}

// drain handles all that threads have to tell. It returns false if nobody is left.
func (r *Recorder) drain() bool {
	for due := r.next; ; {
		s, ok, err := ptrace.NextAfter(-1, r.overdue)
		switch {
		case err != nil:
			return false
		case !ok:
			return true
		}
		r.handle(s)
		if time.Since(due) >= r.tick {
			return true // a tick is overdue, whatever there is still to tell
		}
	}
}

// handle lets a thread that has stopped go on as it would have without.
func (r *Recorder) handle(s ptrace.Stop) {
	if s.Gone() {
		r.exit(s.TID)
		if s.TID == r.pid {
			r.gone(syscall.WaitStatus(s.Status))
		}
		return
	}
	th := r.known(s.TID)
	th.fresh = false
	switch s.Event() {
	case unix.PTRACE_EVENT_CLONE, unix.PTRACE_EVENT_FORK, unix.PTRACE_EVENT_VFORK:
		if child, err := ptrace.EventMsg(s.TID); err == nil {
			r.addThread(child, th)
		}
	case unix.PTRACE_EVENT_EXEC:
		if former, err := ptrace.EventMsg(s.TID); err == nil {
			r.exec(th, former)
		}
	case unix.PTRACE_EVENT_STOP:
		if s.GroupStop() {
			_ = ptrace.Listen(s.TID)
			return
		}
	}
	if th.wanted { // whatever it has stopped for: each stop makes the kernel forget that it has been asked (ptrace_stop)
		th.wanted = false
		r.sample(th)
	}
	th.resumed = time.Now()
	_ = ptrace.Cont(s.TID, s.Inject()) // it fails if the thread has been killed
}

// flush puts the records so far.
func (r *Recorder) flush() {
	if n := r.unsaid; n > 0 && !r.queue.full() {
		r.add(&source.Record{Type: source.RecordLost, Lost: n})
		r.unsaid = 0
	}
	if len(r.out) == 0 {
		return
	}
	r.out = r.dec.Append(r.out, -1, &source.Record{Type: source.RecordFinishedRound})
	r.queue.put(r.out)
	r.out = nil
}
