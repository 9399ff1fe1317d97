package ptrace

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asTracer, in the environment, is the process that a test binary traces until it kills itself.
const asTracer = "UNSPOOL_TEST_TRACE"

// A signal that a tracer was told of and has not passed on when it is killed is delivered all the same.
func TestKilled(t *testing.T) {
	var pid int
	if _, err := fmt.Sscan(os.Getenv(asTracer), &pid); err == nil {
		Do(func() {
			err := errors.Join(Seize(pid, 0), unix.Kill(pid, unix.SIGUSR1))
			for err == nil {
				var s Stop
				if s, _, err = Next(pid); s.Signal() == unix.SIGUSR1 {
					unix.Kill(os.Getpid(), unix.SIGKILL)
				}
				Nap()
			}
			t.Fatal(err)
		})
	}
	c := exec.Command("sh", "-c", "trap 'echo got; exit' USR1; echo up; while :; do sleep 0.01; done")
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	defer time.AfterFunc(time.Minute, func() { c.Process.Kill() }).Stop()
	r := bufio.NewReader(out)
	if l, err := r.ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", l, err)
	}
	tracer := exec.Command("/proc/self/exe", "-test.run=^TestKilled$")
	tracer.Env = append(os.Environ(), fmt.Sprintf("%s=%d", asTracer, c.Process.Pid))
	if b, err := tracer.CombinedOutput(); tracer.ProcessState == nil || tracer.ProcessState.String() != "signal: killed" {
		t.Fatalf("%v\n%s", err, b)
	}
	if l, err := r.ReadString('\n'); l != "got\n" {
		t.Errorf("the signal is lost: %q, %v", l, err)
	}
}
