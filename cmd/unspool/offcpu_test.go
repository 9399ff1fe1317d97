package main

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestBlockedThroughout: threads that are blocked before, while and after a process is recorded are there, for as long as that was, with their whole
// stacks, of which the scheduler is no part; and it is said that they were blocked for longer.
func TestBlockedThroughout(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "prog")
	gcc := exec.Command("gcc", "-O1", "-pthread", "-x", "c", "-o", prog, "-")
	gcc.Stdin = strings.NewReader(`#include <pthread.h>
#include <time.h>
#include <unistd.h>
static int fds[2];
__attribute__((noipa)) static void *forever(void *p) { struct timespec t = {1000, 0}; nanosleep(&t, 0); return p; }
__attribute__((noipa)) static void *reader(void *p) { char c; return read(fds[0], &c, 1) < 0 ? p : 0; }
__attribute__((noipa)) static void *often(void *p) { struct timespec t = {0, 20000000}; for (;;) nanosleep(&t, 0); return p; }
int main(void) {
	pthread_t a, b, c;
	pipe(fds);
	pthread_create(&a, 0, forever, 0); pthread_create(&b, 0, reader, 0); pthread_create(&c, 0, often, 0);
	pthread_join(a, 0);
	return 0;
}`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := exec.Command(prog)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	untilBlocked(t, c.Process.Pid, 4)
	began := time.Now()
	rec := program(t, "record", "--off-cpu", "-p", fmt.Sprint(c.Process.Pid), "--duration", "3s", "-o", "x.data")
	r := finish(t, rec)
	took := time.Since(began)
	r.want(t, 0, "100.0 % whole")
	r.want(t, 0, "[34] waits had begun before the recording, [34] had not ended with it: time counts") // often can be between two
	rep := program(t, "report", "--format", "folded", "x.data")
	rep.Dir = rec.Dir
	out := finish(t, rep)
	for _, f := range []struct{ user, kernel string }{{"main", "futex"}, {"forever", "nanosleep"}, {"reader", "pipe_read"}, {"often", "nanosleep"}} {
		ns := 0
		for line := range strings.Lines(out.out) {
			if m := regexp.MustCompile(`;` + f.user + `;.*` + f.kernel + `\S* (\d+)\n`).FindStringSubmatch(line); m != nil {
				n := 0
				fmt.Sscan(m[1], &n)
				ns += n
			}
		}
		// The recording begins when the process is known, and a machine that is busy ends it late.
		if ns < 2_500e6 || time.Duration(ns) > took {
			t.Errorf("%s was blocked in %s for %.3f s of 3\n%s", f.user, f.kernel, float64(ns)/1e9, out.out)
		}
	}
	if strings.Contains(out.out, "schedule") {
		t.Errorf("the scheduler is in the stacks\n%s", out.out)
	}
}
