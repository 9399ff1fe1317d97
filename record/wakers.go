package record

import (
	"cmp"

	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// A wakers puts who ended a wait above its stack.
type wakers struct {
	names *names.Namer
	last  [64]held // by processor
	waker profile.Waker
}

// A held is who ended the wait whose sample is to come next from that processor.
type held struct {
	time      uint64
	cpu       uint32
	by        string
	stop      unwind.Stop
	interrupt bool
	kernel    []uint64
	user      []unwind.Frame
}

// newWakers returns a wakers whose frames n names.
func newWakers(n *names.Namer) *wakers { return &wakers{names: n} }

// observe keeps a sample of who ended a wait.
func (w *wakers) observe(x *source.Sample) {
	k, ok := source.ParseWaker(x.Record.Tracepoint)
	if k.Comm == "" {
		k.Comm = cmp.Or(x.Comm, "?") // of a copy
	}
	if !ok && len(x.Record.Tracepoint) > 0 {
		return
	}
	h := &w.last[x.CPU%uint32(len(w.last))]
	h.time, h.cpu, h.stop = x.Time, x.CPU, x.Stop
	h.kernel, h.user = append(h.kernel[:0], x.Kernel...), append(h.user[:0], x.User...)
	h.interrupt = k.Flags&source.WakerInterrupt != 0
	switch {
	case h.interrupt:
		h.by = "[woken by an interrupt]"
	case k.Flags&source.WakerUnsure != 0:
		h.by = "[woken by " + k.Comm + ", or by an interrupt]"
	default:
		h.by = "[woken by " + k.Comm + "]"
	}
}

// take returns who ended a wait; nil where that was not asked for. It is valid until the next call.
func (w *wakers) take(x *source.Sample) *profile.Waker {
	h := &w.last[x.CPU%uint32(len(w.last))]
	k := &w.waker
	switch {
	case h.by != "" && h.time == x.Time && h.cpu == x.CPU:
		k.By, k.Kernel, k.User, k.End = w.label(h.by), h.kernel, h.user, nil
		if m := profile.Mark(h.stop); m != "" && !h.interrupt {
			k.End = append(k.End, w.label(m))
		}
		h.by = ""
	case x.Record.Misc&source.MiscNoWaker != 0:
		k.By, k.Kernel, k.User, k.End = w.label("[waker not known]"), nil, nil, nil
	default:
		return nil
	}
	return k
}

// label returns a frame that is named text.
func (w *wakers) label(text string) unwind.Frame { return w.names.Label(text, "[woken by others]") }
