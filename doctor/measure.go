package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	bpf "github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/names"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/record"
)

// Measure records the whole machine for a second, walked in the kernel.
func Measure(ctx context.Context) (*Measurement, error) {
	m := &Measurement{}
	if c, err := bpf.EnableStats(unix.BPF_STATS_RUN_TIME); err == nil {
		defer c.Close()
	} else {
		m.Note = fmt.Sprintf("the kernel does not measure BPF programs (%v): as root, sysctl kernel.bpf_stats_enabled=1", err)
	}
	mods := modules.New()
	defer mods.Close()
	p := record.Plan{Source: record.EBPF}
	p.All, p.Duration = true, time.Second
	l, err := p.Open(ctx, mods)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	n := names.New(names.Options{Mods: mods})
	defer n.Close()
	s := l.Session(record.Options{Mods: mods, Names: n})
	opened := time.Now()
	if err := s.Run(context.Background(), func(*profile.Sample) error { return nil }); err != nil {
		return nil, err
	}
	m.Seconds = time.Since(opened).Seconds()
	st := l.Kernel()
	m.Load = float64(l.Loaded.Microseconds()) / 1e3
	m.Processes, m.Modules, m.TableBytes, m.MapBytes = st.Processes, st.Tables, st.TableBytes, st.MapBytes
	m.Overhead = float64(st.MapBytes) / float64(max(st.TableBytes, 1))
	t := profile.Totals{Samples: s.Stats.Samples, Stops: s.Stats.Stops}
	m.Samples, m.Lost = t.Samples, l.Lost()
	if n := t.Samples - t.NoUser(); n > 0 {
		m.Whole = 100 * float64(t.Whole()) / float64(n)
	}
	if m.Runs = st.Runs; st.Runs > 0 {
		m.PerSample = float64(st.RunTime.Nanoseconds()) / float64(st.Runs)
	}
	if st.Err != nil {
		m.Note = strings.TrimSpace(m.Note + " " + st.Err.Error())
	}
	return m, nil
}
