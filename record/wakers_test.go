package record

import (
	"testing"

	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// TestWakersSaid: who ended a wait goes to that wait only; where the stack is not whole, or not known, it is said.
func TestWakersSaid(t *testing.T) {
	n := names.New(names.Options{})
	defer n.Close()
	w := newWakers(n)
	name := func(f unwind.Frame) string {
		var names [1]profile.Name
		n.User(f.Mapping.Module, []uint64{f.Mapping.FileOff(f.Addr())}, names[:])
		return names[0].Func
	}
	sample := func(time uint64, cpu uint32, misc uint16, stop unwind.Stop, by *source.Waker) *source.Sample {
		r := &source.Record{Misc: misc}
		if by != nil {
			r.Tracepoint = by.Append(nil)
		}
		return &source.Sample{Time: time, CPU: cpu, Stop: stop, Record: r, Kernel: []uint64{1 << 63}}
	}
	said := func(x *source.Sample) string {
		k := w.take(x)
		if k == nil {
			return ""
		}
		s := name(k.By)
		for _, f := range k.End {
			s += name(f)
		}
		return s
	}
	wait := func(time uint64, cpu uint32, misc uint16) *source.Sample { return sample(time, cpu, misc, 0, nil) }
	w.observe(sample(5, 1, source.MiscWaker, unwind.Outermost, &source.Waker{Comm: "a/b"}))
	w.observe(sample(5, 2, source.MiscWaker, unwind.Truncated, &source.Waker{Comm: "c"}))
	w.observe(sample(6, 3, source.MiscWaker, unwind.NoUserStack, &source.Waker{Comm: "d", Flags: source.WakerInterrupt}))
	w.observe(sample(6, 4, source.MiscWaker, unwind.Outermost, &source.Waker{Comm: "e", Flags: source.WakerUnsure}))
	w.observe(&source.Sample{Record: &source.Record{Misc: source.MiscWaker, Tracepoint: []byte("short")}})
	for _, c := range []struct {
		x    *source.Sample
		want string
	}{
		{wait(4, 1, 0), ""},
		{wait(5, 65, 0), ""},
		{wait(5, 1, 0), "[woken by a/b]"},
		{wait(5, 1, 0), ""},
		{wait(5, 2, 0), "[woken by c][truncated]"},
		{wait(6, 3, 0), "[woken by an interrupt]"},
		{wait(6, 4, 0), "[woken by e, or by an interrupt]"},
		{wait(7, 4, source.MiscNoWaker), "[waker not known]"},
	} {
		if got := said(c.x); got != c.want {
			t.Errorf("the wait until %d on %d: %q, not %q", c.x.Time, c.x.CPU, got, c.want)
		}
	}
}
