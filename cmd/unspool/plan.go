package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// A plan holds the flags that record and top share.
type plan struct {
	record.Plan
	offCPU                  bool
	comm, memory, callGraph string
	given                   func(flag string) bool // whether it is on the command line
}

func (p *plan) flags(c *cobra.Command) {
	f := c.Flags()
	f.Uint64VarP(&p.Frequency, "frequency", "F", 0, fmt.Sprintf("samples a second on each processor (default %d)", perfevent.DefaultFrequency))
	f.Uint64VarP(&p.Period, "count", "c", 0, "take a sample every this many events, instead of a frequency")
	f.StringVarP(&p.Event, "event", "e", "", "event to count, as perf spells it (default: cycles, or cpu-clock on machines without counters)")
	f.BoolVar(&p.offCPU, "off-cpu", false, "record the time threads are blocked, as -e off-cpu does: only with --source ebpf (root)")
	f.BoolVar(&p.InKernel.Wakers, "wakers", false, "with --off-cpu: show who woke each thread, the waker's stack upside down above the wait's")
	f.Uint32Var(&p.StackSize, "stack-size", 0, "bytes of each stack to copy and walk (default: 32 KiB, or, if the kernel walks most stacks, its maximum, and less while many copies wait)")
	f.BoolVar(&p.User, "user", false, "count in user space only")
	f.BoolVar(&p.Kernel, "kernel", false, "count in the kernel only")
	f.IntSliceVarP(&p.PIDs, "pid", "p", nil, "record these processes, and all processes they start")
	f.BoolVarP(&p.All, "all", "a", false, "record the whole machine")
	p.Source = record.Auto
	cli.OneOf(c, &p.Source, "source", "ebpf: the kernel walks stacks, up to 1,024 frames deep (root, Linux 5.10 or later); perf: the kernel copies stacks, this program walks them; ptrace: this program stops running threads, without events; auto: the first of these that is allowed", record.Sources()...)
	f.StringVar(&p.comm, "comm", "", "record only commands that match this regular expression")
	f.StringVar(&p.InKernel.Cgroup, "cgroup", "", "record only tasks in this directory of cgroup v2 and below; implies -a unless processes are given: only with --source ebpf (root)")
	f.StringVar(&p.memory, "memory", "", "kernel memory for unwind tables, such as 512M; the least recently used tables go first (default 1G)")
	f.BoolVar(&p.InKernel.NoCopies, "no-copies", false, "copy no stack, not even the first ones of a program, whose unwind tables the kernel has not yet: these are cut off, and counted; only with --source ebpf (root)")
	f.StringVar(&p.callGraph, "call-graph", callGraphs[perfevent.CFI], "what leads through stacks: cfi: the unwind tables of programs; fp: frame pointers, which the kernel follows, without copies; fp,cfi: frame pointers where they reach an outermost frame, else a copy and tables")
	// Users of perf type this; stacks are recorded without it.
	f.BoolP("with-stacks", "g", false, "")
	f.MarkHidden("with-stacks")
	p.given = f.Changed
}

// callGraphs are the words of --call-graph.
var callGraphs = []string{perfevent.CFI: "cfi", perfevent.FramePointer: "fp", perfevent.FramePointerOrCFI: "fp,cfi"}

// readCallGraph reads --call-graph. Perf's other ways change nothing.
func (p *plan) readCallGraph() error {
	way, _, _ := strings.Cut(p.callGraph, ",")
	at := slices.Index(callGraphs, cmp.Or(p.callGraph, callGraphs[perfevent.CFI]))
	switch {
	case at >= 0:
		p.CallGraph = perfevent.CallGraph(at)
	case way == "dwarf" || way == "lbr":
		fmt.Fprintf(stderr, "unspool: stacks are walked by unwind tables; --call-graph %s changes nothing\n", p.callGraph)
	default:
		return usage("--call-graph %s: want %s", p.callGraph, printable.Either(callGraphs))
	}
	if p.CallGraph == perfevent.CFI {
		return nil
	}
	switch {
	case p.Source == record.EBPF || p.Source == record.Ptrace:
		return usage("--call-graph %s works only with --source perf", p.callGraph)
	case p.offCPU || p.Event == perfevent.OffCPU || p.InKernel.Cgroup != "" || p.memory != "":
		return usage("--call-graph %s excludes --off-cpu, --cgroup and --memory: they take the walk by tables in the kernel", p.callGraph)
	case p.InKernel.NoCopies && p.CallGraph == perfevent.FramePointerOrCFI:
		return usage("--call-graph fp,cfi copies stacks, and excludes --no-copies")
	case p.CallGraph == perfevent.FramePointer && p.StackSize > 0:
		return usage("--call-graph fp copies no stacks, and excludes --stack-size")
	}
	p.Source = record.Perf
	return nil
}

// check refuses what contradicts itself. It is called when the flags are known.
func (p *plan) check(stepper string, flt *filter) error {
	if p.given("with-stacks") {
		fmt.Fprintln(stderr, "unspool: stacks are always recorded; -g changes nothing")
	}
	if err := p.readCallGraph(); err != nil {
		return err
	}
	if p.InKernel.Cgroup != "" && len(p.Command)+len(p.PIDs)+len(p.TIDs) == 0 {
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
		return usage("-F takes a number of samples a second, 1 or more")
	case p.given("count") && p.Period == 0:
		return usage("-c takes a number of events, 1 or more")
	case p.Frequency > 0 && p.Period > 0:
		return usage("-F and -c exclude each other")
	case p.InKernel.NoCopies && p.StackSize > 0:
		return usage("--no-copies and --stack-size exclude each other")
	case p.User && p.Kernel:
		return usage("--user and --kernel exclude each other; without either, both are recorded")
	case p.StackSize%8 != 0 || p.StackSize > perfevent.MaxStackSize:
		return usage("--stack-size is a multiple of 8 up to %d", perfevent.MaxStackSize)
	case p.Source == record.Ptrace && p.untraceable() != "":
		return usage("--source ptrace cannot do %s", p.untraceable())
	case p.Source == record.EBPF && stepper != "compact":
		return usage("--source ebpf walks by compact tables, not --stepper %s", stepper)
	case p.offCPU && p.Event != "" && p.Event != perfevent.OffCPU:
		return usage("--off-cpu and -e %s exclude each other", p.Event)
	}
	if p.offCPU {
		p.Event = perfevent.OffCPU
	}
	if p.Event == perfevent.OffCPU && (p.Frequency > 0 || p.Period > 1) {
		return usage("--off-cpu records every wait, and excludes -F and -c")
	}
	if p.InKernel.Wakers && p.Event != perfevent.OffCPU {
		return usage("--wakers needs --off-cpu: only waits have wakers")
	}
	must := ""
	switch {
	case p.Event == perfevent.OffCPU:
		must = "--off-cpu"
	case p.InKernel.Cgroup != "":
		must = "--cgroup"
	case p.memory != "" && p.Source != record.Auto && p.Source != record.EBPF:
		must = "--memory"
	case p.InKernel.NoCopies && p.CallGraph != perfevent.FramePointer:
		must = "--no-copies"
	}
	p.Only = must
	p.Fallback = p.Source == record.Auto && p.untraceable() == ""
	switch {
	case must != "" && stepper != "compact":
		return usage("%s walks by compact tables, not --stepper %s", must, stepper)
	case must != "" && (p.Source == record.Perf || p.Source == record.Ptrace):
		return usage("%s works only with --source ebpf (root)", must)
	case must != "" && p.Source == record.Auto:
		p.Source = record.EBPF
	case stepper != "compact" && p.Source == record.Auto:
		p.Source = record.Perf
	}
	var err error
	if p.InKernel.Memory, err = cli.Size("--memory", p.memory); err != nil {
		return err
	}
	flt.comm = p.comm
	if err := flt.compile(); err != nil {
		return err
	}
	if flt.Comm != nil {
		p.InKernel.Comm = flt.Comm.MatchString
	}
	if err := cli.Directories("--cgroup", p.InKernel.Cgroup); err != nil {
		return err
	}
	if err := p.CheckCgroup(); err != nil {
		return fmt.Errorf("--cgroup %w", err)
	}
	return nil
}

// open starts the recording. Where the kernel's verifier refuses what no other source can do, or what was asked for by its name, the error
// says how to go on.
func (p *plan) open(ctx context.Context, mods *modules.Set) (*record.Live, error) {
	l, err := p.Open(ctx, mods)
	if !errors.As(err, new(*ebpf.VerifierError)) {
		return l, err
	}
	switch {
	case p.Event == perfevent.OffCPU:
		err = fmt.Errorf("%w; -e sched:sched_switch -c 1 --source perf shows where threads stop running, not for how long", err)
	case p.Only != "":
		err = fmt.Errorf("%w; without %s, the kernel copies stacks", err, p.Only)
	default:
		err = fmt.Errorf("%w; without --source ebpf, the kernel copies stacks", err)
	}
	return nil, err
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
	case p.offCPU || p.InKernel.Cgroup != "" || p.memory != "" || p.InKernel.NoCopies:
		return "--off-cpu, --cgroup, --memory and --no-copies"
	case p.Event != "" && p.Event != "cpu-clock" && p.Event != "cycles":
		return "-e " + p.Event
	}
	return ""
}
