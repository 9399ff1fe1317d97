package ebpf

import (
	"math"
	"testing"
)

// TestDraws: the draws have the mean and the deviation of an exponential distribution, and grow.
func TestDraws(t *testing.T) {
	for _, period := range []uint64{100, 4096, 512 << 10} {
		d := draws(period)
		sum, squares := 0.0, 0.0
		for i, n := range d {
			sum += float64(n)
			squares += float64(n) * float64(n)
			if i > 0 && n < d[i-1] {
				t.Fatalf("%d after %d", n, d[i-1])
			}
		}
		mean := sum / numDraws
		deviation := math.Sqrt(squares/numDraws - mean*mean)
		if p := float64(period); math.Abs(mean/p-1) > 0.003 || math.Abs(deviation/p-1) > 0.01 {
			t.Errorf("period %d: mean %.1f, deviation %.1f", period, mean, deviation)
		}
	}
	for _, n := range draws(1) {
		if n != 1 {
			t.Fatalf("after a sample of all allocations, the next %d bytes are none", n-1)
		}
	}
}
