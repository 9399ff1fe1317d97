package perfdata

import (
	"context"
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/unspool/unspool/source"
)

// recording returns the file that the environment names for benchmarks: perf record --call-graph dwarf of anything.
func recording(b *testing.B) string {
	path := os.Getenv("UNSPOOL_RECORDING")
	if path == "" {
		b.Skip("UNSPOOL_RECORDING names no perf.data file")
	}
	return path
}

// BenchmarkDecode reads and decodes a file's records on one goroutine.
func BenchmarkDecode(b *testing.B) {
	path := recording(b)
	for b.Loop() {
		f := openTest(b, path)
		var r source.Record
		n, start := 0, time.Now()
		for {
			raw, _, err := f.Next()
			if err == io.EOF {
				break
			}
			if err == nil && binary.LittleEndian.Uint32(raw) < source.RecordUser {
				err = f.dec.Decode(raw, &r)
			}
			if err != nil {
				b.Fatal(err)
			}
			n++
		}
		b.SetBytes(f.size)
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(n), "ns/record")
		f.Close()
	}
}

// BenchmarkRun puts a file's records in order, decodes them and keeps the World, but has no modules to walk with.
func BenchmarkRun(b *testing.B) {
	path := recording(b)
	var peak uint64
	for b.Loop() {
		f := openTest(b, path)
		start := time.Now()
		st, err := source.Run(context.Background(), f, source.Options{})
		if err != nil {
			b.Fatal(err)
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		peak = max(peak, m.HeapSys)
		b.SetBytes(f.size)
		b.ReportMetric(float64(time.Since(start).Nanoseconds())/float64(st.Records), "ns/record")
		b.ReportMetric(float64(peak)/1e6, "heap-MB")
		if st.Bad+st.Unknown+st.Disordered > 0 {
			b.Errorf("%+v", st)
		}
		f.Close()
	}
}
