// Package doctor finds out what this kernel and this user allow. It tries each way of working and reads the settings behind it. A Diagnosis
// is written as text or JSON; the JSON's names do not change from version to version. Where the kernel can walk stacks, Measure records for a
// second and reports the cost.
package doctor

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/unspool/unspool/internal/caps"
	"github.com/unspool/unspool/internal/printable"
	"github.com/unspool/unspool/profile"
	"github.com/unspool/unspool/source/perfdata"
)

// A Finding is one thing that was looked at.
type Finding struct {
	Name    string `json:"name"`              // does not change from version to version
	What    string `json:"what"`              // in words
	OK      bool   `json:"ok"`                //
	Value   string `json:"value,omitempty"`   // of a setting
	Unknown bool   `json:"unknown,omitempty"` // it cannot be found out, so OK says nothing
	Reason  string `json:"reason,omitempty"`  // why it is not so
	Change  string `json:"change,omitempty"`  // a command, or what else to do
}

// A Diagnosis is all that was found.
type Diagnosis struct {
	Version  string       `json:"version"`
	Kernel   string       `json:"kernel"`
	Machine  string       `json:"machine"`
	CPUs     int          `json:"cpus"`
	UID      int          `json:"uid"`
	Ways     []Finding    `json:"ways"`   // of working
	Needs    []Finding    `json:"checks"` // that they stand on
	Measured *Measurement `json:"measured,omitempty"`
}

// A Measurement is of a second in which the kernel walked the stacks of the whole machine.
type Measurement struct {
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

// Way returns a way of working by its name, such as "record-ebpf".
func (d *Diagnosis) Way(name string) *Finding {
	for i := range d.Ways {
		if d.Ways[i].Name == name {
			return &d.Ways[i]
		}
	}
	panic("BUG: no way " + name)
}

// Records says whether anything can be recorded.
func (d *Diagnosis) Records() bool {
	return slices.ContainsFunc(d.Ways, func(f Finding) bool { return f.OK && strings.HasPrefix(f.Name, "record-") })
}

// Diagnose looks at everything. version is the program's.
func Diagnose(version string) *Diagnosis {
	host := perfdata.Host()
	d := &Diagnosis{Version: version, Kernel: host.OSRelease, Machine: host.Arch, CPUs: runtime.NumCPU(), UID: os.Geteuid()}
	d.Needs = needs()
	d.Ways = ways(d.Needs)
	if d.Way("record-ebpf").OK { // it has just been loaded, with all that it stands on
		for i := range d.Needs {
			if f := &d.Needs[i]; f.Unknown && strings.HasPrefix(f.Name, "bpf-") {
				*f = Finding{Name: f.Name, What: f.What, OK: true}
			}
		}
	}
	return d
}

// Write writes d as text.
func (d *Diagnosis) Write(w io.Writer) error {
	var b strings.Builder
	user := "root"
	if d.UID != 0 {
		user = fmt.Sprintf("user %d", d.UID)
	}
	fmt.Fprintf(&b, "unspool %s · Linux %s %s · %d processors · %s\n", d.Version, d.Kernel, d.Machine, d.CPUs, user)
	part := func(title string, list []Finding) {
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
		fmt.Fprintf(&b, "  %s, tables of %s: %s, which take %s of kernel memory (%.2f times as much)\n",
			profile.Count(uint64(m.Processes), "process", "processes"), profile.Quantity(uint64(m.Modules), "modules"), mib(m.TableBytes), mib(m.MapBytes), m.Overhead)
		fmt.Fprintf(&b, "  %s, %.1f %% of the user stacks whole, %s lost\n", profile.Quantity(m.Samples, "samples"), m.Whole, profile.Comma(m.Lost))
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

// WriteRights lists the capabilities of an agent as text, and which of them it keeps.
func WriteRights(w io.Writer, rights []caps.Right) error {
	for _, r := range rights {
		kept := "until it has begun"
		if r.Kept {
			kept = "all the time"
		}
		if _, err := fmt.Fprintf(w, "%-20s  %-18s  %s\n", r.Name, kept, r.Why); err != nil {
			return err
		}
	}
	return nil
}
