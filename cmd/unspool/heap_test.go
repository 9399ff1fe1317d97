package main

import (
	"bufio"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
	rec "github.com/unspool/unspool/record"
)

// heapLibraries is where heapRuntime has built the libraries for heap profiles, once. TestMain removes it.
var heapLibraries struct {
	sync.Once
	dir string
	err error
}

// heapRuntime builds the libraries for heap profiles, and returns a directory of this test with them.
func heapRuntime(t *testing.T) string {
	t.Helper()
	oracle.Need(t, "make", "gcc")
	l := &heapLibraries
	l.Do(func() {
		if l.dir, l.err = os.MkdirTemp("", "unspool-heap"); l.err != nil {
			return
		}
		if out, err := exec.Command("make", "-C", "../../runtime", "BUILD="+l.dir, "heap").CombinedOutput(); err != nil {
			l.err = fmt.Errorf("%w\n%s", err, out)
		}
	})
	if l.err != nil {
		t.Fatal(l.err)
	}
	dir := t.TempDir()
	for _, name := range []string{"libunspool_heap.so", "libunspool_heap_new.so"} {
		if err := os.Link(filepath.Join(l.dir, name), filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, doctor.Dropin), nil, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestHeapSnapshots: snapshots, which time or SIGUSR2 makes, lie beside the output and show what was in use; none is overwritten, and the output's
// reader finds those of its run.
func TestHeapSnapshots(t *testing.T) {
	oracle.Long(t)
	dir := heapRuntime(t)
	prog := filepath.Join(dir, "staged")
	gcc := exec.Command("gcc", "-O1", "-g", "-fno-builtin", "-x", "c", "-o", prog, "-")
	gcc.Stdin = strings.NewReader(`#include <stdlib.h>
#include <unistd.h>
static void *keep[1000], *volatile sink;
__attribute__((noipa)) static void first(void) { for (int i = 0; i < 1000; i++) keep[i] = malloc(1000); }
__attribute__((noipa)) static void drop(void) { for (int i = 0; i < 500; i++) free(keep[i]); }
__attribute__((noipa)) static void second(void) { for (int i = 0; i < 300; i++) sink = malloc(2000); }
int main(void) {
	char c;
	first();
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	drop();
	second();
	return 0;
}`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	at := t.TempDir()
	record := func(usr2 bool, args ...string) result {
		t.Helper()
		c := program(t, append(append([]string{"record", "--heap=all"}, args...), "--", prog)...)
		c.Env, c.Dir = append(c.Env, "UNSPOOL_RUNTIME="+dir), at
		in, err := c.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var stderr strings.Builder
		c.Stdout, c.Stderr = w, &stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		w.Close()
		if _, err := r.Read(make([]byte, 1)); err != nil { // first has run
			t.Fatalf("the program prints nothing: %v; stderr:\n%s", err, stderr.String())
		}
		there := func() int {
			list, _ := filepath.Glob(filepath.Join(at, "h.0*"))
			return len(list)
		}
		n := there()
		if usr2 {
			if err := c.Process.Signal(syscall.SIGUSR2); err != nil {
				t.Fatal(err)
			}
		}
		for limit := time.Now().Add(time.Minute); there() == n && time.Now().Before(limit); time.Sleep(time.Millisecond) {
		}
		in.Write([]byte{'x'})
		in.Close()
		c.Wait()
		return result{c.ProcessState.ExitCode(), "", stderr.String()}
	}
	record(true, "-o", "h.pb.gz").want(t, 0, `h.001.pb.gz: after \d+\.\d s: 976.6 KiB in use, 1,000 objects\n(.*\n)*.*h.pb.gz: `)
	record(false, "-o", "h.pb.gz", "--every", "300ms").want(t, 0, `h.002.pb.gz: after 0\.[3-9] s: 976.6 KiB in use, 1,000 objects\n`)
	record(true, "-o", "h.folded").want(t, 0, `h.001.folded: after`)
	if b, err := os.ReadFile(filepath.Join(at, "h.001.folded")); err != nil || !strings.Contains(string(b), ";first 1000000\n") {
		t.Errorf("%s %v", b, err)
	}
	read := func(args ...string) result {
		c := program(t, args...)
		c.Dir = at
		return finish(t, c)
	}
	r := read("diff", "h.002.pb.gz", "h.pb.gz")
	r.want(t, 0, "")
	for _, line := range []string{`488\.3 KiB -488\.3 KiB .* first`, `585\.9 KiB \+585\.9 KiB .* second`} {
		if !regexp.MustCompile(line).MatchString(r.out) {
			t.Errorf("no %s in\n%s", line, r.out)
		}
	}
	if r := read("report", "--heap-value", "alloc_objects", "--format", "folded", "h.pb.gz"); !strings.Contains(r.out, ";first 1000\n") || !strings.Contains(r.out, ";second 300\n") {
		t.Errorf("report --heap-value alloc_objects prints\n%s\nwant first 1000, second 300; stderr:\n%s", r.out, r.stderr)
	}
	var got []string
	f, err := rec.Open(filepath.Join(at, "h.pb.gz"), rec.FileOptions{Heap: "alloc_space", Added: func(p *profile.Profile, stacks []int32) {
		got = append(got, p.InMemory())
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if n := len(got); n < 2 || got[0] != "976.6 KiB allocated, 1,000 objects" || got[n-1] != "1.5 MiB allocated, 1,300 objects" || f.Pprof.Totals.Period != 1_600_000 || slices.Contains(got[1:n-1], got[n-1]) {
		t.Errorf("%q, %d bytes", got, f.Pprof.Totals.Period)
	}
	for args, want := range map[string]string{
		"record --heap --every 1s -o - --format folded -- true": "^unspool: --every writes snapshots beside the output: give -o FILE",
		"record --every 1s -- true":                             "^unspool: --every goes with --heap",
		"record --heap=mmap --heap-period 1K -- true":           "^unspool: --heap-period takes a size, 1 or more, and excludes --heap=mmap",
	} {
		c := program(t, strings.Fields(args)...)
		c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir)
		finish(t, c).want(t, 2, want)
	}
	read("report", "--heap-value", "peak_space", "h.002.pb.gz").want(t, 0, "")

	maps := filepath.Join(dir, "maps")
	gcc = exec.Command("gcc", "-O1", "-g", "-x", "c", "-o", maps, "-")
	gcc.Stdin = strings.NewReader("#include <stdlib.h>\n#include <sys/mman.h>\n" +
		"__attribute__((noipa)) static void *mapper(void) { return mmap(0, 40000, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }\n" +
		"int main(void) { char *p = mapper(); mapper(); return munmap(p, 4096) || !malloc(1000); }\n")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := program(t, "record", "--heap=mmap", "-o", "maps.folded", "--", maps)
	c.Env, c.Dir = append(c.Env, "UNSPOOL_RUNTIME="+dir), at
	finish(t, c).want(t, 0, `maps.folded: `)
	if b, err := os.ReadFile(filepath.Join(at, "maps.folded")); err != nil || !strings.Contains(string(b), ";main;mapper 77824\n") || strings.Count(string(b), ";mapper ") != 1 {
		t.Errorf("%s %v", b, err)
	}
}

// TestHeapTwice: a second Ctrl-C leaves none of the library's files.
func TestHeapTwice(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	dir := heapRuntime(t)
	c := program(t, "record", "--heap", "-o", "x.svg", "--", "sh", "-c", "trap '' INT TERM; touch up; sleep 5")
	tmp := filepath.Join(c.Dir, "tmp")
	if err := os.Mkdir(tmp, 0o700); err != nil {
		t.Fatal(err)
	}
	c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir, "TMPDIR="+tmp)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Process.Kill()
	for limit := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(c.Dir, "up")); err == nil {
			break
		}
		if time.Now().After(limit) {
			t.Fatalf("%q has not started its command after a minute: its state is %q", c.Args[1:], procfs.Status(c.Process.Pid, "State"))
		}
	}
	c.Process.Signal(os.Interrupt)
	time.Sleep(time.Second)
	c.Process.Signal(os.Interrupt)
	if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "interrupt") {
		t.Fatalf("record ends with %v after two interrupts, want signal: interrupt", err)
	}
	holds(t, tmp)
	holds(t, c.Dir, "tmp", "up")
}

// heapLoop allocates when it is told to. Each function's objects and bytes are in TestHeapProbes.
const heapLoop = `#include <stdlib.h>
#include <pthread.h>
#include <unistd.h>
static void *volatile sink, *keep[1000];
__attribute__((noipa)) void leak(int i) { keep[i] = malloc(1000); }
__attribute__((noipa)) void churn(void) { sink = malloc(2000); free(sink); }
__attribute__((noipa)) void grow(void) { void *p = calloc(10, 10); p = realloc(p, 50000); sink = p; free(p); }
__attribute__((noipa)) void null(void) { sink = realloc(NULL, 77); }
__attribute__((noipa)) void array(void) { sink = reallocarray(NULL, 5, 8); }
__attribute__((noipa)) void aligned(void) { void *p; if (posix_memalign(&p, 64, 300) == 0) sink = p; sink = aligned_alloc(64, 640); }
__attribute__((noipa)) void fails(void) { sink = malloc((size_t)1 << 46); sink = malloc((size_t)1 << 60); }
static void *other(void *x) { for (int i = 0; i < 1000; i++) aligned(); for (int i = 0; i < 300; i++) free(keep[i]); return x; }
int main(void) {
	char c;
	pthread_t t;
	sink = malloc(1);
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	for (int i = 0; i < 1000; i++) { leak(i); churn(); grow(); null(); array(); fails(); }
	if (pthread_create(&t, 0, other, 0) || pthread_join(t, 0)) return 1;
	return 0;
}`

// heapProgram compiles a program that tells when it runs, and waits to be told to go on.
func heapProgram(t *testing.T, compiler, language, source string, flags ...string) (prog string) {
	t.Helper()
	prog = filepath.Join(t.TempDir(), "loop")
	cc := exec.Command(compiler, append([]string{"-O1", "-g", "-fno-builtin", "-Wno-alloc-size-larger-than", "-pthread", "-x", language, "-o", prog, "-"}, flags...)...)
	cc.Stdin = strings.NewReader(source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return prog
}

// probeHeap records such a program with probes, named twice, and returns what its functions have allocated and in use, and what record says; as its
// output, the program's behind the first byte. The program must not fail.
func probeHeap(t *testing.T, prog string, args ...string) (map[string][2]profile.Stack, result) {
	t.Helper()
	p, r := probeHeapOf(t, exec.Command(prog), func(pid int) int { return pid }, args...)
	got := map[string][2]profile.Stack{}
	for _, s := range p.Stacks {
		name := strings.TrimSuffix(p.Funcs[p.Locs[s.Frames[0]].Func].Name, "()")
		x := got[name]
		x[s.Event].Count += s.Count
		x[s.Event].Period += s.Period
		got[name] = x
	}
	return got, r
}

// probeHeapOf is probeHeap of a command's process, or one that it has started, and returns the profile.
func probeHeapOf(t *testing.T, loop *exec.Cmd, process func(pid int) int, args ...string) (*profile.Profile, result) {
	t.Helper()
	in, err := loop.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := loop.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := loop.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		in.Close()
		if err := loop.Wait(); err != nil {
			t.Errorf("the recorded program: %v", err)
		}
	}()
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	pid := strconv.Itoa(process(loop.Process.Pid))
	c := program(t, append([]string{"record", "-p", pid + "," + pid, "-o", "p.pb.gz"}, args...)...)
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(stderr)
	var said strings.Builder
	for lines.Scan() { // the first says that there are probes, or why not
		fmt.Fprintln(&said, lines.Text())
		in.Write([]byte{'x'})
	}
	c.Wait()
	in.Close()
	rest, _ := io.ReadAll(out)
	r := result{c.ProcessState.ExitCode(), string(rest), said.String()}
	if strings.Contains(r.stderr, "needs root") {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	r.want(t, 0, "allocated [0-9,]+ times and freed|own probes reported")
	b, err := os.Open(filepath.Join(c.Dir, "p.pb.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := pprof.Read(b)
	if err != nil || !p.Heap() || len(p.Events) != 2 {
		t.Fatalf("%v %+v", err, p)
	}
	return p, r
}

// TestHeapProbes: of a process that runs already, every allocation from the beginning on is recorded, and what is in use; samples come to the same
// on average.
func TestHeapProbes(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	prog := heapProgram(t, "gcc", "c", heapLoop)
	got, r := probeHeap(t, prog, "--heap=all")
	for name, want := range map[string][4]uint64{ // objects and bytes, allocated and in use
		"leak": {1000, 1_000_000, 700, 700_000}, "churn": {1000, 2_000_000, 0, 0}, "grow": {2000, 50_100_000, 0, 0}, "null": {1000, 77_000, 1000, 77_000},
		"array": {1000, 40_000, 1000, 40_000}, "aligned": {2000, 940_000, 2000, 940_000}, "fails": {},
	} {
		x := got[name]
		if have := [4]uint64{x[0].Count, x[0].Period, x[1].Count, x[1].Period}; have != want {
			t.Errorf("%s: %v, want %v", name, have, want)
		}
	}
	if t.Failed() {
		t.Log(r.stderr)
	}
	got, _ = probeHeap(t, prog, "--heap", "--heap-period", "4K")
	for name, want := range map[string][2]float64{"leak": {1_000_000, 4096}, "churn": {2_000_000, 4096}, "grow": {50_100_000, 51_000}, "aligned": {940_000, 4096}} {
		// n samples of about the period each have a relative deviation of at most 1/sqrt(n).
		have, deviation := float64(got[name][0].Period), 1/math.Sqrt(want[0]/want[1])
		if math.Abs(have-want[0]) > 5*deviation*want[0] {
			t.Errorf("%s: %.0f bytes, want %.0f within %.0f", name, have, want[0], 5*deviation*want[0])
		}
	}
	runProgram(t, "record", "--heap", "-p", "1", "--heap-value", "peak_space", "-o", "x.svg").want(t, 2, "--heap -p has alloc and inuse, not peak")
	runProgram(t, "record", "--heap=mmap", "-p", "1", "-o", "x.svg").want(t, 2, "--heap -p has alloc and inuse, not inuse with --heap=mmap")
	runProgram(t, "record", "--heap", "-p", "1", "--every", "1s", "-o", "-", "--format", "folded").want(t, 2, "^unspool: --every writes snapshots beside the output: give -o FILE")
}

// TestHeapProbesEarly: what is allocated while a recording begins, and freed later, takes nothing from what is in use.
func TestHeapProbesEarly(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	ring := exec.Command(heapProgram(t, "gcc", "c", `#include <stdlib.h>
#include <unistd.h>
static void *ring[1000];
__attribute__((noipa)) void turn(int i) { free(ring[i]); ring[i] = malloc(1000); for (volatile int j = 0; j < 20000; j++); }
int main(void) {
	for (int rounds = 0;; rounds = 1) {
		for (int i = 0; i < 1000; i++) turn(i);
		if (!rounds && write(1, "a", 1) != 1) return 1;
	}
}`))
	says, err := ring.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := ring.Start(); err != nil {
		t.Fatal(err)
	}
	defer ring.Wait()
	defer ring.Process.Kill()
	if _, err := says.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	c := program(t, "record", "--heap=all", "-p", strconv.Itoa(ring.Process.Pid), "--duration", "2s", "-o", "p.folded", "--heap-value", "inuse_objects")
	out, err := c.CombinedOutput()
	if strings.Contains(string(out), "needs root") {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !regexp.MustCompile(`, (999|1,000) objects · `).Match(out) { // between a free and a malloc, it is one less
		t.Errorf("a ring of 1,000 objects: %s", out)
	}
}

// TestHeapProbesNested: an allocation by a function that calls another one of the same file counts once, a realloc that fails frees nothing, the first
// allocation is a sample no sooner than others, and an operator new may throw.
func TestHeapProbesNested(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	prog := heapProgram(t, "g++", "c++", `#include <cstdlib>
#include <new>
#include <unistd.h>
static void *volatile sink, *keep[100];
static volatile size_t huge = (size_t)1 << 46;
extern "C" __attribute__((noipa)) void first() { sink = malloc(16); }
extern "C" __attribute__((noipa)) void fails(int i) { keep[i] = malloc(500000); sink = realloc(keep[i], huge); }
extern "C" __attribute__((noipa)) void news() { char *p = new char[64]; sink = p; delete[] p; }
int main() {
	char c;
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	first();
	for (int i = 0; i < 100000; i++) news();
	for (int i = 0; i < 100; i++) fails(i);
	try { sink = new char[huge]; } catch (std::bad_alloc &) { return 0; }
	return 1;
}`, "-static")
	got, _ := probeHeap(t, prog, "--heap", "--heap-period", "4K")
	// 1562 samples, each of a deviation of 4096 bytes; the first is one with a chance of 0.4 %.
	if have := float64(got["news"][0].Period); math.Abs(have-6.4e6) > 5*4096*math.Sqrt(6.4e6/4096) {
		t.Errorf("%.0f bytes by new, want 6,400,000", have)
	}
	if have := got["first"][0].Period; have > 0 {
		t.Errorf("of the first allocation, %d bytes of 16", have)
	}
	if have := got["fails"]; have[0].Count != 100 || have[1].Count != 100 {
		t.Errorf("of 100 objects that could not be made larger, %d are in use, %d were allocated", have[1].Count, have[0].Count)
	}
}

// TestHeapProbesThrow: an allocator's own operator new may throw under probes, and is said not to be recorded; its malloc is.
func TestHeapProbesThrow(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	library := heapProgram(t, "g++", "c++", `#include <new>
#include <stddef.h>
static char pool[1 << 20], *next = pool;
extern "C" void *malloc(size_t n) { char *p = next; n = (n + 15) & ~(size_t)15; if (n > (size_t)(pool + sizeof pool - p)) return 0; next += n; return p; }
extern "C" void free(void *) { }
void *operator new(size_t n) { if (n > sizeof pool) throw std::bad_alloc(); return next += 16; }`, "-shared", "-fPIC")
	prog := heapProgram(t, "g++", "c++", `#include <cstdlib>
#include <new>
#include <unistd.h>
static void *volatile sink;
static volatile size_t huge = (size_t)1 << 40;
extern "C" __attribute__((noipa)) void mallocs() { sink = malloc(64); }
int main() {
	char c;
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	for (int i = 0; i < 100; i++) mallocs();
	try { sink = ::operator new(huge); } catch (std::bad_alloc &) { return 0; }
	return 1;
}`, "-x", "none", library)
	got, said := probeHeap(t, prog, "--heap=all")
	if have := got["mallocs"][0]; have.Count != 100 || have.Period != 6400 {
		t.Errorf("%d objects of malloc, %d bytes", have.Count, have.Period)
	}
	if !strings.Contains(said.stderr, library+" has an operator new that does not call malloc: it is not recorded") {
		t.Errorf("said %s", said.stderr)
	}
}

// TestHeapProbesFiles: the C library's allocations are recorded beside another allocator, which a library has loaded for itself.
func TestHeapProbesFiles(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	library := heapProgram(t, "gcc", "c", `char pool[1000];
void *malloc(unsigned long n) { return n < sizeof pool ? pool : 0; }
void free(void *p) { (void)p; }`, "-shared", "-fPIC")
	prog := heapProgram(t, "gcc", "c", `#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>
static void *volatile sink;
__attribute__((noipa)) void libc(void) { sink = malloc(100); }
__attribute__((noipa)) void other(void *(*m)(size_t)) { sink = m(10); }
int main(void) {
	char c;
	void *h = dlopen("`+library+`", RTLD_NOW | RTLD_LOCAL);
	if (!h || write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	for (int i = 0; i < 1000; i++) libc();
	other((void *(*)(size_t))dlsym(h, "malloc"));
	return 0;
}`, "-ldl")
	got, r := probeHeap(t, prog, "--heap=all")
	if got["libc"][0].Count != 1000 || got["other"][0].Count != 1 {
		t.Errorf("%d objects of the C library's, want 1000, %d of the other one's, want 1\n%s", got["libc"][0].Count, got["other"][0].Count, r.stderr)
	}
}

// TestRecordHeap: each way to write a heap profile shows what a program is known to allocate.
func TestRecordHeap(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++")
	dir := heapRuntime(t)
	prog := filepath.Join(dir, "prog")
	gcc := exec.Command("g++", "-O1", "-g", "-pthread", "-x", "c++", "-o", prog, "-")
	gcc.Stdin = strings.NewReader(`#include <cstdlib>
#include <thread>
#include <unistd.h>
#include <sys/wait.h>
static void *volatile sink;
__attribute__((noipa)) static void kept() { for (int i = 0; i < 1000; i++) sink = new char[1000]; }
__attribute__((noipa)) static void brief() { for (int i = 0; i < 5000; i++) free(sink = malloc(2000)); }
__attribute__((always_inline)) static inline void *peaked() { void *p = malloc(50000000); sink = p; return p; }
int main() {
	free(peaked());
	kept();
	std::thread(brief).join();
	if (fork() == 0) { kept(); _exit(0); }
	wait(nullptr);
	return 3;
}`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	record := func(args ...string) (result, string) {
		c := program(t, append(append([]string{"record"}, args...), "--", prog)...)
		c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir)
		return finish(t, c), c.Dir
	}
	r, at := record("--heap=all")
	r.want(t, 3, `unspool.heap.pb.gz: .* MiB allocated, .* in use, .* at the peak, .* 100.0 % whole .* 0 lost`)
	if !strings.Contains(r.out, " MiB in use, 2,0") || !strings.Contains(r.out, "  kept()\n") || strings.Contains(r.out, "operator new") {
		t.Errorf("record --heap=all prints\n%s\nwant 2,0… objects in use, kept(), and no operator new", r.out)
	}
	b, err := os.Open(filepath.Join(at, defaultHeap))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	p, err := pprof.Read(b)
	if err != nil || !p.Heap() || p.Every != 0 && p.Every != 1 {
		t.Fatalf("%v %+v", err, p)
	}
	for _, c := range []struct {
		event, function string
		objects, bytes  uint64
	}{
		{profile.HeapAlloc, "kept", 2000, 2_000_000},
		{profile.HeapInUse, "kept", 2000, 2_000_000},
		{profile.HeapAlloc, "brief", 5000, 10_000_000},
		{profile.HeapBrief, "brief", 5000, 10_000_000},
		{profile.HeapInUse, "brief", 0, 0},
		{profile.HeapAlloc, "peaked", 1, 50_000_000},
		{profile.HeapPeak, "peaked", 1, 50_000_000},
		{profile.HeapInUse, "peaked", 0, 0},
	} {
		q := p.Only(c.event)
		objects, bytes := q.Sums(profile.Samples, nil), q.Sums(profile.Periods, nil)
		var got [2]uint64
		for i, f := range q.Funcs {
			if strings.TrimSuffix(f.Name, "()") == c.function { // inlined functions have no parentheses
				got = [2]uint64{objects.Self[i], bytes.Self[i]}
			}
		}
		if got != [2]uint64{c.objects, c.bytes} {
			t.Errorf("%s of %s: %v, want %v %v", c.event, c.function, got, c.objects, c.bytes)
		}
	}
	rep := program(t, "report", filepath.Join(at, defaultHeap))
	if r := finish(t, rep); !strings.Contains(r.out, " MiB in use") || !strings.Contains(r.out, "kept()") {
		t.Errorf("report of a heap profile prints\n%s\nwant MiB in use, and kept(); stderr:\n%s", r.out, r.stderr)
	}
	r, _ = record("--heap=all", "--heap-value=alloc_objects", "--format", "folded")
	if r.want(t, 3, ""); !strings.Contains(r.out, ";brief() 5000\n") {
		t.Errorf("record --heap=all --heap-value=alloc_objects prints\n%s\nwant ;brief() 5000", r.out)
	}
	r, at = record("--heap", "-o", "x.svg", "--heap-value", "peak_space")
	r.want(t, 3, `x.svg: .* at the peak`)
	if svg, err := os.ReadFile(filepath.Join(at, "x.svg")); err != nil || !strings.Contains(string(svg), "peaked") {
		t.Errorf("x.svg has %d bytes, %v, and does not name peaked", len(svg), err)
	}
	tidy := prog + "-tidy" // has nothing in use at its end: an empty graph says what to ask for
	gcc = exec.Command("gcc", "-O1", "-fno-builtin", "-x", "c", "-o", tidy, "-")
	gcc.Stdin = strings.NewReader("#include <stdlib.h>\nint main(void) { free(malloc(1000000)); return 0; }")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	c := program(t, "record", "--heap=all", "-o", "y.folded", "--", tidy)
	c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir)
	r = finish(t, c)
	r.want(t, 0, "nothing was in use at the end: --heap-value peak_space")
	gcc = exec.Command("gcc", "-static", "-x", "c", "-o", tidy+"-static", "-") // does not load the library: what it records is not worth the file before
	gcc.Stdin = strings.NewReader("int main(void) { return 0; }")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	at = c.Dir
	if err := os.WriteFile(filepath.Join(at, "z.folded"), []byte("main 1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c = program(t, "record", "--heap", "-o", "z.folded", "--", tidy+"-static")
	c.Env, c.Dir = append(c.Env, "UNSPOOL_RUNTIME="+dir), at
	finish(t, c).want(t, 0, "did not load the library(?s:.*)z.folded still has the recording before")
	if b, err := os.ReadFile(filepath.Join(at, "z.folded")); string(b) != "main 1\n" {
		t.Errorf("z.folded has %q, %v", b, err)
	}
	r, _ = record("--heap", "-o", "x.data")
	r.want(t, 2, `^unspool: --heap makes a profile`)
	r, _ = record("--heap", "-e", "cycles")
	r.want(t, 2, `^unspool: --heap and --event exclude each other`)
}
