package source

import (
	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/unwind"
)

// A Process is a process at one moment: one that was stopped, or that a core file holds.
type Process struct {
	PID     int
	Exe     string   // path of the executable, as the process saw it; may be empty
	Command []string // arguments, the program's name first; may be empty
	Machine *arch.Machine
	Space   *unwind.Space
	Threads []Thread // the one that Signal was for comes first, else the one whose TID is PID
	Signal  *Signal  // what ended the process; nil for a living one
	Notes   []string // what is missing, a sentence each
}

// A Thread is a thread of a Process.
type Thread struct {
	TID      int
	Name     string          // comm; may be empty
	Snapshot unwind.Snapshot // its Machine and Space are the Process's
	Err      error           // why there are no registers; nil if there are

	// Late counts the words that were read after the registers were, from a process that ran again, when its stack was walked:
	// they may be newer. nil: there are none.
	Late func() uint64
}

// A Signal describes a signal (siginfo_t).
type Signal struct {
	Number  int
	Code    int    // si_code
	Addr    uint64 // of the fault, where HasAddr is set
	HasAddr bool
}
