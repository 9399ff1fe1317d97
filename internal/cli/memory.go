package cli

import (
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

// lateCollection is how much memory a short command may hold before its first garbage collection.
const lateCollection = 64 << 20

// CollectLate puts off the first garbage collection until lateCollection bytes are held. Go begins to collect at 4 MB: a report of 10,000 samples
// has then been collected five times, a tenth of its time, for 8 MB less. From the first collection on all is as usual, so memory has the usual
// bound. GOGC and GOMEMLIMIT have precedence.
func CollectLate() {
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

// FirstTrim is when a recording first gives memory back, and lastTrim the greatest distance between two such times.
const (
	FirstTrim = 2 * time.Second
	lastTrim  = 2 * time.Minute
)

// Go gives freed memory back in its own time. Where the heap has more than unused bytes free, they are given back at once, every soon at most.
const (
	unused = 4 << 20
	soon   = 10 * time.Second
)

// often is how much may be allocated before the next garbage collection of a recording, in percent of what is in use.
const often = 25

// Trim gives memory back that is not needed any more, after first, and then each time after twice as long, up to lastTrim, until stop is
// called. Until then, garbage is collected more often than usual, unless GOGC says how often: a recording runs beside what it measures. The start
// of a recording of the whole machine reads all its programs; then little is allocated, so the garbage of the start would stay for minutes: twice
// what is in use. pages is called after each first, because programs come all the time: it gives back pages of files.
func Trim(first time.Duration, pages func()) (stop func()) {
	usual := 0
	if os.Getenv("GOGC") == "" {
		usual = debug.SetGCPercent(often)
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		last := time.Now()
		for d, left := first, first; ; {
			select {
			case <-time.After(first):
				pages()
				if left -= first; left <= 0 {
					d = min(2*d, lastTrim)
					left = d
				} else if time.Since(last) < soon || freed() <= unused {
					continue
				}
				debug.FreeOSMemory()
				last = time.Now()
			case <-end:
				return
			}
		}
	}()
	return func() {
		close(end)
		<-ended
		if usual != 0 {
			debug.SetGCPercent(usual)
		}
	}
}

// freed returns how many bytes of the heap are free, and not given back.
func freed() uint64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/free:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// LimitMemory lets the garbage collector work harder once the program has taken so many bytes, unless its user has set another limit.
func LimitMemory(bytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes)
	}
}
