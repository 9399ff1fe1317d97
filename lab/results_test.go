package lab

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/unspool/unspool/emit/compact"
	"github.com/unspool/unspool/format/dwarf"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/rows"
)

var update = flag.Bool("update", false, "measure everything and write docs/results/README.md")

// TestResults measures, with the peers in the same run, and writes docs/results/README.md.
func TestResults(t *testing.T) {
	measures(t)
	oracle.Need(t, "perf", "llvm-dwarfdump-19", "readelf")
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, format, args...) }
	say("# Results\n\n`make results` writes this file. It was measured on %s.\n", machine())
	say("Times are medians; a peer's runs are interleaved with ours. [evaluation.md](evaluation.md) has the research report's tables, made again; [dropin.md](dropin.md) the drop-ins for libunwind, [stack.md](stack.md) stacks of processes, and lines; [execution.md](execution.md) says what became of executing programs step by step (`make execution`).\n")
	writeParts(t, &b, "README.md", []docPart{
		{"Rows and tables of every binary", corpusResults},
		{"From unwind information to tables", buildResults},
		{"From perf.data to folded stacks", reportResults},
		{"Walking recorded stacks", walkResults},
		{"Stacks, compared", stackResults},
		{"Names, lines and inlined calls", judgedNames},
	}, true)
	publish(t, "README.md", b.String())
}

// machine describes where the measurements were made.
func machine() string {
	cpu := "an unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		if m := regexp.MustCompile(`model name\s*: (.*)`).FindSubmatch(b); m != nil {
			cpu = string(m[1])
		}
	}
	release, _ := exec.Command("uname", "-r").Output()
	return fmt.Sprintf("%d cores of %s, Linux %s, %s", runtime.NumCPU(), cpu, bytes.TrimSpace(release), runtime.Version())
}

// A sized is what is known of one binary's unwind information, in bytes.
type sized struct {
	ehFrame, ehTable int // .eh_frame, and the table of its rows
	all, table       int // with .debug_frame
	rows, sets       int
	damaged          int
}

func measureSizes(path string) (z sized, err error) {
	img, err := module.Open(path)
	if err != nil {
		return z, err
	}
	defer img.Close()
	f, err := dwarf.Open(img)
	if err != nil {
		return z, err
	}
	s := f.Sizes()
	z.ehFrame, z.all = int(s.EHFrame), int(s.EHFrame+s.DebugFrame)
	emit := func(which dwarf.Which) (*rows.Table, int, error) {
		ref, damage := f.Build(which)
		z.damaged = len(damage)
		if len(ref.Rows) == 0 {
			return ref, 0, nil
		}
		b, err := compact.Emit(ref)
		if err != nil {
			return nil, 0, err
		}
		t, err := compact.Load(b)
		if err == nil {
			err = compact.Verify(t, ref, 1)
		}
		return ref, len(b), err
	}
	if _, z.ehTable, err = emit(dwarf.EHFrame); err != nil {
		return z, err
	}
	ref, n, err := emit(dwarf.Both)
	if err == nil {
		z.rows, z.sets, z.table = len(ref.Rows), len(ref.Sets), n
	}
	return z, err
}

// judge runs a test in which a judge compares all that there is, and returns the last line of it that an expression finds.
func judge(t testing.TB, dir, test, line string) string {
	cmd := exec.Command("go", "test", "-count=1", "-timeout", "4h", "-run", "^"+test+"$", "-v", dir)
	cmd.Env = append(os.Environ(), "UNSPOOL_CORPUS=all", "UNSPOOL_REQUIRE_JUDGES=1")
	out, err := cmd.CombinedOutput()
	found := regexp.MustCompile(line).FindAll(out, -1)
	if err != nil || len(found) == 0 {
		t.Errorf("%s of %s: %v\n%s", test, dir, err, out)
		return ""
	}
	return strings.TrimSpace(string(found[len(found)-1]))
}

// judgedNames compares names.
func judgedNames(t testing.TB) string {
	return judge(t, "../symbol/debuginfo", "TestLLVM", `\d+ addresses\n`) +
		" of programs by g++, clang, rustc, Go, as, and of glibc, with DWARF 2 to 5, in all forms in which it comes: each function, line and inlined call as `llvm-symbolizer-19 --inlines` names it; 0 differences.\n"
}

// corpusResults reads all binaries of the machine.
func corpusResults(t testing.TB) string {
	judged := judge(t, "../format/dwarf", "TestJudgeCorpus", `\d+ rows, .* of \d+ files.*`)
	paths := oracle.Binaries(t)
	var mu sync.Mutex
	var all []sized
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(paths); i = int(next.Add(1)) - 1 {
				z, err := measureSizes(paths[i])
				if err != nil {
					t.Errorf("%s: %v", paths[i], err)
				}
				mu.Lock()
				if z.rows > 0 {
					all = append(all, z)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var sum sized
	var ratios []float64
	for _, z := range all {
		sum.ehFrame += z.ehFrame
		sum.ehTable += z.ehTable
		sum.all += z.all
		sum.table += z.table
		sum.rows += z.rows
		sum.sets += z.sets
		sum.damaged += z.damaged
		if z.ehFrame > 0 && z.ehTable > 0 {
			ratios = append(ratios, float64(z.ehTable)/float64(z.ehFrame))
		}
	}
	ratio := func(a, b int) string { return fmt.Sprintf("%.3f", float64(a)/float64(b)) }
	if float64(sum.ehTable) > 0.75*float64(sum.ehFrame) {
		t.Errorf("tables take %s of .eh_frame, more than 0.75", ratio(sum.ehTable, sum.ehFrame))
	}
	return fmt.Sprintf("Every row and every register against `llvm-dwarfdump-19 --eh-frame` and `--debug-frame`:\n%s; 0 differences.\n\n", judged) +
		"Compact tables, with all callee-saved registers; every one proven equal to its rows (`unspool verify`):\n\n" +
		markdown([][]string{
			{"files", "rows", "distinct rules", "damaged entries", "source, bytes", "tables, bytes", "ratio"},
			{fmt.Sprint(len(all)), fmt.Sprint(sum.rows), fmt.Sprint(sum.sets), fmt.Sprint(sum.damaged), fmt.Sprint(sum.all), fmt.Sprint(sum.table), ratio(sum.table, sum.all)},
			{"`.eh_frame` only", "", "", "", fmt.Sprint(sum.ehFrame), fmt.Sprint(sum.ehTable), ratio(sum.ehTable, sum.ehFrame)},
		}) + fmt.Sprintf("\nThe median of the files' ratios, table to `.eh_frame`, is %.3f.\n", median(ratios))
}

// find returns the first file that matches one of the patterns.
func find(patterns ...string) string {
	for _, p := range patterns {
		if list, _ := filepath.Glob(p); len(list) > 0 {
			return list[0]
		}
	}
	return ""
}

const libs = "/usr/lib/x86_64-linux-gnu/"

// timed returns the median time of n calls of each of the functions, taken in turns. What one leaves to the collector is
// not counted for the next.
func timed(n int, fs ...func()) []time.Duration {
	took := make([][]float64, len(fs))
	for range n {
		for i, f := range fs {
			runtime.GC()
			start := time.Now()
			f()
			took[i] = append(took[i], float64(time.Since(start)))
		}
	}
	out := make([]time.Duration, len(fs))
	for i := range out {
		out[i] = time.Duration(median(took[i]))
	}
	return out
}

// buildResults measures the way from a file to its rows and its table.
func buildResults(t testing.TB) string {
	cells := [][]string{{"file", "rows", "rows, ns each, one core", "all cores", "table, ns a row", "proof, ns a row", "llvm-dwarfdump, × ours", "readelf -wF, × ours"}}
	for _, path := range []string{find(libs + "libLLVM.so.19*"), find("/usr/l*/gcc/x86_64-linux-gnu/*/cc1plus"), libs + "libc.so.6"} {
		img, err := module.Open(path)
		if err != nil {
			t.Error(err)
			continue
		}
		f, err := dwarf.Open(img)
		if err != nil {
			t.Fatal(err)
		}
		ref, _ := f.Build(dwarf.EHFrame)
		b, err := compact.Emit(ref)
		if err != nil {
			t.Fatal(err)
		}
		table, err := compact.Load(b)
		if err != nil {
			t.Fatal(err)
		}
		peer := func(name string, args ...string) func() {
			return func() {
				// The exit status may be 1 after a warning.
				if out, err := exec.Command(name, append(args, path)...).Output(); len(out) < len(ref.Rows) {
					t.Errorf("%s %s: %v", name, path, err)
				}
			}
		}
		n := len(ref.Rows)
		took := timed(5,
			func() { defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)); f.Build(dwarf.EHFrame) },
			func() { f.Build(dwarf.EHFrame) },
			func() { compact.Emit(ref) },
			func() { compact.Verify(table, ref, 1) },
		)
		peers := timed(1, peer("llvm-dwarfdump-19", "--eh-frame"), peer("readelf", "-wF"))
		each := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(n)) }
		times := func(d time.Duration) string { return fmt.Sprintf("%.0f", float64(d)/float64(took[0])) }
		cells = append(cells, []string{filepath.Base(path), fmt.Sprint(n), each(took[0]), each(took[1]), each(took[2]), each(took[3]), times(peers[0]), times(peers[1])})
		img.Close()
	}
	files := []string{find("/usr/bin/hackbench"), libs + "libc.so.6", libs + "ld-linux-x86-64.so.2", find(libs+"libpthread.so.0", libs+"libpthread.so")}
	one := func(path string, prove bool) error {
		img, err := module.Open(path)
		if err != nil {
			return err
		}
		defer img.Close()
		f, err := dwarf.Open(img)
		if err != nil {
			return err
		}
		ref, _ := f.Build(dwarf.Both)
		b, err := compact.Emit(ref)
		if err != nil || !prove {
			return err
		}
		table, err := compact.Load(b)
		if err != nil {
			return err
		}
		return compact.Verify(table, ref, 1)
	}
	compile := func(prove bool) func() {
		return func() {
			var wg sync.WaitGroup
			for _, path := range files {
				wg.Go(func() {
					if err := one(path, prove); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	}
	took := timed(11, compile(false), compile(true))
	return markdown(cells) + fmt.Sprintf("\nThe peers also print what they read. hackbench, libc, ld.so and libpthread, from file to table: %.1f ms, and %.1f ms with the proof.\n",
		took[0].Seconds()*1e3, took[1].Seconds()*1e3)
}

// anonymous runs a command and returns the most anonymous memory that it had, in bytes, as seen every other
// millisecond.
func anonymous(cmd *exec.Cmd) (most int64, err error) {
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	status := fmt.Sprintf("/proc/%d/status", cmd.Process.Pid)
	for {
		select {
		case err := <-done:
			return most, err
		case <-time.After(2 * time.Millisecond):
			if b, err := os.ReadFile(status); err == nil {
				if _, rest, ok := bytes.Cut(b, []byte("RssAnon:")); ok {
					var kb int64
					fmt.Sscan(string(rest), &kb)
					most = max(most, kb<<10)
				}
			}
		}
	}
}

var built struct {
	sync.Once
	dir string
	err error
}

// build compiles the program once, as make does: without cgo. TestMain removes it.
func build(t testing.TB) string {
	t.Helper()
	built.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "unspool-lab"); built.err != nil {
			return
		}
		c := exec.Command("go", "build", "-o", built.dir, "../cmd/unspool")
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			built.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if built.err != nil {
		t.Fatal(built.err)
	}
	return filepath.Join(built.dir, "unspool")
}

// reportResults races unspool report against perf script, both from perf.data in the page cache to text.
func reportResults(t testing.TB) string {
	program := build(t)
	cells := [][]string{{"recording", "samples", "perf script --no-inline, s", "unspool, s", "perf, × ours", "unspool, anonymous MB"}}
	for _, file := range recordings(t) {
		out := filepath.Join(t.TempDir(), "x.folded")
		mine := func() {
			if err := exec.Command(program, "report", file, "-o", out).Run(); err != nil {
				t.Error(err)
			}
		}
		mine() // tables come into the cache, the file into memory
		took := timed(5, func() {
			if err := exec.Command("perf", "script", "--no-inline", "-i", file).Run(); err != nil {
				t.Error(err)
			}
		}, mine)
		memory, err := anonymous(exec.Command(program, "report", file, "-o", out))
		if err != nil {
			t.Error(err)
		}
		text, err := os.ReadFile(out)
		if err != nil {
			t.Error(err)
		}
		samples := 0
		for line := range strings.Lines(string(text)) {
			var n int
			fmt.Sscan(line[strings.LastIndexByte(line, ' ')+1:], &n)
			samples += n
		}
		cells = append(cells, []string{strings.TrimSuffix(filepath.Base(file), ".data"), fmt.Sprint(samples),
			fmt.Sprintf("%.2f", took[0].Seconds()), fmt.Sprintf("%.2f", took[1].Seconds()),
			fmt.Sprintf("%.1f", float64(took[0])/float64(took[1])), fmt.Sprintf("%.0f", float64(memory)/1e6)})
	}
	return markdown(cells)
}

func walkResults(t testing.TB) string {
	var b strings.Builder
	for _, file := range recordings(t) {
		fmt.Fprintf(&b, "### %s\n\n%s\n", strings.TrimSuffix(filepath.Base(file), ".data"), markdown(walkSpeed(t, file)))
	}
	return strings.TrimSuffix(b.String(), "\n")
}

func stackResults(t testing.TB) string {
	var b strings.Builder
	for _, file := range recordings(t) {
		x := compareStacks(t, file)
		byCause, byStop := x.tables()
		all, reached := x.whole()
		peer := "none"
		if x.perfWhole > 0 {
			peer = percent(x.perfWhole, x.samples) + " of all"
		}
		fmt.Fprintf(&b, "### %s\n\n%d user stacks; whole: %.2f %% of all, %.2f %% of those whose copy reaches the stack's base; perf: %s.\n\n%s\n%s\n",
			x.name, x.samples, 100*all, 100*reached, peer, markdown(byCause), markdown(byStop))
		if n := x.causes[unexpected]; n > 0 {
			t.Errorf("%d chains differ without explanation, such as\n%s", n, strings.Join(x.examples, "\n"))
		}
	}
	return strings.TrimSuffix(b.String(), "\n")
}
