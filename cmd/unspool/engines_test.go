package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	proto "github.com/google/pprof/profile"

	"github.com/unspool/unspool/internal/oracle"
)

// inliner spins in a function that is inlined into its caller.
const inliner = `
static volatile unsigned long n;
static inline __attribute__((always_inline)) void spin(void) { for (int i = 0; i < 100000000; i++) n += i; }
__attribute__((noinline)) void work(void) { spin(); n++; }
int main(void) { work(); n++; return 0; }
`

// recordInliner returns a recording with an inlined call.
func recordInliner(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "gcc")
	dir := t.TempDir()
	src, exe, data := filepath.Join(dir, "inliner.c"), filepath.Join(dir, "inliner"), filepath.Join(dir, "a.data")
	if err := os.WriteFile(src, []byte(inliner), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O2", "-g", "-o", exe, src)
	runProgram(t, "record", "-F", "999", "-o", data, "--", exe).want(t, 0, "")
	return data
}

// samplesOf writes the samples of a profile in pprof's format, equal ones summed: its values, labels, and frames with inlined calls in brackets.
func samplesOf(p *proto.Profile) map[string][]int64 {
	out := map[string][]int64{}
	for _, s := range p.Sample {
		key := fmt.Sprintf("comm=%s pid=%d tid=%d stop=%s", strings.Join(s.Label["comm"], ""), s.NumLabel["pid"], s.NumLabel["tid"], strings.Join(s.Label["stop"], ""))
		for _, l := range s.Location {
			key += " | "
			for i, line := range l.Line {
				key += fmt.Sprintf("[%d]%s %s:%d", i, line.Function.Name, line.Function.Filename, line.Line)
			}
		}
		add(out, key, s.Value...)
	}
	return out
}

func add(to map[string][]int64, key string, values ...int64) {
	if to[key] == nil {
		to[key] = make([]int64, len(values))
	}
	for i, v := range values {
		to[key][i] += v
	}
}

// reported is what report writes of a recording in pprof's format.
func reported(t *testing.T, data string) (*proto.Profile, map[string][]int64) {
	t.Helper()
	r := runProgram(t, "report", data, "--format", "pprof")
	r.want(t, 0, "")
	p, err := proto.ParseData([]byte(r.out))
	if err != nil {
		t.Fatal(err)
	}
	m := samplesOf(p)
	inlined := false
	for key := range m {
		inlined = inlined || strings.Contains(key, "[0]spin") && strings.Contains(key, "[1]work")
	}
	if !inlined {
		t.Fatalf("no inlined call was recorded: %v", m)
	}
	return p, m
}

// TestPyroscope: the handler of Pyroscope's own API module gets what report writes, and what it refuses is said in its words.
func TestPyroscope(t *testing.T) {
	oracle.Long(t)
	data := recordInliner(t)
	cmd := exec.Command(oracle.Engine(t, "pyroscope"))
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	in := bufio.NewReader(pipe)
	line := func() string {
		s, err := in.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(s)
	}
	to := "pyroscope=http://" + line()
	runProgram(t, "report", data, "--to", to, "--label", "team=a b").want(t, 0, "sent .* samples?, .*process_cpu:cpu:nanoseconds:cpu:nanoseconds{")
	var req struct {
		Series []struct {
			Labels  []struct{ Name, Value string }
			Samples []struct{ RawProfile []byte }
		}
	}
	if err := json.Unmarshal([]byte(line()), &req); err != nil || len(req.Series) != 1 || len(req.Series[0].Samples) != 1 {
		t.Fatalf("%v: %v", err, req)
	}
	labels := fmt.Sprint(req.Series[0].Labels)
	for _, want := range []string{"{__name__ process_cpu}", "{service_name inliner}", "{team a b}"} {
		if !strings.Contains(labels, want) {
			t.Errorf("no %s in %s", want, labels)
		}
	}
	got, err := proto.ParseData(req.Series[0].Samples[0].RawProfile)
	if err != nil {
		t.Fatal(err)
	}
	p, want := reported(t, data)
	if diff := cmp.Diff(want, samplesOf(got)); diff != "" {
		t.Errorf("-reported +received:\n%s", diff)
	}
	if got.TimeNanos == 0 || got.DurationNanos == 0 || got.DurationNanos != p.DurationNanos {
		t.Errorf("from %d for %d", got.TimeNanos, got.DurationNanos)
	}
	for _, c := range got.Comments {
		if strings.HasPrefix(c, "command:") {
			t.Errorf("the command line was sent: %s", c)
		}
	}
	runProgram(t, "report", data, "--to", to, "--label", "service_name=limited").want(t, 1, `429 Too Many Requests: the limit is reached \(try again\)`)
}

// TestCollector: an OpenTelemetry collector writes, by HTTP and by gRPC, the samples that report writes: values, labels, names, lines and inlined calls.
func TestCollector(t *testing.T) {
	oracle.Long(t)
	data := recordInliner(t)
	_, want := reported(t, data)
	exe := oracle.Engine(t, "collector")
	for _, scheme := range []string{"http", "grpc"} {
		t.Run(scheme, func(t *testing.T) {
			dir := t.TempDir()
			port, out := freePort(t), filepath.Join(dir, "out.json")
			config := fmt.Sprintf(`
receivers: {otlp: {protocols: {%s: {endpoint: "127.0.0.1:%d"}}}}
exporters: {file: {path: %q}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {profiles: {receivers: [otlp], exporters: [file]}}
`, scheme, port, out)
			if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(config), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(exe, "--config", "file:"+filepath.Join(dir, "c.yaml"), "--feature-gates=service.profilesSupport")
			var log bytes.Buffer
			cmd.Stdout, cmd.Stderr = &log, &log
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			stop := func() { cmd.Process.Signal(os.Interrupt); cmd.Wait() }
			defer func() { cmd.Process.Kill() }()
			at := fmt.Sprintf("127.0.0.1:%d", port)
			for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
				if c, err := net.Dial("tcp", at); err == nil {
					c.Close()
					break
				}
				if time.Now().After(end) {
					stop()
					t.Fatalf("the collector does not listen:\n%s", &log)
				}
			}
			runProgram(t, "report", data, "--to", "otlp="+scheme+"://"+at, "--label", "team=a b").want(t, 0, `otlp=\S+: sent .* samples?, .* \w+\n`)
			stop() // it writes what it has
			b, err := os.ReadFile(out)
			if err != nil {
				t.Fatalf("%v\n%s", err, &log)
			}
			got, resource := received(t, bytes.NewReader(b))
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("-reported +received:\n%s", diff)
			}
			if !strings.Contains(resource, "service.name=inliner") || !strings.Contains(resource, "team=a b") {
				t.Errorf("resource: %s", resource)
			}
		})
	}
}

// TestParca: what Parca's own server gives back of a recording is what report writes: values, names, lines and inlined calls; by its own protocol,
// and with the recording's labels.
func TestParca(t *testing.T) {
	oracle.Full(t)
	data := recordInliner(t)
	p, want := reported(t, data)
	at := parcaServer(t)
	sent := runProgram(t, "report", data, "--to", "parca=http://"+at, "--label", "team=a b")
	sent.want(t, 0, "look there for unspool:samples:count:.*{")
	_, query, _ := strings.Cut(strings.TrimSpace(sent.stderr), "look there for ")
	if !strings.Contains(query, `team="a b"`) || !strings.Contains(query, `service_name="inliner"`) {
		t.Errorf("the query %s lacks labels", query)
	}
	got := parcaAnswer(t, at, query)
	// Parca merges samples of a stack, and gives back one value: the count times the period.
	if len(got.SampleType) != 1 || got.SampleType[0].Unit != p.SampleType[1].Unit {
		t.Fatalf("%v of %v", got.SampleType, p.SampleType)
	}
	merged := map[string]int64{}
	for key, values := range want {
		_, stack, _ := strings.Cut(key, " | ")
		merged[stack] += values[1]
	}
	for key, values := range samplesOf(got) {
		_, stack, _ := strings.Cut(key, " | ")
		if merged[stack] -= values[0]; merged[stack] == 0 {
			delete(merged, stack)
		}
	}
	if len(merged) > 0 {
		t.Errorf("what was sent less what came back: %v", merged)
	}
}

// parcaServer starts Parca's own server, and returns its address.
func parcaServer(t *testing.T) (at string) {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "parca.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "object_storage: {bucket: {type: FILESYSTEM, config: {directory: %q}}}\n", dir), 0o600); err != nil {
		t.Fatal(err)
	}
	at = fmt.Sprintf("127.0.0.1:%d", freePort(t))
	server := exec.Command(oracle.Engine(t, "parca"), "--config-path="+config, "--http-address="+at)
	var log bytes.Buffer
	server.Env = append(os.Environ(), "TMPDIR="+dir)
	server.Dir, server.Stdout, server.Stderr = dir, &log, &log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if r, err := http.Get("http://" + at + "/api/profiles/labels"); err == nil {
			if r.Body.Close(); r.StatusCode == http.StatusOK {
				break
			}
		}
		if time.Now().After(end) {
			server.Process.Kill()
			server.Wait()
			t.Fatalf("Parca is not ready:\n%s", &log)
		}
	}
	return at
}

// parcaAnswer is what Parca gives back for a query, in pprof's format.
func parcaAnswer(t *testing.T, at, query string) (got *proto.Profile) {
	t.Helper()
	ask := url.Values{"mode": {"MODE_MERGE"}, "reportType": {"REPORT_TYPE_PPROF"}, "merge.query": {query}}
	for name, days := range map[string]int{"merge.start": -1, "merge.end": 1} {
		ask.Set(name, time.Now().AddDate(0, 0, days).UTC().Format(time.RFC3339))
	}
	until(t, "Parca's answer", func() bool {
		r, err := http.Get("http://" + at + "/api/profiles/query?" + ask.Encode())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		var answer struct{ Pprof []byte }
		if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
			t.Fatal(err)
		}
		got, err = proto.ParseData(answer.Pprof)
		return err == nil && len(got.Sample) > 0
	})
	return got
}

// TestParcaNames: what Parca names itself, by the files that the agent has given it, has the names that report has for the same time. Parca shows the
// calls inlined at a place in another order, so a place is compared as a set.
func TestParcaNames(t *testing.T) {
	oracle.Full(t)
	oracle.Need(t, "gcc", "sh")
	if os.Getuid() != 0 {
		oracle.Lacks(t, "root, to record by an agent")
	}
	dir := t.TempDir()
	src, exe, ring := filepath.Join(dir, "inliner.c"), filepath.Join(dir, "inliner"), filepath.Join(dir, "ring")
	if err := os.WriteFile(src, []byte(inliner), 0o600); err != nil {
		t.Fatal(err)
	}
	oracle.Run(t, "gcc", "-O2", "-g", "-o", exe, src)
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // the program's processes have ended when its file is sent: all must be allowed to read it
		t.Fatal(err)
	}
	at := parcaServer(t)
	to := "parca=http://" + at
	const service = "inliner"
	r := runProgram(t, "agent", "-F", "199", "--interval", "1s", "--listen", "", "--output", to+"?names=upload", "--output", "files="+ring, "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8; do "+exe+"; done; sleep 5")
	r.want(t, 0, "")
	report := func(args ...string) *proto.Profile {
		t.Helper()
		r := runProgram(t, append([]string{"report", "--format", "pprof"}, args...)...)
		r.want(t, 0, "")
		p, err := proto.ParseData([]byte(r.out))
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	want := report(ring, "--service", service)
	got := parcaAnswer(t, at, fmt.Sprintf("unspool:samples:count:cpu:nanoseconds:delta{service_name=%q}", service))
	// The files are sent while the command sleeps. What Parca names in another way than report does, by the function's name here: it takes names of the debug information only, where there is some.
	permitted := map[string]string{"_start": "", "__libc_start_main": "__libc_start_main_impl"}
	if left := placesLess(want, got, permitted); len(left) > 0 {
		t.Errorf("what report writes less what Parca gives back: %v", left)
	}
	inlined := false
	for _, l := range got.Location {
		inlined = inlined || len(l.Line) > 1
	}
	if !inlined {
		t.Errorf("Parca has found no inlined call in %d samples with %d locations and %d functions; report has %d, %d and %d",
			len(got.Sample), len(got.Location), len(got.Function), len(want.Sample), len(want.Location), len(want.Function))
	}
	if got := report(ring); len(got.Sample) == 0 {
		t.Errorf("the whole ring has 0 samples, its service %d", len(want.Sample))
	}

	// A recording that is sent later: Parca has the files already.
	data := recordInliner(t)
	runProgram(t, "report", data, "--to", to+"?names=upload", "--label", "service_name=later").want(t, 0, `sent [01] files? with names, .*; [1-9] the server had`)
}

// placesLess returns the values of stacks in one profile less those in another. permitted functions of the first have another name in the other. All
// stacks before main are one: the dynamic linker's and the library's functions have many names each, and Parca takes that of the debug information.
func placesLess(p, q *proto.Profile, permitted map[string]string) map[string]int64 {
	out := map[string]int64{}
	sum := func(p *proto.Profile, value int, sign int64, names map[string]string) {
		for _, s := range p.Sample {
			key := ""
			for _, l := range s.Location {
				var at []string
				for _, line := range l.Line {
					name := line.Function.Name
					if other, ok := names[name]; ok {
						name = other
					}
					if name != "" {
						at = append(at, name)
					}
				}
				slices.Sort(at)
				key += " | " + strings.Join(at, " ")
			}
			if !strings.Contains(key, " main ") {
				key = "before main"
			}
			if out[key] += sign * s.Value[value]; out[key] == 0 {
				delete(out, key)
			}
		}
	}
	sum(p, 1, 1, permitted)
	sum(q, 0, -1, nil)
	return out
}

func freePort(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A text is an AnyValue in the collector's JSON.
type text struct {
	StringValue         string
	StringValueStrindex int
	IntValue            string
}

// received reads what the collector has written as samplesOf writes it: samples/count first, then the first event.
func received(t *testing.T, r io.Reader) (out map[string][]int64, resource string) {
	var m struct {
		ResourceProfiles []struct {
			Resource struct {
				Attributes []struct {
					Key         string
					KeyStrindex int
					Value       text
				}
			}
			ScopeProfiles []struct {
				Profiles []struct {
					SampleType struct{ TypeStrindex int }
					Samples    []struct {
						StackIndex       int
						AttributeIndices []int
						Values           []string
					}
				}
			}
		}
		Dictionary struct {
			LocationTable []struct {
				Lines []struct {
					FunctionIndex int
					Line          json.Number
				}
			}
			FunctionTable  []struct{ NameStrindex, FilenameStrindex int }
			StringTable    []string
			AttributeTable []struct {
				KeyStrindex int
				Value       text
			}
			StackTable []struct{ LocationIndices []int }
		}
	}
	if err := json.NewDecoder(r).Decode(&m); err != nil {
		t.Fatal(err)
	}
	d := &m.Dictionary
	str := func(v text) string {
		if v.StringValueStrindex > 0 {
			return d.StringTable[v.StringValueStrindex]
		}
		return v.StringValue + v.IntValue
	}
	out = map[string][]int64{}
	for _, a := range m.ResourceProfiles[0].Resource.Attributes {
		key := a.Key
		if a.KeyStrindex > 0 {
			key = d.StringTable[a.KeyStrindex]
		}
		resource += key + "=" + str(a.Value) + " "
	}
	for _, p := range m.ResourceProfiles[0].ScopeProfiles[0].Profiles {
		of := slices.Index([]string{"samples", "cpu"}, d.StringTable[p.SampleType.TypeStrindex])
		if of < 0 {
			of = 1
		}
		for _, s := range p.Samples {
			at := map[string]string{}
			for _, i := range s.AttributeIndices {
				a := d.AttributeTable[i]
				at[d.StringTable[a.KeyStrindex]] = str(a.Value)
			}
			key := fmt.Sprintf("comm=%s pid=[%s] tid=[%s] stop=%s", at["thread.name"], at["process.pid"], at["thread.id"], at["unspool.stop"])
			for _, l := range d.StackTable[s.StackIndex].LocationIndices {
				key += " | "
				for i, line := range d.LocationTable[l].Lines {
					f := d.FunctionTable[line.FunctionIndex]
					n := string(line.Line)
					if n == "" {
						n = "0"
					}
					key += fmt.Sprintf("[%d]%s %s:%s", i, d.StringTable[f.NameStrindex], d.StringTable[f.FilenameStrindex], n)
				}
			}
			values := make([]int64, 2)
			if len(s.Values) != 1 {
				t.Fatalf("%d values", len(s.Values))
			}
			if _, err := fmt.Sscan(s.Values[0], &values[of]); err != nil {
				t.Fatal(err)
			}
			add(out, key, values...)
		}
	}
	return out, resource
}
