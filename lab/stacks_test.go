package lab

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/unwind"
)

// who tells samples apart.
type who struct {
	tid  int
	time uint64
}

// A chain is a user stack, innermost frame first: addresses as perf prints them, where in which file they are, and
// why it ended.
type chain struct {
	addrs  []uint64
	offs   []uint64  // offset in the file
	files  []string  // "" where nothing is mapped
	tramp  []bool    // a signal's trampoline, whose address elfutils takes to be exact
	called bool      // the second frame was found by the return address that code without rows has left at the top of the stack
	rules  *rows.Set // of the innermost frame, or nil
	stop   unwind.Stop
	empty  bool // nothing of the stack was copied
	space  *unwind.Space
}

// walked walks a recording as unspool report does.
func walked(t testing.TB, file string) (map[who]*chain, source.Stats) {
	t.Helper()
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	f, err := perfdata.New(in, file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mods := modules.New()
	out := map[who]*chain{}
	st, err := source.Run(context.Background(), f, source.Options{Mods: mods.Module, Machine: f.Info().Machine, Sample: func(s *source.Sample) error {
		if s.From != source.Walked {
			return nil
		}
		c := &chain{stop: s.Stop, empty: s.Record.StackDyn == 0, space: s.Space}
		if len(s.User) > 0 {
			c.rules = rulesAt(s.User[0].Mapping, s.User[0].Addr())
		}
		c.called = len(s.User) > 1 && s.User[1].How == unwind.HowCall
		for i := range s.User {
			c.add(uint64(s.User[i].Addr()), s.User[i].Mapping)
			c.tramp = append(c.tramp, i+1 < len(s.User) && s.User[i+1].How.Interrupted())
		}
		out[who{int(s.TID), s.Time}] = c
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range mods.Errors() {
		t.Errorf("%s: %v", filepath.Base(file), err)
	}
	return out, st
}

// rulesAt returns the rules at an address, or nil.
func rulesAt(m *unwind.Mapping, addr arch.Addr) *rows.Set {
	if m == nil || m.Module.Code() == nil {
		return nil
	}
	code := m.Module.Code()
	table, ok := code.Stepper.(*compact.Table)
	v, found := code.Vaddr(m.FileOff(addr))
	if !ok || !found {
		return nil
	}
	id, ok := table.Find(v)
	if !ok {
		return nil
	}
	set := table.Set(id)
	return &set
}

func (c *chain) add(addr uint64, m *unwind.Mapping) {
	c.addrs = append(c.addrs, addr)
	if m == nil {
		c.offs, c.files = append(c.offs, addr), append(c.files, "")
		return
	}
	c.offs, c.files = append(c.offs, m.FileOff(arch.Addr(addr))), append(c.files, m.Module.Path)
}

// elfutils walks the same samples by libdwfl, in address spaces that it is told by the oracle's own reader. Where it has
// another chain, it walks again with what the rules do not say of the innermost function: what it has
// popped, who called it, or that it is in a system call.
func elfutils(t testing.TB, file string, ours map[who]*chain) map[who][]uint64 {
	t.Helper()
	w := oracle.Dwfl(t)
	known := told{}
	out := map[who][]uint64{}
	r, err := oracle.OpenRecording(file)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	err = r.Samples(func(s *oracle.RecordedSample) bool {
		if !s.User {
			return true
		}
		known.tell(t, w, []*oracle.Space{s.Space})
		walk := func(s oracle.Snapshot) []uint64 {
			chains, err := w.Walk([]oracle.Snapshot{s})
			if err != nil {
				t.Fatal(err)
			}
			return chains[0].Addrs()
		}
		addrs := walk(s.Snapshot)
		if c := ours[who{s.TID, s.Time}]; c != nil && c.prefix(addrs) < len(c.addrs) {
			if from, ok := c.returned(s.Snapshot); ok {
				if addrs = slices.Concat(c.addrs[:1], walk(from)); len(addrs) > 1 {
					addrs[1]-- // the address is exact where a walk begins
				}
			} else if from, ok := c.pushed(s.Snapshot); ok {
				addrs = walk(from)
			} else if c.rules == nil {
				// The system call with which the code ends: that of a signal's trampoline. What is behind it has no rules.
				const syscall = 2 // bytes
				from := s.Snapshot
				from.Regs[16] -= syscall
				if addrs = walk(from); len(addrs) > 0 {
					addrs[0] += syscall
				}
			}
		}
		out[who{s.TID, s.Time}] = addrs
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// returned returns the snapshot of the caller of code that has no rows and keeps no frame: .init, .fini, and functions in assembler, as those of
// libgmp. The frame pointer is the caller's, and the return address one of the two words at the top of the stack: such code moves the stack
// pointer by a word at most. Elfutils leaves out the caller, or ends.
func (c *chain) returned(s oracle.Snapshot) (oracle.Snapshot, bool) {
	if !c.called {
		return s, false
	}
	for size := 8; size <= min(16, len(s.Stack)); size += 8 {
		if ra := binary.LittleEndian.Uint64(s.Stack[size-8:]); ra == c.addrs[1]+1 {
			s.Regs[7], s.Regs[16] = s.Base+uint64(size), ra
			s.Base, s.Stack = s.Base+uint64(size), s.Stack[size:]
			return s, true
		}
	}
	return s, false
}

// pushed returns a snapshot whose copy of the stack begins lower: with the registers that the innermost function has taken back, where its rules
// say that they are. Compilers say nothing of the last instructions of a function, and elfutils looks for the registers in memory only.
func (c *chain) pushed(s oracle.Snapshot) (oracle.Snapshot, bool) {
	if c.rules == nil || c.rules.CFA.Kind != rows.CFAReg || int(c.rules.CFA.Reg) >= len(s.Regs) {
		return s, false
	}
	cfa := s.Regs[c.rules.CFA.Reg] + uint64(c.rules.CFA.Off)
	below := make([]byte, 256)
	found := false
	for _, r := range c.rules.Rules {
		at := cfa + uint64(r.Off) - (s.Base - uint64(len(below)))
		if r.Kind == rows.Offset && int(r.Of) < len(s.Regs) && at <= uint64(len(below)-8) {
			binary.LittleEndian.PutUint64(below[at:], s.Regs[r.Of])
			found = true
		}
	}
	s.Base -= uint64(len(below))
	s.Stack = append(below, s.Stack...)
	return s, found
}

// stockPerf returns the user parts of what perf script prints.
func stockPerf(t testing.TB, file string) map[who][]oracle.ScriptFrame {
	t.Helper()
	out := map[who][]oracle.ScriptFrame{}
	err := oracle.PerfScript(file, func(s *oracle.ScriptSample) bool {
		user := slices.DeleteFunc(slices.Clone(s.Frames), oracle.ScriptFrame.Kernel)
		out[who{s.TID, s.Time}] = user
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// same says how many frames of ours, from the innermost on, are the peer's.
func (c *chain) same(peer []oracle.ScriptFrame) int {
	n := 0
	for n < len(peer) && n < len(c.addrs) {
		p := peer[n]
		if c.files[n] == "[vdso]" && p.DSO == "[vdso]" {
			n++
			continue // perf prints its addresses in a way of its own
		}
		if p.IP != c.offs[n] && p.IP != c.addrs[n] {
			break
		}
		n++
	}
	return n
}

// prefix says how many frames of ours, from the innermost on, are elfutils'.
func (c *chain) prefix(peer []uint64) int {
	n := 0
	for n < len(c.addrs) && n < len(peer) && (c.addrs[n] == peer[n] || c.tramp[n] && c.addrs[n]+1 == peer[n]) {
		n++
	}
	return n
}

// Causes of differences. Each but the last says why our chain is the better one.
const (
	equal      = "equal"
	afterEnd   = "perf goes on behind the outermost frame"
	shortOne   = "perf has one frame only; elfutils has ours"
	perfWrong  = "perf ends early or is wrong; elfutils has ours"
	bothCut    = "the copy ends: perf or elfutils adds frames it cannot know"
	unexpected = "UNEXPLAINED"
)

// cause compares three chains of one sample.
func cause(c *chain, perf []oracle.ScriptFrame, dwfl []uint64) string {
	n := c.same(perf)
	d := c.prefix(dwfl)
	whole := c.stop == unwind.Outermost
	agrees := d == len(c.addrs) && (d == len(dwfl) || whole)
	switch {
	case n == len(c.addrs) && n == len(perf):
		return equal
	case n == len(c.addrs) && whole && d == len(c.addrs):
		return afterEnd
	case agrees && len(perf) <= 1:
		return shortOne
	case agrees:
		return perfWrong
	case c.stop == unwind.Truncated && d == len(c.addrs):
		return bothCut
	}
	return unexpected
}

// A comparison is how the chains of a recording compare.
type comparison struct {
	name      string
	samples   int
	causes    map[string]int
	stops     [unwind.NumStops]uint64
	perfWhole int // chains of perf's that hold all of one of ours that is whole
	bare      int // samples of a process that is being made: in execve, it has the registers of the program before, whose memory and then mappings have gone
	examples  []string
}

func compareStacks(t testing.TB, file string) *comparison {
	ours, st := walked(t, file)
	perf := stockPerf(t, file)
	dwfl := elfutils(t, file, ours)
	if len(ours) != len(dwfl) {
		t.Errorf("%s: %d user stacks, and the oracle's reader finds %d", file, len(ours), len(dwfl))
	}
	x := &comparison{name: strings.TrimSuffix(filepath.Base(file), ".data"), samples: len(ours), causes: map[string]int{}, stops: st.Stops}
	for _, k := range slices.SortedFunc(maps.Keys(ours), func(a, b who) int { return cmp.Compare(a.time, b.time) }) {
		c := ours[k]
		why := cause(c, perf[k], dwfl[k])
		x.causes[why]++
		if c.stop == unwind.Outermost && c.same(perf[k]) == len(c.addrs) {
			x.perfWhole++
		}
		if len(c.addrs) == 1 && (c.stop == unwind.NoInfo && c.files[0] == "" || c.stop == unwind.BadMemory && c.empty) {
			x.bare++
		}
		if why == unexpected && len(x.examples) < 3 {
			x.examples = append(x.examples, explain(k, c, perf[k], dwfl[k]))
		}
	}
	return x
}

var causes = []string{equal, afterEnd, shortOne, perfWrong, bothCut, unexpected}

// percent is a share; of what is there, but rare, it has as many digits as show it.
func percent(n, of int) string {
	share := 100 * float64(n) / float64(max(of, 1))
	if n > 0 && share < 0.005 {
		return fmt.Sprintf("%.1g %%", share)
	}
	return fmt.Sprintf("%.2f %%", share)
}

// whole returns the shares of stacks that end at the outermost frame: of all, and of those whose copy reaches the
// stack's base, which are those that were not cut off.
func (x *comparison) whole() (all, reached float64) {
	n, cut := float64(x.stops[unwind.Outermost]), float64(x.stops[unwind.Truncated])
	return n / float64(x.samples), n / (float64(x.samples) - cut)
}

func (x *comparison) tables() (byCause, byStop [][]string) {
	byCause = [][]string{{"chains", "share", "compared with perf script --no-inline"}}
	for _, why := range causes {
		if n := x.causes[why]; n > 0 {
			byCause = append(byCause, []string{fmt.Sprint(n), percent(n, x.samples), why})
		}
	}
	byStop = [][]string{{"stacks", "share", "end"}}
	for stop, n := range x.stops {
		if n > 0 && unwind.Stop(stop) != unwind.NoUserStack {
			byStop = append(byStop, []string{fmt.Sprint(n), percent(int(n), x.samples), unwind.Stop(stop).String()})
		}
	}
	return byCause, byStop
}

// TestStacks holds every chain of the recordings against perf script and, where that differs, against elfutils, and
// counts the differences by cause.
func TestStacks(t *testing.T) {
	oracle.Need(t, "perf")
	for _, file := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".data"), func(t *testing.T) {
			x := compareStacks(t, file)
			byCause, byStop := x.tables()
			t.Logf("%d samples, %d of processes that are being made\n%s\n%s\nperf: %s whole", x.samples, x.bare, table(byCause), table(byStop), percent(x.perfWhole, x.samples))
			if n := x.causes[unexpected]; n > 0 {
				t.Errorf("%d chains differ without explanation, such as\n%s", n, strings.Join(x.examples, "\n"))
			}
			// How many samples hit processes that are being made depends on how busy the machine is.
			rest := float64(x.samples) - float64(x.stops[unwind.Truncated]) - float64(x.bare)
			if reached := float64(x.stops[unwind.Outermost]) / rest; reached < 0.98 {
				t.Errorf("only %.1f %% of the stacks whose base was copied are whole; %d are of processes that are being made", 100*reached, x.bare)
			}
		})
	}
}

func explain(k who, c *chain, perf []oracle.ScriptFrame, dwfl []uint64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "thread %d at %d: %v\n", k.tid, k.time, c.stop)
	for i := range max(len(c.addrs), len(perf), len(dwfl)) {
		var o, p, d string
		if i < len(c.addrs) {
			o = fmt.Sprintf("%#x %s+%#x", c.addrs[i], filepath.Base(c.files[i]), c.offs[i])
		}
		if i < len(perf) {
			p = fmt.Sprintf("%s+%#x", filepath.Base(perf[i].DSO), perf[i].IP)
		}
		if i < len(dwfl) {
			d = fmt.Sprintf("%#x", dwfl[i])
		}
		fmt.Fprintf(&b, "%3d  %-50s %-34s %s\n", i, o, p, d)
	}
	return b.String()
}
