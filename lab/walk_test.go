package lab

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/unwind"
)

// BenchmarkWalk walks the stacks of each recording, the first ones of it, again and again: a whole file with all
// caches as they are after one pass, and ten stacks only, which stay in the processor's caches.
func BenchmarkWalk(b *testing.B) {
	for _, file := range recordings(b) {
		for _, c := range []struct {
			name string
			n    int
		}{{"file", 5000}, {"warm", 10}} {
			b.Run(strings.TrimSuffix(filepath.Base(file), ".data")+"/"+c.name, func(b *testing.B) {
				k := newSpaces(modules.New())
				var us []unwind.Snapshot
				batches(b, file, c.n, func(snaps []oracle.Snapshot, in []*oracle.Space) {
					if us != nil {
						return
					}
					for i := range snaps {
						u := snapshot(&snaps[i], k.space(in[i]))
						u.Mem.Bytes = append([]byte(nil), u.Mem.Bytes...)
						us = append(us, u)
					}
				})
				w := unwind.NewWalker(0)
				var frames []unwind.Frame
				pass := func() (n int) {
					for i := range us {
						frames, _ = w.Walk(&us[i], frames[:0])
						n += len(frames)
					}
					return n
				}
				pass()
				n, start := 0, oracle.CPUTime()
				for b.Loop() {
					n += pass()
				}
				b.ReportMetric(float64(oracle.CPUTime()-start)/float64(n), "cpu-ns/frame")
			})
		}
	}
}
