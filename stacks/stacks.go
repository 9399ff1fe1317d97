// Package stacks walks the threads of a process at one moment: a stopped process (source/live), or a core file (source/corefile). Walk turns a
// source.Process into a Process; Name names its frames; package report writes it.
//
// All threads of a hostile core file can have the same deep stack. So the frames walked and kept for all threads together have limits, and frames
// left out are counted.
package stacks

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// A Process has the stacks of a process at one moment.
type Process struct {
	PID     int
	Exe     string   // may be empty
	Command []string // may be empty
	Core    string   // path of the core file; empty for a living process
	Machine *arch.Machine
	Signal  *Signal           // what ended the process; nil if nothing did
	Paths   map[string]string // how modules' paths are shown that are not the ones the process sees
	Pause   time.Duration     // for how long the process was stopped; 0: it was not
	Longest time.Duration     // for how long one thread was
	Notes   []string          // what is missing
	Raw     bool              // nobody has looked for names
	Threads []Thread          // in the order in which they are shown
}

// A Thread is the stack of a thread.
type Thread struct {
	TID    int
	Name   string // may be empty
	Frames []Frame
	Left   int         // frames that are left out: the stack is too deep to show
	LeftAt int         // how many of Frames lie within them; the others are the outermost of the stack
	Stop   unwind.Stop // why there are no more frames
	Return uint64      // with BadReturn: the address that is in no code
	Err    error       // why there are none
	Same   []int       // other threads whose stacks are the same
}

// A Frame is a frame with its name.
type Frame struct {
	unwind.Frame
	Name profile.Name // of Place, counted as offsets in the module's file
	Regs []Register   // nil: nobody asked for them

	// Trampoline says that a signal's handler returns to this frame: nothing has called from there.
	Trampoline bool
}

// Place is the address by which the frame is named: Addr, but for a trampoline, which begins at PC.
func (f *Frame) Place() arch.Addr {
	if f.Trampoline {
		return f.PC
	}
	return f.Addr()
}

// A Register is a register's value in a frame.
type Register struct {
	Name  string
	Value uint64
}

// Incomplete says why a stack is not whole; "" if it is.
func (t *Thread) Incomplete() string {
	switch {
	case t.Err != nil:
		return fmt.Sprintf("no registers: %v", t.Err)
	case t.Stop == unwind.BadReturn:
		return fmt.Sprintf("not whole, %s: %s: %#x", t.Stop, profile.Why(t.Stop), t.Return)
	case t.Stop != unwind.Outermost:
		return fmt.Sprintf("not whole, %s: %s", t.Stop, profile.Why(t.Stop))
	}
	return ""
}

// Of a stack, the Inner innermost frames are shown, and the Outer outermost.
const (
	Inner = unwind.DefaultDepth
	Outer = 64
)

// Of all threads together, maxFrames frames are kept, other than the innermost shortDepth of each.
const (
	maxFrames  = 1 << 20
	shortDepth = 64
)

// A stack is walked to its end, or to deepest frames: an endless recursion in 16 MiB of stack has no more. Of all stacks together,
// maxWalked frames are, before no more than what is shown is walked.
const (
	deepest   = 1 << 20
	maxWalked = 1 << 23
)

// Options control Walk. The zero value takes all threads.
type Options struct {
	TID       int  // only this thread; 0: all
	Depth     int  // only the innermost frames of a thread, at most this many; 0: the Inner innermost and the Outer outermost
	Registers bool // each frame's registers, where they are known
	Frames    int  // how many frames of all threads are kept before stacks are cut short; 0: 1,048,576
}

// Walk walks the threads of p. Each stack says why it ends, a thread without registers has an error, and Notes say what was left out. Walk
// returns an error only if there is no thread to walk.
func Walk(p *source.Process, o Options) (*Process, error) {
	s := &Process{PID: p.PID, Exe: p.Exe, Command: p.Command, Machine: p.Machine, Signal: (*Signal)(p.Signal), Notes: p.Notes, Raw: true}
	w := unwind.NewWalker(cmp.Or(o.Depth, deepest))
	limit := cmp.Or(o.Frames, maxFrames)
	late, frames, walked, cut := 0, 0, 0, 0
	var buf []unwind.Frame
	for i := range p.Threads {
		t := &p.Threads[i]
		if o.TID != 0 && t.TID != o.TID {
			continue
		}
		out := Thread{TID: t.TID, Name: t.Name, Err: t.Err, Stop: unwind.NoUserStack}
		if t.Err == nil {
			switch {
			case frames > limit:
				if cut++; cut == 1 {
					w = unwind.NewWalker(min(shortDepth, cmp.Or(o.Depth, shortDepth)))
				}
			case walked > maxWalked && walked < math.MaxInt:
				w, walked = unwind.NewWalker(o.Depth), math.MaxInt
			}
			err := source.Guard(func() error { buf = out.walk(w, &t.Snapshot, &o, buf); return nil })
			if err != nil {
				out.Err = err
			}
			frames += len(out.Frames)
			if walked < math.MaxInt {
				walked += len(buf)
			}
		}
		if t.Late != nil && t.Late() > 0 {
			late++
		}
		s.Threads = append(s.Threads, out)
	}
	if len(s.Threads) == 0 {
		return nil, fmt.Errorf("process %d has no thread %d", p.PID, o.TID)
	}
	if late > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("parts of %s were read after the threads ran again: frames there may be newer than the rest", profile.Count(uint64(late), "stack", "stacks")))
	}
	if cut > 0 {
		s.Notes = append(s.Notes, fmt.Sprintf("there are more than %s frames: of the last %s, only the innermost %d are shown", profile.Comma(uint64(limit)), profile.Quantity(uint64(cut), "threads"), shortDepth))
	}
	return s, nil
}

// walk walks one stack. buf is room for its frames, and is returned with them.
func (t *Thread) walk(w *unwind.Walker, s *unwind.Snapshot, o *Options, buf []unwind.Frame) []unwind.Frame {
	frames, stop := w.Walk(s, buf[:0])
	t.Stop = stop
	if stop == unwind.BadReturn {
		t.Return = w.Return
	}
	if n := len(frames) - Inner - Outer; n > 0 && o.Depth == 0 {
		t.Left, t.LeftAt = n, Inner
	}
	shown := func(i int) int { // where frame i is in t; -1 if it is left out
		switch {
		case t.Left == 0 || i < Inner:
			return i
		case i < Inner+t.Left:
			return -1
		}
		return i - t.Left
	}
	t.Frames = make([]Frame, len(frames)-t.Left)
	for i := range frames {
		if j := shown(i); j >= 0 {
			t.Frames[j] = Frame{Frame: frames[i], Trampoline: i+1 < len(frames) && frames[i+1].How.Interrupted()}
		}
	}
	if !o.Registers {
		return frames
	}
	m := s.Machine
	w.Registers(s, frames, func(i int, known uint64, regs *[arch.NumSlots]uint64) {
		j := shown(i)
		if j < 0 {
			return
		}
		var list []Register
		for r := range m.Regs() {
			if slot := m.Slot(r); slot != arch.NoSlot && known>>slot&1 != 0 {
				list = append(list, Register{Name: m.RegName(r), Value: regs[slot]})
			}
		}
		t.Frames[j].Regs = list
	})
	return frames
}
