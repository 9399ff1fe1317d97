package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// countRuns has the kernel count runs of programs and their time, until the test is over.
func countRuns(t testing.TB) {
	stats, err := bpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if errors.Is(err, os.ErrPermission) {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stats.Close() })
}

// An ourWalk is our program in the kernel, which knows a process.
type ourWalk struct {
	stop func()
	prog *ebpf.Program
	raw  *bpf.Program
	pid  int

	mu              sync.Mutex
	each            func(stack []uint64, whole bool)
	samples, frames uint64
	other           string // samples of another kind than Walked: how they came, and why their stacks end
}

// loadOurs loads the program and waits until it walks the process's stacks to their ends. Its stop, or the test's end, ends that.
func loadOurs(t testing.TB, pid int) *ourWalk {
	prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
	if err != nil {
		t.Fatal(err)
	}
	w := &ourWalk{prog: prog, pid: pid}
	fd, err := unix.Dup(prog.FD())
	if err != nil {
		t.Fatal(err)
	}
	if w.raw, err = bpf.NewProgramFromFD(fd); err != nil {
		t.Fatal(err)
	}
	// Its own event is rare: those that count are others, as the peer's.
	rec, err := perfevent.Open(t.Context(), perfevent.Options{PIDs: []int{pid}, Frequency: 1, User: true, Program: prog})
	if err != nil {
		t.Fatal(err)
	}
	whole, done := make(chan bool, 1), make(chan error, 1)
	var stack []uint64
	go func() {
		_, err := source.Run(context.Background(), rec, source.Options{Mods: modules.New().Module, Ours: true, Prompt: true, Sample: func(s *source.Sample) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			if s.From != source.Walked {
				w.other += fmt.Sprintf(" %v/%v", s.From, s.Stop)
				return nil
			}
			w.samples++
			w.frames += uint64(len(s.User))
			stack = stack[:0]
			for i := range s.User {
				stack = append(stack, uint64(s.User[i].Addr()))
			}
			if w.each != nil {
				w.each(stack, s.Stop == unwind.Outermost)
			} else if s.Stop == unwind.Outermost {
				select {
				case whole <- true:
				default:
				}
			}
			return nil
		}})
		done <- err
	}()
	w.stop = sync.OnceFunc(func() {
		rec.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		rec.Close()
		w.raw.Close()
		prog.Close()
	})
	t.Cleanup(w.stop)
	attached(t, w.raw, pid, 999, func() {
		select {
		case <-whole:
		case <-time.After(30 * time.Second):
			w.mu.Lock()
			defer w.mu.Unlock()
			t.Fatalf("no stack of process %d was whole in 30 s: %d samples were walked in the kernel, with %d frames; others: %.500q", pid, w.samples, w.frames, w.other)
		}
	})
	return w
}

// walk walks the process's stacks for a while. each is called with the lookup addresses of every stack, and whether it is whole.
func (w *ourWalk) walk(t testing.TB, frequency uint64, d time.Duration, each func(stack []uint64, whole bool)) part {
	before := w.prog.Stats()
	w.mu.Lock()
	w.each = each
	w.other = ""
	samples, frames := w.samples, w.frames
	w.mu.Unlock()
	x := attached(t, w.raw, w.pid, frequency, func() { time.Sleep(d) })
	after := w.prog.Stats()
	if lost := after.Lost() - before.Lost() + after.Copied - before.Copied; lost > 0 {
		t.Errorf("of %d samples, %d were not walked to the end", x.runs, lost)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		w.mu.Lock()
		if w.samples-samples >= x.runs || time.Now().After(end) {
			break
		}
		w.mu.Unlock()
	}
	defer w.mu.Unlock()
	if w.samples-samples < x.runs {
		t.Errorf("of %d samples, %d came; others:%s; before: %+v; now: %+v", x.runs, w.samples-samples, w.other, before, w.prog.Stats())
	}
	x.frames = x.runs * (w.frames - frames) / max(w.samples-samples, 1)
	return x
}

// frequencyAt is how often samples are taken at a depth: walks, the peer's too, must leave time to the program.
func frequencyAt(depth int) uint64 {
	if depth > 500 {
		return 999
	}
	return 3999
}

var (
	kernelDepths = []int{8, 32, 128, 1000}
	kernelModes  = []string{"varied", "fixed"}
)

// runChains starts the program in a mode: varied has a new chain of calls every one or two samples, fixed the same for all.
func runChains(t testing.TB, prog *callProgram, mode string, depth int) *callRun {
	every := time.Duration(0)
	if mode == "varied" {
		every = time.Second * 3 / 2 / time.Duration(frequencyAt(depth))
	}
	return prog.run(t, depth, every, 88172645463325252)
}

// TestKernelChains: ours and the peer's stacks are the chains of calls that the program makes, to the depth that was asked for, whole in
// every sample.
func TestKernelChains(t *testing.T) {
	prog, spec := buildCalls(t), buildPeer(t)
	countRuns(t)
	peers := loadPeers(t, spec)
	for _, mode := range kernelModes {
		for _, depth := range kernelDepths {
			t.Run(fmt.Sprint(mode, "/", depth), func(t *testing.T) {
				run := runChains(t, prog, mode, depth)
				walk := func(name string, f func(each func([]uint64, bool)) part) {
					c := &chainCheck{callRun: run}
					n, broken, wrong := 0, 0, 0
					var x part
					for run := 0; run < busyRuns && n < 20; run++ {
						x = f(func(stack []uint64, whole bool) {
							n++
							if !whole {
								broken++
								return
							}
							if diff := c.check(stack); diff != "" {
								if wrong++; wrong <= 3 {
									t.Errorf("%s: %s", name, diff)
								}
							}
						})
					}
					t.Logf("%s: %d stacks, %d to depth %d, %d on the way; chains up to %d; %.0f ns a sample, %.1f a frame", name, n, c.full, depth, c.part, c.at, x.perSample(), x.perFrame())
					if broken > 0 || wrong > 0 || n < 20 || c.full < n*3/4 {
						t.Errorf("%s: of %d stacks, %d were not whole, %d wrong, %d as deep as asked for", name, n, broken, wrong, c.full)
					}
				}
				us := loadOurs(t, run.pid)
				walk("ours", func(each func([]uint64, bool)) part {
					return us.walk(t, frequencyAt(depth), 400*time.Millisecond, each)
				})
				for _, p := range peers {
					p.process(t, run.pid)
					walk(p.kind.String(), func(each func([]uint64, bool)) part {
						return p.walk(t, run.pid, frequencyAt(depth), 400*time.Millisecond, each)
					})
				}
			})
		}
	}
}

// A walkCost is what samples cost in the kernel: medians of rounds in which each had its turn.
type walkCost struct {
	empty           float64           // a program that does nothing, ns a sample
	read            float64           // bpf_probe_read_user of eight bytes, in a loop, ns
	ours, oursFrame float64           // ns a sample, ns a frame
	peer, peerFrame [numPeers]float64 // the same
	times           [numPeers]float64 // peerFrame to oursFrame, of each round
	samples         uint64            // ours
}

// measureWalks measures in rounds.
func measureWalks(t testing.TB, run *callRun, peers []*bpfPeer, rounds int) (c walkCost) {
	const d = 300 * time.Millisecond
	w := loadOurs(t, run.pid)
	defer w.stop()
	for _, p := range peers {
		p.process(t, run.pid)
	}
	frequency := frequencyAt(run.depth)
	var empty, read, ours, oursFrame []float64
	var peer, peerFrame, times [numPeers][]float64
	broken := 0
	each := func(_ []uint64, whole bool) {
		if !whole {
			broken++
		}
	}
	for range rounds {
		x := attached(t, peers[0].coll.Programs["empty"], run.pid, frequency, func() { time.Sleep(d) })
		empty = append(empty, x.perSample())
		x = attached(t, peers[0].coll.Programs["reads"], run.pid, 999, func() { time.Sleep(d / 4) })
		read = append(read, x.perSample()/peerReads)
		us := w.walk(t, frequency, d, each)
		ours, oursFrame = append(ours, us.perSample()), append(oursFrame, us.perFrame())
		c.samples += us.runs
		for k, p := range peers {
			x := p.walk(t, run.pid, frequency, d, each)
			peer[k], peerFrame[k] = append(peer[k], x.perSample()), append(peerFrame[k], x.perFrame())
			times[k] = append(times[k], x.perFrame()/us.perFrame())
		}
	}
	if broken > 0 {
		t.Errorf("%d stacks were not whole", broken)
	}
	c.empty, c.read, c.ours, c.oursFrame = median(empty), median(read), median(ours), median(oursFrame)
	for k := range peers {
		c.peer[k], c.peerFrame[k], c.times[k] = median(peer[k]), median(peerFrame[k]), median(times[k])
	}
	return c
}

// BenchmarkKernelWalk is what a sample costs in the kernel, by its own statistics, ours and the peer's in turns. One depth:
// go test -run '^$' -bench 'KernelWalk/varied/128' -benchtime 1x ./lab
func BenchmarkKernelWalk(b *testing.B) {
	prog, spec := buildCalls(b), buildPeer(b)
	countRuns(b)
	peers := loadPeers(b, spec)
	for _, mode := range kernelModes {
		for _, depth := range kernelDepths {
			b.Run(fmt.Sprint(mode, "/", depth), func(b *testing.B) {
				for b.Loop() {
					run := runChains(b, prog, mode, depth)
					c := measureWalks(b, run, peers, 3)
					run.stop()
					b.ReportMetric(c.empty, "empty-ns/sample")
					b.ReportMetric(c.read, "read-ns")
					b.ReportMetric(c.ours, "ns/sample")
					b.ReportMetric(c.oursFrame, "ns/frame")
					b.ReportMetric(c.peerFrame[peerSized], "peer-ns/frame")
					b.ReportMetric(c.peerFrame[peerAny], "peer-any-ns/frame")
					b.ReportMetric(c.times[peerSized], "peer/ours")
					b.ReportMetric(float64(c.samples), "samples")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// The budgets: ns a frame, and what a recording may take beside it.
const (
	frameBudget   = 60  // ns, varied, from deepBudget frames on
	deepBudget    = 128 // frames
	gxxBudget     = 200 // ns a frame of g++
	loadBudget    = 0.5 // seconds
	userBudget    = 1   // % of a core, at 99 Hz
	memoryBudget  = 1.1 // × payload
	recordSeconds = 30
)

// TestResultsKernel measures the walks in the kernel, with the peer in the same run, and writes docs/results/kernel.md.
func TestResultsKernel(t *testing.T) {
	measures(t)
	oracle.Need(t, "gcc", "g++", "clang-19", "python3")
	countRuns(t)
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("# Walking in the kernel, measured\n\n`make results` writes this file. It was measured on %s. Times in the kernel are its own statistics "+
		"(`BPF_ENABLE_STATS`), of all samples in user mode; medians of rounds in which each program had its turn on the same process.\n", machine())
	prog := buildCalls(t)
	for _, f := range []func(testing.TB, func(string, ...any), *callProgram){kernelWalkResults, gxxResults, loadResults, userResults, memoryResults} {
		start, from := time.Now(), b.Len()
		f(t, say, prog)
		t.Logf("%.0f s%s", time.Since(start).Seconds(), b.String()[from:])
	}
	publish(t, "kernel.md", b.String())
}

// within says whether a figure is in its budget.
func within(v, budget float64) string {
	if v <= budget {
		return "within"
	}
	return "over"
}

func kernelWalkResults(t testing.TB, say func(string, ...any), prog *callProgram) {
	peers := loadPeers(t, buildPeer(t))
	cells := [][]string{{"chains", "depth", "ours, ns a sample", "ns a frame", "peer, ns a sample", "ns a frame", "× ours", "peer, any length, ns a frame", "× ours", "samples"}}
	var budgets []string
	var empty, read []float64
	for _, mode := range kernelModes {
		for _, depth := range kernelDepths {
			run := runChains(t, prog, mode, depth)
			c := measureWalks(t, run, peers, 7)
			run.stop()
			empty, read = append(empty, c.empty), append(read, c.read)
			cells = append(cells, []string{mode, fmt.Sprint(depth), fmt.Sprintf("%.0f", c.ours), fmt.Sprintf("%.1f", c.oursFrame),
				fmt.Sprintf("%.0f", c.peer[peerSized]), fmt.Sprintf("%.0f", c.peerFrame[peerSized]), fmt.Sprintf("%.1f", c.times[peerSized]),
				fmt.Sprintf("%.0f", c.peerFrame[peerAny]), fmt.Sprintf("%.1f", c.times[peerAny]), fmt.Sprint(c.samples)})
			if mode == "varied" && depth >= deepBudget {
				budgets = append(budgets, fmt.Sprintf("%.1f ns at depth %d (%s)", c.oursFrame, depth, within(c.oursFrame, frameBudget)))
			}
		}
	}
	say("\n## A frame\n\nThe program has %d generated C functions (`-O2 -fomit-frame-pointer`), of which one in sixteen has a CFA by rbp, with %d calls each. At depth d a chain of d "+
		"calls chosen at random works at its end. *Varied* chains are new every one or two samples, so that branches are mispredicted as in life; a *fixed* one is the same for all samples. "+
		"A stack has %d frames more. All stacks are whole, and `TestKernelChains` holds them, the peer's as well, against the chains that the program called.\n\n"+
		"The peer (`lab/peer`) does what eBPF profilers do today: for each frame a lookup of the mapping in an LPM trie, of the page, of the file's rows in a hash of maps, a binary search "+
		"with one map lookup a step, a rule from an array, reads of the return address and, where it was saved, rbp. It follows two registers, as they do; ours all that are callee-saved. "+
		"Arrays of one length have inlined lookups; of any length, calls.\n\n%s\n"+
		"A program that returns at once takes %.0f ns a sample, which is not subtracted. A `bpf_probe_read_user` of eight bytes takes %.0f ns here, in a loop.\n\n"+
		"Budget: %d ns a frame on varied chains from depth %d on. Measured: %s.\n",
		numFuncs, numSites, outside+2, markdown(cells), median(empty), median(read), frameBudget, deepBudget, strings.Join(budgets, ", "))
}

// gxxResults records a compiler.
func gxxResults(t testing.TB, say func(string, ...any), _ *callProgram) {
	var perSample, perFrame, frames, whole []float64
	var samples, copied uint64
	object := filepath.Join(t.TempDir(), "heavy.o")
	for range 3 {
		prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
		if err != nil {
			t.Fatal(err)
		}
		rec, err := perfevent.Open(t.Context(), perfevent.Options{
			Command: []string{"g++", "-std=c++17", "-O2", "-c", "workload/heavy.cc", "-o", object}, Frequency: 1999, User: true, Program: prog,
		})
		if err != nil {
			t.Fatal(err)
		}
		walked, all, ended, depth := 0, 0, 0, 0
		if _, err := source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
			all++
			if s.Stop == unwind.Outermost {
				ended++
			}
			if s.From == source.Walked {
				walked++
				depth += len(s.User)
			}
			return nil
		}}); err != nil {
			t.Fatal(err)
		}
		rec.Close()
		st := prog.Stats()
		prog.Close()
		mean := float64(depth) / float64(walked)
		ns := float64(st.RunTime) / float64(st.Runs)
		perSample, perFrame, frames = append(perSample, ns), append(perFrame, ns/mean), append(frames, mean)
		whole = append(whole, 100*float64(ended)/float64(all))
		samples += uint64(all)
		copied += st.Copied
	}
	say("\n## A compiler\n\ng++ on `lab/workload/heavy.cc`, all its processes, %d samples of user mode.\n\n%s\nBudget: %d ns a frame. Measured: %.1f ns (%s).\n", samples, markdown([][]string{
		{"ns a sample", "ns a frame", "frames a stack", "stacks whole, %", "left to a copy, %"},
		{fmt.Sprintf("%.0f", median(perSample)), fmt.Sprintf("%.1f", median(perFrame)), fmt.Sprintf("%.1f", median(frames)),
			fmt.Sprintf("%.2f", median(whole)), fmt.Sprintf("%.2f", 100*float64(copied)/float64(samples))},
	}), gxxBudget, median(perFrame), within(median(perFrame), gxxBudget))
}

// loadResults measures how long it takes until the program is in the kernel, and what the verifier says of it.
func loadResults(t testing.TB, say func(string, ...any), _ *callProgram) {
	var took []float64
	for range 7 {
		start := time.Now()
		prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Since(start).Seconds())
		prog.Close()
	}
	spec, err := bpf.LoadCollectionSpec("../source/ebpf/unspool_" + runtime.GOARCH + ".bpf.o")
	if err != nil {
		t.Fatal(err)
	}
	load := func(spec *bpf.CollectionSpec) (*bpf.Collection, error) {
		return bpf.NewCollectionWithOptions(spec, bpf.CollectionOptions{Programs: bpf.ProgramOptions{LogLevel: bpf.LogLevelStats}})
	}
	// This one is for kernels whose functions can be traced; elsewhere, another takes its place.
	traced := spec.Copy()
	maps.DeleteFunc(traced.Programs, func(name string, _ *bpf.ProgramSpec) bool { return name != "on_map" })
	if coll, err := load(traced); err != nil {
		delete(spec.Programs, "on_map")
	} else {
		coll.Close()
	}
	coll, err := load(spec)
	if err != nil {
		t.Fatal(err)
	}
	defer coll.Close()
	cells := [][]string{{"program", "instructions", "verified", "states", "verified in, ms", "machine code, bytes"}}
	said := regexp.MustCompile(`(?s)verification time (\d+) usec.*total_states (\d+)`)
	for _, name := range slices.Sorted(maps.Keys(coll.Programs)) {
		p := coll.Programs[name]
		m := said.FindStringSubmatch(p.VerifierLog)
		info, err := p.Info()
		if err != nil || m == nil {
			t.Fatalf("%s: %v; the verifier said %q", name, err, p.VerifierLog)
		}
		verified, _ := info.VerifiedInstructions()
		translated, err1 := info.TranslatedSize()
		jited, err2 := info.JitedSize()
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		us, _ := strconv.ParseFloat(m[1], 64)
		cells = append(cells, []string{"`" + name + "`", fmt.Sprint(translated / 8), fmt.Sprint(verified), m[2], fmt.Sprintf("%.2f", us/1e3), fmt.Sprint(jited)})
	}
	say("\n## Loading\n\n%s\nBudget: %.1f s from the object to programs and maps that are ready. Measured: %.3f s (%s).\n",
		markdown(cells), loadBudget, median(took), within(median(took), loadBudget))
}

// userResults measures what user space takes of the processors while both are busy, and what is lost.
func userResults(t testing.TB, say func(string, ...any), prog *callProgram) {
	for i := range runtime.NumCPU() {
		defer prog.run(t, 32, 375*time.Microsecond, uint64(i)+1).stop()
	}
	program, dir := build(t), t.TempDir()
	record := func(frequency int, seconds int) float64 {
		cmd := exec.Command(program, "record", "-a", "--source", "ebpf", "-F", fmt.Sprint(frequency), "--duration", fmt.Sprint(seconds, "s"), "-o", filepath.Join(dir, "out.pb.gz"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return (cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()).Seconds()
	}
	record(99, 1) // tables come into the cache
	cells := [][]string{{"samples a second and processor", "one second, ms of CPU", fmt.Sprint(recordSeconds, " seconds"), "% of a core", "processes started meanwhile", "samples", "lost"}}
	measured := 0.0
	for _, frequency := range []int{99, 999} {
		var short []float64
		for range 3 {
			short = append(short, record(frequency, 1))
		}
		began := forks(t)
		long := record(frequency, recordSeconds)
		began = forks(t) - began
		percent := 100 * (long - median(short)) / (recordSeconds - 1)
		if frequency == 99 {
			measured = percent
		}
		samples, lost := lostSamples(t, uint64(frequency), recordSeconds/3*time.Second)
		if lost > 0 {
			t.Errorf("of %d samples at %d Hz, %d were lost", samples, frequency, lost)
		}
		cells = append(cells, []string{fmt.Sprint(frequency), fmt.Sprintf("%.0f", 1e3*median(short)), fmt.Sprintf("%.0f", 1e3*long), fmt.Sprintf("%.2f", percent), fmt.Sprint(began), fmt.Sprint(samples), fmt.Sprint(lost)})
	}
	say("\n## User space\n\n`unspool record -a --source ebpf -o out.pb.gz` while each processor runs the program above at depth 32. A recording of a second is the start and the end; "+
		"the percentage is what a longer one takes beyond that, over its additional time: some of it is for processes that others start. Samples and losses are those of another recording, of %d seconds.\n\n%s\n"+
		"Budget: %d %% of a core at 99 Hz, and no loss at 999 Hz. Measured: %.2f %% (%s).\n", recordSeconds/3, markdown(cells), userBudget, measured, within(measured, userBudget))
}

// forks is how many processes and threads the machine has started.
func forks(t testing.TB) (n uint64) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(b), "\nprocesses ")
	if _, err := fmt.Sscan(rest, &n); err != nil {
		t.Fatalf("/proc/stat: processes: %v", err)
	}
	return n
}

// lostSamples records the whole machine and counts.
func lostSamples(t testing.TB, frequency uint64, d time.Duration) (samples int, lost uint64) {
	prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	rec, err := perfevent.Open(t.Context(), perfevent.Options{All: true, Frequency: frequency, Program: prog, Duration: d})
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	if _, err := source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(*source.Sample) error {
		samples++
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	st, rst := prog.Stats(), rec.Stats()
	return samples, st.Lost() + rst.Lost + rst.LostSamples
}

// memoryResults compares what tables take in the kernel, as it says itself, with their bytes.
func memoryResults(t testing.TB, say func(string, ...any), _ *callProgram) {
	cells := [][]string{{"recording", "tables", "their bytes", "in the kernel", "×", "other maps"}}
	worst := 0.0
	object := filepath.Join(t.TempDir(), "heavy.o")
	for _, x := range []struct {
		name string
		o    perfevent.Options
	}{
		{"g++", perfevent.Options{Command: []string{"g++", "-std=c++17", "-O2", "-c", "workload/heavy.cc", "-o", object}}},
		{"python3", perfevent.Options{Command: []string{"python3", "workload/calls.py", "1"}}},
		{"the machine, two seconds", perfevent.Options{All: true, Duration: 2 * time.Second}},
	} {
		before := openMaps(t)
		prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
		if err != nil {
			t.Fatal(err)
		}
		x.o.Program = prog
		stdout := os.Stdout
		os.Stdout, _ = os.OpenFile(os.DevNull, os.O_WRONLY, 0)
		rec, err := perfevent.Open(t.Context(), x.o)
		os.Stdout = stdout
		if err != nil {
			t.Fatal(err)
		}
		if _, err := source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(*source.Sample) error { return nil }}); err != nil {
			t.Fatal(err)
		}
		st := prog.Stats()
		n, tables, others := mapMemory(t, before)
		rec.Close()
		prog.Close()
		// Less than what was written is a fault of the measurement, and so are other tables than the program counts.
		if n != st.Tables || n == 0 || tables < st.TableBytes {
			t.Errorf("%s: the kernel has %d tables of %d bytes, the program counts %d, of %d", x.name, n, tables, st.Tables, st.TableBytes)
		}
		times := float64(tables) / float64(st.TableBytes)
		worst = max(worst, times)
		cells = append(cells, []string{x.name, fmt.Sprint(st.Tables), fmt.Sprint(st.TableBytes), fmt.Sprint(tables), fmt.Sprintf("%.3f", times), fmt.Sprint(others)})
	}
	say("\n## The kernel's memory\n\nTables at the end of a recording, in bytes, and what all maps but those of tables take.\n\n%s\nBudget: %.1f × the tables' bytes. Measured: %.3f × at most (%s).\n",
		markdown(cells), memoryBudget, worst, within(worst, memoryBudget))
}

// openMaps returns the maps that this process has open.
func openMaps(t testing.TB) map[bpf.MapID]bool {
	entries, err := os.ReadDir("/proc/self/fdinfo")
	if err != nil {
		t.Fatal(err)
	}
	open := map[bpf.MapID]bool{}
	for _, e := range entries {
		b, _ := os.ReadFile(filepath.Join("/proc/self/fdinfo", e.Name()))
		_, rest, ok := strings.Cut(string(b), "\nmap_id:")
		var id bpf.MapID
		if _, err := fmt.Sscan(rest, &id); ok && err == nil {
			open[id] = true
		}
	}
	return open
}

// mapMemory returns what the maps of a program take that has come since others were open, such as the peer's: how many tables there are, their
// memory, and that of its other maps. Of tables, the program keeps no descriptors: the map of all tables leads to them, by their identifiers.
func mapMemory(t testing.TB, before map[bpf.MapID]bool) (n int, tables, others uint64) {
	look := func(id bpf.MapID, f func(m *bpf.Map)) {
		m, err := bpf.NewMapFromID(id)
		if err != nil {
			t.Fatalf("map %d: %v", id, err)
		}
		defer m.Close()
		f(m)
	}
	for id := range openMaps(t) {
		if before[id] {
			continue
		}
		look(id, func(m *bpf.Map) {
			if m.Flags()&unix.BPF_F_INNER_MAP != 0 {
				return // a table that is being written
			}
			others += memlock(t, m)
			var table uint32
			for slot := uint32(0); m.Type() == bpf.ArrayOfMaps && slot < m.MaxEntries(); slot++ {
				if m.Lookup(slot, &table) == nil {
					n++
					look(bpf.MapID(table), func(in *bpf.Map) { tables += memlock(t, in) })
				}
			}
		})
	}
	return n, tables, others
}

// memlock returns the kernel's memory of a map, by the kernel's own word.
func memlock(t testing.TB, m *bpf.Map) uint64 {
	info, err := m.Info()
	if err != nil {
		t.Fatal(err)
	}
	bytes, ok := info.Memlock()
	if !ok || bytes == 0 {
		t.Fatalf("the kernel does not say how much memory %v takes", m)
	}
	return bytes
}

// TestMapMemory: what the kernel says of tables is found, of as many as the program counts, to the byte.
func TestMapMemory(t *testing.T) {
	mods := modules.New()
	// Another's map, which does not count.
	other, err := bpf.NewMap(&bpf.MapSpec{Type: bpf.Array, KeySize: 4, ValueSize: 1 << 20, MaxEntries: 64})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	before := openMaps(t)
	p := loadKernel(t, ebpf.Options{Mods: mods.Module})
	defer p.Close()
	rec, err := quietly(func() (*perfevent.Recorder, error) {
		return perfevent.Open(t.Context(), perfevent.Options{Command: []string{"python3", "workload/calls.py", "0.3"}, Frequency: 999, Program: p})
	})
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	if _, err := source.Run(t.Context(), rec, source.Options{Mods: mods.Module, Ours: true, Sample: func(*source.Sample) error { return nil }}); err != nil {
		t.Fatal(err)
	}
	st := p.Stats()
	n, tables, others := mapMemory(t, before)
	t.Logf("%d tables of %d bytes take %d, other maps %d", n, st.TableBytes, tables, others)
	if n != st.Tables || n < 3 || tables != st.MapBytes || tables < st.TableBytes || others < 1<<20 || others >= 64<<20 {
		t.Errorf("%d tables take %d bytes, other maps %d; the program counts %d tables of %d bytes that take %d", n, tables, others, st.Tables, st.TableBytes, st.MapBytes)
	}
}
