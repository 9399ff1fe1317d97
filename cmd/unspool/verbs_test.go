package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestGroups: the help lists each verb, in one group.
func TestGroups(t *testing.T) {
	root := command()
	var all []string
	for _, g := range groups {
		all = append(all, g.Verbs...)
	}
	for _, c := range root.Commands() {
		if i := slices.Index(all, c.Name()); i < 0 || c.GroupID == "" || slices.Contains(all[i+1:], c.Name()) {
			t.Errorf("%s is in group %q", c.Name(), c.GroupID)
		}
	}
	if len(all) != len(root.Commands()) {
		t.Errorf("%d verbs, %d in groups", len(root.Commands()), len(all))
	}
}

// TestDefaultRecording: what record has written is what report, diff and serve read where no file is named.
func TestDefaultRecording(t *testing.T) {
	canRecord(t)
	c := program(t, append([]string{"record", "--"}, busy...)...)
	dir := c.Dir
	first := finish(t, c)
	in := func(args ...string) result {
		c := program(t, args...)
		c.Dir = dir
		return finish(t, c)
	}
	if r := in("report"); r.status != 0 || r.out == "" || !strings.HasPrefix(first.out, strings.SplitN(r.out, "\n", 2)[0]) {
		t.Errorf("status %d: %s%s", r.status, r.out, r.stderr)
	}
	in("diff").want(t, 2, "there is no unspool.data.old here")
	in(append([]string{"record", "--"}, busy...)...).want(t, 7, "")
	if r := in("diff"); r.status != 0 || !strings.HasPrefix(r.out, "before") {
		t.Errorf("status %d: %s%s", r.status, r.out, r.stderr)
	}
	in("diff", "unspool.data").want(t, 2, "an argument is missing")
	// As a link, unspool.data leads to a recording with the one before beside it.
	there, here := filepath.Join(t.TempDir(), "recording"), filepath.Join(dir, defaultRecording)
	if err := errors.Join(os.Rename(here, there), os.Remove(here+".old"), os.Symlink(there, here)); err != nil {
		t.Fatal(err)
	}
	in(append([]string{"record", "--"}, busy...)...).want(t, 7, "is now .*/recording.old")
	if r := in("diff"); r.status != 0 || !strings.HasPrefix(r.out, "before") {
		t.Errorf("status %d: %s%s", r.status, r.out, r.stderr)
	}
}

// TestTopSort: the table is in the order that was asked for.
func TestTopSort(t *testing.T) {
	canRecord(t)
	for column, by := range []string{"self", "total"} {
		r := runProgram(t, append([]string{"top", "-n", "1", "--sort", by, "--"}, busy...)...)
		var list []float64
		_, rows, _ := strings.Cut(r.out, "  function\n") // above them, the counts have parts of all, too
		for _, m := range regexp.MustCompile(`(?m)^ *([\d.]+) %.*? ([\d.]+) %`).FindAllStringSubmatch(rows, -1) {
			v, err := strconv.ParseFloat(m[1+column], 64)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, v)
		}
		if len(list) < 3 || !slices.IsSortedFunc(list, func(a, b float64) int { return int(10*b) - int(10*a) }) {
			t.Errorf("--sort %s: %v\n%s", by, list, r.out)
		}
	}
}
