package random

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/shadow"
)

// A group is programs that were executed, and what each way made of their stacks.
type group struct {
	Name         string
	Programs     []string
	Instructions uint64 // executed
	Moments      uint64 // walked: instructions whose callers are known
	Frames       uint64 // callers of all moments
	Deep         uint64 // moments with more than 32 callers
	Deepest      int
	Ways         []counted

	samples []kept
	errs    []string
	times   [][]float64               // ns a frame, by way and program
	files   map[string]map[string]int // bytes of unwind information, by path and form
}

// A counted has a way's verdicts, by verdict.
type counted struct {
	Name  string
	Main  [verdicts]uint64 // of the callers up to main
	Whole [verdicts]uint64 // of all callers
	NS    float64          `json:",omitempty"` // a frame, of those that it finds: the median of programs
}

// A kept is a sample with its own copy of memory, and its depth.
type kept struct {
	sample
	depth int
}

// keptSamples bounds how many of a program's samples are kept to measure times.
const keptSamples = 400

// maxStack bounds what is read of a stack at once, in bytes.
const maxStack = 1 << 20

// add adds what an execution has counted.
func (g *group) add(o *group) {
	g.Programs = append(g.Programs, o.Programs...)
	g.Instructions += o.Instructions
	g.Moments += o.Moments
	g.Frames += o.Frames
	g.Deep += o.Deep
	g.Deepest = max(g.Deepest, o.Deepest)
	g.samples = append(g.samples, o.samples...)
	g.errs = append(g.errs, o.errs...)
	if g.files == nil {
		g.files = map[string]map[string]int{}
	}
	maps.Copy(g.files, o.files)
	if g.Ways == nil {
		g.Ways, g.times = make([]counted, len(ways)), make([][]float64, len(ways))
	}
	for i := range o.Ways {
		g.Ways[i].Name = ways[i].name
		for v := range verdicts {
			g.Ways[i].Main[v] += o.Ways[i].Main[v]
			g.Ways[i].Whole[v] += o.Ways[i].Whole[v]
		}
		if o.Ways[i].NS > 0 {
			g.times[i] = append(g.times[i], o.Ways[i].NS)
			g.Ways[i].NS = median(g.times[i])
		}
	}
}

// startup says whether a caller belongs to what calls main: the C library's start-up code, or an executable's entry point.
func (w *world) startup(s *sample, pc uint64) bool {
	m := s.space.Find(arch.Addr(pc - 1))
	if m == nil {
		return false
	}
	if strings.HasPrefix(filepath.Base(m.Module.Path), "libc.so") {
		return true
	}
	t, v, ok := w.find(s, pc, false)
	return !ok || t.all.At(v).Outermost()
}

// observe walks a moment in each way.
func (g *group) observe(w *world, m *shadow.Moment) {
	sp := m.Regs[arch.AMD64.Slot(arch.AMD64.SP)]
	const below, above = 256, 1024 // the red zone, and what is on the stack behind the last caller's
	lo, hi := sp-below, sp+above
	if n := len(m.Callers); n > 0 {
		hi = max(hi, min(m.Callers[n-1].CFA+above, sp+maxStack))
	}
	s := sample{pc: m.PC, regs: m.Regs, space: m.Space, lo: lo, next: m}
	s.stack = make([]byte, hi-lo)
	s.stack = s.stack[:m.Read(lo, s.stack)]
	if len(s.stack) == 0 {
		return
	}
	truth := m.Callers
	main := len(truth)
	if m.Whole {
		for main > 0 && w.startup(&s, truth[main-1].PC) {
			main--
		}
	}
	g.Moments++
	g.Frames += uint64(len(truth))
	g.Deepest = max(g.Deepest, len(truth))
	if len(truth) > 32 {
		g.Deep++
	}
	for i := range ways {
		chain := ways[i].walk(w, &s, len(truth)+8)
		whole := judge(chain, truth, m.Whole)
		g.Ways[i].Whole[whole]++
		v := whole
		if main < len(truth) {
			v = judge(chain, truth[:main], false)
		}
		g.Ways[i].Main[v]++
		if v != right && i == len(ways)-1 && len(g.errs) < 20 {
			var want []uint64
			for _, c := range truth {
				want = append(want, c.PC)
			}
			g.errs = append(g.errs, fmt.Sprintf("%s at %s\n  walk %s\n  true %s", v, s.text([]uint64{m.PC}), s.text(chain), s.text(want)))
		}
	}
	if g.Moments%97 == 0 && len(g.samples) < keptSamples && len(truth) > 0 {
		s.next = nil
		g.samples = append(g.samples, kept{s, len(truth)})
	}
}

// follow executes a command, and walks at every n-th instruction of at most so many.
func follow(ctx context.Context, w *world, set *modules.Set, name string, cmd *exec.Cmd, steps, every uint64) (*group, error) {
	ctx, cancel := context.WithTimeout(ctx, patience+time.Duration(steps)*500*time.Microsecond)
	defer cancel()
	g := &group{Programs: []string{name}, Ways: make([]counted, len(ways))}
	r, err := shadow.Run(ctx, cmd, shadow.Options{Modules: set, Entry: true, Steps: steps, End: true, Every: every, Each: func(m *shadow.Moment) { g.observe(w, m) }})
	g.Instructions, g.files = r.Steps, map[string]map[string]int{}
	for path, f := range w.byPath {
		if f.err != nil {
			return g, fmt.Errorf("%s: %w", path, f.err)
		}
		if len(f.bytes) > 0 {
			g.files[path] = f.bytes
		}
	}
	if err != nil && !(errors.Is(err, context.Canceled) && ctx.Err() == nil) {
		return g, fmt.Errorf("%s: %w", name, err)
	}
	return g, nil
}

// measure times the ways on the samples of a group: the least of some rounds.
func (g *group) measure(w *world) {
	for i := range ways {
		if !ways[i].time || len(g.samples) == 0 {
			continue
		}
		best := 0.0
		for range 7 {
			frames := 0
			start := time.Now()
			for k := range g.samples {
				frames += len(ways[i].walk(w, &g.samples[k].sample, g.samples[k].depth+8))
			}
			if ns := float64(time.Since(start).Nanoseconds()) / float64(max(frames, 1)); best == 0 || ns < best {
				best = ns
			}
		}
		g.Ways[i].NS = best
	}
}

// built are the flags that the same generated programs are compiled with.
var built = []struct{ name, flags string }{
	{"-O2", "-O2 -Wl,-z,now"},
	{"-O2, frame pointers", "-O2 -fno-omit-frame-pointer -Wl,-z,now"},
	{"-O1, frame pointers", "-O1 -fno-omit-frame-pointer -Wl,-z,now"},
	{"-O0", "-O0 -Wl,-z,now"},
}

// shipped are Debian's programs, and a program of Rust; {services} is a text file, {rust} and {go} are compiled.
var shipped = [][]string{
	{"gzip", "-c", "{services}"},
	{"xz", "-c", "{services}"},
	{"grep", "-E", "tcp|udp", "{services}"},
	{"perl", "-e", `my %h; $h{$_ % 7} .= $_ for 1..5000; print join(",", sort keys %h)`},
	{"sqlite3", ":memory:", "create table t(a,b); insert into t values(1,2),(3,4); select sum(a*b) from t group by b;"},
	{"openssl", "dgst", "-sha256", "{services}"},
	{"/usr/bin/python3", "-c", `import json; print(json.dumps([1, 2, {"a": 3.5}]))`},
	{"{cc1plus}", "-quiet", "-O2", "{throw}", "-o", "/dev/null"},
	{"{rust}"},
}

// goProgram has goroutines and a garbage collector.
var goProgram = [][]string{{"{go}"}}

// generated makes, compiles and follows programs of seeds.
func generated(t *testing.T, name string, seeds []uint64, compiler, flags string, steps, every uint64) *group {
	g := &group{Name: name}
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan uint64)
	for range workers() {
		wg.Go(func() {
			set := modules.New()
			defer set.Close()
			w := newWorld()
			for seed := range work {
				p := newPlan(seed)
				if compiler != "" {
					p.compiler, p.flags = compiler, strings.Fields(flags)
					p.correct()
				}
				dir := t.TempDir()
				path, err := p.build(t.Context(), dir)
				var lacks errLacks
				if errors.As(err, &lacks) {
					t.Logf("%s: %v", p, err)
					continue
				}
				if err != nil {
					t.Error(err)
					continue
				}
				cmd := exec.Command(path)
				cmd.Dir = dir
				one, err := follow(t.Context(), w, set, fmt.Sprintf("seed %d", seed), cmd, steps, every)
				if err != nil {
					t.Errorf("%s: %v", p, err)
				}
				one.measure(w)
				if len(one.errs) > 0 {
					t.Logf("%s: %s", p, one.errs[0])
				}
				one.samples = nil // their programs are gone
				mu.Lock()
				g.add(one)
				mu.Unlock()
			}
		})
	}
	for _, seed := range seeds {
		work <- seed
	}
	close(work)
	wg.Wait()
	slices.Sort(g.Programs)
	return g
}

// workers is how many programs are executed at a time: UNSPOOL_WORKERS, or one for each processor.
func workers() int {
	if os.Getenv("UNSPOOL_WORKERS") == "1" {
		return 1
	}
	return runtime.NumCPU()
}

// seedsOf returns the first n seeds whose programs are of the kinds, or of any, and have no such features.
func seedsOf(n int, without feature, kinds ...string) (out []uint64) {
	for seed := uint64(1); len(out) < n; seed++ {
		if p := newPlan(seed); (len(kinds) == 0 || slices.Contains(kinds, p.kind)) && p.features&without == 0 {
			out = append(out, seed)
		}
	}
	return out
}

// shippedGroup follows programs that nobody has generated.
func shippedGroup(t *testing.T, name string, commands [][]string, steps, every uint64) *group {
	g := &group{Name: name}
	dir := t.TempDir()
	replace := []string{"{services}", filepath.Join(dir, "services"), "{throw}", absolute(t, "../../shadow/testdata/throw.cc")}
	text, err := os.ReadFile("../../shadow/testdata/jumps.c")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(replace[1], text, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		switch c[0] {
		case "{cc1plus}":
			path := strings.TrimSpace(string(oracle.Run(t, "g++-12", "-print-prog-name=cc1plus")))
			replace = append(replace, "{cc1plus}", path)
		case "{rust}":
			p := newPlan(seedsOf(1, 0, "rust")[0])
			p.compiler, p.flags = "rustc", []string{"-Copt-level=3"}
			path, err := p.build(t.Context(), dir)
			if err != nil {
				t.Fatal(err)
			}
			replace = append(replace, "{rust}", path)
		case "{go}":
			path := filepath.Join(dir, "goroutines")
			oracle.Run(t, "go", "build", "-o", path, "../../shadow/testdata/goroutines.go")
			replace = append(replace, "{go}", path)
		}
	}
	names := strings.NewReplacer("{cc1plus}", "cc1plus", "{throw}", "throw.cc", "{services}", "services", "{rust}", "a Rust program", "{go}", "a Go program")
	r := strings.NewReplacer(replace...)
	var mu sync.Mutex
	var wg sync.WaitGroup
	work := make(chan []string)
	for range workers() {
		wg.Go(func() {
			for c := range work {
				set := modules.New()
				w := newWorld()
				var args []string
				for _, a := range c {
					args = append(args, r.Replace(a))
				}
				cmd := exec.Command(args[0], args[1:]...)
				cmd.Dir = dir
				one, err := follow(t.Context(), w, set, names.Replace(strings.Join(c, " ")), cmd, steps, every)
				if err != nil {
					t.Error(err)
				}
				one.measure(w)
				t.Logf("%s: %s", c, one.short())
				for _, e := range one.errs {
					t.Log(e)
				}
				set.Close()
				one.samples = nil
				mu.Lock()
				g.add(one)
				mu.Unlock()
			}
		})
	}
	for _, c := range commands {
		work <- c
	}
	close(work)
	wg.Wait()
	slices.Sort(g.Programs)
	return g
}

func absolute(t *testing.T, path string) string {
	abs, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// short says in a few lines what the ways made of a group.
func (g *group) short() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d instructions, %d walks, %.1f callers, at most %d, deep %d", g.Instructions, g.Moments, float64(g.Frames)/float64(max(g.Moments, 1)), g.Deepest, g.Deep)
	for _, w := range g.Ways {
		fmt.Fprintf(&b, "\n  %-60s main %v whole %v %.0f ns", w.Name, w.Main, w.Whole, w.NS)
	}
	return b.String()
}

// TestWalking compares ways to walk on some programs: what CI has time for. None has what compilers' or the C library's rows get wrong.
func TestWalking(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the flags are x86-64's")
	}
	oracle.Need(t, "gcc-12", "g++-12", "gzip")
	seeds := seedsOf(3, aligned|longjmp|foreign|naked|vectors, "c", "c++")
	for _, g := range []*group{
		shippedGroup(t, "gzip", shipped[:1], 20_000, 5),
		generated(t, built[0].name, seeds, "gcc-12", built[0].flags, 8_000, 1),
		generated(t, built[2].name, seeds, "gcc-12", built[2].flags, 8_000, 1),
	} {
		t.Logf("%s: %s", g.Name, g.short())
		if n := g.Ways[len(ways)-1].Main; n[right] < 1000 || n[wrong]+n[lost]+n[short] > 0 {
			t.Errorf("%s: of ours are %v right, wrong, lost, short", g.Name, n)
		}
		if n := g.Ways[0].Main; n[wrong]+n[lost]+n[short] == 0 {
			t.Errorf("%s: all chains of frame pointers are right", g.Name)
		}
		for i := 1; i < 4; i++ {
			if less, more := g.Ways[copies+i-1], g.Ways[copies+i]; less.Main[right] > more.Main[right] {
				t.Errorf("%s: %s has more right stacks than %s", g.Name, less.Name, more.Name)
			}
		}
	}
}

// copies is the index of the smallest copy's way.
var copies = slices.IndexFunc(ways, func(w way) bool { return strings.HasPrefix(w.name, "ours, a copy") })

// TestJudge holds verdicts of chains.
func TestJudge(t *testing.T) {
	truth := []shadow.Caller{{PC: 1}, {PC: 2}, {PC: 2}, {PC: 3}}
	for _, c := range []struct {
		chain        []uint64
		whole, known verdict
	}{
		{[]uint64{1, 2, 2, 3}, right, right},
		{[]uint64{1, 2, 2, 3, 4}, wrong, right},
		{[]uint64{1, 2, 2}, short, short},
		{nil, short, short},
		{[]uint64{2, 2, 3}, lost, lost},
		{[]uint64{1, 2, 3}, lost, lost},
		{[]uint64{1, 3}, lost, lost},
		{[]uint64{1, 9, 2}, wrong, wrong},
		{[]uint64{9}, wrong, wrong},
		{[]uint64{2, 9}, wrong, lost},
	} {
		if a, b := judge(c.chain, truth, true), judge(c.chain, truth, false); a != c.whole || b != c.known {
			t.Errorf("%v: %s, %s; want %s, %s", c.chain, a, b, c.whole, c.known)
		}
	}
}

// results is what docs/results/walking.json has.
type results struct {
	Machine  string
	Every    uint64 // of shipped programs each n-th instruction is walked; of the others, each
	Groups   []*group
	Files    int            // of the shipped programs, with libraries
	Bytes    map[string]int // of their unwind information, by form; "code": of their code
	Costs    []cost
	Rounds   int // of the costs' times
	Measured string
}

const resultsFile = "../../docs/results/walking.json"

func readResults(t *testing.T) (out results) {
	b, err := os.ReadFile(resultsFile)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	return out
}

func (r *results) write(t *testing.T) {
	b, err := json.MarshalIndent(r, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if t.Failed() {
		return
	}
	if err := os.WriteFile(resultsFile, append(b, '\n'), 0o666); err != nil {
		t.Error(err)
	}
}

// TestResultsWalking executes UNSPOOL_WALKING instructions of each shipped program, and a thirtieth of each generated one, and writes the results.
func TestResultsWalking(t *testing.T) {
	steps := number(t, "UNSPOOL_WALKING", 0)
	if steps == 0 {
		t.Skip("this test lacks UNSPOOL_WALKING (make walking)")
	}
	oracle.Need(t, "gcc-12", "g++-12", "clang-19", "clang++-19", "gcc-11", "rustc", "go", "csmith")
	out := readResults(t)
	out.Machine, out.Measured, out.Every, out.Groups = machine(), time.Now().UTC().Format("2 January 2006"), 5, nil
	first := shippedGroup(t, "programs as they are shipped", shipped, steps, out.Every)
	out.Groups = append(out.Groups, first, shippedGroup(t, "a Go program", goProgram, steps, out.Every))
	out.Files, out.Bytes = len(first.files), map[string]int{}
	for _, sizes := range first.files {
		for form, n := range sizes {
			out.Bytes[form] += n
		}
	}
	out.Groups = append(out.Groups, generated(t, "generated programs, compiled in random ways", seedsOf(60, 0), "", "", steps/30, 1))
	seeds := seedsOf(20, foreign|naked, "c", "c++")
	for _, compiler := range []string{"gcc-12", "clang-19"} {
		for _, b := range built {
			out.Groups = append(out.Groups, generated(t, compiler+" "+b.name, seeds, compiler, b.flags, steps/30, 1))
		}
	}
	for _, g := range out.Groups {
		t.Logf("%s: %s", g.Name, g.short())
	}
	out.write(t)
}

// TestResultsCost measures what frame pointers cost, by UNSPOOL_WALKING_ROUNDS rounds, and writes the results.
func TestResultsCost(t *testing.T) {
	rounds := number(t, "UNSPOOL_WALKING_ROUNDS", 0)
	if rounds == 0 {
		t.Skip("this test lacks UNSPOOL_WALKING_ROUNDS (make walking)")
	}
	oracle.Need(t, "gcc-12", "g++-12", "clang-19", "clang++-19", "valgrind")
	out := readResults(t)
	out.Rounds, out.Costs = int(rounds), measureCosts(t, int(rounds))
	out.write(t)
}

// machine describes this one.
func machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	release, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	return fmt.Sprintf("%d cores of %s, Linux %s, %s", runtime.NumCPU(), model, strings.TrimSpace(string(release)), runtime.Version())
}
