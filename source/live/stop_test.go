package live

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ptrace"
	"github.com/unspool/unspool/unwind"
)

// released checks that nobody traces a process, and that none of its threads has stopped if held is false, or that all have if it
// is true.
func released(t *testing.T, pid int, held bool) {
	t.Helper()
	eventually(t, "the process is untraced and as it was", func() bool {
		tids, err := procfs.Threads(pid)
		if err != nil || len(tids) == 0 {
			t.Fatalf("process %d has gone: %v", pid, err)
		}
		for _, tid := range tids {
			tracer, state := procfs.Status(tid, "TracerPid"), procfs.Status(tid, "State")
			if state == "" {
				continue // the thread has gone
			}
			if tracer != "0" || state[0] == 't' || (state[0] == 'T') != held {
				return false
			}
		}
		return true
	})
}

// All threads are there, whole, and go on; so do those that run, and threads that start while others are stopped. Those that were
// stopped stay so.
func TestStop(t *testing.T) {
	for _, args := range [][]string{{"threads", "50", "3"}, {"busy", "5"}, {"churn", "5"}} {
		t.Run(args[0], func(t *testing.T) {
			pid := start(t, exec.Command(work(t), args...))
			for range 10 {
				p, pause := look(t, pid, Options{})
				stacks := walked(p)
				if pause.Threads == 0 || pause.Total < pause.Longest || p.PID != pid || p.Threads[0].TID != pid || len(p.Command) != 1+len(args) || p.Exe == "" {
					t.Errorf("%+v, %d, %q, %q, %v", pause, p.PID, p.Exe, p.Command, p.Threads[0].TID)
				}
				if args[0] == "threads" && len(stacks) != 51 || args[0] == "busy" && len(stacks) != 6 || len(stacks) < 6 {
					t.Errorf("%d threads", len(stacks))
				}
				for _, s := range stacks {
					// A thread that is just starting is in code without information.
					if s.err != nil || s.stop != unwind.Outermost && args[0] == "threads" || len(s.frames) == 0 {
						t.Errorf("a thread of %q is %+v, want frames and no error; in threads, outermost", args, s)
					}
				}
				released(t, pid, false)
			}
			stopAll(t, pid)
			p, pause := look(t, pid, Options{})
			if pause.Threads != 0 || pause.Total != 0 || len(p.Threads) < 6 {
				t.Errorf("%+v of %d threads", pause, len(p.Threads))
			}
			released(t, pid, true)
			syscall.Kill(pid, syscall.SIGCONT)
			released(t, pid, false)
		})
	}
}

// A thread that runs on another stack is seen with its own, as that was when it was stopped.
func TestOtherStacks(t *testing.T) {
	for what, caller := range map[string]string{"altstack": "main", "thread-altstack": "start_thread", "own": "to_own main", "thread-own": "to_own start_thread"} {
		p, _ := look(t, start(t, exec.Command(work(t), what)), Options{})
		for _, s := range walked(p) {
			if s.late > 0 || s.stop != unwind.Outermost {
				t.Errorf("%s: %v", what, s)
			}
		}
		if s := walked(p)[len(p.Threads)-1]; !strings.Contains(s.names(), caller) {
			t.Errorf("%s: %v, want %s", what, s, caller)
		}
	}
}

// The memory for all stacks is there before threads are stopped, and it is not much more than they need.
func TestExpect(t *testing.T) {
	for _, depth := range []string{"10", "1000"} {
		x, err := newTarget(start(t, exec.Command(work(t), "threads", "50", depth)))
		if err != nil {
			t.Fatal(err)
		}
		defer x.mem.Close()
		defer x.maps.Close()
		if _, err := x.list(); err != nil {
			t.Fatal(err)
		}
		expected, got := 0, 0
		eventually(t, "all threads wait", func() bool { return strings.Trim(states(x.pid), "S") == "" })
		expected = x.expect()
		if _, err := x.stop(); err != nil {
			t.Fatal(err)
		}
		for _, th := range x.threads {
			got += len(th.stack.Bytes)
		}
		if got > expected || expected > got+51*2*slack {
			t.Errorf("depth %s: %d bytes, %d expected", depth, got, expected)
		}
	}
}

// Without stopping, blocked threads are as they are when stopped, and of others it is said that they run.
func TestNoPause(t *testing.T) {
	pid := start(t, exec.Command(work(t), "threads", "10", "20"))
	var without []stack
	with := steady(t, pid, func() {
		eventually(t, "all threads wait again", func() bool { return strings.Trim(states(pid), "S") == "" })
		p, pause := look(t, pid, Options{NoPause: true})
		if pause != (Pause{}) {
			t.Errorf("Open(%d, NoPause) has %+v, want no pause", pid, pause)
		}
		without = walked(p)
	})
	if pcs(with) != pcs(without) {
		t.Errorf("%v\nwant %v", without, with)
	}
	pid = start(t, exec.Command(work(t), "busy", "3"))
	p, _ := look(t, pid, Options{NoPause: true})
	runs := 0
	for _, th := range p.Threads {
		if th.Err != nil && strings.Contains(th.Err.Error(), "it runs") {
			runs++
		}
	}
	if runs == 0 || len(p.Threads) != 4 {
		t.Errorf("%d of %d run", runs, len(p.Threads))
	}
}

// A first thread that has exited is reported, and the others are there.
func TestZombieLeader(t *testing.T) {
	pid := start(t, exec.Command(work(t), "zombie"))
	eventually(t, "the first thread has exited", func() bool { return strings.HasPrefix(procfs.Status(pid, "State"), "Z") })
	p, pause := look(t, pid, Options{})
	if len(p.Threads) != 2 || p.Threads[0].Err == nil || p.Threads[1].Err != nil || pause.Threads != 1 {
		t.Errorf("%+v %+v", p.Threads, pause)
	}
}

// Processes that end, execute others or are killed while they are looked at are an error or what there was of them.
func TestMoving(t *testing.T) {
	pid := start(t, exec.Command(work(t), "exec"))
	for range 50 {
		if _, _, err := Open(pid, Options{Mods: set().Module}); err != nil && !strings.HasPrefix(err.Error(), "process ") {
			t.Error(err)
		}
	}
	released(t, pid, false)
	for i := range 20 {
		pid := start(t, exec.Command(work(t), "threads", "10", "1"))
		killed := make(chan struct{})
		go func() {
			defer close(killed)
			for range i * 1000 {
				runtime.Gosched()
			}
			syscall.Kill(pid, syscall.SIGKILL)
		}()
		p, _, err := Open(pid, Options{Mods: set().Module})
		if err == nil {
			walked(p)
		} else if !strings.HasPrefix(err.Error(), "process ") {
			t.Error(err)
		}
		<-killed
	}
}

// A process that has executed another program since its files were opened is looked at again.
func TestReplaced(t *testing.T) {
	pid := start(t, exec.Command("sh", "-c", "trap 'exec sleep 1000' USR1; echo up; while :; do sleep 0.01; done"))
	old, err := newTarget(pid)
	if err != nil {
		t.Fatal(err)
	}
	defer old.mem.Close()
	defer old.maps.Close()
	syscall.Kill(pid, syscall.SIGUSR1)
	eventually(t, "sleep is executed", func() bool { return procfs.Status(pid, "Name") == "sleep" })
	if _, err := old.stop(); !errors.Is(err, errReplaced) {
		t.Errorf("stop of what is another program now = %v, want %v", err, errReplaced)
	}
	released(t, pid, false)
}

// A process that executes one program after another is seen, in whichever it is, or the error says what it does.
func TestExecutes(t *testing.T) {
	script := filepath.Join(t.TempDir(), "again")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ $1 ] || echo up\nexec \"$0\" again\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	pid := start(t, exec.Command(script))
	const times = 200
	seen := 0
	for range times {
		if _, _, err := Open(pid, Options{Mods: func(string, string) *unwind.Module { return unwind.NewModule("", "", nil) }}); err == nil {
			seen++
		} else if !errors.Is(err, errReplaced) {
			t.Error(err)
		}
	}
	if seen == 0 {
		t.Errorf("process %d, which executes programs all the time, was seen in none of %d attempts", pid, times)
	}
}

// Errors say what can be done.
func TestRefused(t *testing.T) {
	check := func(pid int, want string) {
		t.Helper()
		if _, _, err := Open(pid, Options{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("process %d: %v, want %q", pid, err, want)
		}
	}
	check(0, "no such process")
	check(1999999999, "no such process")
	check(os.Getpid(), "unspool itself")
	if procfs.KernelThread(2) {
		check(2, "kernel thread")
	} else if procfs.Status(2, "Name") == "kthreadd" {
		stat, err := os.ReadFile("/proc/2/stat")
		t.Errorf("kthreadd, process 2, is no kernel thread: Kthread is %q, stat %q (%v)", procfs.Status(2, "Kthread"), stat, err)
	}
	dead := exec.Command("true")
	if err := dead.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has exited", func() bool { return strings.HasPrefix(procfs.Status(dead.Process.Pid, "State"), "Z") })
	check(dead.Process.Pid, "it has exited")
	dead.Wait()

	pid := start(t, exec.Command(work(t), "read"))
	done := make(chan struct{})
	ready := make(chan error)
	go ptrace.Do(func() {
		ready <- ptrace.Seize(pid, 0)
		<-done
	})
	if err := <-ready; err != nil {
		t.Fatal(err)
	}
	check(pid, fmt.Sprintf("process %d (", os.Getpid()))
	eventually(t, "it is seen without stopping it", func() bool {
		p, _ := look(t, pid, Options{NoPause: true})
		return len(p.Threads) == 1 && p.Threads[0].Err == nil
	})
	close(done)
}

// asHelper, in the environment, is the process that a test binary looks at again and again.
const asHelper = "UNSPOOL_TEST_LOOK"

// If unspool is killed at any moment, nothing stays stopped.
func TestKilled(t *testing.T) {
	if pid := os.Getenv(asHelper); pid != "" {
		var n int
		fmt.Sscan(pid, &n)
		for i := 0; ; i++ {
			if _, _, err := Open(n, Options{}); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				fmt.Println("looking")
			}
		}
	}
	pid := start(t, exec.Command(work(t), "threads", "50", "3"))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 30 {
		cmd := exec.Command(self, "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", asHelper, pid))
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		bufio.NewReader(out).ReadString('\n')
		time.Sleep(time.Duration(i) * 371 * time.Microsecond) // at any moment
		cmd.Process.Kill()
		if err := cmd.Wait(); !errors.As(err, new(*exec.ExitError)) {
			t.Errorf("Wait of a killed process = %v, want an ExitError", err)
		}
		released(t, pid, false)
	}
}

// An ordinary user is told that a process is another user's, and looks at his own.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("for root")
	}
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "unspool-nobody")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	bin := dir + "/test"
	if err := errors.Join(os.WriteFile(bin, self, 0o755), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	nobody := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	sleeper := exec.Command("sleep", "1000")
	sleeper.SysProcAttr = nobody
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleeper.Wait()
	defer sleeper.Process.Kill()
	cmd := exec.Command(bin, "-test.run=^TestAsNobody$", "-test.v")
	cmd.Dir, cmd.SysProcAttr = dir, nobody
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", asNobody, sleeper.Process.Pid), "UNSPOOL_CACHE="+dir+"/none", "HOME="+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

const asNobody = "UNSPOOL_TEST_NOBODY"

// TestAsNobody is part of TestOrdinaryUser.
func TestAsNobody(t *testing.T) {
	var own int
	if _, err := fmt.Sscan(os.Getenv(asNobody), &own); err != nil {
		t.Skip("part of TestOrdinaryUser")
	}
	if _, _, err := Open(1, Options{}); err == nil || !strings.Contains(err.Error(), "another user (0): run unspool as that user or as root") || !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.EPERM) {
		t.Errorf("Open(1) = %v, want that it is another user's", err)
	}
	p, _, err := Open(own, Options{Mods: set().Module})
	if err != nil {
		scope, _ := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
		if len(scope) == 0 || scope[0] == '0' {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if s := walked(p); len(s) != 1 || s[0].stop != unwind.Outermost {
		t.Errorf("Open(%d) has %+v, want one thread, outermost", own, s)
	}
}
