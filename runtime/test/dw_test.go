package test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
)

// dwLibrary builds the library in front of libdw and returns its path.
func dwLibrary(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	if _, err := os.Stat("/usr/include/elfutils/libdwfl.h"); err != nil {
		oracle.Lacks(t, "libdw-dev")
	}
	return filepath.Join(built(t, "gcc", "", "dw"), "libunspool-dw.so")
}

// dwTarget starts testdata/dw_target.c, which waits to be looked at. It returns its process and its file.
func dwTarget(t *testing.T) (pid int, exe string) {
	t.Helper()
	exe = filepath.Join(t.TempDir(), "target")
	if out, err := exec.Command("gcc", "-std=c11", "-O1", "-pthread", "-o", exe, "testdata/dw_target.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(exe)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return cmd.Process.Pid, exe
}

// dwCounts is what the library says at the end.
var dwCounts = regexp.MustCompile(`libunspool-dw: walks (\d+), frames (\d+), repaired (\d+), left to libdw (\d+)\n`)

// euStack runs eu-stack and returns what it prints, the library's counts apart.
func euStack(t *testing.T, env []string, args ...string) (text string, counts []string) {
	t.Helper()
	cmd := exec.Command("eu-stack", args...)
	cmd.Env = append(stockEnv(), env...)
	var out, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &stderr
	err := cmd.Run()
	counts = dwCounts.FindStringSubmatch(stderr.String())
	return fmt.Sprintf("%s%s%v\n", &out, dwCounts.ReplaceAllString(stderr.String(), ""), err), counts
}

// TestDwStack: eu-stack prints the same about a process and about its core dump, in both modes, and libdw walks nothing.
func TestDwStack(t *testing.T) {
	oracle.Need(t, "eu-stack", "gcore")
	lib := dwLibrary(t)
	pid, exe := dwTarget(t)
	process := []string{"-p", fmt.Sprint(pid)}
	if text, _ := euStack(t, nil, process...); !strings.Contains(text, " compare\n") {
		oracle.Lacks(t, "the permission to trace: "+text)
	}
	core := filepath.Join(t.TempDir(), "core")
	if out, err := exec.Command("gcore", "-o", core, fmt.Sprint(pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, args := range [][]string{process, {"--core", fmt.Sprintf("%s.%d", core, pid), "-e", exe}, {"-n", "3", "-p", fmt.Sprint(pid)}} {
		stock, _ := euStack(t, nil, args...)
		if strings.Count(stock, "#") < 6 {
			t.Errorf("%v: stock prints %s", args, stock)
		}
		for _, env := range [][]string{{"UNSPOOL_STRICT=1"}, {"UNSPOOL_CACHE=/nonexistent"}, nil} {
			got, counts := euStack(t, append(slices.Clone(env), "LD_PRELOAD="+lib, "UNSPOOL_STATS=1"), args...)
			if got != stock {
				t.Errorf("%v %v:\n got\n%s want\n%s", args, env, got, stock)
			}
			if counts == nil || counts[1] != "2" || counts[2] != fmt.Sprint(strings.Count(stock, "#")) || counts[4] != "0" {
				t.Errorf("%v %v: %q, and %d frames are printed", args, env, counts, strings.Count(stock, "#"))
			}
		}
	}
}

// TestDwRun: unspool run preloads the library for eu-stack, and says what it is linked with.
func TestDwRun(t *testing.T) {
	oracle.Need(t, "eu-stack")
	dwLibrary(t)
	lib, exe := dropIn(t, "gcc"), unspool(t)
	for program, want := range map[string]string{"eu-stack": "libdw.so.1\n", "true": "none\n"} {
		if out, err := exec.Command(exe, "run", "--which", "--", program).CombinedOutput(); string(out) != want || err != nil {
			t.Errorf("%s: %q, %v", program, out, err)
		}
	}
	pid, _ := dwTarget(t)
	cmd := exec.Command(exe, "run", "--runtime", lib, "--", "eu-stack", "-p", fmt.Sprint(pid))
	cmd.Env = append(stockEnv(), "UNSPOOL_STATS=1", "UNSPOOL_CACHE="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if !strings.Contains(string(out), " compare\n") {
		oracle.Lacks(t, fmt.Sprintf("the permission to trace: %v\n%s", err, out))
	}
	if c := dwCounts.FindSubmatch(out); err != nil || c == nil || string(c[4]) != "0" {
		t.Errorf("%v\n%s", err, out)
	}
	none := t.TempDir()
	if err := os.Symlink(filepath.Join(lib, "libunwind-x86_64.so.8"), filepath.Join(none, "libunwind-x86_64.so.8")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(exe, "run", "--runtime", none, "--", "eu-stack", "-p", "1").CombinedOutput(); err == nil || !strings.Contains(string(out), "walks with libdw.so.1") {
		t.Errorf("without the library: %v\n%s", err, out)
	}
}

// TestDwRandom: in strict mode, walks through stacks of random contents are libdw's, to the frame and to the reason of their end.
func TestDwRandom(t *testing.T) {
	lib := dwLibrary(t)
	all := places(t)
	snaps := snapshots(rand.New(rand.NewPCG(11, 12)), all, 20_000)
	walk := func() []oracle.Chain { return walked(t, oracle.Dwfl(t), all, snaps) }
	t.Setenv("LD_PRELOAD", "")
	stock := walk()
	t.Setenv("LD_PRELOAD", lib)
	t.Setenv("UNSPOOL_STRICT", "1")
	ours := walk()
	t.Setenv("LD_PRELOAD", "")
	frames, bad := 0, map[string]int{}
	for i := range stock {
		a, b := &ours[i], &stock[i]
		frames += len(b.PC)
		if slices.Equal(a.PC, b.PC) && slices.Equal(a.Exact, b.Exact) && a.Stop == b.Stop {
			continue
		}
		why := fmt.Sprintf("stop %q, stock %q", a.Stop, b.Stop)
		if bad[why]++; bad[why] <= 2 {
			t.Errorf("stack %d: %s\n got  %#x %v\n want %#x %v\n regs %#x", i, why, a.PC, a.Exact, b.PC, b.Exact, snaps[i].Regs)
		}
	}
	t.Logf("%d stacks, %d frames; differences: %v", len(stock), frames, bad)
}

// TestDwBegin: a program that begins a Dwfl for each walk, as perf does, is told the same in strict mode: modules, frames, registers, errors.
// libdw 0.188 has no rbx, and rax instead: both are left out.
func TestDwBegin(t *testing.T) {
	lib := dwLibrary(t)
	exe := filepath.Join(t.TempDir(), "begin")
	if out, err := exec.Command("gcc", "-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o", exe, "testdata/dw_begin.c", "-ldw", "-lelf").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files := []string{"/bin/true", "/bin/bash"}
	for _, name := range []string{"libc.so.6", "libm.so.6", "libdw.so.1", "libstdc++.so.6"} {
		files = append(files, filepath.Join("/usr/lib/x86_64-linux-gnu", name))
	}
	for _, f := range files {
		if _, err := os.Stat(f); err != nil {
			oracle.Lacks(t, f)
		}
	}
	for seed := range 8 {
		run := func(env ...string) (string, []string) {
			cmd := exec.Command(exe, append([]string{fmt.Sprint(seed), "1000"}, files...)...)
			cmd.Env = append(stockEnv(), env...)
			var out, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("seed %d, %v: %v\n%s", seed, env, err, &stderr)
			}
			return out.String(), dwCounts.FindStringSubmatch(stderr.String())
		}
		stock, _ := run()
		ours, counts := run("LD_PRELOAD="+lib, "UNSPOOL_STRICT=1", "UNSPOOL_STATS=1")
		if counts == nil {
			t.Errorf("seed %d: the library was not used", seed)
		}
		a, b := strings.Split(ours, "\n"), strings.Split(stock, "\n")
		for i := range b {
			if i >= len(a) || a[i] != b[i] {
				t.Errorf("seed %d, line %d:\n got %s\nwant %s", seed, i+1, a[min(i, len(a)-1)], b[i])
				break
			}
		}
		if len(a) > len(b) {
			t.Errorf("seed %d: %d lines, stock has %d", seed, len(a), len(b))
		}
	}
}

// dwPerf is a perf that is linked with libdw only: $UNSPOOL_PERF_LIBDW, or built now, which takes minutes.
func dwPerf(t *testing.T) string {
	t.Helper()
	if perf := os.Getenv("UNSPOOL_PERF_LIBDW"); perf != "" {
		return perf
	}
	oracle.Need(t, "make", "gcc", "flex", "bison", "xz")
	if _, err := os.Stat("/usr/src/linux-source-6.1.tar.xz"); err != nil {
		oracle.Lacks(t, "linux-source-6.1")
	}
	dir := once(t, "perf with libdw only", func(dir string) error {
		out, err := exec.Command("./perf-libdw.sh", dir).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w\n%s", err, out[max(0, len(out)-4096):])
		}
		return nil
	})
	return filepath.Join(dir, "perf")
}

// TestDwPerf: a perf that is linked with libdw only prints the same on the library in strict mode, byte for byte.
func TestDwPerf(t *testing.T) {
	oracle.Full(t)
	lib, files, perf := dwLibrary(t), recordings(t), dwPerf(t)
	for _, file := range files {
		if name := filepath.Base(file); name != "gxx.data" && name != "hackbench.data" && name != "signals.data" {
			continue
		}
		run := func(env ...string) (string, []string) {
			cmd := exec.Command(perf, "script", "--no-inline", "-i", file)
			cmd.Env = append(stockEnv(), env...)
			var out, stderr strings.Builder
			cmd.Stdout, cmd.Stderr = &out, &stderr
			if err := cmd.Run(); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, &stderr)
			}
			t.Logf("%s %v: %v", filepath.Base(file), env, cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime())
			return out.String(), dwCounts.FindStringSubmatch(stderr.String())
		}
		stock, _ := run()
		ours, counts := run("LD_PRELOAD="+lib, "UNSPOOL_STATS=1", "UNSPOOL_STRICT=1")
		if ours != stock {
			t.Errorf("%s: %d bytes differ from stock's %d", file, len(ours), len(stock))
		}
		if counts == nil {
			t.Errorf("%s: the library was not used", file)
		} else {
			t.Logf("%s: %s", filepath.Base(file), strings.TrimSpace(counts[0]))
		}
		if ours, counts = run("LD_PRELOAD="+lib, "UNSPOOL_STATS=1"); counts == nil || len(ours) < len(stock) {
			t.Errorf("%s: by default %d bytes, stock %d; %q", file, len(ours), len(stock), counts)
		}
	}
}
