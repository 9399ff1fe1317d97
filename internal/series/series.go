// Package series writes and finds the snapshots that a recording writes beside its output: of heap.pb.gz, heap.001.pb.gz, heap.002.pb.gz and so on. Another
// recording to the same output goes on counting, so no snapshot is overwritten.
package series

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/unspool/unspool/internal/outfile"
)

// Possible says whether an output is a file that others can lie beside. "" and "-" are standard output.
func Possible(output string) bool {
	if output == "" || output == "-" {
		return false
	}
	st, err := os.Stat(output)
	return err != nil || st.Mode().IsRegular()
}

// Write writes an output's next snapshot with f, and returns its path. Its number follows those of all that there are. Where another recording has taken
// that by then, f is called again, for another number. The output's name ends with one of its format's endings; other endings begin at the last period.
func Write(ctx context.Context, output string, endings []string, f func(io.Writer) error) (path string, err error) {
	for range 100 { // a directory that cannot be read does not say which are taken
		path = name(output, endings, next(output, endings))
		if err = write(ctx, path, f); !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	return path, err
}

func write(ctx context.Context, path string, f func(io.Writer) error) error {
	out, err := outfile.Create(ctx, path, outfile.Options{New: true})
	if err != nil {
		return err
	}
	if err := f(out); err != nil {
		return errors.Join(err, out.Discard())
	}
	return out.Commit()
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
