package record

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/source/tracer"
)

// TestCheck: each contradiction has its words; a plan without any has a source that can do all of it.
func TestCheck(t *testing.T) {
	type plan = func(p *Plan)
	for _, c := range []struct {
		set                plan
		stepper, want      string
		source, only       string
		fallback, wholeAll bool
	}{
		{func(p *Plan) {}, "", "", Auto, "", true, false},
		{func(p *Plan) { p.Command = nil }, "", "nothing to record: give", "", "", false, false},
		{func(p *Plan) { p.PIDs = []int{1} }, "", "a command, -p, -t and -a exclude each other", "", "", false, false},
		{func(p *Plan) { p.Frequency, p.Period = 1, 1 }, "", "-F and -c exclude", "", "", false, false},
		{func(p *Plan) { p.User, p.Kernel = true, true }, "", "--user and --kernel exclude", "", "", false, false},
		{func(p *Plan) { p.StackSize = 12 }, "", "--stack-size is a multiple of 8", "", "", false, false},
		{func(p *Plan) { p.StackSize, p.InKernel.NoCopies = 8, true }, "", "--no-copies and --stack-size exclude", "", "", false, false},
		{func(p *Plan) { p.Period = 1 }, "", "", Auto, "", false, false},
		{func(p *Plan) { p.Source, p.Period = Ptrace, 1 }, "", "--source ptrace cannot do -c", "", "", false, false},
		{func(p *Plan) { p.Source, p.Frequency = Ptrace, tracer.MaxFrequency+1 }, "", "--source ptrace cannot do -F over ", "", "", false, false},
		{func(p *Plan) { p.Source, p.OffCPU = Ptrace, true }, "", "--source ptrace cannot do --off-cpu, --cgroup", "", "", false, false},
		{func(p *Plan) { p.Source, p.Event = Ptrace, "faults" }, "", "--source ptrace cannot do -e faults", "", "", false, false},
		{func(p *Plan) { p.Source = EBPF }, "rows", "--source ebpf walks by compact tables, not --stepper rows", "", "", false, false},
		{func(p *Plan) {}, "rows", "", Perf, "", true, false},
		{func(p *Plan) { p.OffCPU = true }, "", "", EBPF, "--off-cpu", false, false},
		{func(p *Plan) { p.OffCPU = true }, "rows", "--off-cpu walks by compact tables", "", "", false, false},
		{func(p *Plan) { p.OffCPU, p.Event = true, "cycles" }, "", "--off-cpu and -e cycles exclude", "", "", false, false},
		{func(p *Plan) { p.OffCPU, p.Frequency = true, 1 }, "", "--off-cpu records every wait", "", "", false, false},
		{func(p *Plan) { p.Event, p.Source = perfevent.OffCPU, Perf }, "", "--off-cpu works only with --source ebpf (root)", "", "", false, false},
		{func(p *Plan) { p.InKernel.Wakers = true }, "", "--wakers needs --off-cpu", "", "", false, false},
		{func(p *Plan) { p.InKernel.Threshold = 1 }, "", "--off-cpu-threshold needs --off-cpu", "", "", false, false},
		{func(p *Plan) { p.Waits, p.InKernel.Threshold = true, 1 }, "", "", EBPF, "--off-cpu", false, false},
		{func(p *Plan) { p.Waits, p.Frequency, p.InKernel.Wakers = true, 19, true }, "", "", EBPF, "--off-cpu", false, false},
		{func(p *Plan) { p.Waits, p.InKernel.Threshold = true, 5*time.Second }, "", "--off-cpu-threshold is at most 4s", "", "", false, false},
		{func(p *Plan) { p.Waits, p.Source = true, Perf }, "", "--off-cpu works only with --source ebpf (root)", "", "", false, false},
		{func(p *Plan) { p.InKernel.Memory, p.Source = 1, Perf }, "", "--memory works only with", "", "", false, false},
		{func(p *Plan) { p.InKernel.Memory = 1 }, "", "", Auto, "", false, false},
		{func(p *Plan) { p.Command, p.InKernel.Cgroup = nil, "/x" }, "", "", EBPF, "--cgroup", false, true},
		{func(p *Plan) { p.CallGraph, p.InKernel.NoCopies = perfevent.FramePointer, true }, "", "", Perf, "", false, false},
		{func(p *Plan) { p.CallGraph, p.InKernel.NoCopies = perfevent.FramePointerOrCFI, true }, "", "--call-graph fp,cfi copies stacks", "", "", false, false},
		{func(p *Plan) { p.CallGraph, p.StackSize = perfevent.FramePointer, 8 }, "", "--call-graph fp copies no stacks", "", "", false, false},
		{func(p *Plan) { p.CallGraph, p.Source = perfevent.FramePointer, EBPF }, "", "--call-graph fp works only with --source perf", "", "", false, false},
		{func(p *Plan) { p.CallGraph, p.OffCPU = perfevent.FramePointer, true }, "", "--call-graph fp excludes --off-cpu", "", "", false, false},
	} {
		p := Plan{}
		p.Command = []string{"true"}
		c.set(&p)
		before := p
		if c.stepper == "" {
			c.stepper = "compact"
		}
		err := p.Check(c.stepper)
		if c.want != "" {
			if err == nil || !strings.HasPrefix(err.Error(), c.want) {
				t.Errorf("Check(%q) of %+v: %v, want %q", c.stepper, before, err, c.want)
			}
			continue
		}
		if err != nil || p.Source != c.source || p.Only != c.only || p.Fallback != c.fallback || p.All != c.wholeAll || p.OffCPU != (p.Event == perfevent.OffCPU) {
			t.Errorf("Check(%q) of %+v: %v; source %q, only %q, fallback %v, all %v, event %q; want %+v", c.stepper, before, err, p.Source, p.Only, p.Fallback, p.All, p.Event, c)
		}
	}
}

// TestGoOn: only a verifier's refusal has another way.
func TestGoOn(t *testing.T) {
	refused := &ebpf.VerifierError{}
	var waits, only, asked Plan
	waits.Event, only.Only = perfevent.OffCPU, "--cgroup"
	for _, c := range []struct {
		p    *Plan
		err  error
		want string
	}{
		{&waits, refused, "; -e sched:sched_switch"}, {&only, refused, "; without --cgroup, the kernel copies stacks"}, {&asked, refused, "; without --source ebpf, the kernel copies stacks"},
		{&waits, errors.New("no"), "no"},
	} {
		if err := c.p.goOn(c.err); !strings.Contains(fmt.Sprint(err), c.want) || !errors.Is(err, c.err) || c.err != refused && err != c.err {
			t.Errorf("goOn(%v) = %v, want %q", c.err, err, c.want)
		}
	}
}
