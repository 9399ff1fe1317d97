package profile

import "strings"

// A Scheduler knows the frames of the kernel's scheduler: every wait ends in them, and what a thread waits in is outside of them. It is not
// safe for concurrent use.
type Scheduler struct {
	namer Namer
	known map[uint64]bool
}

// NewScheduler returns a Scheduler that asks n for names, of each address once.
func NewScheduler(n Namer) *Scheduler { return &Scheduler{n, map[uint64]bool{}} }

// Outside returns the kernel's frames of a wait, innermost first, without the scheduler's at their beginning. One frame is left of those
// that are nothing else.
func (s *Scheduler) Outside(kernel []uint64) []uint64 {
	for len(kernel) > 1 {
		in, ok := s.known[kernel[0]]
		if !ok {
			var name [1]Name
			s.namer.Kernel(kernel[:1], name[:])
			in = scheduling(name[0].Func)
			s.known[kernel[0]] = in
		}
		if !in {
			break
		}
		kernel = kernel[1:]
	}
	return kernel
}

// scheduling says whether a function of Linux is on the way from any wait to the switch: the entries of kernel/sched/core.c, those that only set a
// timer first (kernel/time/timer.c, hrtimer.c), and the tracepoint or the function that a wait is recorded at.
func scheduling(name string) bool {
	name, _, _ = strings.Cut(name, ".") // "__schedule.constprop.0"
	switch name {
	case "finish_task_switch", "__schedule", "schedule", "__schedule_loop", "schedule_loop", "io_schedule", "preempt_schedule", "preempt_schedule_common",
		"preempt_schedule_irq", "preempt_schedule_notrace", "__cond_resched", "trace_call_bpf", "bpf_trampoline_enter":
		return true
	}
	for _, p := range []string{"schedule_", "io_schedule_", "__traceiter_", "__probestub_", "__bpf_trace_", "bpf_trace_run", "bpf_prog_", "perf_trace_"} {
		if strings.HasPrefix(name, p) {
			return name != "schedule_tail" // which a new thread begins in
		}
	}
	return false
}
