package main

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// BenchmarkStackCore prints the stacks of a core of 100 threads with names, here, with eu-stack and with gdb, and reports how
// many times longer those take. All files are in the page cache, and this program's tables in its own.
func BenchmarkStackCore(b *testing.B) {
	oracle.Need(b, "eu-stack", "gdb")
	p := stackProgram{ready: true, pausing: true}
	exe := crashProgram(b)
	core := p.gdbCore(b, []string{exe, "threads", "99"})
	self, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	env := append(os.Environ(), asProgram+"=1", "UNSPOOL_CACHE="+b.TempDir(), "DEBUGINFOD_URLS=")
	took := map[string]time.Duration{}
	for _, t := range []struct {
		name string
		args []string
	}{
		{"unspool", []string{self, "stack", core, exe}},
		{"unspool-raw", []string{self, "stack", "--raw", core, exe}},
		{"eu-stack", []string{"eu-stack", "--core", core, "-e", exe}},
		{"gdb", []string{"gdb", "-batch", "-nx", "-ex", "thread apply all bt", exe, core}},
	} {
		b.Run(t.name, func(b *testing.B) {
			run := func() {
				c := exec.Command(t.args[0], t.args[1:]...)
				c.Env = env
				if out, err := c.Output(); err != nil || len(out) < 100*40 {
					b.Fatalf("%q: %v\n%s", t.args, err, out)
				}
			}
			run()
			b.ResetTimer()
			for range b.N {
				run()
			}
			took[t.name] = b.Elapsed() / time.Duration(b.N)
			if ours := took["unspool"]; ours > 0 {
				b.ReportMetric(float64(took[t.name])/float64(ours), "×unspool")
			}
		})
	}
}
