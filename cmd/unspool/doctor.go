package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	bpf "github.com/cilium/ebpf"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/modules"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source/perfdata"
)

// A finding is one thing that was looked at.
type finding struct {
	Name    string `json:"name"`              // does not change from version to version
	What    string `json:"what"`              // in words
	OK      bool   `json:"ok"`                //
	Value   string `json:"value,omitempty"`   // of a setting
	Unknown bool   `json:"unknown,omitempty"` // it cannot be found out, so OK says nothing
	Reason  string `json:"reason,omitempty"`  // why it is not so
	Change  string `json:"change,omitempty"`  // a command, or what else to do
}

// A diagnosis is what doctor has to say.
type diagnosis struct {
	Version  string       `json:"version"`
	Kernel   string       `json:"kernel"`
	Machine  string       `json:"machine"`
	CPUs     int          `json:"cpus"`
	UID      int          `json:"uid"`
	Ways     []finding    `json:"ways"`   // of working
	Needs    []finding    `json:"checks"` // that they stand on
	Measured *measurement `json:"measured,omitempty"`
}

// A measurement is of a second in which the kernel walked the stacks of the whole machine.
type measurement struct {
	Load       float64 `json:"load_ms"`            // of the program into the kernel
	Processes  int     `json:"processes"`          //
	Modules    int     `json:"modules"`            // whose tables are in the kernel
	TableBytes uint64  `json:"table_bytes"`        // the tables
	MapBytes   uint64  `json:"kernel_bytes"`       // that they take in the kernel
	Overhead   float64 `json:"kernel_table_ratio"` // kernel_bytes / table_bytes
	Seconds    float64 `json:"seconds"`            //
	Samples    uint64  `json:"samples"`            //
	Whole      float64 `json:"whole_percent"`      // of those that have a user stack
	Lost       uint64  `json:"lost"`               //
	Runs       uint64  `json:"program_runs"`       // that the kernel counted
	PerSample  float64 `json:"ns_per_run"`         // by the kernel's own clock; 0: not counted
	Note       string  `json:"note,omitempty"`     // why something is not known
}

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
			d := diagnose()
			if !quick && d.way("record-ebpf").OK {
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
			} else if err := d.write(os.Stdout); err != nil {
				return err
			}
			for _, f := range d.Ways {
				if f.OK && strings.HasPrefix(f.Name, "record-") {
					return nil
				}
			}
			return &exitError{1, errors.New("nothing can be recorded here")}
		},
	}
	c.Flags().BoolVar(&asJSON, "json", false, "print one JSON object")
	c.Flags().BoolVar(&quick, "quick", false, "do not measure")
	return c
}

// way returns a finding by its name.
func (d *diagnosis) way(name string) *finding {
	for i := range d.Ways {
		if d.Ways[i].Name == name {
			return &d.Ways[i]
		}
	}
	panic("BUG: no way " + name)
}

// diagnose looks at everything.
func diagnose() *diagnosis {
	host := perfdata.Host()
	d := &diagnosis{Version: version(), Kernel: host.OSRelease, Machine: host.Arch, CPUs: runtime.NumCPU(), UID: os.Geteuid()}
	d.Needs = needs()
	d.Ways = ways(d.Needs)
	if d.way("record-ebpf").OK { // it has just been loaded, with all that it stands on
		for i := range d.Needs {
			if f := &d.Needs[i]; f.Unknown && strings.HasPrefix(f.Name, "bpf-") {
				*f = finding{Name: f.Name, What: f.What, OK: true}
			}
		}
	}
	return d
}

// write writes d as text.
func (d *diagnosis) write(w io.Writer) error {
	var b strings.Builder
	user := "root"
	if d.UID != 0 {
		user = fmt.Sprintf("user %d", d.UID)
	}
	fmt.Fprintf(&b, "unspool %s · Linux %s %s · %d processors · %s\n", d.Version, d.Kernel, d.Machine, d.CPUs, user)
	part := func(title string, list []finding) {
		width := 0
		for _, f := range list {
			width = max(width, len([]rune(f.What)))
		}
		fmt.Fprintf(&b, "\n%s\n", title)
		for _, f := range list {
			yes := "no "
			if f.OK {
				yes = "yes"
			} else if f.Unknown {
				yes = "?  "
			}
			line := "  " + yes + "  " + printable.Pad(f.What, width)
			for _, s := range []string{f.Value, f.Reason} {
				if s != "" {
					line += "  " + printable.Marked(s)
				}
			}
			fmt.Fprintln(&b, strings.TrimRight(line, " "))
			if f.Change != "" {
				fmt.Fprintf(&b, "         change: %s\n", f.Change)
			}
		}
	}
	part("What can be done", d.Ways)
	part("What it stands on", d.Needs)
	if m := d.Measured; m != nil {
		mib := func(n uint64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
		fmt.Fprintf(&b, "\nThe kernel's program, %.1f s on the whole machine\n", m.Seconds)
		fmt.Fprintf(&b, "  loaded in %.0f ms\n", m.Load)
		fmt.Fprintf(&b, "  %s processes, tables of %s modules: %s, which take %s of kernel memory (%.2f times as much)\n",
			profile.Comma(uint64(m.Processes)), profile.Comma(uint64(m.Modules)), mib(m.TableBytes), mib(m.MapBytes), m.Overhead)
		fmt.Fprintf(&b, "  %s samples, %.1f %% of the user stacks whole, %s lost\n", profile.Comma(m.Samples), m.Whole, profile.Comma(m.Lost))
		if m.PerSample > 0 {
			fmt.Fprintf(&b, "  %.0f ns a sample, by the kernel's count of %s runs\n", m.PerSample, profile.Comma(m.Runs))
		}
		if m.Note != "" {
			fmt.Fprintf(&b, "  %s\n", printable.Marked(m.Note))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// measure records the whole machine for a second, walked in the kernel.
func measure(ctx context.Context) (*measurement, error) {
	m := &measurement{}
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
	m.Samples, m.Lost = t.Samples, l.lost()
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
