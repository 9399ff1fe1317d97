package shadow

import (
	"bufio"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is for what comes soon, unless something is broken.
const patience = 2 * time.Minute

// gone waits until a process is no more, or a zombie that nobody has waited for.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil {
			return
		}
		if _, state, _ := strings.Cut(string(b), ") "); strings.HasPrefix(state, "Z") {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}

// TestCancel ends an execution in the middle, in which there are a parent that waits and a child that runs for ever.
func TestCancel(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(build(t, "forever.c", "-static"))
	cmd.Stdout = w
	var pids []int
	go func() {
		pids = readPIDs(out)
		cancel()
	}()
	r, err := Run(ctx, cmd, Options{})
	if !errors.Is(err, context.Canceled) || r.Steps == 0 || r.Exit.Signal() != unix.SIGKILL {
		t.Errorf("%v after %d instructions; the command %s", err, r.Steps, r.How())
	}
	for _, pid := range pids {
		gone(t, pid)
	}
}

// TestEnd ends a program that runs for ever, and its child, after so many instructions.
func TestEnd(t *testing.T) {
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(build(t, "forever.c", "-static"))
	cmd.Stdout = w
	const steps = 100_000
	r, err := Run(t.Context(), cmd, Options{Steps: steps, End: true})
	if err != nil || r.Steps != steps || !r.Stopped || r.Cut || r.Exit.Signal() != unix.SIGKILL {
		t.Errorf("%v after %d instructions; the command %s", err, r.Steps, r.How())
	}
	w.Close()
	for _, pid := range readPIDs(out) {
		gone(t, pid)
	}
}

// readPIDs reads two numbers.
func readPIDs(f *os.File) (pids []int) {
	for s := bufio.NewScanner(f); len(pids) < 2 && s.Scan(); {
		pid, _ := strconv.Atoi(s.Text())
		pids = append(pids, pid)
	}
	return pids
}

// TestKilled kills the tracer: nothing may be left behind.
func TestKilled(t *testing.T) {
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "verify", build(t, "forever.c", "-static"))
	cmd.Stdout = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	pids := readPIDs(out)
	cmd.Process.Kill()
	cmd.Wait()
	if len(pids) != 2 {
		t.Fatalf("it wrote %v, not two numbers", pids)
	}
	for _, pid := range pids {
		gone(t, pid)
	}
}

// TestTargetKilled kills programs at any moment: with threads, children, handlers.
func TestTargetKilled(t *testing.T) {
	path := build(t, "jumps.c", "-static", "-pthread")
	rnd := rand.New(rand.NewPCG(1, 1))
	for range 5 {
		cmd := exec.Command(path)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		after := uint64(rnd.IntN(60)) * 1024
		n := uint64(0)
		o := Options{Progress: func(uint64, uint64) {
			if n += 4096; n > after {
				unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
			}
		}}
		if r, err := Run(t.Context(), cmd, o); err != nil || !r.Exit.Signaled() && !r.Exit.Exited() {
			t.Errorf("%v, %s", err, r.How())
		}
	}
}

// TestParallel executes two programs at a time, in one process that has other children.
func TestParallel(t *testing.T) {
	path, wrong := planted(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if r, err := Run(t.Context(), exec.Command(path), Options{}); err != nil || len(r.Findings) != len(wrong) || r.Exit != 0 {
				t.Errorf("%v: %d findings", err, len(r.Findings))
			}
		})
	}
	for range 20 {
		if err := exec.Command("true").Run(); err != nil {
			t.Error(err)
		}
	}
	wg.Wait()
}

// TestForeign executes a 32-bit program, which runs on by itself.
func TestForeign(t *testing.T) {
	path := build(t, "i386.s", "-m32", "-nostdlib", "-static")
	if exec.Command(path).Run().Error() != "exit status 7" {
		t.Skip("this kernel has no 32-bit programs")
	}
	if r := execute(t, Options{}, path); !r.Foreign {
		t.Errorf("it was taken for 64-bit code: %d instructions", r.Steps)
	}
}

// TestNone runs what there is not.
func TestNone(t *testing.T) {
	if _, err := Run(t.Context(), exec.Command("/nowhere/at/all"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Run(/nowhere/at/all) = %v, want %v", err, os.ErrNotExist)
	}
}
