package perfevent

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/unspool/unspool/internal/printable"
)

// maxNear is how many names an error suggests.
const maxNear = 5

// unknownEvent says that there is no event s, and which names are near.
func unknownEvent(s string, at places) error {
	names := append(slices.Clone(fixedNames), OffCPU)
	system, name, ok := strings.Cut(s, ":")
	switch {
	case s == "mem":
		return fmt.Errorf("event %q: a breakpoint is written mem:ADDR[/LEN][:rwx], such as mem:0x601040:w", s)
	case probeTypes[system]:
		return unmadeProbe(s, system, name)
	case ok:
		names = append(names, tracepointsNear(system, name, at)...)
	default:
		names = append(names, tracepointsNear("", s, at)...)
	}
	near := nearest(s, names)
	if len(near) == 0 {
		return fmt.Errorf("event %q is unknown; try cycles, cpu-clock, page-faults, off-cpu, a tracepoint such as sched:sched_switch, or a breakpoint such as mem:0x601040:w", s)
	}
	return fmt.Errorf("event %q is unknown; did you mean %s?", s, printable.Either(near))
}

// probeTypes are the units of probes, and their short names. The kernel knows a probe as a tracepoint only.
var probeTypes = map[string]bool{"uprobe": true, "uretprobe": true, "kprobe": true, "kretprobe": true}

// unmadeProbe says how to make the probe that s asks for, and the name of its event.
func unmadeProbe(s, unit, where string) error {
	command, event := "perf probe FUNCTION", "probe:FUNCTION"
	if strings.HasPrefix(unit, "u") {
		file, function := "FILE", "FUNCTION"
		if i := strings.LastIndexByte(where, ':'); i > 0 && i < len(where)-1 {
			file, function = where[:i], where[i+1:]
		}
		group := filepath.Base(file)
		if i := strings.IndexAny(group, "-._"); i > 0 { // as perf names it
			group = group[:i]
		}
		command, event = "perf probe -x "+file+" "+function, "probe_"+group+":"+function
	} else if where != "" {
		command, event = "perf probe "+where, "probe:"+where
	}
	if strings.Contains(unit, "ret") {
		command, event = command+"%return", event+"__return"
	}
	return fmt.Errorf("event %q: make the probe first, and then record its tracepoint: sudo %s, then -e %s", s, command, event)
}

// tracepointsNear returns the tracepoints of a system, or if there is no such system, of those that have a
// tracepoint of that name.
func tracepointsNear(system, name string, at places) (names []string) {
	root, err := at.events()
	if err != nil {
		return nil
	}
	systems, err := os.ReadDir(root)
	if err != nil {
		return nil
	}
	for _, s := range systems {
		if !s.IsDir() {
			continue
		}
		if s.Name() != system {
			if plainWord(name) {
				if _, err := os.Stat(filepath.Join(root, s.Name(), name)); err == nil {
					names = append(names, s.Name()+":"+name)
				}
			}
			continue
		}
		points, err := os.ReadDir(filepath.Join(root, system))
		if err != nil {
			continue
		}
		for _, p := range points {
			if p.IsDir() {
				names = append(names, system+":"+p.Name())
			}
		}
	}
	return names
}

// nearest returns the names that differ from s least, and by little.
func nearest(s string, names []string) []string {
	want := strings.ToLower(s)
	if len(want) > 100 {
		return nil
	}
	var found []string
	least := max(2, len(want)/3)
	for _, n := range names {
		low := strings.ToLower(n)
		d := distance(want, low)
		if len(want) > 2 && strings.Contains(low, want) {
			d = min(d, 2)
		}
		if d < least {
			least, found = d, nil
		}
		if d == least {
			found = append(found, n)
		}
	}
	return found[:min(len(found), maxNear)]
}

// distance is how many bytes must be put in, taken out or changed to make b of a.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}
