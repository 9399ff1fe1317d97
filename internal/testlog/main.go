// Command testlog runs go test and prints its output, then the ten slowest tests, and at the end one line of skipped tests with reasons:
//
//	testlog go test ./...
//
// First, it prints the duration of the last run. Its exit status is go test's.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// An event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output string
	Elapsed                       float64 // seconds
}

func main() {
	args := os.Args[1:]
	if !slices.Contains(args, "test") {
		fmt.Fprintln(os.Stderr, "usage: testlog go test [flags] [packages]")
		os.Exit(2)
	}
	kept := ""
	if dir, err := os.UserCacheDir(); err == nil {
		kept = filepath.Join(dir, "unspool-test-time")
	}
	last := "twenty to forty-five minutes on two cores that have nothing else to do"
	if b, err := os.ReadFile(kept); err == nil {
		if d, err := time.ParseDuration(strings.TrimSpace(string(b))); err == nil {
			last = "the last time " + d.String()
		}
	}
	part := slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-run") || a == "-short" })
	if !part {
		fmt.Printf("All tests take %s; a package that has not changed takes none.\n", last)
	}

	start := time.Now()
	l := log{w: os.Stdout, verbose: slices.Contains(args, "-v"), running: map[[2]string]*strings.Builder{}, lacks: map[string]int{}}
	cpu, status := l.run(args)
	took := time.Since(start).Round(time.Second)
	fmt.Print(l.slowest(10))
	// Processor time is what compares runs of a machine that does other things, too. It leaves out processes that nobody waited for.
	fmt.Printf("%v, of processors %v\n", took, cpu.Round(time.Second))
	fmt.Println(l.skipped())
	if status == 0 && !part && took > time.Minute && kept != "" {
		os.WriteFile(kept, []byte(took.String()+"\n"), 0o600) // what cannot be kept is not known the next time
	}
	os.Exit(status)
}

// run runs a go test, and returns its processor time and its exit status.
func (l *log) run(args []string) (cpu time.Duration, status int) {
	c := exec.Command(args[0], slices.Insert(slices.Clone(args[1:]), slices.Index(args, "test"), "-json")...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err == nil {
		l.read(out)
		err = c.Wait()
		cpu = c.ProcessState.UserTime() + c.ProcessState.SystemTime()
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return cpu, max(exit.ExitCode(), 1)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return cpu, 1
	}
	return cpu, 0
}

// A log is the output of go test without -v, made of that with -json.
type log struct {
	w       io.Writer
	verbose bool
	running map[[2]string]*strings.Builder // output of tests, with their subtests, by package and name
	tests   []timed
	skips   int
	lacks   map[string]int // how many tests lack what
}

// A timed is how long a test, with its subtests, took.
type timed struct {
	seconds   float64
	pkg, test string
}

// read reads events until there are no more.
func (l *log) read(in io.Reader) {
	r := bufio.NewReader(in)
	for {
		line, err := r.ReadBytes('\n')
		var e event
		switch {
		case len(line) == 0:
		case json.Unmarshal(line, &e) != nil:
			l.w.Write(line) // go itself says something
		default:
			l.event(&e)
		}
		if err != nil {
			return
		}
	}
}

func (l *log) event(e *event) {
	if e.Action == "build-output" || e.Action == "output" && (e.Test == "" || l.verbose) {
		if e.Output != "PASS\n" || l.verbose {
			io.WriteString(l.w, e.Output)
		}
	}
	if e.Test == "" {
		if e.Action == "output" && strings.HasSuffix(e.Output, "(cached)\n") {
			l.tests = slices.DeleteFunc(l.tests, func(t timed) bool { return t.pkg == e.Package }) // they took that in some earlier run
		}
		if e.Action == "fail" { // of tests that did not come to their end
			for _, key := range slices.SortedFunc(maps.Keys(l.running), func(a, b [2]string) int { return cmp.Compare(a[1], b[1]) }) {
				if key[0] == e.Package {
					l.print(key)
				}
			}
		}
		return
	}
	top, _, _ := strings.Cut(e.Test, "/")
	key := [2]string{e.Package, top}
	b := l.running[key]
	if b == nil {
		b = new(strings.Builder)
		l.running[key] = b
	}
	switch e.Action {
	case "output":
		b.WriteString(e.Output)
	case "skip":
		l.skip(b.String())
	}
	if e.Test == top {
		switch e.Action {
		case "fail":
			l.print(key)
		case "pass", "skip":
			delete(l.running, key)
		}
		if e.Action == "pass" || e.Action == "fail" {
			l.tests = append(l.tests, timed{e.Elapsed, e.Package, e.Test})
		}
	}
}

// print writes what a test has written, without the lines of which test writes.
func (l *log) print(key [2]string) {
	for line := range strings.Lines(l.running[key].String()) {
		if !strings.HasPrefix(strings.TrimLeft(line, " "), "=== ") && !l.verbose {
			io.WriteString(l.w, line)
		}
	}
	delete(l.running, key)
}

var (
	reason = regexp.MustCompile(`(?m)^ +\w+\.go:\d+: (.*)$`)
	want   = regexp.MustCompile(`(?:\blacks |\bneeds |\btakes |^for )([^:;]+)`)
)

// skip counts a test that was skipped, whose output ends with why.
func (l *log) skip(output string) {
	all := reason.FindAllStringSubmatch(output, -1)
	why := "a reason that it does not tell"
	if len(all) > 0 {
		why = all[len(all)-1][1]
	}
	if strings.HasPrefix(why, "part of ") {
		return // that does run
	}
	if m := want.FindStringSubmatch(why); m != nil {
		why = m[1]
	}
	l.skips++
	l.lacks[why]++
}

// slowest is a line for each of the n slowest tests of at least a tenth of a second.
func (l *log) slowest(n int) string {
	slices.SortStableFunc(l.tests, func(a, b timed) int { return cmp.Compare(b.seconds, a.seconds) })
	var out strings.Builder
	for _, t := range l.tests[:min(n, len(l.tests))] {
		if t.seconds >= 0.1 {
			fmt.Fprintf(&out, "%8.1fs  %s %s\n", t.seconds, t.pkg, t.test)
		}
	}
	if out.Len() == 0 {
		return ""
	}
	return "The slowest tests:\n" + out.String()
}

// skipped is the line at the end.
func (l *log) skipped() string {
	if l.skips == 0 {
		return "No tests skipped."
	}
	var list []string
	for _, why := range slices.SortedFunc(maps.Keys(l.lacks), func(a, b string) int { return cmp.Or(l.lacks[b]-l.lacks[a], cmp.Compare(a, b)) }) {
		list = append(list, fmt.Sprintf("%s (%d)", why, l.lacks[why]))
	}
	tests := "tests"
	if l.skips == 1 {
		tests = "test"
	}
	return fmt.Sprintf("%d %s skipped for want of: %s", l.skips, tests, strings.Join(list, ", "))
}
