package source

import "github.com/unspool/unspool/unwind"

// A Sample is one sample with its stack. It and all it holds is recycled after the consumer returns.
type Sample struct {
	Event    int // index in the Decoder; -1 where it cannot be told
	PID, TID int32
	CPU      uint32
	Comm     string // safe to keep
	Time     uint64 // ns as recorded; 0 if not recorded
	Period   uint64 // 1 if not recorded
	IP       uint64
	Kernel   []uint64       // kernel part of the callchain, innermost first, addresses as recorded
	User     []unwind.Frame // innermost first
	Stop     unwind.Stop    // why User ends
	Source   StackSource    // where User comes from
	Record   *Record        // as decoded; its slices are valid as long as the Sample
}

// A StackSource says where the user part of a stack comes from.
type StackSource uint8

const (
	NoStack       StackSource = iota // there is none: see Sample.Why
	Walked                           // from registers and a copy of the stack
	Recorded                         // the recorded callchain
	RecordedByUs                     // the recorded callchain, written by this project with its provenance
	DeferredChain                    // a callchain that the kernel recorded at the return to user space
	OnlyIP                           // one frame: the sample's address
)
