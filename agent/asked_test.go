package agent

import (
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// start runs sleep with a name and arguments of its own, and returns its number.
func start(t *testing.T, args ...string) int32 {
	t.Helper()
	path, err := exec.LookPath("sleep")
	if err != nil {
		oracle.Lacks(t, "sleep")
	}
	if path, err = filepath.EvalSymlinks(path); err != nil {
		t.Fatal(err)
	}
	c := &exec.Cmd{Path: path, Args: args}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	pid := int32(c.Process.Pid)
	for end := time.Now().Add(time.Minute); cmdline(pid) == "" && time.Now().Before(end); time.Sleep(time.Millisecond) { // execve(2) sets it last
	}
	return pid
}

// TestAsked: what rules ask of a process is a label, and nothing else is.
func TestAsked(t *testing.T) {
	oracle.Need(t, "readelf")
	pid := start(t, "sl\xffeep --token=secret", "100")
	path := executable(pid)
	if name, err := exec.LookPath("sleep"); err != nil || filepath.Base(name) != "sleep" && filepath.Base(name) != filepath.Base(path) {
		t.Fatalf("%s is %s, %v", name, path, err)
	}
	notes, err := exec.Command("readelf", "-n", path).Output()
	if err != nil {
		t.Fatal(err)
	}
	id := regexp.MustCompile(`Build ID: ([0-9a-f]+)`).FindSubmatch(notes)
	if id == nil {
		oracle.Lacks(t, "a sleep with a build ID")
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	all := map[string]string{"comm": strings.TrimSpace(string(comm)), "executable": path, "executable_build_id": string(id[1]), "cmdline": "sl\ufffdeep --token=secret 100"}
	for read := range all {
		for _, permitted := range []bool{true, false} {
			rules := []string{`{"source_labels":["` + read + `"],"target_label":"copy"}`}
			parsed, err := ParseRules(rules, permitted)
			if read == "cmdline" && !permitted {
				if err == nil || !strings.HasPrefix(err.Error(), "rule 1: command lines may hold secrets") {
					t.Errorf("a rule reads command lines: %v", err)
				}
				parsed, err = ParseRules(rules, true) // and then they are not read
			}
			if err != nil {
				t.Fatal(err)
			}
			a := newAgent(Options{Settings: Settings{Rules: parsed, CommandLines: permitted}, Kernel: "6.1.0"}, time.Now())
			a.reader.patience = time.Minute
			a.Add(sample(pid, "a thread", 7))
			batches, err := a.Cut(time.Now())
			if err != nil || len(batches) != 1 {
				t.Fatalf("Cut = %d batches, %v, want 1", len(batches), err)
			}
			for label, want := range all {
				if label != read || label == "cmdline" && !permitted {
					want = ""
				}
				if got := batches[0].Label(label); got != want {
					t.Errorf("a rule reads %s: %s is %q, want %q", read, label, got, want)
				}
			}
			if n := a.Stats().Unread; n != 0 {
				t.Errorf("a rule reads %s: %d unread", read, n)
			}
			if b := batches[0]; b.Label("copy") != b.Label(read) || b.Label("kernel") != "6.1.0" {
				t.Errorf("a rule reads %s: %v", read, b.Labels)
			}
		}
	}
}

// TestAskedRules: rules choose processes by the names of their commands and their arguments; places differ by what is asked alone.
func TestAskedRules(t *testing.T) {
	one, two := start(t, "one", "100"), start(t, "two", "100")
	for _, c := range []struct {
		rules    string // one a line
		profiles int
		samples  uint64
	}{
		{`{"source_labels":["unit"],"target_label":"x"}`, 1, 2},
		{`{"source_labels":["comm"],"regex":"sle.*","action":"keep"}`, 1, 2},
		{`{"source_labels":["comm"],"regex":"nginx","action":"keep"}`, 0, 0},
		{`{"source_labels":["cmdline"],"regex":"one .*","action":"keep"}`, 1, 1},
		{`{"source_labels":["cmdline"],"target_label":"x"}`, 2, 2},
		{`{"source_labels":["cmdline"],"regex":"(t?).*","target_label":"__x"}` + "\n" + `{"regex":"cmdline","action":"labeldrop"}`, 1, 2},
		{`{"source_labels":["executable"],"regex":".*/(.*)","target_label":"program"}`, 1, 2},
	} {
		rules, err := ParseRules(strings.Split(c.rules, "\n"), true)
		if err != nil {
			t.Fatal(err)
		}
		a := newAgent(Options{Settings: Settings{Rules: rules, CommandLines: true}}, time.Now())
		a.reader.patience = time.Minute
		a.Add(sample(one, "sleep", 7))
		a.Add(sample(two, "sleep", 7))
		batches, err := a.Cut(time.Now())
		n := uint64(0)
		for _, b := range batches {
			n += b.Profile.Totals.Samples
		}
		if err != nil || len(batches) != c.profiles || n != c.samples {
			t.Errorf("%s: %d profiles with %d samples, %v; want %d with %d", c.rules, len(batches), n, err, c.profiles, c.samples)
		}
	}
}

// TestCmdline: a command line is bounded, and text.
func TestCmdline(t *testing.T) {
	if got := cmdline(start(t, "a b "+strings.Repeat("\xc3\xa9", 2000), "100")); len(got) > maxCmdline+2 || len(got) < maxCmdline-3 || !utf8.ValidString(got) || !strings.HasPrefix(got, "a b é") {
		t.Errorf("%d bytes: %q", len(got), got)
	}
	if got := cmdline(1 << 30); got != "" {
		t.Errorf("of no process: %q", got)
	}
	if got := executable(1 << 30); got != "" {
		t.Errorf("of no process: %q", got)
	}
	// A program whose file has been deleted has the path that it had, and its build ID.
	path := filepath.Join(t.TempDir(), "program")
	b, err := os.ReadFile(executable(start(t, "a", "100")))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	want, _ := procfs.FileBuildID(path, 0)
	c := exec.Command(path, "100")
	c.Args[0] = "sleep" // where one program is many
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	defer c.Process.Kill()
	os.Remove(path)
	got := executable(int32(c.Process.Pid))
	id, _ := procfs.FileBuildID(fmt.Sprintf("/proc/%d/exe", c.Process.Pid), 0)
	if got != path || hex.EncodeToString(id) != hex.EncodeToString(want) {
		t.Errorf("%q with %x, want %q with %x", got, id, path, want)
	}
}

// TestPatient: processes that hold up who reads them cost 250 ms in 10 s, and eight threads.
func TestPatient(t *testing.T) {
	rules, err := ParseRules([]string{`{"source_labels":["cmdline"],"target_label":"x"}`}, true)
	if err != nil {
		t.Fatal(err)
	}
	a := newAgent(Options{Settings: Settings{Rules: rules, CommandLines: true}}, time.Now())
	a.reader.held.Store(maxHeld)
	for range 2 { // samples of one process
		a.Add(sample(int32(os.Getpid()), "a thread", 7))
	}
	if n := a.Stats().Unread; n != 1 {
		t.Errorf("%d unread, want 1", n)
	}
	synctest.Test(t, func(t *testing.T) {
		p := patient{patience: askPatience}
		held := make(chan struct{})
		hold := func() asked { <-held; return asked{cmdline: "late"} }
		began := time.Now()
		for range 100 {
			if got, ok := p.read(hold); ok || got != (asked{}) {
				t.Errorf("%+v", got)
			}
		}
		if took := time.Since(began); took != maxLate*askPatience || p.held.Load() != maxLate {
			t.Errorf("took %v, and %d threads", took, p.held.Load())
		}
		time.Sleep(lateWindow)
		for range 100 {
			p.read(hold)
		}
		if n := p.held.Load(); n != maxHeld {
			t.Errorf("%d threads", n)
		}
		time.Sleep(lateWindow)
		if got, ok := p.read(func() asked { return asked{cmdline: "x"} }); ok {
			t.Errorf("there was no thread for %+v", got)
		}
		close(held)
		synctest.Wait()
		if got, ok := p.read(func() asked { return asked{cmdline: "x"} }); !ok || got.cmdline != "x" || p.held.Load() > 1 {
			t.Errorf("afterwards: %+v, %d threads", got, p.held.Load())
		}
	})
}

// TestAskedChange: when other rules come, samples that were taken before have the labels that the rules of then make, and later ones those of the new rules. A
// label that was asked for, and that no rule reads any more, is not sent.
func TestAskedChange(t *testing.T) {
	pid := start(t, "sleep --token=secret", "100")
	const part, less = `{"source_labels":["cmdline"],"regex":"(\\w+) .*","target_label":"program"}`, `{"regex":"cmdline","action":"labeldrop"}`
	own := fmt.Sprint(os.Geteuid())
	for _, c := range []struct {
		was, now string // rules, one a line
		want     string // samples by the labels program, cmdline and uid
	}{
		{part + "\n" + less, "", `[1 "sleep" "" "" 2 "" "" ""]`},
		{part, "", `[1 "sleep" "" "" 2 "" "" ""]`},
		{part, part, `[3 "sleep" "sleep --token=secret 100" ""]`},
		{part + "\n" + less, `{"source_labels":["uid"],"regex":"` + own + `","action":"keep"}`, `[1 "sleep" "" "" 2 "" "" "` + own + `"]`},
		{`{"source_labels":["uid"],"regex":"no-one","action":"keep"}`, `{"source_labels":["uid"],"regex":"` + own + `","action":"keep"}`, `[2 "" "" "` + own + `"]`},
		{`{"source_labels":["unit"],"target_label":"uid","replacement":"7"}`, "", `[1 "" "" "7" 2 "" "" ""]`}, // not what was asked for
	} {
		settings := func(rules string) (s Settings) {
			for rule := range strings.Lines(rules) {
				r, err := ParseRule(rule)
				if err != nil {
					t.Fatal(err)
				}
				s.Rules = append(s.Rules, r)
			}
			s.CommandLines = strings.Contains(rules, "cmdline")
			return s
		}
		a := newAgent(Options{Settings: settings(c.was)}, time.Now())
		a.reader.patience = time.Minute
		a.Add(sample(pid, "sleep", 7))
		a.Change(settings(c.now))
		a.Add(sample(pid, "sleep", 7))
		a.Add(sample(pid, "sleep", 8))
		batches, err := a.Cut(time.Now())
		var got []string
		for _, b := range batches {
			got = append(got, fmt.Sprintf("%d %q %q %q", b.Profile.Totals.Samples, b.Label("program"), b.Label("cmdline"), b.Label("uid")))
		}
		if slices.Sort(got); err != nil || fmt.Sprint(got) != c.want {
			t.Errorf("%s\nthen %s\nmake %s, %v; want %s", c.was, c.now, got, err, c.want)
		}
		if n := a.Stats().Processes; n != 1 {
			t.Errorf("%d processes, want 1", n)
		}
	}
}
