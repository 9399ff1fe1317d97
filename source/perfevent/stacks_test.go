package perfevent

import (
	"context"
	"fmt"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// mods loads modules for the reference interpreter.
func mods(path, buildID string) *unwind.Module {
	return unwind.NewModule(path, buildID, func(*unwind.Module) *unwind.Code {
		var img *module.Image
		var err error
		if path == "[vdso]" {
			img, err = module.VDSO()
		} else {
			img, err = module.Open(path)
		}
		if err != nil {
			return nil
		}
		frames, err := dwarf.Open(img)
		if err != nil {
			return nil
		}
		table, _ := frames.Build(dwarf.Both)
		c := &unwind.Code{Machine: img.Machine(), Vaddr: img.OffToVaddr, Stepper: rows.Interp{Table: table}}
		if e := img.Entry(); e != 0 {
			if _, ok := c.Stepper.Find(e); !ok {
				c.Terminal = []unwind.Range{{Lo: e, Hi: e + arch.Vaddr(64)}}
			}
		}
		return c
	})
}

// judged counts the stacks of a recording.
type judged struct {
	all     int
	whole   int // end at the outermost frame
	cut     int // the copy does not reach the stack's base
	blind   int // neither, and no walker could do better: see unwalkable
	broken  int // the rest
	spBit   int // the number of the stack pointer among perf's registers
	pending []incomplete
	base    map[*unwind.Space]uint64 // the highest address copied: where the stacks of a process begin
}

// incomplete is a stack that is not whole although its copy is not full.
type incomplete struct {
	space *unwind.Space
	end   uint64 // of the copy
	blind bool
	what  string
}

// whole records a command and judges its stacks. A copy that is not full ends at the stack's base or at a page that
// is not in memory; the stacks whose base was copied must be whole, but for those that no walker could follow, which
// are few, one in a thousand, and a handful: each process that starts may be hit inside execve, which has no user stack.
func whole(t *testing.T, o Options) *judged {
	t.Helper()
	r := open(t, o)
	j := &judged{spBit: map[*arch.Machine]int{arch.AMD64: 7, arch.ARM64: 31}[r.Machine()], base: map[*unwind.Space]uint64{}}
	var newest, late uint64
	var cpu, lateCPU uint32
	order := "" // the first samples that came too late, for a diagnosis
	st, err := source.Run(context.Background(), r, source.Options{Machine: r.Machine(), Mods: mods, Sample: func(s *source.Sample) error {
		if s.Time >= newest {
			newest, cpu = s.Time, s.CPU
		} else if late++; late <= 5 || s.CPU != lateCPU {
			lateCPU = s.CPU
			order += fmt.Sprintf("\nsample %d of processor %d is %d µs older than one of processor %d", j.all, s.CPU, (newest-s.Time)/1000, cpu)
		}
		if s.From == source.Walked {
			j.add(s)
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if (st.Lost+st.LostSamples)*100 > st.Records || st.Bad+st.Disordered > 0 {
		t.Errorf("lost %d and %d, bad %d, out of order %d%.2000s", st.Lost, st.LostSamples, st.Bad, st.Disordered, order)
	}
	for _, p := range j.pending {
		switch {
		case p.end < j.base[p.space]:
			j.cut++
		case p.blind:
			j.blind++
		default:
			j.broken++
			t.Log("broken:", p.what)
		}
	}
	based := j.all - j.cut
	if j.broken > 8+based/1000 || j.blind > 8+based/50 {
		t.Errorf("of %d stacks whose base was copied %d are broken and %d cannot be walked", based, j.broken, j.blind)
	}
	t.Logf("stack copies of %d: %d of %d stacks whole, %d cut, %d that cannot be walked, %d broken; stops %v; %+v",
		r.Stats().StackSize, j.whole, j.all, j.cut, j.blind, j.broken, st.Stops, r.Stats())
	return j
}

func (j *judged) add(s *source.Sample) {
	r := s.Record
	j.all++
	sp := r.UserRegs.At(bits.OnesCount64(r.UserRegsMask & (1<<j.spBit - 1)))
	full := r.StackDyn >= uint64(len(r.Stack))
	if !full {
		j.base[s.Space] = max(j.base[s.Space], sp+r.StackDyn)
	}
	switch {
	case s.Stop == unwind.Outermost:
		j.whole++
	case full || r.StackDyn == 0:
		j.cut++
	default:
		last := s.User[len(s.User)-1]
		name := "nowhere"
		if last.Mapping != nil {
			name = fmt.Sprintf("%s+%#x", last.Mapping.Module.Path, last.Mapping.FileOff(last.PC))
		}
		j.pending = append(j.pending, incomplete{s.Space, sp + r.StackDyn, unwalkable(s),
			fmt.Sprintf("%v after %d frames, in %s; %d bytes copied", s.Stop, len(s.User), name, r.StackDyn)})
	}
}

// unwalkable says that nobody could walk the stack of s from what was recorded: it leads to code without information, such
// as libgmp's assembly; or the program was interrupted after an epilogue's pops, where GCC's rows still say that the
// registers are where they were saved, which is right, but is below the stack pointer, and copies begin there.
func unwalkable(s *source.Sample) bool {
	f := s.User[0]
	if s.Stop == unwind.NoInfo {
		return s.User[len(s.User)-1].Mapping != nil
	}
	if s.Stop != unwind.BadMemory || f.Mapping == nil {
		return false
	}
	v, ok := f.Mapping.Vaddr(f.PC)
	table, isTable := f.Mapping.Module.Code().Stepper.(rows.Interp)
	if !ok || !isTable {
		return false
	}
	set := table.Table.At(v)
	return set != nil && set.CFA.Kind == rows.CFAReg && slices.ContainsFunc(set.Rules, func(r rows.Rule) bool {
		return r.Kind == rows.Offset && r.Off+set.CFA.Off < 0
	})
}

// TestStacks walks while it records.
func TestStacks(t *testing.T) {
	w := work(t)
	for _, mode := range []string{"threads", "fork", "faults"} {
		if j := whole(t, Options{Command: []string{w, mode, "0.3"}}); j.all < 100 || j.whole < j.all*99/100 {
			t.Errorf("%s: %d of %d stacks are whole", mode, j.whole, j.all)
		}
	}
	if j := whole(t, Options{Command: []string{w, "deep", "0.3"}, StackSize: 8192}); j.whole > j.all/10 || j.cut < j.all*9/10 {
		t.Errorf("deep: %d of %d stacks are whole, %d are cut", j.whole, j.all, j.cut)
	}
}

// TestCompilerStacks records g++ with copies of 8 KiB and with the default.
func TestCompilerStacks(t *testing.T) {
	oracle.Need(t, "g++")
	src := filepath.Join(t.TempDir(), "a.cc")
	text := "#include <regex>\n#include <map>\n#include <string>\nbool f(std::string s, std::map<std::string, int> &m) { m[s]++; return std::regex_match(s, std::regex(\"a*b\")); }\n"
	if err := os.WriteFile(src, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	command := []string{"g++", "-O2", "-c", src, "-o", os.DevNull}
	for _, size := range []uint32{8192, 0} { // whole judges the stacks whose base was copied
		// By the command's own events: those of the processors copy the stacks of all programs, and what these leave no room for is lost.
		if j := whole(t, Options{Command: command, StackSize: size, narrow: true}); j.all < 300 || j.whole < j.all/2 {
			t.Errorf("stack size %d: %d of %d stacks are whole, %d are cut", size, j.whole, j.all, j.cut)
		}
	}
}

// BenchmarkOverhead says what processor time recording takes for each second of a command's, the walking of stacks
// left out, and what stock perf takes for the same.
func BenchmarkOverhead(b *testing.B) {
	command := []string{work(b), "spin", "1"}
	var own, perf, records float64
	for b.Loop() {
		before := oracle.CPUTime()
		r, err := Open(context.Background(), Options{Command: command})
		if err != nil {
			b.Fatal(err)
		}
		for err == nil {
			_, _, err = r.Next()
		}
		own += (oracle.CPUTime() - before).Seconds()
		records += float64(r.Stats().Records)
		r.Close()

		cmd := exec.Command("perf", append([]string{"record", "-q", "-o", filepath.Join(b.TempDir(), "perf.data"), "-F", "999", "--call-graph", "dwarf,32768"}, command...)...)
		if cmd.Run() == nil {
			perf += (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds() - 1 // the command's
		}
	}
	n := float64(b.N)
	b.ReportMetric(records/n, "records/s")
	b.ReportMetric(1000*own/n, "ms/s")
	if perf > 0 {
		b.ReportMetric(1000*perf/n, "perf-ms/s")
		b.ReportMetric(own/perf, "ratio")
	}
}

// TestSelf checks that all that the recorder opens is closed again.
func TestSelf(t *testing.T) {
	count := func() int {
		ents, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, e := range ents {
			if name, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.Contains(name, "perf_event") || strings.Contains(name, "eventpoll") || strings.Contains(name, "eventfd") {
				n++
			}
		}
		return n
	}
	before := count()
	for range 5 {
		r := open(t, Options{Command: []string{"true"}})
		run(t, r)
		Open(context.Background(), Options{Command: []string{"/no/such"}})
		Open(context.Background(), Options{Command: []string{"true"}, Event: "nonsense"})
		Open(context.Background(), Options{PIDs: []int{1 << 30}})
	}
	if n := count(); n != before {
		t.Errorf("%d descriptors, %d before", n, before)
	}
}
