package main

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
)

// lateCollection is how much memory a short command may hold before its first garbage collection.
const lateCollection = 64 << 20

// collectLate puts off the first garbage collection until lateCollection bytes are held. Go begins to collect at 4 MB: a report of 10,000 samples
// has then been collected five times, a tenth of its time, for 5 MB less. From the first collection on all is as usual, so memory has the usual
// bound. GOGC and GOMEMLIMIT have precedence.
func collectLate() {
	if os.Getenv("GOGC") != "" || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(lateCollection)
	first := new([64]byte) // the first collection finds that nobody needs it
	runtime.AddCleanup(first, func(struct{}) {
		debug.SetGCPercent(100)
		debug.SetMemoryLimit(math.MaxInt64)
	}, struct{}{})
}
