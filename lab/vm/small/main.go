// Small is the load of a small virtual machine: an agent in a control group of its own, and beside it the programs in DIR/programs, all at once, of which one
// starts anew every few seconds. It watches the agent's memory, and prints its metrics at the end. The agent believes the tables in DIR/tables: they
// become root's.
//
//	small DIR TIME EVERY AGENT...
package main

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	group   = "/sys/fs/cgroup/agent"
	address = "127.0.0.1:7070"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: small DIR TIME EVERY AGENT...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(dir, length, every string, args []string) error {
	long, err := time.ParseDuration(length)
	if err != nil {
		return err
	}
	pause, err := time.ParseDuration(every)
	if err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(dir, "programs", "*"))
	if err != nil {
		return err
	}
	err = filepath.WalkDir(filepath.Join(dir, "tables"), func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(path, 0, 0)
	})
	if err != nil {
		return err
	}
	running := make([]*exec.Cmd, len(programs))
	start := func(i int) error {
		running[i] = exec.Command(programs[i], "3", "50")
		if err := running[i].Start(); err != nil {
			return err
		}
		return syscall.Setpriority(syscall.PRIO_PROCESS, running[i].Process.Pid, 5)
	}
	if err := os.WriteFile("/sys/fs/cgroup/cgroup.subtree_control", []byte("+memory"), 0); err != nil {
		return err
	}
	if err := os.Mkdir(group, 0o755); err != nil {
		return err
	}
	in, err := os.Open(group)
	if err != nil {
		return err
	}
	defer in.Close()
	agent := exec.Command(args[0], append(args[1:], "--listen", address)...)
	agent.Stderr = os.Stderr
	agent.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(in.Fd())}
	if err := agent.Start(); err != nil {
		return err
	}
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, agent.Process.Pid, -10); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- agent.Wait() }()

	for wait := 10 * time.Minute; ; { // all is emulated: the start takes a minute
		err := answers("/readyz")
		if err == nil {
			break
		}
		if wait -= time.Second; wait < 0 {
			return fmt.Errorf("the agent is not ready: %w", err)
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the agent has ended: %v", err)
		case <-time.After(time.Second):
		}
	}
	for i := range programs { // which are read from the disk, one after another
		if err := start(i); err != nil {
			return err
		}
		time.Sleep(100 * time.Millisecond)
	}
	r := rand.New(rand.NewPCG(1, 1))
	ticks := time.NewTicker(pause)
	most, mostKernel, least := 0, 0, 1<<62
	report := time.Now()
	for end := time.Now().Add(long); time.Now().Before(end); {
		select {
		case err := <-ended:
			return fmt.Errorf("the agent has ended: %v", err)
		case <-ticks.C:
		}
		i := r.IntN(len(programs))
		running[i].Process.Kill()
		running[i].Wait()
		if err := start(i); err != nil {
			return err
		}
		own, kernel := number(group+"/memory.stat", "anon"), number(group+"/memory.stat", "kernel")
		most, mostKernel = max(most, own), max(mostKernel, kernel)
		least = min(least, number("/proc/meminfo", "MemAvailable:"))
		if time.Since(report) > time.Minute {
			report = time.Now()
			fmt.Fprintf(os.Stderr, "%s: %d KiB of its own, %d of the kernel, %d available\n", time.Until(end).Round(time.Second), own>>10, kernel>>10, number("/proc/meminfo", "MemAvailable:"))
		}
	}
	response, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(os.Stdout, response.Body); err != nil {
		return err
	}
	alive := 0
	for i := range running {
		if running[i].Process.Signal(syscall.Signal(0)) == nil {
			alive++
		}
	}
	fmt.Printf("\nown_bytes %d\nkernel_bytes %d\nlimit_bytes %d\navailable_bytes %d\nkilled %d\nprograms %d\n", most, mostKernel, number("/proc/meminfo", "MemTotal:")<<10/4,
		least<<10, number("/proc/vmstat", "oom_kill"), alive)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	agent.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("the agent does not end: %w", ctx.Err())
	}
}

// answers says why the agent does not answer that all is well.
func answers(path string) error {
	client := http.Client{Timeout: 10 * time.Second}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		return err
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(r.Body, 1<<10))
		return fmt.Errorf("%s: %s", r.Status, text)
	}
	return nil
}

// number returns the number behind a name of a file, and 0 where it is not there.
func number(path, name string) int {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == name {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}
