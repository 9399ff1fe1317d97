package test

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/unspool/unspool/emit/native"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

// BenchmarkStep times steps of libc's code from C, in nanoseconds, medians: "random" at rows that are chosen uniformly, "same"
// at one address again and again, of 401 addresses, "chained" so with each step waiting for the one before, as in a walk.
// "empty" is what the loop itself takes, which is in all of them.
func BenchmarkStep(b *testing.B) {
	prog := compile(b, "gcc", "bench.c", "-std=c11", "-O2", "-fcf-protection=none")
	img, err := module.Open("/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		b.Skipf("this benchmark lacks libc: %v", err)
	}
	defer img.Close()
	ref, _ := tableOf(b, img)
	r := rand.New(rand.NewPCG(1, 2))
	var pcs []byte
	for range 1 << 16 {
		i := r.IntN(len(ref.Rows) - 1)
		if ref.Rows[i].Set == rows.GapID {
			continue
		}
		row := ref.Rows[i]
		pc := uint64(row.Lo) + r.Uint64N(uint64(ref.Hi(i)-row.Lo))
		pcs = binary.LittleEndian.AppendUint64(pcs, pc)
	}
	list := filepath.Join(b.TempDir(), "pcs")
	if err := os.WriteFile(list, pcs, 0o600); err != nil {
		b.Fatal(err)
	}
	for _, l := range layouts {
		b.Run(l.String(), func(b *testing.B) {
			path := write(b, b.TempDir(), img, native.Options{Layout: l})
			for b.Loop() {
				out, err := exec.Command(prog, path, list).CombinedOutput()
				if err != nil {
					b.Fatalf("%v\n%s", err, out)
				}
				for line := range strings.Lines(string(out)) {
					var name string
					var ns float64
					if _, err := fmt.Sscan(line, &name, &ns); err != nil {
						b.Fatalf("%q: %v", line, err)
					}
					b.ReportMetric(ns, name)
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}
