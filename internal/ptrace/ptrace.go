// Package ptrace makes this project's requests of ptrace(2), for seized threads (PTRACE_SEIZE). A seized thread stops only when asked, and goes
// on by itself when the tracer ends, for whatever reason.
//
// A thread's tracer is a thread, not a process: all calls for one tracee must come from one thread. See Do.
package ptrace

import (
	"os"
	"runtime"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Do calls f on a thread of its own, which has no children before f starts some, so f may wait for all of them. The thread has ended
// when Do returns: what f seized and did not detach has been detached by the kernel, and goes on.
func Do(f func()) {
	on := make(chan int)
	go func() {
		onThread(func() {
			defer func() { on <- unix.Gettid() }()
			f()
		})
	}()
	tid := <-on
	// The kernel ends the thread a moment after the goroutine. Until then, whoever waits for a tracee could take a stop away that was
	// for the tracer, and with it the signal that came.
	for range 1_000_000 { // of Nap: for ever, unless something is wrong
		if unix.Tgkill(os.Getpid(), tid, 0) == unix.ESRCH {
			return
		}
		Nap()
	}
}

// onThread calls f on the calling goroutine's thread, which ends with the goroutine. Two kinds of threads will not do: the process's first,
// which cannot end, and a thread with children, started by other goroutines before. Such a thread is kept busy, so another goroutine is on
// another thread.
func onThread(f func()) {
	runtime.LockOSThread() // and no Unlock
	if unix.Gettid() != os.Getpid() && !parent() {
		f()
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		onThread(f)
	}()
	<-done
	runtime.UnlockOSThread()
}

// parent says whether the calling thread has children. A kernel without CONFIG_PROC_CHILDREN does not say: then it seems to have none.
// A child belongs to the thread that started it; when that thread ends, to the process's first.
func parent() bool {
	b, err := os.ReadFile("/proc/thread-self/children")
	return err == nil && len(b) > 0
}

// Hurry gives the calling thread, which Do has made, all the priority that this user may: others are stopped until it has had its turn.
// What it starts later inherits that.
//
// Priority alone does not interrupt a thread that has just begun to run: Linux 6.6 and later let it run for a slice of some milliseconds first.
// Since Linux 6.12, a thread that asks for a shorter slice need not wait for that, whoever the user is. Before, the request has no effect.
func Hurry() {
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
	if a, err := unix.SchedGetAttr(0, 0); err == nil && a.Policy == unix.SCHED_NORMAL {
		a.Runtime = uint64(slice)
		_ = unix.SchedSetAttr(0, a, 0)
	}
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // else its timers are 50 µs late
}

// slice is the shortest that the kernel grants.
const slice = 100 * time.Microsecond

// Nap waits for some ten microseconds, so other threads can run.
func Nap() { _ = unix.Nanosleep(&unix.Timespec{Nsec: 10_000}, nil) }

// request makes a request that does not return data.
func request(req, tid int, addr, data uintptr) error {
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, uintptr(req), uintptr(tid), addr, data, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// Seize begins to trace a thread, which does not stop. options are PTRACE_O_*.
func Seize(tid int, options int) error { return request(unix.PTRACE_SEIZE, tid, 0, uintptr(options)) }

// Interrupt makes a thread stop soon: Wait tells when. It cannot while it waits uninterruptibly, as in vfork(2).
func Interrupt(tid int) error { return request(unix.PTRACE_INTERRUPT, tid, 0, 0) }

// Cont lets a thread that has stopped go on, with a signal if sig is not 0.
func Cont(tid int, sig unix.Signal) error { return request(unix.PTRACE_CONT, tid, 0, uintptr(sig)) }

// Listen leaves a thread in a group-stop stopped, until the group-stop ends.
func Listen(tid int) error { return request(unix.PTRACE_LISTEN, tid, 0, 0) }

// Detach ends the tracing of a thread that has stopped; it goes on with a signal if sig is not 0, or stays in its group-stop.
func Detach(tid int, sig unix.Signal) error {
	return request(unix.PTRACE_DETACH, tid, 0, uintptr(sig))
}

// EventMsg returns what belongs to the event at which a thread has stopped, such as a child's number.
func EventMsg(tid int) (int, error) {
	var msg uint64
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETEVENTMSG, uintptr(tid), 0, uintptr(unsafe.Pointer(&msg)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(msg), nil
}

// A Stop is Wait's report on a thread.
type Stop struct {
	TID    int
	Status unix.WaitStatus
}

// Gone says that the thread has exited.
func (s Stop) Gone() bool { return s.Status.Exited() || s.Status.Signaled() }

// Event is the PTRACE_EVENT_* at which the thread has stopped; 0 before the delivery of a signal.
func (s Stop) Event() int { return int(s.Status >> 16) }

// Signal is the signal to be delivered, or in a group-stop the one that caused it.
func (s Stop) Signal() unix.Signal { return s.Status.StopSignal() }

// GroupStop says that the thread has been stopped as by SIGSTOP.
func (s Stop) GroupStop() bool {
	return s.Event() == unix.PTRACE_EVENT_STOP && s.Signal() != unix.SIGTRAP
}

// Inject is what to pass to Cont or Detach so that the thread goes on as if it were not traced.
func (s Stop) Inject() unix.Signal {
	if s.Event() != 0 {
		return 0
	}
	return s.Signal()
}

// Next returns what there is to be told of a thread traced by the calling thread, or of a child that it started; of any if tid
// is -1. It tells of a signal until the thread goes on, so that the kernel delivers one that the tracer, if it is killed, has not passed on.
// ok is false if there is nothing to tell. The error is ECHILD if there is nobody to wait for.
func Next(tid int) (s Stop, ok bool, err error) { return NextAfter(tid, func(int) {}) }

// NextAfter is Next. Where there is something to tell, it calls known first, with the thread if it has ended, else with 0: until known returns, what
// /proc has of this thread can still be read.
func NextAfter(tid int, known func(ended int)) (s Stop, ok bool, err error) {
	which := unix.P_PID
	if tid == -1 {
		which = unix.P_ALL
	}
	const look = unix.WEXITED | unix.WNOHANG | unix.WALL | unix.WNOTHREAD
	for {
		var si struct {
			_           [2]int32
			code, _     int32
			pid, _, why int32
			_           [100]byte
		}
		if err = unix.Waitid(which, max(tid, 0), (*unix.Siginfo)(unsafe.Pointer(&si)), look|unix.WNOWAIT, nil); err == unix.EINTR {
			continue
		}
		if err != nil || si.pid == 0 {
			return s, false, err
		}
		ended := int(si.pid)
		if si.code == cldTrapped {
			ended = 0
		}
		known(ended)
		if si.code == cldTrapped && si.why>>8 == 0 { // not an event, which has to be taken
			return Stop{int(si.pid), unix.WaitStatus(si.why<<8 | 0x7f)}, true, nil
		}
		s.TID, err = unix.Wait4(int(si.pid), &s.Status, unix.WNOHANG|unix.WALL|unix.WNOTHREAD, nil)
		return s, err == nil && s.TID > 0, err
	}
}

const cldTrapped = 4 // CLD_TRAPPED of siginfo.h

// getSet reads a set of registers, by its note's number in core files.
func getSet(tid int, set uintptr, b []byte) (int, error) {
	iov := unix.Iovec{Base: &b[0]}
	iov.SetLen(len(b))
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, unix.PTRACE_GETREGSET, uintptr(tid), set, uintptr(unsafe.Pointer(&iov)), 0, 0)
	if errno != 0 {
		return 0, errno
	}
	return int(iov.Len), nil
}
