package pe

import (
	"path/filepath"
	"testing"

	"github.com/unspool/unspool/module"
)

// BenchmarkRows makes the rows of one image for each machine. Of x86-64, that is a walk over all code.
func BenchmarkRows(b *testing.B) {
	for _, path := range images(b) {
		img, err := module.Open(path)
		if err != nil {
			b.Fatal(err)
		}
		defer img.Close()
		tab := Open(img)
		if tab == nil {
			continue
		}
		b.Run(filepath.Base(path), func(b *testing.B) {
			n := 0
			for b.Loop() {
				r, _ := tab.Rows()
				n += len(r.Rows)
			}
			b.ReportMetric(float64(n)/b.Elapsed().Seconds()/1e6, "Mrows/s")
		})
	}
}
