package csource

import (
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
)

// TestCorpus holds the C of binaries of the machine against the reference: every row and every rule of 20 of them; of all
// with UNSPOOL_CORPUS=all. tcc compiles it, because it compiles a million rows in seconds.
func TestCorpus(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "tcc")
	paths := oracle.Binaries(t)
	if os.Getenv("UNSPOOL_CORPUS") != "all" {
		paths = oracle.Spread(paths, 20)
	}
	tcc := build{cc: "tcc"}
	var files, nrows, sets, next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(paths); i = int(next.Add(1)) - 1 {
				ref, _ := readELF(t, paths[i])
				if ref == nil || len(ref.Rows) == 0 || ref.Machine != arch.AMD64 {
					continue
				}
				if err := disagreement(t, ref, Options{Deref: Slice}, tcc); err != nil {
					t.Errorf("%s: %v", paths[i], err)
				}
				files.Add(1)
				nrows.Add(int64(len(ref.Rows)))
				sets.Add(int64(len(ref.Sets) - 1))
			}
		})
	}
	wg.Wait()
	t.Logf("%d files, %d rows, %d rules", files.Load(), nrows.Load(), sets.Load())
}
