package lab

import (
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	bpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/oracle"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/source"
	"github.com/unspool/unspool/source/ebpf"
	"github.com/unspool/unspool/source/perfevent"
	"github.com/unspool/unspool/unwind"
)

// countRuns has the kernel count runs of programs and their time, until the test is over.
func countRuns(t testing.TB) {
	stats, err := bpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if errors.Is(err, os.ErrPermission) {
		oracle.Lacks(t, "the permission to load programs into the kernel")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stats.Close() })
}

// walkOurs walks a process's stacks for a while. each is called with the lookup addresses of every stack, and whether it is
// whole. What comes before the first whole stack is not counted: tables are on their way.
func walkOurs(t testing.TB, pid int, frequency uint64, d time.Duration, each func(stack []uint64, whole bool)) part {
	prog, err := ebpf.Load(ebpf.Options{Mods: modules.New().Module})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	rec, err := perfevent.Open(t.Context(), perfevent.Options{PIDs: []int{pid}, Frequency: frequency, User: true, Program: prog, Duration: d})
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Close()
	var before ebpf.Stats
	samples, frames := 0, 0
	var stack []uint64
	if _, err := source.Run(t.Context(), rec, source.Options{Mods: modules.New().Module, Ours: true, Sample: func(s *source.Sample) error {
		if s.From != source.Walked {
			return nil
		}
		if samples == 0 {
			if s.Stop != unwind.Outermost {
				return nil
			}
			before = prog.Stats()
		}
		samples++
		frames += len(s.User)
		stack = stack[:0]
		for i := range s.User {
			stack = append(stack, uint64(s.User[i].Addr()))
		}
		each(stack, s.Stop == unwind.Outermost)
		return nil
	}}); err != nil {
		t.Fatal(err)
	}
	after := prog.Stats()
	if lost := after.RingFull + after.Nested; lost > 0 {
		t.Errorf("%d samples were lost", lost)
	}
	if samples == 0 {
		t.Fatal("there was no whole stack")
	}
	x := part{runs: after.Runs - before.Runs, time: after.RunTime - before.RunTime}
	x.frames = x.runs * uint64(frames) / uint64(samples)
	return x
}

// frequencyAt is how often samples are taken at a depth: walks, the peer's too, must leave time to the program.
func frequencyAt(depth int) uint64 {
	if depth > 500 {
		return 999
	}
	return 3999
}

var (
	kernelDepths = []int{8, 32, 128, 1000}
	kernelModes  = []string{"varied", "fixed"}
)

// runChains starts the program in a mode: varied has a new chain of calls every one or two samples, fixed the same for all.
func runChains(t testing.TB, prog *callProgram, mode string, depth int) *callRun {
	every := time.Duration(0)
	if mode == "varied" {
		every = time.Second * 3 / 2 / time.Duration(frequencyAt(depth))
	}
	return prog.run(t, depth, every, 88172645463325252)
}

// TestKernelChains: ours and the peer's stacks are the chains of calls that the program makes, to the depth that was asked for, whole in
// every sample.
func TestKernelChains(t *testing.T) {
	prog, spec := buildCalls(t), buildPeer(t)
	countRuns(t)
	peers := loadPeers(t, spec)
	for _, mode := range kernelModes {
		for _, depth := range kernelDepths {
			t.Run(fmt.Sprint(mode, "/", depth), func(t *testing.T) {
				run := runChains(t, prog, mode, depth)
				walk := func(name string, f func(each func([]uint64, bool)) part) {
					c := &chainCheck{callRun: run}
					n, broken, wrong := 0, 0, 0
					x := f(func(stack []uint64, whole bool) {
						n++
						if !whole {
							broken++
							return
						}
						if diff := c.check(stack); diff != "" {
							if wrong++; wrong <= 3 {
								t.Errorf("%s: %s", name, diff)
							}
						}
					})
					t.Logf("%s: %d stacks, %d to depth %d, %d on the way; chains up to %d; %.0f ns a sample, %.1f a frame", name, n, c.full, depth, c.part, c.at, x.perSample(), x.perFrame())
					if broken > 0 || wrong > 0 || n < 50 || c.full < n*3/4 {
						t.Errorf("%s: of %d stacks, %d were not whole, %d wrong, %d as deep as asked for", name, n, broken, wrong, c.full)
					}
				}
				walk("ours", func(each func([]uint64, bool)) part {
					return walkOurs(t, run.pid, frequencyAt(depth), 400*time.Millisecond, each)
				})
				for _, p := range peers {
					p.process(t, run.pid)
					walk(p.kind.String(), func(each func([]uint64, bool)) part {
						return p.walk(t, run.pid, frequencyAt(depth), 400*time.Millisecond, each)
					})
				}
			})
		}
	}
}

// A walkCost is what samples cost in the kernel: medians of rounds in which each had its turn.
type walkCost struct {
	empty                  float64           // a program that does nothing, ns a sample
	ours                   float64           // ns a sample
	oursFrame              float64           // ns a frame
	peer, peerFrame, times [numPeers]float64 // the same, and the ratio of a frame's
	samples                uint64            // ours
}

// measureWalks measures in rounds.
func measureWalks(t testing.TB, run *callRun, peers []*bpfPeer, rounds int) (c walkCost) {
	const d = 300 * time.Millisecond
	for _, p := range peers {
		p.process(t, run.pid)
	}
	frequency := frequencyAt(run.depth)
	var empty, ours, oursFrame []float64
	var peer, peerFrame, times [numPeers][]float64
	broken := 0
	each := func(_ []uint64, whole bool) {
		if !whole {
			broken++
		}
	}
	for range rounds {
		x := attached(t, peers[0].coll.Programs["empty"], run.pid, frequency, func() { time.Sleep(d) })
		empty = append(empty, x.perSample())
		us := walkOurs(t, run.pid, frequency, d, each)
		ours, oursFrame = append(ours, us.perSample()), append(oursFrame, us.perFrame())
		c.samples += us.runs
		for k, p := range peers {
			x := p.walk(t, run.pid, frequency, d, each)
			peer[k], peerFrame[k] = append(peer[k], x.perSample()), append(peerFrame[k], x.perFrame())
			times[k] = append(times[k], x.perFrame()/us.perFrame())
		}
	}
	if broken > 0 {
		t.Errorf("%d stacks were not whole", broken)
	}
	c.empty, c.ours, c.oursFrame = median(empty), median(ours), median(oursFrame)
	for k := range peers {
		c.peer[k], c.peerFrame[k], c.times[k] = median(peer[k]), median(peerFrame[k]), median(times[k])
	}
	return c
}

// BenchmarkKernelWalk is what a sample costs in the kernel, by its own statistics, ours and the peer's in turns. One depth:
// go test -run '^$' -bench 'KernelWalk/varied/128' -benchtime 1x ./lab
func BenchmarkKernelWalk(b *testing.B) {
	prog, spec := buildCalls(b), buildPeer(b)
	countRuns(b)
	peers := loadPeers(b, spec)
	for _, mode := range kernelModes {
		for _, depth := range kernelDepths {
			b.Run(fmt.Sprint(mode, "/", depth), func(b *testing.B) {
				for b.Loop() {
					c := measureWalks(b, runChains(b, prog, mode, depth), peers, 5)
					b.ReportMetric(c.empty, "empty-ns/sample")
					b.ReportMetric(c.ours, "ns/sample")
					b.ReportMetric(c.oursFrame, "ns/frame")
					b.ReportMetric(c.peerFrame[peerSized], "peer-ns/frame")
					b.ReportMetric(c.peerFrame[peerAny], "peer-any-ns/frame")
					b.ReportMetric(c.times[peerSized], "peer/ours")
					b.ReportMetric(float64(c.samples), "samples")
				}
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}
