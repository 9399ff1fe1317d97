package ebpf

import (
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/unspool/unspool/arch"
	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/internal/procfs"
)

// TestDraws: the draws have the mean and the deviation of an exponential distribution, and grow.
func TestDraws(t *testing.T) {
	for _, period := range []uint64{100, 4096, 512 << 10} {
		d := draws(period)
		sum, squares := 0.0, 0.0
		for i, n := range d {
			sum += float64(n)
			squares += float64(n) * float64(n)
			if i > 0 && n < d[i-1] {
				t.Fatalf("%d after %d", n, d[i-1])
			}
		}
		mean := sum / numDraws
		deviation := math.Sqrt(squares/numDraws - mean*mean)
		if p := float64(period); math.Abs(mean/p-1) > 0.003 || math.Abs(deviation/p-1) > 0.01 {
			t.Errorf("period %d: mean %.1f, deviation %.1f", period, mean, deviation)
		}
	}
	for _, n := range draws(1) {
		if n != 1 {
			t.Fatalf("after a sample of all allocations, the next %d bytes are none", n-1)
		}
	}
}

// TestForeignAllocator: arguments of 32-bit code are not where probes look for them.
func TestForeignAllocator(t *testing.T) {
	oracle.Need(t, "gcc")
	if Machine != arch.AMD64 {
		oracle.Lacks(t, "x86-64")
	}
	prog := filepath.Join(t.TempDir(), "prog")
	gcc := exec.Command("gcc", "-m32", "-O1", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-fno-builtin", "-x", "c", "-o", prog, "-")
	gcc.Stdin = strings.NewReader("void *malloc(unsigned n) { return (void *)n; }\nvoid free(void *p) { (void)p; }\nvoid _start(void) { free(malloc(1)); for (;;) ; }\n")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if a, err := openAllocator(os.Getpid(), &procfs.Mapping{Name: prog}); err == nil || !strings.Contains(err.Error(), "not for x86_64") {
		t.Errorf("%+v, %v", a, err)
	}
	c := exec.Command(prog)
	if err := c.Start(); err != nil {
		t.Skip("this test lacks a kernel that runs 32-bit programs: ", err) // some have none, whatever is installed
	}
	defer c.Wait()
	defer c.Process.Kill()
	mapped := regexp.MustCompile(` r-xp .* ` + regexp.QuoteMeta(prog) + `\n`)
	for range 100 { // until it is no copy of this program, and has its mappings
		if maps, _ := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.Process.Pid)); mapped.Match(maps) {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if all, err := findAllocators(c.Process.Pid); err == nil || !strings.Contains(err.Error(), "not for x86_64") {
		t.Errorf("%+v, %v", all, err)
	}
}

// TestCutShort: a process that cuts its own file short while it is read costs an error.
func TestCutShort(t *testing.T) {
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, exe, 0o700); err != nil {
		t.Fatal(err)
	}
	m := &procfs.Mapping{Name: path}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() { // a file that comes and goes
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			w, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Error(err)
				return
			}
			w.Write(exe)
			w.Truncate(4096)
			w.Close()
		}
	}()
	for range 100 {
		if a, err := openAllocator(os.Getpid(), m); err == nil && a != nil {
			a.file.Close()
		}
		if p, err := openPublisher(os.Getpid(), m); err == nil && p != nil {
			p.file.Close()
		}
	}
	close(stop)
	<-done
}
