package procfs

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestSetting(t *testing.T) {
	if n, ok := Setting("kernel/pid_max"); !ok || n < 300 {
		t.Errorf("Setting(kernel/pid_max) = %d, %v", n, ok)
	}
	for _, path := range []string{"kernel/no_such_setting", "kernel/ostype", "kernel"} {
		if n, ok := Setting(path); ok {
			t.Errorf("Setting(%s) = %d, want none", path, n)
		}
	}
}

// TestGone: a process is gone when its parent has heard of its end, and not before.
func TestGone(t *testing.T) {
	c := exec.Command("cat")
	in, err := c.StdinPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	pids := []int32{1, int32(os.Getpid()), int32(c.Process.Pid)}
	if gone := Gone(pids); len(gone) > 0 {
		t.Errorf("%d of %d are gone", gone, pids)
	}
	in.Close()
	if err := c.Wait(); err != nil {
		t.Fatal(err)
	}
	if gone := Gone(pids); !slices.Equal(gone, pids[2:]) {
		t.Errorf("%d of %d are gone, want the last", gone, pids)
	}
}

func TestMounted(t *testing.T) {
	if at := Mounted("proc"); at != "/proc" {
		t.Errorf("Mounted(proc) = %q, want /proc", at)
	}
	if at := Mounted("no-such-file-system"); at != "" {
		t.Errorf("Mounted(no-such-file-system) = %q, want none", at)
	}
}

func TestThreadsUntil(t *testing.T) {
	for _, stop := range []bool{false, true} {
		tids, err := ThreadsUntil(os.Getpid(), func() bool { return stop })
		if err != nil || (len(tids) == 0) != stop {
			t.Errorf("stop %v: threads %v, %v", stop, tids, err)
		}
	}
}
