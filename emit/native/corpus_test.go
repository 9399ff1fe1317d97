package native

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// TestCorpus compiles binaries of the machine (60 of them; all with UNSPOOL_CORPUS=all) as eh_elf files of layout Page,
// runs them against the reference, and holds their size against that of .eh_frame.
func TestCorpus(t *testing.T) {
	oracle.Long(t)
	paths := oracle.Binaries(t)
	if os.Getenv("UNSPOOL_CORPUS") != "all" {
		paths = oracle.Spread(paths, 60)
	}
	var mu sync.Mutex
	var files, large, rules int
	var frame, largeFrame uint64
	var size, largeSize [numDerefs]uint64
	var emitting, proving time.Duration
	ratios := [numDerefs][]float64{}
	one := func(path string) {
		img, err := module.Open(path)
		if err != nil {
			t.Error(err)
			return
		}
		defer img.Close()
		f, err := dwarf.Open(img)
		if err != nil || img.Machine() != arch.AMD64 {
			return
		}
		ref, _ := f.Build(dwarf.EHFrame)
		if len(ref.Rows) == 0 {
			return
		}
		ehFrame := f.Sizes().EHFrame
		var ns [numDerefs]uint64
		for d := range numDerefs {
			start := time.Now()
			b, err := Emit(ref, Options{Deref: d, ID: img.ID()})
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			emitted := time.Now()
			c, err := Load(b)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				return
			}
			if err := Verify(c, ref, 1); err != nil {
				t.Errorf("%s: %v: %v", path, d, err)
			}
			mu.Lock()
			emitting += emitted.Sub(start)
			proving += time.Since(emitted)
			rules += int(c.in.NumRules) - 1
			mu.Unlock()
			c.Close()
			ns[d] = uint64(len(b))
		}
		mu.Lock()
		defer mu.Unlock()
		files++
		frame += ehFrame
		if ehFrame >= 64<<10 {
			large++
			largeFrame += ehFrame
		}
		for d, n := range ns {
			size[d] += n
			ratios[d] = append(ratios[d], float64(n)/float64(ehFrame))
			limit := ehFrame
			if d == int(Slice) {
				limit = ehFrame * 11 / 10
			}
			if ehFrame >= 64<<10 {
				largeSize[d] += n
			} else {
				limit += 4096
			}
			if n > limit && d != int(Callback) {
				t.Errorf("%s: %v: %d bytes, more than %d; .eh_frame has %d", path, Deref(d), n, limit, ehFrame)
			}
		}
	}
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(paths); i = int(next.Add(1)) - 1 {
				if err := module.Guard(func() error { one(paths[i]); return nil }); err != nil {
					t.Errorf("%s: %v", paths[i], err)
				}
			}
		})
	}
	wg.Wait()
	if files == 0 {
		oracle.Lacks(t, "binaries with .eh_frame")
	}
	for d := range numDerefs {
		slices.Sort(ratios[d])
		t.Logf("%-8v %d files, %d bytes: %.3f of .eh_frame; median %.3f; of the %d with 64 KiB of it or more %.3f", d, files, size[d], float64(size[d])/float64(frame),
			ratios[d][files/2], large, float64(largeSize[d])/float64(max(largeFrame, 1)))
	}
	t.Logf("%d rules; emitting took %v, proving %v", rules, emitting, proving)
	if size[Self] > frame || size[Slice]*10 > frame*11 {
		t.Errorf("%d bytes for self, %d for slice; .eh_frame has %d", size[Self], size[Slice], frame)
	}
}
