package report

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/unwind"
)

// A speedscopeFile is the part of the format that tests read.
type speedscopeFile struct {
	Shared   struct{ Frames []struct{ Name string } }
	Profiles []struct {
		Name, Unit           string
		StartValue, EndValue uint64
		Samples              [][]int
		Weights              []uint64
	}
}

// countsOfSpeedscope counts functions: what is within the thread's name and a mark. Where there are times, all samples weigh the same.
func countsOfSpeedscope(t *testing.T, b []byte) counts {
	var f speedscopeFile
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	c := counts{}
	for _, p := range f.Profiles {
		all, one := p.StartValue, uint64(1)
		for i, s := range p.Samples {
			if all += p.Weights[i]; len(s) > 0 && p.Unit == "nanoseconds" {
				one = p.Weights[i]
			}
		}
		for i, s := range p.Samples {
			var names []string
			for k := len(s) - 1; k > 0; k-- {
				if name := f.Shared.Frames[s[k]].Name; k > 1 || name != "[truncated]" && name != "[broken]" {
					names = append(names, name)
				}
			}
			if len(s) == 0 {
				continue // a gap
			}
			if p.Weights[i]%one != 0 {
				t.Errorf("%s: a sample weighs %d, another %d", p.Name, p.Weights[i], one)
			}
			c.add(p.Weights[i]/one, names)
		}
		if all != p.EndValue {
			t.Errorf("%s: weights end at %d, the end is %d", p.Name, all, p.EndValue)
		}
	}
	return c
}

// TestSpeedscopeOrder: a thread's samples stand at their times, waits from begin to end, with gaps between.
func TestSpeedscopeOrder(t *testing.T) {
	for _, c := range []struct {
		event string
		by    Weight
		want  string
	}{
		{"cpu-clock", Samples, "a (1/1) 0-66: 10 [a x] 10 [a y] 36 [] 10 [a x]; b (1/2) 20-40: 10 [b z] 10 [b z]"},
		{profile.OffCPU, Periods, "a (1/1) 500-560: 4 [a x] 6 [] 4 [a y] 42 [] 4 [a x]; b (1/2) 0-534: 524 [b z] 6 [] 4 [b z]"},
	} {
		n := namer{}
		var b bytes.Buffer
		info := profile.Info{Events: []profile.Event{profile.NewEvent(c.event)}, Duration: 50}
		st := NewSpeedscope(&b, n, info, Options{By: c.by})
		for _, s := range []struct {
			tid    int32
			comm   string
			addr   uint64
			at     uint64
			period uint64
		}{{1, "a", 1, 1010, 4}, {1, "a", 2, 1020, 4}, {2, "b", 3, 1030, 524}, {2, "b", 3, 1040, 4}, {1, "a", 1, 1066, 4}} {
			if c.event == "cpu-clock" {
				s.period = 10
			}
			if err := st.Sample(&profile.Sample{PID: 1, TID: s.tid, Comm: s.comm, Time: s.at, Period: s.period, Kernel: []uint64{s.addr}}); err != nil {
				t.Fatal(err)
			}
		}
		if err := st.Close(profile.Loss{}); err != nil {
			t.Fatal(err)
		}
		var f speedscopeFile
		if err := json.Unmarshal(b.Bytes(), &f); err != nil {
			t.Fatalf("%v\n%s", err, b.Bytes())
		}
		var got []string
		for _, p := range f.Profiles {
			s := fmt.Sprintf("%s %d-%d:", p.Name, p.StartValue, p.EndValue)
			for i, st := range p.Samples {
				var names []string
				for _, k := range st {
					names = append(names, f.Shared.Frames[k].Name)
				}
				s += fmt.Sprint(" ", p.Weights[i], " ", names)
			}
			got = append(got, s)
		}
		if diff := cmp.Diff(c.want, strings.Join(got, "; ")); diff != "" {
			t.Errorf("%s (-want +got)\n%s", c.event, diff)
		}
	}
}

// A namer calls addresses of the kernel x, y, z.
type namer struct{}

func (namer) User(*unwind.Module, []uint64, []profile.Name) {}
func (namer) Kernel(addrs []uint64, names []profile.Name) {
	for i, a := range addrs {
		names[i].Func = string(rune('x' + a - 1))
	}
}

// A firefoxProfile is the part of the format that tests read.
type firefoxProfile struct {
	Meta   struct{ Interval, StartTime, ProfilingEndTime float64 }
	Shared struct {
		StringArray []string
		FuncTable   struct{ Name []int }
		FrameTable  struct{ Func, InlineDepth []int }
		StackTable  struct {
			Frame  []int
			Prefix []*int
		}
	}
	Threads []struct {
		Name, Pid string
		Tid       int
		Samples   struct {
			Stack  []*int
			Time   []float64
			Weight []float64
		}
	}
}

// countsOfFirefox counts functions: what is within a mark. Times of a thread must not fall.
func countsOfFirefox(t *testing.T, b []byte) counts {
	var f firefoxProfile
	if err := json.Unmarshal(b, &f); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	c := counts{}
	for _, th := range f.Threads {
		for i, st := range th.Samples.Stack {
			if at := th.Samples.Time[i]; at > f.Meta.ProfilingEndTime || i > 0 && at < th.Samples.Time[i-1] {
				t.Errorf("%s %d: sample %d is at %v", th.Name, th.Tid, i, at)
			}
			n := uint64(1)
			if w := th.Samples.Weight; w != nil {
				n = uint64(w[i])
			}
			var names []string
			for ; st != nil; st = f.Shared.StackTable.Prefix[*st] {
				name := f.Shared.StringArray[f.Shared.FuncTable.Name[f.Shared.FrameTable.Func[f.Shared.StackTable.Frame[*st]]]]
				if f.Shared.StackTable.Prefix[*st] != nil || name != "[truncated]" && name != "[broken]" {
					names = append(names, name)
				}
			}
			c.add(n, names)
		}
	}
	return c
}

// TestSpeedscopeSchema holds profiles, of unpleasant names too, against the schema in speedscope's npm package.
func TestSpeedscopeSchema(t *testing.T) {
	oracle.Long(t)
	schema := filepath.Join(oracle.NPM(t, "speedscope"), "dist/release/file-format-schema.json")
	ajv := oracle.NPM(t, "ajv")
	const script = `const [ajv, schema, ...files] = process.argv.slice(1), read = f => JSON.parse(require("fs").readFileSync(f, "utf8"));
const check = new (require(ajv))({ strict: false }).compile(read(schema));
for (const f of files) if (!check(read(f))) { console.log(f, check.errors); process.exitCode = 1; }`
	args := []string{"-e", script, ajv, schema}
	for i, p := range viewed(t) {
		var b bytes.Buffer
		if err := Speedscope(&b, p, Options{By: Weight(i % 2)}); err != nil {
			t.Fatal(err)
		}
		args = append(args, keep(t, b.Bytes()))
	}
	for _, path := range []string{"testdata/basic.txtar", "testdata/hostile.txtar"} {
		_, r := load(t, path)
		args = append(args, keep(t, outputs(t, r)["speedscope"]))
	}
	if out, err := exec.Command("node", args...).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// viewed returns profiles that viewers must open.
func viewed(t *testing.T) []*profile.Profile {
	var list []*profile.Profile
	for _, path := range []string{"testdata/basic.txtar", "testdata/inlined.txtar", "testdata/hostile.txtar"} {
		_, r := load(t, path)
		p := r.profile()
		list = append(list, p, p)
	}
	return append(list, manyStacks(200))
}

// keep writes b into a file.
func keep(t *testing.T, b []byte) string {
	path := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(path, b, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// A firefoxSession asks the Firefox Profiler's command-line reader, which has its own server.
type firefoxSession struct {
	t    *testing.T
	tool string
	dir  string
}

func (s *firefoxSession) run(args ...string) ([]byte, error) {
	cmd := exec.Command("node", append([]string{s.tool}, args...)...)
	cmd.Env = append(os.Environ(), "PROFILER_CLI_SESSION_DIR="+s.dir, "PROFILER_CLI_NO_SYMBOLICATE=1")
	return cmd.Output()
}

// load starts the server. On a busy machine the command gives up before the server is there, which then mostly comes all
// the same.
func (s *firefoxSession) load(path string) {
	s.t.Helper()
	s.t.Cleanup(s.stop)
	var last error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); {
		_, err := s.run("load", path)
		if err == nil {
			return
		}
		last = err
		for range 50 {
			if _, err := s.run("thread", "list"); err == nil {
				return
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	var said []byte
	if exit, ok := last.(*exec.ExitError); ok {
		said = exit.Stderr
	}
	s.t.Fatalf("profiler-cli has no server for %s after five minutes: %v\n%.2000s", path, last, said)
}

// stop ends the servers, and waits for that: they have files open.
func (s *firefoxSession) stop() {
	var pids []int
	sessions, _ := filepath.Glob(filepath.Join(s.dir, "*.json"))
	for _, path := range sessions {
		var session struct{ Pid int }
		if b, err := os.ReadFile(path); err == nil && json.Unmarshal(b, &session) == nil && session.Pid > 1 {
			pids = append(pids, session.Pid)
		}
	}
	s.run("stop", "--all")
	for _, pid := range pids {
		for n := 0; syscall.Kill(pid, 0) == nil; n++ {
			if n == 300 {
				syscall.Kill(pid, syscall.SIGKILL)
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
}

// ask returns what a command prints as JSON. The server may take its time.
func (s *firefoxSession) ask(into any, args ...string) {
	s.t.Helper()
	var b []byte
	var err error
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if b, err = s.run(append(args, "--json")...); err == nil {
			break
		}
	}
	if err == nil {
		err = json.Unmarshal(b, into)
	}
	if err != nil {
		s.t.Fatalf("profiler-cli %s: %v\n%s", strings.Join(args, " "), err, b)
	}
}

// TestFirefoxReader: the Firefox Profiler's own reader finds each thread's functions with our numbers.
func TestFirefoxReader(t *testing.T) {
	oracle.Long(t)
	tool := filepath.Join(oracle.NPM(t, "@firefox-devtools/profiler-cli"), "dist/profiler-cli.js")
	_, r := load(t, "testdata/inlined.txtar")
	for _, name := range []string{"firefox", "firefox-aggregated"} {
		s := &firefoxSession{t, tool, t.TempDir()}
		s.load(keep(t, outputs(t, r)[name]))
		got := counts{}
		var list struct {
			Threads []struct{ ThreadHandle string }
		}
		s.ask(&list, "thread", "list")
		for _, th := range list.Threads {
			var functions struct {
				Functions []struct {
					Name                      string
					SelfSamples, TotalSamples uint64
				}
			}
			s.ask(&functions, "thread", "functions", "--limit", "0", "--include-idle", "--thread", th.ThreadHandle)
			for _, f := range functions.Functions {
				if got[f.Name] == nil {
					got[f.Name] = &count{}
				}
				got[f.Name].self += f.SelfSamples
				got[f.Name].total += f.TotalSamples
			}
		}
		want := countsOf(r.profile())
		want["[truncated]"] = &count{0, 1}
		if diff := cmp.Diff(fmt.Sprint(want), fmt.Sprint(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}
