package record

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/live"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// A Plan says what to record live, and who walks the stacks.
type Plan struct {
	perfevent.Options
	InKernel ebpf.Options // Memory, Cgroup, Comm, Wakers, Heap and NoCopies
	Source   string       // one of Sources; Auto where it is empty
	Fallback bool         // to ptrace, where perf events are refused
	Only     string       // what only the kernel's program can do, as its user calls it; "": nothing
	OffCPU   bool         // the event is perfevent.OffCPU: for Check
}

// The sources: who walks stacks.
const (
	Auto   = "auto"   // the first of the others that may
	EBPF   = "ebpf"   // the kernel
	Perf   = "perf"   // this program, copies that the kernel makes
	Ptrace = "ptrace" // this program, threads that are stopped
)

// Sources are all of them.
func Sources() []string { return []string{Auto, EBPF, Perf, Ptrace} }

// Target says what is recorded: the command, "pid 12 34" or "whole machine".
func (p *Plan) Target() string {
	switch {
	case len(p.Command) > 0:
		return strings.Join(p.Command, " ")
	case len(p.PIDs) > 0:
		return "pid " + strings.Trim(fmt.Sprint(p.PIDs), "[]")
	}
	return "whole machine"
}

// A recorder is what records live.
type recorder interface {
	source.RecordStream
	Machine() *arch.Machine
	Event() string     // what is recorded
	EventNote() string // in what that differs from what was asked for
	Stop()
	TimedOut() bool // it ended because its duration was over
	Close() error
}

// A Live is a recording that runs.
type Live struct {
	recorder
	perf    *perfevent.Recorder // it is one of these two
	trace   *tracer.Recorder
	prog    *ebpf.Program // nil: stacks are copied and walked here
	why     error         // the kernel cannot walk stacks here
	refused error         // perf events are, so this is by ptrace
	plan    *Plan

	Start  time.Time     // of setting it up
	Since  time.Time     // it records
	Loaded time.Duration // that loading the kernel's program took
}

// Open starts a recording, and the command if there is one.
func (p *Plan) Open(ctx context.Context, mods *modules.Set) (*Live, error) {
	l := &Live{plan: p, Start: time.Now()}
	if p.Source != Perf && p.Source != Ptrace {
		err := l.inKernel(ctx, mods)
		if err == nil {
			return l, nil
		}
		if p.Source == EBPF || l.why == nil && !p.Fallback {
			return nil, p.goOn(err)
		}
	}
	err := error(nil)
	if p.Source != Ptrace {
		if err = l.use(perfevent.Open(ctx, p.Options)); err == nil {
			return l, nil
		}
	}
	if p.Source == Ptrace || p.Fallback && refused(err) && !unstarted(err) {
		r, terr := tracer.Open(ctx, tracer.Options{
			Frequency: p.Frequency, StackSize: p.StackSize, PIDs: p.PIDs, TIDs: p.TIDs, Command: p.Command, Files: p.Files, Duration: p.Duration,
		})
		if terr == nil {
			l.recorder, l.trace, l.refused, l.Since = r, r, err, time.Now()
			return l, nil
		}
		if err == nil || !errors.Is(terr, unix.EPERM) && !errors.Is(terr, unix.EACCES) {
			return nil, terr
		}
		err = fmt.Errorf("%w; and by ptrace: %w", err, terr)
	}
	return nil, err
}

// refused says whether an error of perf events is one that ptrace need not meet.
func refused(err error) bool {
	for _, e := range []error{unix.EPERM, unix.EACCES, unix.ENOSYS, unix.ENOENT, unix.EOPNOTSUPP, unix.ENODEV, errors.ErrUnsupported} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// unstarted says whether an error is that a command cannot be started.
func unstarted(err error) bool {
	var e *exec.Error
	return errors.As(err, &e)
}

// use makes rec the recorder.
func (l *Live) use(rec *perfevent.Recorder, err error) error {
	if err == nil {
		l.recorder, l.perf, l.Since = rec, rec, time.Now()
	}
	return err
}

// inKernel starts a recording whose stacks the kernel walks. Where it may not, l.why says so; any other error is one that
// copies would meet, too.
func (l *Live) inKernel(ctx context.Context, mods *modules.Set) error {
	if arch.Host() != ebpf.Machine {
		l.why = fmt.Errorf("walking in the kernel: %w on %s", errors.ErrUnsupported, runtime.GOARCH)
		return l.why
	}
	k := l.plan.InKernel
	k.Mods, k.Identify, k.Command = mods.Module, names.ByInode, l.plan.Command
	prog, err := ebpf.Load(k)
	if err != nil {
		if l.why = err; errors.Is(err, os.ErrPermission) && l.plan.Only != "" {
			l.why = fmt.Errorf("%s needs root (or CAP_BPF and CAP_PERFMON)", l.plan.Only)
		}
		return l.why
	}
	l.Loaded = time.Since(l.Start)
	o := l.plan.Options
	o.Program, o.NoCopies = prog, k.NoCopies
	if err = l.use(perfevent.Open(ctx, o)); err != nil {
		prog.Close()
		if errors.Is(err, errors.ErrUnsupported) || errors.As(err, new(*ebpf.VerifierError)) {
			l.why = err
		}
		return err
	}
	l.prog = prog
	return nil
}

// Close ends the recording.
func (l *Live) Close() error {
	err := l.recorder.Close()
	if l.prog != nil {
		err = errors.Join(err, l.prog.Close())
	}
	return err
}

// walks says who walks stacks.
func (l *Live) walks() string {
	switch {
	case l.prog != nil:
		return "walking stacks in the kernel"
	case l.plan.CallGraph == perfevent.FramePointer:
		return "following frame pointers in the kernel"
	case l.trace != nil:
		return "sampling by ptrace"
	}
	return "walking copies of stacks"
}

// CheckCgroup says what is wrong with the cgroup, if there is one and the kernel could not take it.
func (p *Plan) CheckCgroup() error {
	var st unix.Statfs_t
	if err := unix.Statfs(p.InKernel.Cgroup, &st); p.InKernel.Cgroup == "" || err != nil || st.Type == unix.CGROUP2_SUPER_MAGIC {
		return nil // opening says what else is wrong
	}
	where := "cgroup v2 is not mounted: sudo mount -t cgroup2 none /sys/fs/cgroup"
	if at := procfs.Mounted("cgroup2"); at != "" {
		where = "its directories are below " + at
	}
	return fmt.Errorf("%s: not a directory of cgroup v2; %s", p.InKernel.Cgroup, where)
}

// Summary says who walks stacks, and what that takes.
func (l *Live) Summary() string {
	if l.prog == nil {
		return l.walks()
	}
	st := l.prog.Stats()
	s := fmt.Sprintf("%s: %s of %.1f MiB for %s", l.walks(), profile.Count(uint64(st.Tables), "table", "tables"),
		float64(st.TableBytes)/(1<<20), profile.Count(uint64(st.Processes), "process", "processes"))
	if st.Copied > 0 {
		s += ", " + profile.Count(st.Copied, "copy", "copies") + " so far"
	}
	if st.CutOff > 0 {
		s += ", " + profile.Count(st.CutOff, "stack", "stacks") + " cut off so far"
	}
	return s
}

// Notes says in what the recording is not what was asked for, and where stacks are walked if that was left open.
func (l *Live) Notes() (out []string) {
	if l.refused != nil {
		out = append(out, l.refused.Error())
	}
	if note := l.EventNote(); note != "" {
		out = append(out, note)
	}
	if l.plan.All && !procfs.FirstPIDs() {
		what := "only processes of this container are recorded"
		if l.prog == nil {
			what = "processes outside this container have no names, and count as swapper's"
		}
		out = append(out, what+": run it outside, or start the container with --pid=host")
	}
	if st := l.Kernel(); st != nil && st.AtBegin {
		out = append(out, "stacks are walked at each wait's beginning: this kernel lets nobody trace its function finish_task_switch")
	}
	switch {
	case l.trace != nil:
	case l.plan.Source != Auto && l.plan.Source != "":
	case l.prog != nil:
		out = append(out, l.walks())
	case l.why != nil && (os.Geteuid() == 0 || errors.As(l.why, new(*ebpf.VerifierError))):
		out = append(out, fmt.Sprintf("%s, not in the kernel: %v", l.walks(), l.why))
	}
	return out
}

// Kernel returns what the kernel's program counts; nil where none walks.
func (l *Live) Kernel() *ebpf.Stats {
	if l.prog == nil {
		return nil
	}
	st := l.prog.Stats()
	return &st
}

// Unplugged returns how many processors have come online and cannot be recorded.
func (l *Live) Unplugged() int {
	if l.perf == nil {
		return 0
	}
	return l.perf.Stats().Unplugged
}

// Heap returns what the probes of ebpf.Heap have seen.
func (l *Live) Heap() ebpf.HeapStats {
	if l.prog == nil {
		return ebpf.HeapStats{}
	}
	return l.prog.HeapStats()
}

// MaxThreshold bounds SetPace's threshold.
const MaxThreshold = ebpf.MaxThreshold

// SetPace changes how much the kernel's program records: one of so many events takes a sample, which counts for all of them, and waits are thinned below
// a threshold (0: as it is). It fails where no such program walks.
func (l *Live) SetPace(oneOf uint32, threshold time.Duration) error {
	if l.prog == nil {
		return errors.ErrUnsupported
	}
	err := l.prog.SetOneOf(oneOf)
	if threshold > 0 {
		err = errors.Join(err, l.prog.SetThreshold(threshold))
	}
	return err
}

// Lost counts the samples that the recorder has lost so far.
func (l *Live) Lost() uint64 {
	if l.trace != nil {
		return l.trace.Lost()
	}
	st := l.perf.Stats()
	n := st.Lost + st.LostSamples
	if l.prog != nil {
		k := l.prog.Stats()
		n += k.Lost()
	}
	return n
}

// ExitStatus waits for the command and returns the status that a shell would give it, and a note for people where something is unusual; 0
// without a command. ours says that the recording ended first, and the command by it: then the status is 0. Then, and when ctx ends, a command
// that ignores SIGTERM is left running after two seconds.
func (l *Live) ExitStatus(ctx context.Context, ours bool) (status int, note string, err error) {
	type result struct {
		status syscall.WaitStatus
		ok     bool
		err    error
	}
	done := make(chan result, 1)
	go func() {
		status, ok, err := l.wait()
		done <- result{status, ok, err}
	}()
	var r result
	var patience <-chan time.Time
	if ours || ctx.Err() != nil {
		patience = time.After(2 * time.Second)
	}
	select {
	case r = <-done:
	case <-patience:
		return 0, "the command is still running", nil
	}
	switch {
	case r.err != nil || !r.ok || ours:
		return 0, "", r.err
	case !r.status.Signaled():
		return r.status.ExitStatus(), "", nil
	case ctx.Err() == nil:
		note = fmt.Sprintf("a signal ended the command: %v", r.status.Signal())
	}
	return 128 + int(r.status.Signal()), note, nil
}

// wait waits for the command and returns how it ended. ok is false if there is none.
func (l *Live) wait() (status syscall.WaitStatus, ok bool, err error) {
	if l.trace != nil {
		status, ok = l.trace.Wait()
		return status, ok, nil
	}
	state, err := l.perf.Wait()
	if state != nil {
		status, ok = state.Sys().(syscall.WaitStatus)
	}
	return status, ok, err
}

// Session returns a session over the recording.
func (l *Live) Session(o Options) *Session {
	s := newSession(l.recorder, perfdata.Host, o)
	s.identify = names.ByInode
	s.ours, s.unsaid, s.framePointers = l.prog != nil, l.unsaid, l.plan.CallGraph == perfevent.FramePointerOrCFI
	s.noCopies = l.plan.InKernel.NoCopies
	s.registered = (&live.Registers{Files: o.Mods.Files}).Registered
	if len(l.plan.Command) == 0 {
		s.howFar = func() string { return fmt.Sprintf("recording %s: %.0f s", l.Event(), time.Since(l.Since).Seconds()) }
	}
	s.machine, s.Info.Host, s.Info.Command, s.Info.Start = l.Machine(), perfdata.Host().Hostname, strings.Join(l.plan.Command, " "), l.Start
	return s
}

// unsaid counts the samples that were lost without a record that says so: those of the kernel's program.
func (l *Live) unsaid() uint64 {
	if l.prog == nil {
		return 0
	}
	st := l.prog.Stats()
	return st.Lost()
}

// EndNotes says what is to be known of a recording that has ended.
func (l *Live) EndNotes() (out []string) {
	if n := l.Unplugged(); n > 0 {
		why := "record -a, as root, includes them"
		if l.plan.All {
			why = "a running recording lacks the right"
		}
		out = append(out, profile.Count(uint64(n), "processor that came online is", "processors that came online are")+" not recorded: "+why)
	}
	if l.prog == nil {
		return out
	}
	st := l.prog.Stats()
	if st.Outside > 0 {
		out = append(out, profile.Count(st.Outside, "sample was", "samples were")+" not taken, of processes outside this container: run it outside, or start the container with --pid=host")
	}
	if st.Evicted > 0 {
		out = append(out, profile.Count(uint64(st.Evicted), "unwind table was", "unwind tables were")+" evicted from the kernel's memory, and their stacks copied: give more --memory")
	}
	if n := l.perf.Stats().Shortened; n > 0 {
		out = append(out, profile.Count(n, "copy of a stack was", "copies of stacks were")+" shortened, because many waited: --stack-size keeps them, and takes more memory")
	}
	if st.CutOff > 0 {
		out = append(out, profile.Count(st.CutOff, "stack is", "stacks are")+" cut off, because the kernel did not yet have what leads on, and no stack, or not so many, were to be copied")
	}
	if st.Blind && l.plan.InKernel.NoCopies {
		out = append(out, "threads that were blocked already count from when they next run: their stacks were not to be copied")
	} else if st.Blind && (l.plan.All || len(l.plan.Command) == 0) {
		out = append(out, "threads that were blocked already count from when they next run: Linux 5.18 and later can copy their stacks")
	}
	if st.Failed > 0 {
		out = append(out, fmt.Sprintf("%s could not be loaded into the kernel: %v", profile.Count(uint64(st.Failed), "table or address space", "tables or address spaces"), st.Err))
	}
	return out
}
