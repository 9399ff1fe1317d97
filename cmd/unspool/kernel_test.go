package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// TestUprobe: each time that a program passes a uprobe is there, with a stack that is walked in the kernel.
func TestUprobe(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	oracle.Need(t, "gcc")
	oracle.Need(t, "nm")
	dir := t.TempDir()
	prog := filepath.Join(dir, "prog")
	gcc := exec.Command("gcc", "-O1", "-no-pie", "-x", "c", "-o", prog, "-")
	gcc.Stdin = strings.NewReader("__attribute__((noipa)) void probed(void) {}\nint main(void) { for (int i = 0; i < 100; i++) probed(); return 0; }")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command("nm", prog).Output()
	if err != nil {
		t.Fatal(err)
	}
	at := uint64(0)
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "probed" {
			at, _ = strconv.ParseUint(f[0], 16, 64)
		}
	}
	tracefs := t.TempDir() // one that can be written
	if err := unix.Mount("tracefs", tracefs, "tracefs", 0, ""); err != nil {
		oracle.Lacks(t, "tracefs: "+err.Error())
	}
	defer unix.Unmount(tracefs, unix.MNT_DETACH)
	define := func(s string) error {
		f, err := os.OpenFile(filepath.Join(tracefs, "uprobe_events"), os.O_WRONLY|os.O_APPEND, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteString(s + "\n")
		return err
	}
	name := "unspool_test/p" + strconv.Itoa(os.Getpid())
	if err := define("p:" + name + " " + prog + ":0x" + strconv.FormatUint(at-0x400000, 16)); err != nil {
		oracle.Lacks(t, "uprobes: "+err.Error())
	}
	defer func() {
		if err := define("-:" + name); err != nil {
			t.Error(err)
		}
	}()
	r := runProgram(t, "record", "-e", strings.Replace(name, "/", ":", 1), "-o", "x.folded", "--", prog)
	r.want(t, 0, "unspool: walking stacks in the kernel\n")
	r.want(t, 0, "100 samples · 100.0 % whole")
}

// What only the kernel's program can do says what it takes, in the words of the flag.
func TestKernelDenied(t *testing.T) {
	oracle.Long(t)
	at := procfs.Mounted("cgroup2")
	if at == "" {
		oracle.Lacks(t, "cgroup v2")
	}
	for _, args := range [][]string{{"--off-cpu"}, {"--cgroup", at}} {
		r := finish(t, as(t, "", append(append([]string{"record"}, args...), "-o", "x.folded", "--", "true")...))
		if r.status != 1 || !strings.Contains(r.stderr, "unspool: "+args[0]+" needs root (or CAP_BPF and CAP_PERFMON)\n") {
			t.Errorf("%v: %d: %s", args, r.status, r.stderr)
		}
	}
}
