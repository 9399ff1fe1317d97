package profile

import (
	"slices"
	"testing"

	"github.com/unspool/unspool/unwind"
)

// A kernelNames has the name of an address at its place.
type kernelNames []string

func (kernelNames) User(*unwind.Module, []uint64, []Name) {}
func (k kernelNames) Kernel(addrs []uint64, names []Name) {
	for i, a := range addrs {
		names[i].Func = k[a]
	}
}

// TestScheduler takes the scheduler's frames off the beginning of a wait, and no others.
func TestScheduler(t *testing.T) {
	names := kernelNames{
		"__traceiter_sched_switch", "__schedule", "schedule", "futex_wait_queue", "do_syscall_64", "schedule_hrtimeout_range_clock", "ep_poll",
		"schedule_tail", "ret_from_fork", "scheduler_tick", "",
	}
	s := NewScheduler(names)
	for _, c := range []struct{ in, want []uint64 }{
		{[]uint64{0, 1, 2, 3, 4}, []uint64{3, 4}},
		{[]uint64{1, 2, 5, 6, 4}, []uint64{6, 4}},
		{[]uint64{3, 1, 4}, []uint64{3, 1, 4}},
		{[]uint64{1, 7, 8}, []uint64{7, 8}},
		{[]uint64{9, 4}, []uint64{9, 4}},
		{[]uint64{10, 1, 4}, []uint64{10, 1, 4}}, // without a name it can be anything
		{[]uint64{0, 1, 2}, []uint64{2}},
		{nil, nil},
	} {
		if got := s.Outside(c.in); !slices.Equal(got, c.want) {
			t.Errorf("%v: %v, want %v", c.in, got, c.want)
		}
	}
}
