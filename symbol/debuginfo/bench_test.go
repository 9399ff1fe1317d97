package debuginfo

import (
	"debug/dwarf"
	"debug/elf"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
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

// BenchmarkPlaces asks for 100 and for 20,000 addresses of a file, in order, each file opened anew, and then llvm-symbolizer for the
// same. debug/dwarf reads what it needs to.
func BenchmarkPlaces(b *testing.B) {
	oracle.Need(b, "llvm-symbolizer-19")
	for _, name := range []string{"g++", "clang++", "go"} {
		path := benchFile(b, name)
		for _, n := range []uint64{100, 20000} {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) { benchPlaces(b, path, n) })
		}
	}
}

func benchPlaces(b *testing.B, path string, count uint64) {
	img, err := module.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer img.Close()
	addrs := textAddrs(b, img, count)
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
	start := oracle.CPUTime()
	runtime.ReadMemStats(&before)
	if err := readStd(path, addrs); err != nil {
		b.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64((oracle.CPUTime()-start).Nanoseconds())/n, "ns-CPU/address-std")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/1e6, "MB/file-std")
	b.ReportMetric(float64((cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()).Nanoseconds())/n, "ns-CPU/address-llvm")
}

// readStd reads with debug/dwarf what any answer needs: of each unit that has an address the DIEs, the ranges of functions and of inlined
// calls, and the line table.
func readStd(path string, addrs []arch.Vaddr) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	d, err := f.DWARF()
	if err != nil {
		return err
	}
	r := d.Reader()
	hit := func(lo, hi uint64) bool {
		i := sort.Search(len(addrs), func(i int) bool { return uint64(addrs[i]) >= lo })
		return i < len(addrs) && uint64(addrs[i]) < hi
	}
	for {
		cu, err := r.Next()
		if err != nil || cu == nil {
			return err
		}
		ranges, err := d.Ranges(cu)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(ranges, func(r [2]uint64) bool { return hit(r[0], r[1]) }) {
			r.SkipChildren()
			continue
		}
		if lines, err := d.LineReader(cu); err == nil && lines != nil {
			var e dwarf.LineEntry
			for lines.Next(&e) == nil {
			}
		}
		for depth := 1; cu.Children && depth > 0; {
			e, err := r.Next()
			if err != nil {
				return err
			}
			switch {
			case e.Tag == 0:
				depth--
				continue
			case e.Tag == dwarf.TagSubprogram, e.Tag == dwarf.TagInlinedSubroutine:
				if _, err := d.Ranges(e); err != nil {
					return err
				}
			}
			if e.Children {
				depth++
			}
		}
	}
}
