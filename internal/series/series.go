// Package series names the snapshots that a recording writes beside its output: of heap.pb.gz, heap.001.pb.gz, heap.002.pb.gz and so on. Another
// recording to the same output goes on counting, so no snapshot is overwritten.
package series

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Possible says whether an output is a file that others can lie beside. "" and "-" are standard output.
func Possible(output string) bool {
	if output == "" || output == "-" {
		return false
	}
	st, err := os.Stat(output)
	return err != nil || st.Mode().IsRegular()
}

// Next returns the name of an output's next snapshot: its number follows those of all that there are. The output's name ends with one of its format's
// endings; other endings begin at the last period.
func Next(output string, endings []string) string {
	return name(output, endings, next(output, endings))
}

// name returns the name of snapshot n.
func name(output string, endings []string, n int) string {
	stem, ending := split(output, endings)
	return fmt.Sprintf("%s.%03d%s", stem, n, ending)
}

func split(output string, endings []string) (stem, ending string) {
	for _, e := range endings {
		if strings.HasSuffix(output, e) && filepath.Base(output) != e && len(e) > len(ending) {
			ending = e
		}
	}
	if ending == "" {
		if ending = filepath.Ext(output); ending == filepath.Base(output) {
			ending = ""
		}
	}
	return strings.TrimSuffix(output, ending), ending
}

// parse returns the number of a snapshot; 0 for other names.
func parse(name, stem, ending string) int {
	s, ok := strings.CutPrefix(name, stem+".")
	digits, ok2 := strings.CutSuffix(s, ending)
	if !ok || !ok2 || len(digits) < 3 {
		return 0
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || fmt.Sprintf("%03d", n) != digits {
		return 0
	}
	return int(n)
}

// most is the greatest number of a snapshot.
const most = math.MaxInt32

// next returns the first number after those of all snapshots of an output that there are; after the greatest one, the first that is free.
func next(output string, endings []string) int {
	dir, base := filepath.Split(output)
	stem, ending := split(base, endings)
	last, taken := 0, map[int]bool{}
	each(dir, func(name string) {
		n := parse(name, stem, ending)
		last, taken[n] = max(last, n), true
	})
	if last < most {
		return last + 1
	}
	n := 1
	for taken[n] {
		n++
	}
	return n
}

// Beside returns the names of the snapshots of a pprof profile in its directory, sorted.
func Beside(dir, base string) (names []string) {
	stem, ending := split(base, []string{".pb.gz"})
	each(dir, func(name string) {
		if parse(name, stem, ending) > 0 {
			names = append(names, name)
		}
	})
	return names
}

// each calls f with the names of a directory, sorted.
func each(dir string, f func(name string)) {
	if dir == "" {
		dir = "."
	}
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		f(e.Name())
	}
}
