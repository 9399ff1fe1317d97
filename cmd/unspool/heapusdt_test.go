package main

import (
	"fmt"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/profile/pprof"
)

// tellsProbes are OpenTelemetry's probes of memory as <sys/sdt.h> writes them, with semaphores.
const tellsProbes = `#define PROBE(name, args) "1: nop\n.pushsection .note.stapsdt,\"\",\"note\"\n.balign 4\n.4byte 3f-2f,5f-4f,3\n2: .asciz \"stapsdt\"\n" \
	"3: .balign 4\n4: .8byte 1b,_.stapsdt.base," #name "_semaphore\n.asciz \"otel_memory\",\"" #name "\",\"" args "\"\n5: .balign 4\n.popsection\n"
__asm__(".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n.weak _.stapsdt.base\n.hidden _.stapsdt.base\n_.stapsdt.base: .space 1\n"
	".size _.stapsdt.base,1\n.popsection\n");
__attribute__((visibility("hidden"), section(".probes"), used)) volatile unsigned short alloc_semaphore, free_semaphore;
`

// tells is a program that reports what it allocates, in each way in which arguments can be: registers of all widths, memory by one register and by two,
// and constants. It also allocates without a word.
const tells = tellsProbes + `#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static unsigned long bytes, objects, left, parts;
static void *volatile sink;
static void told(unsigned long size, unsigned long weight) { if (alloc_semaphore) { bytes += weight; objects += weight / size; } }
__attribute__((noipa)) void whole(char *p, unsigned long n, unsigned long w)
{
	told(n, w);
	if (alloc_semaphore)
		__asm__ volatile(PROBE(alloc, "8@%0 8@%1 8@%2") : : "r"(p), "r"(n), "r"(w) : "memory");
}
__attribute__((noipa)) void narrow(char *p, unsigned n, unsigned w)
{
	told(n, w);
	if (alloc_semaphore)
		__asm__ volatile(PROBE(alloc, "8@%0 4@%k1 -4@%k2") : : "r"(p), "r"(n | 0xabcd00000000ul), "r"((unsigned long)w | 0x123400000000ul) : "memory");
}
__attribute__((noipa)) void stacked(char *p, unsigned long w)
{
	volatile struct { int before; unsigned short n; long w[4]; char *p; } s = {-1, 300, {-1, -1, w, -1}, p};
	volatile long *at = s.w;

	told(300, w);
	if (alloc_semaphore)
		__asm__ volatile(PROBE(alloc, "8@%0 2@%1 8@8(%2,%3,4)") : : "m"(s.p), "m"(s.n), "r"(at), "r"(2l) : "memory");
}
__attribute__((noipa)) void constant(char *p)
{
	told(7, 7000);
	if (alloc_semaphore)
		__asm__ volatile(PROBE(alloc, "8@%0 1@%b1 -4@$7000") : : "r"(p), "a"(0xff07ul) : "memory");
}
__attribute__((noipa)) void release(char *p, unsigned long w)
{
	if (free_semaphore) {
		left += w;
		__asm__ volatile(PROBE(free, "8@%0") : : "nor"(p) : "memory");
	}
}
__attribute__((noipa)) void silent(void) { sink = malloc(12345); }
int main(void)
{
	static char places[4000];
	char c;

	if (alloc_semaphore || free_semaphore)
		return 2;
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1 || !alloc_semaphore || !free_semaphore)
		return 1;
	for (int i = 0; i < 1000; i++) {
		whole(places + i, 100, 1000);
		narrow(places + 1000 + i, 50, 200);
		stacked(places + 2000 + i, 600);
		constant(places + 3000 + i);
		silent();
	}
	for (int i = 0; i < 250; i++) {
		release(places + i, 1000);
		release(places + 3000 + i, 7000);
	}
	release(places - 1, 0); /* not seen before */
	printf("%lu bytes, %lu objects, %lu bytes freed\n", bytes, objects, left);
	return 0;
}`

// TestHeapPublished: a process that reports its samples by probes is read by these, with its own weights, in place of its allocator; its semaphores are set.
func TestHeapPublished(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	got, r := probeHeap(t, heapProgram(t, "gcc", "c", tells), "--heap", "--heap-period", "1M")
	var sum [2]profile.Stack
	for name, want := range map[string][4]uint64{ // objects and bytes, allocated and in use
		"whole": {10000, 1_000_000, 7500, 750_000}, "narrow": {4000, 200_000, 4000, 200_000}, "stacked": {2000, 600_000, 2000, 600_000},
		"constant": {1_000_000, 7_000_000, 750_000, 5_250_000}, "silent": {},
	} {
		x := got[name]
		if have := [4]uint64{x[0].Count, x[0].Period, x[1].Count, x[1].Period}; have != want {
			t.Errorf("%s: %v, want %v", name, have, want)
		}
		for i := range x {
			sum[i].Count, sum[i].Period = sum[i].Count+x[i].Count, sum[i].Period+x[i].Period
		}
	}
	if want := fmt.Sprintf("%d bytes, %d objects, %d bytes freed\n", sum[0].Period, sum[0].Count, sum[0].Period-sum[1].Period); r.out != want {
		t.Errorf("the program says %q; recorded: %q", r.out, want)
	}
	if !strings.Contains(r.stderr, " reports its own samples by otel_memory probes (USDT)") || !strings.Contains(r.stderr, "own probes reported 4,000 samples and 501 of these freed: 4,501 stops") {
		t.Errorf("record --heap says\n%s\nwant samples by otel_memory probes, 4,000 reported and 501 freed", r.stderr)
	}
	if t.Failed() {
		t.Log(r.stderr)
	}
}

// TestHeapPublishedUnread: probes whose arguments cannot be read are named, and the allocator is recorded.
func TestHeapPublishedUnread(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	prog := heapProgram(t, "gcc", "c", strings.Replace(tells, `-4@$7000`, `8@bytes(%%rip)`, 1)+"\n", "-DX")
	b, err := exec.Command("readelf", "-nW", prog).CombinedOutput()
	if err != nil || !strings.Contains(string(b), "(%rip)") {
		t.Fatalf("%v: %s", err, b)
	}
	loop := strings.Replace(strings.Replace(tells, `-4@$7000`, `8@bytes(%%rip)`, 1), "|| !alloc_semaphore || !free_semaphore", "", 1)
	got, r := probeHeap(t, heapProgram(t, "gcc", "c", loop), "--heap=all")
	if x := got["silent"][0]; x.Count != 1000 || x.Period != 12345000 || got["whole"][0].Count != 0 {
		t.Errorf("%+v", got)
	}
	if !strings.Contains(r.stderr, `argument 3 of probe otel_memory:alloc, "8@bytes(%rip)": unsupported`) {
		t.Errorf("record --heap=all says\n%s\nwant that argument 3 of otel_memory:alloc is unsupported", r.stderr)
	}
}

// TestHeapPublishedByLibrary: of a program with our library in front of its allocator, which reports by its probes, processes that run are read as the
// library itself counts: each stack's allocations, and what is in use.
func TestHeapPublishedByLibrary(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "g++")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	dir := heapRuntime(t)
	prog := heapProgram(t, "g++", "c++", `#include <cstdlib>
#include <cstring>
#include <unistd.h>
static void *volatile sink, *keep[1000];
extern "C" {
__attribute__((noipa)) void leak(int i) { keep[i] = malloc(1000); }
__attribute__((noipa)) void churn() { free(sink = malloc(2000)); }
__attribute__((noipa)) void grow() { void *p = calloc(10, 10); p = realloc(p, 50000); sink = p; free(p); }
__attribute__((noipa)) void null() { sink = realloc(nullptr, 77); }
__attribute__((noipa)) void aligned() { void *p; if (posix_memalign(&p, 64, 300) == 0) sink = p; sink = aligned_alloc(64, 640); }
__attribute__((noipa)) void news() { sink = new char[33]; delete new int; }
__attribute__((noipa)) void copies() { sink = strdup("a text"); }
__attribute__((noipa)) void nothing() { sink = malloc(0); }
}
int main() {
	char c;
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	for (int i = 0; i < 1000; i++) { leak(i); churn(); grow(); null(); aligned(); news(); copies(); nothing(); }
	for (int i = 0; i < 300; i++) free(keep[i]);
	return 0;
}`)
	// By stack: objects and bytes, allocated and in use.
	stacks := func(p *profile.Profile) map[string][4]uint64 {
		got := map[string][4]uint64{}
		for _, s := range p.Stacks {
			var names []string
			for _, f := range s.Frames {
				names = append(names, p.Funcs[p.Locs[f].Func].Name)
			}
			key := strings.Join(names, ";")
			x, e := got[key], slices.Index([]string{profile.HeapAlloc, profile.HeapInUse}, p.Events[s.Event].Name)
			if !slices.Contains(names, "main") || e < 0 { // before the recording, or a value that it has not
				continue
			}
			x[2*e], x[2*e+1] = x[2*e]+s.Count, x[2*e+1]+s.Period
			got[key] = x
		}
		return got
	}
	for _, how := range []string{"--heap=all", "--heap-period=3000"} {
		c := program(t, "record", "--heap", how, "-o", "own.pb.gz", "--", prog)
		if how == "--heap=all" {
			c.Args = slices.DeleteFunc(c.Args, func(s string) bool { return s == "--heap" })
		}
		c.Env = append(c.Env, "UNSPOOL_RUNTIME="+dir)
		child := func(pid int) int {
			lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid)) // of the thread that has started it
			var n int
			for _, list := range lists {
				b, _ := os.ReadFile(list)
				fmt.Sscan(string(b), &n)
			}
			return n
		}
		p, r := probeHeapOf(t, c, child, "--heap=all")
		f, err := os.Open(filepath.Join(c.Dir, "own.pb.gz"))
		if err != nil {
			t.Fatal(err)
		}
		own, err := pprof.Read(f)
		if f.Close(); err != nil {
			t.Fatal(err)
		}
		got, want := stacks(p), stacks(own)
		same := maps.EqualFunc(got, want, func(x, y [4]uint64) bool {
			// A sample stands for a whole number of bytes, 3000 at least, so that its objects are right to half an object's part of these. Sums are rounded.
			near := func(a, b uint64) bool {
				return a == b || how != "--heap=all" && math.Abs(float64(a)-float64(b)) <= 1+float64(b)/(2*3000)
			}
			return x[1] == y[1] && x[3] == y[3] && near(x[0], y[0]) && near(x[2], y[2])
		})
		if !same || len(want) < 6 {
			t.Errorf("%s: got\n%v\nwant\n%v\n%s", how, got, want, r.stderr)
		}
	}
}

// TestHeapProbesEvery: snapshots of a process that runs have what was in use at their times, and one that a signal asks for what was in use then.
func TestHeapProbesEvery(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	prog := heapProgram(t, "gcc", "c", `#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static void *keep[1000];
__attribute__((noipa)) void grows(int from, int to) { for (int i = from; i < to; i++) keep[i] = malloc(1000); }
__attribute__((noipa)) void shrinks(void) { for (int i = 0; i < 600; i++) free(keep[i]); }
int main(void) {
	char c;
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1) return 1;
	grows(0, 900);
	sleep(3);
	grows(900, 1000);
	for (DIR *all = opendir("/proc"); all; ) { // the recorder is a command with this process in its arguments
		struct dirent *d = readdir(all);
		char path[300], text[400] = "", own[20];
		if (!d) break;
		snprintf(path, sizeof path, "/proc/%.200s/cmdline", d->d_name);
		snprintf(own, sizeof own, "%d,%d", getpid(), getpid());
		int f = open(path, O_RDONLY), n = f < 0 ? 0 : read(f, text, sizeof text);
		if (f >= 0) close(f);
		if (n > 0 && memmem(text, n, own, strlen(own))) kill(atoi(d->d_name), SIGUSR2);
	}
	sleep(1);
	shrinks();
	return 0;
}`)
	got, r := probeHeap(t, prog, "--heap=all", "--every", "1s")
	if !regexp.MustCompile(`p\.001\.pb\.gz: after [3-9]\.\d s: 878\.9 KiB in use, 900 objects\n(.*\n)*.*p\.002\.pb\.gz: after [4-9]\.\d s: .* 1,001 objects\n`).MatchString(r.stderr) || strings.Contains(r.stderr, "p.003.pb.gz") {
		t.Errorf("record --heap=all --every 1s says\n%s\nwant two profiles, of 900 and of 1,001 objects", r.stderr)
	}
	if x := got["grows"]; x[0].Count != 1000 || x[1].Count != 400 {
		t.Errorf("%+v", x)
	}
}

// TestHeapProbesMoved: a program is recorded also where its file is gone, another one is in its place, or its root directory is another one: by its
// allocator, and by its own probes. Where one of these cannot be attached, the allocator is recorded.
func TestHeapProbesMoved(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	const own = tellsProbes + `#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static void *volatile sink;
__attribute__((noipa)) void mallocs(void) { sink = malloc(100); }
__attribute__((noipa)) void tells(void) { __asm__ volatile(PROBE(alloc, "8@%0 8@$10 8@$10") : : "r"(sink) : "memory"); }
int main(int n, char **v)
{
	char c;

	if (MOVES != 0)
		return 2;
	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1)
		return 1;
	for (int i = 0; i < 100; i++) {
		mallocs();
		TELLS;
	}
	return 0;
}`
	odd := strings.Replace(own, `" #name "_semaphore`, `alloc_semaphore+1`, 1) // the kernel takes none at an odd address
	for _, c := range []struct {
		source, moves, tells string
		mallocs, told        uint64
		note                 string
	}{
		{own, "unlink(v[0])", "", 100, 0, ""},
		{own, "unlink(v[0])", "tells()", 0, 100, "reports its own samples"},
		{own, `chroot("/usr/include")`, "", 100, 0, ""},
		{odd, "0", "tells()", 100, 0, "cannot be read: .*: a probe|cannot be read: /.*invalid argument"},
	} {
		source := strings.NewReplacer("MOVES", c.moves, "TELLS", c.tells).Replace(c.source)
		if c.tells == "" {
			source = strings.NewReplacer("\ttells()", "", `PROBE(alloc, "8@%0 8@$10 8@$10")`, `""`).Replace(source)
		}
		got, r := probeHeap(t, heapProgram(t, "gcc", "c", source), "--heap=all")
		if got["mallocs"][0].Count != c.mallocs || got["tells"][0].Count != c.told || !regexp.MustCompile(c.note).MatchString(r.stderr) {
			t.Errorf("%s, %s: %d allocations, want %d; %d told, want %d\n%s", c.moves, c.tells, got["mallocs"][0].Count, c.mallocs, got["tells"][0].Count, c.told, r.stderr)
		}
	}
}

// TestHeapReplaced: where something is allocated at an address, what was there is no longer in use, though nobody has seen it freed: of an allocator that
// also frees by a function of its own, and of a process that does not report what it frees.
func TestHeapReplaced(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc")
	if os.Geteuid() != 0 {
		oracle.Lacks(t, "root")
	}
	const loop = `
#include <unistd.h>
int main(void)
{
	char c;

	if (write(1, "a", 1) != 1 || read(0, &c, 1) != 1)
		return 1;
	for (int i = 0; i < 1000; i++)
		allocates(i % 10);
	return 0;
}`
	library := heapProgram(t, "gcc", "c", `static char pool[1 << 20]; static unsigned long used; static void *last;
void *malloc(unsigned long n) { void *p = last; last = 0; if (!p && n <= 100) { p = pool + used; used += 112; } return p; }
void free(void *p) { (void)p; }
void own_free(void *p) { last = p; }`, "-shared", "-fPIC")
	for _, c := range []struct {
		source string
		flags  []string
		want   [2]uint64 // objects, allocated and in use
		note   string
	}{
		{`extern void *malloc(unsigned long); extern void own_free(void *);
__attribute__((noipa)) void allocates(int i) { void *p = malloc(100); if (i) own_free(p); }` + loop, []string{"-x", "none", library, "-Wl,-rpath," + filepath.Dir(library)}, [2]uint64{1000, 101}, "probes at"},
		{tellsProbes + `__attribute__((noipa)) void allocates(int i)
{
	static char places[10];

	if (alloc_semaphore)
		__asm__ volatile(PROBE(alloc, "8@%0 8@$10 8@$10") : : "r"(places + i) : "memory");
}` + loop, nil, [2]uint64{1000, 10}, "all counts as in use until something else is at its address"},
	} {
		got, r := probeHeap(t, heapProgram(t, "gcc", "c", c.source, c.flags...), "--heap=all")
		x := got["allocates"]
		if have := [2]uint64{x[0].Count, x[1].Count}; have != c.want || !strings.Contains(r.stderr, c.note) {
			t.Errorf("%v objects, want %v\n%s", have, c.want, r.stderr)
		}
	}
}
