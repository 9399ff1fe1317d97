package lab

import (
	"cmp"
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
)

// A program whose stacks are what was asked for: functions that call each other at random, to a depth, and work there. The
// generator's numbers are its own, so every chain of calls that the program makes can be told beforehand.

const (
	numFuncs = 1024
	numSites = 4 // calls in each function
)

// A callProgram is that program.
type callProgram struct {
	path   string
	callee [numFuncs][numSites]uint16
	funcs  []function // by address
}

// A function of the program, at link time. Its number is that of a generated function, or one of the others'.
type function struct {
	lo, hi uint64
	n      int
}

const (
	otherFunc = -1 - iota
	workFunc
	mainFunc
)

// buildCalls writes the program and compiles it.
func buildCalls(t testing.TB) *callProgram {
	oracle.Need(t, "gcc")
	p := &callProgram{}
	rnd := rand.New(rand.NewPCG(1, 2))
	var b strings.Builder
	b.WriteString(callsHead)
	for i := range numFuncs {
		fmt.Fprintf(&b, "F f%d(u64 a, u64 b);\n", i)
	}
	head := b.String()
	dir := t.TempDir()
	p.path = filepath.Join(dir, "calls")
	args := []string{"-o", p.path}
	var wg sync.WaitGroup
	for i := range numFuncs {
		for s := range numSites {
			p.callee[i][s] = uint16(rnd.IntN(numFuncs))
		}
		writeFunction(&b, rnd, i, p.callee[i][:])
		if (i+1)%(numFuncs/4) > 0 {
			continue
		}
		if i == numFuncs-1 {
			b.WriteString(callsMain)
		}
		source, object := filepath.Join(dir, fmt.Sprintf("calls%d.c", i)), filepath.Join(dir, fmt.Sprintf("calls%d.o", i))
		if err := os.WriteFile(source, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
		b.Reset()
		b.WriteString(head)
		args = append(args, object)
		wg.Go(func() {
			out, err := exec.Command("gcc", "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-Wall", "-c", "-o", object, source).CombinedOutput()
			if err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
	wg.Wait()
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	f, err := elf.Open(p.path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	syms, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if elf.ST_TYPE(s.Info) != elf.STT_FUNC || s.Size == 0 {
			continue
		}
		n := otherFunc
		if k, err := strconv.Atoi(strings.TrimPrefix(s.Name, "f")); err == nil && s.Name[0] == 'f' {
			n = k
		} else if s.Name == "work" {
			n = workFunc
		} else if s.Name == "main" {
			n = mainFunc
		}
		p.funcs = append(p.funcs, function{s.Value, s.Value + s.Size, n})
	}
	slices.SortFunc(p.funcs, func(a, b function) int { return cmp.Compare(a.lo, b.lo) })
	return p
}

const callsHead = `/* Calls at random: calls DEPTH MICROSECONDS SEED. With 0 microseconds, it stays at the end of the first chain. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

typedef unsigned long u64;
#define F __attribute__((noinline, noclone)) void
#define KEEP(v) __asm__ volatile("" : "+r"(v))

extern u64 seed, ticks, sum, data[256];
extern unsigned left;
F work(void);

static inline unsigned site(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed >> 20 & 3;
}

`

const callsMain = `
u64 seed, ticks, sum, data[256];
unsigned left;

F work(void)
{
	u64 start = __builtin_ia32_rdtsc();

	while (ticks == 0 || __builtin_ia32_rdtsc() - start < ticks)
		;
}

static u64 now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ul + t.tv_nsec;
}

int main(int argc, char **argv)
{
	u64 t = now(), began = __builtin_ia32_rdtsc();
	unsigned depth;

	if (argc != 4)
		return 2;
	alarm(600);
	while (now() - t < 20000000)
		;
	ticks = (__builtin_ia32_rdtsc() - began) / 20000 * strtoul(argv[2], NULL, 0);
	depth = strtoul(argv[1], NULL, 0);
	seed = strtoul(argv[3], NULL, 0);
	puts("calls");
	fflush(stdout);
	for (;;) {
		left = depth;
		f0(seed, left);
	}
}
`

// localSizes are the bytes of local variables, the common ones more than once.
var localSizes = []int{0, 0, 0, 0, 0, 0, 8, 8, 16, 16, 24, 24, 32, 40, 40, 56, 72, 72, 104, 136, 200, 296, 520}

// writeFunction writes function i: it keeps up to six values over a call, and one in sixteen has a frame of variable size, whose
// CFA is then found by rbp.
func writeFunction(b *strings.Builder, rnd *rand.Rand, i int, callees []uint16) {
	keep, local, alloca := rnd.IntN(7), localSizes[rnd.IntN(len(localSizes))], rnd.IntN(16) == 0
	fmt.Fprintf(b, "\nF f%d(u64 a, u64 b)\n{\n", i)
	for k := range keep {
		fmt.Fprintf(b, "\tu64 v%d = a * %d + data[(b + %d) & 255];\n", k, rnd.IntN(100), rnd.IntN(256))
	}
	if local > 0 {
		fmt.Fprintf(b, "\tchar local[%d];\n", local)
	}
	b.WriteString("\n")
	if alloca {
		b.WriteString("\tchar *p = __builtin_alloca(16 + (a & 48));\n\t__asm__ volatile(\"\" : : \"r\"(p) : \"memory\");\n")
	}
	if local > 0 {
		b.WriteString("\t__asm__ volatile(\"\" : : \"r\"(local) : \"memory\");\n")
	}
	for k := range keep {
		fmt.Fprintf(b, "\tKEEP(v%d);\n", k)
	}
	filler := func() {
		for range rnd.IntN(5) {
			fmt.Fprintf(b, "\tdata[(sum + %d) & 255] += data[%d] ^ %d;\n", rnd.IntN(256), rnd.IntN(256), rnd.IntN(1<<20))
		}
	}
	filler()
	b.WriteString("\tif (--left == 0) {\n\t\twork();\n\t} else switch (site()) {\n")
	for s, c := range callees {
		fmt.Fprintf(b, "\tcase %d:\n", s)
		if rnd.IntN(2) == 0 {
			fmt.Fprintf(b, "\t\tdata[%d] += %d;\n", rnd.IntN(256), rnd.IntN(1<<20))
		}
		fmt.Fprintf(b, "\t\tf%d(%s, %d);\n\t\tbreak;\n", c, []string{"a", "b", "left"}[rnd.IntN(3)*min(keep, 1)], rnd.IntN(1000))
	}
	b.WriteString("\t}\n")
	filler()
	for k := range keep {
		fmt.Fprintf(b, "\tsum += v%d;\n", k)
	}
	b.WriteString("}\n")
}

// A callRun is the program as it runs.
type callRun struct {
	*callProgram
	stop   func() // ends it, as the test's end does
	pid    int
	bias   uint64
	depth  int
	varied bool
	seed   uint64
	chains [][]uint16 // what it has called so far, and more
}

// run starts the program. With a time it calls a new chain every so often; with 0, it calls one and stays.
func (p *callProgram) run(t testing.TB, depth int, every time.Duration, seed uint64) *callRun {
	cmd := exec.Command(p.path, fmt.Sprint(depth), fmt.Sprint(every.Microseconds()), fmt.Sprint(seed))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	t.Cleanup(stop)
	if _, err := out.Read(make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	r := &callRun{callProgram: p, stop: stop, pid: cmd.Process.Pid, depth: depth, varied: every > 0, seed: seed}
	for _, m := range mapsOf(t, r.pid) {
		if m.path == p.path && m.off == 0 {
			r.bias = m.lo
		}
	}
	return r
}

// chain returns the functions of chain i, the first one first.
func (r *callRun) chain(i int) []uint16 {
	if !r.varied {
		i = 0
	}
	for len(r.chains) <= i {
		c := make([]uint16, r.depth)
		for d := 1; d < r.depth; d++ {
			r.seed ^= r.seed << 13
			r.seed ^= r.seed >> 7
			r.seed ^= r.seed << 17
			c[d] = r.callee[c[d-1]][r.seed>>20&3]
		}
		r.chains = append(r.chains, c)
	}
	return r.chains[i]
}

// function returns the number of the function at an address.
func (r *callRun) function(addr uint64) int {
	addr -= r.bias
	i, found := slices.BinarySearchFunc(r.funcs, addr, func(f function, a uint64) int { return cmp.Compare(f.lo, a) })
	if !found {
		i--
	}
	if i < 0 || addr >= r.funcs[i].hi {
		return otherFunc
	}
	return r.funcs[i].n
}

// A chainCheck holds stacks against the chains that the program calls, in the order of time.
type chainCheck struct {
	*callRun
	at    int // the chain of the stack before
	full  int // stacks to the whole depth
	part  int // in between: on the way down or up
	stray int // in the loop of main, and in nothing that it calls
}

// outside is how many frames are around main: _start, __libc_start_main and what that calls.
const outside = 3

// check looks at a stack of lookup addresses, the innermost first. It returns what is wrong with it, or "".
func (c *chainCheck) check(stack []uint64) string {
	inner := len(stack) - outside - 1
	if inner < 0 || c.function(stack[inner]) != mainFunc {
		return fmt.Sprintf("main is not the fourth of %d frames", len(stack))
	}
	fs := make([]uint16, 0, inner)
	for i, addr := range slices.Backward(stack[:inner]) {
		n := c.function(addr)
		if n == workFunc && i == 0 && inner == c.depth+1 {
			break
		}
		if n < 0 {
			return fmt.Sprintf("frame %d of %d is in no function at %#x", i, len(stack), addr-c.bias)
		}
		fs = append(fs, uint16(n))
	}
	if len(fs) == 0 {
		c.stray++
		return ""
	}
	// The first stack may be of any chain; a later one is of its predecessor's or of one soon after.
	for i := range 1 << 16 {
		if slices.Equal(fs, c.chain(c.at + i)[:len(fs)]) {
			if len(fs) == c.depth {
				c.at += i
				c.full++
			} else {
				c.part++
			}
			return ""
		}
	}
	return fmt.Sprintf("%d functions %v are of no chain from %d on", len(fs), fs[:min(len(fs), 8)], c.at)
}

// A mapped is a line of /proc/PID/maps.
type mapped struct {
	lo, hi, off uint64
	exec        bool
	path        string
}

func mapsOf(t testing.TB, pid int) (out []mapped) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		var m mapped
		var perm, dev string
		var inode uint64
		fmt.Sscanf(line, "%x-%x %s %x %s %d %s", &m.lo, &m.hi, &perm, &m.off, &dev, &inode, &m.path)
		m.exec = strings.Contains(perm, "x")
		out = append(out, m)
	}
	return out
}
