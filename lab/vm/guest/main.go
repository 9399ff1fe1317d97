// Guest is the first process of a virtual machine. It takes the steps in /steps.json, prints their results on the console, where
// package vm reads them, and switches the machine off.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/lab/vm"
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guest: this is to be the first process of a virtual machine")
		os.Exit(2)
	}
	if err := run(); err != nil {
		vm.Print(os.Stdout, vm.Result{Name: "init", Exit: -1, Stderr: []byte(err.Error())})
	}
	// The last result is on its way until the console has sent it, and a machine that is switched off sends nothing. What waits in the UART itself is not
	// waited for long: these are line ends then.
	fmt.Print(strings.Repeat("\n", 64))
	unix.IoctlSetInt(1, unix.TCSBRK, 1) // tcdrain
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// mounts are made where the kernel has the file system.
var mounts = []struct{ kind, dir string }{
	{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/dev/shm"},
	{"debugfs", "/sys/kernel/debug"}, {"tracefs", "/sys/kernel/tracing"}, {"cgroup2", "/sys/fs/cgroup"}, {"bpf", "/sys/fs/bpf"},
}

func run() error {
	for _, m := range mounts {
		os.MkdirAll(m.dir, 0o755)
		unix.Mount(m.kind, m.dir, m.kind, 0, "")
	}
	if err := load(); err != nil {
		return err
	}
	if err := loopback(); err != nil {
		return fmt.Errorf("the loopback interface: %w", err)
	}
	// The root is memory already.
	if err := errors.Join(os.MkdirAll("/tmp", 0o777), os.Chmod("/tmp", 0o1777)); err != nil {
		return err
	}
	for path, value := range map[string]string{
		"/proc/sys/kernel/printk":       "1", // or its messages come between the results
		"/proc/sys/kernel/core_pattern": "/tmp/core.%e",
	} {
		if err := os.WriteFile(path, []byte(value), 0); err != nil {
			return err
		}
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: unix.RLIM_INFINITY, Max: unix.RLIM_INFINITY}); err != nil {
		return err
	}
	b, err := os.ReadFile("/steps.json")
	if err != nil {
		return err
	}
	var steps []vm.Step
	if err := json.Unmarshal(b, &steps); err != nil {
		return err
	}
	pid := "0" // of the process started last
	var running []*exec.Cmd
	for _, s := range steps {
		if s.End {
			for _, cmd := range running {
				syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
				cmd.Wait()
			}
			running = nil
		}
		r, started := take(s, pid)
		if started != nil {
			running, pid = append(running, started), strconv.Itoa(started.Process.Pid)
		}
		if err := vm.Print(os.Stdout, r); err != nil {
			return err
		}
	}
	return nil
}

// loopback brings the interface lo up, which has 127.0.0.1 then.
func loopback() error {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	lo.SetUint16(unix.IFF_UP)
	return unix.IoctlIfreq(s, unix.SIOCSIFFLAGS, lo)
}

// load loads the modules in /modules, in the order of their names, and mounts the disk.
func load() error {
	modules, err := filepath.Glob("/modules/*")
	if err != nil {
		return err
	}
	for _, path := range modules {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	const disk = "/dev/vda"
	if _, err := os.Stat(disk); err != nil {
		return nil
	}
	if err := os.MkdirAll("/disk", 0o755); err != nil {
		return err
	}
	if err := unix.Mount(disk, "/disk", "ext4", 0, ""); err != nil {
		return fmt.Errorf("%s: %w", disk, err)
	}
	return nil
}

// take takes a step, for which $PID is pid. started is what goes on.
func take(s vm.Step, pid string) (_ vm.Result, started *exec.Cmd) {
	began := time.Now()
	r := vm.Result{Name: s.Name}
	fail := func(err error) (vm.Result, *exec.Cmd) {
		r.Exit = -1
		r.Stderr = append(r.Stderr, err.Error()...)
		return r, started
	}
	var args []string
	for _, a := range s.Args {
		args = append(args, strings.ReplaceAll(a, "$PID", pid))
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append([]string{"PATH=/bin", "HOME=/tmp"}, s.Env...)
	cmd.Dir = "/tmp"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if s.User != 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(s.User), Gid: uint32(s.User)}
	}
	if s.Cgroup != "" {
		if err := os.MkdirAll(s.Cgroup, 0o755); err != nil {
			return fail(err)
		}
		dir, err := os.Open(s.Cgroup)
		if err != nil {
			return fail(err)
		}
		defer dir.Close()
		cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(dir.Fd())
	}
	var stdout, stderr bytes.Buffer
	cmd.Stderr = &stderr
	if s.Start {
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return fail(err)
		}
		started = cmd
		// Its first output says that it is where the next steps want it.
		b := make([]byte, 4096)
		n, err := out.Read(b)
		r.Stdout = b[:n]
		if err != nil {
			return fail(err)
		}
		// Each thread has a niceness of its own, which threads that it starts inherit.
		tids, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
		for _, tid := range tids {
			n, _ := strconv.Atoi(tid.Name())
			if e := unix.Setpriority(unix.PRIO_PROCESS, n, s.Nice); e != unix.ESRCH { // it has ended
				err = errors.Join(err, e)
			}
		}
		if err != nil {
			return fail(err)
		}
		r.PID = cmd.Process.Pid
		r.Seconds = time.Since(began).Seconds()
		return r, started
	}
	cmd.Stdout = &stdout
	if err := cmd.Start(); err != nil {
		return fail(err)
	}
	timeout := time.AfterFunc(time.Duration(s.Seconds*float64(time.Second)), func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	})
	err := cmd.Wait()
	if !timeout.Stop() {
		r.Stderr = fmt.Appendf(nil, "killed after %v s\n", s.Seconds)
	}
	r.Seconds = time.Since(began).Seconds()
	r.Stdout, r.Stderr = stdout.Bytes(), append(r.Stderr, stderr.Bytes()...)
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		r.Exit = exit.ExitCode()
	case err != nil:
		return fail(err)
	}
	for _, path := range s.Files {
		b, err := os.ReadFile(path)
		if err != nil {
			return fail(err)
		}
		if r.Files == nil {
			r.Files = map[string][]byte{}
		}
		r.Files[path] = b
	}
	return r, nil
}
