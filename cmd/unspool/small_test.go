package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/internal/ring"
)

// A memoryGroup is a control group whose memory is limited.
type memoryGroup struct {
	dir string
	v2  bool
}

func newMemoryGroup(t *testing.T, limit int) (g memoryGroup) {
	t.Helper()
	root, file := "/sys/fs/cgroup/memory", "memory.limit_in_bytes"
	if _, err := os.Stat(root); err != nil {
		root, file, g.v2 = "/sys/fs/cgroup", "memory.max", true
	}
	g.dir = filepath.Join(root, fmt.Sprint("unspool-small-", os.Getpid()))
	err := os.Mkdir(g.dir, 0o755)
	if err == nil {
		t.Cleanup(func() {
			for range 50 { // who was in it ends
				if os.Remove(g.dir) == nil {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
		err = os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(limit)), 0)
	}
	if err != nil {
		oracle.Lacks(t, "a control group whose memory can be limited: "+err.Error())
	}
	return g
}

// value returns a number of a file: all of it, or what is behind a name.
func (g *memoryGroup) value(t *testing.T, file, name string) int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	if name != "" {
		_, text, _ = strings.Cut("\n"+text, "\n"+name+" ")
		text, _, _ = strings.Cut(text, "\n")
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("%s of %s: %v", name, file, err)
	}
	return n
}

// held returns how many bytes the kernel cannot drop: of the programs, and its own for them.
func (g *memoryGroup) held(t *testing.T) (programs, kernel int) {
	if g.v2 {
		return g.value(t, "memory.stat", "anon"), g.value(t, "memory.stat", "kernel")
	}
	return g.value(t, "memory.stat", "rss"), g.value(t, "memory.kmem.usage_in_bytes", "")
}

// kills returns how many processes the kernel has killed.
func (g *memoryGroup) kills(t *testing.T) int {
	if g.v2 {
		return g.value(t, "memory.events", "oom_kill")
	}
	return g.value(t, "memory.oom_control", "oom_kill")
}

// fill fills a ring with as many profiles as these programs have in an hour, at the cost of the group's memory.
func (g *memoryGroup) fill(t *testing.T, dir string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	before, after, _ := strings.Cut(filepath.Join(dir, ring.Name(time.Now(), 20000, "small")), "-20000-")
	oracle.Run(t, "sh", "-c", `echo $$ > "$0"; n=0; while [ $n -lt 20000 ]; do echo > "$1-$n-$2"; n=$((n + 1)); done`,
		filepath.Join(g.dir, "cgroup.procs"), before, after)
	if files, err := os.ReadDir(dir); err != nil || len(files) != 20000 {
		t.Fatalf("%d files in the ring, %v", len(files), err)
	}
}

// metric returns a number of an agent's metrics.
func metric(t *testing.T, metrics, name string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(name) + ` (\S+)$`).FindStringSubmatch(metrics)
	if m == nil {
		t.Fatalf("no %s in\n%s", name, metrics)
	}
	f, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		t.Fatal(err)
	}
	return int(f)
}

// stopsIn returns how many stacks have ended for each reason.
func stopsIn(t *testing.T, metrics string) map[string]int {
	t.Helper()
	stops := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^unspool_stacks_total{stop="(.*)"} `).FindAllStringSubmatch(metrics, -1) {
		if n := metric(t, metrics, fmt.Sprintf("unspool_stacks_total{stop=%q}", m[1])); n > 0 {
			stops[m[1]] = n
		}
	}
	return stops
}

// runSmall makes n programs of 10 MB in dir, and runs them, with args, until the test ends. again starts one of them anew.
func runSmall(t *testing.T, dir string, n int, args ...string) (again func()) {
	t.Helper()
	paths, running := oracle.SmallPrograms(t, "../..", dir, n), make([]*exec.Cmd, n)
	stop := func(i int) {
		if c := running[i]; c != nil {
			c.Process.Kill()
			c.Wait()
		}
	}
	start := func(i int) {
		c := exec.Command("nice", append([]string{"-n5", paths[i]}, args...)...)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		running[i] = c
	}
	t.Cleanup(func() {
		for i := range running {
			stop(i)
		}
	})
	for i := range running {
		start(i)
	}
	r := rand.New(rand.NewPCG(1, 1))
	return func() {
		i := r.IntN(n)
		stop(i)
		start(i)
	}
}

// TestSmall: an agent with 64 MiB, for three minutes, or UNSPOOL_SMALL, beside 200 programs of 10 MB. Each second, one of them starts anew. Its ring
// has an hour's files. The kernel does not kill the agent; 99 % of the programs' stacks are whole, and no sample is lost.
func TestSmall(t *testing.T) {
	oracle.Full(t)
	canWalk(t)
	if runtime.GOARCH != "amd64" {
		oracle.Lacks(t, "an x86-64 machine")
	}
	const programs, limit = 200, 64 << 20
	length := 3 * time.Minute
	if s := os.Getenv("UNSPOOL_SMALL"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	group := newMemoryGroup(t, limit)
	dir := t.TempDir()
	group.fill(t, filepath.Join(dir, "ring"))
	again := runSmall(t, dir, programs)

	c := program(t, "agent", "--output", "files="+filepath.Join(dir, "ring")+"?size=64M", "--listen", "127.0.0.1:0", "--comm", "^small")
	// It runs when it has to, however busy the machine is: with a session of its own, its niceness counts among those in others only so (sched(7)).
	c.Args = append([]string{"sh", "-c", `echo $$ > "$0" && echo -10 > /proc/$$/autogroup; exec nice -n -10 "$@"`, filepath.Join(group.dir, "cgroup.procs"), c.Path}, c.Args[1:]...)
	var err error
	if c.Path, err = exec.LookPath("sh"); err != nil {
		t.Fatal(err)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	address, said := agentAddress(t, c)
	defer c.Process.Kill()
	most, mostKernel := 0, 0
	began := time.Now()
	for tick := time.NewTicker(time.Second); time.Since(began) < length; <-tick.C {
		again()
		own, kernel := group.held(t)
		most, mostKernel = max(most, own), max(mostKernel, kernel)
		if group.kills(t) > 0 {
			t.Fatalf("after %v, the kernel has killed it: it had %d MiB, and the kernel %d", time.Since(began), own>>20, kernel>>20)
		}
	}
	metrics := get(t, address+"/metrics")
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(); err != nil {
		t.Errorf("%v: %s", err, said())
	}
	lost, stops := metric(t, metrics, "unspool_lost_samples_total"), stopsIn(t, metrics)
	all := lost
	for _, n := range stops {
		all += n
	}
	t.Logf("%v: at most %.1f MiB of its own, and %.1f in the kernel; stacks by their ends: %v; %d records lost; %d s of CPU time", length, float64(most)/(1<<20),
		float64(mostKernel)/(1<<20), stops, lost, metric(t, metrics, "process_cpu_seconds_total"))
	if all < int(length/time.Second) {
		t.Errorf("only %d stacks", all)
	}
	if 100*stops["outermost"] < 99*all {
		t.Errorf("%d of %d stacks are whole", stops["outermost"], all)
	}
	if lost > 0 {
		t.Errorf("%d records were lost", lost)
	}
}

// TestBeside: an agent without a limit of its own, for five and a half minutes, or UNSPOOL_BESIDE, of a machine with 200 programs of 10 MB: of these
// programs, and of all. Every five seconds, one of them starts anew. From the 30th second on, it has 60 MB of memory, on average. Its cache is new.
func TestBeside(t *testing.T) {
	oracle.Full(t)
	canWalk(t)
	length := 330 * time.Second
	if s := os.Getenv("UNSPOOL_BESIDE"); s != "" {
		var err error
		if length, err = time.ParseDuration(s); err != nil {
			t.Fatal(err)
		}
	}
	exe := filepath.Join(t.TempDir(), "unspool") // as in a release: a test's program has more code, and debug information, which it would read of itself
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", exe, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	again := runSmall(t, t.TempDir(), 200, "1") // 30 functions a third of a second: together, less than a processor
	for _, of := range []struct{ name, comm string }{{"all", ""}, {"programs", "^small"}} {
		t.Run(of.name, func(t *testing.T) {
			c := exec.CommandContext(t.Context(), exe, "agent", "--output", "files="+filepath.Join(t.TempDir(), "ring"), "--listen", "127.0.0.1:0", "--comm", of.comm)
			c.Env = append(c.Environ(), "UNSPOOL_TABLES=", "XDG_CACHE_HOME="+t.TempDir())
			address, said := agentAddress(t, c)
			defer c.Process.Kill()
			var resident, own []int // KiB
			began, restarted := time.Now(), time.Duration(0)
			for tick := time.NewTicker(time.Second / 2); time.Since(began) < length; <-tick.C {
				since := time.Since(began)
				if since-restarted >= 5*time.Second {
					restarted = since
					again()
				}
				if since >= length/11 {
					resident, own = append(resident, kibOf(t, c, "VmRSS")), append(own, kibOf(t, c, "RssAnon"))
				}
			}
			metrics := get(t, address+"/metrics")
			if err := c.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if err := c.Wait(); err != nil {
				t.Errorf("%v: %s", err, said())
			}
			mean := func(list []int) (sum float64) {
				for _, v := range list {
					sum += float64(v) / 1024
				}
				return sum / float64(len(list))
			}
			stops, all := stopsIn(t, metrics), 0
			for _, n := range stops {
				all += n
			}
			whole := stops["outermost"]
			t.Logf("resident memory: %.1f MiB on average, %.1f at most; of its own, %.1f; %d of %d stacks whole; %d s of CPU time",
				mean(resident), float64(slices.Max(resident))/1024, mean(own), whole, all, metric(t, metrics, "process_cpu_seconds_total"))
			if mean(resident) > 60e6/(1<<20) {
				t.Errorf("%.1f MiB are more than 60 MB", mean(resident))
			}
			if 100*whole < 99*all || all == 0 {
				t.Errorf("%d of %d stacks are whole", whole, all)
			}
		})
	}
}

// kibOf returns a number of /proc/PID/status, in KiB.
func kibOf(t *testing.T, c *exec.Cmd, name string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSuffix(procfs.Status(c.Process.Pid, name), " kB"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAgentMemory: with --max-memory 64M, an agent of the whole machine has at most three quarters of 64 MiB of its own. The kernel can drop pages of files.
func TestAgentMemory(t *testing.T) {
	oracle.Long(t)
	canRecord(t)
	c := program(t, "agent", "--max-memory", "64M", "--output", "stdout", "--interval", "1s", "--listen", "127.0.0.1:0")
	address, said := agentAddress(t, c)
	defer c.Process.Kill()
	most, all := 0, 0
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		most, all = max(most, kibOf(t, c, "RssAnon")), max(all, kibOf(t, c, "VmRSS"))
	}
	if got := get(t, address+"/metrics"); !strings.Contains(got, "unspool_") {
		t.Errorf("/metrics has no unspool_ in %q", got)
	}
	c.Process.Signal(syscall.SIGTERM)
	if err := c.Wait(); err != nil || !strings.Contains(said(), "they take too much of the memory") {
		t.Errorf("%v: %s", err, said())
	}
	t.Logf("%d KiB of its own, %d resident", most, all)
	if most == 0 || most > 48<<10 {
		t.Errorf("%d KiB of its own\n%s", most, said())
	}
}

// agentAddress starts an agent, and returns the address where it answers. said returns what it has said, once it has ended.
func agentAddress(t *testing.T, c *exec.Cmd) (address string, said func() string) {
	t.Helper()
	pipe, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	ended, found := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(ended)
		for in := bufio.NewScanner(pipe); in.Scan(); {
			fmt.Fprintln(&log, in.Text())
			if _, at, ok := strings.Cut(in.Text(), "msg=listening address="); ok {
				found <- "http://" + at
			}
		}
	}()
	said = func() string { <-ended; return log.String() }
	select {
	case address = <-found:
	case <-ended:
		c.Wait()
		t.Fatalf("the agent ended: %s", said())
	}
	return address, said
}
