package shapes

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/lab/vm"
)

// A check is a command on a machine, and what must be true of its result.
type check struct {
	step  vm.Step
	exit  int // of the command; it is killed where this is -1
	judge func(t *testing.T, r vm.Result)
}

// checksProgram is testdata/machine/checks.c on a machine.
const checksProgram = "/bin/checks"

// plantedProgram is AArch64's program of package shadow with rows that are wrong on purpose.
const plantedProgram = "/bin/planted"

// fiveWaits is how long five waits of 100 ms take at least, in ns: a timer is started a little before its thread leaves the processor, up to 100 µs on
// an emulated one.
const fiveWaits = 5*100e6 - 5*100e3

// framesProgram and otherProgram use the drop-in and libunspool on AArch64.
const (
	framesProgram = "/bin/frames"
	otherProgram  = "/bin/other"
)

// checks are what is tried on a machine besides walking shapes, in this order.
func checks(m machine) (out []check) {
	inKernel := slices.Contains(m.sources, "ebpf")
	add := func(step vm.Step, exit int, judge func(*testing.T, vm.Result)) {
		out = append(out, check{step, exit, judge})
	}
	// recorded adds a recording as folded stacks.
	recorded := func(name string, judge func(*testing.T, vm.Result, map[string]uint64), args ...string) {
		path := "/tmp/" + name + ".folded"
		step := command(name, append([]string{"record", "--no-inline", "-o", path}, args...)...)
		step.Files = []string{path}
		add(step, 0, func(t *testing.T, r vm.Result) { judge(t, r, foldedStacks(t, r.Files[path])) })
	}
	start := func(name, cgroup string) {
		add(vm.Step{Name: name, Args: []string{checksProgram, "spin"}, Start: true, Nice: 19, Cgroup: cgroup}, 0, nil)
	}
	walker := "walking copies of stacks"
	if inKernel {
		walker = "walking stacks in the kernel"
	}

	add(command("doctor", "doctor", "--json", "--quick"), 0, func(t *testing.T, r vm.Result) {
		var got struct {
			Ways []struct {
				Name, Reason string
				OK           bool
			}
			Checks []struct {
				Name, Reason string
				OK           bool
			}
		}
		if err := json.Unmarshal(r.Stdout, &got); err != nil {
			t.Fatalf("%v\n%s", err, r.Stdout)
		}
		ways := map[string]bool{}
		for _, w := range got.Ways {
			ways[w.Name] = w.OK
			if w.OK == (w.Reason != "") {
				t.Errorf("%+v", w)
			}
		}
		for _, c := range got.Checks {
			if inKernel && !c.OK && strings.HasPrefix(c.Name, "bpf-") {
				t.Errorf("the kernel walks stacks, and %+v", c)
			}
		}
		if !ways["record-user"] || !ways["record-all"] || !ways["kernel-names"] || ways["record-ebpf"] != inKernel {
			t.Errorf("%s", r.Stdout)
		}
	})
	// burnt judges at least n samples.
	burnt := func(t *testing.T, n uint64, r vm.Result, stacks map[string]uint64) {
		all, right := of(stacks, `\bs_burn\b`), of(stacks, `^(checks|exe);_start;(\S+;)?main;s_burn\b`)
		if right < n || right != all {
			t.Errorf("%d of %d samples of s_burn are right\n%s%v", right, all, r.Stderr, stacks)
		}
	}
	burns := func(t *testing.T, r vm.Result, stacks map[string]uint64) { burnt(t, 10, r, stacks) }
	recorded("command", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
		burns(t, r, stacks)
		if !bytes.Contains(r.Stderr, []byte(walker)) {
			t.Errorf("not %s:\n%s", walker, r.Stderr)
		}
	}, "-F", "199", "--", checksProgram, "burn")
	// The inner recorder is the outer one's command.
	recorded("two-recorders", burns,
		"-F", "99", "--", "/bin/unspool", "record", "-F", "199", "--no-inline", "-o", "/tmp/inner.folded", "--", checksProgram, "burn")
	out[len(out)-1].step.Files = append(out[len(out)-1].step.Files, "/tmp/inner.folded")
	outer := out[len(out)-1].judge
	out[len(out)-1].judge = func(t *testing.T, r vm.Result) {
		outer(t, r)
		burns(t, r, foldedStacks(t, r.Files["/tmp/inner.folded"]))
	}
	start("target", "")
	recorded("pid", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
		all, right := of(stacks, ""), of(stacks, `^checks;_start;(\S+;)?main;s_spin\b`)
		if right < 10 || right*100 < all*95 {
			t.Errorf("%d of %d samples are in s_spin\n%s%v", right, all, r.Stderr, stacks)
		}
	}, "-F", "199", "--duration", "2s", "-p", "$PID")
	if m.arch == "arm64" {
		var stack []byte
		add(command("stack", append(stackJSON, "$PID")...), 0, func(t *testing.T, r vm.Result) { stack = r.Stdout })
		add(vm.Step{Name: "libunspool", Args: []string{otherProgram, "$PID"}, Seconds: 30}, 0, func(t *testing.T, r vm.Result) { sameStack(t, stack, r.Stdout) })
		add(command("run", "run", "--", framesProgram), 0, func(t *testing.T, r vm.Result) {
			if !regexp.MustCompile(`^/\S*lib/unspool/libunwind\.so\.8\n1[1-5] frames\n$`).Match(r.Stdout) {
				t.Errorf("%s%s", r.Stdout, r.Stderr)
			}
		})
	}
	recorded("tracepoint", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
		// Each wait is a switch, or more where the thread is woken early.
		if n := of(stacks, `;main;s_wait\b`); n < 5 {
			t.Errorf("%d switches in s_wait\n%s%v", n, r.Stderr, stacks)
		}
	}, "-e", "sched:sched_switch", "-c", "1", "--", checksProgram, "waits")
	out[len(out)-1].step.End = true

	if inKernel {
		blocked := "threads that were blocked already"
		recorded("off-cpu", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
			// A wait ends late, never early, and is part of what the program has measured.
			took, err := strconv.ParseUint(strings.TrimSpace(string(r.Stdout)), 10, 64)
			if ns := of(stacks, `;main;s_wait\b`); err != nil || ns < fiveWaits || ns > took {
				t.Errorf("five waits of 100 ms take %d ns, and to the program %d: %v\n%v", ns, took, err, stacks)
			}
			if bytes.Contains(r.Stderr, []byte(blocked)) {
				t.Errorf("a command has no threads before it:\n%s", r.Stderr)
			}
		}, "--off-cpu", "--", checksProgram, "waits")
		recorded("wakers", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
			byChecks := "checks"
			if m.arch == "arm64" { // its kernels do not tell
				byChecks = "checks(, or by an interrupt)?"
			}
			if of(stacks, `;s_take\b.*;\[woken by `+byChecks+`\];.*\bs_put;`) == 0 || of(stacks, `;s_wait\b.*;\[woken by (\S+, or by )?an interrupt\]`) == 0 {
				t.Errorf("%s%v", r.Stderr, stacks)
			}
		}, "--off-cpu", "--wakers", "--", checksProgram, "pair")
		recorded("off-cpu-all", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
			if len(stacks) == 0 || bytes.Contains(r.Stderr, []byte(blocked)) != m.blind() {
				t.Errorf("%d stacks; threads that were blocked already are lost: %v\n%s", len(stacks), m.blind(), r.Stderr)
			}
		}, "--off-cpu", "-a", "--duration", "1s")
		// The agent walks stacks when waits end, and has a threshold.
		took := uint64(0)
		agent := command("agent-waits", "agent", "--off-cpu", "--listen", "", "--output", "files=/tmp/agent", "--", checksProgram, "waits")
		add(agent, 0, func(t *testing.T, r vm.Result) {
			var err error
			if took, err = strconv.ParseUint(strings.TrimSpace(string(r.Stdout)), 10, 64); err != nil || !bytes.Contains(r.Stderr, []byte(" lost=0 ")) {
				t.Errorf("%v\n%s%s", err, r.Stdout, r.Stderr)
			}
			if atBegin := bytes.Contains(r.Stderr, []byte("at each wait's beginning")); atBegin {
				t.Errorf("the kernel's function finish_task_switch was not traced:\n%s", r.Stderr)
			}
		})
		report := command("agent-report", "report", "--event", "off-cpu", "--no-inline", "-o", "/tmp/agent.folded", "/tmp/agent")
		report.Files = []string{"/tmp/agent.folded"}
		add(report, 0, func(t *testing.T, r vm.Result) {
			stacks := foldedStacks(t, r.Files["/tmp/agent.folded"])
			if ns := of(stacks, `^(\S+;)?_start;(\S+;)?main;s_wait\b`); ns < fiveWaits || ns > took || ns != of(stacks, `\bs_wait\b`) {
				t.Errorf("five waits of 100 ms take %d ns, and to the program %d\n%s%v", ns, took, r.Stderr, stacks)
			}
		})
		start("member", "/sys/fs/cgroup/inside")
		recorded("cgroup", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
			if all, right := of(stacks, ""), of(stacks, `;main;s_spin\b`); right < 10 || right*100 < all*95 {
				t.Errorf("%d of %d samples are of the member\n%s%v", right, all, r.Stderr, stacks)
			}
		}, "-F", "99", "--cgroup", "/sys/fs/cgroup/inside", "--duration", "3s")
	}

	// With the capabilities that doctor lists for an agent, if Debian's setting permits their use.
	five := func(name string, exit int, judge func(*testing.T, vm.Result), args ...string) {
		add(vm.Step{Name: name, Args: append([]string{checksProgram, "five"}, args...), Env: []string{"UNSPOOL_CACHE=/cache"}, Seconds: 60}, exit, judge)
	}
	if m.suite != "sid" { // whose setting changes with its kernel
		five("restricted", 1, func(t *testing.T, r vm.Result) {
			if !bytes.Contains(r.Stderr, []byte("kernel.perf_event_paranoid is 3, which takes CAP_SYS_ADMIN: as root, sysctl kernel.perf_event_paranoid=2)")) {
				t.Errorf("%s", r.Stderr)
			}
		}, "/bin/unspool", "record", "-a", "--duration", "1s", "-o", "/tmp/five.folded")
	}
	add(vm.Step{Name: "paranoid", Args: []string{checksProgram, "paranoid", "2"}, Seconds: 30}, 0, nil)
	five("five", 0, func(t *testing.T, r vm.Result) {
		if inKernel != bytes.Contains(r.Stderr, []byte(walker)) {
			t.Errorf("%s", r.Stderr)
		}
	}, "/bin/unspool", "record", "-a", "--duration", "1s", "-o", "/tmp/five.folded")
	if m.arch == "arm64" { // with two processors
		add(vm.Step{Name: "unplug", Args: []string{checksProgram, "unplug"}, Seconds: 30}, 0, nil)
		recorded("replug", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
			for _, f := range []string{"plugged", "replugged"} {
				if n := of(stacks, `;main;s_`+f+`;.*s_burn`); n < 50 { // of some 300: the recorder looks for processors each second
					t.Errorf("%d of %d samples of s_burn are in s_%s, on a processor that came online\n%s", n, of(stacks, `s_burn`), f, r.Stderr)
				}
			}
		}, "-a", "-F", "99", "--", checksProgram, "replug")
	}
	add(vm.Step{Name: "paranoid", Args: []string{checksProgram, "paranoid", "3"}, Seconds: 30}, 0, nil)

	add(vm.Step{Name: "crash", Args: []string{checksProgram, "crash"}, Seconds: 30, End: true}, -1, nil)
	add(command("core", "stack", "/tmp/core.checks"), 0, func(t *testing.T, r vm.Result) {
		if !regexp.MustCompile(`(?s)s_fault.*\bs_crash.*\bmain.*\b_start`).Match(r.Stdout) {
			t.Errorf("%s%s", r.Stdout, r.Stderr)
		}
	})
	executed := func(name string, exit int, program string, judge func(t *testing.T, instructions, compared uint64, wrong []string)) {
		add(command(name, "verify", "--run", "--steps", "1500", "--format", "json", "-o", "-", "--", program, "nothing"), exit, func(t *testing.T, r vm.Result) {
			var got struct {
				Instructions, Compared uint64
				Findings               []struct {
					Function, Known string
					Ours            bool
					Wrong           []struct{ Register string }
				}
			}
			if err := json.Unmarshal(r.Stdout, &got); err != nil {
				t.Fatalf("%v\n%s", err, r.Stdout)
			}
			var wrong []string
			for _, f := range got.Findings {
				if f.Known == "" || f.Ours {
					s := f.Function
					for _, w := range f.Wrong {
						s += " " + w.Register
					}
					wrong = append(wrong, s)
				}
			}
			judge(t, got.Instructions, got.Compared, wrong)
			if t.Failed() {
				t.Logf("%s", r.Stdout)
			}
		})
	}
	executed("verify", 0, checksProgram, func(t *testing.T, instructions, compared uint64, wrong []string) {
		if instructions < 1000 || compared*10 < instructions*8 || len(wrong) > 0 {
			t.Errorf("%d instructions, %d compared, wrong: %q", instructions, compared, wrong)
		}
	})
	if m.arch == "arm64" { // x86-64's is executed where this test runs: TestPlanted of package shadow
		add(vm.Step{Name: "watch", Args: []string{checksProgram, "watch"}, Start: true}, 0, nil) // others have breakpoints, too
		executed("planted", 1, plantedProgram, func(t *testing.T, instructions, compared uint64, wrong []string) {
			src, err := os.ReadFile("../../shadow/testdata/planted_arm64.s")
			if err != nil {
				t.Fatal(err)
			}
			// The functions' names say what is wrong: wrong_WHAT__REMARK.
			var want []string
			for _, m := range regexp.MustCompile(`(?m)^\s*fn (wrong_(\w+?)(__\w+)?)$`).FindAllStringSubmatch(string(src), -1) {
				want = append(want, m[1]+" "+strings.ReplaceAll(m[2], "_", " "))
			}
			slices.Sort(want)
			slices.Sort(wrong)
			if len(want) < 6 || !slices.Equal(wrong, want) || instructions < 200 || compared+5 < instructions {
				t.Errorf("%d instructions, %d compared, wrong: %q, not %q", instructions, compared, wrong, want)
			}
		})
	}
	for _, after := range []float64{0.3, 1, 1.6, 2.4, 5} {
		step := command(fmt.Sprintf("killed-%v", after), "record", "-a", "--duration", "30s", "-o", "/tmp/killed.jsonl")
		step.Seconds, step.End = after, true
		add(step, -1, nil)
	}
	none := func(t *testing.T, r vm.Result) {
		if got := string(r.Stdout); got != "0 programs, 0 pinned\n" {
			t.Errorf("recorders that were killed leave %s", got)
		}
	}
	programs := vm.Step{Name: "programs", Args: []string{checksProgram, "programs"}, Seconds: 30}
	add(programs, 0, none)
	if inKernel { // this one is killed while its programs are loaded
		add(vm.Step{Name: "recorder", Args: []string{checksProgram, "run", "/bin/unspool", "record", "-a", "--duration", "90s", "-o", "/tmp/killed.jsonl"},
			Env: []string{"UNSPOOL_CACHE=/cache"}, Start: true}, 0, nil)
		add(vm.Step{Name: "programs-loaded", Args: []string{checksProgram, "programs", "some"}, Seconds: 30}, 0, func(t *testing.T, r vm.Result) {
			var loaded, pinned int
			if n, err := fmt.Sscanf(string(r.Stdout), "%d programs, %d pinned", &loaded, &pinned); n != 2 || loaded == 0 {
				t.Errorf("a recorder has loaded %q: %v", r.Stdout, err)
			}
		})
		programs.Name, programs.End = "programs-killed", true
		add(programs, 0, none)
	}
	recorded("exec-after-killed", burns, "-F", "199", "--", checksProgram, "exec")
	// With one processor, as on amd64, the tracer displaces what it samples: some 100 samples a second there.
	recorded("user", func(t *testing.T, r vm.Result, stacks map[string]uint64) {
		burnt(t, 1, r, stacks)
		if !bytes.Contains(r.Stderr, []byte("ptrace")) {
			t.Errorf("nothing says that this is by ptrace:\n%s", r.Stderr)
		}
	}, "-F", "99", "--", checksProgram, "burn", "2")
	user := &out[len(out)-1].step
	user.User, user.Env = 1000, []string{"UNSPOOL_CACHE=/tmp/user"}
	return out
}

// sameStack compares what libunspool's example prints of the only thread of a program without libraries with what unspool stack says: callers of a
// function that goes on meanwhile.
func sameStack(t *testing.T, stack, printed []byte) {
	t.Helper()
	var got struct {
		Threads []struct{ Frames []struct{ Offset hex } }
	}
	if err := json.Unmarshal(stack, &got); err != nil || len(got.Threads) != 1 {
		t.Fatalf("%v\n%s", err, stack)
	}
	frames := got.Threads[0].Frames
	lines := strings.Split(strings.TrimSpace(string(printed)), "\n")
	if len(frames) < 3 || len(lines) != len(frames)+1 || lines[len(frames)] != "ended: 0" {
		t.Fatalf("%s\n%s", printed, stack)
	}
	var first uint64
	for i, f := range frames {
		m := regexp.MustCompile(`^#\d+ +0x([0-9a-f]+) sp 0x[0-9a-f]+ how (\d)$`).FindStringSubmatch(lines[i])
		if m == nil || (m[2] == "0") != (i == 0) || i > 0 && m[2] != "1" {
			t.Fatalf("%q\n%s", lines[i], stack)
		}
		pc, err := strconv.ParseUint(m[1], 16, 64)
		if i == 1 {
			first = pc - uint64(f.Offset)
		}
		if err != nil || i > 0 && pc-uint64(f.Offset) != first {
			t.Errorf("frame %d: %s, not the one of\n%s", i, lines[i], stack)
		}
	}
}

// foldedStacks reads folded stacks with their weights.
func foldedStacks(t *testing.T, b []byte) map[string]uint64 {
	t.Helper()
	out := map[string]uint64{}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimSpace(line)
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		n, err := strconv.ParseUint(line[i+1:], 10, 64)
		if err != nil {
			t.Fatalf("%v: %q", err, line)
		}
		out[line[:i]] += n
	}
	return out
}

// of sums the weights of stacks that match.
func of(stacks map[string]uint64, pattern string) (n uint64) {
	re := regexp.MustCompile(pattern)
	for s, w := range stacks {
		if re.MatchString(s) {
			n += w
		}
	}
	return n
}
