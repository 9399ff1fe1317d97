// Package heap records what programs allocate, and makes a heap profile of it (docs/HEAP.md). Record runs a command with libunspool_heap.so in front
// of its allocator, and reads the files that the library writes (package source/heap). Of processes that run, it has the kernel put probes at their
// allocators (package source/ebpf).
//
// Nothing here prints.
package heap

import (
	"context"
	"time"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
)

// DefaultPeriod is how many bytes are allocated between samples, on average.
const DefaultPeriod = 512 << 10

// A Plan says what to record.
type Plan struct {
	// Target is what to record, and for how long: a command and its children, by the library, or processes (PIDs), by probes. For processes,
	// record.Plan.Check has been called.
	Target record.Plan

	Period uint64        // bytes between samples, on average; 0: all allocations are recorded
	Maps   bool          // of a command: record all memory that is mapped without a file, in place of allocations
	Every  time.Duration // between snapshots; 0: none but those that SIGUSR2 asks for
}

// Options are what Record works with. All are needed.
type Options struct {
	Mods     *modules.Set                   // have the tables by which stacks are walked
	Names    *names.Namer                   // names what the stacks have
	Notify   func(note string)              // is told at once what people should know
	Snapshot func(p *profile.Profile) error // gets a profile of what was allocated so far
}

// A Result is a recording that has ended.
type Result struct {
	// Profile has an event for each of profile.HeapEvents; of processes, for HeapAlloc and HeapInUse only.
	Profile *profile.Profile

	Notes    []string // say what the profile lacks
	EndNotes []string // say how the recording went
	Status   int      // the command's, as a shell would give it; 0 without a command
}

// Hints says what else to look at, where what is shown of a profile is empty.
func Hints(shown, p *profile.Profile) []string {
	if shown.Events[0].Name != profile.HeapInUse || shown.Totals.Period > 0 || p.Totals.Period == 0 {
		return nil
	}
	see := "alloc_space shows all that was allocated"
	if p.Has(profile.HeapPeak) {
		see = "peak_space shows the peak, alloc_space all that was allocated"
	}
	return []string{"nothing was in use at the end: --heap-value " + see}
}

// Record records until the command or the processes have ended, the duration is over, or ctx is done. A command is then asked to end; one that does
// not is left running.
func Record(ctx context.Context, p Plan, o Options) (*Result, error) {
	if len(p.Target.PIDs) > 0 {
		return probe(ctx, p, o)
	}
	return preload(ctx, p, o)
}
