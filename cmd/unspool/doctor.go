package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/doctor"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
)

func doctorCmd() *cobra.Command {
	asJSON, quick := false, false
	c := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this kernel and this user allow, and what to change",
		Long: `Try each way of working: recording by copies of stacks, in user space, with the kernel's part and of the whole
machine; recording with stacks walked in the kernel; names of kernel functions; unspool run. Each line says yes or no, why
not, and what to change, or ? for what this user cannot find out.

Where the kernel may walk, its program is loaded and follows the whole machine for a second: what it takes is measured.

The exit status is 0, or 1 if nothing at all can be recorded.`,
		Example: "  unspool doctor\n  sudo unspool doctor",
		Args:    cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			d := doctor.Diagnose(doctor.Options{Version: version(), Runtime: func() error { _, err := findRuntime(""); return err }})
			if !quick && d.Way("record-ebpf").OK {
				m, err := measure(c.Context())
				if err != nil {
					return err
				}
				d.Measured = m
			}
			if asJSON {
				e := json.NewEncoder(os.Stdout)
				e.SetIndent("", "  ")
				if err := e.Encode(d); err != nil {
					return err
				}
			} else if err := d.Write(os.Stdout); err != nil {
				return err
			}
			if d.Records() {
				return nil
			}
			return &exitError{1, errors.New("nothing can be recorded here")}
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&quick, "quick", false, "do not measure")
	return c
}

// measure records the whole machine for a second, walked in the kernel.
func measure(ctx context.Context) (*doctor.Measurement, error) {
	m := &doctor.Measurement{}
	if c, err := bpf.EnableStats(unix.BPF_STATS_RUN_TIME); err == nil {
		defer c.Close()
	} else {
		m.Note = fmt.Sprintf("the kernel does not count what the program takes (%v): as root, sysctl kernel.bpf_stats_enabled=1", err)
	}
	mods := modules.New()
	p := plan{from: "ebpf"}
	p.All, p.Duration = true, time.Second
	l, err := p.open(ctx, mods)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	s := l.session(mods, &filter{})
	opened := time.Now()
	if err := s.run(context.Background(), func(*profile.Sample) error { return nil }, nil, nil); err != nil {
		return nil, err
	}
	m.Seconds = time.Since(opened).Seconds()
	st := l.prog.Stats()
	m.Load = float64(l.loaded.Microseconds()) / 1e3
	m.Processes, m.Modules, m.TableBytes, m.MapBytes = st.Processes, st.Tables, st.TableBytes, st.MapBytes
	m.Overhead = float64(st.MapBytes) / float64(max(st.TableBytes, 1))
	t := profile.Totals{Samples: s.stats.Samples, Stops: s.stats.Stops}
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
