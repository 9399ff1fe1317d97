package perfevent

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// asNobody, in the environment, is the directory of the workload for a test binary that runs as an ordinary user.
const asNobody = "PERFEVENT_TEST_WORK"

// TestOrdinaryUser runs some of the tests again as a user with no rights, with the memory that it may lock set
// to nothing beyond kernel.perf_event_mlock_kb.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("for root")
	}
	dir := filepath.Dir(work(t))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := filepath.Join(dir, "test")
	b, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(bin, b, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	for _, limit := range []string{"0", "8192"} {
		cmd := exec.Command("/bin/sh", "-c", `ulimit -l `+limit+` && exec "$0" "$@"`, bin, "-test.run=^(TestCommand|TestCommandThreadsAndForks|TestProcess|TestThread|TestStop|TestEvents|TestAsNobody)$", "-test.v")
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), asNobody+"="+dir, "HOME="+dir, "TMPDIR="+dir)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("ulimit -l %s: %v\n%s", limit, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "RingSize") {
				t.Log(strings.TrimSpace(line))
			}
		}
	}
}

func init() {
	if dir := os.Getenv(asNobody); dir != "" {
		workload.once.Do(func() { workload.path = filepath.Join(dir, "work") })
	}
}

// TestAsNobody is part of TestOrdinaryUser.
func TestAsNobody(t *testing.T) {
	if os.Getenv(asNobody) == "" {
		t.Skip("part of TestOrdinaryUser")
	}
	level := paranoid()
	w := work(t)
	r := open(t, Options{Command: []string{w, "spin", "0.1"}})
	if level == "2" && !strings.Contains(r.EventNote(), "kernel.perf_event_paranoid=2: user space only") {
		t.Errorf("note %q", r.EventNote())
	}
	run(t, r)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{All: true, Duration: time.Second}, "sysctl kernel.perf_event_paranoid=0"},
		{Options{Kernel: true, Command: []string{w}}, "sysctl kernel.perf_event_paranoid=1"},
		{Options{Event: "context-switches", Command: []string{w}}, "sysctl kernel.perf_event_paranoid=1"},
		{Options{PIDs: []int{1}}, "another user"},
		{Options{Event: "sched:sched_switch", Command: []string{w}}, "tracefs"},
	} {
		if level != "2" {
			break
		}
		r, err := Open(context.Background(), c.o)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
		if r != nil {
			r.Close()
		}
	}
}
