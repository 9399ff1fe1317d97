package lab

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/module"
	"github.com/unspool/unspool/store"
)

// dropIn builds the drop-ins for libunwind and returns their directory.
func dropIn(t testing.TB) string {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	dir, err := os.MkdirTemp("", "dropin") // make's shell does not take the parentheses that a test's name may have
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if out, err := exec.Command("make", "-s", "-C", "../runtime", "BUILD="+dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return dir
}

// gcc compiles a program of workload.
func gcc(t testing.TB, source string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), strings.TrimSuffix(source, ".c"))
	args = append([]string{"-O2", "-Wall", "-Wextra", "-o", path, filepath.Join("workload", source)}, args...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", source, err, out)
	}
	return path
}

// storedTables returns a cache that has the tables of a recording's modules.
func storedTables(t testing.TB, file string) string {
	dir := filepath.Join(t.TempDir(), "cache")
	kept, err := store.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range modulesOf(t, file) {
		if img, err := module.OpenMapped(path); img != nil && err == nil {
			kept.Table(img)
			img.Close()
		}
	}
	return dir
}

// plainEnv is the environment without what chooses a library, and with more.
func plainEnv(more ...string) []string {
	return append(slices.DeleteFunc(os.Environ(), func(s string) bool {
		return strings.HasPrefix(s, "LD_LIBRARY_PATH=") || strings.HasPrefix(s, "LD_PRELOAD=") || strings.HasPrefix(s, "UNSPOOL_")
	}), more...)
}

// TestResultsDropIn measures the drop-ins in the place of libunwind, under stock perf and in a program that walks its own
// stack, and writes docs/results/dropin.md.
func TestResultsDropIn(t *testing.T) {
	measures(t)
	oracle.Need(t, "perf", "gcc", "make")
	text := fmt.Sprintf("# The drop-ins, measured\n\n`make results` writes this file. It was measured on %s. Times are medians of runs in turns.\n\n"+
		"## Stock perf\n\nSeconds of `perf script --no-inline`, by libunwind as it is installed; by the same with a cache of 32,768 entries and "+
		"`sigprocmask` for nothing; and by the drop-in, which makes its rules itself, or takes stored tables.\n\n%s\n"+
		"Of these, seconds in `unw_init_remote` and `unw_step`, perf's call-backs included.\n\n%s\n"+
		"## A process's own stack\n\nThe same program with libunwind.so.8 and with the drop-in. `work` is arithmetic: what two threads can gain on this machine. "+
		"Cold is the first walk of a forked child, most of which is page faults.\n\n%s",
		machine(), markdown(scriptTimes(t, 3)), markdown(stepTimes(t, 3)), markdown(localTimes(t, 7)))
	publish(t, "dropin.md", text)
}

// scriptTimes races stock perf with all libraries.
func scriptTimes(t testing.TB, rounds int) [][]string {
	lib, tuned := dropIn(t), gcc(t, "tuned.c", "-shared", "-fPIC")
	cells := [][]string{{"recording", "libunwind", "tuned", "drop-in", "drop-in, stored", "libunwind, × drop-in", "× stored", "tuned, × stored"}}
	for _, file := range recordings(t) {
		envs := [][]string{
			plainEnv(), plainEnv("LD_PRELOAD=" + tuned), plainEnv("LD_LIBRARY_PATH="+lib, "UNSPOOL_CACHE=/nonexistent"),
			plainEnv("LD_LIBRARY_PATH="+lib, "UNSPOOL_CACHE="+storedTables(t, file)),
		}
		var runs []func()
		for _, env := range envs {
			runs = append(runs, func() {
				cmd := exec.Command("perf", "script", "--no-inline", "-i", file)
				cmd.Env = env
				if err := cmd.Run(); err != nil {
					t.Errorf("%s: %v", file, err)
				}
			})
		}
		n := rounds
		start := time.Now()
		runs[2]() // the file comes into memory
		if took := time.Since(start); took < time.Second {
			n = 7 * rounds
		}
		took := timed(n, runs...)
		row := []string{strings.TrimSuffix(filepath.Base(file), ".data")}
		for _, d := range took {
			row = append(row, fmt.Sprintf("%.2f", d.Seconds()))
		}
		ratio := func(a, b int) string { return fmt.Sprintf("%.2f", took[a].Seconds()/took[b].Seconds()) }
		cells = append(cells, append(row, ratio(0, 2), ratio(0, 3), ratio(1, 3)))
	}
	return cells
}

// stepTimes measures what perf waits for the libraries.
func stepTimes(t testing.TB, rounds int) [][]string {
	lib, shim := dropIn(t), gcc(t, "steps.c", "-shared", "-fPIC")
	cells := [][]string{{"recording", "steps, libunwind", "drop-in", "s, libunwind", "drop-in", "drop-in, stored", "libunwind, × drop-in", "× stored"}}
	for _, file := range recordings(t) {
		out := filepath.Join(t.TempDir(), "steps")
		envs := [][]string{
			plainEnv(), plainEnv("LD_LIBRARY_PATH="+lib, "UNSPOOL_CACHE=/nonexistent"), plainEnv("LD_LIBRARY_PATH="+lib, "UNSPOOL_CACHE="+storedTables(t, file)),
		}
		steps, took := make([]int, len(envs)), make([][]float64, len(envs))
		for range rounds {
			for i, env := range envs {
				cmd := exec.Command("perf", "script", "--no-inline", "-i", file)
				cmd.Env = append(env, "LD_PRELOAD="+shim, "STEPS="+out)
				if err := cmd.Run(); err != nil {
					t.Fatalf("%s: %v", file, err)
				}
				b, err := os.ReadFile(out)
				if err != nil {
					t.Fatal(err)
				}
				var ns float64
				if _, err := fmt.Sscanf(string(b), "steps %d %f", &steps[i], &ns); err != nil {
					t.Fatalf("%q: %v", b, err)
				}
				took[i] = append(took[i], ns/1e9)
			}
		}
		row := []string{strings.TrimSuffix(filepath.Base(file), ".data"), fmt.Sprint(steps[0]), fmt.Sprint(steps[1])}
		for _, v := range took {
			row = append(row, fmt.Sprintf("%.4f", median(v)))
		}
		cells = append(cells, append(row, fmt.Sprintf("%.1f", median(took[0])/median(took[1])), fmt.Sprintf("%.1f", median(took[0])/median(took[2]))))
	}
	return cells
}

// localTimes runs workload/local.c with both libraries.
func localTimes(t testing.TB, rounds int) [][]string {
	prog, lib := gcc(t, "local.c", "-lunwind", "-pthread"), dropIn(t)
	var names []string
	values := [2]map[string][]float64{{}, {}}
	for range rounds {
		for i, env := range [][]string{plainEnv(), plainEnv("LD_LIBRARY_PATH=" + lib)} {
			cmd := exec.Command(prog)
			cmd.Env = env
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, stderr.Bytes())
			}
			for line := range strings.Lines(string(out)) {
				f := strings.Split(strings.TrimSpace(line), "\t")
				v, err := strconv.ParseFloat(f[len(f)-1], 64)
				if len(f) != 3 || err != nil {
					t.Fatalf("%q: %v", line, err)
				}
				name := f[0] + ", depth " + f[1]
				if values[i][name] == nil && i == 0 {
					names = append(names, name)
				}
				values[i][name] = append(values[i][name], v)
			}
		}
	}
	unit := map[string]string{"warm": "ns a frame", "cold": "µs", "faults": "page faults", "scale": "× one thread, by two"}
	slices.SortStableFunc(names, func(a, b string) int {
		order := "warm cold faults scale"
		return strings.Index(order, strings.Fields(a)[0]) - strings.Index(order, strings.Fields(b)[0])
	})
	cells := [][]string{{"walk", "unit", "libunwind", "drop-in"}}
	for _, name := range names {
		kind, rest, _ := strings.Cut(name, " ")
		row := []string{kind + " " + strings.Replace(rest, "_Unwind_Backtrace", "`_Unwind_Backtrace`", 1), unit[kind]}
		for i := range values {
			format := "%.1f"
			switch m := median(values[i][name]); {
			case kind == "scale":
				format = "%.2f"
			case m >= 100, kind == "faults":
				format = "%.0f"
			}
			row = append(row, fmt.Sprintf(format, median(values[i][name])))
		}
		cells = append(cells, row)
	}
	return cells
}
