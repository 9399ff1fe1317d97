package compact

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/rows"
)

// benchFiles are found by pattern; those a machine lacks are left out.
var benchFiles = []struct{ name, glob string }{
	{"libLLVM", "/usr/lib/x86_64-linux-gnu/libLLVM.so.19*"},
	{"cc1plus", "/usr/l*/gcc/x86_64-linux-gnu/*/cc1plus"},
	{"libc", libc},
	{"libc-arm64", "/usr/aarch64-linux-gnu/lib/libc.so.6"},
}

func eachBenchFile(b *testing.B, run func(b *testing.B, ref *rows.Table)) {
	for _, f := range benchFiles {
		paths, _ := filepath.Glob(f.glob)
		if len(paths) == 0 {
			b.Logf("no %s here", f.name)
			continue
		}
		ref, _ := readELF(b, paths[0])
		b.Run(f.name, func(b *testing.B) { run(b, ref) })
	}
}

func perRow(b *testing.B, n int) {
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/row")
}

// BenchmarkEmit, BenchmarkLoad and BenchmarkVerify report the time for a row of the reference table.
func BenchmarkEmit(b *testing.B) {
	eachBenchFile(b, func(b *testing.B, ref *rows.Table) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := Emit(ref); err != nil {
				b.Fatal(err)
			}
		}
		perRow(b, len(ref.Rows))
	})
}

func BenchmarkLoad(b *testing.B) {
	eachBenchFile(b, func(b *testing.B, ref *rows.Table) {
		bytes := emit(b, ref).Bytes()
		for b.Loop() {
			if _, err := Load(bytes); err != nil {
				b.Fatal(err)
			}
		}
		perRow(b, len(ref.Rows))
	})
}

func BenchmarkVerify(b *testing.B) {
	eachBenchFile(b, func(b *testing.B, ref *rows.Table) {
		t := emit(b, ref)
		for b.Loop() {
			if err := Verify(t, ref, 1); err != nil {
				b.Fatal(err)
			}
		}
		perRow(b, len(ref.Rows))
	})
}

// BenchmarkCompile is what the report on compiling unwind data took 25.28 s for: hackbench, libc, ld and
// libpthread, from the files to tables; once without verification and once with it.
func BenchmarkCompile(b *testing.B) {
	for _, verify := range []bool{false, true} {
		b.Run(fmt.Sprintf("verify=%v", verify), func(b *testing.B) {
			nrows := 0
			start := oracle.CPUTime()
			for b.Loop() {
				nrows = 0
				for _, f := range []string{"/usr/bin/hackbench", libc, "/lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/libpthread.so.0"} {
					ref, _ := readELF(b, f)
					bytes, err := Emit(ref)
					if err != nil {
						b.Fatal(err)
					}
					t, err := Load(bytes)
					if err == nil && verify {
						err = Verify(t, ref, 1)
					}
					if err != nil {
						b.Fatal(err)
					}
					nrows += len(ref.Rows)
				}
			}
			perRow(b, nrows)
			b.ReportMetric(float64(oracle.CPUTime()-start)/1e6/float64(b.N), "cpu-ms/op")
		})
	}
}

// BenchmarkStep looks up addresses and applies their rules, with rows.Interp as the peer: whole draws them
// from all rows of the file, each as likely as the other; warm from 64 of them.
func BenchmarkStep(b *testing.B) {
	eachBenchFile(b, func(b *testing.B, ref *rows.Table) {
		t := emit(b, ref)
		for _, n := range []struct {
			name string
			pcs  int
		}{{"whole", 1 << 18}, {"warm", 64}} {
			r := rand.New(rand.NewPCG(1, uint64(n.pcs)))
			pcs := make([]arch.Vaddr, n.pcs)
			for i := range pcs {
				k := r.IntN(len(ref.Rows))
				for ref.Rows[k].Set == rows.GapID {
					k = r.IntN(len(ref.Rows))
				}
				pcs[i] = ref.Rows[k].Lo + arch.Vaddr(r.Uint64N(uint64(ref.Hi(k)-ref.Rows[k].Lo)))
			}
			b.Run(n.name, func(b *testing.B) {
				peer := rows.Interp{Table: ref}
				peerNS := cpu(func() { steps(&peer, ref.Machine, pcs, 1<<18) }) / (1 << 18)
				b.ResetTimer()
				own := cpu(func() { steps(t, ref.Machine, pcs, b.N) }) / float64(b.N)
				b.ReportMetric(own, "cpu-ns/op")
				b.ReportMetric(peerNS, "interp-cpu-ns/op")
				b.ReportMetric(peerNS/own, "times-faster")
			})
		}
	})
}

// cpu returns the nanoseconds of processor time that f takes in this thread: what a busy machine changes least.
func cpu(f func()) float64 {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() float64 {
		var u syscall.Rusage
		syscall.Getrusage(1 /* RUSAGE_THREAD */, &u)
		return float64(u.Utime.Nano() + u.Stime.Nano())
	}
	t0 := now()
	f()
	return now() - t0
}

// steps walks a frame for each of n addresses. The stack is memory that can be read everywhere.
func steps(x rows.Stepper, mach *arch.Machine, pcs []arch.Vaddr, n int) {
	stack := make([]byte, 1<<16)
	const base = 0x7fff_0000_0000
	m := rows.Memory{Lo: base, Bytes: stack}
	var s rows.State
	sp, fp := mach.Slot(mach.SP), mach.Slot(mach.FP)
	for i := range n {
		pc := pcs[i&(len(pcs)-1)]
		s.PC, s.Known, s.InMem, s.InReg = uint64(pc), ^uint64(0), 0, 0
		s.Val[sp], s.Val[fp] = base+1<<15, base+1<<15
		if id, ok := x.Find(pc); ok {
			x.Apply(id, &s, &m)
		}
	}
}

// BenchmarkFind is the lookup alone.
func BenchmarkFind(b *testing.B) {
	eachBenchFile(b, func(b *testing.B, ref *rows.Table) {
		t := emit(b, ref)
		r := rand.New(rand.NewPCG(1, 2))
		pcs := make([]arch.Vaddr, 1<<18)
		for i := range pcs {
			pcs[i] = ref.Rows[r.IntN(len(ref.Rows))].Lo
		}
		b.ResetTimer()
		ns := cpu(func() {
			for i := range b.N {
				t.Find(pcs[i&(len(pcs)-1)])
			}
		})
		b.ReportMetric(ns/float64(b.N), "cpu-ns/op")
	})
}
