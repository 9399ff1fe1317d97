package oracle

import (
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Contained compiles a C program into root as name, with flags, and runs it until the test ends with root as its root directory, and a PID namespace of
// its own; as root, with mounts of its own, too, so that the kernel names its files as a container's. It returns when the program has written its first byte; the program's standard input is a pipe, closed at the end. Where processes
// cannot be given another root directory the test is skipped.
func Contained(t testing.TB, root, name, source string, flags ...string) (pid int) {
	t.Helper()
	Need(t, "gcc")
	src := filepath.Join(t.TempDir(), "contained.c")
	if err := os.WriteFile(src, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	args := append([]string{"-static", "-Wl,--build-id", "-o", filepath.Join(root, name), src}, flags...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	cmd := exec.Command("/" + name)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWUSER}
	cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
	if os.Geteuid() == 0 {
		Need(t, "unshare", "mount", "pivot_root")
		cmd = exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", `{ mount --bind "$0" "$0" && cd "$0" && mkdir -p .host && pivot_root . .host; } || exit 77; exec "/$1"`, root, name)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skipf("a process cannot get another root directory here: %v", err)
	}
	t.Cleanup(func() { in.Close(); cmd.Process.Kill(); cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		if cmd.Wait(); cmd.ProcessState.ExitCode() == 77 {
			t.Skip("a process cannot get mounts of its own here")
		}
		t.Fatalf("the program in %s: %v", root, err)
	}
	return cmd.Process.Pid
}
