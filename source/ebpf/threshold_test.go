package ebpf

import (
	"math"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// naps blocks in threads of different habits, for two seconds: naps of 20 µs to 50 ms, and waits for others in between.
const naps = `#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
__attribute__((noinline)) static void *nap(void *p) {
	unsigned seed = (long)p;
	double end = now() + 2;
	while (now() < end) {
		long most = 20000l << (rand_r(&seed) % ((long)p * 2 + 2));
		struct timespec t = {0, rand_r(&seed) % most};
		nanosleep(&t, 0);
	}
	return 0;
}
int main(void) {
	pthread_t t[6];
	getchar();
	for (long i = 0; i < 6; i++) pthread_create(&t[i], 0, nap, (void *)i);
	for (int i = 0; i < 6; i++) pthread_join(t[i], 0);
	return 0;
}`

// TestThreshold: a recording with a threshold has the same time of each thread as one without, of the same waits, but for the error of the choice:
// five times its standard deviation, which the waits' lengths give. Waits as long as the threshold are all there, at their length; the others count for
// the threshold. It has no more samples than waiting divided by the threshold.
func TestThreshold(t *testing.T) {
	const threshold = 10 * time.Millisecond
	prog := compile(t, naps)
	cmd := exec.Command(prog)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	type wait struct {
		tid      int32
		end, len uint64
	}
	var got [2][]wait
	var programs [2]*Program
	var began, ended sync.WaitGroup
	for i, o := range []Options{{}, {Threshold: threshold}} {
		p := load(t, o)
		programs[i] = p
		began.Add(1)
		ended.Go(func() {
			o := perfevent.Options{PIDs: []int{cmd.Process.Pid}, Event: perfevent.OffCPU, Program: p}
			rec, err := perfevent.Open(t.Context(), o)
			began.Done()
			if err != nil {
				t.Error(err)
				return
			}
			defer rec.Close()
			_, err = source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
				if s.TID != s.PID { // the first thread waits for the beginning
					got[i] = append(got[i], wait{s.TID, s.Time, s.Period})
				}
				return nil
			}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	began.Wait()
	in.Close()
	cmd.Wait()
	ended.Wait()
	type sum struct{ exact, chosen, variance float64 }
	sums := map[int32]*sum{}
	of := func(tid int32) *sum {
		if sums[tid] == nil {
			sums[tid] = &sum{}
		}
		return sums[tid]
	}
	long, all := [2]int{}, 0.0
	for _, w := range got[0] {
		s, ns := of(w.tid), float64(w.len)
		s.exact += ns
		all += ns
		if w.len < uint64(threshold) {
			s.variance += ns * (float64(threshold) - ns)
		} else {
			long[0]++
		}
	}
	for _, w := range got[1] {
		of(w.tid).chosen += float64(w.len)
		if w.len < uint64(threshold) {
			t.Errorf("a wait of %d ns is below the threshold", w.len)
		} else if w.len > uint64(threshold) {
			long[1]++
		}
	}
	if len(sums) != 6 {
		t.Errorf("waits of %d threads of 6", len(sums))
	}
	for tid, s := range sums {
		// The two programs read the clock one after the other.
		if sigma := math.Sqrt(s.variance); math.Abs(s.chosen-s.exact) > 5*sigma+0.01*s.exact {
			t.Errorf("thread %d waited %.3f ms, and %.3f with the threshold: σ is %.3f ms", tid, s.exact/1e6, s.chosen/1e6, sigma/1e6)
		}
	}
	if d := long[0] - long[1]; d < -2 || d > 2 {
		t.Errorf("%d waits of the threshold's length, and %d with it", long[0], long[1])
	}
	if n, most := len(got[1]), all/float64(threshold); float64(n) > most+5*math.Sqrt(most) || n*4 > len(got[0]) {
		t.Errorf("%d samples of %d waits in %.3f s", n, len(got[0]), all/1e9)
	}
	for _, p := range programs {
		if st := p.Stats(); st.RingFull+st.Nested > 0 {
			t.Errorf("lost: %+v", st)
		}
	}
	t.Logf("%d waits, %d samples with the threshold: %.3f s", len(got[0]), len(got[1]), all/1e9)
}

// TestBoth: a recording of what runs and of what waits has both, as two events, with whole stacks.
func TestBoth(t *testing.T) {
	prog := compile(t, `#include <time.h>
static struct timespec ms = {0, 20000000};
static double cpu(void) { struct timespec t; clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t); return t.tv_sec + t.tv_nsec * 1e-9; }
__attribute__((noinline)) static void spin(double s) { double end = cpu() + s; while (cpu() < end); }
__attribute__((noinline)) static void rest(void) { nanosleep(&ms, 0); }
int main(void) { for (int i = 0; i < 25; i++) { spin(0.02); rest(); } return 0; }`)
	p := load(t, Options{})
	var ns, n [2]uint64
	whole := 0
	record(t, p, perfevent.Options{Command: []string{prog}, Event: "cpu-clock", Frequency: 999, Waits: true}, func(s *source.Sample) {
		if s.Event < 0 || s.Event > 1 {
			t.Fatalf("event %d", s.Event)
		}
		if s.Stop == unwind.Outermost {
			whole++
		}
		ns[s.Event] += s.Period
		n[s.Event]++
	})
	st := p.Stats()
	if ns[0] < 400e6 || ns[0] > 700e6 || n[1] < 24 || n[1] > 60 || ns[1] < 490e6 {
		t.Errorf("%d samples of %d ms that it ran, %d of %d ms that it waited, of 500 each", n[0], ns[0]/1e6, n[1], ns[1]/1e6)
	}
	if whole*100 < int(n[0]+n[1])*98 || st.Waits > n[1] || st.Waits == 0 || st.Samples <= st.Waits {
		t.Errorf("%d of %d stacks are whole: %+v", whole, n[0]+n[1], st)
	}
}
