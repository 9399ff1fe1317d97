package main

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// until waits for something to be so.
func until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not in a minute", what)
		}
	}
}

// untilWorked waits until the processes that a process has started have run for so long, of processor time.
func untilWorked(t testing.TB, pid int, d time.Duration) {
	t.Helper()
	until(t, fmt.Sprintf("the command has run for %v", d), func() bool {
		var ran time.Duration
		lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, list := range lists {
			children, _ := os.ReadFile(list)
			for _, child := range strings.Fields(string(children)) {
				ran += processorTime(child)
			}
		}
		return ran >= d
	})
}

// untilComputed waits until a process has run for so long from now on, of processor time.
func untilComputed(t testing.TB, pid int, d time.Duration) {
	t.Helper()
	from := processorTime(strconv.Itoa(pid))
	until(t, fmt.Sprintf("process %d has run for %v", pid, d), func() bool { return processorTime(strconv.Itoa(pid)) >= from+d })
}

// forSamples is how long what is recorded has to run for samples: the kernel's program waits up to two seconds for tables, its events being open.
const forSamples = 2500 * time.Millisecond

func processorTime(pid string) (ran time.Duration) {
	stat, _ := os.ReadFile("/proc/" + pid + "/stat")
	if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 12 {
		for _, ticks := range f[11:13] { // utime, stime, in hundredths of a second
			n, _ := strconv.Atoi(ticks)
			ran += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return ran
}

// untilRecording waits until a process has perf events open for each processor, and with them a signal's handler.
func untilRecording(t testing.TB, pid int) {
	t.Helper()
	until(t, "perf events are open", func() bool {
		n := 0
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, _ := os.Readlink(fd); to == "anon_inode:[perf_event]" {
				n++
			}
		}
		return n >= runtime.NumCPU()
	})
}

// untilBlocked waits until a process has so many threads, and each of them waits.
func untilBlocked(t testing.TB, pid, threads int) {
	t.Helper()
	until(t, fmt.Sprintf("%d threads wait", threads), func() bool {
		stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		for _, path := range stats {
			stat, _ := os.ReadFile(path)
			if !bytes.HasPrefix(stat[bytes.LastIndexByte(stat, ')')+1:], []byte(" S ")) {
				return false
			}
		}
		return len(stats) >= threads
	})
}

// TestRecordingBeforeNames: the first Ctrl-C puts the recording into its place, before names are looked for; the second ends that, and the
// recording is whole.
func TestRecordingBeforeNames(t *testing.T) {
	canRecord(t)
	asked, leave := atomic.Bool{}, make(chan bool)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { // which never answers
		asked.Store(true)
		select {
		case <-r.Context().Done():
		case <-leave:
		}
	}))
	defer server.Close()
	defer close(leave)
	spins := spinner(t).Process.Pid
	c := program(t, "record", "-p", fmt.Sprint(spins))
	c.Env = append(c.Env, "DEBUGINFOD_URLS="+server.URL, "DEBUGINFOD_CACHE_PATH="+t.TempDir())
	var text strings.Builder
	c.Stderr = &text
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	untilRecording(t, c.Process.Pid)
	untilComputed(t, spins, forSamples)
	file := filepath.Join(c.Dir, defaultRecording)
	if st, err := os.Stat(file); err == nil {
		t.Errorf("%s, of %d bytes, is in its place before the recording has ended", defaultRecording, st.Size())
	}
	began := time.Now()
	c.Process.Signal(os.Interrupt)
	until(t, "the recording", func() bool { _, err := os.Stat(file); return err == nil })
	t.Logf("the recording is there after %v", time.Since(began))
	until(t, "a name", asked.Load)
	time.Sleep(time.Until(began.Add(time.Second))) // what comes at once with the first is the first
	c.Process.Signal(os.Interrupt)
	c.Wait()
	if st := c.ProcessState.Sys().(syscall.WaitStatus); !st.Signaled() && st.ExitStatus() != 130 && st.ExitStatus() != 0 {
		t.Errorf("%v: %s", c.ProcessState, text.String())
	}
	r := runProgram(t, "report", file)
	if r.status != 0 || !strings.Contains(r.out, " samples of ") || strings.Contains(r.stderr, "truncated") {
		t.Errorf("status %d: %.300s\n%s", r.status, r.out, r.stderr)
	}
}

// TestHole: a program without a build ID that is a hole of 20 GiB does not hold a recording up.
func TestHole(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	prog := filepath.Join(t.TempDir(), "hole")
	c := exec.Command("gcc", "-O1", "-Wl,--build-id=none", "-x", "c", "-o", prog, "-")
	c.Stdin = strings.NewReader(`int main(void) { for (volatile long i = 0;; i++); }`)
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Truncate(prog, 20<<30); err != nil {
		t.Skipf("a file of 20 GiB: %v", err)
	}
	hole := exec.Command(prog)
	if err := hole.Start(); err != nil {
		t.Fatal(err)
	}
	defer hole.Wait()
	defer hole.Process.Kill()
	for _, from := range []string{"perf", "ebpf"} {
		if from == "ebpf" && os.Geteuid() != 0 {
			continue
		}
		c := program(t, "record", "--source", from, "-p", fmt.Sprint(hole.Process.Pid), "-o", "x.data")
		var text strings.Builder
		c.Stderr = &text
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		untilRecording(t, c.Process.Pid)
		untilComputed(t, hole.Process.Pid, forSamples)
		began := time.Now()
		c.Process.Signal(syscall.SIGTERM)
		c.Wait()
		took := time.Since(began)
		t.Logf("--source %s: %v, %s", from, took, text.String())
		if took > 10*time.Second || !regexp.MustCompile(`[1-9][0-9,]* samples`).MatchString(text.String()) { // to hash the hole takes longer
			t.Errorf("--source %s: it ended after %v: %s", from, took, text.String())
		}
	}
}
