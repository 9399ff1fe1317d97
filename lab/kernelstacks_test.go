package lab

import (
	"bufio"
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/rows"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/symbol"
	"github.com/unspool/unspool/unwind"
)

// A kernelWorkload is a program whose stacks the kernel walks.
type kernelWorkload struct {
	name  string
	cmd   func(t *testing.T) []string
	whole float64 // the least share of user stacks that end at the outermost frame
	over  bool    // it maps code over code
}

// most is what the share of whole stacks has to be of programs whose code all has unwind information.
const most = 0.995

// compiled builds a program of workload with a compiler and its flags.
func compiled(t *testing.T, cc, source string, flags ...string) string {
	t.Helper()
	oracle.Need(t, cc)
	path := filepath.Join(t.TempDir(), strings.TrimSuffix(source, filepath.Ext(source)))
	args := append([]string{"-O2", "-Wall", "-Wextra", "-o", path, filepath.Join("workload", source)}, flags...)
	if out, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %q: %v\n%s", cc, args, err, out)
	}
	return path
}

func goBuild(t *testing.T, flags ...string) string {
	t.Helper()
	return goBuildFile(t, "workload/testdata/goroutines.go", flags...)
}

func goBuildFile(t *testing.T, source string, flags ...string) string {
	t.Helper()
	oracle.Need(t, "go")
	path := filepath.Join(t.TempDir(), strings.TrimSuffix(filepath.Base(source), ".go"))
	cmd := exec.Command("go", append(append([]string{"build"}, flags...), "-o", path, source)...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

// lld returns the flags with which gcc links by lld.
func lld(t *testing.T) []string {
	dirs, _ := filepath.Glob("/usr/lib/llvm-*/bin")
	if out, err := exec.Command("rustc", "--print", "sysroot").Output(); err == nil {
		more, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), "lib/rustlib/*/bin/gcc-ld"))
		dirs = append(dirs, more...)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(filepath.Join(dir, "ld.lld")); err == nil {
			return []string{"-fuse-ld=lld", "-B" + dir}
		}
	}
	oracle.Lacks(t, "lld")
	return nil
}

// workMS is how long most workloads take.
var workMS = shortly("500", "5000")

var kernelWorkloads = []kernelWorkload{
	{"openssl rsa", func(t *testing.T) []string {
		oracle.Need(t, "openssl")
		return []string{"openssl", "speed", "-seconds", "1", "rsa2048"}
	}, most, false},
	{"g++", func(t *testing.T) []string {
		oracle.Need(t, "g++")
		return []string{"g++", "-std=c++17", shortly("-fsyntax-only", "-O2"), "-c", "workload/heavy.cc", "-o", filepath.Join(t.TempDir(), "heavy.o")}
	}, most, false},
	{"python3", func(t *testing.T) []string {
		oracle.Need(t, "python3")
		path, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output() // what is in $PATH may be a script
		if err != nil {
			t.Fatal(err)
		}
		return []string{strings.TrimSpace(string(path)), "workload/calls.py", shortly("0.7", "5")}
	}, most, false},
	{"node", func(t *testing.T) []string {
		oracle.Need(t, "node")
		return []string{"node", "workload/jit.js", shortly("1.5", "10")}
	}, 0.95, false},
	{"signals", func(t *testing.T) []string { return []string{compiled(t, "gcc", "signals.c"), shortly("150", "2000")} }, most, false},
	{"signals on their own stack", func(t *testing.T) []string {
		return []string{compiled(t, "gcc", "signals.c"), shortly("150", "2000"), "altstack"}
	}, most, false},
	// Go's own table is wrong where handlers return, and where time.now changes stacks.
	{"Go's faults", func(t *testing.T) []string {
		return []string{goBuildFile(t, "workload/testdata/recovers.go"), shortly("700", "5000")}
	}, 0.8, false},
	// Where Go makes a thread, both threads are at the same instructions, and the new one has no caller.
	{"Go's threads", func(t *testing.T) []string {
		return []string{goBuildFile(t, "workload/testdata/threads.go", "-ldflags=-s -w"), shortly("700", "5000")}
	}, 0.97, false},
	// What musl has compiled has no information, main's caller neither, so no stack is whole.
	{"signals, musl", func(t *testing.T) []string {
		return []string{compiled(t, "musl-gcc", "signals.c", "-static"), shortly("30", "2000"), "altstack"}
	}, 0, false},
	// No copy has all of these frames, so what comes before the tables is not whole, some milliseconds. The same goes for large frames.
	{"1,000 frames", func(t *testing.T) []string {
		path := compiled(t, "gcc", "execs.c", "-DDEPTH=1000")
		return []string{path, "0", "3000", path}
	}, most, false},
	{"dlopen", func(t *testing.T) []string {
		return []string{compiled(t, "gcc", "dlopen.c"), "2", workMS, compiled(t, "gcc", "plugin.c", "-shared", "-fPIC")}
	}, most, false},
	{"dlopen at the same addresses", func(t *testing.T) []string {
		cmd := []string{compiled(t, "gcc", "dlopen.c"), shortly("50", "1000"), "5"}
		for _, pad := range []string{"40", "328", "1000"} {
			cmd = append(cmd, compiled(t, "gcc", "plugin.c", "-shared", "-fPIC", "-DPAD="+pad))
		}
		return cmd
	}, most, true},
	{"execs", func(t *testing.T) []string {
		return []string{
			compiled(t, "gcc", "execs.c"), shortly("30", "500"), "20",
			compiled(t, "gcc", "execs.c", "-DPAD=328"), compiled(t, "gcc", "execs.c", "-O0", "-no-pie"),
			compiled(t, "gcc", "execs.c", "-static", "-DPAD=72"), compiled(t, "gcc", "execs.c", "-static-pie"),
		}
	}, most, false},
	{"vfork", func(t *testing.T) []string {
		return []string{compiled(t, "gcc", "vforks.c"), workMS, compiled(t, "gcc", "tiny.c")}
	}, most, false},
	{"static", func(t *testing.T) []string {
		return []string{compiled(t, "gcc", "signals.c", "-static"), shortly("150", "2000")}
	}, most, false},
	{"static-pie", func(t *testing.T) []string {
		return []string{compiled(t, "gcc", "signals.c", "-static-pie"), shortly("150", "2000")}
	}, most, false},
	{"go", func(t *testing.T) []string { return []string{goBuild(t), shortly("0.7", "5")} }, most, false},
	{"go, stripped", func(t *testing.T) []string { return []string{goBuild(t, "-ldflags=-s -w"), shortly("0.7", "5")} }, most, false},
	{"exceptions in threads", func(t *testing.T) []string {
		return []string{compiled(t, "g++", "throws.cc", "-pthread"), "4", workMS}
	}, most, false},
	{"lld", func(t *testing.T) []string {
		return []string{compiled(t, "g++", "throws.cc", append(lld(t), "-pthread")...), "4", workMS}
	}, most, false},
	{"aligned and large frames", func(t *testing.T) []string { return []string{compiled(t, "gcc", "frames.c"), shortly("2500", "5000")} }, most, false},
}

var kernelErr = sync.OnceValue(func() error {
	prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
	if err == nil {
		err = prog.Close()
	}
	return err
})

// needKernel skips the test where programs must not be loaded into the kernel.
func needKernel(t testing.TB) {
	t.Helper()
	if errors.Is(kernelErr(), os.ErrPermission) {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err := kernelErr(); err != nil {
		t.Fatal(err)
	}
}

// loadKernel loads a Program, which the caller closes.
func loadKernel(t *testing.T, o ebpf.Options) *ebpf.Program {
	t.Helper()
	prog, err := ebpf.Load(o)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// kernelRecording records with a Program until there is nothing more to record.
func kernelRecording(t *testing.T, e ebpf.Options, o perfevent.Options, sample func(*source.Sample) error) (source.Stats, ebpf.Stats) {
	t.Helper()
	mods := modules.New()
	e.Mods = mods.Module
	prog := loadKernel(t, e)
	defer prog.Close()
	o.Program = prog
	rec, err := quietly(func() (*perfevent.Recorder, error) { return perfevent.Open(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	st, err := source.Run(t.Context(), rec, source.Options{Mods: mods.Module, Ours: true, Sample: sample})
	if err != nil {
		t.Fatal(err)
	}
	return st, prog.Stats()
}

// quietly starts a program that writes nowhere.
func quietly[T any](start func() (T, error)) (x T, err error) {
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return x, err
	}
	defer null.Close()
	stdout, stderr := os.Stdout, os.Stderr
	defer func() { os.Stdout, os.Stderr = stdout, stderr }()
	os.Stdout, os.Stderr = null, null
	return start()
}

// A tally counts stacks by how they end.
type tally struct {
	user, whole int
	early       int // stacks too deep for the copies that there are until tables have come
	frames      int
	why         map[string]int
	kernel      *symbol.Resolver
}

func newTally() *tally { return &tally{why: map[string]int{}, kernel: symbol.New(symbol.Options{})} }

func (c *tally) add(s *source.Sample) {
	if s.From == source.NoStack {
		return
	}
	c.user++
	c.frames += len(s.User)
	if s.Stop == unwind.Outermost {
		c.whole++
		return
	}
	if s.Stop == unwind.Truncated && s.Record.ID != source.WalkedID {
		c.early++
	}
	where := "nowhere"
	if n := len(s.User); n > 0 {
		f := &s.User[n-1]
		if f.Mapping == nil {
			where = fmt.Sprintf("%#x, unmapped", f.Addr())
		} else {
			where = fmt.Sprintf("%s+%#x", filepath.Base(f.Mapping.Module.Path), f.Mapping.FileOff(f.Addr()))
		}
		where = fmt.Sprintf("%s, by %v, after %d frames", where, f.How, n)
	}
	c.why[fmt.Sprintf("%s: %v at %s%s", s.Comm, s.Stop, where, c.doing(s.Kernel))]++
}

// doing says in which phase of a process's life the kernel is.
func (c *tally) doing(kernel []uint64) string {
	for _, a := range kernel {
		s, _, _ := c.kernel.Kernel(a)
		switch s.Name {
		case "bprm_execve", "begin_new_exec", "load_elf_binary", "do_exit", "do_group_exit", "ret_from_fork", "schedule_tail":
			return ", in " + s.Name
		}
	}
	return ""
}

// share returns the share of whole stacks: of all, in the long form; in the short form, recordings are mostly their beginning, of which up to a
// twentieth may be early.
func (c *tally) share() float64 {
	n := c.user
	if !stress {
		n -= min(c.early, n/20)
	}
	return float64(c.whole) / float64(max(n, 1))
}

func (c *tally) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d user stacks, %.3f %% whole, %.1f frames", c.user, 100*c.share(), float64(c.frames)/float64(max(c.user, 1)))
	keys := slices.SortedFunc(maps.Keys(c.why), func(x, y string) int { return cmp.Or(c.why[y]-c.why[x], strings.Compare(x, y)) })
	for i, k := range keys {
		if i == 12 {
			fmt.Fprintf(&b, "\n\tand %d other places", len(keys)-i)
			break
		}
		fmt.Fprintf(&b, "\n\t%d %s", c.why[k], k)
	}
	return b.String()
}

// A kernelStack is the user part of a sample.
type kernelStack struct {
	time   uint64
	tid    int32
	stop   unwind.Stop
	frames []unwind.Frame
	empty  bool // the copy has no bytes: a page at the stack's end that nobody has written to is not there
	shared bool // in execve, or at a thread's end: others may have its stack
	cut    bool // the kernel cannot follow its own stack to its entry, and may be in execve
	kernel []uint64

	// Of a copy, so that a difference can be walked again.
	regs  source.Words
	stack []byte
	space *unwind.Space
}

// keep writes two stacks that differ, with all that the copy was walked from, to a file that stays, and returns its path.
func keep(k, c *kernelStack) string {
	f, err := os.CreateTemp("", "unspool-stacks-*.txt")
	if err != nil {
		return err.Error()
	}
	defer f.Close()
	b := bufio.NewWriter(f)
	fmt.Fprintf(b, "kernel %d, thread %d, in execve or at its end: %v: %v\n\ncopy %d, thread %d, in execve or at its end: %v: %v\n\nmappings\n", k.time, k.tid, k.shared, k, c.time, c.tid, c.shared, c)
	for _, m := range c.space.Mappings() {
		fmt.Fprintf(b, "\t%x-%x %x %s\n", uint64(m.Lo), uint64(m.Hi), m.Off, m.Module.Path)
	}
	fmt.Fprint(b, "\nregisters, in perf's order\n")
	for i := range c.regs.Len() {
		fmt.Fprintf(b, "\t%x\n", c.regs.At(i))
	}
	fmt.Fprintf(b, "\nstack, %d bytes from the stack pointer\n%s", len(c.stack), hex.Dump(c.stack))
	if err := b.Flush(); err != nil {
		return err.Error()
	}
	return f.Name()
}

func (s *kernelStack) String() string {
	var b strings.Builder
	for i := range s.frames {
		if i == 30 {
			fmt.Fprintf(&b, "\n\tand %d more", len(s.frames)-i)
			break
		}
		f := &s.frames[i]
		fmt.Fprintf(&b, "\n\t%#x %v", f.Addr(), f.How)
		if f.Mapping != nil {
			fmt.Fprintf(&b, " %s+%#x", filepath.Base(f.Mapping.Module.Path), f.Mapping.FileOff(f.Addr()))
		}
	}
	return fmt.Sprintf("%v%s", s.stop, b.String())
}

// A likeness says how the kernel's walk of a stack compares to that of the event's copy.
type likeness int

const (
	same      likeness = iota
	further            // the copy ended, or, where there is no information, the frame pointer or the stack pointer leads out of it
	unread             // the copy lacks the code of memory that is no file's, whose calls say where the return address is
	popped             // the copy lacks what is below the stack pointer, where rules have registers that have just been popped
	other              // the same frames. Neither reached the end, and a copy cannot tell what is unreadable from what it has not
	raced              // the stack is others', too: the parent's in an execve after a vfork, or at a thread's end one that Go gives away before
	unknown            // the copy's walk leads into no mapping: a record of it was lost
	different          // anything else
)

// liken compares the kernel's walk k with that of the copy c.
func liken(k, c *kernelStack) likeness {
	common := 0
	for common < min(len(k.frames), len(c.frames)) && k.frames[common].PC == c.frames[common].PC && k.frames[common].Exact == c.frames[common].Exact && k.frames[common].How == c.frames[common].How {
		common++
	}
	switch {
	case common == len(k.frames) && common == len(c.frames) && k.stop == c.stop:
		return same
	case common == len(c.frames) && (c.stop == unwind.Truncated || c.empty && c.stop == unwind.BadMemory),
		common == len(c.frames) && c.stop == unwind.NoInfo && common < len(k.frames) && (k.frames[common].How == unwind.HowFramePointer || k.frames[common].How == unwind.HowCall):
		return further
	case common == len(c.frames) && c.stop == unwind.BadMemory && common < len(k.frames) && moves(&c.frames[common-1]):
		return further
	case unreadable(k, c, common):
		return unread
	case common == len(c.frames) && (c.stop == unwind.BadMemory || c.stop == unwind.NoInfo) && below(&c.frames[0]):
		return popped
	case common == len(k.frames) && common == len(c.frames) && k.stop != unwind.Outermost && c.stop != unwind.Outermost:
		return other
	case c.shared, c.cut && k.stop == unwind.NoUserStack:
		return raced
	}
	return different
}

// unreadable says whether, behind the frames that both have, the kernel has found the return address on the stack's top, by the code of
// memory that is no file's, and the copy's walk has followed the frame pointer: where that is still the caller's, it leaves out the
// caller, and nobody else.
func unreadable(k, c *kernelStack, common int) bool {
	mine, theirs := k.frames[common:], c.frames[common:]
	if common == 0 || len(mine) == 0 || len(theirs) == 0 || mine[0].How != unwind.HowCall || theirs[0].How != unwind.HowFramePointer ||
		!codeless(&k.frames[common-1]) && !codeless(&mine[0]) && !codeless(&theirs[0]) {
		return false
	}
	rest := func(mine, theirs []unwind.Frame) bool {
		n := min(len(mine), len(theirs))
		return n == len(theirs) && (c.stop == unwind.Truncated || n == len(mine) && c.stop == k.stop) &&
			slices.EqualFunc(mine[:n], theirs, func(a, b unwind.Frame) bool { return a.PC == b.PC && a.Exact == b.Exact && a.How == b.How })
	}
	return rest(mine[1:], theirs) || mine[0].PC == theirs[0].PC && rest(mine[1:], theirs[1:])
}

// codeless says whether a frame is in memory that is no file's: a copy does not have its code.
func codeless(f *unwind.Frame) bool {
	if f.Mapping == nil {
		return false
	}
	c := f.Mapping.Module.Code()
	return c == nil || c.Text == nil
}

// moves says whether a frame is in code that Go runs on another stack than the goroutine's: a copy has the former only.
func moves(f *unwind.Frame) bool {
	if f.Mapping == nil {
		return false
	}
	v, ok := f.Mapping.Vaddr(f.Addr())
	return ok && slices.ContainsFunc(f.Mapping.Module.Code().Moved, func(m unwind.Moved) bool { return m.Lo <= v && v < m.Hi })
}

// below says whether the rule at the first frame of a stack has a register below the stack pointer, as compilers leave it after they
// have popped that: the value is still there.
func below(f *unwind.Frame) bool {
	if f.Mapping == nil {
		return false
	}
	v, ok := f.Mapping.Vaddr(f.PC)
	c := f.Mapping.Module.Code()
	if !ok || c.Stepper == nil {
		return false
	}
	rule, ok := c.Stepper.Find(v)
	if !ok {
		return false
	}
	const sp = 1 << 40
	mem := rows.Memory{Lo: sp, Bytes: make([]byte, 1<<12)}
	var st rows.State
	st.Start(uint64(f.PC), 1<<arch.NumSlots-1)
	for i := range st.Snap {
		st.Snap[i] = sp + 1<<11
	}
	st.Snap[arch.AMD64.Slot(arch.AMD64.SP)] = sp
	if c.Stepper.Apply(rule, &st, &mem) != rows.OK {
		return false
	}
	for slot := range arch.NumSlots {
		if st.InMem>>slot&1 != 0 && st.Val[slot] < sp {
			return true
		}
	}
	return false
}

// TestKernelStacks records each workload twice. First, nearly all stacks have to end at the outermost frame. Then each event copies
// its stack, too, and what the kernel finds has to be what our walker finds in the copy.
func TestKernelStacks(t *testing.T) {
	needKernel(t)
	for _, w := range kernelWorkloads {
		t.Run(w.name, func(t *testing.T) {
			cmd := w.cmd(t)
			t.Run("whole", func(t *testing.T) { wholeStacks(t, cmd, w.whole) })
			t.Run("as copied", func(t *testing.T) { copiedStacks(t, cmd, w.over) })
		})
	}
}

// busyRuns is how often a program is recorded that, on a busy machine, runs too little to be sampled often enough.
const busyRuns = 8

func wholeStacks(t *testing.T, cmd []string, want float64) {
	c := newTally()
	for run := 0; run < busyRuns && c.user < 500; run++ {
		st, ks := kernelRecording(t, ebpf.Options{}, perfevent.Options{Command: cmd, Frequency: 3999}, func(s *source.Sample) error { c.add(s); return nil })
		t.Logf("%d by copies; %d tables, %d KB; lost %d, %d and %d", ks.Copied, ks.Tables, ks.TableBytes>>10, st.Lost+st.LostSamples, ks.RingFull, ks.Nested)
		if ks.Failed > 0 {
			t.Errorf("%d failed: %v", ks.Failed, ks.Err)
		}
	}
	t.Logf("%v", c)
	if c.user < 500 || c.share() < want {
		t.Errorf("%.3f %% of %d stacks are whole: want %g %%", 100*c.share(), c.user, 100*want)
	}
}

func copiedStacks(t *testing.T, cmd []string, over bool) {
	o := perfevent.Options{Command: cmd, Frequency: 999, StackSize: perfevent.MaxStackSize}
	names := symbol.New(symbol.Options{})
	isShared := func(kernel []uint64) bool {
		return slices.ContainsFunc(kernel, func(a uint64) bool {
			s, _, _ := names.Kernel(a)
			return s.Name == "bprm_execve" || s.Name == "do_exit"
		})
	}
	isCut := func(kernel []uint64) bool {
		if len(kernel) == 0 {
			return false
		}
		s, _, _ := names.Kernel(kernel[len(kernel)-1])
		return !strings.HasPrefix(s.Name, "entry_") && !strings.HasPrefix(s.Name, "asm_") && !strings.HasPrefix(s.Name, "ret_from_fork")
	}
	inKernel := func(s *kernelStack) string {
		var list []string
		for _, a := range s.kernel {
			sym, _, _ := names.Kernel(a)
			list = append(list, cmp.Or(sym.Name, fmt.Sprintf("%#x", a)))
		}
		return "there in " + strings.Join(list, ", called by ")
	}
	var counts [different + 1]int
	n, whole, deepest, wanting := 0, 0, 0, 0
	for run := 0; run < busyRuns && n < 100; run++ {
		walks, copies := map[uint32][]kernelStack{}, map[uint32][]kernelStack{} // by processor
		st, ks := kernelRecording(t, ebpf.Options{Pass: true}, o, func(s *source.Sample) error {
			to := copies
			if s.Record.ID == source.WalkedID {
				to = walks
			}
			stack := kernelStack{time: s.Time, tid: s.TID, stop: s.Stop, frames: slices.Clone(s.User), empty: s.Record.StackDyn == 0, shared: isShared(s.Kernel), cut: isCut(s.Kernel), kernel: slices.Clone(s.Kernel), space: s.Space}
			if s.Record.ID != source.WalkedID {
				stack.regs, stack.stack = slices.Clone(s.Record.UserRegs), slices.Clone(s.Record.Stack[:min(s.Record.StackDyn, uint64(len(s.Record.Stack)))])
			}
			to[s.CPU] = append(to[s.CPU], stack)
			return nil
		})
		t.Logf("lost %d, %d and %d", st.Lost+st.LostSamples, ks.RingFull, ks.Nested)
		lost := st.Lost + st.LostSamples + ks.RingFull
		var alone []*kernelStack // copies that have no walk
		for cpu, cs := range copies {
			ks := walks[cpu]
			for len(cs) > 0 {
				c := &cs[0]
				for len(ks) > 0 && ks[0].time < c.time {
					ks = ks[1:]
				}
				// The program's time is a moment after the event's, if nobody took the processor from this machine between them; a thread's next event is
				// a millisecond after. Both are at the same place in the kernel. Where a record was lost, the other has no partner.
				if len(ks) == 0 || ks[0].tid != c.tid || !slices.Equal(ks[0].kernel, c.kernel) || len(cs) > 1 && ks[0].time > cs[1].time || lost > 0 && ks[0].time-c.time > 500_000 {
					if len(c.frames) > 0 { // a thread that is being reaped has no number in its namespace any more, and no stack
						alone = append(alone, c)
					}
					cs = cs[1:]
					continue
				}
				k := &ks[0]
				cs, ks = cs[1:], ks[1:]
				if len(c.frames) == 0 {
					continue
				}
				n++
				deepest = max(deepest, len(k.frames))
				if c.stop == unwind.Outermost {
					whole++
				}
				like := liken(k, c)
				if like == different && lost > 0 && c.frames[len(c.frames)-1].Mapping == nil {
					like = unknown
				}
				if counts[like]++; like == different && counts[like] <= 3 {
					t.Errorf("walked in the kernel %v, %s\ncopied %v, %s\nboth, and what the copy was walked from, are in %s", k, inKernel(k), c, inKernel(c), keep(k, c))
				}
			}
		}
		if lost == 0 && uint64(len(alone)) > ks.Copied {
			t.Errorf("%d copies have no walk: the kernel counts %d", len(alone), ks.Copied)
			for _, c := range alone {
				t.Logf("at %d ns, thread %d, walked as %v", c.time, c.tid, c)
			}
		}
		wanting += len(alone)
	}
	t.Logf("%d samples: %d equal, %d longer than the copy, %d where it lacks code, %d where it lacks what was popped, %d end as early for another reason, %d with a stack that others have, too, %d where a mapping's record was lost, %d differ",
		n, counts[same], counts[further], counts[unread], counts[popped], counts[other], counts[raced], counts[unknown], counts[different])
	t.Logf("deepest %d; %d copies whole; %d where the kernel has a copy decide", deepest, whole, wanting)
	if counts[different] > 0 {
		t.Errorf("%d of %d differ", counts[different], n)
	}
	// On a busy machine, short-lived processes are over before their mappings are known.
	least := max(n/2, 20)
	if over {
		least = n / 5
	}
	if n < 100 || counts[same]+counts[further] < least {
		t.Errorf("%d samples, %d equal or longer; want 100, %d or more", n, counts[same]+counts[further], least)
	}
}
