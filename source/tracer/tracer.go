// Package tracer records processes by ptrace(2) where perf_event_open(2) is refused: in containers and on hardened kernels. Options come in; a
// source.RecordStream comes out. Its records are those of the kernel's sampling, with registers and a copy of the stack in each sample.
//
// At each tick, the running threads stop for some tens of microseconds. A thread is sampled where the clock interrupts it, so system calls have
// their share of the samples: see visit. If a thread runs on a signal's stack, or another, the sample also has a piece of the thread's first
// stack (source.AppendOther). Processor time that brings no samples counts as lost, beyond what may be chance. Inaccuracies remain:
//
//   - Without /proc/PID/sched, or on a processor this process may not run on, it stops threads from another processor. Short system calls
//     are then counted too often.
//   - Page faults and interrupts count for the instruction they interrupt.
//   - A tick visits 64 processors at most, and beyond eight none but those that threads ran on last.
//   - A thread that lost its processor to another just before the tracer came is not sampled: see displaced. Most of those that run for some
//     tens of microseconds at a time are lost that way, and counted.
//   - Where reading /proc/PID/stat waits for execve(2), as on Linux 6.18, some samples of that call fall on what the program does next.
//   - A library that takes the place of another of the same size is found at once where a sample has its code at the top of the stack, since
//     Linux 6.11. Otherwise the other's tables and names count for up to a second.
//   - A thread that has slept for two seconds is not sampled before it has run, unless another thread runs on its processor.
//
// Where the tracer gets no processor, ticks go by without a visit. For each tick's time that threads have run meanwhile, a sample counts as lost.
// A visit that is due while the tracer handles stops finds nobody: who waits for the tracer does not run.
//
// Signals, group-stops, exit statuses and the reports to the processes' parents stay as without a tracer. Two things change: set-user-ID
// programs get no rights, and some waiting system calls, such as epoll_wait(2), return EINTR when their thread is stopped. Waiting threads do
// not run, so they are left alone.
package tracer

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/source"
)

// Options describe the recording.
type Options struct {
	Frequency uint64 // ticks a second, up to MaxFrequency; 0 is DefaultFrequency
	StackSize uint32 // bytes to copy of each stack, a multiple of 8 up to MaxStackSize; 0 is 32 KiB

	PIDs    []int    // processes: their threads, and all that these start
	TIDs    []int    // threads, and nothing that they start
	Command []string // or else a program to start, with what it starts

	// Files are the command's standard input, output and error; nil: this program's.
	Files *[3]*os.File

	// Duration ends the recording after a while, as Stop does. 0: it does not.
	Duration time.Duration
}

const (
	DefaultFrequency = 99 // Hz: out of step with what runs a hundred times a second
	MaxFrequency     = 1000
	MaxStackSize     = 64000 // what a record has room for

	defaultStack = 32 << 10
)

// A Recorder is a recording that runs. Next is for one goroutine at a time; other methods may be called from any.
type Recorder struct {
	o    Options
	dec  *source.Decoder
	attr source.Attr
	tick time.Duration

	queue  queue
	cur    []byte        // of what Next returns
	ended  chan struct{} // closed when nothing is traced any more
	stop   chan struct{} // closed to end the recording
	over   bool          // then: the duration has
	once   sync.Once
	timer  *time.Timer
	detach func() bool // of Open's context
	lost   atomic.Uint64

	pid    int           // the command
	exited chan struct{} // closed when it has gone, and status is set
	status syscall.WaitStatus

	tracer // of the thread that traces
}

// Open starts a recording. It ends when the command exits, when all recorded threads are gone, when the duration is over, when Stop is
// called, or when ctx is done.
func Open(ctx context.Context, o Options) (*Recorder, error) {
	if o.Frequency == 0 {
		o.Frequency = DefaultFrequency
	}
	if o.StackSize == 0 {
		o.StackSize = defaultStack
	}
	switch {
	case ptrace.Machine == nil:
		return nil, fmt.Errorf("recording by ptrace: %w on this machine", source.ErrUnsupported)
	case o.Frequency > MaxFrequency:
		return nil, fmt.Errorf("recording by ptrace: %d Hz: at most %d", o.Frequency, MaxFrequency)
	case o.StackSize%8 != 0 || o.StackSize > MaxStackSize:
		return nil, fmt.Errorf("recording by ptrace: stack size %d: want a multiple of 8 up to %d", o.StackSize, MaxStackSize)
	case (len(o.Command) > 0) == (len(o.PIDs)+len(o.TIDs) > 0):
		return nil, errors.New("recording by ptrace: give either a command, or running processes and threads")
	}
	path := ""
	if len(o.Command) > 0 {
		var err error
		if path, err = exec.LookPath(o.Command[0]); err != nil {
			return nil, err
		}
	}
	r := &Recorder{
		o: o, dec: source.NewDecoder(), tick: time.Second / time.Duration(o.Frequency),
		ended: make(chan struct{}), stop: make(chan struct{}), exited: make(chan struct{}),
	}
	r.attr = source.Attr{
		Type: source.TypeSoftware, SamplePeriod: o.Frequency, // cpu-clock
		SampleType: source.SampleIP | source.SampleTID | source.SampleTime | source.SamplePeriod | source.SampleRegsUser | source.SampleStackUser,
		Flags: source.FlagFreq | source.FlagInherit | source.FlagExcludeCallchainKernel | source.FlagSampleIDAll | source.FlagUseClockID |
			source.FlagMmap | source.FlagMmap2 | source.FlagComm | source.FlagCommExec | source.FlagTask | source.FlagBuildID,
		ClockID: unix.CLOCK_MONOTONIC, SampleRegsUser: source.UserRegsMask(ptrace.Machine), SampleStackUser: o.StackSize,
	}
	r.dec.AddAttr(&r.attr, nil, r.Event())
	r.queue.init()
	r.tracer.init()

	begun := make(chan error)
	go func() {
		ptrace.Do(func() { r.trace(path, begun) })
		// The thread has ended, and has let go of what it traced. A command that is still there is asked to end, and waited for.
		r.queue.close()
		close(r.ended)
		r.reap()
	}()
	if err := <-begun; err != nil {
		return nil, err
	}
	if o.Duration > 0 {
		r.timer = time.AfterFunc(o.Duration, func() { r.end(true) })
	}
	r.detach = context.AfterFunc(ctx, r.Stop)
	return r, nil
}

// Decoder knows the recording's event.
func (r *Recorder) Decoder() *source.Decoder { return r.dec }

// Machine returns this process's machine.
func (r *Recorder) Machine() *arch.Machine { return ptrace.Machine }

// Event returns the recorded event's name, in perf's spelling.
func (r *Recorder) Event() string { return "cpu-clock" }

// EventNote describes this recording.
func (r *Recorder) EventNote() string {
	return fmt.Sprintf("sampling by ptrace: running threads stop %d times a second; stacks lack the kernel's frames", r.o.Frequency)
}

// Lost returns the number of samples that were lost so far: they found no room, or this process had no processor when they were due. What the
// threads' processor time lacks otherwise is counted at the end.
func (r *Recorder) Lost() uint64 { return r.lost.Load() }

// Next returns the next record: see source.RecordStream. It waits for one.
func (r *Recorder) Next() (raw []byte, buf *source.Buffer, err error) {
	if len(r.cur) == 0 {
		if r.cur, err = r.queue.take(); err != nil {
			return nil, nil, err
		}
	}
	n := recordSize(r.cur)
	raw, r.cur = r.cur[:n:n], r.cur[n:]
	return raw, nil, nil
}

// Stop ends the recording: Next returns the records left, then io.EOF. A command that is still there gets SIGTERM. Stop may be called again;
// it does not wait.
func (r *Recorder) Stop() { r.end(false) }

// end is Stop. over says that the duration is over.
func (r *Recorder) end(over bool) {
	r.once.Do(func() {
		r.over = over
		close(r.stop)
	})
}

// TimedOut says of a recording that has ended whether it did because the duration was over, and nothing else had ended it before.
func (r *Recorder) TimedOut() bool {
	select {
	case <-r.stop:
		return r.over
	default:
		return false
	}
}

// Wait waits for the command and returns how it ended. ok is false if there is none.
func (r *Recorder) Wait() (status syscall.WaitStatus, ok bool) {
	if r.pid == 0 {
		return 0, false
	}
	<-r.exited
	return r.status, true
}

// Close stops the recording, if it runs. It does not wait for the command. Records that Next has returned stay valid.
func (r *Recorder) Close() error {
	r.Stop()
	r.detach()
	if r.timer != nil {
		r.timer.Stop()
	}
	<-r.ended
	return nil
}

// reap asks a command that was let go of to end, and waits for it.
func (r *Recorder) reap() {
	select {
	case <-r.exited:
		return
	default:
	}
	if r.pid == 0 {
		close(r.exited)
		return
	}
	_ = unix.Kill(r.pid, unix.SIGTERM) // it may have gone by now
	for {
		var ws syscall.WaitStatus
		_, err := syscall.Wait4(r.pid, &ws, 0, nil)
		if err == syscall.EINTR {
			continue
		}
		if err == nil {
			r.status = ws
		}
		close(r.exited)
		return
	}
}
