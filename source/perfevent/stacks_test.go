package perfevent

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
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

// whole records a command and returns how many stacks end at the outermost frame, of how many, and how many
// copies are full. A copy that is not full reaches the stack's base, or a page that is not in memory; 99.9 % of those
// stacks must be whole, but for a handful: each process that starts may be hit inside execve, which has no user stack,
// or at the first instruction of a library's _init, which has no call frame information.
func whole(t *testing.T, o Options) (ends, cut, all int) {
	t.Helper()
	broken := 0
	r := open(t, o)
	st, err := source.Run(context.Background(), r, source.Options{Machine: r.Machine(), Mods: mods, Sample: func(s *source.Sample) error {
		if s.From != source.Walked {
			return nil
		}
		all++
		full := s.Record.StackDyn >= uint64(len(s.Record.Stack))
		if full {
			cut++
		}
		if s.Stop == unwind.Outermost {
			ends++
		} else if !full {
			broken++
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	if (st.Lost+st.LostSamples)*100 > st.Records || st.Bad+st.Disordered > 0 {
		t.Errorf("lost %d and %d, bad %d, out of order %d", st.Lost, st.LostSamples, st.Bad, st.Disordered)
	}
	if broken > 8+(all-cut)/1000 {
		t.Errorf("%d of %d stacks whose base was copied are not whole", broken, all-cut)
	}
	t.Logf("stack copies of %d: %d of %d stacks whole, %d copies full; stops %v; %+v", r.Stats().StackSize, ends, all, cut, st.Stops, r.Stats())
	return ends, cut, all
}

// TestStacks walks while it records.
func TestStacks(t *testing.T) {
	w := work(t)
	for _, mode := range []string{"threads", "fork", "faults"} {
		ends, _, all := whole(t, Options{Command: []string{w, mode, "0.3"}})
		if all < 100 || ends < all*99/100 {
			t.Errorf("%s: %d of %d stacks are whole", mode, ends, all)
		}
	}
	if ends, cut, all := whole(t, Options{Command: []string{w, "deep", "0.3"}, StackSize: 8192}); ends > all/10 || cut < all*9/10 {
		t.Errorf("deep: %d of %d stacks are whole, %d copies are full", ends, all, cut)
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
		if ends, cut, all := whole(t, Options{Command: command, StackSize: size}); all < 300 || ends < all-cut-8 {
			t.Errorf("stack size %d: %d of %d stacks are whole, %d copies are full", size, ends, all, cut)
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
