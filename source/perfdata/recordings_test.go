package perfdata

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/unwind"
)

// workload forks, executes, maps and unmaps, and burns a little time. It runs in a shell of its own name, $0, and executes an ls of its own
// name: what others do on the machine meanwhile is not what a recording of all of it is judged by.
const workload = `
for i in 1 2 3; do
	(n=0; while [ $n -lt 20000 ]; do n=$((n+1)); done; [ $i = 2 ] && exec "${0%sh}ls" -R /usr/share/doc) &
done
wait`

// own begins the names of the workload's commands.
const own = "perfdata-"

// judged tells whether the frames of a sample are to be judged: in a recording of the whole machine those of the workload. Files that others
// map come and go between one reading and the next, and some never had a name.
func judged(recording, comm string) bool {
	return filepath.Base(recording) != "system.data" || strings.HasPrefix(comm, own)
}

// recordings are the ways of recording that the tests are run on, with perf's options. "-o -" makes a stream.
var recordings = []struct{ name, options string }{
	{"dwarf", "-F 1999 --call-graph dwarf,4096"},
	{"compressed", "-z -F 1999 --call-graph dwarf,4096"},
	{"two-events", "-F 1999 -e cpu-clock,page-faults --call-graph dwarf,2048"},
	{"fp", "-F 1999 -g"},
	{"lost", "-m 1 -F 1999 --call-graph dwarf,2048"}, // a sample a ring
	{"no-chain", "-F 1999 -e cpu-clock"},
	{"system", "-F 199 -a --call-graph dwarf,2048"},
	{"all-fields", "-F 1999 -T -d -P --sample-cpu --switch-events --namespaces --data-page-size --code-page-size --weight --phys-data --all-cgroups -e cpu-clock,page-faults -g"},
	{"registers", "-F 1999 -I --user-regs=ax,ip,sp,bp -g"},
	{"group", "-F 1999 -e {cpu-clock,page-faults}:S -g"},
	{"tracepoint", "-e sched:sched_switch,sched:sched_wakeup -g"},
	{"build-ids", "--buildid-mmap -F 1999 -g"},
	{"clock", "-k CLOCK_MONOTONIC -F 1999 -g"},
	{"stream", "-o - -F 1999 --call-graph dwarf,4096"},
	{"stream-tracepoint", "-o - -e sched:sched_switch -g"},
	{"stream-compressed", "-o - -z -F 1999 -e cpu-clock,page-faults --call-graph dwarf,4096"},
}

var made struct {
	sync.Mutex
	dir   string
	files map[string]string
}

func TestMain(m *testing.M) {
	code := m.Run()
	if made.dir != "" {
		os.RemoveAll(made.dir)
	}
	os.Exit(code)
}

// record returns the file of a recording, which is made at the first use.
func record(t testing.TB, name string) string {
	t.Helper()
	oracle.Need(t, "perf")
	made.Lock()
	defer made.Unlock()
	if path := made.files[name]; path != "" {
		return path
	}
	if made.dir == "" {
		dir, err := os.MkdirTemp("", "perfdata")
		if err != nil {
			t.Fatal(err)
		}
		made.dir, made.files = dir, map[string]string{}
	}
	for _, r := range recordings {
		if r.name != name {
			continue
		}
		path := filepath.Join(made.dir, name+".data")
		// perf 6.1 aborts now and then, by an assertion on build IDs: while it records, when the file is whole all
		// the same, and while it reads, some files always. Those are of no use.
		for try := 1; ; try++ {
			perfRecord(t, path, r.options)
			err := exec.Command("perf", "script", "-D", "-i", path).Run()
			b, _ := os.ReadFile(path)
			if err == nil && (try == 10 || !oracle.Leftover(b)) {
				break
			}
			if try == 10 {
				t.Fatalf("perf cannot read what it recorded with %s: %v", r.options, err)
			}
		}
		made.files[name] = path
		return path
	}
	t.Fatalf("BUG: no recording %q", name)
	return ""
}

// perfRecord makes one recording.
func perfRecord(t testing.TB, path, options string) {
	t.Helper()
	args := append([]string{"record", "-q", "-N"}, strings.Fields(options)...)
	stream := strings.HasPrefix(options, "-o -")
	if !stream {
		args = append(args, "-o", path)
	}
	shell := filepath.Join(filepath.Dir(path), own+"sh")
	for _, name := range []string{"sh", "ls"} {
		copied := filepath.Join(filepath.Dir(path), own+name)
		if _, err := os.Stat(copied); err == nil {
			continue
		}
		command, err := exec.LookPath(name)
		if err == nil {
			var b []byte
			if b, err = os.ReadFile(command); err == nil {
				err = os.WriteFile(copied, b, 0o755)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("perf", append(args, "--", shell, "-c", "exec >&2; "+workload, shell)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if stream {
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		cmd.Stdout = out
	}
	err := cmd.Run()
	if st, e := os.Stat(path); err != nil && strings.Contains(stderr.String(), "build-id.c") && e == nil && st.Size() > 0 {
		return
	}
	if err != nil {
		t.Logf("%v: %v\n%.400s", cmd.Args[:len(cmd.Args)-2], err, stderr.Bytes())
		oracle.Lacks(t, "the permission for perf "+strings.Join(args, " "))
	}
}

func eachRecording(t *testing.T, f func(t *testing.T, path string)) {
	for _, r := range recordings {
		t.Run(r.name, func(t *testing.T) { f(t, record(t, r.name)) })
	}
}

func openTest(t testing.TB, path string) *File {
	t.Helper()
	in, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(in, path)
	if err != nil {
		in.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close(); in.Close() })
	return f
}

// run reads f, giving sample and record what they are for.
func run(t testing.TB, f *File, o source.Options) source.Stats {
	t.Helper()
	o.Ours = f.Info().Ours
	st, err := source.Run(context.Background(), f, o)
	if err != nil {
		t.Fatal(err)
	}
	if st.Bad+st.Unknown > 0 {
		t.Errorf("%d bad records, %d unknown: %v", st.Bad, st.Unknown, st.BadErr)
	}
	return st
}

// sampleText is all of a sample that a report can show.
func sampleText(s *source.Sample) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d/%d [%d] %d: event %d period %d ip %#x, %v %v, kernel %#x\n", s.Comm, s.PID, s.TID, s.CPU, s.Time, s.Event, s.Period, s.IP, s.From, s.Stop, s.Kernel)
	for i := range s.User {
		f := &s.User[i]
		fmt.Fprintf(&b, "\t%#x %#x %v %s\n", uint64(f.PC), uint64(f.Addr()), f.How, mappingText(f.Mapping))
	}
	return b.String()
}

func mappingText(m *unwind.Mapping) string {
	if m == nil {
		return "-"
	}
	return fmt.Sprintf("%#x-%#x %#x %s %s", uint64(m.Lo), uint64(m.Hi), m.Off, m.Module.Path, m.Module.BuildID)
}
