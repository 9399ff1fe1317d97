package agent

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// A changing process is a shell that becomes another program when it is told to.
type changing struct {
	*exec.Cmd
	in io.WriteCloser
}

func newChanging(t *testing.T, command string) *changing {
	t.Helper()
	oracle.Need(t, "sh")
	c := &changing{Cmd: exec.Command("sh", "-c", "read x; exec "+command)}
	var err error
	if c.in, err = c.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	c.until(t, func(line string) bool { return strings.HasPrefix(line, "sh ") })
	return c
}

func (c *changing) pid() int32 { return int32(c.Process.Pid) }

// until waits until the process's command line is one that is wanted.
func (c *changing) until(t *testing.T, wanted func(line string) bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !wanted(cmdline(c.pid())); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after a minute, the command line is %q", cmdline(c.pid()))
		}
	}
}

// change makes the process become the other program.
func (c *changing) change(t *testing.T) {
	t.Helper()
	was := cmdline(c.pid())
	io.WriteString(c.in, "\n")
	c.until(t, func(line string) bool { return line != "" && line != was }) // execve(2) sets it last
}

// asking is an agent whose rules ask for these labels.
func asking(t *testing.T, labels ...string) *Agent {
	t.Helper()
	var s Settings
	for _, l := range labels {
		r, err := ParseRule(`{"source_labels":["` + l + `"],"target_label":"x"}`)
		if err != nil {
			t.Fatal(err)
		}
		s.Rules = append(s.Rules, r)
	}
	s.CommandLines = true
	a := newAgent(Options{Settings: s}, time.Now())
	a.reader.patience = time.Minute
	return a
}

// cut returns how many samples there are with each value of a label.
func cut(t *testing.T, a *Agent, label string) string {
	t.Helper()
	batches, err := a.Cut(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, b := range batches {
		out = append(out, fmt.Sprintf("%d %s", b.Profile.Totals.Samples, b.Label(label)))
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

// TestExec: a process that becomes another program in an interval has the labels of this program from the first sample of it on.
func TestExec(t *testing.T) {
	oracle.Need(t, "sleep")
	c := newChanging(t, "sleep 100")
	before := command(c.pid())
	a := asking(t, "comm")
	a.Add(sample(c.pid(), before, 7))
	c.change(t)
	after := command(c.pid())
	if before == after {
		oracle.Lacks(t, "sh and sleep of different names")
	}
	for range 100 {
		a.Add(sample(c.pid(), after, 7))
	}
	if got, want := cut(t, a, "comm"), fmt.Sprintf("1 %s, 100 %s", before, after); got != want {
		t.Errorf("the samples are %q, want %q", got, want)
	}
}

// TestRenames: a process that renames itself again and again, as by prctl(PR_SET_NAME), is one place, and its names are those of its samples.
func TestRenames(t *testing.T) {
	c := newChanging(t, "sleep 100")
	a, comms := newAgent(Options{}, time.Now()), asking(t, "comm")
	for i := range 2 * maxGroups {
		a.Add(sample(c.pid(), fmt.Sprintf("job %d", i), 7))
	}
	for _, name := range []string{command(c.pid()), "job 1", "job 2", "job 1"} {
		comms.Add(sample(c.pid(), name, 7))
	}
	if got, want := cut(t, a, "service_name"), fmt.Sprintf("%d %s", 2*maxGroups, command(c.pid())); got != want {
		t.Errorf("the samples are %q, want %q", got, want)
	}
	if got, want := cut(t, comms, "comm"), fmt.Sprintf("1 job 2, 1 %s, 2 job 1", command(c.pid())); got != want {
		t.Errorf("the samples are %q, want %q", got, want)
	}
}

// TestLookAgain: what a process becomes under the same name is found after five seconds, also in an interval of an hour; and so is another process of its number.
func TestLookAgain(t *testing.T) {
	b, err := os.ReadFile(oracle.Tool(t, "sh"))
	if err != nil {
		t.Fatal(err)
	}
	other := t.TempDir() + "/sh"
	if err := os.WriteFile(other, b, 0o700); err != nil {
		t.Fatal(err)
	}
	c := newChanging(t, other+" -c 'read y'")
	pid, name, before := c.pid(), command(c.pid()), executable(c.pid())
	a, lines := asking(t, "executable"), asking(t, "cmdline")
	line := cmdline(pid)
	add := func() {
		a.Add(sample(pid, name, 7))
		lines.Add(sample(pid, name, 7))
	}
	later := func() { // lookAgain has passed
		for _, a := range []*Agent{a, lines} {
			a.members[pid].looked = time.Now().Add(-lookAgain)
		}
	}
	add()
	if lines.members[pid].cmdline != line {
		t.Errorf("the command line is %q, want %q", lines.members[pid].cmdline, line)
	}
	c.change(t)
	if now := command(pid); now != name {
		t.Fatalf("the process's name is %s, want %s", now, name)
	}
	later()
	add()
	lines.members[pid].start-- // another process had this number
	lines.members[pid].cmdline = "another process's"
	later()
	add()
	c.Process.Kill()
	for end := time.Now().Add(time.Minute); started(pid) != 0 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	later()
	add() // a sample that was read late
	c.Wait()
	later()
	add()
	if got, want := cut(t, a, "executable"), fmt.Sprintf("1 %s, 4 %s", before, other); got != want {
		t.Errorf("the samples are %q, want %q", got, want)
	}
	if got, want := cut(t, lines, "cmdline"), fmt.Sprintf("1 %s, 4 %s -c read y", line, other); got != want {
		t.Errorf("the samples are %q, want %q", got, want)
	}
	if n := a.Stats().Unplaced; n != 0 {
		t.Errorf("%d samples without a place, want 0", n)
	}
}
