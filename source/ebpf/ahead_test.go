package ebpf

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// TestFilesOf: what a command maps when it starts is known before, through scripts, too.
func TestFilesOf(t *testing.T) {
	prog := compile(t, "int main(void) { return 0; }")
	dir := filepath.Dir(prog)
	script := filepath.Join(dir, "script")
	if err := os.WriteFile(script, []byte("#!"+prog+" -x\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	loop := filepath.Join(dir, "loop")
	if err := os.WriteFile(loop, []byte("#!"+loop+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{prog, "x"}, {script}} {
		got := filesOf(command)
		has := func(part string) bool {
			return slices.ContainsFunc(got, func(f string) bool { return strings.Contains(f, part) })
		}
		if len(got) < 3 || got[0] != prog || !has("libc.so") && !has("libc-") || !has("/ld-") {
			t.Errorf("%v: %v", command, got)
		}
	}
	for _, command := range [][]string{nil, {"/nonexistent"}, {loop}, {"/proc/self/mem"}} {
		if got := filesOf(command); len(got) > 1 {
			t.Errorf("%v: %v", command, got)
		}
	}
}

// TestAhead: the tables of a command are in the kernel before it starts.
func TestAhead(t *testing.T) {
	prog := compile(t, "int main(void) { return 0; }")
	p := load(t, Options{Command: []string{prog}})
	if n := p.Stats().Tables; n < 3 { // of the program, libc and ld.so
		t.Errorf("%d tables", n)
	}
}

// TestDeepStart: stacks of 300 frames and 50 KB are whole from the first sample of a command on.
func TestDeepStart(t *testing.T) {
	prog := compile(t, `#include <time.h>
static volatile unsigned long sum;
__attribute__((noipa)) static void work(void) {
	struct timespec t;
	do { for (volatile int i = 0; i < 20000; i++); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_nsec < 30000000);
}
__attribute__((noipa)) static void down(int d) {
	volatile char frame[120];
	frame[d & 63] = (char)d;
	if (d) down(d - 1); else work();
	sum += (unsigned long)frame[d & 63];
}
int main(void) { down(300); return 0; }`)
	n, whole, copied := 0, 0, 0
	for range 12 {
		p := load(t, Options{Command: []string{prog}})
		record(t, p, perfevent.Options{Command: []string{prog}, User: true, Frequency: 3999}, func(s *source.Sample) {
			if s.From == source.NoStack {
				return
			}
			n++
			if s.Stop == unwind.Outermost {
				whole++
			}
			if s.Record.ID != source.WalkedID {
				copied++
			}
		})
		p.Close()
	}
	t.Logf("%d samples, %d whole, %d by copies", n, whole, copied)
	if n < 500 || n-whole > n/1000 {
		t.Errorf("%d of %d stacks are whole", whole, n)
	}
}

// A patient is a Program whose recording waits for longer than others do until it knows the processes that there are: on a busy machine their tables
// take long to be made.
type patient struct{ *Program }

func (p patient) Begin(records []byte) <-chan struct{} {
	known := p.Program.Begin(records)
	select {
	case <-known:
	case <-time.After(time.Minute):
	}
	return known
}

// TestKnownFirst: a recording of a process that runs begins when the kernel has its tables, even those that are made only then. No stack is copied.
func TestKnownFirst(t *testing.T) {
	prog := compile(t, fmt.Sprintf("int made_%d; int main(void) { for (volatile long i = 0;; i++); }", time.Now().UnixNano())) // has no table
	c := exec.Command(prog)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	for until := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) { // it has mapped all that it maps
		var ns int64
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", c.Process.Pid))
		if fmt.Sscan(string(b), &ns); ns > int64(50*time.Millisecond) {
			break
		}
		if time.Now().After(until) {
			t.Fatalf("process %d has computed for %v in a minute, want 50ms", c.Process.Pid, time.Duration(ns))
		}
	}
	p := load(t, Options{})
	n, copied := 0, 0
	record(t, patient{p}, perfevent.Options{PIDs: []int{c.Process.Pid}, User: true, Frequency: 3999, Duration: time.Second / 2}, func(s *source.Sample) {
		if n++; s.Record.ID != source.WalkedID {
			copied++
		}
	})
	t.Logf("%d samples, %d by copies", n, copied)
	if n < 20 || copied > 0 {
		t.Errorf("of %d samples, %d are by copies", n, copied)
	}
}
