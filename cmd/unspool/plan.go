package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/unspool/unspool/internal/cli"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/record"
	"github.com/unspool/unspool/source/perfevent"
)

// A plan holds the flags that record and top share.
type plan struct {
	record.Plan
	comm  *regexp.Regexp
	given func(flag string) bool // whether it is on the command line
}

func (p *plan) flags(c *cobra.Command) {
	f := c.Flags()
	f.Uint64VarP(&p.Frequency, "frequency", "F", 0, fmt.Sprintf("samples a second on each processor (default %d)", perfevent.DefaultFrequency))
	f.Uint64VarP(&p.Period, "count", "c", 0, "take a sample every this many events, instead of a frequency")
	f.StringVarP(&p.Event, "event", "e", "", "event to count, as perf spells it (default: cycles, or cpu-clock on machines without counters)")
	f.BoolVar(&p.OffCPU, "off-cpu", false, "record the time threads are blocked, as -e off-cpu does: only with --source ebpf (root)")
	cli.Var(c, &p.InKernel.Threshold, "off-cpu-threshold", "", "with --off-cpu: of waits shorter than this, such as 10ms, record a random sample, and count each as this long: sums stay right on average, at a bounded cost", cli.Duration)
	f.BoolVar(&p.InKernel.Wakers, "wakers", false, "with --off-cpu: show who woke each thread, the waker's stack upside down above the wait's")
	f.Uint32Var(&p.StackSize, "stack-size", 0, "bytes of each stack to copy and walk (default: 32 KiB; 60 KiB if the kernel walks most stacks, and less while many copies wait)")
	f.BoolVar(&p.User, "user", false, "count in user space only")
	f.BoolVar(&p.Kernel, "kernel", false, "count in the kernel only")
	f.IntSliceVarP(&p.PIDs, "pid", "p", nil, "record these processes, and all processes they start")
	f.BoolVarP(&p.All, "all", "a", false, "record the whole machine")
	p.Source = record.Auto
	cli.OneOf(c, &p.Source, "source", "ebpf: the kernel walks stacks, up to 1,024 frames deep (root, Linux 5.10 or later); perf: the kernel copies stacks, this program walks them; ptrace: this program stops running threads, without events; auto: the first of these that is allowed", record.Sources()...)
	cli.Var(c, &p.comm, "comm", "", "record only commands that match this regular expression", cli.Regexp)
	f.StringVar(&p.InKernel.Cgroup, "cgroup", "", "record only tasks in this directory of cgroup v2 and below; implies -a unless processes are given: only with --source ebpf (root)")
	cli.Var(c, &p.InKernel.Memory, "memory", "", "kernel memory for unwind tables, such as 512M; those that most walks look for stay (default: a 64th of the machine's memory, at most 1G; less under a limit of memory)", cli.Size)
	f.BoolVar(&p.InKernel.NoCopies, "no-copies", false, "copy no stacks: the first stacks of a program, for which the kernel has no unwind tables yet, are cut off and counted; only with --source ebpf (root)")
	cli.Var(c, &p.CallGraph, "call-graph", record.CallGraphs[perfevent.CFI], "how to walk stacks. cfi: by the programs' unwind tables; fp: by frame pointers, which the kernel follows, without copies; fp,cfi: by frame pointers if they reach an outermost frame, else by a copy and tables", callGraph)
	// Users of perf type this; stacks are recorded without it.
	f.BoolP("with-stacks", "g", false, "")
	f.MarkHidden("with-stacks")
	p.given = f.Changed
}

// callGraph reads the value of --call-graph. Perf's other ways change nothing.
func callGraph(flag, s string) (perfevent.CallGraph, error) {
	if at := slices.Index(record.CallGraphs, cmp.Or(s, record.CallGraphs[perfevent.CFI])); at >= 0 {
		return perfevent.CallGraph(at), nil
	}
	if way, _, _ := strings.Cut(s, ","); way != "dwarf" && way != "lbr" {
		return 0, usage("%s %s: want %s", flag, s, printable.Either(record.CallGraphs))
	}
	fmt.Fprintf(stderr, "unspool: stacks are walked by unwind tables; %s %s changes nothing\n", flag, s)
	return perfevent.CFI, nil
}

// check reads the flags, and refuses what contradicts itself.
func (p *plan) check(stepper string, flt *record.Filter) error {
	if p.given("with-stacks") {
		fmt.Fprintln(stderr, "unspool: stacks are always recorded; -g changes nothing")
	}
	switch {
	case p.given("frequency") && p.Frequency == 0:
		return usage("-F takes a number of samples a second, 1 or more")
	case p.given("count") && p.Period == 0:
		return usage("-c takes a number of events, 1 or more")
	}
	if err := p.Check(stepper); err != nil {
		return usage("%w", err)
	}
	if flt.Comm = p.comm; p.comm != nil {
		p.InKernel.Comm = p.comm.MatchString
	}
	if err := cli.Directories("--cgroup", p.InKernel.Cgroup); err != nil {
		return err
	}
	if err := p.CheckCgroup(); err != nil {
		return fmt.Errorf("--cgroup %w", err)
	}
	return nil
}
