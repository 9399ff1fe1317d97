package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// sleepers starts a process of threads that wait below 20 calls each, and returns its PID when all of them do.
func sleepers(t testing.TB, threads int) (program string, pid int) {
	t.Helper()
	oracle.Need(t, "gcc")
	program = filepath.Join(t.TempDir(), "sleepers")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Wextra", "-pthread", "-o", program, "workload/sleepers.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(program, fmt.Sprint(threads), "20")
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return program, cmd.Process.Pid
}

// stackVerbResults races unspool stack against eu-stack and gdb, on a process and on its core.
func stackVerbResults(t testing.TB) string {
	oracle.Need(t, "eu-stack", "gdb")
	const threads = 100
	program := build(t)
	sleeper, pid := sleepers(t, threads)
	core := filepath.Join(t.TempDir(), "core")
	if out, err := exec.Command("gdb", "-batch", "-p", fmt.Sprint(pid), "-ex", "generate-core-file "+core).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// run runs a tool, which has to name the innermost function of all threads.
	run := func(name string, args ...string) func() {
		return func() {
			out, err := exec.Command(name, args...).Output()
			if n := strings.Count(string(out), "begin"); err != nil || n < threads {
				t.Errorf("%s %q: %v: %d of %d threads", name, args, err, n, threads)
			}
		}
	}
	gdb := []string{"-batch", "-nx", "-ex", "thread apply all bt"}
	cells := [][]string{{"of 100 threads", "unspool stack --no-inline, ms", "eu-stack, ms", "× ours", "unspool stack, with lines, ms", "eu-stack -i -s, ms", "× ours", "gdb, ms", "× ours"}}
	for _, x := range []struct {
		what string
		fs   []func()
	}{
		{"a process", []func(){
			run(program, "stack", "--no-inline", fmt.Sprint(pid)), run("eu-stack", "-p", fmt.Sprint(pid)),
			run(program, "stack", fmt.Sprint(pid)), run("eu-stack", "-i", "-s", "-p", fmt.Sprint(pid)), run("gdb", append(gdb, "-p", fmt.Sprint(pid))...),
		}},
		{"its core", []func(){
			run(program, "stack", "--no-inline", core), run("eu-stack", "--core", core, "-e", sleeper),
			run(program, "stack", core), run("eu-stack", "-i", "-s", "--core", core, "-e", sleeper), run("gdb", append(gdb, sleeper, core)...),
		}},
	} {
		for _, f := range x.fs {
			f() // files come into memory
		}
		took := timed(11, x.fs...)
		ms := func(i int) string { return fmt.Sprintf("%.0f", took[i].Seconds()*1e3) }
		times := func(i, ours int) string { return fmt.Sprintf("%.1f", float64(took[i])/float64(took[ours])) }
		row := []string{x.what, ms(0), ms(1), times(1, 0), ms(2), ms(3), times(3, 2), ms(4), times(4, 2)}
		cells = append(cells, row)
	}
	var all, longest []float64
	for range 21 {
		out, err := exec.Command(program, "stack", "--format", "json", fmt.Sprint(pid)).Output()
		var s struct {
			Pause   float64 `json:"pause_ns"`
			Longest float64 `json:"longest_pause_ns"`
		}
		if err == nil {
			err = json.Unmarshal(out, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		all, longest = append(all, s.Pause/1e6), append(longest, s.Longest/1e6)
	}
	return markdown(cells) + fmt.Sprintf("\nFrom the first thread's stop to the last one's release, of 100 threads: %.1f ms (budget: 5 ms); one thread stands for %.1f ms at most.\n", median(all), median(longest))
}

// nameResults races pprof with lines and inlined functions against perf script, which prints the same: on a large recording of programs
// without debug information, and on one of a program with it.
func nameResults(t testing.TB) string {
	const patience = 200 * time.Second
	program := build(t)
	cells := [][]string{{"recording", "to pprof with lines and inlined functions, s", "without them, s", "perf script with inlined functions, s", "perf, × ours", "unspool, anonymous MB"}}
	for _, file := range recordings(t) {
		if name := filepath.Base(file); name != "gxx.data" && name != "inlined.data" {
			continue
		}
		out := filepath.Join(t.TempDir(), "x.pb.gz")
		mine := func(flags ...string) func() {
			return func() {
				if err := exec.Command(program, append([]string{"report", file, "-o", out}, flags...)...).Run(); err != nil {
					t.Error(err)
				}
			}
		}
		mine()()
		took := timed(5, mine(), mine("--no-inline"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		start := time.Now()
		err := exec.CommandContext(ctx, "perf", "script", "-i", file).Run()
		perf, ended := time.Since(start), ctx.Err() == nil
		cancel()
		if err != nil && ended {
			t.Error(err)
		}
		memory, err := anonymous(exec.Command(program, "report", file, "-o", out))
		if err != nil {
			t.Error(err)
		}
		more := ""
		if !ended {
			more = "> "
		}
		cells = append(cells, []string{strings.TrimSuffix(filepath.Base(file), ".data"), fmt.Sprintf("%.2f", took[0].Seconds()), fmt.Sprintf("%.2f", took[1].Seconds()),
			fmt.Sprintf("%s%.2f", more, perf.Seconds()), fmt.Sprintf("%s%.1f", more, float64(perf)/float64(took[0])), fmt.Sprintf("%.0f", float64(memory)/1e6)})
	}
	return markdown(cells) + fmt.Sprintf("\nperf is given %.0f s a recording.\n", patience.Seconds())
}

// TestResultsStack measures what people wait for: stacks of processes and cores, and profiles with lines.
func TestResultsStack(t *testing.T) {
	measures(t)
	oracle.Need(t, "perf")
	var b strings.Builder
	fmt.Fprintf(&b, "# Stacks, names and lines\n\n`make results` writes this file. It was measured on %s.\n", machine())
	b.WriteString("Times are medians of whole commands, the peers' in turns with ours.\n")
	fmt.Fprintf(&b, "\n## Stacks of processes and cores\n\n%s\n## Profiles with lines and inlined functions\n\n%s", stackVerbResults(t), nameResults(t))
	publish(t, "stack.md", b.String())
}
