package record

import (
	"errors"
	"fmt"

	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// CallGraphs are the names of what leads through user stacks: "cfi" is perfevent.CFI.
var CallGraphs = []string{perfevent.CFI: "cfi", perfevent.FramePointer: "fp", perfevent.FramePointerOrCFI: "fp,cfi"}

// Check refuses a plan that contradicts itself. It chooses the source where only one can do what is asked for, and fills in Only and Fallback. stepper
// is how unwind rules are applied. Errors call settings by the names of the command's flags.
func (p *Plan) Check(stepper string) error {
	if p.Source == "" {
		p.Source = Auto
	}
	if p.InKernel.Cgroup != "" && len(p.Command)+len(p.PIDs)+len(p.TIDs) == 0 {
		p.All = true
	}
	if err := p.checkCallGraph(); err != nil {
		return err
	}
	targets := 0
	for _, given := range []bool{len(p.Command) > 0 || p.All, len(p.PIDs) > 0, len(p.TIDs) > 0} {
		if given {
			targets++
		}
	}
	switch {
	case targets == 0:
		return errors.New("nothing to record: give a command, -p PID, -t TID or -a")
	case targets > 1:
		return errors.New("a command, -p, -t and -a exclude each other; a command with -a records everything while it runs")
	case p.Frequency > 0 && p.Period > 0:
		return errors.New("-F and -c exclude each other")
	case p.InKernel.NoCopies && p.StackSize > 0:
		return errors.New("--no-copies and --stack-size exclude each other")
	case p.User && p.Kernel:
		return errors.New("--user and --kernel exclude each other; without either, both are recorded")
	case p.StackSize%8 != 0 || p.StackSize > perfevent.MaxStackSize:
		return fmt.Errorf("--stack-size is a multiple of 8 up to %d", perfevent.MaxStackSize)
	case p.Source == Ptrace && p.untraceable() != "":
		return fmt.Errorf("--source ptrace cannot do %s", p.untraceable())
	case p.Source == EBPF && stepper != "compact":
		return fmt.Errorf("--source ebpf walks by compact tables, not --stepper %s", stepper)
	case p.OffCPU && p.Event != "" && p.Event != perfevent.OffCPU:
		return fmt.Errorf("--off-cpu and -e %s exclude each other", p.Event)
	}
	if p.OffCPU {
		p.Event = perfevent.OffCPU
	}
	if p.Event == perfevent.OffCPU && (p.Frequency > 0 || p.Period > 1) {
		return errors.New("--off-cpu records every wait, and excludes -F and -c")
	}
	switch waits := p.Event == perfevent.OffCPU || p.Waits; {
	case p.InKernel.Wakers && !waits:
		return errors.New("--wakers needs --off-cpu: only waits have wakers")
	case p.InKernel.Threshold > 0 && !waits:
		return errors.New("--off-cpu-threshold needs --off-cpu: it is of waits")
	case p.InKernel.Threshold > ebpf.MaxThreshold:
		return fmt.Errorf("--off-cpu-threshold is at most %v", ebpf.MaxThreshold)
	}
	return p.choose(stepper)
}

// checkCallGraph refuses what does not go with frame pointers. The kernel follows them where it makes copies, too.
func (p *Plan) checkCallGraph() error {
	if p.CallGraph == perfevent.CFI {
		return nil
	}
	name := CallGraphs[p.CallGraph]
	switch {
	case p.Source == EBPF || p.Source == Ptrace:
		return fmt.Errorf("--call-graph %s works only with --source perf", name)
	case p.OffCPU || p.Waits || p.Event == perfevent.OffCPU || p.InKernel.Cgroup != "" || p.InKernel.Memory > 0:
		return fmt.Errorf("--call-graph %s excludes --off-cpu, --cgroup and --memory: they take the walk by tables in the kernel", name)
	case p.InKernel.NoCopies && p.CallGraph == perfevent.FramePointerOrCFI:
		return errors.New("--call-graph fp,cfi copies stacks, and excludes --no-copies")
	case p.CallGraph == perfevent.FramePointer && p.StackSize > 0:
		return errors.New("--call-graph fp copies no stacks, and excludes --stack-size")
	}
	p.Source = Perf
	return nil
}

// choose picks the source where only one will do.
func (p *Plan) choose(stepper string) error {
	p.Only = ""
	switch {
	case p.Event == perfevent.OffCPU || p.Waits:
		p.Only = "--off-cpu"
	case p.InKernel.Cgroup != "":
		p.Only = "--cgroup"
	case p.InKernel.Memory > 0 && p.Source != Auto && p.Source != EBPF:
		p.Only = "--memory"
	case p.InKernel.NoCopies && p.CallGraph != perfevent.FramePointer:
		p.Only = "--no-copies"
	}
	// Who asks for cycles gets cycles; without -e, time is meant, by whatever counts it.
	p.Fallback = p.Source == Auto && p.untraceable() == "" && p.Event != "cycles"
	switch {
	case p.Only != "" && stepper != "compact":
		return fmt.Errorf("%s walks by compact tables, not --stepper %s", p.Only, stepper)
	case p.Only != "" && (p.Source == Perf || p.Source == Ptrace):
		return fmt.Errorf("%s works only with --source ebpf (root)", p.Only)
	case p.Only != "" && p.Source == Auto:
		p.Source = EBPF
	case stepper != "compact" && p.Source == Auto:
		p.Source = Perf
	}
	return nil
}

// untraceable says what of p ptrace cannot do, or is empty.
func (p *Plan) untraceable() string {
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
	case p.OffCPU || p.Waits || p.InKernel.Cgroup != "" || p.InKernel.Memory > 0 || p.InKernel.NoCopies:
		return "--off-cpu, --cgroup, --memory and --no-copies"
	case p.Event != "" && p.Event != "cpu-clock" && p.Event != "cycles":
		return "-e " + p.Event
	}
	return ""
}

// goOn adds to the error of a kernel whose verifier refuses the walk how to go on: there is no other source for what was asked for.
func (p *Plan) goOn(err error) error {
	switch {
	case !errors.As(err, new(*ebpf.VerifierError)):
		return err
	case p.Event == perfevent.OffCPU:
		return fmt.Errorf("%w; -e sched:sched_switch -c 1 --source perf shows where threads stop running, not for how long", err)
	case p.Only != "":
		return fmt.Errorf("%w; without %s, the kernel copies stacks", err, p.Only)
	}
	return fmt.Errorf("%w; without --source ebpf, the kernel copies stacks", err)
}
