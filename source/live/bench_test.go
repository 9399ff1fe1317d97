package live

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// asStack, in the environment, is the process whose stacks a test binary prints, as the command does.
const asStack = "UNSPOOL_TEST_STACK"

// TestPrint is part of BenchmarkStack.
func TestPrint(t *testing.T) {
	var pid int
	if _, err := fmt.Sscan(os.Getenv(asStack), &pid); err != nil {
		t.Skip("part of BenchmarkStack")
	}
	p, _ := look(t, pid, Options{})
	for _, s := range walked(p) {
		fmt.Println(s)
	}
}

// BenchmarkStack looks at a process of 100 threads of 15 frames each: in a process of its own each time, with names, beside
// eu-stack and gdb.
func BenchmarkStack(b *testing.B) {
	oracle.Need(b, "eu-stack", "gdb")
	pid := start(b, exec.Command(work(b), "threads", "100", "10"))
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	id := fmt.Sprint(pid)
	took := map[string][]time.Duration{}
	for b.Loop() {
		for name, args := range map[string][]string{
			"unspool":  {self, "-test.run=^TestPrint$", "-test.v"},
			"eu-stack": {"eu-stack", "-p", id},
			"gdb":      {"gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", "-p", id, "-ex", "thread apply all bt"},
		} {
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), asStack+"="+id)
			start := time.Now()
			if out, err := cmd.CombinedOutput(); err != nil {
				b.Fatalf("%v: %v\n%s", cmd, err, out)
			}
			took[name] = append(took[name], time.Since(start))
		}
	}
	for name, d := range took {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, "ms/"+name)
	}
	ours := float64(took["unspool"][b.N/2])
	b.ReportMetric(float64(took["eu-stack"][b.N/2])/ours, "eu-stack/unspool")
	b.ReportMetric(float64(took["gdb"][b.N/2])/ours, "gdb/unspool")
}

// BenchmarkPause says for how long 100 threads are stopped.
func BenchmarkPause(b *testing.B) {
	for _, depth := range []string{"10", "100", "1000"} {
		b.Run("depth="+depth, func(b *testing.B) {
			pid := start(b, exec.Command(work(b), "threads", "100", depth))
			var total, longest []time.Duration
			for b.Loop() {
				_, p := look(b, pid, Options{})
				if p.Threads != 101 {
					b.Fatalf("%+v", p)
				}
				total, longest = append(total, p.Total), append(longest, p.Longest)
			}
			slices.Sort(total)
			slices.Sort(longest)
			us := func(d time.Duration) float64 { return float64(d.Microseconds()) }
			b.ReportMetric(us(total[0]), "µs/pause-least")
			b.ReportMetric(us(total[len(total)/2]), "µs/pause-median")
			b.ReportMetric(us(total[len(total)*95/100]), "µs/pause-p95")
			b.ReportMetric(us(longest[len(longest)/2]), "µs/thread-median")
		})
	}
}
