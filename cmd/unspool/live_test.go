package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/modules"
)

// canWalk skips the test where the kernel may not walk stacks.
func canWalk(t testing.TB) {
	t.Helper()
	r := runProgram(t, "record", "--source", "ebpf", "-o", os.DevNull, "--format", "folded", "--", "true")
	if r.status != 0 {
		oracle.Lacks(t, "the permission to walk stacks in the kernel: "+r.stderr)
	}
}

// Unless told otherwise, record has the kernel walk where it may, and says so; where an event cannot be walked there, it says why
// it is not.
func TestAuto(t *testing.T) {
	canRecord(t)
	const walks = "unspool: walking stacks in the kernel\n"
	r := runProgram(t, append([]string{"record", "--source", "perf", "-o", "x.folded", "--"}, busy...)...)
	if r.want(t, 7, "samples"); strings.Contains(r.stderr, "walking") {
		t.Errorf("record --source perf says\n%s\nwant nothing of walking in the kernel", r.stderr)
	}
	r = runProgram(t, append([]string{"record", "--stepper", "rows", "-o", "x.folded", "--"}, busy...)...)
	if r.want(t, 7, "samples"); strings.Contains(r.stderr, "walking") {
		t.Errorf("record --stepper rows says\n%s\nwant nothing of walking in the kernel", r.stderr)
	}
	canWalk(t)
	r = runProgram(t, append([]string{"record", "-o", "x.folded", "--"}, busy...)...)
	if r.want(t, 7, "samples"); strings.Count(r.stderr, walks) != 1 {
		t.Errorf("record says\n%s\nwant %q once", r.stderr, walks)
	}
	r = runProgram(t, "record", "-e", "sched:sched_process_exit", "-o", "x.folded", "-t", fmt.Sprint(spinner(t).Process.Pid), "--duration", "200ms")
	if os.Geteuid() == 0 {
		r.want(t, 0, "unspool: walking copies of stacks, not in the kernel: .*not single threads")
	}
	// An ordinary user is told nothing of what he did not ask for.
	c := as(t, "", append([]string{"record", "--user", "-o", "x.folded", "--"}, busy...)...)
	if level, _ := procfs.Setting("kernel/perf_event_paranoid"); level <= 2 {
		if r = finish(t, c); !strings.Contains(r.stderr, "samples") || strings.Contains(r.stderr, "kernel") {
			t.Errorf("%d: %s", r.status, r.stderr)
		}
	}
}

// objects reads what was written as .json or .jsonl.
func objects(t *testing.T, c *exec.Cmd, file string) (list []struct {
	PID, Count int
	Comm, Stop string
	Time       *uint64
	Frames     []struct{ Sym string }
}) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.Dir, file))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		list = append(list, struct {
			PID, Count int
			Comm, Stop string
			Time       *uint64
			Frames     []struct{ Sym string }
		}{})
		if err := json.Unmarshal([]byte(line), &list[len(list)-1]); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
	}
	if len(list) == 0 {
		t.Fatalf("%s is empty", file)
	}
	return list
}

// TestRecordJSON: .stacks.json has an object for each stack, with its count, .json and .jsonl have one for each sample; of record as of
// report.
func TestRecordJSON(t *testing.T) {
	canRecord(t)
	c := program(t, append([]string{"record", "-o", "x.stacks.json", "--"}, busy...)...)
	r := finish(t, c)
	r.want(t, 7, `x.stacks.json: [\d,]+ samples`)
	total, seen := 0, map[string]bool{}
	list := objects(t, c, "x.stacks.json")
	for _, o := range list {
		total += o.Count
		if o.Time != nil || o.Count < 1 {
			t.Errorf("%+v", o)
		}
	}
	b, err := os.ReadFile(filepath.Join(c.Dir, "x.stacks.json"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(regexp.MustCompile(`"count":\d+`).ReplaceAllString(string(b), "")) {
		if seen[line] {
			t.Errorf("twice: %s", line)
		}
		seen[line] = true
	}
	said, _ := strconv.Atoi(strings.ReplaceAll(regexp.MustCompile(`x.stacks.json: ([\d,]+) samples`).FindStringSubmatch(r.stderr)[1], ",", ""))
	if total != said || len(list) >= total {
		t.Errorf("%d stacks of %d samples, told: %d", len(list), total, said)
	}
	for _, file := range []string{"x.json", "x.jsonl"} {
		c = program(t, append([]string{"record", "-o", file, "--"}, busy...)...)
		finish(t, c).want(t, 7, "samples")
		last := uint64(0)
		for _, o := range objects(t, c, file) {
			if o.Count != 1 || o.Time == nil || *o.Time < last {
				t.Fatalf("%s: after %d: %+v", file, last, o)
			}
			last = *o.Time
		}
	}
	c = program(t, append([]string{"record", "--"}, busy...)...)
	finish(t, c).want(t, 7, "samples")
	for _, ending := range []string{"y.json", "y.jsonl"} {
		d := program(t, "report", filepath.Join(c.Dir, defaultRecording), "-o", ending)
		finish(t, d).want(t, 0, "samples")
		for _, o := range objects(t, d, ending) {
			if o.Count != 1 || o.Time == nil {
				t.Fatalf("%s: %+v", ending, o)
			}
		}
	}
	d := program(t, "report", filepath.Join(c.Dir, defaultRecording), "-o", "y.stacks.json")
	finish(t, d).want(t, 0, "samples")
	for _, o := range objects(t, d, "y.stacks.json") {
		if o.Count < 1 || o.Time != nil {
			t.Fatalf("%+v", o)
		}
	}
}

// Time that a command is blocked for is what counts, not how often.
func TestOffCPU(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	c := program(t, "record", "--off-cpu", "-o", "x.txt", "--", "sh", "-c", "sleep 0.5; :")
	finish(t, c).want(t, 0, "samples")
	b, err := os.ReadFile(filepath.Join(c.Dir, "x.txt"))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)% +([\d.]+) (m?s) +libc\S* +(\S*nanosleep\S*|wait\w*)$`).FindAllStringSubmatch(string(b), -1)
	if len(m) < 2 {
		t.Fatalf("%s", b)
	}
	for _, f := range m { // sh waits for sleep, and sleep sleeps
		took, err := time.ParseDuration(f[1] + f[2])
		if err != nil || took < 490*time.Millisecond || took > 10*time.Second {
			t.Errorf("%s for %s %s", f[3], f[1], f[2])
		}
	}
	// What a thread waits in is what calls the scheduler.
	head, rows, _ := strings.Cut(string(b), "function\n")
	if own := regexp.MustCompile(`(?m)^ *[\d.]+ % +[\d.]+ m?s .*% .*$`).FindString(rows); !strings.Contains(head, "time    total") || own == "" || strings.Contains(rows, "schedule\n") {
		t.Errorf("%s", b)
	}
}

// What --cgroup and --comm leave out is not recorded.
func TestScope(t *testing.T) {
	oracle.Long(t)
	canWalk(t)
	in, out := spinner(t), spinner(t)
	at := procfs.Mounted("cgroup2")
	if at == "" {
		oracle.Lacks(t, "cgroup v2")
	}
	dir, err := os.MkdirTemp(at, "unspool-test-")
	if err != nil {
		oracle.Lacks(t, "a cgroup of its own: "+err.Error())
	}
	t.Cleanup(func() {
		in.Process.Kill()
		in.Wait()
		for range 50 {
			if os.Remove(dir) == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(in.Process.Pid)), 0); err != nil {
		t.Fatal(err)
	}
	c := program(t, "record", "-a", "--cgroup", dir, "--duration", "1s", "-o", "x.json")
	finish(t, c).want(t, 0, `[\d,]+ samples ·`)
	for _, o := range objects(t, c, "x.json") {
		if o.PID != in.Process.Pid {
			t.Errorf("%+v is not in the cgroup", o)
		}
	}
	c = program(t, "record", "-a", "--comm", "^spinner$", "--memory", "64M", "--duration", "1s", "-o", "x.json")
	finish(t, c).want(t, 0, `[\d,]+ samples ·`)
	pids := map[int]bool{}
	for _, o := range objects(t, c, "x.json") {
		pids[o.PID] = true
		if o.Comm != "spinner" {
			t.Errorf("%+v", o)
		}
	}
	if !pids[in.Process.Pid] || !pids[out.Process.Pid] {
		t.Errorf("%v, want %d and %d", pids, in.Process.Pid, out.Process.Pid)
	}
	runProgram(t, "record", "-a", "--cgroup", "/nonexistent", "-o", "x.json").want(t, 1, "^unspool: --cgroup /nonexistent: no such directory\n$")
	runProgram(t, "record", "-a", "--cgroup", "/", "-o", "x.json").want(t, 1, "^unspool: --cgroup /: not a directory of cgroup v2; ")
}

// asDropped, in the environment, is the number of a process of another user in another mount namespace, and a file there.
const asDropped = "UNSPOOL_TEST_DROPPED"

// afterDrop gives up capabilities and tries what a recording may still have to do. It prints what went wrong.
func afterDrop() {
	fail := func(what string, err error) {
		if err != nil {
			fmt.Printf("%s: %v\n", what, err)
		}
	}
	pid, file, _ := strings.Cut(os.Getenv(asDropped), " ")
	n, _ := strconv.Atoi(pid)
	before, _ := caps.Own()
	fail("drop", caps.Drop(caps.Recording, 0))
	for _, c := range taskCaps("self") {
		if c != keptCaps {
			fmt.Printf("a thread has %x\n", c)
		}
	}
	// Else there is nothing to the rest.
	if f, err := os.Create(filepath.Join(filepath.Dir(file), "new")); !errors.Is(err, os.ErrPermission) {
		f.Close()
		fmt.Printf("a file in another user's directory: %v\n", err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/root%s", n, file))
	if fail("a file in another mount namespace", err); err == nil && string(b) != "secret\n" {
		fmt.Printf("%s: %q\n", file, b)
	}
	_, err = os.ReadFile(fmt.Sprintf("/proc/%d/maps", n))
	fail("another user's mappings", err)
	fail("an event for another user's thread", tryEvent(n, -1))
	fail("an event for all", tryEvent(-1, 0))
	out, err := exec.Command("grep", "CapEff", "/proc/self/status").Output()
	fail("a command", err)
	if s := strings.TrimSpace(strings.TrimPrefix(string(out), "CapEff:")); s != fmt.Sprintf("%016x", uint64(before)) {
		fmt.Printf("a command has %s, want %016x\n", s, uint64(before))
	}
	mods := modules.New()
	if c := mods.Module("/bin/sh", "").Code(); c == nil || c.Err != nil {
		fmt.Printf("/bin/sh: %+v\n", c)
	}
	fail("the cache", mods.CacheErr())
	if list, err := os.ReadDir(mods.CacheDir()); err != nil || len(list) == 0 {
		fmt.Printf("the cache has %v, %v\n", list, err)
	}
	// A cache that is another user's is not used, and that is said.
	os.Setenv("UNSPOOL_CACHE", filepath.Dir(file))
	if err := modules.New().CacheErr(); err == nil || strings.Contains(err.Error(), "\n") {
		fmt.Printf("another user's cache: %v\n", err)
	}
}

// tryEvent opens a sampling event of the processors' clock and closes it.
func tryEvent(pid, cpu int) error {
	a := unix.PerfEventAttr{
		Type: unix.PERF_TYPE_SOFTWARE, Config: unix.PERF_COUNT_SW_CPU_CLOCK, Size: unix.PERF_ATTR_SIZE_VER1, Sample: 99,
		Bits: unix.PerfBitFreq | unix.PerfBitDisabled, Sample_type: unix.PERF_SAMPLE_IP | unix.PERF_SAMPLE_TID,
	}
	fd, err := unix.PerfEventOpen(&a, pid, cpu, -1, unix.PERF_FLAG_FD_CLOEXEC)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

// keptCaps are those that a recording keeps: DAC_READ_SEARCH, SYS_PTRACE, PERFMON and BPF.
const keptCaps = 1<<2 | 1<<19 | 1<<38 | 1<<39

// taskCaps returns the effective and the permitted capabilities of a process's threads.
func taskCaps(pid string) (list []caps.Set) {
	files, _ := filepath.Glob("/proc/" + pid + "/task/*/status")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		for _, m := range regexp.MustCompile(`Cap(?:Eff|Prm):\s*([0-9a-f]+)`).FindAllStringSubmatch(string(b), -1) {
			n, _ := strconv.ParseUint(m[1], 16, 64)
			list = append(list, caps.Set(n))
		}
	}
	return list
}

// withoutCgo returns this test binary as it is without cgo.
func withoutCgo(t *testing.T) string {
	t.Helper()
	if caps.CanDrop() == nil {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		return exe
	}
	oracle.Need(t, "go")
	plain.Do(func() {
		// Not t.TempDir: it serves all tests of the process. TestMain removes it.
		if plain.dir, plain.err = os.MkdirTemp("", "unspool-plain"); plain.err != nil {
			return
		}
		c := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", filepath.Join(plain.dir, "unspool.test"), ".")
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := c.CombinedOutput(); err != nil {
			plain.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if plain.err != nil {
		t.Fatal(plain.err)
	}
	return filepath.Join(plain.dir, "unspool.test")
}

// plain is where withoutCgo has built the test binary.
var plain struct {
	sync.Once
	dir string
	err error
}

// TestDrop: once it runs, a recording has the capabilities that it needs and no others, in all threads; and with these it can do
// what it has to.
func TestDrop(t *testing.T) {
	canRecord(t)
	if effective, _ := caps.Own(); effective&keptCaps != keptCaps || !effective.Has(unix.CAP_SYS_ADMIN) {
		oracle.Lacks(t, "root")
	}
	bin := withoutCgo(t)
	c := program(t, "record", "-a", "-o", "x.folded")
	c.Path = bin
	wait := begin(t, c)
	var list []caps.Set
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if list = taskCaps(strconv.Itoa(c.Process.Pid)); len(list) > 0 && list[0] == keptCaps {
			break
		}
	}
	time.Sleep(300 * time.Millisecond)
	list = taskCaps(strconv.Itoa(c.Process.Pid))
	c.Process.Signal(os.Interrupt)
	if r := wait(); !strings.Contains(r.stderr, "samples") || strings.Contains(r.stderr, "could not be loaded into the kernel") {
		t.Errorf("%d: %s", r.status, r.stderr)
	}
	if len(list) < 4 {
		t.Fatalf("%d threads", len(list)/2)
	}
	for _, got := range list {
		if got != keptCaps {
			t.Errorf("capabilities %x of %x", got, list)
			break
		}
	}

	dir := t.TempDir()
	if err := errors.Join(os.Chown(dir, 65534, 65534), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sh", "-c", `mount -t tmpfs none "$0" && chown 65534 "$0" && echo secret >"$0/f" && chown 65534 "$0/f" && chmod 600 "$0/f" && echo ready && exec setpriv --reuid 65534 --regid 65534 --clear-groups sleep 1000`, dir)
	other.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	ready, err := other.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Start(); err != nil {
		oracle.Lacks(t, "mount namespaces: "+err.Error())
	}
	t.Cleanup(func() { other.Process.Kill(); other.Wait() })
	if n, err := ready.Read(make([]byte, 100)); n == 0 {
		t.Fatalf("sh prints nothing, want ready: %v", err)
	}
	time.Sleep(100 * time.Millisecond) // for setpriv
	c = program(t)
	c.Path = bin
	c.Env = append(os.Environ(), asDropped+"="+fmt.Sprintf("%d %s/f", other.Process.Pid, dir), "UNSPOOL_CACHE="+t.TempDir())
	if r := finish(t, c); r.out != "" || r.status != 0 {
		t.Errorf("status %d\n%s%s", r.status, r.out, r.stderr)
	}
}
