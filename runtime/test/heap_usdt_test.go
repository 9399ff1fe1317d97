package test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/source/heap"
)

// TestHeapUSDT: perf finds the library's probes by their notes, and reads of them the allocations that are recorded, their bytes and weights, and
// those that are freed.
func TestHeapUSDT(t *testing.T) {
	oracle.Long(t)
	oracle.Need(t, "gcc", "perf", "unshare", "mount")
	// perf finds tracefs, wherever this machine has it mounted.
	tracing := func(args ...string) *exec.Cmd {
		const mount = `mountpoint -q /sys/kernel/tracing || mount -t tracefs none /sys/kernel/tracing; exec "$@"`
		return exec.Command("unshare", append([]string{"-m", "sh", "-c", mount, "sh"}, args...)...)
	}
	if out, err := tracing("cat", "/sys/kernel/tracing/uprobe_events").CombinedOutput(); err != nil {
		oracle.Lacks(t, fmt.Sprintf("tracefs, as root (%s)", out))
	}
	lib, dir := heapLibrary(t), t.TempDir()
	prog, data := filepath.Join(dir, "usdt"), filepath.Join(dir, "data")
	gcc := exec.Command("gcc", "-O1", "-fno-builtin", "-pthread", "-o", prog, "-x", "c", "-")
	gcc.Stdin = strings.NewReader(`#include <pthread.h>
#include <stdlib.h>
static void *some(void *p)
{
	void *volatile sink = NULL;

	for (size_t i = 1; i <= 1000; i++) {
		sink = malloc(i);
		if (i % 4)
			free(sink);
	}
	sink = realloc(sink, 5000);
	return p;
}
int main(void)
{
	pthread_t t;

	some(NULL);
	return pthread_create(&t, NULL, some, NULL) || pthread_join(t, NULL);
}`)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	perf := func(env []string, args ...string) string {
		t.Helper()
		c := tracing(append([]string{"perf", "--buildid-dir", filepath.Join(dir, "ids")}, args...)...)
		c.Env = append(os.Environ(), env...)
		out, err := c.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", c, err, out)
		}
		return string(out)
	}
	const events = "sdt_otel_memory:*"
	tracing("perf", "probe", "-d", events).Run() // what a test that was ended left
	perf(nil, "buildid-cache", "--add", lib)
	perf(nil, "probe", "sdt_otel_memory:alloc")
	t.Cleanup(func() {
		if out, err := tracing("perf", "probe", "-d", events).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	perf(nil, "probe", "sdt_otel_memory:free")
	for _, period := range []string{"0", "700"} {
		files := t.TempDir()
		perf(nil, "record", "-o", data, "-e", events, "env", "LD_PRELOAD="+lib, "UNSPOOL_HEAP="+files, "UNSPOOL_HEAP_PERIOD="+period, prog)
		all, err := heap.Read(files)
		if err != nil {
			t.Fatal(err)
		}
		var alloc, inUse heap.Amount
		samples := uint64(0)
		for _, p := range all {
			if filepath.Base(p.Path) != "usdt" {
				continue
			}
			for _, s := range p.Stacks {
				alloc.Objects, alloc.Bytes = alloc.Objects+s.Alloc.Objects, alloc.Bytes+s.Alloc.Bytes
				inUse.Objects, inUse.Bytes = inUse.Objects+s.InUse.Objects, inUse.Bytes+s.InUse.Bytes
			}
		}
		var seen, seenUse heap.Amount
		weights := map[string]uint64{} // of what is in use
		for line := range strings.Lines(perf(nil, "script", "-i", data, "-F", "comm,event,trace")) {
			f := strings.Fields(line)
			if len(f) < 4 || f[0] != "usdt" {
				continue
			}
			arg := func(i int) (n uint64) {
				if len(f) > 3+i {
					_, s, _ := strings.Cut(f[3+i], "=")
					n, _ = strconv.ParseUint(s, 10, 64)
				}
				return n
			}
			switch p := f[3]; f[1] {
			case "sdt_otel_memory:alloc:":
				if arg(2) < arg(1) || period == "0" && arg(2) != arg(1) || weights[p] != 0 {
					t.Errorf("%s: %d bytes stand for %d", p, arg(1), arg(2))
				}
				samples++
				weights[p] = arg(2)
				seen.Objects, seen.Bytes = seen.Objects+1, seen.Bytes+arg(2)
				seenUse.Objects, seenUse.Bytes = seenUse.Objects+1, seenUse.Bytes+arg(2)
			case "sdt_otel_memory:free:":
				if weights[p] == 0 {
					t.Errorf("%s is freed, and was not allocated", p)
				}
				seenUse.Objects, seenUse.Bytes = seenUse.Objects-1, seenUse.Bytes-weights[p]
				delete(weights, p)
			}
		}
		if period != "0" {
			seen.Objects, seenUse.Objects = alloc.Objects, inUse.Objects // the probe has no weight of objects
		}
		t.Logf("period %s: %d samples, %v allocated, %v in use", period, samples, alloc, inUse)
		if seen != alloc || seenUse != inUse || samples < 500 {
			t.Errorf("period %s: recorded %v, in use %v; probes: %v, in use %v", period, alloc, inUse, seen, seenUse)
		}
	}
}
