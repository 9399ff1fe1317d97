package lab

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfdata"
	"github.com/unspool/unspool/source/perfevent"
)

// A wait is a time for which a thread was blocked, ns.
type wait struct{ begin, end uint64 }

// perfSwitches has perf record all that the scheduler does until stop is called, which returns the waits of each thread, and how many
// events perf has lost. The thread's last wait, which does not end, has the end 0.
func perfSwitches(t *testing.T) (stop func() (waits map[int32][]wait, lost uint64)) {
	t.Helper()
	oracle.Need(t, "perf")
	oracle.Need(t, "unshare")
	file := filepath.Join(t.TempDir(), "perf.data")
	// perf finds tracepoints where tracefs is mounted.
	inside := func(args ...string) *exec.Cmd {
		return exec.Command("unshare", append([]string{"-m", "sh", "-c", `mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing; exec "$@"`, "sh"}, args...)...)
	}
	// perf begins when it is told to, and says when it has: until then, on a busy machine, it can take seconds.
	ctl, tell, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.Close()
	t.Cleanup(func() { tell.Close() })
	answers, ack, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer ack.Close()
	t.Cleanup(func() { answers.Close() })
	rec := inside("perf", "record", "-q", "-a", "-e", "sched:sched_switch", "-c", "1", "-k", "CLOCK_MONOTONIC", "-m", "8192", "-D", "-1", "--control", "fd:3,4", "-o", file)
	rec.ExtraFiles = []*os.File{ctl, ack}
	var complaints bytes.Buffer
	rec.Stderr = &complaints
	if err := rec.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { rec.Process.Kill(); rec.Wait() })
	ack.Close() // so that the end of perf is the end of its answers
	if _, err := tell.WriteString("enable\n"); err != nil {
		t.Fatal(err)
	}
	if answer, err := bufio.NewReader(answers).ReadString('\n'); answer != "ack\n" {
		rec.Process.Kill()
		rec.Wait()
		t.Fatalf("perf record answers %q, %v\n%s", answer, err, complaints.Bytes())
	}
	return func() (waits map[int32][]wait, lost uint64) {
		t.Helper()
		rec.Process.Signal(syscall.SIGINT)
		if err := rec.Wait(); err != nil && rec.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGINT {
			t.Fatalf("perf record: %v\n%s", err, complaints.Bytes())
		}
		script := inside("perf", "script", "-i", file, "--ns", "-F", "time,event,trace")
		out, err := script.StdoutPipe()
		if err == nil {
			err = script.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		waits, lost = map[int32][]wait{}, lostBy(t, file)
		field := func(line, name string) string {
			_, s, _ := strings.Cut(line, name+"=")
			s, _, _ = strings.Cut(s, " ")
			return strings.TrimSpace(s)
		}
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			line := lines.Text()
			stamp, _, ok := strings.Cut(strings.TrimSpace(line), ":")
			sec, frac, _ := strings.Cut(stamp, ".")
			s, err := strconv.ParseUint(sec, 10, 64)
			ns, err2 := strconv.ParseUint(frac, 10, 64)
			if !ok || err != nil || err2 != nil || len(frac) != 9 {
				continue
			}
			now := s*1e9 + ns
			prev, _ := strconv.Atoi(field(line, "prev_pid"))
			next, _ := strconv.Atoi(field(line, "next_pid"))
			if w := waits[int32(next)]; len(w) > 0 && w[len(w)-1].end == 0 {
				w[len(w)-1].end = now
			}
			if state := field(line, "prev_state"); strings.HasPrefix(state, "S") || strings.HasPrefix(state, "D") {
				if w := waits[int32(prev)]; len(w) > 0 && w[len(w)-1].end == 0 {
					// It went on elsewhere, by another processor's clock, before it blocked.
					waits[int32(prev)] = w[:len(w)-1]
				}
				waits[int32(prev)] = append(waits[int32(prev)], wait{begin: now})
			}
		}
		if err := script.Wait(); err != nil {
			t.Fatal(err)
		}
		return waits, lost
	}
}

// lostBy returns how many events a recording says were lost: by the kernel's rings, or by the events' own counts, which perf script does not
// print (PERF_RECORD_LOST_SAMPLES).
func lostBy(t *testing.T, path string) (lost uint64) {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	f, err := perfdata.New(in, path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for {
		raw, _, err := f.Next()
		if err == io.EOF {
			return lost
		}
		var r source.Record
		if err == nil {
			err = f.Decoder().Decode(raw, &r)
		}
		if err != nil {
			t.Fatal(err)
		}
		if r.Type == source.RecordLost || r.Type == source.RecordLostSamples {
			lost += r.Lost
		}
	}
}

// TestOffCPUComplete: on a machine that is busy, each wait of each thread is there, as long as it was.
func TestOffCPUComplete(t *testing.T) {
	needKernel(t)
	prog := compiled(t, "gcc", "sleeps.c", "-pthread")
	for run := 1; ; run++ {
		// Others can take all of the processors for so long that a ring is full. It has room for the last run's waits.
		if lost := offCPUComplete(t, prog, 40, shortly(500, 2500)/run); lost == 0 {
			return
		}
		if run == busyRuns {
			t.Fatal("waits, or perf's events, are lost each time")
		}
	}
}

// offCPUComplete returns how many waits the program counts as lost, and events perf. No others may be.
func offCPUComplete(t *testing.T, prog string, threads, sleeps int) (lost int) {
	t.Helper()
	stop := perfSwitches(t)
	got := map[int32][]wait{}
	st, ks := kernelRecording(t, ebpf.Options{}, perfevent.Options{Event: perfevent.OffCPU, Command: []string{prog, fmt.Sprint(threads), fmt.Sprint(sleeps), "2"}}, func(s *source.Sample) error {
		if s.Comm == "sleeps" {
			got[s.TID] = append(got[s.TID], wait{s.Time - s.Period, s.Time})
		}
		return nil
	})
	judge, unjudged := stop()
	if unjudged > 0 {
		t.Logf("perf has lost %d events, and does not know all waits", unjudged)
		return int(unjudged)
	}
	n, missing, off, extra := 0, 0, 0, 0
	for tid, mine := range got {
		theirs := judge[tid]
		for len(theirs) > 0 && len(mine) > 0 && theirs[0].end < mine[0].begin {
			theirs = theirs[1:] // before it was of the program
		}
		for len(theirs) > 0 && theirs[len(theirs)-1].end == 0 {
			theirs = theirs[:len(theirs)-1]
		}
		i := 0
		for _, w := range theirs {
			n++
			for i < len(mine) && mine[i].end <= w.begin {
				if extra++; extra < 10 {
					t.Logf("thread %d: %d ns at %d, which perf has not; its next is at %d", tid, mine[i].end-mine[i].begin, mine[i].begin, w.begin)
				}
				i++
			}
			// Waits follow each other within microseconds: it is this one if it has most of it.
			if i == len(mine) || mine[i].begin >= w.end || 2*(min(mine[i].end, w.end)-max(mine[i].begin, w.begin)) < w.end-w.begin {
				if missing++; missing < 10 {
					t.Logf("thread %d: missing %d ns at %d", tid, w.end-w.begin, w.begin)
				}
				continue
			}
			near := max(10_000, (w.end-w.begin)/100)
			if diff(mine[i].begin, w.begin) > near || diff(mine[i].end, w.end) > near {
				if off++; off < 10 {
					t.Logf("thread %d: %v, perf has %v", tid, mine[i], w)
				}
			}
			i++
		}
		extra += len(mine) - i
	}
	t.Logf("%d waits: %d missing, %d not as long, %d that perf has not; lost %d, %d, %d and %d", n, missing, off, extra, st.Lost+st.LostSamples, ks.RingFull, ks.Nested, ks.Forgotten)
	lost = int(st.Lost + st.LostSamples + ks.Lost())
	if n < threads*sleeps && extra > 0 && missing == 0 {
		t.Logf("the threads slept %d times: perf lacks events, and does not say so", threads*sleeps)
		return lost + extra
	}
	if n < threads*sleeps*99/100 && lost == 0 { // one that is preempted on its way to sleep may not block
		t.Errorf("%d waits of %d", n, threads*sleeps)
	}
	// perf and the program look at the clock one after the other. Seldom, something interrupts in between.
	if missing > lost || extra > 0 || off > n/2000 {
		t.Errorf("%d missing, %d not as long, %d too many of %d", missing, off, extra, n)
	}
	return lost
}

func diff(a, b uint64) uint64 { return max(a, b) - min(a, b) }
