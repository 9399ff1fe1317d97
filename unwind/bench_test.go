package unwind_test

import (
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/unwind"
)

// synthetic returns stacks of depth frames through a library's functions: each frame's row is one that a call
// in the middle of a function has, and the stack is laid out so that it leads to the next.
func synthetic(t *rows.Table, space *unwind.Space, bias uint64, stacks, depth int, rnd *rand.Rand) []unwind.Snapshot {
	const base = 0x7ffd_0000_0000
	var usable []int
	for i := range t.Rows[:len(t.Rows)-1] {
		s := &t.Sets[t.Rows[i].Set]
		ra, _ := s.Rule(s.RA)
		if s.CFA.Kind == rows.CFAReg && s.CFA.Reg == arch.AMD64.SP && ra.Kind == rows.Offset && s.CFA.Off <= 256 && t.Hi(i)-t.Rows[i].Lo > 1 {
			usable = append(usable, i)
		}
	}
	out := make([]unwind.Snapshot, stacks)
	for k := range out {
		s := &out[k]
		s.Machine, s.Space, s.Known = arch.AMD64, space, 1<<17-1
		sp := 0
		i := usable[rnd.IntN(len(usable))]
		s.PC = bias + uint64(t.Rows[i].Lo)
		var stack []byte
		for range depth {
			next := usable[rnd.IntN(len(usable))]
			sp += int(t.Sets[t.Rows[i].Set].CFA.Off)
			stack = append(stack, make([]byte, sp-len(stack))...)
			binary.LittleEndian.PutUint64(stack[sp-8:], bias+uint64(t.Rows[next].Lo)+1)
			i = next
		}
		s.Regs[7] = base
		s.Mem = rows.Memory{Lo: base, Bytes: stack}
	}
	return out
}

// BenchmarkWalkLibc walks stacks of 20 frames through the C library: ten of them again and again, and so many that
// their program counters do not fit the cache; by the compact table and by the reference.
func BenchmarkWalkLibc(b *testing.B) {
	const path = "/usr/lib/x86_64-linux-gnu/libc.so.6"
	if _, err := os.Stat(path); err != nil {
		oracle.Lacks(b, path)
	}
	img, err := module.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer img.Close()
	fs, err := dwarf.Open(img)
	if err != nil {
		b.Fatal(err)
	}
	table, _ := fs.Build(dwarf.EHFrame)
	enc, err := compact.Emit(table)
	if err != nil {
		b.Fatal(err)
	}
	fast, err := compact.Load(enc)
	if err != nil {
		b.Fatal(err)
	}
	const bias = 0x7f00_0000_0000
	for _, stepper := range []struct {
		name string
		s    rows.Stepper
	}{{"compact", fast}, {"reference", rows.Interp{Table: table}}} {
		code := &unwind.Code{Machine: arch.AMD64, Stepper: stepper.s, Vaddr: func(off uint64) (arch.Vaddr, bool) { return arch.Vaddr(off), true }}
		space := unwind.NewSpace(unwind.Mapping{Lo: bias, Hi: bias + arch.Addr(img.Size()), Module: unwind.NewModule(path, "", func(*unwind.Module) *unwind.Code { return code })})
		for _, c := range []struct {
			name   string
			stacks int
		}{{"one", 1}, {"warm", 10}, {"cold", 20000}} {
			b.Run(stepper.name+"/"+c.name, func(b *testing.B) {
				snaps := synthetic(table, space, bias, c.stacks, 20, rand.New(rand.NewPCG(1, 2)))
				w := unwind.NewWalker(0)
				var frames []unwind.Frame
				n, k := 0, 0
				cpu := oracle.CPUTime()
				for b.Loop() {
					for range 10 {
						frames, _ = w.Walk(&snaps[k], frames[:0])
						n += len(frames)
						if k++; k == len(snaps) {
							k = 0
						}
					}
				}
				b.ReportMetric(float64(oracle.CPUTime()-cpu)/float64(n), "cpu-ns/frame")
				b.ReportMetric(float64(n)/float64(10*b.N), "frames/stack")
			})
		}
	}
}
