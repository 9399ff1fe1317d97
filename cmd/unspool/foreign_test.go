package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/lab/vm"
)

// foreign has the libraries of AArch64 that its compiler links with.
const foreign = "/usr/aarch64-linux-gnu/lib"

// sameStacks sorts folded stacks, without the names of the vDSO's functions: its image is in no file.
func sameStacks(folded string) string {
	lines := strings.Split(vdsoNames.ReplaceAllString(folded, "[vdso]"), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

var vdsoNames = regexp.MustCompile(`__kernel_\w+`)

// foreignCrashes are the ways to end of a program whose cores are looked at.
var foreignCrashes = []string{"segv", "null", "abort", "handler", "vfork", "corrupted"}

// foreignDifferences are those that are permitted besides those of any program of this machine.
var foreignDifferences = []difference{
	{"null", "eu-stack", `frame 2: 0x\w+ main, the judge has 0x\w+ main`, "elfutils 0.188 does not know where a call to 0 returns to, and follows the frame pointer", false},
	{"handler", "eu-stack", `frame 6: 0x\w+ segv, the judge has 0xffff\w+ `, "elfutils 0.188 goes on in the vDSO from where a signal came", false},
	{"wait", "eu-stack", `frame 3: 0xffff\w+ , the judge has 0xffff\w+ `, "the same", false},
}

// TestForeign: what a machine with AArch64 has left says on this machine what it says there. Stacks of its cores are those that gdb and
// eu-stack print here, by the same paths and below a system root; stacks of its live processes are those of their cores, 900 frames and a signal's
// handler included; its recording makes the same report; and so do an x86-64 machine's there.
func TestForeign(t *testing.T) {
	oracle.Long(t)
	switch list := os.Getenv("UNSPOOL_MACHINES"); {
	case list == "all" || slices.Contains(strings.Fields(list), "trixie/arm64"):
	case list != "" || os.Getenv("UNSPOOL_REQUIRE_JUDGES") != "1":
		t.Skip("part of make vms: it fetches kernels")
	}
	oracle.Need(t, "qemu-system-aarch64", "gdb-multiarch", "eu-stack", "apt-get", "dpkg", "readelf")
	cc := []string{"aarch64-linux-gnu-gcc", "-O2", "-g", "-pthread", "-mbranch-protection=none", "-Wl,--dynamic-linker=" + foreign + "/ld-linux-aarch64.so.1",
		"-Wl,-rpath," + foreign, "-o", "OUT", "SRC"}
	work := built(t, "../foreign/work.c", "work-arm64", cc...)
	programs := []string{built(t, "crash.c", "crash-arm64", cc...)}
	cc[4] = "-mbranch-protection=standard" // return addresses are signed
	programs = append(programs, built(t, "crash.c", "signed-arm64", cc...))
	waits := []string{"", built(t, "../foreign/wait.c", "wait-signed", cc...)}
	cc[4] = "-mbranch-protection=none"
	waits[0] = built(t, "../foreign/wait.c", "wait-arm64", cc...)

	sysroot := t.TempDir()
	var root vm.Root
	for _, path := range []string{programs[0], programs[1], work, waits[0], waits[1], foreign + "/ld-linux-aarch64.so.1", foreign + "/libc.so.6"} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		root.Add(path, 0o755, b)
		at := filepath.Join(sysroot, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.WriteFile(at, b, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(t.TempDir(), "unspool")
	c := exec.Command("go", "build", "-o", exe, ".")
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=arm64")
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := root.Copy("/bin/unspool", exe); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	if err := root.Init(ctx, "arm64"); err != nil {
		t.Fatal(err)
	}
	var steps []vm.Step
	command := func(name string, files []string, args ...string) {
		steps = append(steps, vm.Step{Name: name, Args: append([]string{"/bin/unspool"}, args...), Env: []string{"UNSPOOL_CACHE=/cache"}, Seconds: 100, Files: files})
	}
	for _, p := range programs {
		for _, how := range foreignCrashes {
			core := "/tmp/core." + filepath.Base(p)
			steps = append(steps, vm.Step{Name: how, Args: []string{p, how}, Seconds: 60, Files: []string{core}})
			command(how+" there", nil, "stack", "--format", "json", "--depth", strconv.Itoa(judgeDepth), core)
		}
	}
	// Processes that wait: their stacks while they live, and their cores.
	live := len(steps)
	for _, p := range waits {
		steps = append(steps, vm.Step{Name: "waits", Args: []string{p}, Start: true})
		command("live", nil, "stack", "--format", "json", "--depth", strconv.Itoa(judgeDepth), "$PID")
		steps = append(steps, vm.Step{Name: "core of it", Args: []string{p, "$PID"}, Seconds: 60, Files: []string{"/tmp/core." + filepath.Base(p)}})
	}
	const data = "/tmp/work.data"
	command("record", []string{data}, "record", "--source", "perf", "-e", "cpu-clock:u", "-F", "299", "-o", data, "--", work)
	command("report", nil, "report", data, "--format", "folded")
	for name, from := range map[string]string{"perf.data": "perf.data", "core": "core", "root/opt/spin": "root/opt/spin"} {
		if err := root.Copy("/x86/"+name, filepath.Join("../../testdata", from)); err != nil {
			t.Fatal(err)
		}
	}
	command("report of x86-64", nil, "report", "/x86/perf.data", "--sysroot", "/x86/root", "--format", "folded")
	command("stack of x86-64", nil, "stack", "/x86/core", "--sysroot", "/x86/root", "--format", "json")
	results, err := vm.New("trixie", "arm64", oracle.Kernel(t, "trixie", "arm64")).Boot(ctx, &root, steps)
	for _, r := range results {
		t.Logf("%s (%.1f s): exit %d, %s", r.Name, r.Seconds, r.Exit, r.Stderr)
	}
	if err != nil {
		t.Fatal(err)
	}

	permitted := append(slices.Clone(foreignDifferences), stackDifferences...)
	used := make([]bool, len(permitted))
	judge := func(t *testing.T, program, name string, differences []string) {
		for _, d := range differences {
			at := slices.IndexFunc(permitted, func(x difference) bool {
				return (x.program == "" || x.program == program) && x.judge == name && regexp.MustCompile(x.pattern).MatchString(d)
			})
			if at < 0 {
				t.Errorf("%s: %s", name, d)
				continue
			}
			used[at] = true
		}
	}
	for i := range len(programs) * len(foreignCrashes) {
		crash, how := programs[i/len(foreignCrashes)], foreignCrashes[i%len(foreignCrashes)]
		t.Run(filepath.Base(crash)+"/"+how, func(t *testing.T) {
			b := results[2*i].Files["/tmp/core."+filepath.Base(crash)]
			if len(b) == 0 {
				t.Fatalf("/tmp/core.%s is missing or empty; the machine has left %q", filepath.Base(crash), slices.Sorted(maps.Keys(results[2*i].Files)))
			}
			path := filepath.Join(t.TempDir(), "core")
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			there, here := parseStack(t, string(results[2*i+1].Stdout)), runStack(t, "--depth", strconv.Itoa(judgeDepth), path)
			below := runStack(t, "--depth", strconv.Itoa(judgeDepth), "--sysroot", sysroot, path)
			for name, s := range map[string]*stackJSON{"here": here, "below a system root": below} {
				if len(s.Notes) > 0 {
					t.Errorf("%s: notes: %q", name, s.Notes)
				}
				if have, want := s.plain(sysroot), there.plain(""); have != want {
					t.Errorf("%s\n got %s\nwant, as there, %s", name, have, want)
				}
			}
			judges := map[string]func(testing.TB, string, string, int) judged{"gdb": foreignStacks, "eu-stack": euStacks}
			if crash == programs[1] {
				delete(judges, "eu-stack") // elfutils 0.188 takes signatures for parts of addresses
			}
			for name, run := range judges {
				judge(t, how, name, here.compare(run(t, crash, path, judgeDepth)))
			}
		})
	}
	for i, p := range waits {
		t.Run("live/"+filepath.Base(p), func(t *testing.T) {
			r := results[live+3*i:]
			path := filepath.Join(t.TempDir(), "core")
			if err := os.WriteFile(path, r[2].Files["/tmp/core."+filepath.Base(p)], 0o600); err != nil {
				t.Fatal(err)
			}
			alive, core := parseStack(t, string(r[1].Stdout)), runStack(t, "--depth", strconv.Itoa(judgeDepth), path)
			if len(alive.Threads) != 4 || len(alive.Notes) > 0 {
				t.Errorf("%d threads, notes: %q", len(alive.Threads), alive.Notes)
			}
			deep := 0
			for i, th := range alive.Threads {
				if deep = max(deep, len(th.Frames)); !th.Whole {
					t.Errorf("thread %d ends with %s, %d frames", th.TID, th.Stop, len(th.Frames))
				}
				alive.Threads[i].Name = "" // a core has the first one's only
			}
			if core.Threads[0].Name = ""; alive.plain("") != core.plain("") || deep < 900 {
				t.Errorf("%d frames; alive %s\nin its core %s", deep, alive.plain(""), core.plain(""))
			}
			judge(t, "wait", "gdb", alive.compare(foreignStacks(t, p, path, judgeDepth)))
			if i == 0 { // elfutils 0.188 takes signatures for parts of addresses
				judge(t, "wait", "eu-stack", alive.compare(euStacks(t, p, path, judgeDepth)))
			}
		})
	}
	for i, d := range foreignDifferences {
		if !used[i] {
			t.Errorf("no difference matches %+v: take it off the list", d)
		}
	}
	t.Run("recording", func(t *testing.T) {
		record, report := results[len(results)-4], results[len(results)-3]
		path := filepath.Join(t.TempDir(), "work.data")
		if err := os.WriteFile(path, record.Files[data], 0o600); err != nil {
			t.Fatal(err)
		}
		want := string(report.Stdout)
		if n := strings.Count(want, "compare;deeper"); n == 0 || !strings.Contains(want, "qsort") {
			t.Errorf("the report there:\n%s", want)
		}
		for _, args := range [][]string{nil, {"--sysroot", sysroot}} {
			r := runProgram(t, append([]string{"report", path, "--format", "folded"}, args...)...)
			r.want(t, 0, "")
			if sameStacks(r.out) != sameStacks(want) {
				t.Errorf("report %q here:\n%s--- there:\n%s", args, r.out, want)
			}
		}
		// A file of the same name is for this machine.
		b, err := os.ReadFile(work)
		host, err2 := os.ReadFile("/bin/true")
		os.Remove(work)
		if err := errors.Join(err, err2, os.WriteFile(work, host, 0o755)); err != nil {
			t.Fatal(err)
		}
		r := runProgram(t, "report", path, "--format", "folded")
		r.want(t, 0, regexp.QuoteMeta(work)+" is for x86_64, but was recorded on aarch64")
		os.Remove(work)
		if err := os.WriteFile(work, b, 0o755); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("of x86-64", func(t *testing.T) {
		report, stack := results[len(results)-2], results[len(results)-1]
		const root = "../../testdata/root"
		abs, err := filepath.Abs(root)
		if err != nil {
			t.Fatal(err)
		}
		at := func(name string) string { return filepath.Join(filepath.Dir(abs), name) }
		r := runProgram(t, "report", at("perf.data"), "--sysroot", abs, "--format", "folded")
		r.want(t, 0, "")
		if want := string(report.Stdout); r.out != want || !strings.Contains(want, "spin;") {
			t.Errorf("report here:\n%s--- there:\n%s", r.out, want)
		}
		here, there := runStack(t, "--sysroot", abs, at("core")), parseStack(t, string(stack.Stdout))
		if have, want := here.plain(abs), there.plain("/x86/root"); have != want || !strings.Contains(want, "spin") {
			t.Errorf("stack here:\n%s--- there:\n%s", have, want)
		}
	})
}

// plain is what the stacks are, without the root directory that files were found below.
func (s *stackJSON) plain(sysroot string) string {
	var b strings.Builder
	for _, th := range s.Threads {
		fmt.Fprintf(&b, "%d %s %s\n", th.TID, th.Stop, th.Name)
		for _, f := range th.Frames {
			fmt.Fprintf(&b, "  %s %s %s %s+%s\n", f.PC, f.How, strings.TrimPrefix(f.Module, sysroot), f.Function, f.FuncOff)
		}
	}
	return b.String()
}

// foreignStacks is gdbStacks for other machines.
func foreignStacks(t testing.TB, exe, core string, depth int) judged {
	return gdbStacksBy(t, "gdb-multiarch", exe, core, depth)
}
