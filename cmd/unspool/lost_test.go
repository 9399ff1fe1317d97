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
	c.Stdin = strings.NewReader(`#include <sys/mman.h>
#include <time.h>
int main(void) {
	struct timespec t;
	do {
		char *p = mmap(0, 1 << 22, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		madvise(p, 1 << 22, MADV_NOHUGEPAGE);
		for (int i = 0; i < 1 << 22; i += 4096) p[i] = 1;
		munmap(p, 1 << 22);
		clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	} while (t.tv_sec < 1);
	return 0;
}`)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, from := range []string{"perf", "ebpf"} {
		if from == "ebpf" && os.Geteuid() != 0 {
			continue
		}
		c := program(t, "record", "--source", from, "-e", "page-faults", "-c", "1", "-o", "x.data", "--", prog)
		var text strings.Builder
		c.Stderr = &text
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		untilWorked(t, c.Process.Pid, 200*time.Millisecond)
		c.Process.Signal(unix.SIGSTOP)
		untilWorked(t, c.Process.Pid, 700*time.Millisecond) // of a second
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
