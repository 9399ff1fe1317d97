package shapes

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/lab/vm"
)

// clocked are the machines whose clock is set, and which are suspended, where nothing is said.
const clocked = "bookworm/amd64"

// TestClock: an agent goes on when the clock is set forth and back, and when the machine is suspended. Each sample is in one profile, and report
// finds it at the time that the clock had. QEMU's machine of x86-64 alone can be suspended, and wakes.
func TestClock(t *testing.T) {
	oracle.Long(t)
	names := chosen(t)
	if os.Getenv("UNSPOOL_MACHINES") == "" {
		names = []string{clocked}
	}
	for _, m := range machines {
		if m.arch == "amd64" && slices.Contains(names, m.name()) {
			t.Run(m.name(), m.clock)
		}
	}
}

func (m machine) clock(t *testing.T) {
	oracle.Need(t, "apt-get", "dpkg", "gcc", "qemu-system-x86_64")
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	image, err := oracle.FetchKernel(ctx, m.suite, m.arch)
	if err != nil {
		t.Fatal(err)
	}
	var root vm.Root
	program := filepath.Join(t.TempDir(), "checks")
	oracle.Run(t, "gcc", "-O2", "-static", "-o", program, "testdata/machine/checks.c")
	path, err := unspool()
	if err != nil {
		t.Fatal(err)
	}
	for to, from := range map[string]string{checksProgram: program, "/bin/unspool": path} {
		if err := root.Copy(to, from); err != nil {
			t.Fatal(err)
		}
	}
	if err := root.Init(ctx, m.arch); err != nil {
		t.Fatal(err)
	}

	agent := func(name string, args ...string) vm.Step {
		return command(name, append([]string{"agent", "--listen", "", "--interval", "1s", "-F", "49", "--output", "files=/tmp/" + name, "--", checksProgram}, args...)...)
	}
	report := func(name, of, time string) vm.Step {
		s := command(name, "report", "/tmp/"+of, "--no-inline", "--time", time, "-o", "/tmp/"+name+".folded")
		s.Files = []string{"/tmp/" + name + ".folded"}
		return s
	}
	steps := []vm.Step{
		{Name: "noon", Args: []string{checksProgram, "noon"}, Seconds: 30},
		agent("clock", "clock"),
		report("early", "clock", "2030-01-01T12:00,2030-01-01T12:20"),
		report("ahead", "clock", "2030-01-01T13:20,2030-01-01T14:00"),
		report("late", "clock", "2030-01-01T12:20,2030-01-01T13:20"),
		report("all", "clock", ","),
		{Name: "noon", Args: []string{checksProgram, "noon"}, Seconds: 30},
	}
	// The machine is off but for its memory. QEMU's does not wake from what Linux calls freeze: its clock raises no interrupt then.
	states := []string{"mem"}
	for _, s := range states {
		steps = append(steps, agent(s, "suspend", s), report(s+"-all", s, ","))
	}
	results, err := vm.New(m.suite, m.arch, image).Boot(ctx, &root, steps)
	got := map[string]vm.Result{}
	for _, r := range results {
		t.Logf("%s (%.1f s): %s%s", r.Name, r.Seconds, r.Stdout, r.Stderr)
		if got[r.Name] = r; r.Exit != 0 {
			t.Errorf("%s: exit %d", r.Name, r.Exit)
		}
	}
	if err != nil {
		t.Error(err)
	}
	stacks := func(name string) map[string]uint64 { return foldedStacks(t, got[name].Files["/tmp/"+name+".folded"]) }
	// counted is how many samples an agent says that it has taken.
	counted := func(name string) uint64 {
		f := regexp.MustCompile(`msg=done samples=(\d+) lost=0 `).FindSubmatch(got[name].Stderr)
		if f == nil {
			t.Fatalf("%s: %s", name, got[name].Stderr)
		}
		n, err := strconv.ParseUint(string(f[1]), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	const interval = 49 // samples: those of the interval in which the clock was set have the time at which it began
	sum := uint64(0)
	for _, when := range []string{"early", "ahead", "late"} {
		s := stacks(when)
		all, right := of(s, ""), of(s, "main;s_"+when+";")
		sum += all
		if right < interval/2 || all-right > interval+interval/4 {
			t.Errorf("%d of %d samples at the time of s_%s are its own: %v", right, all, when, s)
		}
	}
	if all := of(stacks("all"), ""); sum != all || all != counted("clock") {
		t.Errorf("%d samples at their times, %d in all, %d were taken", sum, all, counted("clock"))
	}
	for _, state := range states {
		s := stacks(state + "-all")
		asleep := 0.0
		if _, err := fmt.Sscanf(string(got[state].Stdout), "asleep %f", &asleep); err != nil || asleep < 3 {
			t.Errorf("%s: the machine slept for %.1f s: %v\n%s", state, asleep, err, got[state].Stdout)
		}
		early, late := of(s, "main;s_early;"), of(s, "main;s_late;")
		if early < interval/2 || late < interval/2 || of(s, "") != counted(state) {
			t.Errorf("%s: %d samples before, %d after; %d of %d", state, early, late, of(s, ""), counted(state))
		}
	}
}
