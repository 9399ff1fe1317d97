package cli

import (
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestCollectLate checks that small commands are not collected, and that the first collection brings the usual bounds back.
func TestCollectLate(t *testing.T) {
	oracle.Long(t)
	if os.Getenv("UNSPOOL_COLLECT") == "" { // in a process of its own, which holds nothing yet
		c := exec.Command(os.Args[0], "-test.run=^TestCollectLate$")
		c.Env = append(os.Environ(), "UNSPOOL_COLLECT=1", "GOGC=", "GOMEMLIMIT=")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	CollectLate()
	var keep []byte
	for range 16 {
		keep = make([]byte, 1<<20)
	}
	if runtime.ReadMemStats(&after); after.NumGC != before.NumGC {
		t.Errorf("%d collections for %d MB", after.NumGC-before.NumGC, (after.TotalAlloc-before.TotalAlloc)>>20)
	}
	// A collection runs beside the program, which can allocate any amount before the collection gets a processor: so it waits.
	collected := func(what string, than uint32) {
		for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
			if runtime.ReadMemStats(&after); after.NumGC-after.NumForcedGC > than {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("no collection: %s", what)
			}
		}
	}
	for range lateCollection>>20 - 16 {
		keep = make([]byte, 1<<20)
	}
	collected("as much is held as a command may hold", before.NumGC-before.NumForcedGC)
	for end := time.Now().Add(time.Minute); debug.SetMemoryLimit(-1) != math.MaxInt64; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a minute after the first collection, the limit of memory is still %d MB; want none", debug.SetMemoryLimit(-1)>>20)
		}
	}
	for range 16 {
		runtime.GC() // what was allocated during a collection counts as held
		runtime.ReadMemStats(&after)
		own := after.NumGC - after.NumForcedGC
		for range 16 {
			keep = make([]byte, 1<<20)
		}
		collected("16 MB are allocated, and 1 is held", own)
	}
	runtime.KeepAlive(keep)
	if after.HeapSys-after.HeapReleased > before.HeapSys-before.HeapReleased+2*lateCollection {
		t.Errorf("%d MB held", (after.HeapSys-after.HeapReleased)>>20)
	}
	if p := debug.SetGCPercent(100); p != 100 {
		t.Errorf("GOGC is %d", p)
	}
}

// TestTrim: what the start of a recording leaves behind is given back soon, and again later; after its stop, no more.
func TestTrim(t *testing.T) {
	oracle.Long(t)
	held := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapSys - m.HeapReleased
	}
	usual := debug.SetGCPercent(100)
	defer debug.SetGCPercent(usual)
	t.Setenv("GOGC", "")
	Trim(time.Minute, func() {})()
	if p := debug.SetGCPercent(100); p != 100 {
		t.Errorf("GOGC is %d after the stop", p)
	}
	stop := Trim(time.Minute, func() {})
	if p := debug.SetGCPercent(100); p != often {
		t.Errorf("GOGC is %d in a recording", p)
	}
	stop()
	t.Setenv("GOGC", "200")
	stop = Trim(time.Minute, func() {})
	if p := debug.SetGCPercent(-1); p != 100 { // from here on, nothing else collects
		t.Errorf("GOGC is %d, although the environment says it", p)
	}
	stop()
	litter := func() {
		for range 64 {
			keep := make([]byte, 1<<20)
			for i := 0; i < len(keep); i += 4096 {
				keep[i] = 1
			}
		}
	}
	debug.FreeOSMemory()
	least := held()
	litter()
	var pages atomic.Int32
	stop = Trim(10*time.Millisecond, func() { pages.Add(1) })
	for turn := range 2 {
		for end := time.Now().Add(time.Minute); held() > least+8<<20; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("turn %d: %d MB are held, %d before", turn, held()>>20, least>>20)
			}
		}
		if turn == 0 {
			litter()
		}
	}
	stop()
	if pages.Load() < 2 {
		t.Errorf("pages are given back %d times", pages.Load())
	}
	var was, is runtime.MemStats
	runtime.ReadMemStats(&was)
	wasPages := pages.Load()
	time.Sleep(200 * time.Millisecond)
	if runtime.ReadMemStats(&is); is.NumForcedGC != was.NumForcedGC || pages.Load() != wasPages {
		t.Errorf("memory is given back after the stop: %d forced collections, %d before; pages %d times, %d before", is.NumForcedGC, was.NumForcedGC, pages.Load(), wasPages)
	}
}
