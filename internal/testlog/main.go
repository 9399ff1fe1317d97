// Command testlog runs go test, prints what it prints, and at the end one line of what was skipped and why:
//
//	testlog go test ./...
//
// It says first how long that took the last time. Its exit status is that of go test.
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
}

func main() {
	args := os.Args[1:]
	at := slices.Index(args, "test")
	if at < 0 {
		fmt.Fprintln(os.Stderr, "usage: testlog go test [flags] [packages]")
		os.Exit(2)
	}
	kept := ""
	if dir, err := os.UserCacheDir(); err == nil {
		kept = filepath.Join(dir, "unspool-test-time")
	}
	last := "a quarter of an hour on two cores that have nothing else to do"
	if b, err := os.ReadFile(kept); err == nil {
		if d, err := time.ParseDuration(strings.TrimSpace(string(b))); err == nil {
			last = "the last time " + d.String()
		}
	}
	fmt.Printf("All tests take %s; a package that has not changed takes none.\n", last)

	start := time.Now()
	c := exec.Command(args[0], slices.Insert(slices.Clone(args[1:]), at, "-json")...)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	l := log{w: os.Stdout, verbose: slices.Contains(args, "-v"), running: map[[2]string]*strings.Builder{}, lacks: map[string]int{}}
	l.read(out)
	err = c.Wait()
	fmt.Println(l.skipped())
	status := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		status = max(exit.ExitCode(), 1)
	} else if err != nil {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	all := !slices.ContainsFunc(args, func(a string) bool { return strings.HasPrefix(a, "-run") || strings.HasPrefix(a, "-short") })
	if took := time.Since(start).Round(time.Second); status == 0 && all && took > time.Minute && kept != "" {
		os.WriteFile(kept, []byte(took.String()+"\n"), 0o600) // what cannot be kept is not known the next time
	}
	os.Exit(status)
}

// A log is the output of go test without -v, made of that with -json.
type log struct {
	w       io.Writer
	verbose bool
	running map[[2]string]*strings.Builder // output of tests, with their subtests, by package and name
	skips   int
	lacks   map[string]int // how many tests lack what
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
