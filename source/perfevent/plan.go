package perfevent

import (
	"errors"
	"fmt"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
	"time"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/source"
)

// A plan is what to open for every target: what this kernel takes of what was asked for.
type plan struct {
	attr  source.Attr // disabled
	level int         // of kernel.perf_event_paranoid that permits it
}

// level returns the highest kernel.perf_event_paranoid at which an ordinary user may record e
// (Documentation/admin-guide/sysctl/kernel.rst).
func (e *event) level(o *Options) int {
	switch {
	case e.typ == source.TypeTracepoint:
		return -1
	case o.All:
		return 0
	case o.Kernel || e.mods.kernel || e.kernelOnly:
		return 1
	}
	return 2
}

// openEvent is perf_event_open(2).
func openEvent(a *source.Attr, pid, cpu, group int, flags uint) (fd int, err error) {
	b := a.Append(make([]byte, 0, source.AttrSizeVer8))
	for {
		n, _, e := unix.Syscall6(unix.SYS_PERF_EVENT_OPEN, uintptr(unsafe.Pointer(&b[0])), uintptr(pid), uintptr(cpu), uintptr(group), uintptr(flags)|unix.PERF_FLAG_FD_CLOEXEC, 0)
		switch e {
		case 0:
			return int(n), nil
		case unix.EINTR:
		default:
			return -1, e
		}
	}
}

// plan opens the rings and finds out what can be recorded.
func (r *Recorder) plan(o *Options) (*plan, error) {
	asked := o.Event
	if asked == "" {
		asked = "cycles"
	}
	e, err := parseEvent(asked, kernelPlaces)
	if err != nil {
		return nil, err
	}
	if r.cpus, err = onlineCPUs(); err != nil {
		return nil, err
	}
	a := source.Attr{
		SampleType:     source.SampleIP | source.SampleTID | source.SampleTime | source.SampleCPU | source.SamplePeriod | source.SampleRegsUser | source.SampleStackUser,
		Flags:          source.FlagDisabled | source.FlagMmap | source.FlagMmap2 | source.FlagComm | source.FlagCommExec | source.FlagTask | source.FlagSampleIDAll | source.FlagUseClockID,
		ClockID:        unix.CLOCK_MONOTONIC,
		ReadFormat:     source.FormatTotalTimeEnabled, // see target.missed
		SampleRegsUser: source.UserRegsMask(r.machine),
	}
	if o.CallGraph == FramePointer || o.NoCopies {
		a.SampleType &^= source.SampleRegsUser | source.SampleStackUser
		a.SampleRegsUser = 0
	}
	if o.Program != nil {
		a.SampleType |= source.SampleIdentifier // tells the program's samples from the kernel's
		if err := r.trig(o, &e); err != nil {
			return nil, err
		}
	}
	r.rate(o, &e, &a)
	if err := r.openRings(o, &a); err != nil {
		return nil, err
	}
	if len(o.TIDs) == 0 {
		a.Flags |= source.FlagInherit
	}
	if err := e.where(o, &a); err != nil {
		return nil, err
	}
	free := !o.User && !o.Kernel && !e.mods.kernel && !e.mods.user // nobody said which space to record
	p := &plan{attr: a, level: e.level(o)}
	for {
		e.set(&p.attr)
		p.attr.SampleType &^= source.SampleCallchain
		p.attr.Flags &^= source.FlagExcludeCallchainUser
		switch {
		case o.CallGraph != CFI:
			p.attr.SampleType |= source.SampleCallchain
		case !p.attr.Has(source.FlagExcludeKernel):
			// The user part comes from the stack copy.
			p.attr.SampleType |= source.SampleCallchain
			p.attr.Flags |= source.FlagExcludeCallchainUser
		}
		err := r.try(o, &p.attr)
		switch {
		case err == nil:
			r.event = e.spelled(&p.attr)
			counts := p.attr
			if counts.ReadFormat |= source.FormatLost; r.try(o, &counts) == nil {
				p.attr = counts
			}
			if e.wide(o) && r.try(&Options{All: true}, &p.attr) == nil {
				r.tree = source.NewTree(leaders(o.PIDs))
				r.trigger.Tree = r.tree
			} else if e.uprobe && o.Program == nil && p.attr.Has(source.FlagInherit) && !o.All {
				r.note("after a process has started another, the kernel may miss its passes of this uprobe, uncounted; root does not lose them")
			}
			return p, nil
		case isPermission(err) && p.attr.SampleType&source.SampleRaw != 0:
			p.attr.SampleType &^= source.SampleRaw
			e.noRaw = true
		case isPermission(err) && free && !e.kernelOnly && !p.attr.Has(source.FlagExcludeKernel):
			p.attr.Flags |= source.FlagExcludeKernel | source.FlagExcludeHV
			r.note("kernel.perf_event_paranoid=%s: user space only", paranoid())
		case o.Event == "" && e.typ == source.TypeHardware && isAbsent(err):
			r.note("no hardware counters here: using cpu-clock")
			if e, err = parseEvent("cpu-clock", kernelPlaces); err != nil {
				return nil, err
			}
		case isAbsent(err):
			return nil, fmt.Errorf("event %q: this machine lacks it (%w)", asked, err)
		default:
			return nil, explain(err, "recording "+asked, p.level)
		}
	}
}

// trig finds out when the program takes samples.
func (r *Recorder) trig(o *Options, e *event) error {
	cannot := func(why string) error {
		return fmt.Errorf("event %q: a program in the kernel: %w: %s", o.Event, source.ErrUnsupported, why)
	}
	r.trigger = source.Trigger{All: o.All, Children: len(o.TIDs) == 0}
	switch {
	case o.Event == OffCPU:
		r.trigger.Kind = source.OnBlocking
		if o.Frequency > 0 || o.Period > 1 {
			return cannot("each time is counted, without -F and -c")
		}
	case o.Event == Allocations:
		r.trigger.Kind = source.OnAllocations
	case e.typ == source.TypeTracepoint:
		r.trigger.Kind, r.trigger.Period = source.OnTracepoints, max(o.Period, 1)
		if e.probe {
			r.trigger.Kind = source.OnProbes
		}
		if o.Frequency > 0 {
			return cannot("tracepoints have no frequency")
		}
	}
	if r.trigger.Waits = o.Waits && r.trigger.Kind != source.OnBlocking; r.trigger.Waits && r.trigger.Kind != source.OnEvents {
		return cannot("waits are recorded beside clocks and counters only")
	}
	if (r.trigger.Kind != source.OnEvents || o.Waits) && len(o.TIDs) > 0 {
		return cannot("it knows processes, not single threads")
	}
	if e.mods.precise > 0 {
		return cannot("the registers of a precise sample are not those of the stack")
	}
	return nil
}

// leaders are the processes that pids are threads of.
func leaders(pids []int) (out []int32) {
	for _, pid := range pids {
		out = append(out, int32(procfs.Leader(pid)))
	}
	return out
}

// wide says whether o, a command or processes, is better recorded by events of the processors, whose samples of others are left out: those that sample by
// time or by what the processor does. Each process has its own events otherwise, which begin anew with it and miss the short ones. So are uprobes:
// the kernel exchanges the events of a process and of its child, and loses sight of whose breakpoints they want: see openOwn.
func (e *event) wide(o *Options) bool {
	if o.All || len(o.TIDs) > 0 || o.narrow {
		return false
	}
	if e.uprobe {
		return o.Program == nil // a program has an event of its own, for all processes
	}
	if len(o.PIDs) > 0 && o.Program == nil {
		return false // nothing but a program leaves others out before their stacks are copied, and these may be many for long
	}
	return e.clock() || e.typ == source.TypeHardware || e.typ == source.TypeHWCache || e.typ == source.TypeRaw
}

// try opens a and closes it: on all processors' behalf, or on this process's.
func (r *Recorder) try(o *Options, a *source.Attr) error {
	pid, cpu := os.Getpid(), -1
	if o.All {
		pid, cpu = -1, r.cpus[0]
	}
	fd, err := openEvent(a, pid, cpu, -1, 0)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// where sets which spaces a counts in, by the options and the event's modifiers.
func (e *event) where(o *Options, a *source.Attr) error {
	user, kernel := o.User, o.Kernel
	if !user && !kernel {
		user, kernel = true, true
	}
	if e.mods.user || e.mods.kernel || e.mods.hv {
		user, kernel = user && e.mods.user, kernel && e.mods.kernel
	}
	switch {
	case !user && !kernel:
		return fmt.Errorf("event %q: these modifiers and options leave nothing to record", e.name)
	case !kernel && e.kernelOnly:
		return fmt.Errorf("event %q happens in the kernel, which the options leave out", e.name)
	}
	if !user {
		a.Flags |= source.FlagExcludeUser
	}
	if !kernel {
		a.Flags |= source.FlagExcludeKernel
	}
	if !kernel && !e.mods.hv {
		a.Flags |= source.FlagExcludeHV
	}
	if e.mods.noIdle {
		a.Flags |= source.FlagExcludeIdle
	}
	if e.mods.host || e.mods.guest {
		if !e.mods.host {
			a.Flags |= source.FlagExcludeHost
		}
		if !e.mods.guest {
			a.Flags |= source.FlagExcludeGuest
		}
	} else if e.typ == source.TypeHardware || e.typ == source.TypeHWCache || e.typ == source.TypeRaw {
		a.Flags |= source.FlagExcludeGuest // a guest's stack is out of reach
	}
	return nil
}

// set sets what a counts. The default is not precise: the registers of a precise sample are those of an earlier
// instruction than the copy of the stack is.
func (e *event) set(a *source.Attr) {
	a.Type, a.Config, a.Config1, a.Config2, a.BPType = e.typ, e.config, e.config1, e.config2, e.bpType
	a.Flags = a.Flags&^(source.FlagPreciseIP1|source.FlagPreciseIP2) | uint64(e.mods.precise)*source.FlagPreciseIP1
	if e.typ == source.TypeTracepoint && !e.noRaw {
		a.SampleType |= source.SampleRaw
	}
}

// spelled returns the event's name with the modifiers that a amounts to.
func (e *event) spelled(a *source.Attr) string {
	mods := ""
	switch {
	case a.Has(source.FlagExcludeKernel) && !a.Has(source.FlagExcludeUser):
		mods = "u"
	case a.Has(source.FlagExcludeUser) && !a.Has(source.FlagExcludeKernel):
		mods = "k"
	}
	mods += strings.Repeat("p", int(e.mods.precise))
	switch {
	case mods == "":
		return e.name
	case strings.HasSuffix(e.name, "/"):
		return e.name + mods
	}
	return e.name + ":" + mods
}

// maxClock is how often a second a clock event samples. The kernel slows counters down that interrupt too much, but not clocks: on a virtual machine,
// 100,000 interrupts, the default of kernel.perf_event_max_sample_rate, left no time to anything else.
const maxClock = 20_000

// rate sets how often a samples.
func (r *Recorder) rate(o *Options, e *event, a *source.Attr) {
	a.Flags &^= source.FlagFreq
	switch {
	case r.trigger.Kind == source.OnTracepoints || r.trigger.Kind == source.OnProbes:
		a.SamplePeriod = 1 // the program counts
		return
	case o.Period > 0:
		a.SamplePeriod = o.Period
		if o.Period > 1 {
			// A sample of a software event or of a tracepoint that is to have its period is taken each time, with the period 1
			// (perf_swevent_event in kernel/events/core.c). The attr says it, too.
			a.SampleType &^= source.SamplePeriod
		}
		if least := uint64(time.Second / maxClock); e.clock() && a.SamplePeriod < least {
			r.note("clocks interrupt at most %d times a second: every %d ns instead of %d", maxClock, least, a.SamplePeriod)
			a.SamplePeriod = least
		}
		return
	case o.Frequency == 0 && e.each:
		a.SamplePeriod = 1
		return
	}
	a.SamplePeriod = DefaultFrequency
	if o.Frequency > 0 {
		a.SamplePeriod = o.Frequency
	}
	a.Flags |= source.FlagFreq
	limit, err := strconv.ParseUint(sysctl("perf_event_max_sample_rate"), 10, 64)
	if err == nil && limit > 0 && a.SamplePeriod > limit {
		r.note("kernel.perf_event_max_sample_rate=%d: %d Hz instead of %d", limit, limit, a.SamplePeriod)
		a.SamplePeriod = limit
	}
	if e.clock() && a.SamplePeriod > maxClock {
		r.note("clocks interrupt at most %d times a second: %d Hz instead of %d", maxClock, maxClock, a.SamplePeriod)
		a.SamplePeriod = maxClock
	}
}

func (r *Recorder) note(format string, args ...any) {
	r.notes = append(r.notes, fmt.Sprintf(format, args...))
}

const (
	minRing = 64 << 10
	maxRing = 32 << 20
	allRing = 256 << 20 // of all processors

	programRing = 16 << 20 // where a program makes most samples
	programAll  = 128 << 20
)

// openRings opens a ring for each processor, as large as is useful and permitted, and sizes a's stack copies.
//
// A ring should hold what comes in a second, so that a reader that has to wait for a processor loses nothing. An
// ordinary user may lock kernel.perf_event_mlock_kb for each processor and RLIMIT_MEMLOCK besides.
func (r *Recorder) openRings(o *Options, a *source.Attr) error {
	copies := a.SampleType&source.SampleStackUser != 0
	stack := int(o.StackSize)
	if stack == 0 && copies {
		if stack = defaultStack; o.Program != nil {
			stack = programStack
		}
	}
	rate := uint64(4000) // a guess, where the period rules
	if a.Has(source.FlagFreq) {
		rate = a.SamplePeriod
	}
	want := min(rate, 1<<20) * uint64(stack+512)
	size := min(maxRing, max(512<<10, 1<<bits.Len64(want-1)))
	all := allRing
	if o.Program != nil {
		size, all = min(size, programRing), programAll
	}
	all = min(all, r.memory.rings)
	for size > minRing && size*len(r.cpus) > all {
		size /= 2
	}
	size = max(size, unix.Getpagesize())
	dummy := *a
	dummy.Type, dummy.Config, dummy.SamplePeriod = source.TypeSoftware, swDummy, 0
	dummy.SampleType, dummy.SampleRegsUser, dummy.ReadFormat = source.SampleTID|source.SampleTime|source.SampleCPU, 0, 0
	dummy.Flags = source.FlagDisabled | source.FlagExcludeKernel | source.FlagExcludeHV | source.FlagWatermark | source.FlagUseClockID | source.FlagMmap | source.FlagMmap2 | source.FlagTask
	for {
		dummy.WakeupEvents = uint32(size / 4)
		if o.Program != nil {
			dummy.WakeupEvents = 1 // what a process maps is wanted at once
		}
		err := r.openRingsOf(&dummy, size)
		switch {
		case err == nil:
			if o.StackSize == 0 && copies {
				for stack > minStack && size/stack < minSamples {
					stack = stack / 2 &^ 7
				}
			}
			a.SampleStackUser = uint32(stack)
			r.shape.RingSize, r.plug.ring = size, dummy
			return nil
		case (errors.Is(err, errMap) && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOMEM))) && size > minRing && size > unix.Getpagesize():
			size /= 2
		default:
			return explain(err, "opening ring buffers", 2)
		}
	}
}

const (
	defaultStack = 32 << 10
	programStack = 60 << 10 // only what comes before tables and mappings are known is copied: all of it, as far as a record has room for the rest of a sample, too
	minStack     = 8 << 10
	minSamples   = 32 // that a ring should hold
)

// openRingsOf opens all rings or none.
func (r *Recorder) openRingsOf(dummy *source.Attr, size int) (err error) {
	defer func() {
		if err != nil {
			for _, g := range r.rings {
				g.close()
			}
			r.rings = nil
		}
	}()
	cpus := r.cpus[:0:0]
	for _, cpu := range r.cpus {
		g, err := openRing(dummy, cpu, size)
		if errors.Is(err, unix.ENODEV) {
			continue // gone offline
		}
		if err != nil {
			return err
		}
		r.rings = append(r.rings, g)
		cpus = append(cpus, cpu)
	}
	if len(cpus) == 0 {
		return errors.New("no processor is online")
	}
	r.cpus = cpus
	return nil
}

var errMap = errors.New("mapping a ring buffer")

// openRing opens a ring for what happens on a processor.
func openRing(dummy *source.Attr, cpu, size int) (*ring, error) {
	fd, err := openEvent(dummy, os.Getpid(), cpu, -1, 0) // the first thread of a Go process stays as long as the process
	if err != nil {
		return nil, err
	}
	g, err := newRing(fd, size)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("%w of %d bytes: %w", errMap, size, err)
	}
	return g, nil
}

// onlineCPUs returns the numbers of processors.
func onlineCPUs() ([]int, error) {
	b, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, err
	}
	return parseCPUs(strings.TrimSpace(string(b)))
}

// parseCPUs reads a list such as "0-3,8".
func parseCPUs(s string) (cpus []int, err error) {
	for r := range strings.SplitSeq(s, ",") {
		first, last, two := strings.Cut(r, "-")
		lo, err := strconv.Atoi(first)
		hi := lo
		if err == nil && two {
			hi, err = strconv.Atoi(last)
		}
		if err != nil || lo < 0 || hi < lo || hi > 1<<16 {
			return nil, fmt.Errorf("list of processors %q: %w", s, source.ErrMalformed)
		}
		for ; lo <= hi; lo++ {
			cpus = append(cpus, lo)
		}
	}
	return cpus, nil
}
