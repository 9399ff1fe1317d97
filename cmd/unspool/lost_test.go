package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
)

// lostOf returns how many samples a summary says were lost.
func lostOf(t *testing.T, text string) string {
	t.Helper()
	m := regexp.MustCompile(`([0-9,]+) lost`).FindStringSubmatch(text)
	if m == nil {
		t.Fatalf("no word of losses: %s", text)
	}
	return m[1]
}

// TestLossesAreWritten stops a recorder for a while. What it says it lost is in its file: report says the same, and perf.
func TestLossesAreWritten(t *testing.T) {
	canRecord(t)
	prog := filepath.Join(t.TempDir(), "faults")
	oracle.Need(t, "gcc")
	c := exec.Command("gcc", "-O1", "-x", "c", "-o", prog, "-")
	c.Stdin = strings.NewReader(`#include <fcntl.h>
#include <sys/mman.h>
static void faults(int n) {
	for (; n > 0; n -= 1024) {
		char *p = mmap(0, 1 << 22, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(p, 1 << 22, MADV_NOHUGEPAGE);
		for (int i = 0; i < 1 << 22; i += 4096) p[i] = 1;
		munmap(p, 1 << 22);
	}
}
int main(int argc, char **argv) {
	faults(5000);
	open(argv[1], O_CREAT | O_WRONLY, 0600);
	faults(300000); // more than any ring has room for
	open(argv[2], O_CREAT | O_WRONLY, 0600);
	faults(5000);
	return argc == 0;
}`)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, from := range []string{"perf", "ebpf"} {
		if from == "ebpf" && os.Geteuid() != 0 {
			continue
		}
		begun, enough := filepath.Join(t.TempDir(), "begun"), filepath.Join(t.TempDir(), "enough")
		c := program(t, "record", "--source", from, "-e", "page-faults", "-c", "1", "-o", "x.data", "--", prog, begun, enough)
		var text strings.Builder
		c.Stderr = &text
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		until(t, "the first faults", func() bool { _, err := os.Stat(begun); return err == nil })
		c.Process.Signal(unix.SIGSTOP)
		until(t, "enough of them", func() bool { _, err := os.Stat(enough); return err == nil })
		c.Process.Signal(unix.SIGCONT)
		if err := c.Wait(); err != nil {
			t.Errorf("%s: %v\n%s", from, err, text.String())
		}
		lost := lostOf(t, text.String())
		if lost == "0" {
			t.Errorf("--source %s: nothing was lost: %s", from, text.String())
		}
		r := program(t, "report", "x.data")
		r.Dir = c.Dir
		if again := finish(t, r); lostOf(t, again.out) != lost {
			t.Errorf("--source %s: record lost %s, report says %.300s", from, lost, again.out)
		}
		if _, err := exec.LookPath("perf"); err != nil {
			continue
		}
		file, sum := filepath.Join(c.Dir, "x.data"), uint64(0)
		events, err := exec.Command("perf", "script", "-i", file, "-F", "time", "--show-lost-events").Output()
		if err != nil {
			t.Error(err)
		}
		samples, err := exec.Command("perf", "report", "--stdio", "-g", "none", "--no-children", "--sort", "comm", "-i", file).Output()
		if err != nil {
			t.Error(err)
		}
		for _, m := range regexp.MustCompile(`PERF_RECORD_LOST lost (\d+)|# Total Lost Samples: (\d+)`).FindAllSubmatch(append(events, samples...), -1) {
			var n uint64
			fmt.Sscan(string(m[1])+string(m[2]), &n)
			sum += n
		}
		if fmt.Sprint(sum) != strings.ReplaceAll(lost, ",", "") {
			t.Errorf("--source %s: record lost %s, perf counts %d", from, lost, sum)
		}
	}
}

// TestStarvedTracer: where this program gets no processor while it samples by ptrace, the samples that it could not take count as lost, whether
// the command goes on afterwards or has ended.
func TestStarvedTracer(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "spin")
	c := exec.Command("gcc", "-O1", "-x", "c", "-o", prog, "-")
	c.Stdin = strings.NewReader(`#include <fcntl.h>
#include <stdlib.h>
#include <time.h>
static double used(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec / 1e9; }
int main(int argc, char **argv) {
	double end = used() + atof(argv[2]);
	open(argv[1], O_CREAT | O_WRONLY, 0600);
	while (used() < end)
		for (volatile int i = 0; i < 10000; i++)
			;
	return argc == 0;
}`)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	// How much processor time the command has while this program is stopped: all that it takes, or less. A lack of less than three standard
	// deviations, 33 of 119 samples, would be taken for chance.
	for seconds, missed := range map[string]time.Duration{"0.6": time.Hour, "1.2": 500 * time.Millisecond} {
		begun := filepath.Join(t.TempDir(), "begun")
		rec := program(t, "record", "--source", "ptrace", "-F", "99", "-o", "x.folded", "--", prog, begun, seconds)
		wait := begin(t, rec)
		for _, err := os.Stat(begun); err != nil; _, err = os.Stat(begun) {
			time.Sleep(time.Millisecond)
		}
		if err := rec.Process.Signal(unix.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("pgrep", "-P", fmt.Sprint(rec.Process.Pid)).Output()
		if err != nil {
			t.Fatal(err)
		}
		command := "/proc/" + strings.TrimSpace(string(out))
		// ran returns the command's processor time, and whether it is a zombie. One that has just been asked to stop waits for this program, which
		// has to go on then.
		ran := func() (d time.Duration, ended bool) {
			stat, err1 := os.ReadFile(command + "/stat")
			sched, err2 := os.ReadFile(command + "/schedstat")
			if err1 != nil || err2 != nil {
				t.Fatalf("%s: stat: %v, schedstat: %v", command, err1, err2)
			}
			fmt.Sscan(string(sched), (*int64)(&d))
			if strings.Contains(string(stat), ") t ") {
				rec.Process.Signal(unix.SIGCONT)
				time.Sleep(20 * time.Millisecond)
				rec.Process.Signal(unix.SIGSTOP)
			}
			return d, strings.Contains(string(stat), ") Z ")
		}
		from, ended := ran()
		for now := from; !ended && now-from < missed; now, ended = ran() {
			time.Sleep(10 * time.Millisecond)
		}
		if err := rec.Process.Signal(unix.SIGCONT); err != nil {
			t.Fatal(err)
		}
		r := wait()
		var samples, lost int
		m := regexp.MustCompile(`x.folded: ([0-9,]+) samples?`).FindStringSubmatch(r.stderr)
		if m == nil {
			t.Fatalf("record says\n%s\nwant the number of samples in x.folded", r.stderr)
		}
		fmt.Sscan(m[1], &samples)
		fmt.Sscan(lostOf(t, r.stderr), &lost)
		var used float64
		fmt.Sscan(seconds, &used)
		// Where other programs have the processor too, the timer falls on this one by chance.
		if want := used * 99; lost == 0 || float64(samples+lost) < want*0.6 || float64(samples+lost) > want*1.4+2 {
			t.Errorf("%s s of processor time at 99 Hz: %d samples and %d lost\n%s", seconds, samples, lost, r.stderr)
		}
		t.Logf("%s s: %d samples, %d lost", seconds, samples, lost)
	}
}
