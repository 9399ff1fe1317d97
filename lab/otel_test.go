package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// A profiler is a command that samples the whole machine by a program of its own in the kernel, while it runs.
type profiler struct {
	name   string
	args   []string
	cmd    *exec.Cmd
	output bytes.Buffer
	from   spent
}

// A spent is what a profiler has had of the processors.
type spent struct {
	runs   uint64        // of its programs that handle samples
	kernel time.Duration // these took
	user   time.Duration // the process itself, in both modes
}

// perfEvent is the kernel's number of programs for perf events (BPF_PROG_TYPE_PERF_EVENT).
const perfEvent = "7"

func (p *profiler) start(t testing.TB) {
	p.cmd = exec.Command(p.args[0], p.args[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = &p.output, &p.output
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("%s: %v", p.name, err)
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		p.cmd.Wait()
	})
}

// spent asks the kernel. What a program reaches by tail calls counts as its own.
func (p *profiler) spent(t testing.TB) (s spent) {
	dir := fmt.Sprintf("/proc/%d/", p.cmd.Process.Pid)
	stat, err := os.ReadFile(dir + "stat")
	_, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if err != nil || len(f) < 13 || f[0] == "Z" {
		p.cmd.Process.Kill()
		p.cmd.Wait() // its output is complete then
		t.Fatalf("%s does not run any more: %v\n%s", p.name, err, p.output.Bytes())
	}
	for _, ticks := range f[11:13] {
		n, _ := strconv.ParseUint(ticks, 10, 64)
		s.user += time.Duration(n) * time.Second / 100 // USER_HZ
	}
	fds, _ := os.ReadDir(dir + "fdinfo")
	seen := map[string]bool{}
	for _, fd := range fds {
		b, _ := os.ReadFile(dir + "fdinfo/" + fd.Name())
		field := map[string]string{}
		for line := range strings.Lines(string(b)) {
			k, v, _ := strings.Cut(line, ":")
			field[k] = strings.TrimSpace(v)
		}
		if id := field["prog_id"]; field["prog_type"] == perfEvent && !seen[id] {
			seen[id] = true
			runs, _ := strconv.ParseUint(field["run_cnt"], 10, 64)
			ns, _ := strconv.ParseInt(field["run_time_ns"], 10, 64)
			s.runs, s.kernel = s.runs+runs, s.kernel+time.Duration(ns)
		}
	}
	return s
}

// ready waits until samples come.
func (p *profiler) ready(t testing.TB) {
	for end := time.Now().Add(time.Minute); p.spent(t).runs < 20; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			p.cmd.Process.Kill()
			p.cmd.Wait()
			t.Fatalf("%s (%q) handles no samples:\n%s", p.name, p.args, p.output.Bytes())
		}
	}
}

// sideBySide runs two profilers at the same time, while each processor compiles, and returns what each has had.
func sideBySide(t testing.TB, d time.Duration, ps ...*profiler) [][]string {
	oracle.Need(t, "g++")
	countRuns(t)
	ctx, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	for i := range runtime.NumCPU() {
		object := filepath.Join(t.TempDir(), fmt.Sprint(i, ".o"))
		load.Go(func() {
			for ctx.Err() == nil {
				cmd := exec.CommandContext(ctx, "g++", "-std=c++17", "-O2", "-c", "workload/heavy.cc", "-o", object)
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // g++ starts compiler and assembler
				cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
				if out, err := cmd.CombinedOutput(); err != nil && ctx.Err() == nil {
					t.Errorf("g++: %v\n%s", err, out)
					return
				}
			}
		})
	}
	for _, p := range ps {
		p.start(t)
	}
	for _, p := range ps {
		p.ready(t)
	}
	for _, p := range ps {
		p.from = p.spent(t)
	}
	start := time.Now()
	time.Sleep(d)
	took := time.Since(start)
	cells := [][]string{{"profiler", "samples", "µs a sample, in the kernel", "s of CPU, its process", "% of a core, both"}}
	for _, p := range ps {
		s := p.spent(t)
		s.runs, s.kernel, s.user = s.runs-p.from.runs, s.kernel-p.from.kernel, s.user-p.from.user
		cells = append(cells, []string{p.name, fmt.Sprint(s.runs), fmt.Sprintf("%.2f", float64(s.kernel.Nanoseconds())/1e3/float64(s.runs)),
			fmt.Sprintf("%.2f", s.user.Seconds()), fmt.Sprintf("%.2f", 100*(s.kernel+s.user).Seconds()/took.Seconds())})
	}
	return cells
}

// ourProfiler is unspool record.
func ourProfiler(t testing.TB, name string) *profiler {
	return &profiler{name: name, args: []string{build(t), "record", "-a", "--source", "ebpf", "-F", "99", "-o", filepath.Join(t.TempDir(), "out.pb.gz")}}
}

// TestOtel compares with the OpenTelemetry profiler, which UNSPOOL_OTEL names (make otel): its path, or its whole command. How many of its
// stacks are whole only its collector would know, which is not here.
func TestOtel(t *testing.T) {
	command := strings.Fields(os.Getenv("UNSPOOL_OTEL"))
	if len(command) == 0 {
		t.Skip("this test lacks UNSPOOL_OTEL, the path of a built OpenTelemetry eBPF profiler (make otel OTEL=PATH)")
	}
	if _, err := exec.LookPath(command[0]); err != nil {
		t.Fatalf("UNSPOOL_OTEL: %v; make agent builds it from github.com/open-telemetry/opentelemetry-ebpf-profiler", err)
	}
	if len(command) == 1 {
		command = append(command, "-collection-agent=127.0.0.1:11000", "-disable-tls", "-samples-per-second=99", "-tracers=native")
	}
	cells := sideBySide(t, 30*time.Second, ourProfiler(t, "unspool"), &profiler{name: filepath.Base(command[0]), args: command})
	t.Logf("%s, both at the same time, beside compilers:\n%s", machine(), table(cells))
	if strings.Contains(fmt.Sprint(cells), "NaN") {
		t.Errorf("a profiler had no samples: %v", cells)
	}
}

// TestSideBySide: a profiler is measured as any other: two of ours at the same time have the same samples, at the same cost.
func TestSideBySide(t *testing.T) {
	oracle.Full(t)
	cells := sideBySide(t, 3*time.Second, ourProfiler(t, "one"), ourProfiler(t, "other"))
	t.Logf("\n%s", table(cells))
	number := func(row, col int) float64 {
		v, err := strconv.ParseFloat(cells[row][col], 64)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for col := 1; col <= 2; col++ {
		one, other := number(1, col), number(2, col)
		if least, most := min(one, other), max(one, other); least <= 0 || most > 3*least {
			t.Errorf("%s: %v and %v", cells[0][col], one, other)
		}
	}
	if slices.Max([]float64{number(1, 4), number(2, 4)}) > 100*float64(runtime.NumCPU()) {
		t.Errorf("more than the machine has:\n%s", table(cells))
	}
}
