package perfevent

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// A target is a thread, or all that runs on a processor, with its events: one for each ring.
type target struct {
	fds     []int    // -1: closed
	enabled []uint64 // for how long each was, when missed asked last; ns
	stopped []bool   // they have not been since
}

// missed returns how many records of t's events found no room in the rings: PERF_FORMAT_LOST, since Linux 6.0. Those of inherited events are
// counted at the event that they come from.
func (t *target) missed() (n uint64) {
	if t.enabled == nil {
		t.enabled, t.stopped = make([]uint64, len(t.fds)), make([]bool, len(t.fds))
	}
	var value [24]byte // the event's count, for how long it was enabled, and what was lost
	for i, fd := range t.fds {
		if fd < 0 {
			continue
		}
		k, err := unix.Read(fd, value[:])
		if err != nil || k < 16 {
			continue
		}
		enabled := binary.LittleEndian.Uint64(value[8:])
		t.enabled[i], t.stopped[i] = enabled, enabled == t.enabled[i]
		if k == len(value) {
			n += binary.LittleEndian.Uint64(value[16:])
		}
	}
	return n
}

// open returns how many events t has that are open.
func (t *target) open() (n int) {
	for _, fd := range t.fds {
		if fd >= 0 {
			n++
		}
	}
	return n
}

func (t *target) close() {
	for i, fd := range t.fds {
		if fd >= 0 {
			unix.Close(fd)
		}
		t.fds[i] = -1
	}
}

// An attached is a thread that has got events of its own, and when.
type attached struct {
	at *target
	ns uint64
}

// openSampling opens a into the i-th ring, with the program if there is one.
func (r *Recorder) openSampling(a *source.Attr, pid, i int) (fd int, err error) {
	// FD_OUTPUT takes effect before the event can happen, unlike PERF_EVENT_IOC_SET_OUTPUT.
	const flags = unix.PERF_FLAG_FD_NO_GROUP | unix.PERF_FLAG_FD_OUTPUT
	if r.program == nil || r.trigger.Kind != source.OnEvents {
		return openEvent(a, pid, r.cpus[i], r.rings[i].fd, flags)
	}
	// Without the program, the event would write samples that are none of ours.
	off := *a
	off.Flags |= source.FlagDisabled
	if fd, err = openEvent(&off, pid, r.cpus[i], r.rings[i].fd, flags); err != nil {
		return -1, err
	}
	err = unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_SET_BPF, r.program.FD())
	if err == nil && !a.Has(source.FlagDisabled) {
		err = unix.IoctlSetInt(fd, unix.PERF_EVENT_IOC_ENABLE, 0)
	}
	if err != nil {
		unix.Close(fd)
		if !isPermission(err) {
			err = fmt.Errorf("%w (%w)", source.ErrUnsupported, err)
		}
		return -1, fmt.Errorf("a program at %s: %w", r.event, err)
	}
	return fd, nil
}

// trace has the program run at a tracepoint, which it does for all tasks, whatever the event counts. So it has an event of its
// own, which stays.
func (r *Recorder) trace(a *source.Attr) (err error) {
	off := *a
	off.Flags = off.Flags&^(source.FlagInherit|source.FlagEnableOnExec) | source.FlagDisabled
	if r.tracing, err = openEvent(&off, -1, r.cpus[0], -1, 0); err == nil {
		err = unix.IoctlSetInt(r.tracing, unix.PERF_EVENT_IOC_SET_BPF, r.program.FD())
	}
	if err != nil {
		return fmt.Errorf("a program at %s: %w", r.event, err)
	}
	return nil
}

// openTarget opens a for pid on all processors. The error is that of the kernel.
func (r *Recorder) openTarget(a *source.Attr, pid int) (*target, error) {
	t := &target{}
	for i := range r.cpus {
		fd, err := r.openSampling(a, pid, i)
		if errors.Is(err, unix.ENODEV) {
			fd, err = -1, nil // the processor has gone offline
		}
		if err != nil {
			t.close()
			return nil, err
		}
		t.fds = append(t.fds, fd)
	}
	r.shape.Events += len(t.fds)
	return t, nil
}

// closeTarget closes a target and keeps what it counted.
func (r *Recorder) closeTarget(t *target) {
	r.missed += t.missed()
	t.close()
}

// watch adds a target to those that must have gone for the recording to end: the kernel hangs up an event when
// its thread and all that inherited the event have exited. Those of one target do so together.
func (r *Recorder) watch(t *target) error {
	r.targets = append(r.targets, t)
	for _, fd := range t.fds {
		if fd < 0 {
			continue
		}
		// The first of a ring's events that is asked takes the ring's readiness, so it must be asked for.
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(len(r.targets) - 1)}
		if err := unix.EpollCtl(r.epoll, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
			return fmt.Errorf("epoll: %w", err)
		}
		r.live++
		break
	}
	return nil
}

func (r *Recorder) enable(on bool) {
	req := uint(unix.PERF_EVENT_IOC_DISABLE)
	if on {
		req = unix.PERF_EVENT_IOC_ENABLE
	}
	for _, t := range r.targets {
		for _, fd := range t.fds {
			if fd >= 0 {
				unix.IoctlSetInt(fd, req, 0)
			}
		}
	}
}

// attach opens the events of all targets. If there is a command, start starts it.
func (r *Recorder) attach(o *Options, p *plan) (start func() error, err error) {
	a := p.attr
	if r.program != nil && (r.trigger.Kind == source.OnTracepoints || r.trigger.Kind == source.OnProbes) {
		if err := r.trace(&a); err != nil {
			return nil, err
		}
	}
	if len(o.Command) > 0 {
		path, err := exec.LookPath(o.Command[0])
		if err != nil {
			return nil, err
		}
		std := cmp.Or(o.Files, &[3]*os.File{os.Stdin, os.Stdout, os.Stderr})
		cmd := &exec.Cmd{Path: path, Args: o.Command, Stdin: std[0], Stdout: std[1], Stderr: std[2]}
		start = func() error { return r.start(cmd) }
		if own := !o.All && len(o.PIDs)+len(o.TIDs) == 0; own { // else it only ends the recording
			begin := start
			if r.tree == nil {
				a.Flags |= source.FlagDisabled | source.FlagEnableOnExec | source.FlagInherit
				begin = func() error { return r.startRecorded(&a, cmd) }
			}
			start = func() error {
				err := begin()
				if err == nil {
					r.root = cmd.Process.Pid
					r.scope.Start(r.root)
					if r.tree != nil {
						r.tree.Start(r.root)
					}
				}
				return err
			}
			if r.tree == nil {
				return start, nil
			}
		}
	}
	a.Flags &^= source.FlagDisabled
	for _, pid := range o.PIDs {
		if err := r.attachProcess(&a, pid, p.level); err != nil {
			return nil, err
		}
	}
	if o.All || r.tree != nil {
		a.Flags &^= source.FlagInherit
		if a.Type == source.TypeSoftware && !o.All {
			a.Flags |= source.FlagExcludeIdle
		}
		return start, r.attachCPUs(&a, p.level)
	}
	for _, tid := range o.TIDs {
		err := r.attachThread(&a, tid)
		if errors.Is(err, unix.ESRCH) {
			return nil, fmt.Errorf("thread %d: no such thread", tid)
		}
		if err != nil {
			return nil, denied(err, tid, "thread", p.level)
		}
	}
	return start, nil
}

// openCode opens events on all processors that count nothing, and bring records of code which the kernel makes or removes (KSYMBOL, since Linux 5.0).
// Events of processes would bring only what those processes cause. Who may not open them has none, and nor has who does not record the kernel.
func (r *Recorder) openCode(sampling *source.Attr) {
	if sampling.Has(source.FlagExcludeKernel) {
		return
	}
	a := source.Attr{
		Type: source.TypeSoftware, Config: swDummy, ClockID: unix.CLOCK_MONOTONIC, // the rings'
		SampleType: sampling.SampleType & (source.SampleTID | source.SampleTime | source.SampleCPU | source.SampleIdentifier),
		ReadFormat: sampling.ReadFormat, // for target.missed
		Flags:      source.FlagKsymbol | source.FlagSampleIDAll | source.FlagUseClockID | source.FlagExcludeKernel | source.FlagExcludeHV,
	}
	for i := range r.cpus {
		fd, err := r.openEverywhere(&a, i)
		if err != nil { // some without the others would tell only of a part
			for _, fd := range r.code {
				unix.Close(fd)
			}
			r.code = nil
			return
		}
		r.code = append(r.code, fd)
	}
	r.plug.code = a
	r.kallsyms, _ = os.Open("/proc/kallsyms")
	r.trailer = 8 * uint64(bits.OnesCount64(a.SampleType)) // each is a word
	for _, g := range r.rings {
		g.trailer = r.trailer
	}
}

// openEverywhere opens a for all that runs on the i-th processor; -1: it is offline.
func (r *Recorder) openEverywhere(a *source.Attr, i int) (fd int, err error) {
	fd, err = openEvent(a, -1, r.cpus[i], r.rings[i].fd, unix.PERF_FLAG_FD_NO_GROUP|unix.PERF_FLAG_FD_OUTPUT)
	if errors.Is(err, unix.ENODEV) {
		return -1, nil
	}
	return fd, err
}

func (r *Recorder) attachCPUs(a *source.Attr, level int) error {
	t, err := r.openTarget(a, -1)
	if err != nil {
		return explain(err, "recording all processors", level)
	}
	r.targets = append(r.targets, t)
	r.plug.sampling, r.plug.target = *a, t
	return nil
}

// attachThread opens a for a thread. Where the events are those of the processors, it opens what tells of the end: see openEnd.
func (r *Recorder) attachThread(a *source.Attr, tid int) (err error) {
	var t *target
	if r.tree != nil {
		t, err = r.openEnd(tid)
	} else {
		t, err = r.openTarget(a, tid)
	}
	if err != nil {
		return err
	}
	if a.Has(source.FlagInherit) && r.tree == nil {
		r.direct[int32(tid)] = attached{t, monotonic()}
	}
	r.shape.Threads++
	return r.watch(t)
}

// openEnd opens an event that counts nothing: the kernel hangs it up when a thread and all that it starts have gone.
func (r *Recorder) openEnd(tid int) (*target, error) {
	a := source.Attr{
		Type: source.TypeSoftware, Config: swDummy, ClockID: unix.CLOCK_MONOTONIC, // the rings'
		Flags: source.FlagDisabled | source.FlagInherit | source.FlagExcludeKernel | source.FlagExcludeHV | source.FlagUseClockID,
	}
	for i, cpu := range r.cpus {
		fd, err := openEvent(&a, tid, cpu, r.rings[i].fd, unix.PERF_FLAG_FD_NO_GROUP|unix.PERF_FLAG_FD_OUTPUT) // what has no ring is always hung up
		if !errors.Is(err, unix.ENODEV) {                                                                      // else the processor has gone offline
			return &target{fds: []int{fd}}, err
		}
	}
	return nil, unix.ENODEV
}

// attachProcess attaches to all threads of a process. Threads that appear meanwhile have inherited their events
// if they come from one that has them, and else have to be attached to as well; the FORK records tell which, at
// once or later: see forked.
func (r *Recorder) attachProcess(a *source.Attr, pid, level int) error {
	done := map[int]bool{}
	for {
		tids, err := procfs.Threads(pid)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			if len(done) > 0 {
				return nil // it has gone
			}
			return fmt.Errorf("process %d: no such process", pid)
		}
		if err != nil {
			return fmt.Errorf("process %d: %w", pid, err)
		}
		r.round()
		fresh := false
		for _, tid := range tids {
			if done[tid] || r.inherited[int32(tid)] {
				continue
			}
			done[tid], fresh = true, true
			err := r.attachThread(a, tid)
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return denied(err, pid, "process", level)
			}
		}
		if !fresh {
			return nil
		}
	}
}

// denied explains why a process cannot be attached to.
func denied(err error, pid int, what string, level int) error {
	doing := fmt.Sprintf("%s %d", what, pid)
	if isPermission(err) {
		if st, e := os.Stat(fmt.Sprintf("/proc/%d", pid)); e == nil {
			if sys, ok := st.Sys().(*syscall.Stat_t); ok && os.Geteuid() != 0 && int(sys.Uid) != os.Geteuid() {
				return fmt.Errorf("%s: %w (it belongs to another user: record it as that user or as root)", doing, err)
			}
		}
	}
	return explain(err, doing, level)
}

// forked takes note of a FORK record. A thread that was attached to after it had been born with the events of
// its parent has them twice: its own are closed. Threads that are born in the microseconds in which their parent
// is attached to can have a part of the events, and are left as they are.
func (r *Recorder) forked(raw []byte) {
	if len(raw) < recordHeader+24 {
		return
	}
	tid := int32(binary.LittleEndian.Uint32(raw[16:]))
	parent := int32(binary.LittleEndian.Uint32(raw[20:]))
	ns := binary.LittleEndian.Uint64(raw[24:])
	if p, ok := r.direct[parent]; ok && ns < p.ns {
		return
	}
	if r.inherited != nil {
		r.inherited[tid] = true
	}
	t, ok := r.direct[tid]
	if !ok {
		return
	}
	delete(r.direct, tid)
	if ns < t.ns { // else it is another thread of the same number
		for _, fd := range t.at.fds {
			if fd >= 0 {
				if unix.EpollCtl(r.epoll, unix.EPOLL_CTL_DEL, fd, nil) == nil {
					r.live--
				}
			}
		}
		r.closeTarget(t.at)
	}
}

// start starts the command.
func (r *Recorder) start(cmd *exec.Cmd) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	r.cmd = cmd
	go func() {
		err := cmd.Wait()
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			r.exitErr = err
		}
		close(r.exited)
		r.end(false)
	}()
	return nil
}

// startRecorded starts the command so that it inherits events of the thread that starts it. The thread has no
// other use: it ends, and its events live on in the command.
func (r *Recorder) startRecorded(a *source.Attr, cmd *exec.Cmd) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // and no Unlock
		own, err := openOwn(a)
		if err != nil {
			result <- explain(err, "recording the command", 2)
			return
		}
		t, err := r.openTarget(a, unix.Gettid())
		if err == nil {
			r.targets = append(r.targets, t)
			err = r.start(cmd)
		}
		unix.Close(own)
		result <- err
	}()
	return <-result
}

// openOwn opens an event that this thread's children do not inherit. Without it, the thread's events and those of its child are equal, and the
// kernel exchanges them when it switches between the two (perf_event_context_sched_out in kernel/events/core.c). A uprobe's event names
// the task that it was opened for: after the exchange, the child's name the thread, which has ended, and the kernel takes the breakpoints
// out of the child.
func openOwn(a *source.Attr) (fd int, err error) {
	own := source.Attr{Type: source.TypeSoftware, Config: swDummy, Flags: source.FlagDisabled | a.Flags&(source.FlagExcludeKernel|source.FlagExcludeHV)}
	return openEvent(&own, unix.Gettid(), -1, -1, 0)
}

func monotonic() uint64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) != nil {
		return 0
	}
	return uint64(ts.Nano())
}
