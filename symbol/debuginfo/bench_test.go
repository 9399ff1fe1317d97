package debuginfo

import (
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
)

// benchFile compiles a program.
func benchFile(b *testing.B, name string) string {
	b.Helper()
	dir := b.TempDir()
	src, err := filepath.Abs("testdata")
	if err != nil {
		b.Fatal(err)
	}
	out := filepath.Join(dir, "out")
	var cmd *exec.Cmd
	switch name {
	case "g++":
		oracle.Need(b, "g++")
		cmd = exec.Command("g++", "-g", "-O2", "-o", out, filepath.Join(src, "heavy.cc"))
	case "clang++":
		oracle.Need(b, "clang++-19")
		cmd = exec.Command("clang++-19", "-w", "-g", "-O2", "-o", out, filepath.Join(src, "heavy.cc"))
	case "go":
		cmd = exec.Command("go", "build", "-ldflags=-compressdwarf=false", "-o", out, "github.com/unspool/unspool/cmd/unspool")
	}
	if msg, err := cmd.CombinedOutput(); err != nil {
		b.Fatalf("%v: %v\n%s", cmd.Args, err, msg)
	}
	return out
}

// BenchmarkPlaces asks for 20,000 addresses of a file, in order, each file opened anew, and then llvm-symbolizer for the
// same.
func BenchmarkPlaces(b *testing.B) {
	oracle.Need(b, "llvm-symbolizer-19")
	for _, name := range []string{"g++", "clang++", "go"} {
		b.Run(name, func(b *testing.B) {
			path := benchFile(b, name)
			img, err := module.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			defer img.Close()
			addrs := textAddrs(b, img, 20000)
			var before, after runtime.MemStats
			var index, all time.Duration
			for b.Loop() {
				runtime.ReadMemStats(&before)
				start := oracle.CPUTime()
				in, err := Open(img, Options{Open: openAny})
				if err != nil {
					b.Fatal(err)
				}
				in.units()
				index += oracle.CPUTime() - start
				in.Places(addrs)
				all += oracle.CPUTime() - start
				runtime.ReadMemStats(&after)
				in.Close()
			}
			n := float64(len(addrs))
			b.ReportMetric(float64(all.Nanoseconds())/float64(b.N)/n, "ns-CPU/address")
			b.ReportMetric(float64(index.Microseconds())/float64(b.N), "µs-CPU/index")
			b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "MB/file")
			b.StopTimer()
			cmd := exec.Command("llvm-symbolizer-19", "--inlines", "--functions=linkage", "--no-demangle", "-e", path)
			cmd.Stdin = hexLines(addrs)
			if err := cmd.Run(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Nanoseconds())/n, "ns-CPU/address-llvm")
		})
	}
}
