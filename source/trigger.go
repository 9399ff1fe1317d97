package source

// A Trigger says when a program in the kernel takes samples.
type Trigger struct {
	Kind     TriggerKind
	All      bool   // of all processes: else of those whose records come
	Children bool   // and of what they start
	Period   uint64 // at each so many tracepoints
	Waits    bool   // OnEvents: and OnBlocking, too, whose samples have the ID WaitID
	Tree     *Tree  // not nil: events are those of all processes, and only those of this Tree are of interest
}

// A TriggerKind is a kind of Trigger.
type TriggerKind uint8

const (
	OnEvents      TriggerKind = iota // at events of counters, clocks and breakpoints
	OnTracepoints                    // at a tracepoint
	OnProbes                         // at a kprobe or a uprobe, which are defined as tracepoints are
	OnBlocking                       // when a thread that was blocked goes on, with the stack that blocked
	OnAllocations                    // when processes that the program knows allocate memory, and free it
)
