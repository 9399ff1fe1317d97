package vm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// TestStrict records programs in a virtual machine of Debian for AArch64. Debian's perf, with the drop-ins in strict mode, prints the same bytes as
// with libunwind 1.8.1, also where return addresses are signed: wrong stacks, too. Not in strict mode, it prints others. perf script runs under
// qemu-user.
func TestStrict(t *testing.T) {
	oracle.Long(t)
	if list := os.Getenv("UNSPOOL_MACHINES"); list != "all" && !slices.Contains(strings.Fields(list), "trixie/arm64") {
		t.Skip("this test lacks UNSPOOL_MACHINES=all (make vms): it fetches Debian's perf")
	}
	oracle.Need(t, "qemu-system-aarch64", "qemu-aarch64", "aarch64-linux-gnu-gcc", "make")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	k := New("trixie", "arm64", oracle.Kernel(t, "trixie", "arm64"))
	dir := oracle.Debian(t, "trixie", "arm64", "perf", "linux-perf", "bash", "openssl", "libc-bin")
	root := tree(t, dir)
	if err := root.Init(ctx, "arm64"); err != nil {
		t.Fatal(err)
	}
	// The programs are at the same place in the machine and here.
	tmp := t.TempDir()
	commands := []string{"/usr/bin/openssl dgst -sha256 /usr/bin/perf"} // with signed return addresses, as all of Debian 13
	for i, flags := range []string{"-O2", "-O2 -fomit-frame-pointer -mbranch-protection=standard", "-O0"} {
		path := filepath.Join(tmp, fmt.Sprint("strict", i))
		if out, err := exec.Command("aarch64-linux-gnu-gcc", append(strings.Fields(flags), "-o", path, "testdata/strict.c")...).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if err := root.Copy(path, path); err != nil {
			t.Fatal(err)
		}
		commands = append(commands, path)
	}
	drop := filepath.Join(tmp, "drop")
	if out, err := exec.Command("make", "-s", "-C", "../../runtime", "CC=aarch64-linux-gnu-gcc", "BUILD="+drop).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var regs []string
	for i := range 30 {
		regs = append(regs, fmt.Sprint("x", i))
	}
	registers := "--user-regs=" + strings.Join(append(regs, "lr", "sp", "pc"), ",")
	var steps []Step
	for _, c := range commands {
		args := []string{"/usr/bin/perf", "record", "-q", registers, "-F", "299", "-e", "cpu-clock:u", "--call-graph", "dwarf,16384", "-o", "/tmp/perf.data", "--"}
		steps = append(steps, Step{Name: c, Args: append(args, strings.Fields(c)...), Seconds: 300, Files: []string{"/tmp/perf.data"}})
	}
	results, err := k.Boot(ctx, root, steps)
	if err != nil {
		t.Fatal(err)
	}
	lines, others := 0, 0
	for _, r := range results {
		recording := filepath.Join(tmp, "perf.data")
		if err := os.WriteFile(recording, r.Files["/tmp/perf.data"], 0o600); err != nil || r.Exit != 0 {
			t.Fatalf("%s: exit %d, %v\n%s", r.Name, r.Exit, err, r.Stderr)
		}
		script := func(env ...string) []byte {
			args := []string{"-s", "KILL", "200", "qemu-aarch64", "-cpu", "max", "-L", dir, "-E", "HOME=" + tmp}
			for _, e := range env {
				args = append(args, "-E", e)
			}
			args = append(args, filepath.Join(dir, "usr/bin/perf"), "script", "-i", recording, "--no-inline", "-F", "comm,pid,time,period,event,ip,sym,dso")
			out, err := exec.CommandContext(ctx, "timeout", args...).Output()
			if err != nil {
				t.Fatalf("perf script, %s, %q: %v", r.Name, env, err)
			}
			return out
		}
		stock, strict := script(), script("LD_LIBRARY_PATH="+drop, "UNSPOOL_STRICT=1")
		if !bytes.Equal(stock, strict) {
			a, b := strings.Split(string(stock), "\n"), strings.Split(string(strict), "\n")
			i := 0
			for i < len(a) && i < len(b) && a[i] == b[i] {
				i++
			}
			t.Errorf("%s: line %d of %d and %d\n got:  %s\n want: %s", r.Name, i+1, len(b), len(a), strings.Join(b[max(i-8, 0):min(i+3, len(b))], "\n"), strings.Join(a[max(i-8, 0):min(i+3, len(a))], "\n"))
		}
		if !bytes.Equal(stock, script("LD_LIBRARY_PATH="+drop)) {
			others++
		}
		t.Logf("%s (%.1f s): %d lines", r.Name, r.Seconds, bytes.Count(stock, []byte("\n")))
		lines += bytes.Count(stock, []byte("\n"))
	}
	if lines < 500 || others == 0 {
		t.Errorf("%d lines; %d of %d recordings are others without strict mode", lines, others, len(results))
	}
}
