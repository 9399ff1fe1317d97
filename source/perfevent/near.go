package perfevent

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// maxNear is how many names an error suggests.
const maxNear = 5

// unknownEvent says that there is no event s, and which names are near.
func unknownEvent(s string, at places) error {
	names := slices.Clone(fixedNames)
	if system, name, ok := strings.Cut(s, ":"); ok {
		names = append(names, tracepointsNear(system, name, at)...)
	}
	near := nearest(s, names)
	if len(near) == 0 {
		return fmt.Errorf("event %q is unknown; try cycles, cpu-clock, page-faults, or a tracepoint such as sched:sched_switch", s)
	}
	return fmt.Errorf("event %q is unknown; did you mean %s?", s, strings.Join(near, " or "))
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

// nearest returns the names that differ from s by little, the nearest first.
func nearest(s string, names []string) []string {
	type scored struct {
		name  string
		score int
	}
	var found []scored
	want := strings.ToLower(s)
	if len(want) > 100 {
		return nil
	}
	for _, n := range names {
		low := strings.ToLower(n)
		d := distance(want, low)
		if len(want) > 2 && strings.Contains(low, want) {
			d = min(d, 2)
		}
		if d <= max(2, len(want)/3) {
			found = append(found, scored{n, d})
		}
	}
	slices.SortStableFunc(found, func(a, b scored) int { return cmp.Compare(a.score, b.score) })
	var out []string
	for _, f := range found[:min(len(found), maxNear)] {
		out = append(out, f.name)
	}
	return out
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
