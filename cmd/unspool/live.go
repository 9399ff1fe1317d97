package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// A plan says what to record live, and where stacks are walked: what the flags of record and top say alike.
type plan struct {
	perfevent.Options
	kernel ebpf.Options // Memory, Cgroup and Comm
	from   string       // auto, ebpf, perf or ptrace
	fall   bool         // from the kernel's events to ptrace, where they are refused
	comm   string
	memory string

	withNames bool // the recording brings its names
	offCPU    bool
	given     func(flag string) bool // whether it is on the command line
	must      string                 // the flag that only the kernel's program can do; "": none
}

func (p *plan) flags(c *cobra.Command) {
	f := c.Flags()
	f.Uint64VarP(&p.Frequency, "frequency", "F", 0, fmt.Sprintf("samples a second on each processor (default %d)", perfevent.DefaultFrequency))
	f.Uint64VarP(&p.Period, "count", "c", 0, "take a sample every so many events, instead of a frequency")
	f.StringVarP(&p.Event, "event", "e", "", "what to count, as perf spells it (default: cycles, or cpu-clock where the machine has no counters)")
	f.BoolVar(&p.offCPU, "off-cpu", false, "count the time for which threads are blocked, as -e off-cpu: only with --source ebpf (root)")
	f.BoolVar(&p.kernel.Wakers, "wakers", false, "with --off-cpu: who woke each thread, its stack upside down above that of the wait")
	f.Uint32Var(&p.StackSize, "stack-size", 0, "bytes of each stack to copy and unwind (default: 32 KiB, or all that the kernel copies where it walks most stacks)")
	f.BoolVar(&p.User, "user", false, "only count in user space")
	f.BoolVar(&p.Kernel, "kernel", false, "only count in the kernel")
	f.IntSliceVarP(&p.PIDs, "pid", "p", nil, "record these processes, and what they start")
	f.BoolVarP(&p.All, "all", "a", false, "record the whole machine")
	f.StringVar(&p.from, "source", "auto", "ebpf: the kernel walks stacks, to any depth up to 1,024 frames (root, x86-64, Linux 6.1); perf: it copies them, and they are walked here; ptrace: threads that run are stopped and looked at, which takes no events; auto: the first of these that may")
	f.StringVar(&p.comm, "comm", "", "only samples of commands that match this regular expression")
	f.StringVar(&p.kernel.Cgroup, "cgroup", "", "only tasks in this directory of cgroup v2 and below, of the whole machine unless told otherwise: only with --source ebpf (root)")
	f.StringVar(&p.memory, "memory", "", "memory of the kernel's for unwind tables, such as 512M; those not used for longest go first (default 1G)")
	// What perf's users type: stacks are recorded without.
	f.BoolP("with-stacks", "g", false, "")
	f.String("call-graph", "", "")
	for _, name := range []string{"with-stacks", "call-graph"} {
		f.MarkHidden(name)
	}
	p.given = f.Changed
	c.RegisterFlagCompletionFunc("source", cobra.FixedCompletions([]string{"auto", "ebpf", "perf", "ptrace"}, cobra.ShellCompDirectiveNoFileComp))
}

// check refuses what contradicts itself. It is called when the flags are known.
func (p *plan) check(stepper string, flt *filter) error {
	if p.given("with-stacks") || p.given("call-graph") {
		fmt.Fprintln(stderr, "unspool: stacks are always recorded, and walked by unwind tables: -g and --call-graph change nothing")
	}
	if p.kernel.Cgroup != "" && len(p.Command)+len(p.PIDs)+len(p.TIDs) == 0 {
		p.All = true
	}
	targets := 0
	for _, given := range []bool{len(p.Command) > 0 || p.All, len(p.PIDs) > 0, len(p.TIDs) > 0} {
		if given {
			targets++
		}
	}
	switch {
	case targets == 0:
		return usage("nothing to record: give a command, -p PID, -t TID or -a")
	case targets > 1:
		return usage("a command, -p, -t and -a exclude each other; a command with -a records everything while it runs")
	case p.given("frequency") && p.Frequency == 0:
		return usage("-F is a number of samples a second, from 1 on")
	case p.given("count") && p.Period == 0:
		return usage("-c is a number of events, from 1 on")
	case p.Frequency > 0 && p.Period > 0:
		return usage("-F and -c exclude each other")
	case p.User && p.Kernel:
		return usage("--user and --kernel exclude each other; without either, both are recorded")
	case p.StackSize%8 != 0 || p.StackSize > perfevent.MaxStackSize:
		return usage("--stack-size is a multiple of 8 up to %d", perfevent.MaxStackSize)
	case p.from != "auto" && p.from != "perf" && p.from != "ebpf" && p.from != "ptrace":
		return usage("--source is auto, ebpf, perf or ptrace, not %q", p.from)
	case p.from == "ptrace" && p.untraceable() != "":
		return usage("%s: not by --source ptrace", p.untraceable())
	case p.from == "ebpf" && stepper != "compact":
		return usage("--source ebpf walks by compact tables, not --stepper %s", stepper)
	case p.offCPU && p.Event != "" && p.Event != perfevent.OffCPU:
		return usage("--off-cpu and -e %s exclude each other", p.Event)
	}
	if p.offCPU {
		p.Event = perfevent.OffCPU
	}
	if p.Event == perfevent.OffCPU && (p.Frequency > 0 || p.Period > 1) {
		return usage("--off-cpu records each wait: -F and -c do not go with it")
	}
	if p.kernel.Wakers && p.Event != perfevent.OffCPU {
		return usage("--wakers takes --off-cpu: only waits end by being woken")
	}
	must := ""
	switch {
	case p.Event == perfevent.OffCPU:
		must = "--off-cpu"
	case p.kernel.Cgroup != "":
		must = "--cgroup"
	case p.memory != "" && p.from != "auto" && p.from != "ebpf":
		must = "--memory"
	}
	p.must = must
	p.fall = p.from == "auto" && p.untraceable() == ""
	switch {
	case must != "" && stepper != "compact":
		return usage("%s walks by compact tables, not --stepper %s", must, stepper)
	case must != "" && (p.from == "perf" || p.from == "ptrace"):
		return usage("%s works only with --source ebpf (root)", must)
	case must != "" && p.from == "auto":
		p.from = "ebpf"
	case stepper != "compact" && p.from == "auto":
		p.from = "perf"
	}
	var err error
	if p.kernel.Memory, err = parseSize(p.memory); err != nil {
		return err
	}
	flt.comm = p.comm
	if err := flt.compile(); err != nil {
		return err
	}
	if flt.re != nil {
		p.kernel.Comm = flt.re.MatchString
	}
	return nil
}

// untraceable says what of p ptrace cannot do, or is empty.
func (p *plan) untraceable() string {
	switch {
	case p.All:
		return "-a"
	case p.Kernel:
		return "--kernel"
	case p.Period > 0:
		return "-c"
	case p.Frequency > tracer.MaxFrequency:
		return fmt.Sprintf("-F over %d", tracer.MaxFrequency)
	case p.StackSize > tracer.MaxStackSize:
		return fmt.Sprintf("--stack-size over %d", tracer.MaxStackSize)
	case p.offCPU || p.kernel.Cgroup != "" || p.memory != "":
		return "--off-cpu, --cgroup and --memory"
	case p.Event != "" && p.Event != "cpu-clock" && p.Event != "cycles":
		return "-e " + p.Event
	}
	return ""
}

// parseSize reads a number of bytes, of KiB, MiB or GiB with K, M or G; "" is 0.
func parseSize(s string) (uint64, error) {
	if s == "" {
		return 0, nil
	}
	digits, shift := s, 0
	for i, unit := range "KMG" {
		if d, ok := strings.CutSuffix(s, string(unit)); ok {
			digits, shift = d, 10*(i+1)
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n == 0 {
		return 0, usage("--memory is a size such as 512M, not %q", s)
	}
	return n << shift, nil
}

// A recorder is what records live.
type recorder interface {
	source.RecordStream
	Machine() *arch.Machine
	Event() string     // what is recorded
	EventNote() string // in what that differs from what was asked for
	Stop()
	Close() error
}

// A live is a recording that runs.
type live struct {
	recorder
	perf    *perfevent.Recorder // it is one of these two
	trace   *tracer.Recorder
	prog    *ebpf.Program // nil: stacks are copied and walked here
	why     error         // it was to be seen whether the kernel may walk, and it may not
	refused error         // perf events are, so this is by ptrace
	start   time.Time     // of setting it up
	since   time.Time     // it records
	plan    *plan

	loaded time.Duration // that loading the kernel's program took
}

// open starts a recording, and the command if there is one.
func (p *plan) open(ctx context.Context, mods *modules.Set) (*live, error) {
	l := &live{plan: p, start: time.Now()}
	if p.from != "perf" && p.from != "ptrace" {
		err := l.inKernel(ctx, mods)
		if err == nil {
			return l, nil
		}
		if p.from == "ebpf" || l.why == nil && !p.fall {
			return nil, err
		}
	}
	err := error(nil)
	if p.from != "ptrace" {
		if err = l.use(perfevent.Open(ctx, p.Options)); err == nil {
			return l, nil
		}
	}
	if p.from == "ptrace" || p.fall && refused(err) && !unstarted(err) {
		r, terr := tracer.Open(ctx, tracer.Options{
			Frequency: p.Frequency, StackSize: p.StackSize, PIDs: p.PIDs, TIDs: p.TIDs, Command: p.Command, Duration: p.Duration,
		})
		if terr == nil {
			l.recorder, l.trace, l.refused, l.since = r, r, err, time.Now()
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
func (l *live) use(rec *perfevent.Recorder, err error) error {
	if err == nil {
		l.recorder, l.perf, l.since = rec, rec, time.Now()
	}
	return err
}

// inKernel starts a recording whose stacks the kernel walks. Where it may not, l.why says so; any other error is one that
// copies would meet, too.
func (l *live) inKernel(ctx context.Context, mods *modules.Set) error {
	if runtime.GOARCH != "amd64" {
		l.why = fmt.Errorf("walking in the kernel: %w on %s", errors.ErrUnsupported, runtime.GOARCH)
		return l.why
	}
	k := l.plan.kernel
	k.Mods, k.Command = mods.Module, l.plan.Command
	prog, err := ebpf.Load(k)
	if err != nil {
		if l.why = err; errors.Is(err, os.ErrPermission) && l.plan.must != "" {
			l.why = fmt.Errorf("%s needs root (or CAP_BPF and CAP_PERFMON)", l.plan.must)
		}
		return l.why
	}
	l.loaded = time.Since(l.start)
	o := l.plan.Options
	o.Program = prog
	if err = l.use(perfevent.Open(ctx, o)); err != nil {
		prog.Close()
		if errors.Is(err, errors.ErrUnsupported) {
			l.why = err
		}
		return err
	}
	l.prog = prog
	return nil
}

// Close ends the recording.
func (l *live) Close() error {
	err := l.recorder.Close()
	if l.prog != nil {
		err = errors.Join(err, l.prog.Close())
	}
	return err
}

// walks says who walks stacks.
func (l *live) walks() string {
	switch {
	case l.prog != nil:
		return "walking stacks in the kernel"
	case l.trace != nil:
		return "sampling by ptrace"
	}
	return "walking copies of stacks"
}

// Summary says who walks stacks, and what that takes.
func (l *live) Summary() string {
	if l.prog == nil {
		return l.walks()
	}
	st := l.prog.Stats()
	s := fmt.Sprintf("%s: %s of %.1f MiB for %s", l.walks(), number(uint64(st.Tables), "table", "tables"),
		float64(st.TableBytes)/(1<<20), number(uint64(st.Processes), "process", "processes"))
	if st.Copied > 0 {
		s += ", " + number(st.Copied, "copy", "copies") + " so far"
	}
	return s
}

// number says how many there are of something.
func number(n uint64, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return profile.Comma(n) + " " + many
}

// note says on standard error in what the recording is not what was asked for, and where stacks are walked if that was left
// open.
func (l *live) note() {
	if l.refused != nil {
		fmt.Fprintf(stderr, "unspool: %v\n", l.refused)
	}
	if note := l.EventNote(); note != "" {
		fmt.Fprintf(stderr, "unspool: %s\n", note)
	}
	switch {
	case l.trace != nil:
	case l.plan.from != "auto":
	case l.prog != nil:
		fmt.Fprintf(stderr, "unspool: %s\n", l.walks())
	case l.why != nil && os.Geteuid() == 0:
		fmt.Fprintf(stderr, "unspool: %s, not in the kernel: %v\n", l.walks(), l.why)
	}
}

// Lost counts the samples that the recorder has lost so far.
func (l *live) Lost() uint64 {
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

// wait waits for the command and returns how it ended. ok is false if there is none.
func (l *live) wait() (status syscall.WaitStatus, ok bool, err error) {
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

// session returns a session over the recording.
func (l *live) session(mods *modules.Set, flt *filter) *session {
	s := newSession(mods, l.recorder, flt)
	s.ours, s.unsaid = l.prog != nil, l.unsaid
	s.machine, s.info.Host, s.info.Command, s.info.Start = l.Machine(), perfdata.Host().Hostname, strings.Join(l.plan.Command, " "), l.start
	return s
}

// unsaid counts the samples that were lost without a record that says so: those of the kernel's program.
func (l *live) unsaid() uint64 {
	if l.prog == nil {
		return 0
	}
	st := l.prog.Stats()
	return st.Lost()
}

// settle says what is to be known of a recording that has ended.
func (l *live) settle() {
	if l.prog == nil {
		return
	}
	st := l.prog.Stats()
	if st.Evicted > 0 {
		fmt.Fprintf(stderr, "unspool: %s unwind tables had to leave the kernel's memory, and their stacks were copied: give more --memory\n", profile.Comma(uint64(st.Evicted)))
	}
	if st.Failed > 0 {
		fmt.Fprintf(stderr, "unspool: %s tables or address spaces did not get into the kernel: %v\n", profile.Comma(uint64(st.Failed)), st.Err)
	}
}
