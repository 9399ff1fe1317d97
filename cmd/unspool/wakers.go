package main

import (
	"cmp"
	"sync"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// A wakers puts who ended a wait above its stack. What is said of them are names of places in a module that is no file's.
type wakers struct {
	last  [64]held // by processor
	waker profile.Waker
	in    unwind.Mapping

	mu    sync.Mutex // names are asked for by others
	said  []string
	place map[string]int
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

// maxSaid bounds what names of threads can make of this.
const maxSaid = 1 << 16

func newWakers() *wakers {
	w := &wakers{place: map[string]int{}}
	w.in = unwind.Mapping{Hi: maxSaid + 2, Module: &unwind.Module{Path: "[waker]"}}
	return w
}

// note keeps a sample of who ended a wait.
func (w *wakers) note(x *source.Sample) {
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

// of returns who ended a wait; nil where that was not asked for. It is valid until the next call.
func (w *wakers) of(x *source.Sample) *profile.Waker {
	h := &w.last[x.CPU%uint32(len(w.last))]
	k := &w.waker
	switch {
	case h.by != "" && h.time == x.Time && h.cpu == x.CPU:
		k.By, k.Kernel, k.User, k.End = w.say(h.by), h.kernel, h.user, nil
		if !h.interrupt && h.stop != unwind.Outermost && h.stop != unwind.NoUserStack {
			k.End = append(k.End, w.say("["+profile.Grade(h.stop)+"]"))
		}
		h.by = ""
	case x.Record.Misc&source.MiscNoWaker != 0:
		k.By, k.Kernel, k.User, k.End = w.say("[waker not known]"), nil, nil, nil
	default:
		return nil
	}
	return k
}

// say returns a frame that is named as it says.
func (w *wakers) say(what string) unwind.Frame {
	w.mu.Lock()
	defer w.mu.Unlock()
	at, ok := w.place[what]
	if !ok {
		if len(w.said) >= maxSaid {
			what = "[woken by others]"
		}
		if at, ok = w.place[what]; !ok {
			at = len(w.said)
			w.said, w.place[what] = append(w.said, what), at
		}
	}
	return unwind.Frame{PC: arch.Addr(at), Exact: true, Mapping: &w.in}
}

// name names such frames, if m is their module.
func (w *wakers) name(m *unwind.Module, offs []uint64, names []profile.Name) bool {
	if m != w.in.Module {
		return false
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, off := range offs {
		if off < uint64(len(w.said)) {
			names[i].Func = w.said[off]
		}
	}
	return true
}
