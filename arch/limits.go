package arch

// Bounds of walks beyond unwind information (docs/SEMANTICS.md, section 6). emit/compact/gen gives them to the walkers in C.
const (
	MaxStack        = 1 << 30 // bytes: a frame pointer that leads farther up is none, and an address farther above a captured stack is not its missing rest
	MaxPiece        = 4 << 10 // bytes: a frame farther above its callee's is not of the same piece of a stack
	MaxMoves        = 64      // times that a walk may go down to another stack
	MaxFunction     = 1 << 20 // bytes: a function is taken to be no longer
	MaxAfterSyscall = 24      // bytes between a system call that makes a thread and the return from its function, which compares, and jumps twice
	MaxFlags        = 7       // the greatest value of uc_flags
)
