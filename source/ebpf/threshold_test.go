package ebpf

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/unspool/unspool/internal/oracle"
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

// A wait is one sample of a thread.
type wait struct {
	tid   int32
	end   uint64 // ns
	len   uint64 // ns, or what it counts for
	whole bool
}

// TestThreshold: a recording with a threshold has the same time of each thread as one without, of the same waits, but for the error of the choice:
// five times its standard deviation, which the waits' lengths give. Waits as long as the threshold are all there, at their length; the others count for
// the threshold. It has no more samples than waiting divided by the threshold. So it is where stacks are walked at the end of waits.
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
	var got [3][]wait
	var programs [3]*Program
	var began, ended sync.WaitGroup
	for i, o := range []Options{{}, {Threshold: threshold}, {Threshold: threshold, AtEnd: true}} {
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
					got[i] = append(got[i], wait{s.TID, s.Time, s.Period, s.Stop == unwind.Outermost && inside(s, prog) > 0})
				}
				return nil
			}})
			if err != nil {
				t.Error(err)
			}
		})
	}
	began.Wait()
	time.Sleep(time.Second) // a slow machine may still read what was there before
	in.Close()
	cmd.Wait()
	ended.Wait()
	if !programs[2].atEnd {
		t.Log("this kernel's function finish_task_switch cannot be traced: all stacks are walked when waits begin")
	}
	for i := range got[1:] {
		compareWaits(t, i, got[0], got[1+i], threshold)
	}
	for _, p := range programs {
		if st := p.Stats(); st.RingFull+st.Nested > 0 || t.Failed() {
			t.Errorf("lost, or forgotten: %+v", st)
		}
	}
}

// compareWaits compares the waits of a recording with a threshold with all of them. Two programs read the clock at the same switch one after the other,
// and a virtual machine can stand still between. So waits that both have at their length are compared one by
// one, and the sums have the same length of each.
func compareWaits(t *testing.T, which int, all, chosen []wait, threshold time.Duration) {
	type sum struct{ exact, chosen, variance, unsure float64 }
	sums := map[int32]*sum{}
	of := func(tid int32) *sum {
		if sums[tid] == nil {
			sums[tid] = &sum{}
		}
		return sums[tid]
	}
	paired := map[int]uint64{} // waits of all, and the lengths that they have in chosen
	pairs, apart, alone, total := 0, 0, [2]int{}, 0.0
	for _, w := range chosen {
		of(w.tid).chosen += float64(w.len)
		if w.len < uint64(threshold) {
			t.Errorf("%d: a wait of %d ns is below the threshold", which, w.len)
		}
		if !w.whole {
			t.Errorf("%d: the stack of a wait of %d ns is not nap's", which, w.len)
		}
		if w.len == uint64(threshold) {
			continue
		}
		same, most := -1, uint64(0)
		for i, x := range all {
			from, to := max(x.end-x.len, w.end-w.len), min(x.end, w.end)
			if _, has := paired[i]; x.tid == w.tid && !has && to > from && to-from > most {
				same, most = i, to-from
			}
		}
		if same < 0 {
			alone[1]++
			continue
		}
		pairs++
		paired[same] = w.len
		if d := math.Abs(float64(all[same].len) - float64(w.len)); d > 1e6+0.01*float64(w.len) {
			apart++
			t.Logf("%d: thread %d waited %.3f ms by one clock, %.3f by the other", which, w.tid, float64(all[same].len)/1e6, float64(w.len)/1e6)
		}
	}
	for i, w := range all {
		s, ns := of(w.tid), float64(w.len)
		total += ns
		switch long, has := paired[i]; {
		case has:
			s.exact += float64(long)
		case w.len < uint64(threshold):
			s.exact += ns
			s.variance += ns * (float64(threshold) - ns)
		default: // a short one by the other clock, of unknown length
			alone[0]++
			s.unsure += float64(threshold)
		}
	}
	if len(sums) != 6 {
		t.Errorf("%d: waits of %d threads of 6", which, len(sums))
	}
	for tid, s := range sums {
		if sigma := math.Sqrt(s.variance); math.Abs(s.chosen-s.exact) > 5*sigma+0.01*s.exact+s.unsure {
			t.Errorf("%d: thread %d waited %.3f ms, and %.3f with the threshold: σ is %.3f ms", which, tid, s.exact/1e6, s.chosen/1e6, sigma/1e6)
		}
	}
	if alone[0] > 2 || alone[1] > 2 || apart*10 > pairs+10 {
		t.Errorf("%d: %d waits of the threshold's length are in both, %d of them differ; %d are in all only, %d with the threshold only", which, pairs, apart, alone[0], alone[1])
	}
	if n, most := len(chosen), total/float64(threshold); float64(n) > most+5*math.Sqrt(most) || n >= len(all) {
		t.Errorf("%d: %d samples of %d waits in %.3f s", which, n, len(all), total/1e9)
	}
	t.Logf("%d waits, %d samples with the threshold, %d at their length: %.3f s", len(all), len(chosen), pairs, total/1e9)
}

// TestStill: where the machine stands still between two programs' clocks, the waits of each are right.
func TestStill(t *testing.T) {
	const ms = 1e6
	var all, chosen []wait
	for tid := int32(1); tid <= 6; tid++ {
		for i := uint64(1); i <= 20; i++ {
			w := wait{tid, i * 100 * ms, 40 * ms, true}
			all, chosen = append(all, w), append(chosen, w)
			if i == 3 && tid == 1 { // its beginning was seen later
				chosen[len(chosen)-1].len = 20 * ms
			}
			all = append(all, wait{tid, i*100*ms + 50*ms, 5 * ms, true})
			if i%2 == 0 {
				chosen = append(chosen, wait{tid, i*100*ms + 50*ms, 10 * ms, true})
			}
		}
	}
	compareWaits(t, 0, all, chosen, 10*time.Millisecond)
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

func TestSwitched(t *testing.T) {
	for symbols, want := range map[string]string{
		"": "",
		"ffffffff813a4370 t __pfx_finish_task_switch.isra.0\nffffffff813a4380 t finish_task_switch.isra.0\n": "finish_task_switch.isra.0",
		"0000000000000000 t finish_task_switch.isra.0.cold\n0 t finish_task_switch\n":                        "finish_task_switch",
		"0 d finish_task_switch\n0 t finish_task_switched\n":                                                 "",
	} {
		if got := switched(strings.NewReader(symbols)); got != want {
			t.Errorf("%q: %q, want %q", symbols, got, want)
		}
	}
}

// TestCopies: while tables have not come, waits below a threshold do not write a copy of a stack each, which nobody could read in time. Beyond one for
// each threshold on a processor, and some at once, stacks are cut off; their time counts. Without a threshold, all are copied.
func TestCopies(t *testing.T) {
	prog := compile(t, `#include <time.h>
int main(void) { struct timespec t = {0, 20000}; for (int i = 0; i < 3000; i++) nanosleep(&t, 0); return 0; }`)
	for _, threshold := range []time.Duration{0, 10 * time.Millisecond} {
		come := make(chan struct{})
		mods := modules.New()
		p, err := Load(Options{Threshold: threshold, Mods: func(path, id string) *unwind.Module { <-come; return mods.Module(path, id) }})
		if errors.Is(err, os.ErrPermission) {
			oracle.Lacks(t, "the permission to load programs into the kernel")
		}
		if err != nil {
			t.Fatal(err)
		}
		began, ns := time.Now(), uint64(0)
		record(t, p, perfevent.Options{Command: []string{prog}, Event: perfevent.OffCPU}, func(s *source.Sample) { ns += s.Period })
		took := time.Since(began)
		close(come)
		st := p.Stats()
		p.Close()
		if most := uint64(runtime.NumCPU() * (32 + 1 + int(took/(10*time.Millisecond)))); threshold == 0 && (st.Copied < 2500 || st.CutOff > 0) ||
			threshold > 0 && (st.Copied == 0 || st.Copied > most || st.CutOff+st.Copied < 2500 || st.RingFull > 0) {
			t.Errorf("%v: at most %d copies in %v: %+v", threshold, most, took, st)
		}
		if least := uint64(3000 * 20e3); threshold == 0 && ns < least || threshold > 0 && ns < least/2 || ns > uint64(took) {
			t.Errorf("%v: waits of %d ms, in %v", threshold, ns/1e6, took)
		}
	}
}
