package lab

import (
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/unwind"
)

// A contender walks batches of snapshots and says how many frames it found in what time. fresh is oracle.TimeFresh's:
// stacks have just been read.
type contender struct {
	name  string
	batch func(snaps []oracle.Snapshot, in []*oracle.Space, passes int, fresh bool) (frames int, took []time.Duration)

	frames, warmFrames int
	first, warm        time.Duration // over all batches: the first pass, and the fastest of the later ones
	perFrame           []float64     // ns, of each batch's first pass
}

func peer(t testing.TB, w *oracle.Walker) *contender {
	known := told{}
	return &contender{name: w.Name, batch: func(snaps []oracle.Snapshot, in []*oracle.Space, passes int, fresh bool) (int, []time.Duration) {
		known.tell(t, w, in)
		timed := w.Time
		if fresh {
			timed = w.TimeFresh
		}
		frames, took, err := timed(snaps, passes)
		if err != nil {
			t.Fatal(err)
		}
		return frames, took
	}}
}

func ours(t testing.TB, name string, mods *modules.Set) *contender {
	return walker(name, newSpaces(mods))
}

var read byte // what was read of stacks, so that it is read

// walker is our own walker over what k makes of a space's files.
func walker(name string, k *spaces) *contender {
	w := unwind.NewWalker(0)
	var frames []unwind.Frame
	return &contender{name: name, batch: func(snaps []oracle.Snapshot, in []*oracle.Space, passes int, fresh bool) (int, []time.Duration) {
		us := make([]unwind.Snapshot, len(snaps))
		for i := range us {
			us[i] = snapshot(&snaps[i], k.space(in[i]))
		}
		// The batch is fresh garbage to the collector; its work is not the walker's.
		runtime.GC()
		defer debug.SetGCPercent(debug.SetGCPercent(-1))
		var took []time.Duration
		n, group := 0, len(us)
		if fresh {
			group = 8 // as the drivers do it
		}
		for range passes {
			n = 0
			var sum time.Duration
			for part := range slices.Chunk(us, group) {
				for i := range part {
					for at := 0; fresh && at < len(part[i].Mem.Bytes); at += 64 {
						read += part[i].Mem.Bytes[at]
					}
				}
				start := time.Now()
				for i := range part {
					frames, _ = w.Walk(&part[i], frames[:0])
					n += len(frames)
				}
				sum += time.Since(start)
			}
			took = append(took, sum)
		}
		return n, took
	}}
}

// race runs the contenders over all batches of a recording, one after the other on each batch. Our walkers share the stacks, which the first of
// them brings into the caches for the next: so the order turns round with each batch, and there is an even number of batches. Where there are only
// two, they have five times the passes: the fastest of few would be a matter of chance.
func race(t testing.TB, file string, passes int, fresh bool, cs []*contender) {
	all := 0
	batches(t, file, 2000, func(snaps []oracle.Snapshot, _ []*oracle.Space) { all += len(snaps) })
	pairs := max(1, all/4000)
	if pairs == 1 {
		passes *= 5
	}
	n := 0
	batches(t, file, (all+2*pairs-1)/(2*pairs), func(snaps []oracle.Snapshot, in []*oracle.Space) {
		order := make([]*contender, len(cs))
		for i := range cs {
			order[i] = cs[(i+n/2)%len(cs)]
		}
		if n&1 != 0 {
			slices.Reverse(order)
		}
		for _, c := range order {
			frames, took := c.batch(snaps, in, passes, fresh)
			c.frames += frames
			c.first += took[0]
			c.perFrame = append(c.perFrame, float64(took[0])/float64(max(frames, 1)))
			if len(took) > 1 {
				c.warm += slices.Min(took[1:])
				c.warmFrames += frames
			}
		}
		n++
	})
}

// walkSpeed races all walkers over a recording and returns their ns/frame as a table.
func walkSpeed(t testing.TB, file string) [][]string {
	cs := []*contender{
		ours(t, "unspool", modules.New()), ours(t, "unspool, reference interpreter", modules.Interpreted()),
		peer(t, oracle.Libunwind(t)), peer(t, oracle.LibunwindTuned(t)), peer(t, oracle.Dwfl(t)),
	}
	race(t, file, 3, false, cs)
	rows := [][]string{{"walker", "frames", "ns/frame, first pass", "median of batches", "warm", "first pass, × ours"}}
	for _, c := range cs {
		per := func(d time.Duration, n int) float64 { return float64(d) / float64(max(n, 1)) }
		rows = append(rows, []string{c.name, fmt.Sprint(c.frames), fmt.Sprintf("%.0f", per(c.first, c.frames)),
			fmt.Sprintf("%.0f", median(c.perFrame)), fmt.Sprintf("%.0f", per(c.warm, c.warmFrames)),
			fmt.Sprintf("%.1f", per(c.first, c.frames)/per(cs[0].first, cs[0].frames))})
	}
	return rows
}

// TestWalkSpeed walks each recording with all walkers, and prints the time for a frame.
func TestWalkSpeed(t *testing.T) {
	oracle.Full(t)
	for _, file := range recordings(t) {
		rows := walkSpeed(t, file)
		t.Logf("%s\n%s", filepath.Base(file), table(rows))
	}
}
