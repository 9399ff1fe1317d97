package lab

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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

// BenchmarkFirst walks a recording once, each time with fresh modules and a fresh walker, as a report does. The tables are in the cache, and the
// stacks in memory.
func BenchmarkFirst(b *testing.B) {
	for _, file := range recordings(b) {
		b.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(b *testing.B) {
			var snaps []oracle.Snapshot
			var in []*oracle.Space
			batches(b, file, 5000, func(s []oracle.Snapshot, i []*oracle.Space) {
				if len(s) > len(snaps) {
					snaps, in = slices.Clone(s), slices.Clone(i)
					for i := range snaps {
						snaps[i].Stack = slices.Clone(snaps[i].Stack)
					}
				}
			})
			var took time.Duration
			n := 0
			var frames []unwind.Frame
			for b.Loop() {
				mods := modules.New()
				k, w := newSpaces(mods), unwind.NewWalker(0)
				us := make([]unwind.Snapshot, len(snaps))
				for i := range us {
					us[i] = snapshot(&snaps[i], k.space(in[i]))
				}
				start := oracle.CPUTime()
				for i := range us {
					frames, _ = w.Walk(&us[i], frames[:0])
					n += len(frames)
				}
				took += oracle.CPUTime() - start
				mods.Close()
			}
			b.ReportMetric(float64(took)/float64(n), "cpu-ns/frame")
		})
	}
}
