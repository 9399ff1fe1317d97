// Package unwind walks stacks: registers, memory, and the modules of an address space come in (Snapshot), frames go out. Every frame says how it
// was found, and every stack says why it ended.
//
// The package finds rules through rows.Stepper and knows neither file formats nor emitters.
package unwind

import "github.com/unspool/unspool/arch"

// A How says how a frame was found.
type How uint8

const (
	HowStart        How = iota // the snapshot's own registers: frame 0
	HowCFI                     // by call frame information of the frame below
	HowSignal                  // by a signal frame: this frame was interrupted, and its PC is exact
	HowPLT                     // by the shape of a procedure linkage table without information
	HowFramePointer            // by the frame pointer: the frame below has no information
	HowSigReturn               // as HowSignal, by the code that a signal handler returns to, which has no information
	HowCall                    // by the call that led there: to where no code is, or to code without information that uses no stack, or little, as it says itself
	HowSync                    // by rules that hold at calls only, of a frame that has called nobody: the return address that they lead to is behind a call
	NumHows
)

var howNames = [...]string{"start", "cfi", "signal", "plt", "fp", "sigreturn", "call", "sync"}

// Interrupted says that a signal has interrupted the frame: its PC is exact, and the frame below it is where a handler returns to.
func (h How) Interrupted() bool { return h == HowSignal || h == HowSigReturn }

// alive says that the frame has called nobody: all its registers have their values.
func (h How) alive() bool { return h == HowStart || h.Interrupted() }

func (h How) String() string { return name(howNames[:], int(h)) }

// A Stop says why a stack ended.
type Stop uint8

const (
	Outermost   Stop = iota // whole: there is no caller
	NoInfo                  // no information at the PC, and no frame pointer to follow
	BadCFA                  // the CFA leads in circles, or needs a register that is lost
	Truncated               // the captured stack ends before the frame does
	BadMemory               // unreadable memory elsewhere
	BadReturn               // the return address is in no executable mapping
	DepthLimit              // the limit of frames was reached
	NoUserStack             // nothing to walk: a kernel thread, or no registers in the sample
	NumStops
)

var stopNames = [...]string{"outermost", "no-info", "bad-cfa", "truncated", "bad-memory", "bad-return", "depth-limit", "no-user-stack"}

func (s Stop) String() string { return name(stopNames[:], int(s)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "?"
}

// A Frame is one frame of a stack.
type Frame struct {
	PC      arch.Addr // exact in frame 0, in a frame that a signal interrupted, and where no call has led; else the return address
	Exact   bool      // PC is where the frame is, and not behind a call
	How     How
	Mapping *Mapping // where PC lies; nil if in none
}

// Addr is the address for looking the frame up, and for showing it: PC where that is exact, else the return address minus one, which lies in
// the calling instruction.
func (f *Frame) Addr() arch.Addr {
	if f.Exact {
		return f.PC
	}
	return f.PC - 1
}
