package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
)

const agentWork = `
#include <time.h>
#include <unistd.h>
static volatile unsigned long n;
__attribute__((noinline)) void work(void) { for (int i = 0; i < 1000000; i++) n += i; }
/* until there is a file, for two minutes at most */
int main(int argc, char **argv) { struct timespec t; do { work(); clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); } while (t.tv_sec < 120 && access(argv[1], F_OK)); return 7; }
`

// A pusher is an engine with Pyroscope's address that is away at first.
type pusher struct {
	mu     sync.Mutex
	away   bool
	turned int
	took   []*proto.Profile
	labels []map[string]string
}

func (p *pusher) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.away {
		p.turned++
		http.Error(w, "not now", http.StatusServiceUnavailable)
		return
	}
	var req struct {
		Series []struct {
			Labels  []struct{ Name, Value string }
			Samples []struct{ RawProfile []byte }
		}
	}
	err := json.NewDecoder(r.Body).Decode(&req)
	if err != nil || len(req.Series) != 1 || len(req.Series[0].Samples) != 1 {
		http.Error(w, fmt.Sprint(err), http.StatusBadRequest)
		return
	}
	got, err := proto.ParseData(req.Series[0].Samples[0].RawProfile)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	labels := map[string]string{}
	for _, l := range req.Series[0].Labels {
		labels[l.Name] = l.Value
	}
	p.took, p.labels = append(p.took, got), append(p.labels, labels)
}

// samples counts the samples of a profile, and those that have a function.
func samples(p *proto.Profile, function string) (all, with int64) {
	for _, s := range p.Sample {
		all += s.Value[0]
		for _, l := range s.Location {
			for _, line := range l.Line {
				if line.Function.Name == function {
					with += s.Value[0]
				}
			}
		}
	}
	return all, with
}

// TestAgent: what an agent counts arrives at every output, also at an engine that was away, and its pages say so. The command's exit status is the
// agent's.
func TestAgent(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe, ring, enough := filepath.Join(dir, "work.c"), filepath.Join(dir, "work"), filepath.Join(dir, "ring"), filepath.Join(dir, "enough")
	if err := os.WriteFile(src, []byte(agentWork), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, src)
	p := &pusher{away: true}
	server := httptest.NewServer(p)
	defer server.Close()

	c := program(t, "agent", "--output", "files="+ring, "--output", "pyroscope="+server.URL, "--interval", "1s", "--listen", "127.0.0.1:0", "-F", "99",
		"--label", "region=north", "--log-format", "json", "--command-lines",
		"--relabel", `{"source_labels": ["executable", "cmdline"], "regex": ".*/work;.*/work .*/enough", "target_label": "program", "replacement": "work"}`, "--", exe, enough)
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	var page, live string
	var done struct{ Samples, Lost, Profiles int64 }
	var log strings.Builder
	defer func() {
		if t.Failed() {
			t.Logf("the agent said\n%s", log.String())
		}
	}()
	in := bufio.NewReader(pipe)
	for {
		text, err := in.ReadString('\n')
		if err != nil {
			break
		}
		log.WriteString(text)
		var line struct{ Msg, Address string }
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			t.Errorf("%q: %v", text, err)
		}
		switch {
		case line.Msg == "listening":
			page = "http://" + line.Address
		case line.Msg == "the last minutes are on a page":
			live = line.Address
		case strings.Contains(line.Msg, "not now"):
			page := get(t, page+"/readyz")
			if !strings.Contains(page, "pyroscope does not take") {
				t.Errorf("/readyz: %s", page)
			}
			p.mu.Lock()
			p.away = false
			p.mu.Unlock()
		case line.Msg == "takes profiles again":
			if s := get(t, page+"/readyz") + get(t, page+"/healthz"); s != "ok\nok\n" {
				t.Errorf("/readyz and /healthz: %s", s)
			}
			metrics := get(t, page+"/metrics")
			for _, want := range []string{`unspool_samples_total [1-9]`, `unspool_sent_total{target="pyroscope=` + server.URL + `"} [1-9]`, `unspool_retries_total{target="pyro[^}]*} [1-9]`,
				`unspool_stacks_total{stop="outermost"} [1-9]`, `process_cpu_seconds_total `} {
				if !regexp.MustCompile("(?m)^" + want).MatchString(metrics) {
					t.Errorf("/metrics has no %s:\n%s", want, metrics)
				}
			}
			livePage(t, page, live)
			if err := os.WriteFile(enough, nil, 0o600); err != nil {
				t.Error(err)
			}
		case line.Msg == "done":
			if err := json.Unmarshal([]byte(text), &done); err != nil {
				t.Error(err)
			}
		}
	}
	if c.Wait(); c.ProcessState.ExitCode() != 7 {
		t.Errorf("exit status %d", c.ProcessState.ExitCode())
	}

	var all, inWork int64
	files, err := filepath.Glob(filepath.Join(ring, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		got, err := proto.ParseData(b)
		if err != nil {
			t.Fatal(err)
		}
		n, with := samples(got, "work")
		all, inWork = all+n, inWork+with
		runProgram(t, "report", f).want(t, 0, "")
	}
	if all != done.Samples || int64(len(files)) != done.Profiles || done.Profiles == 0 || all == 0 || inWork < all/2 {
		t.Errorf("%d files with %d samples, %d in work; the agent says %+v", len(files), all, inWork, done)
	}
	// The directory is one profile of all.
	merged := filepath.Join(dir, "all.pb.gz")
	runProgram(t, "report", ring, "-o", merged).want(t, 0, "")
	if b, err := os.ReadFile(merged); err != nil {
		t.Error(err)
	} else if got, err := proto.ParseData(b); err != nil {
		t.Error(err)
	} else if n, with := samples(got, "work"); n != all || with != inWork {
		t.Errorf("report of the directory has %d samples, %d in work; its files have %d and %d", n, with, all, inWork)
	}
	runProgram(t, "report", ring, "--service", "^no such$").want(t, 1, "no samples of that time, service")
	var pushed int64
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		t.Fatal(err)
	}
	programs := 0
	for i, got := range p.took {
		n, _ := samples(got, "work")
		pushed += n
		if l := p.labels[i]; l["region"] != "north" || l["service_name"] == "" || l["node"] == "" || l["__name__"] != "process_cpu" || l["kernel"] != strings.TrimSpace(string(kernel)) {
			t.Errorf("labels %v", l)
		} else if l["program"] == "work" && l["executable"] == exe && l["cmdline"] == exe+" "+enough {
			programs++
		}
	}
	if programs == 0 {
		t.Errorf("no profile is of %s: %v", exe, p.labels)
	}
	if pushed != all || p.turned == 0 {
		t.Errorf("%d samples in %d profiles arrived at the engine, which was away %d times, and %d in files", pushed, len(p.took), p.turned, all)
	}
}

// TestAgentReload: on SIGHUP, the agent reads its file again. What can change does at once, and nothing of what waits is lost; the rest is named. A
// file with a mistake changes nothing.
func TestAgentReload(t *testing.T) {
	canRecord(t)
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe, ring, enough, file := filepath.Join(dir, "work.c"), filepath.Join(dir, "work"), filepath.Join(dir, "ring"), filepath.Join(dir, "enough"), filepath.Join(dir, "agent.toml")
	if err := os.WriteFile(src, []byte(agentWork), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O1", "-g", "-o", exe, src)
	p := &pusher{away: true}
	server := httptest.NewServer(p)
	defer server.Close()

	const first = "listen = \"\"\ninterval = \"1s\"\nlog-format = \"json\"\noutput = [%q]\n[label]\nregion = \"north\"\n"
	const second = "listen = \"\"\ninterval = \"2s\"\nlog-format = \"json\"\nfrequency = 50\noutput = [%q, %q]\n[label]\nregion = \"south\"\n"
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(fmt.Sprintf(first, "pyroscope="+server.URL))
	c := program(t, "agent", "--config", file, "-F", "99", "--", exe, enough)
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	again := func() {
		if err := c.Process.Signal(syscall.SIGHUP); err != nil {
			t.Error(err)
		}
	}
	var log strings.Builder
	step := 0
	for in := bufio.NewScanner(pipe); in.Scan(); {
		fmt.Fprintln(&log, in.Text())
		var line struct {
			Msg, Flags string
			Outputs    int
		}
		if err := json.Unmarshal(in.Bytes(), &line); err != nil {
			t.Errorf("%q: %v", in.Text(), err)
		}
		switch {
		case step == 0 && strings.Contains(line.Msg, "not now"): // a profile waits
			write("output = 7 7")
			again()
			step++
		case step == 1 && strings.Contains(line.Msg, "the configuration stays as it was: "+file):
			write(fmt.Sprintf(second, "pyroscope="+server.URL, "files="+ring))
			again()
			step++
		case step == 2 && line.Msg == "read again" && line.Outputs == 2:
			p.mu.Lock()
			p.away = false
			p.mu.Unlock()
			step++
		case step == 3 && line.Msg == "these change when the agent starts again": // the command line says -F 99 in both
			t.Errorf("flags %s", line.Flags)
		case step == 3 && line.Msg == "takes profiles again":
			write("stack-size = 4096\n" + fmt.Sprintf(second, "pyroscope="+server.URL, "files="+ring))
			again()
			step++
		case step == 4 && line.Flags == "stack-size":
			step++
			if err := os.WriteFile(enough, nil, 0o600); err != nil {
				t.Error(err)
			}
		}
	}
	c.Wait()
	files, err := filepath.Glob(filepath.Join(ring, "*"))
	if err != nil {
		t.Fatal(err)
	}
	var north, south int
	for _, l := range p.labels {
		switch l["region"] {
		case "north":
			north++
		case "south":
			south++
		}
	}
	if step != 5 || c.ProcessState.ExitCode() != 7 || north == 0 || south == 0 || len(files) == 0 {
		t.Errorf("step %d of 5, exit status %d; %d profiles from the north, %d from the south, %d files; the agent said\n%s", step, c.ProcessState.ExitCode(), north, south, len(files), log.String())
	}
}

// TestAgentMissing: what an output did not take is said at the end.
func TestAgentMissing(t *testing.T) {
	canRecord(t)
	r := runProgram(t, append([]string{"agent", "--output", "parca=http://127.0.0.1:1", "--listen", "", "-F", "999", "--"}, busy...)...)
	r.want(t, 7, `msg="profiles are missing" output="?parca=http://127.0.0.1:1"? sent=0 dropped=[1-9]`)
}

// livePage looks at the page of the last minutes, and at it without its token.
func livePage(t *testing.T, page, address string) {
	t.Helper()
	for _, path := range []string{"/", "/live/1/api/info", "/pprof/"} {
		if body := get(t, page+path); !strings.Contains(body, "needs the token") {
			t.Errorf("%s without a token: %.300s", path, body)
		}
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := http.Client{Timeout: time.Minute, Jar: jar}
	for url, want := range map[string]string{address: "<title>unspool</title>", page + "/live/1/api/graph?view=calls": `"text":"work"`} {
		if url != address { // the first leaves the cookie
			if _, err := client.Get(address); err != nil {
				t.Fatal(err)
			}
		}
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if b, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s has no %s: %v, %.300s", url, want, err, b)
		}
	}
}

func get(t *testing.T, url string) string {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	resp, err := client.Get(url)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestAgentConfig: a flag comes from the command line, else from the environment, else from the file; what is wrong is said with its place.
func TestAgentConfig(t *testing.T) {
	oracle.Long(t)
	file := filepath.Join(t.TempDir(), "agent.toml")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("output = [\"files=/a\", \"files=/b c\"]\ninterval = \"30s\"\nfrequency = 49\n[label]\nteam = \"x y\"\nregion = \"north\"\n")
	show := func(env []string, args ...string) result {
		c := program(t, append([]string{"agent", "--config", file, "--print-config"}, args...)...)
		c.Env = append(c.Env, env...)
		return finish(t, c)
	}
	r := show([]string{"UNSPOOL_AGENT_INTERVAL=40s", "UNSPOOL_AGENT_FREQUENCY=7"}, "--interval", "50s")
	r.want(t, 0, "")
	want := "frequency = 7\ninterval = \"50s\"\nlabel = [\"region=north\", \"team=x y\"]\noutput = [\"files=/a\", \"files=/b c\"]\n"
	if !strings.Contains(r.out, want) {
		t.Errorf("got %q, want %q", r.out, want)
	}
	// What is printed is a configuration.
	write(r.out)
	if again := show(nil); again.out != r.out {
		t.Errorf("printed %q, then %q", r.out, again.out)
	}
	r = show([]string{"UNSPOOL_AGENT_OUTPUT=files=/c files=/d"})
	if want := `output = ["files=/c", "files=/d"]`; !strings.Contains(r.out, want) {
		t.Errorf("got %q, want %q", r.out, want)
	}
	write("[[relabel]]\nsource_labels = [\"unit\"]\nregex = \"ssh.*\"\naction = \"drop\"\n[[relabel]]\ntarget_label = \"team\"\nreplacement = \"web\"\n")
	r = show(nil)
	if want := `relabel = ["{\"action\":\"drop\",\"regex\":\"ssh.*\",\"source_labels\":[\"unit\"]}", "{\"replacement\":\"web\",\"target_label\":\"team\"}"]`; !strings.Contains(r.out, want) {
		t.Errorf("got %q, want %q", r.out, want)
	}
	for text, want := range map[string]string{
		"colour = \"red\"":              `there is no flag "colour"`,
		"config = \"x\"":                `there is no flag "config"`,
		"interval = [\"1s\", \"x\"":     "agent.toml",
		"frequency = \"x\"":             `agent.toml: frequency takes a number such as 10, not "x"`,
		"output = [[\"a\"]]":            "agent.toml: output: want a string",
		"output = 1979-05-27T07:32:00Z": "agent.toml: output: want a string",
	} {
		write(text + "\n")
		show(nil).want(t, 2-boolean(want == "agent.toml"), want)
	}
	runProgram(t, "agent").want(t, 2, "name an engine with --output")
	runProgram(t, "agent", "--output", "x=y").want(t, 2, "--output: a target is KIND=URL")
	runProgram(t, "agent", "--output", "files=/proc/nowhere").want(t, 2, "--output: files: .*/proc/nowhere")
	runProgram(t, "agent", "--output", "parca=http://x", "--relabel", "{\"action\":\"keep\"}").want(t, 2, "--relabel: rule 1: keep needs source_labels")
	runProgram(t, "agent", "--output", "parca=http://x", "--relabel", `{"source_labels":["cmdline"],"target_label":"x"}`).want(t, 2, "--relabel: rule 1: command lines may hold secrets: a rule reads cmdline only with --command-lines")
	runProgram(t, "agent", "--output", "parca=http://x", "--interval", "1ms").want(t, 2, "--interval is 1s to an hour")
	runProgram(t, "agent", "--output", "parca=http://x", "--listen", ":80").want(t, 2, "--listen \":80\": name the address, too")

	// Mistakes of the file and the environment name their place, also those that are found later.
	for text, want := range map[string]string{
		"output = [\"x=y\"]":                                     `agent.toml: output: a target is KIND=URL`,
		"output = [\"files=/tmp\"]\ninterval = \"1ms\"":          `agent.toml: interval is 1s to an hour`,
		"output = [\"files=/tmp\"]\ninterval = \"soon\"":         `agent.toml: interval takes a time such as 10s, not "soon"`,
		"output = [\"files=/tmp\"]\nlisten = \":80\"":            `agent.toml: listen ":80": name the address, too`,
		"output = [\"files=/tmp\"]\nlisten = \"192.0.2.1:1\"":    `agent.toml: listen: listen tcp 192.0.2.1:1`,
		"output = [\"files=/tmp\"]\nfrequency = 0":               `agent.toml: frequency takes a number of samples`,
		"output = [\"files=/tmp\"]\n[[relabel]]\naction = \"x\"": `agent.toml: relabel: rule 1: action is`,
	} {
		write(text + "\n")
		runProgram(t, "agent", "--config", file).want(t, 2-boolean(strings.Contains(want, "tcp")), want)
	}
	c := program(t, "agent", "--output", "files=/tmp")
	c.Env = append(c.Env, `UNSPOOL_AGENT_RELABEL=[{"source_labels": ["unit"], "regex": "a b", "action": "keep"}, {"action": "drop"}]`)
	finish(t, c).want(t, 2, "^unspool: UNSPOOL_AGENT_RELABEL: rule 2: drop needs source_labels")

	// What is printed without settings is a configuration, with the defaults.
	r = runProgram(t, "agent", "--print-config")
	r.want(t, 0, "")
	for _, line := range []string{"frequency = 19", "interval = \"10s\"", "log-format = \"text\"", "off-cpu-threshold = \"10ms\"", "process-context = true", "memory: a 64th of the machine's memory, at most 1G; less under a limit of memory",
		"event: cycles, or cpu-clock on machines without counters", "stack-size: 32 KiB; 60 KiB if the kernel walks most stacks, and less while many copies wait"} {
		if !strings.Contains(r.out, "\n# "+line+"\n") {
			t.Errorf("no default %s in\n%s", line, r.out)
		}
	}
	var defaults strings.Builder
	for _, m := range regexp.MustCompile(`(?m)^# (.* = .*)$`).FindAllStringSubmatch(r.out, -1) {
		fmt.Fprintln(&defaults, m[1])
	}
	write(defaults.String() + "output = [\"files=/tmp\"]\nlabel = [\"x\"]\n")
	runProgram(t, "agent", "--config", file).want(t, 2, "agent.toml: label: ") // and nothing else is wrong
}

func boolean(b bool) int {
	if b {
		return 1
	}
	return 0
}
