package main

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// TestWakers: above a wait is who ended it, from the function that did to its thread's beginning: one that wrote to a pipe, one that held a
// mutex. A sleep ends by an interrupt, and nothing of what that interrupted is there.
func TestWakers(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "wakes")
	gcc := exec.Command("gcc", "-O1", "-pthread", "-x", "c", "-o", prog, "-")
	gcc.Stdin = strings.NewReader(`#include <pthread.h>
#include <time.h>
#include <unistd.h>
static int fds[2];
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
__attribute__((noipa)) static void nap(long ns) { struct timespec t = {0, ns}; nanosleep(&t, 0); }
__attribute__((noipa)) static void *reader(void *p) { char c; while (read(fds[0], &c, 1) == 1); return p; }
__attribute__((noipa)) static int feeder(void) { char c = 0; return write(fds[1], &c, 1) == 1; }
__attribute__((noipa)) static void *locker(void *p) { for (;;) { pthread_mutex_lock(&mu); pthread_mutex_unlock(&mu); nap(300000); } return p; }
__attribute__((noipa)) static int releaser(void) { return pthread_mutex_unlock(&mu) == 0; }
__attribute__((noipa)) static void *sleeper(void *p) { for (;;) nap(1000000); return p; }
int main(void) {
	pthread_t a, b, c;
	if (pipe(fds)) return 1;
	pthread_create(&a, 0, reader, 0); pthread_create(&b, 0, locker, 0); pthread_create(&c, 0, sleeper, 0);
	for (;;) {
		pthread_mutex_lock(&mu);
		nap(1000000);
		if (!releaser() || !feeder()) return 1;
		nap(500000);
	}
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
	rec := program(t, "record", "--off-cpu", "--wakers", "-p", fmt.Sprint(c.Process.Pid), "--duration", "3s", "-o", "x.data")
	finish(t, rec).want(t, 0, "whole")
	rep := program(t, "report", "--format", "jsonl", "x.data")
	rep.Dir = rec.Dir
	out := finish(t, rep)

	// Stacks as folded text, from the outermost frame: the wait, who ended it, and that one's stack upside down.
	waits := map[string][]string{}
	for line := range strings.Lines(out.out) {
		var s struct{ Frames []struct{ Sym string } }
		if err := json.Unmarshal([]byte(line), &s); err != nil || len(s.Frames) == 0 {
			continue
		}
		stack := ""
		for _, f := range s.Frames {
			stack = f.Sym + ";" + stack
		}
		for _, w := range []string{";reader;.*pipe_read", ";locker;.*lock_wait;", ";sleeper;.*nanosleep"} {
			if regexp.MustCompile(w).MatchString(stack) {
				waits[w] = append(waits[w], stack)
			}
		}
	}
	for w, want := range map[string]string{
		";reader;.*pipe_read":  `;\[woken by wakes\];.*pipe_write;.*write;feeder;main;.*_start;$`,
		";locker;.*lock_wait;": `;\[woken by wakes\];.*futex_wake;.*releaser;main;.*_start;$`,
		";sleeper;.*nanosleep": `;\[woken by an interrupt\];[^\[]*hrtimer_wakeup;[^\[]*sysvec_apic_timer_interrupt;$`,
	} {
		re, good, other := regexp.MustCompile(want), 0, ""
		for _, s := range waits[w] {
			if re.MatchString(s) {
				good++
			} else {
				other = s
			}
		}
		if n := len(waits[w]); n < 100 || good*100 < n*99 {
			t.Errorf("%s: %d of %d waits are ended as by %s; one that is not: %s", w, good, n, want, other)
		}
	}
	table := program(t, "report", "x.data")
	table.Dir = rec.Dir
	if r := finish(t, table); !strings.Contains(r.out, "releaser") {
		t.Errorf("the table is without the waker:\n%s", r.out)
	}
	runProgram(t, "record", "--wakers", "--", "true").want(t, 2, "--wakers needs --off-cpu: only waits have wakers")
}
